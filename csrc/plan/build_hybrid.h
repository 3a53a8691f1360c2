/* More words for recipes: those of hybrid models. As build.h; buffers are numbers, -1: none. `s` is
 * the streams, F32 [P, S*D]. */
#ifndef SK_BUILD_HYBRID_H
#define SK_BUILD_HYBRID_H

#include "plan/build.h"

/* Rows that a state takes in: at once, where all rows of the pass are kept, or left in `pending`
 * for the next commit. */
typedef struct sk_window {
    int32_t window;  // state [B, N, D]
    int32_t pending; // pending [B, W, D]
} sk_window;

void sk_b_keep_rows(sk_builder *b, sk_view x, int32_t pending);
sk_view sk_b_take_rows(sk_builder *b, int32_t pending);
void sk_b_window_commit(sk_builder *b, const sk_window *w, sk_view kept);
/* window_push where `settle`, else keep_rows. */
void sk_b_window_take(sk_builder *b, sk_view x, const sk_window *w, bool settle);

sk_view sk_b_conv(sk_builder *b, sk_view x, int32_t taps, int32_t window, int32_t dilation);

typedef struct sk_recurrence {
    int32_t coef, dt, key; // F32 [Hv], F32 [Hv], I32 [Hv]
    int32_t key_heads, key_dim;
    int32_t m;       // state F32 [B, Hv, Dk, Dv]
    int32_t pending; // pending F32 [B, W, ...]
} sk_recurrence;

/* From the convolved projections to what the recurrence reads out, F32 [P, Hv, Dv]. */
sk_view sk_b_gdn(sk_builder *b, sk_view c, sk_view alpha, sk_view beta, const sk_recurrence *r,
                 bool settle);
void sk_b_gdn_fold(sk_builder *b, const sk_recurrence *r, sk_view kept);
sk_view sk_b_gated_norm(sk_builder *b, sk_view x, sk_view gate, sk_norm norm);

typedef struct sk_hyper {
    int32_t gain;   // F32 [S*D]
    int32_t down;   // [R, S*D]
    int32_t up;     // [S*D, R]
    int32_t inject; // [S, S*D], -1: nothing goes back
    int32_t n_stream;
    float eps;
} sk_hyper;

/* What a block reads, act [P, D], and in *inject how its result goes back, F32 [P, S]. */
sk_view sk_b_hyper(sk_builder *b, sk_view s, const sk_hyper *h, sk_view *inject);
void sk_b_hyper_inject(sk_builder *b, sk_view s, sk_view x, sk_view inject);
sk_view sk_b_stream_copy(sk_builder *b, sk_view x, int32_t n_stream);
void sk_b_stream_add(sk_builder *b, sk_view s, sk_view x, int32_t n_stream);

typedef struct sk_ngrams {
    int32_t tokens;             // I32 [B, C+1]
    int32_t mult, size, offset; // I64 [N], [G], [G]
    int32_t eos;
    int32_t table;      // [V, D]
    int32_t at;         // I64, -1: the table is in one piece
    int32_t piece_rows; // 0 likewise
} sk_ngrams;

sk_view sk_b_ngram_rows(sk_builder *b, sk_view ids, const sk_ngrams *n); // I32 [P, G]
sk_view sk_b_gather_heads(sk_builder *b, sk_view rows, const sk_ngrams *n);

typedef struct sk_ple {
    int32_t key_gain, query_gain, conv_gain; // F32 [S*D]
    int32_t n_stream;
    float eps;
} sk_ple;

/* Returns y; *normed is what the convolution takes. */
sk_view sk_b_ple_gate(sk_builder *b, sk_view key, sk_view value, sk_view s, const sk_ple *p,
                      sk_view *normed);

typedef struct sk_index {
    int32_t q_gain, k_gain; // F32 [D]
    int32_t freq;
    int32_t raw, pooled; // state act [B, C, D], [B, ceil(C / ratio), D]
    int32_t heads, dim, ratio, blocks;
    float eps;
} sk_index;

/* k F32 [P, D] as projected. */
void sk_b_index_append(sk_builder *b, sk_view k, const sk_index *x);
/* q F32 [P, H*D] as projected; I32 [P, K]. */
sk_view sk_b_block_topk(sk_builder *b, sk_view q, const sk_index *x);
/* q [P, H, D] ready, gate F32 [P, H, D]; act [P, H, D]. */
sk_view sk_b_attend_blocks(sk_builder *b, sk_view q, sk_view gate, sk_view blocks,
                           const sk_attention *at, int32_t ratio);

/* Ids I32 [P, T] and weights F32 [P, T] of the experts. */
sk_view sk_b_route_topk(sk_builder *b, sk_view logits, int32_t n, bool normed, sk_view *weight);

/* Experts out of a table instead; see route_force. */
void sk_b_route_force(sk_builder *b, sk_view ids, int32_t table, int32_t stride);

/* A matrix for every expert; at: see expert_glu. */
typedef struct sk_stack {
    int32_t w;
    int32_t at;
} sk_stack;

/* F32 [P, D]: the weighted sum over a row's experts. */
sk_view sk_b_experts(sk_builder *b, sk_view x, sk_view ids, sk_view weight, const sk_stack *gate_up,
                     const sk_stack *down);
void sk_b_gate_add(sk_builder *b, sk_view y, sk_view x, sk_view gate); // y += sigmoid(gate) x

sk_view sk_b_linear_argmax(sk_builder *b, sk_view x, const sk_lin *w);
sk_view sk_b_next_ids(sk_builder *b, int32_t tokens);
/* act [P, S, 2*D]; sets *n to the count of its P*S rows. */
sk_view sk_b_mtp_join(sk_builder *b, sk_view e, sk_view s, int32_t n_stream, sk_norm e_norm,
                      sk_norm norm, bool whole, sk_view *n);

/* Rows [P*n, D] seen as [P, n*D]. */
sk_view sk_b_merge_rows(sk_view x, int32_t n);
/* The columns [from, from + n) of rows, or of heads. */
sk_view sk_b_columns(sk_view x, int64_t from, int64_t n);

#endif
