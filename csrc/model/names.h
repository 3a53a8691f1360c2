/* What recipes ask for, in the words of the checkpoint at hand. Recipes use the names of GGUF; a
 * table per architecture turns them into those of Hugging Face folders. */
#ifndef SK_NAMES_H
#define SK_NAMES_H

#include "ckpt/ckpt.h"

#define SK_TENSOR_NAME_MAX 160

/* How one architecture differs as a Hugging Face folder from what its GGUF files say. */
typedef struct sk_hf_arch {
    const char *model_type;
    const char *arch;              // name of the recipe
    const char *act;               // hidden activation that the recipe computes
    bool tied;                     // tie_word_embeddings when config.json does not say
    bool norm_plus_one;            // norm weights are stored as w where GGUF has 1 + w
    int32_t head_dim;              // when config.json does not say; 0: hidden_size / heads
    const char *const (*parts)[2]; // of a layer: GGUF, Hugging Face; ends with NULL
    // Instead of `parts`: all names. `draft` is the number of the block that drafts, or -1.
    bool (*tensor)(const char *gguf, int32_t draft, char out[SK_TENSOR_NAME_MAX]);
} sk_hf_arch;

/* NULL for a model type that no recipe computes. */
const sk_hf_arch *sk_hf_arch_find(const char *model_type, size_t n);

/* The tensor "blk.3.attn_q.weight", "output_norm.weight", ... False: there is nothing like it.
 * `draft`: the number of the block that drafts, or -1. */
bool sk_hf_tensor(const sk_hf_arch *arch, const char *gguf, int32_t draft,
                  char out[SK_TENSOR_NAME_MAX]);

/* flash_names.c: qwen4_exp. */
bool sk_flash_tensor(const char *gguf, int32_t draft, char out[SK_TENSOR_NAME_MAX]);

/* The member of config.json for what GGUF calls "<architecture>.<rest>"; NULL: there is none. */
const char *sk_hf_key(const char *rest);

#endif
