/* Argument structs, one per op: views first, then the constants of the plan. Shared with kernels.
 *
 * P = row capacity of the pass, B = slots, C = positions a slot can hold. "act" is the activation
 * type: BF16, or F32 in numerics mode f32. The comment above each struct is the op's contract.
 * Every op that walks rows takes `count`, I32 [1]: only the first count[0] rows are meaningful;
 * what the op leaves in the others is unspecified and nothing reads it. No op lets a row's result
 * depend on another row, on P, or on the slot. */
#ifndef SK_ARGS_H
#define SK_ARGS_H

#include "op/args_hybrid.h"
#include "op/ctl.h"
#include "op/view.h"

#define SK_LINEAR_SEGS 4

/* ctl = entry (round mod n) of the ring; ctl.valid = (both sequence numbers equal round). */
typedef struct sk_ctl_read_args {
    sk_view ring;  // U8  [n, sizeof(sk_ctl_entry)]
    sk_view round; // I64 [1]
    sk_view ctl;   // U8  [sizeof(sk_ctl_entry)]
} sk_ctl_read_args;

/* Keeps the first R pending rows of every slot: R = min(pending.n, licence). The kept tokens enter
 * the token window at positions n+1 .. n+R, n grows by R, the last kept token is the new anchor,
 * counters count, pending is emptied (all zero). When all n rows are kept, pending.finish takes
 * effect; failing that, `stop` of the control entry ends the request with SK_FINISH_HOST, also when
 * nothing was pending. R = 0 and nothing changes for a slot that is inactive, is told to wait (any
 * licence below SK_LICENCE_ALL), or finds the control entry invalid. */
typedef struct sk_commit_args {
    sk_view ctl;      // U8 [sizeof(sk_ctl_entry)]
    sk_view slots;    // U8 [B, sizeof(sk_slot)]
    sk_view pending;  // U8 [B, sizeof(sk_pending)]
    sk_view counters; // U8 [B, sizeof(sk_counters)]
    sk_view tokens;   // I32 [B, C+1] token window by absolute position
    sk_view kept;     // I32 [B] R of this commit, for folds and catch-ups
} sk_commit_args;

/* Proposes nothing. All drafters: entries of `drafts` past n_draft are 0, and a slot that is not
 * active gets no proposal. K is at least 1, also where the pass is one row wide. */
typedef struct sk_draft_none_args {
    sk_view drafts;  // I32 [B, K]
    sk_view n_draft; // I32 [B]
} sk_draft_none_args;

/* Proposes table[n+1+i] for i < K, up to the first entry < 0. From index accept[rounds mod m] on,
 * the proposal is replaced by (t + 1) mod vocab, so that exactly that many are right if the table
 * is. */
typedef struct sk_draft_planted_args {
    sk_view slots;    // U8 [B, sizeof(sk_slot)]
    sk_view counters; // U8 [B, sizeof(sk_counters)]
    sk_view table;    // I32 [B, C+1] by absolute position; negative: no proposal
    sk_view accept;   // I32 [m]
    sk_view drafts;   // I32 [B, K]
    sk_view n_draft;  // I32 [B]
    int32_t vocab;
} sk_draft_planted_args;

/* Prompt lookup. With h = tokens[0..n]: for the largest m in n_max .. n_min for which the last m
 * tokens of h also end at some earlier index, takes the latest such index e and proposes
 * h[e+1], h[e+2], ...; past the end of h the proposals themselves continue the copy, so a loop of
 * any period is proposed to full length. No match: no proposal. */
typedef struct sk_draft_ngram_args {
    sk_view slots;   // U8 [B, sizeof(sk_slot)]
    sk_view tokens;  // I32 [B, C+1]
    sk_view drafts;  // I32 [B, K]
    sk_view n_draft; // I32 [B]
    int32_t n_max;
    int32_t n_min;
} sk_draft_ngram_args;

/* Builds the row table of a verify pass: for each slot that takes part (active, nothing pending,
 * control entry valid and not telling it to wait) the rows anchor, d_1 .. d_v at positions n ..
 * n+v, slots in ascending order, packed. v = min(n_draft, W-1, tokens the request may still emit -
 * 1, positions left - 1); a slot with v < 0, or whose rows do not all fit into P, takes no part. */
typedef struct sk_round_rows_args {
    sk_view ctl;      // U8 [sizeof(sk_ctl_entry)]
    sk_view slots;    // U8 [B, sizeof(sk_slot)]
    sk_view requests; // U8 [B, sizeof(sk_request)]
    sk_view pending;  // U8 [B, sizeof(sk_pending)]
    sk_view drafts;   // I32 [B, K]
    sk_view n_draft;  // I32 [B]
    sk_view rows;     // I32 [P, 3] sk_row; unused rows have slot -1
    sk_view ids;      // I32 [P] input token of each row; 0 for unused rows
    sk_view count;    // I32 [1]
    sk_view span;     // I32 [B, 2] {first row, rows}; {0, 0} for a slot that takes no part
    int32_t width;    // W: at most K + 1 rows of a slot (K is at least 1, also when W is)
    int32_t ctx;      // C
} sk_round_rows_args;

/* out[r] = scale * decode(table[ids[r]]). Ids are checked by the host before they enter a plan. */
typedef struct sk_gather_rows_args {
    sk_view table; // any weight type [V, D]
    sk_view ids;   // I32 [P]
    sk_view count; // I32 [1]
    sk_view out;   // F32 [P, D]
    float scale;
} sk_gather_rows_args;

/* out = round((x * r) * gain) with r = 1 / sqrt(mean(x^2) + eps) over the last dimension. The mean
 * is taken in double, r in float. Heads of x may be apart. */
typedef struct sk_rms_norm_args {
    sk_view x;     // F32 [P, D] or [P, G, D]
    sk_view gain;  // F32 [D]
    sk_view count; // I32 [1]
    sk_view out;   // act or F32, as x
    float eps;
} sk_rms_norm_args;

/* y_s[r] = W_s x[r] (+ bias_s) for up to four segments that share the input. Each segment has its
 * own weight format. Sum order: see docs/numerics.md; it depends on the weight's type and K only.
 *
 * A segment may have scales on top of its format, one for each scale_n rows and scale_k columns
 * (the last ones of either kind may be cut short): the scale and the minimum of a group are those
 * of the format times scale[n / scale_n, k / scale_k], rounded to F32. A group has one scale:
 * scale_k is a multiple of the format's group, or at least K. */
typedef struct sk_linear_args {
    sk_view x;                     // act [P, K]
    sk_view count;                 // I32 [1]
    sk_view w[SK_LINEAR_SEGS];     // any weight type [N_s, K]
    sk_view bias[SK_LINEAR_SEGS];  // F32 [N_s], optional
    sk_view scale[SK_LINEAR_SEGS]; // F32 [ceil(N_s / scale_n), ceil(K / scale_k)], optional
    sk_view y[SK_LINEAR_SEGS];     // F32 [P, N_s]
    int32_t scale_n[SK_LINEAR_SEGS], scale_k[SK_LINEAR_SEGS]; // 0 without a scale
} sk_linear_args;

/* Rotates the first 2*len(freq) elements of each head by the angle pos * freq[i]. Pairs are
 * (2i, 2i+1), or (i, i+n/2) when neox is set; the rest passes through. */
typedef struct sk_rope_args {
    sk_view x;     // F32 [P, H, D]
    sk_view freq;  // F32 [n/2] radians per position
    sk_view rows;  // I32 [P, 3]
    sk_view count; // I32 [1]
    sk_view out;   // act or F32 [P, H, D]
    int32_t neox;
} sk_rope_args;

/* cache[slot, pos] = row, rounded to the cache's type. Rows of other positions stay as they are. */
typedef struct sk_kv_append_args {
    sk_view k;       // act or F32 [P, H, D]
    sk_view v;       // act or F32 [P, H, D]
    sk_view rows;    // I32 [P, 3]
    sk_view count;   // I32 [1]
    sk_view k_cache; // act [B, C, H, D]
    sk_view v_cache; // act [B, C, H, D]
} sk_kv_append_args;

/* softmax(scale * q k^T) v over the positions max(0, pos-window+1) .. pos of the row's own slot
 * (window 0: all). Query head h uses key head h / (H / Hkv). Splits of `split` ordinals of that
 * set, merged in ascending order. P is rounded to act before P V; the sum of P is not. */
typedef struct sk_attend_args {
    sk_view q;       // act [P, H, D]
    sk_view k_cache; // act [B, C, Hkv, D]
    sk_view v_cache; // act [B, C, Hkv, D]
    sk_view rows;    // I32 [P, 3]
    sk_view count;   // I32 [1]
    sk_view out;     // act [P, H, D]
    float scale;
    int32_t window;
    int32_t split;
} sk_attend_args;

/* y += x */
typedef struct sk_add_args {
    sk_view x;     // F32 [P, D]
    sk_view count; // I32 [1]
    sk_view y;     // F32 [P, D]
} sk_add_args;

/* out = x: keeps a value that a later step overwrites, for the host to read. */
typedef struct sk_copy_rows_args {
    sk_view x;     // F32 [P, D]
    sk_view count; // I32 [1]
    sk_view out;   // F32 [P, D]
} sk_copy_rows_args;

/* out = round(gate / (1 + exp(-gate)) * up) */
typedef struct sk_silu_mul_args {
    sk_view gate;  // F32 [P, D]
    sk_view up;    // F32 [P, D]
    sk_view count; // I32 [1]
    sk_view out;   // act [P, D]
} sk_silu_mul_args;

/* out = round(g / 2 * (1 + tanh(sqrt(2 / pi) * (g + 0.044715 g^3))) * up): the tanh form of GELU.
 */
typedef struct sk_gelu_mul_args {
    sk_view gate;  // F32 [P, D]
    sk_view up;    // F32 [P, D]
    sk_view count; // I32 [1]
    sk_view out;   // act [P, D]
} sk_gelu_mul_args;

/* Index of the largest element; the lowest index wins a tie; NaN never wins, and a row of nothing
 * but NaN gives 0. */
typedef struct sk_argmax_args {
    sk_view x;     // F32 [P, V]
    sk_view count; // I32 [1]
    sk_view id;    // I32 [P]
} sk_argmax_args;

/* Greedy chain: A = number of leading drafts equal to the target's choice; tokens d_1 .. d_A and
 * the target's choice in row A; cut at the first stop id, then at the limits. Writes pending of the
 * slots that took part and leaves the others alone. */
typedef struct sk_accept_args {
    sk_view slots;    // U8 [B, sizeof(sk_slot)]
    sk_view requests; // U8 [B, sizeof(sk_request)]
    sk_view drafts;   // I32 [B, K]
    sk_view n_draft;  // I32 [B]
    sk_view span;     // I32 [B, 2]
    sk_view chosen;   // I32 [P] the target's token for each row
    sk_view pending;  // U8 [B, sizeof(sk_pending)]
    int32_t ctx;
} sk_accept_args;

/* Writes completion record (round mod n) with the sequence number at both ends, then round += 1.
 * A slot that took no part reports its settled state: pos = n, finish, committed; the rest is 0.
 * Otherwise pos is the anchor's position and n, drafted, accepted, finish, tok are those pending.
 * Entries of slots from B on are left as they are, zero from the start. */
typedef struct sk_publish_args {
    sk_view ctl;     // U8 [sizeof(sk_ctl_entry)]
    sk_view slots;   // U8 [B, sizeof(sk_slot)]
    sk_view pending; // U8 [B, sizeof(sk_pending)]
    sk_view kept;    // I32 [B]
    sk_view span;    // I32 [B, 2]
    sk_view round;   // I64 [1]
    sk_view ring;    // U8 [n, sizeof(sk_done)]
} sk_publish_args;

/* ---- fused ops: each is the composition of ops above, in one step -----------------------------
 */

/* A norm folded into the product behind it. With n_r = 1 / sqrt(mean(x[r]^2) + eps):
 *     a = round(x * gain) to act;   y_s[r] = n_r * (W_s a[r]) (+ bias_s)
 * The only rounding before the product is that of a; n_r is applied to its F32 sums. Segments and
 * scales as in linear. */
typedef struct sk_norm_linear_args {
    sk_view x;                     // F32 [P, K]
    sk_view gain;                  // F32 [K]
    sk_view count;                 // I32 [1]
    sk_view w[SK_LINEAR_SEGS];     // any weight type [N_s, K]
    sk_view bias[SK_LINEAR_SEGS];  // F32 [N_s], optional
    sk_view scale[SK_LINEAR_SEGS]; // F32 [ceil(N_s / scale_n), ceil(K / scale_k)], optional
    sk_view y[SK_LINEAR_SEGS];     // F32 [P, N_s]
    int32_t scale_n[SK_LINEAR_SEGS], scale_k[SK_LINEAR_SEGS]; // 0 without a scale
    float eps;
    int32_t act; // the sk_dtype that a is rounded to: BF16 or F32
} sk_norm_linear_args;

/* The gated feed-forward up to its hidden row: norm_linear with two segments, then
 *     out = round(f(y_0) * y_1), f = silu, or gelu (tanh form) when `gelu` is set.
 * act is the type of out. */
typedef struct sk_norm_glu_args {
    sk_view x;        // F32 [P, K]
    sk_view gain;     // F32 [K]
    sk_view count;    // I32 [1]
    sk_view w[2];     // gate, up: any weight type [N, K]
    sk_view bias[2];  // F32 [N], optional
    sk_view scale[2]; // as in linear, optional
    sk_view out;      // act [P, N]
    int32_t scale_n[2], scale_k[2];
    float eps;
    int32_t gelu;
} sk_norm_glu_args;

/* y += W x (+ bias): linear of one segment, then add. */
typedef struct sk_linear_add_args {
    sk_view x;     // act [P, K]
    sk_view count; // I32 [1]
    sk_view w;     // any weight type [N, K]
    sk_view bias;  // F32 [N], optional
    sk_view scale; // as in linear, optional
    sk_view y;     // F32 [P, N]
    int32_t scale_n, scale_k;
} sk_linear_add_args;

/* A product whose sum over K is left in S parts, for a consumer that adds them: y_s[i, r] =
 * W_s[:, range i] x[r, range i], range i being the columns [i, i + 1) * K / S. K / S is a multiple
 * of 256, S is 1 .. 32 and the same for all segments. A part is what linear gives for its columns
 * alone; the whole product is the parts added in ascending order, from zero. */
typedef struct sk_linear_parts_args {
    sk_view x;                 // act [P, K]
    sk_view count;             // I32 [1]
    sk_view w[SK_LINEAR_SEGS]; // any weight type [N_s, K]
    sk_view y[SK_LINEAR_SEGS]; // F32 [S, P, N_s]
} sk_linear_parts_args;

/* y += rms_norm(x): the norm of what a block adds to the stream. */
typedef struct sk_norm_add_args {
    sk_view x;     // F32 [P, D]
    sk_view gain;  // F32 [D]
    sk_view count; // I32 [1]
    sk_view y;     // F32 [P, D]
    float eps;
} sk_norm_add_args;

/* norm_linear of one segment, then argmax, without the logits. */
typedef struct sk_norm_argmax_args {
    sk_view x;     // F32 [P, K]
    sk_view gain;  // F32 [K]
    sk_view count; // I32 [1]
    sk_view w;     // any weight type [V, K]
    sk_view bias;  // F32 [V], optional
    sk_view scale; // as in linear, optional
    sk_view id;    // I32 [P]
    int32_t scale_n, scale_k;
    float eps;
    int32_t act; // as in norm_linear
} sk_norm_argmax_args;

/* From the projections to the attention output: q and k normed per head where there is a gain
 * (rms_norm, result in F32), both rotated and rounded to act, k and v appended to the caches, then
 * attend. Rows of one slot are consecutive in the pass, at consecutive positions, and `at` counts
 * them from the first. */
typedef struct sk_rope_attend_args {
    sk_view q;       // F32 [P, H, D]
    sk_view k;       // F32 [P, Hkv, D]
    sk_view v;       // F32 [P, Hkv, D]
    sk_view q_norm;  // F32 [D], optional
    sk_view k_norm;  // F32 [D], optional
    sk_view freq;    // F32 [n/2] as in rope
    sk_view rows;    // I32 [P, 3]
    sk_view count;   // I32 [1]
    sk_view k_cache; // act [B, C, Hkv, D]
    sk_view v_cache; // act [B, C, Hkv, D]
    sk_view out;     // act [P, H, D]
    float eps;
    float scale;
    int32_t window;
    int32_t split;
    int32_t neox;
} sk_rope_attend_args;

/* ---- experts of a mixture ----------------------------------------------------------------------
 *
 * T = experts of a row, E = experts there are. Route r*T+j is the way of row r to its j-th expert.
 */

/* The work list of the products below: for each expert that a live row goes to, in ascending order,
 * its routes in ascending order, at most SK_ENTRY_ROUTES of them an entry; the rest of `route` is
 * -1. What is behind entry n-1 is unspecified. Ids are 0 .. E-1, those of a row differ or not. */
typedef struct sk_route_list_args {
    sk_view ids;   // I32 [P, T] expert of each route
    sk_view count; // I32 [1]
    sk_view list;  // U8 [P*T, sizeof(sk_route_entry)]
    sk_view n;     // I32 [1] entries
} sk_route_list_args;

/* The gated feed-forward of every listed route, up to its hidden row: with e the route's expert and
 * r its row
 *     out[route] = round(f(W_0[e] x[r]) * (W_1[e] x[r])), f = silu, or gelu (tanh form) when `gelu`
 * is set. Each product is that of linear with the matrix of the expert. Rows of routes that are not
 * listed are unspecified. */
typedef struct sk_expert_glu_args {
    sk_view x;     // act [P, K]
    sk_view list;  // U8 [P*T, sizeof(sk_route_entry)]
    sk_view n;     // I32 [1]
    sk_view w[2];  // gate, up: any weight type [E, N, K]
    sk_view at[2]; // I64 [E], optional: bytes from the first matrix to each, if they are apart
    sk_view out;   // act [P*T, N]
    int32_t gelu;
} sk_expert_glu_args;

/* y[route] = W[e] x[route] of every listed route: linear with the matrix of the expert. */
typedef struct sk_expert_linear_args {
    sk_view x;    // act [P*T, K]
    sk_view list; // U8 [P*T, sizeof(sk_route_entry)]
    sk_view n;    // I32 [1]
    sk_view w;    // any weight type [E, N, K]
    sk_view at;   // as in expert_glu, optional
    sk_view y;    // F32 [P*T, N]
} sk_expert_linear_args;

/* y[r] = the sum over j of weight[r, j] * x[r*T+j]: from zero, j ascending, fused. */
typedef struct sk_expert_sum_args {
    sk_view x;      // F32 [P*T, N]
    sk_view weight; // F32 [P, T]
    sk_view count;  // I32 [1]
    sk_view y;      // F32 [P, N]
} sk_expert_sum_args;

#endif
