/* What the host knows of packed weights, and the scratch of products. */
#ifndef SK_LINEAR_SIZES_H
#define SK_LINEAR_SIZES_H

#include "kernels/common/size.h"

#include "op/args.h"

/* Of each type that has kernels: elements of K in a unit; bytes of 16 rows of it, packed, and of
 * one row in the file; has it kernels for small weights, which cut a short K finer (plain); can its
 * products be left in parts, and has it kernels for experts (ring)? family.cuh holds the formats of
 * the kernels to it. */
#define SK_UNITS(X)                                                                                \
    X(F32, 32, 2048, 128, 1, 0)                                                                    \
    X(F16, 64, 2048, 128, 1, 1)                                                                    \
    X(BF16, 64, 2048, 128, 1, 1)                                                                   \
    X(F8_E4M3, 64, 1024, 64, 0, 1)                                                                 \
    X(F8_E5M2, 64, 1024, 64, 0, 1)                                                                 \
    X(Q4_0, 64, 576, 36, 1, 1)                                                                     \
    X(Q4_1, 64, 640, 40, 1, 1)                                                                     \
    X(Q5_0, 64, 704, 44, 0, 1)                                                                     \
    X(Q5_1, 64, 768, 48, 0, 1)                                                                     \
    X(Q8_0, 64, 1088, 68, 1, 1)                                                                    \
    X(Q1_0, 128, 288, 18, 0, 1)                                                                    \
    X(Q2_0, 64, 288, 18, 0, 1)                                                                     \
    X(TQ1_0, 256, 864, 54, 0, 1)                                                                   \
    X(TQ2_0, 256, 1056, 66, 0, 1)                                                                  \
    X(Q2_K, 256, 1344, 84, 0, 1)                                                                   \
    X(Q3_K, 256, 1760, 110, 0, 1)                                                                  \
    X(Q4_K, 256, 2304, 144, 0, 1)                                                                  \
    X(Q5_K, 256, 2816, 176, 0, 1)                                                                  \
    X(Q6_K, 256, 3360, 210, 0, 1)                                                                  \
    X(MXFP4, 64, 544, 34, 0, 1)                                                                    \
    X(NVFP4, 64, 576, 36, 0, 1)                                                                    \
    X(IQ4_NL, 64, 576, 36, 0, 1)                                                                   \
    X(IQ4_XS, 256, 2176, 136, 0, 1)                                                                \
    X(IQ3_S, 256, 1760, 110, 0, 1)                                                                 \
    X(IQ3_XXS, 256, 1632, 98, 0, 1)                                                                \
    X(IQ2_S, 256, 1312, 82, 0, 1)                                                                  \
    X(IQ2_XS, 256, 1184, 74, 0, 1)                                                                 \
    X(IQ2_XXS, 256, 1056, 66, 0, 1)                                                                \
    X(IQ1_S, 256, 800, 50, 0, 1)                                                                   \
    X(IQ1_M, 256, 896, 56, 0, 1)

typedef struct sk_unit {
    int32_t elems; // 0: weights of this type have no kernels
    int32_t packed_bytes, row_bytes;
    int32_t plain, ring;
} sk_unit;

static inline sk_unit sk_unit_of(int32_t dtype)
{
    sk_unit unit = {0, 0, 0, 0, 0};
#define SK_UNIT(name, elems_, packed_, row_, plain_, ring_)                                        \
    if (dtype == SK_##name) {                                                                      \
        unit.elems = elems_;                                                                       \
        unit.packed_bytes = packed_;                                                               \
        unit.row_bytes = row_;                                                                     \
        unit.plain = plain_;                                                                       \
        unit.ring = ring_;                                                                         \
    }
    SK_UNITS(SK_UNIT)
#undef SK_UNIT
    return unit;
}

/* Has it a kernel for K that 32 does not divide? */
static inline int32_t sk_has_uneven(int32_t dtype)
{
    return dtype == SK_F32 || dtype == SK_F16 || dtype == SK_BF16;
}

/* Units along K. */
static inline int64_t sk_units_of(const sk_unit *unit, int64_t k)
{
    return (k + unit->elems - 1) / unit->elems;
}

/* ---- slices of the sum over K; part of the numerics --------------------------------------------
 */

#define SK_SHORT_K     1536
#define SK_MAX_SLICES  24
#define SK_SLICE_ELEMS 256 // where K is long, or a multiple of it

/* Elements of a slice, in SK_SLICE_ELEMS, but for a short K of plain types. */
SK_SIZE int sk_slice_pieces(int64_t k)
{
    const int pieces = (int)((k + SK_SLICE_ELEMS - 1) / SK_SLICE_ELEMS);
    return (pieces + SK_MAX_SLICES - 1) / SK_MAX_SLICES;
}

/* See sk_k_part_unit. */
static inline int64_t sk_part_unit(int32_t dtype, int64_t k)
{
    const sk_unit unit = sk_unit_of(dtype);
    if (!unit.ring || (unit.plain && k <= SK_SHORT_K)) return 0;
    return (int64_t)sk_slice_pieces(k) * SK_SLICE_ELEMS;
}

/* ---- scratch -----------------------------------------------------------------------------------
 */

/* Where things lie in the scratch of a product with a norm that it does not do itself: activations
 * BF16 [rows, k] at 0, factors F32 [rows], then hidden rows F32 [rows, n]. */
typedef struct sk_linear_scratch {
    uint64_t factor, hidden[2], bytes;
} sk_linear_scratch;

static inline sk_linear_scratch sk_linear_scratch_of(int64_t rows, int64_t k, int64_t n,
                                                     int32_t n_hidden)
{
    sk_linear_scratch s = {0, {0, 0}, 0};
    s.factor = sk_work_aligned((uint64_t)rows * (uint64_t)k * 2);
    s.bytes = s.factor + sk_work_aligned((uint64_t)rows * 4);
    for (int32_t i = 0; i < n_hidden; i++) {
        s.hidden[i] = s.bytes;
        s.bytes += sk_work_aligned((uint64_t)rows * (uint64_t)n * 4);
    }
    return s;
}

#endif
