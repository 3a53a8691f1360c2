/* Argmax as the maximum of 64-bit keys: the value's order in the upper half, the inverted index in
 * the lower, so that of equal values the lowest index wins whatever the order of combination. -0
 * counts as +0; a NaN ranks below -inf, and of nothing but NaN the lowest index wins. The key 0 is
 * below every key of an index under 2^32 - 1: the neutral element. */
#pragma once

#include <stdint.h>

namespace sk
{

/* Monotone in the value; 0 for NaN. */
__device__ inline uint32_t best_order(float value)
{
    const uint32_t bits = __float_as_uint(__fadd_rn(value, 0.0f)); // -0 + 0 is +0
    const uint32_t order = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return value != value ? 0u : order;
}

/* The value again; +0 for both zeros, a NaN for 0. */
__device__ inline float value_of_order(uint32_t order)
{
    return __uint_as_float(order & 0x80000000u ? order ^ 0x80000000u : ~order);
}

__device__ inline uint64_t best_key(float value, uint32_t index)
{
    return static_cast<uint64_t>(best_order(value)) << 32 | ~index;
}

__device__ inline uint32_t best_index(uint64_t key) { return ~static_cast<uint32_t>(key); }

__device__ inline uint64_t best_of(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Largest key of the warp, in every lane; all lanes take part. */
__device__ inline uint64_t best_of_warp(uint64_t key)
{
    const uint32_t high = static_cast<uint32_t>(key >> 32);
    const uint32_t top = __reduce_max_sync(0xffffffffu, high);
    const uint32_t low =
        __reduce_max_sync(0xffffffffu, high == top ? static_cast<uint32_t>(key) : 0u);
    return static_cast<uint64_t>(top) << 32 | low;
}

} // namespace sk
