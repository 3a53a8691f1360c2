/* A model: one instance of a recipe with its weights bound and its state buffers made.
 *
 * An engine may hold several (the target, a drafter), told apart by the prefix of their buffer
 * names. The architecture behind it is found by name in a finite table. */
#ifndef SK_MODEL_H
#define SK_MODEL_H

#include "model/config.h"
#include "model/forced.h"
#include "plan/build.h"

typedef struct sk_model sk_model;

/* What states are made for: requests, positions of each, rows of one in a verify pass; `act` is
 * BF16 or F32. */
typedef struct sk_state_size {
    int32_t slots, ctx, width;
    sk_dtype act;
} sk_state_size;

/* Reads the configuration, binds every tensor into `space`, adds the state buffers. UNSUPPORTED for
 * an unknown architecture. */
SK_MUST_USE sk_code sk_model_open(sk_model **out, const sk_ckpt *ck, sk_space *space,
                                  const char *prefix, const sk_state_size *size, sk_status *st);
void sk_model_close(sk_model *m); // accepts NULL

const sk_config *sk_model_config(const sk_model *m);

/* From here on every mixture routes by a table. UNSUPPORTED for a model without a mixture. */
SK_MUST_USE sk_code sk_model_force(sk_model *m, const sk_forced *f, sk_space *space,
                                   const char *prefix, sk_status *st);

/* A pass through the trunk, and what the caller wants out of it beside its result. */
typedef struct sk_trunk {
    sk_view ids;    // I32 [P]
    int32_t tokens; // buffer I32 [B, C+1], the token window
    // All rows of the pass are kept: states take them in at once. Else they wait for the next
    // commit, but for those in caches by position.
    bool settle;
    // The trunk ends once every layer's state is written, without a result: the prefill of all but
    // the last token needs no more.
    bool cache_only;
    // Rows of the hashed embedding are gathered beside the first layers, as they come from afar.
    bool gather_beside;
    const uint8_t *layer; // [n_layer] flags, or NULL: copy the residual after that layer
    sk_view *out;         // [n_layer] F32 [P, width] copies
    sk_view *ple_rows;    // NULL, or I32 [P, G] rows of the hashed embedding where there is one
} sk_trunk;

/* Embedding and all layers for the rows of the pass. Returns the residual F32 [P, width] ahead of
 * the last norm, or an absent view with cache_only. */
sk_view sk_model_trunk(const sk_model *m, sk_builder *b, const sk_trunk *t);

/* Commit stage: states take in the rows that were kept, kept I32 [B]. */
void sk_model_commit(const sk_model *m, sk_builder *b, sk_view kept);

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
                    const sk_state_size *size, sk_status *st);
    void (*close)(sk_model *m);
    sk_view (*trunk)(const sk_model *m, sk_builder *b, const sk_trunk *t);
    sk_view (*head)(const sk_model *m, sk_builder *b, sk_view x);
    sk_view (*head_argmax)(const sk_model *m, sk_builder *b, sk_view x);
    void (*commit)(const sk_model *m, sk_builder *b, sk_view kept); // NULL: nothing to do
    sk_code (*force)(sk_model *m, const sk_forced *f, sk_space *space, const char *prefix,
                     sk_status *st); // NULL: no mixture
} sk_arch;

struct sk_model {
    const sk_arch *arch;
    sk_config config;
    void *self; // the architecture's own struct
};

extern const sk_arch sk_arch_llama, sk_arch_qwen2, sk_arch_qwen3, sk_arch_gemma3; // dense.c
extern const sk_arch sk_arch_flash_next;                                          // flash.c

#endif
