/* A model: one instance of a recipe with its weights bound and its state buffers made.
 *
 * An engine may hold several (the target, a drafter), told apart by the prefix of their buffer
 * names. The architecture behind it is found by name in a finite table. */
#ifndef SK_MODEL_H
#define SK_MODEL_H

#include "model/config.h"
#include "plan/build.h"

typedef struct sk_model sk_model;

/* Reads the configuration, binds every tensor into `space`, adds the state buffers for `n_slots`
 * requests of up to `ctx` positions. `act` is BF16 or F32. UNSUPPORTED for an unknown architecture.
 */
SK_MUST_USE sk_code sk_model_open(sk_model **out, const sk_ckpt *ck, sk_space *space,
                                  const char *prefix, int32_t n_slots, int32_t ctx, sk_dtype act,
                                  sk_status *st);
void sk_model_close(sk_model *m); // accepts NULL

const sk_config *sk_model_config(const sk_model *m);

/* What a caller wants out of the trunk beside its result. */
typedef struct sk_trunk_taps {
    const uint8_t *layer; // [n_layer] flags, or NULL: copy the residual stream after that layer
    sk_view *out;         // [n_layer] F32 [P, dim] copies
} sk_trunk_taps;

/* Embedding and all layers for the rows of the pass; appends their K/V. Returns the residual stream
 * F32 [P, dim] before the final norm. With `cache_only` it stops once every layer's state is
 * written and returns an absent view: the prefill of all but the last token needs no more. */
sk_view sk_model_trunk(const sk_model *m, sk_builder *b, sk_view ids, bool cache_only,
                       const sk_trunk_taps *taps);

/* Final norm and vocabulary projection: F32 [P, vocab]. */
sk_view sk_model_head(const sk_model *m, sk_builder *b, sk_view x);

/* The same and the choice of the most likely token, without the logits: I32 [P]. */
sk_view sk_model_head_argmax(const sk_model *m, sk_builder *b, sk_view x);

/* Comma-separated names of the architectures this build knows. */
const char *sk_model_archs(void);

/* What an architecture provides; model.c has the table. */
typedef struct sk_arch {
    const char *name;
    sk_code (*open)(sk_model *m, const sk_ckpt *ck, sk_space *space, const char *prefix,
                    int32_t n_slots, int32_t ctx, sk_dtype act, sk_status *st);
    void (*close)(sk_model *m);
    sk_view (*trunk)(const sk_model *m, sk_builder *b, sk_view ids, bool cache_only,
                     const sk_trunk_taps *taps);
    sk_view (*head)(const sk_model *m, sk_builder *b, sk_view x);
    sk_view (*head_argmax)(const sk_model *m, sk_builder *b, sk_view x);
} sk_arch;

struct sk_model {
    const sk_arch *arch;
    sk_config config;
    void *self; // the architecture's own struct
};

extern const sk_arch sk_arch_llama, sk_arch_qwen2, sk_arch_qwen3, sk_arch_gemma3; // dense.c

#endif
