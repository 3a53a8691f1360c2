/* Strict binding of checkpoint tensors to buffer numbers: every expected tensor is there with its
 * exact shape, and nothing is left over. Names are looked up here, once, and never again. */
#ifndef SK_WEIGHTS_H
#define SK_WEIGHTS_H

#include "ckpt/ckpt.h"
#include "plan/build.h"

typedef struct sk_binder {
    const sk_ckpt *ck;
    sk_space *space;
    const char *prefix; // of the buffer names: "target." or "drafter."
    uint8_t *used;      // by tensor of the checkpoint
    sk_status *st;
} sk_binder;

SK_MUST_USE sk_code sk_binder_init(sk_binder *b, const sk_ckpt *ck, sk_space *space,
                                   const char *prefix, sk_status *st);
void sk_binder_fini(sk_binder *b);

/* Is there a tensor of that name (printf-style)? */
bool sk_binder_has(const sk_binder *b, const char *fmt, ...) SK_PRINTF(2, 3);

/* A matrix [n_out, n_in] of any weight type. Check MISSING_TENSOR, BAD_SHAPE or BAD_TYPE. */
SK_MUST_USE sk_code sk_bind_matrix(sk_binder *b, int64_t n_out, int64_t n_in, int32_t *out,
                                   const char *fmt, ...) SK_PRINTF(5, 6);

/* A vector [n] as F32: used in place when stored so, else decoded once. */
SK_MUST_USE sk_code sk_bind_vector(sk_binder *b, int64_t n, int32_t *out, const char *fmt, ...)
    SK_PRINTF(4, 5);

/* As sk_bind_vector, but -1 when the tensor is absent. */
SK_MUST_USE sk_code sk_bind_vector_opt(sk_binder *b, int64_t n, int32_t *out, const char *fmt, ...)
    SK_PRINTF(4, 5);

/* Marks a tensor as accounted for without binding it; false when absent. */
bool sk_binder_skip(sk_binder *b, const char *name);

/* Fails with UNEXPECTED_TENSOR, naming up to three, if any tensor was not bound. */
SK_MUST_USE sk_code sk_binder_done(const sk_binder *b);

#endif
