/* Argument structs of hybrid models: streams of a wide residual, recurrences and windows that a
 * round may take back, block-sparse attention, hashed embeddings, a draft head. Conventions as in
 * args.h, which includes this. C is positions here too; streams are counted by S.
 *
 * Where an op says that rows of one slot are neighbours: in the pass they follow each other at
 * consecutive positions, and `at` of the row table counts them from 0. */
#ifndef SK_ARGS_HYBRID_H
#define SK_ARGS_HYBRID_H

#include "op/ctl.h"
#include "op/view.h"

/* ---- rows that are kept ------------------------------------------------------------------------
 *
 * A verify pass leaves what a state would take in, one entry a row, in `pending`; the next commit
 * keeps the first of them. */

/* pending[slot, at] = x[r], rounded to the type of pending. Everything else there stays. */
typedef struct sk_keep_rows_args {
    sk_view x;       // F32 [P, D]
    sk_view rows;    // I32 [P, 3], 0 <= at < W
    sk_view count;   // I32 [1]
    sk_view pending; // act or F32 [B, W, D]
} sk_keep_rows_args;

/* out[r] = pending[slot, at] */
typedef struct sk_take_rows_args {
    sk_view pending; // F32 [B, W, D]
    sk_view rows;    // I32 [P, 3], 0 <= at < W
    sk_view count;   // I32 [1]
    sk_view out;     // F32 [P, D]
} sk_take_rows_args;

/* A window holds the last N rows of a stream, the newest last. Of every slot it becomes the last N
 * of window[slot] followed by pending[slot, 0 .. kept[slot]). */
typedef struct sk_window_commit_args {
    sk_view pending; // act or F32 [B, W, D]
    sk_view kept;    // I32 [B], 0 .. W
    sk_view window;  // as pending [B, N, D]
} sk_window_commit_args;

/* The same for a pass of which all rows are kept: behind window[slot] come the slot's rows of x,
 * rounded to the window's type. Rows of one slot are neighbours. */
typedef struct sk_window_push_args {
    sk_view x;      // F32 [P, D]
    sk_view rows;   // I32 [P, 3]
    sk_view count;  // I32 [1]
    sk_view window; // act or F32 [B, N, D]
} sk_window_push_args;

/* ---- recurrence --------------------------------------------------------------------------------
 */

/* Causal convolution of every channel with taps of its own, then silu: with h = x rounded to the
 * window's type, out[r, d] = silu(sum over k, ascending, from zero, fused, of taps[d, k] * h of
 * the row (K-1-k) * dilation earlier). What lies ahead of the slot's first row in the pass is in
 * its window, whose last row is the one just before. Rows of one slot are neighbours. */
typedef struct sk_conv_args {
    sk_view x;      // F32 [P, D]
    sk_view taps;   // F32 [D, K], K >= 2
    sk_view window; // act [B, (K-1) * dilation, D]
    sk_view rows;   // I32 [P, 3]
    sk_view count;  // I32 [1]
    sk_view out;    // F32 [P, D]
    int32_t dilation;
} sk_conv_args;

/* What a step of the gated delta rule takes, from the convolved projections c = q (Hk heads of Dk),
 * k (likewise), v (Hv heads of Dv), one behind the other:
 *     q = q * n(q) * Dk^-0.5      k = k * n(k)      n(y) = 1 / sqrt(sum(y^2) + 1e-6) over a head
 *     decay = exp(coef * softplus(a + dt))          beta = 1 / (1 + exp(-b))
 * softplus(x) is x above 20, else log1p(exp(x)). coef is -exp(A_log), below 0. in[r] = k (Hk*Dk), v
 * (Hv*Dv), decay (Hv), beta (Hv). */
typedef struct sk_gdn_inputs_args {
    sk_view c;     // F32 [P, 2*Hk*Dk + Hv*Dv]
    sk_view a;     // F32 [P, Hv]
    sk_view b;     // F32 [P, Hv]
    sk_view coef;  // F32 [Hv]
    sk_view dt;    // F32 [Hv]
    sk_view count; // I32 [1]
    sk_view q;     // F32 [P, Hk, Dk]
    sk_view in;    // F32 [P, Hk*Dk + Hv*Dv + 2*Hv]
} sk_gdn_inputs_args;

/* The gated delta rule (Gated Delta Networks, Yang et al. 2024). Head h of the values uses head
 * key[h] of the keys. The slot's rows in order, from its matrix m[slot, h] = M [Dk, Dv] on:
 *     M = decay * M;  u = beta * (v - k^T M);  M = M + k u^T;  out[r, h] = q^T M
 * Sums over keys ascend from zero; these and M + k u^T are fused. m stays as it is. Rows of one
 * slot are neighbours. */
typedef struct sk_gdn_step_args {
    sk_view q;     // F32 [P, Hk, Dk]
    sk_view in;    // F32 [P, Hk*Dk + Hv*Dv + 2*Hv] as of gdn_inputs
    sk_view key;   // I32 [Hv], 0 .. Hk-1
    sk_view m;     // F32 [B, Hv, Dk, Dv]
    sk_view rows;  // I32 [P, 3]
    sk_view count; // I32 [1]
    sk_view out;   // F32 [P, Hv, Dv]
} sk_gdn_step_args;

/* gdn_step that leaves in m what is there after the slot's last row. */
typedef struct sk_gdn_scan_args {
    sk_view q;     // F32 [P, Hk, Dk]
    sk_view in;    // F32 [P, Hk*Dk + Hv*Dv + 2*Hv]
    sk_view key;   // I32 [Hv]
    sk_view m;     // F32 [B, Hv, Dk, Dv]
    sk_view rows;  // I32 [P, 3]
    sk_view count; // I32 [1]
    sk_view out;   // F32 [P, Hv, Dv]
} sk_gdn_scan_args;

/* m[slot] takes in the first kept[slot] pending inputs, as gdn_scan does, with the same bits. */
typedef struct sk_gdn_fold_args {
    sk_view pending; // F32 [B, W, Hk*Dk + Hv*Dv + 2*Hv]
    sk_view kept;    // I32 [B], 0 .. W
    sk_view key;     // I32 [Hv]
    sk_view m;       // F32 [B, Hv, Dk, Dv]
} sk_gdn_fold_args;

/* out = round(((x * n) * gain) / (1 + exp(-gate))), n as of rms_norm over each head. */
typedef struct sk_gated_norm_args {
    sk_view x;     // F32 [P, H, D]
    sk_view gate;  // F32 [P, H*D]
    sk_view gain;  // F32 [D]
    sk_view count; // I32 [1]
    sk_view out;   // act [P, H*D]
    float eps;
} sk_gated_norm_args;

/* ---- streams -----------------------------------------------------------------------------------
 *
 * The residual is S streams of D; each has its own norm factor n_s = 1 / sqrt(mean(s^2) + eps), as
 * of rms_norm, and its own part of a gain of S*D.
 */

/* s[r, i] = x[r] for every stream i. */
typedef struct sk_stream_copy_args {
    sk_view x;     // F32 [P, D]
    sk_view count; // I32 [1]
    sk_view s;     // F32 [P, S, D]
} sk_stream_copy_args;

/* s[r, i] = s[r, i] + x[r] */
typedef struct sk_stream_add_args {
    sk_view x;     // F32 [P, D]
    sk_view count; // I32 [1]
    sk_view s;     // F32 [P, S, D]
} sk_stream_add_args;

/* First half of a hyper-connection ahead of a block. With a = round(s * gain) to the type of low:
 *     factor = n_i of each stream
 *     y_j = sum over streams i, ascending, from zero, fused, of n_i * (W_j a)_i
 *     low = round(silu(y_0 / S))      inject = 2 / (1 + exp(-y_1 / S))
 * (W a)_i is what linear gives for a row in which all streams but i are 0. */
typedef struct sk_hyper_down_args {
    sk_view s;      // F32 [P, S, D]
    sk_view gain;   // F32 [S*D]
    sk_view count;  // I32 [1]
    sk_view w[2];   // any weight type: [R, S*D]; [S, S*D], optional
    sk_view low;    // act [P, R]
    sk_view factor; // F32 [P, S]
    sk_view inject; // F32 [P, S], where there is w[1]
    float eps;
} sk_hyper_down_args;

/* Second half: out = round(z / S), z the sum over streams i, ascending, from zero, fused, of
 *     1 / (1 + exp(-(W low)_i)) * ((s_i * factor_i) * gain_i) */
typedef struct sk_hyper_mix_args {
    sk_view low;    // act [P, R]
    sk_view w;      // any weight type [S*D, R]
    sk_view s;      // F32 [P, S, D]
    sk_view factor; // F32 [P, S], of the first half
    sk_view gain;   // F32 [S*D]
    sk_view count;  // I32 [1]
    sk_view out;    // act [P, D]
} sk_hyper_mix_args;

/* What a block gave goes back into all streams: s[r, i] = inject[r, i] * x[r] + s[r, i], fused. */
typedef struct sk_hyper_inject_args {
    sk_view x;      // F32 [P, D]
    sk_view inject; // F32 [P, S]
    sk_view count;  // I32 [1]
    sk_view s;      // F32 [P, S, D]
} sk_hyper_inject_args;

/* ---- hashed embeddings -------------------------------------------------------------------------
 */

/* Rows of a table for the n-grams that end at each row, orders 2 .. N, G / (N-1) heads an order. t
 * = the slot's tokens: ids of the pass from its first row on, the window `tokens` before. c_0 = the
 * row's own token; c_i = the token i positions before, or eos from the first of these on that is
 * eos, or lies ahead of position 0. For head g of order n:
 *     out[r, g] = offset[g] + (c_0 * mult[0] xor .. xor c_{n-1} * mult[n-1]) mod size[g]
 * in 64 bits. Rows of one slot are neighbours. */
typedef struct sk_ngram_rows_args {
    sk_view ids;    // I32 [P]
    sk_view tokens; // I32 [B, C+1]
    sk_view rows;   // I32 [P, 3]
    sk_view count;  // I32 [1]
    sk_view mult;   // I64 [N], N >= 2, above 0; times any token below 2^63
    sk_view size;   // I64 [G], above 0
    sk_view offset; // I64 [G], offset + size at most 2^31 - 1
    sk_view out;    // I32 [P, G]
    int32_t eos;
} sk_ngram_rows_args;

/* out[r] = the rows ids[r, 0] .. ids[r, G-1] of the table, decoded, times scale, rounded, one
 * behind the other. A table in pieces of `piece_rows` rows each (the last one may have fewer):
 * piece i lies piece[i] bytes from the first; without pieces piece_rows is 0. Ids are rows of the
 * table. */
typedef struct sk_gather_heads_args {
    sk_view table; // any weight type [V, D]
    sk_view piece; // I64 [ceil(V / piece_rows)], optional
    sk_view ids;   // I32 [P, G]
    sk_view count; // I32 [1]
    sk_view out;   // act [P, G*D]
    int32_t piece_rows;
    float scale;
} sk_gather_heads_args;

/* The gate of a hashed embedding into the streams (per-layer embedding of Flash-Next). With k^ =
 * (key_i * n) * key_gain, q^ = (s_i * n) * query_gain, each with the factor of its own stream:
 *     t = (sum of k^ q^ in eight lanes) / sqrt(D);  g = sign(t) sqrt(max(|t|, 1e-6)), 0 for t = 0
 *     y_i = value / (1 + exp(-g));  normed_i = (y_i * n) * conv_gain, n of y_i */
typedef struct sk_ple_gate_args {
    sk_view key;        // F32 [P, S*D]
    sk_view value;      // F32 [P, D]
    sk_view s;          // F32 [P, S, D]
    sk_view key_gain;   // F32 [S*D]
    sk_view query_gain; // F32 [S*D]
    sk_view conv_gain;  // F32 [S*D]
    sk_view count;      // I32 [1]
    sk_view y;          // F32 [P, S*D]
    sk_view normed;     // F32 [P, S*D]
    float eps;
} sk_ple_gate_args;

/* ---- block-sparse attention --------------------------------------------------------------------
 *
 * Positions are taken in blocks of `ratio`, block b being positions b*ratio .. b*ratio+ratio-1. The
 * row at position p sees floor((p+1) / ratio) whole blocks, and the positions behind them.
 */

/* raw[slot, pos] = k, rounded. For a row that completes a block b: with m the mean of the block's
 * raw keys (sum ascending from zero, divided, rounded to the type), pooled[slot, b] = m normed
 * (rms_norm with gain, result in F32), rotated as by rope, neox, at position b*ratio, rounded. All
 * rows of a slot are appended before any block is pooled. Rows of one slot are neighbours. */
typedef struct sk_index_append_args {
    sk_view k;      // F32 [P, D]
    sk_view gain;   // F32 [D]
    sk_view freq;   // F32 [n/2] as in rope
    sk_view rows;   // I32 [P, 3]
    sk_view count;  // I32 [1]
    sk_view raw;    // act [B, C, D]
    sk_view pooled; // as raw [B, ceil(C / ratio), D]
    float eps;
    int32_t ratio;
} sk_index_append_args;

/* The blocks a row attends to, of the n = floor((pos+1) / ratio) it sees. score[b] = scale * (sum
 * over heads h, ascending, from zero, of max(0, q_h . pooled[slot, b])), products in eight lanes.
 * out[r] = the min(K, n) blocks of the highest scores, the lower block in a tie, in ascending
 * order; the rest is -1. A product that is NaN makes the score NaN, which is less than any number.
 */
typedef struct sk_block_topk_args {
    sk_view q;      // act [P, H, D]
    sk_view pooled; // as q [B, N, D]
    sk_view rows;   // I32 [P, 3]
    sk_view count;  // I32 [1]
    sk_view out;    // I32 [P, K]
    float scale;
    int32_t ratio;
} sk_block_topk_args;

/* attend over the positions of the row's blocks, ascending, then those behind its whole blocks: the
 * ordinals of this set are what is split. With a gate, out = round(attention / (1 + exp(-gate))),
 * with no rounding in between. All blocks chosen: the bits of attend without a window. */
typedef struct sk_attend_blocks_args {
    sk_view q;       // act [P, H, D]
    sk_view gate;    // F32 [P, H, D], optional; its heads may be apart
    sk_view k_cache; // as q [B, C, Hkv, D]
    sk_view v_cache; // as q [B, C, Hkv, D]
    sk_view blocks;  // I32 [P, K] as of block_topk
    sk_view rows;    // I32 [P, 3]
    sk_view count;   // I32 [1]
    sk_view out;     // as q [P, H, D]
    float scale;
    int32_t ratio;
    int32_t split;
} sk_attend_blocks_args;

/* ---- routing -----------------------------------------------------------------------------------
 */

/* The T largest of each row's logits, descending, the lower index in a tie. weight = exp(logit -
 * max) divided by the sum of these over the T (ascending j, from zero) when `normed` is set, or
 * over all E (eight lanes). NaN is less than any number. */
typedef struct sk_route_topk_args {
    sk_view logits; // F32 [P, E]
    sk_view count;  // I32 [1]
    sk_view ids;    // I32 [P, T]
    sk_view weight; // F32 [P, T]
    int32_t normed;
} sk_route_topk_args;

#define SK_FORCE_STRIDE_MAX (1 << 20) // so that 64 slots and any position fit 32 bits

/* Routes that are not the router's own, for measuring: ids[r] = table[(slot * stride + pos) mod N]
 * of the row's slot and position, over what route_topk chose; the weights of its places stay.
 * Whoever makes the table answers for its entries: experts that there are, those of a row all
 * different. */
typedef struct sk_route_force_args {
    sk_view table; // I32 [N, T]
    sk_view rows;  // I32 [P, 3]
    sk_view count; // I32 [1]
    sk_view ids;   // I32 [P, T]
    int32_t stride;
} sk_route_force_args;

/* y = x / (1 + exp(-gate)) + y: the gate as a factor 1 / (1 + exp(-gate)), then fused. */
typedef struct sk_gate_add_args {
    sk_view x;     // F32 [P, D]
    sk_view gate;  // F32 [P, 1]
    sk_view count; // I32 [1]
    sk_view y;     // F32 [P, D]
} sk_gate_add_args;

/* ---- draft head --------------------------------------------------------------------------------
 *
 * Row j of the head belongs to the target's hidden row at position j and the token at j + 1.
 */

/* The pass of draft step i: of every active slot with n >= 1, in ascending order, one row at
 * position n - 1 + i, `at` 0. ids: the anchor when i is 0, else what the step before chose for the
 * same row. Unused rows have slot -1 and id 0. An active slot has n below C, so the rows of K steps
 * lie below position C + K - 2, for which caches of the head need room. */
typedef struct sk_draft_rows_args {
    sk_view slots;  // U8 [B, sizeof(sk_slot)]
    sk_view chosen; // I32 [B], present when step is above 0
    sk_view rows;   // I32 [B, 3]
    sk_view ids;    // I32 [B]
    sk_view count;  // I32 [1]
    int32_t step;
} sk_draft_rows_args;

/* drafts[slot, step] = chosen[r] and n_draft[slot] = step + 1 for the slot of each row. */
typedef struct sk_draft_put_args {
    sk_view rows;    // I32 [B, 3]
    sk_view count;   // I32 [1]
    sk_view chosen;  // I32 [B]
    sk_view drafts;  // I32 [B, K]
    sk_view n_draft; // I32 [B]
    int32_t step;    // below K
} sk_draft_put_args;

/* The rows that a commit has just kept: kept[slot] rows of every slot, in ascending order, up to
 * position n - 1, `at` counting from 0. Unused rows have slot -1. */
typedef struct sk_commit_rows_args {
    sk_view slots; // U8 [B, sizeof(sk_slot)]
    sk_view kept;  // I32 [B]
    sk_view rows;  // I32 [P, 3], P at least the sum of kept
    sk_view count; // I32 [1]
} sk_commit_rows_args;

/* ids[r] = tokens[slot, pos + 1] */
typedef struct sk_next_ids_args {
    sk_view tokens; // I32 [B, C+1]
    sk_view rows;   // I32 [P, 3], pos < C
    sk_view count;  // I32 [1]
    sk_view ids;    // I32 [P]
} sk_next_ids_args;

/* What the head's first projection takes: out[r, i] = e normed (rms_norm with e_gain, rounded),
 * then stream i of x normed: (x * n) * gain, rounded, n over all streams when `whole` is set, else
 * the stream's own. n = S * count, the rows of out seen as [P*S, 2*D]. */
typedef struct sk_mtp_join_args {
    sk_view e;      // F32 [P, D] embedding of the token
    sk_view x;      // F32 [P, S, D] hidden row
    sk_view e_gain; // F32 [D]
    sk_view gain;   // F32 [S*D]
    sk_view count;  // I32 [1]
    sk_view out;    // act [P, S, 2*D]
    sk_view n;      // I32 [1]
    float eps;
    int32_t whole;
} sk_mtp_join_args;

/* linear of one segment, then argmax, without the logits. */
typedef struct sk_linear_argmax_args {
    sk_view x;     // act [P, K]
    sk_view count; // I32 [1]
    sk_view w;     // any weight type [V, K]
    sk_view bias;  // F32 [V], optional
    sk_view scale; // as in linear, optional
    sk_view id;    // I32 [P]
    int32_t scale_n, scale_k;
} sk_linear_argmax_args;

#endif
