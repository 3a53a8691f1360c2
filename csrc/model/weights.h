/* Strict binding of checkpoint tensors to buffer numbers: every expected tensor is there with its
 * exact shape, and nothing is left over. Names are looked up here, once, and never again. They are
 * those of GGUF; for a Hugging Face folder they are translated, and buffers keep them, so a plan
 * does not tell where its weights came from. */
#ifndef SK_WEIGHTS_H
#define SK_WEIGHTS_H

#include "model/names.h"
#include "plan/build.h"

#define SK_BOUND 2 // the contents are wanted, at the latest when binding is done

typedef struct sk_binder {
    const sk_ckpt *ck;
    const sk_hf_arch *hf; // NULL: names are those of the file
    sk_space *space;
    const char *prefix; // of the buffer names: "target." or "drafter."
    bool nested;        // Hugging Face: the text model is a part, "model.language_model."
    int32_t draft;      // number of the block that drafts, -1: none is looked for
    uint8_t *used;      // by tensor of the checkpoint: accounted for, or SK_BOUND
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

/* The weight `<name>.weight` [n_out, n_in] of a product with all that belongs to it: `.bias` if it
 * is there, and scales stored beside it (scaled.c). Also BAD_DATA for scales that are not finite.
 */
SK_MUST_USE sk_code sk_bind_lin(sk_binder *b, int64_t n_out, int64_t n_in, sk_lin *out,
                                const char *fmt, ...) SK_PRINTF(5, 6);

/* A vector [n] as F32: used in place when stored so, else decoded once. */
SK_MUST_USE sk_code sk_bind_vector(sk_binder *b, int64_t n, int32_t *out, const char *fmt, ...)
    SK_PRINTF(4, 5);

/* As sk_bind_vector, but -1 when the tensor is absent. */
SK_MUST_USE sk_code sk_bind_vector_opt(sk_binder *b, int64_t n, int32_t *out, const char *fmt, ...)
    SK_PRINTF(4, 5);

/* Marks a tensor as accounted for without binding it; false when absent. */
bool sk_binder_skip(sk_binder *b, const char *name);
/* Likewise all tensors of the file whose own names begin so. */
void sk_binder_skip_all(sk_binder *b, const char *beginning);

/* The values of a tensor [rows, columns] as F32, dimensions of 1 in whatever place: what a recipe
 * computes constants from. Released with sk_mem_free. */
SK_MUST_USE sk_code sk_bind_values(sk_binder *b, int64_t rows, int64_t columns, float **out,
                                   const char *fmt, ...) SK_PRINTF(5, 6);

/* A constant of the recipe's own; its name gets the binder's prefix. */
SK_MUST_USE sk_code sk_bind_const(sk_binder *b, const char *name, int32_t dtype, int32_t rank,
                                  const int64_t *dim, const void *values, int32_t *out);

/* n matrices [n_out, n_in], one for each expert. */
typedef struct sk_stack_shape {
    int64_t n, n_out, n_in;
    int64_t whole, from; // of one tensor that has more rows: rows of its matrices, the first taken
} sk_stack_shape;

/* From one tensor [n, n_out, n_in], or [n, whole, n_in]; *out and *at are those of
 * sk_space_add_pieces, and `name` the buffer's. */
SK_MUST_USE sk_code sk_bind_joined(sk_binder *b, const sk_stack_shape *shape, const char *tensor,
                                   const char *name, int32_t *out, int32_t *at);

/* From n tensors of one type, whose names `tensor` says. */
typedef void (*sk_stack_name)(char out[SK_NAME_MAX], void *ctx, int64_t i);
SK_MUST_USE sk_code sk_bind_each(sk_binder *b, const sk_stack_shape *shape, sk_stack_name tensor,
                                 void *ctx, const char *name, int32_t *out, int32_t *at);

/* ---- for scaled.c ---------------------------------------------------------------------------- */

/* The file's name for what a recipe calls `name`; false: it can have none. */
bool sk_binder_name(const sk_binder *b, const char *name, char real[SK_TENSOR_NAME_MAX]);
/* The tensor that a recipe calls `name`, or NULL; `real` gets its name in the file. */
const sk_tensor *sk_binder_find(const sk_binder *b, const char *name,
                                char real[SK_TENSOR_NAME_MAX]);
void sk_binder_mark(sk_binder *b, const sk_tensor *t); // as accounted for
/* Marks a tensor as bound in place. The contents are there when binding is done; whoever reads them
 * himself asks for them first (sk_binder_read): of a synthetic checkpoint they are made then. */
void sk_binder_take(sk_binder *b, const sk_tensor *t);
SK_MUST_USE sk_code sk_binder_read(sk_binder *b, const sk_tensor *t);
void sk_binder_buffer(const sk_binder *b, const char *name, char out[SK_NAME_MAX]);
sk_code sk_binder_bad_shape(sk_binder *b, const char *real, const char *expected,
                            const sk_tensor *t);

/* Fails with UNEXPECTED_TENSOR, naming up to three, if any tensor was not bound. Of safetensors,
 * scales of activations and of caches and rotary frequencies are not missed: they are no weights.
 * Then sees to it that the contents of all that were bound are there, or fails with NOMEM; unless
 * the space says that they are used elsewhere, where what is synthetic is made again. */
SK_MUST_USE sk_code sk_binder_done(const sk_binder *b);

#endif
