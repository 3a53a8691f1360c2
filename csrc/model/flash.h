/* Inside of the recipe flash_next: its weights and states by buffer number, and the parts of a
 * layer that trunk and draft head share. Private to model/. */
#ifndef SK_FLASH_H
#define SK_FLASH_H

#include "model/model.h"
#include "model/weights.h"
#include "plan/build_hybrid.h"

#define SK_HASH_MAX 1024 // heads of n-grams

typedef struct sk_flash_gdn {
    sk_lin in[4];        // qkv, z, b, a
    int32_t taps, norm;  // F32 [channels, K], [Dv]
    sk_lin out;          // [H, Hv*Dv]
    sk_window rows;      // of the convolution
    sk_recurrence state; // key heads of value heads are the model's
} sk_flash_gdn;

typedef struct sk_flash_sparse {
    sk_lin qkv[3];          // q has [query | gate] for each head
    sk_lin index_in[2];     // q and k of the index, or both in one
    int32_t n_index_in;     // 1 or 2
    int32_t q_norm, k_norm; // F32 [hd]
    sk_lin out;             // [H, heads*hd]
    int32_t k_cache, v_cache;
    sk_index index;
} sk_flash_sparse;

typedef struct sk_flash_moe {
    sk_lin in[2];  // router [E, H], gate of the shared expert [1, H]
    sk_lin glu[2]; // of the shared expert [I, H]
    sk_lin down;   // [H, I]
    sk_stack gate_up[2], expert_down;
    int32_t forced; // I32 [N, T] routes in the place of the router's, -1: none
} sk_flash_moe;

typedef struct sk_flash_layer {
    bool is_sparse;
    sk_hyper attn, ffn;
    sk_flash_gdn gdn;
    sk_flash_sparse sparse;
    sk_flash_moe moe;
} sk_flash_layer;

/* The hashed embedding of one layer. */
typedef struct sk_flash_ple {
    sk_lin in[2]; // key [S*H, width], value [H, width]
    int32_t taps; // F32 [S*H, K]
    sk_ple gate;
    sk_ngrams grams;
    sk_window rows;
    int32_t dilation;
} sk_flash_ple;

typedef struct sk_flash {
    int32_t embd;    // [V, H]
    sk_lin output;   // [V, H]
    sk_hyper mixer;  // ahead of the output
    int32_t freq;    // F32 [n_rot / 2]
    int32_t key_map; // I32 [Hv]: head of keys for each of values
    sk_flash_layer *layers;
    sk_flash_ple ple;
} sk_flash;

/* Weights of block i, with or without a recurrence; flash_bind.c. */
SK_MUST_USE sk_code sk_flash_bind_layer(sk_flash_layer *l, sk_binder *b, const sk_config *c,
                                        const sk_flash *w, int i, bool is_sparse);
SK_MUST_USE sk_code sk_flash_bind_hyper(sk_hyper *h, sk_binder *b, const sk_config *c, bool injects,
                                        const char *fmt, ...) SK_PRINTF(5, 6);
SK_MUST_USE sk_code sk_flash_bind(sk_flash *w, sk_binder *b, const sk_config *c);
/* States of a layer; flash_bind.c. */
SK_MUST_USE sk_code sk_flash_add_state(sk_flash_layer *l, sk_space *space, const char *prefix,
                                       const sk_config *c, const sk_state_size *size, int i,
                                       sk_status *st);
SK_MUST_USE sk_code sk_flash_add_ple_state(sk_flash_ple *p, sk_space *space, const char *prefix,
                                           const sk_config *c, const sk_state_size *size,
                                           sk_status *st);
/* A state or pending buffer by the layer's number. */
SK_MUST_USE sk_code sk_flash_add_buffer(sk_space *space, const char *prefix, int i,
                                        const char *name, sk_role role, sk_dtype type, int32_t rank,
                                        const int64_t *dim, sk_keep keep, int32_t *out,
                                        sk_status *st);

/* Routes of block i out of a table; flash.c. */
SK_MUST_USE sk_code sk_flash_force(sk_flash_layer *l, const sk_config *c, const sk_forced *f,
                                   sk_space *space, const char *prefix, int i, sk_status *st);

/* Steps; flash.c. One layer on the streams s, labelled by `at`; with `cache_only` no more than its
 * states. `settle`: all rows of the pass are kept. */
void sk_flash_layer_steps(const sk_flash_layer *l, const sk_config *c, sk_builder *b, sk_view s,
                          const char *at, bool settle, bool cache_only);

#endif
