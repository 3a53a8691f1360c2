/* Products that leave the slices of their sum over K in scratch, for a second launch to add up. Of
 * few outputs and a long K: a CTA that has all of K for its tiles needs all activations, which with
 * many rows do not fit, and there are fewer tiles than keep a GPU busy. */
#ifndef SK_LINEAR_SPLIT_H
#define SK_LINEAR_SPLIT_H

#include "kernels/linear/sizes.h"

#define SK_SPLIT_ROWS    40   // at most
#define SK_SPLIT_OUTPUTS 4096 // at most
#define SK_SPLIT_FROM    16   // slices

/* Slices, each of which is left apart; 0: the product is done whole. */
static inline int64_t sk_split_slices(int32_t dtype, int64_t rows, int64_t n, int64_t k)
{
    const int64_t unit = sk_part_unit(dtype, k);
    if (!unit || k % unit || rows > SK_SPLIT_ROWS || n > SK_SPLIT_OUTPUTS) return 0;
    return k / unit >= SK_SPLIT_FROM ? k / unit : 0;
}

/* Scratch: F32 [slices, rows, n]. A launch that has none does the product whole. */
static inline uint64_t sk_split_bytes(int32_t dtype, int64_t rows, int64_t n, int64_t k)
{
    return (uint64_t)(sk_split_slices(dtype, rows, n, k) * rows * n) * 4;
}

#endif
