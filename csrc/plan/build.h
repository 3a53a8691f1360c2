/* The vocabulary in which recipes are written: each call appends a step and returns what it
 * computes.
 *
 * Errors are sticky: after the first failure every call is a no-op that returns an absent view, and
 * sk_b_finish reports it. Shapes are not checked here but by the ops' contracts when the plan is
 * finished. `act` is the activation type, P the row capacity of the pass. */
#ifndef SK_BUILD_H
#define SK_BUILD_H

#include "plan/plan.h"

/* Ordinals of a row's visible set in one split of attention: large enough that merging costs
 * nothing, small enough that a long context spreads over many workers. Part of the numerics: every
 * backend splits at the same places. */
#define SK_ATTEND_SPLIT 128

typedef struct sk_builder {
    sk_space *space;
    sk_plan *plan;
    sk_status *st;
    sk_code rc;
    sk_dtype act;
    int32_t n_rows; // P
    sk_view rows;   // I32 [P, 3]: set before the first step that walks rows
    sk_view count;  // I32 [1]
    sk_stage stage;
    int32_t branch;
    char label[40];
} sk_builder;

void sk_b_init(sk_builder *b, sk_space *space, sk_plan *plan, sk_dtype act, int32_t n_rows,
               sk_status *st);
/* First failure of any call, or that of sk_plan_finish. */
SK_MUST_USE sk_code sk_b_finish(sk_builder *b);

/* Label of the steps that follow. */
void sk_b_at(sk_builder *b, const char *fmt, ...) SK_PRINTF(2, 3);

/* Steps that follow go to a new side branch, until sk_b_main; its number. It may run beside the
 * main ones until sk_b_join, ahead of which nothing on the main branch uses what it writes. */
int32_t sk_b_fork(sk_builder *b);
void sk_b_main(sk_builder *b);
void sk_b_join(sk_builder *b, int32_t branch);

sk_view sk_b_buf(sk_builder *b, int32_t buf); // whole buffer
sk_view sk_b_temp(sk_builder *b, const char *name, sk_dtype type, int32_t rank, const int64_t *dim);
sk_view sk_b_heads(sk_view x, int32_t n_head); // [P, H*D] seen as [P, H, D]
sk_view sk_b_flat(sk_view x);                  // dense [P, H, D] seen as [P, H*D]
void sk_b_step(sk_builder *b, enum sk_op op, const void *args);
void sk_b_result(sk_builder *b, sk_view v); // the host reads it after the run

/* One weight of a product; bias -1: none. Numbers of buffers. With scale_n above 0, `scale` is a
 * grid of further scales, one for scale_n rows and scale_k columns each. */
typedef struct sk_lin {
    int32_t w;
    int32_t bias;
    int32_t scale;
    int32_t scale_n, scale_k;
} sk_lin;

sk_view sk_b_gather_rows(sk_builder *b, int32_t table, sk_view ids, float scale);
sk_view sk_b_rms_norm(sk_builder *b, sk_view x, int32_t gain, float eps, sk_dtype out);
void sk_b_linear(sk_builder *b, sk_view x, const sk_lin *seg, int32_t n_seg, sk_view *out);
sk_view sk_b_rope(sk_builder *b, sk_view x, int32_t freq, bool neox);
void sk_b_kv_append(sk_builder *b, sk_view k, sk_view v, int32_t k_cache, int32_t v_cache);
sk_view sk_b_attend(sk_builder *b, sk_view q, int32_t k_cache, int32_t v_cache, float scale,
                    int32_t window);
void sk_b_add(sk_builder *b, sk_view y, sk_view x); // y += x
sk_view sk_b_silu_mul(sk_builder *b, sk_view gate, sk_view up);
sk_view sk_b_gelu_mul(sk_builder *b, sk_view gate, sk_view up);
sk_view sk_b_argmax(sk_builder *b, sk_view x);
sk_view sk_b_copy_rows(sk_builder *b, sk_view x);

/* The fused ops. */
typedef struct sk_norm {
    int32_t gain;
    float eps;
} sk_norm;

/* What attention has beside its rows; numbers of buffers. */
typedef struct sk_attention {
    int32_t q_norm, k_norm; // -1: none
    int32_t freq;
    int32_t k_cache, v_cache;
    float eps; // of the norms
    float scale;
    int32_t window; // 0: all positions
    bool neox;
} sk_attention;

void sk_b_norm_linear(sk_builder *b, sk_view x, sk_norm norm, const sk_lin *seg, int32_t n_seg,
                      sk_view *out);
sk_view sk_b_norm_glu(sk_builder *b, sk_view x, sk_norm norm, const sk_lin *gate_up, bool gelu);
void sk_b_linear_add(sk_builder *b, sk_view y, sk_view x, const sk_lin *w); // y += w x
void sk_b_norm_add(sk_builder *b, sk_view y, sk_view x, sk_norm norm);      // y += norm(x)
sk_view sk_b_norm_argmax(sk_builder *b, sk_view x, sk_norm norm, const sk_lin *w);
/* q [P, H, D], k and v [P, Hkv, D], as projected. */
sk_view sk_b_rope_attend(sk_builder *b, sk_view q, sk_view k, sk_view v, const sk_attention *at);

#endif
