/* Weight formats as the products see them: how 16 rows x one unit of K lie packed, and how a lane
 * gets its MMA fragments, scales and minima out of its share. One struct a format; nothing else
 * knows a layout.
 *
 * Lane = 4 g + t (g 0..7, t 0..3) owns rows g and g + 8 of a tile. Of a block of 32 elements it
 * owns k = 8t .. 8t+7, or, where a scale covers 16 elements (kGroup 16), k = 4t .. 4t+3 of each
 * half. Which element of the block stands where in the MMA's own k order does not matter as long as
 * weights and activations agree, and this order makes both of them one wide load. A block takes two
 * m16n8k16 steps.
 *
 * codes() gives the block's numbers exactly as BF16, four words a step: (row g, first pair),
 * (row g + 8, first pair), (row g, second pair), (row g + 8, second pair). 128 + q is what the bit
 * pattern 0x4300 | q means for q < 128, so one OR and one packed subtraction make integers of bits.
 *
 * scale() times outer(), where there is one for the unit (kSuper), is the scale of the definition
 * exactly, and so for min() and outer_min(). Without kScaled scale() is 1. min_frag() has the
 * minima of a unit as an MMA fragment of their own.
 *
 * field(word, i) says which bits of the file stand in a packed word; packing gathers by it and
 * unpacking scatters by it, so no bit can be lost unseen. A unit packed has kUnitBytes, 16 times
 * the kRowBytes that it has in a row of the file (a little more for IQ3_XXS). Layouts of the files,
 * and the rule of the packed ones: docs/formats.md. */
#pragma once

#include "kernels/linear/formats_four.cuh"
#include "kernels/linear/formats_grid.cuh"
#include "kernels/linear/formats_k.cuh"
#include "kernels/linear/formats_one.cuh"
#include "kernels/linear/formats_plain.cuh"
#include "kernels/linear/formats_simple.cuh"
#include "kernels/linear/formats_ternary.cuh"

/* All but F32, which the products of experts have no ring for. */
#define SK_SHORT_FORMATS(X)                                                                        \
    X(F16)                                                                                         \
    X(BF16)                                                                                        \
    X(F8_E4M3)                                                                                     \
    X(F8_E5M2)                                                                                     \
    X(Q4_0)                                                                                        \
    X(Q4_1)                                                                                        \
    X(Q5_0)                                                                                        \
    X(Q5_1)                                                                                        \
    X(Q8_0)                                                                                        \
    X(Q1_0)                                                                                        \
    X(Q2_0)                                                                                        \
    X(TQ1_0)                                                                                       \
    X(TQ2_0)                                                                                       \
    X(Q2_K)                                                                                        \
    X(Q3_K)                                                                                        \
    X(Q4_K)                                                                                        \
    X(Q5_K)                                                                                        \
    X(Q6_K)                                                                                        \
    X(MXFP4)                                                                                       \
    X(NVFP4)                                                                                       \
    X(IQ4_NL)                                                                                      \
    X(IQ4_XS)                                                                                      \
    X(IQ3_S)                                                                                       \
    X(IQ3_XXS)                                                                                     \
    X(IQ2_S)                                                                                       \
    X(IQ2_XS)                                                                                      \
    X(IQ2_XXS)                                                                                     \
    X(IQ1_S)                                                                                       \
    X(IQ1_M)

/* All of them; a test on the host has but some. */
#ifndef SK_FORMATS
#define SK_FORMATS(X) X(F32) SK_SHORT_FORMATS(X)
#endif
