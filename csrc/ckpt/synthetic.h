/* A checkpoint without a file: the directory of a GGUF file, and a recipe for the contents of each
 * of its tensors. Opening reserves addresses and takes no memory for weights; a tensor takes its
 * own when it is first needed (sk_ckpt_need). */
#ifndef SK_SYNTHETIC_H
#define SK_SYNTHETIC_H

#include "ckpt/ckpt.h"

typedef struct sk_synthetic sk_synthetic;

typedef struct sk_synth_recipe {
    int32_t kind; // sk_synth_kind
    double a, b;
} sk_synth_recipe;

typedef struct sk_synthetic_plan {
    const char *label;        // stands for the path
    const uint8_t *directory; // of a GGUF file, up to its data section
    uint64_t directory_bytes;
    uint64_t size; // that the file would have
    uint64_t seed;
    const sk_synth_recipe *recipes; // [n], by tensor in the order of the directory
    size_t n;
    int32_t threads; // that fill large tensors, >= 1
} sk_synthetic_plan;

/* The directory is checked as that of a file is; whatever is wrong with it or with a recipe is
 * INVALID here, with the same names of checks. All of the plan is copied. */
SK_MUST_USE sk_code sk_synthetic_open(sk_ckpt **out, const sk_synthetic_plan *plan, sk_status *st);

#endif
