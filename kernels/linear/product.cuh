/* The arithmetic of every matrix product: one block of 32 elements of K for 16 outputs and groups
 * of eight rows of the batch, as columns of m16n8k16. A column never meets another one, so a row's
 * bits do not depend on its neighbours; the order of the sums is a function of the weight's format
 * and K alone:
 *
 *   block:  p = the products of the block's codes (of each 16 where a scale covers 16), from zero
 *           sum = fma(scale, p, sum);  sum = fma(min, sum of the block's activations, sum)
 *   slice:  consecutive units, a function of format and K (slices_of); blocks in ascending k
 *   output: slices in ascending order, from zero; then the factor of the row's norm, then the bias
 *
 * The narrow kernel gives each slice to a warp, the wide one walks them in a loop. */
#pragma once

#include "kernels/common/bf16.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/linear/formats.cuh"

namespace sk
{

struct Slices {
    int units; // of the whole K
    int per;   // units in a slice
    int n;     // slices
};

template <typename D> __host__ __device__ inline Slices slices_of(int64_t k)
{
    const int units = static_cast<int>((k + 32 * D::kBlocks - 1) / (32 * D::kBlocks));
    const int per = (units + D::kWarps - 1) / D::kWarps;
    return {units, per, (units + per - 1) / per};
}

/* d += a b */
__device__ inline void mma(float (&d)[4], const uint32_t *a, const uint32_t *b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Sums of a block's activations, the same in every row of the tile: columns 2t and 2t + 1. */
__device__ inline void block_sums(float (&sums)[4], const uint32_t (&x)[4])
{
    const uint32_t ones[4] = {0x3F803F80u, 0x3F803F80u, 0x3F803F80u, 0x3F803F80u};
    sums[0] = sums[1] = sums[2] = sums[3] = 0;
    mma(sums, ones, x);
    mma(sums, ones, x + 2);
}

__device__ inline void scale_add(float (&acc)[4], const float (&p)[4], float row, float row8)
{
    acc[0] = fmaf(row, p[0], acc[0]);
    acc[1] = fmaf(row, p[1], acc[1]);
    acc[2] = fmaf(row8, p[2], acc[2]);
    acc[3] = fmaf(row8, p[3], acc[3]);
}

/* A block of weights, decoded: the lane's fragments of every term, scales and minima of its rows.
 */
template <typename D> struct Block {
    static constexpr int kSteps = D::kGroup == 32 ? 1 : 2; // products with a scale of their own
    uint32_t a[D::kTerms][8];
    float scale[kSteps][2];
    float min[2];
};

template <typename D> __device__ inline Block<D> decode_block(const typename D::Frag &f, int b)
{
    Block<D> k;
#pragma unroll
    for (int term = 0; term < D::kTerms; term++) D::codes(f, b, term, k.a[term]);
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int step = 0; step < Block<D>::kSteps; step++)
            k.scale[step][half] = D::scale(f, b, step, half);
        k.min[half] = D::min(f, b, half);
    }
    return k;
}

/* Of all bits of a decoded block. Compared with something ahead of the dependency wait, it makes
 * the assembler decode there and not where the block is used. */
template <typename D> __device__ inline uint32_t bits_of(const Block<D> &k)
{
    uint32_t bits = 0;
#pragma unroll
    for (int term = 0; term < D::kTerms; term++)
#pragma unroll
        for (int i = 0; i < 8; i++) bits |= k.a[term][i];
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int step = 0; step < Block<D>::kSteps; step++)
            if (D::kScaled) bits |= __float_as_uint(k.scale[step][half]);
        if (D::kMin) bits |= __float_as_uint(k.min[half]);
    }
    return bits;
}

/* One group of eight columns. */
template <typename D>
__device__ inline void multiply_block(const Block<D> &k, const uint32_t (&x)[4],
                                      const float (&sums)[4], float (&acc)[4])
{
    if constexpr (D::kGroup == 32) {
        float p[4] = {};
#pragma unroll
        for (int term = 0; term < D::kTerms; term++) {
            mma(p, k.a[term], x);
            mma(p, k.a[term] + 4, x + 2);
        }
        scale_add(acc, p, k.scale[0][0], k.scale[0][1]);
        if (D::kMin) scale_add(acc, sums, k.min[0], k.min[1]);
    } else {
#pragma unroll
        for (int step = 0; step < 2; step++) {
            float p[4] = {};
            mma(p, k.a[0] + 4 * step, x + 2 * step);
            scale_add(acc, p, k.scale[step][0], k.scale[step][1]);
        }
    }
}

template <typename D, int N>
__device__ inline void block_product(const typename D::Frag &f, int b, int groups,
                                     const uint32_t (&x)[N][4], const float (&sums)[N][4],
                                     float (&acc)[N][4])
{
    const Block<D> k = decode_block<D>(f, b);
#pragma unroll
    for (int g = 0; g < N; g++)
        if (g < groups) multiply_block<D>(k, x[g], sums[g], acc[g]);
}

/* ---- activations -------------------------------------------------------------------------------
 */

/* The lane's eight BF16 activations of the block at x. The loads are not to be moved: neither ahead
 * of the wait nor down to where they are used. */
template <int Group> __device__ inline void load_act(uint32_t (&to)[4], const uint16_t *x, int t)
{
    if constexpr (Group == 32) {
        unpack4(to, load16(reinterpret_cast<const uint8_t *>(x + 8 * t)));
    } else {
        const uint2 a = load8(reinterpret_cast<const uint8_t *>(x + 4 * t));
        const uint2 b = load8(reinterpret_cast<const uint8_t *>(x + 16 + 4 * t));
        to[0] = a.x;
        to[1] = a.y;
        to[2] = b.x;
        to[3] = b.y;
    }
}

/* The same from shared memory. */
template <int Group> __device__ inline void shared_act(uint32_t (&to)[4], const uint16_t *x, int t)
{
    if constexpr (Group == 32) {
        unpack4(to, *reinterpret_cast<const uint4 *>(x + 8 * t));
    } else {
        const uint2 a = *reinterpret_cast<const uint2 *>(x + 4 * t);
        const uint2 b = *reinterpret_cast<const uint2 *>(x + 16 + 4 * t);
        to[0] = a.x;
        to[1] = a.y;
        to[2] = b.x;
        to[3] = b.y;
    }
}

/* The lane's eight F32 of the block at x: of the stream, or of a norm's gain. */
template <int Group> __device__ inline void load_f32(float (&to)[8], const float *x, int t)
{
    const uint8_t *a = reinterpret_cast<const uint8_t *>(x + (Group == 32 ? 8 * t : 4 * t));
    const uint8_t *b = a + (Group == 32 ? 16 : 64);
    uint32_t words[4];
    unpack4(words, load16(a));
#pragma unroll
    for (int i = 0; i < 4; i++) to[i] = __uint_as_float(words[i]);
    unpack4(words, load16(b));
#pragma unroll
    for (int i = 0; i < 4; i++) to[4 + i] = __uint_as_float(words[i]);
}

/* Activations of a norm that is folded in: BF16(x * gain); the squares of x go to `squares`. */
__device__ inline void norm_act(uint32_t (&to)[4], const float (&x)[8], const float (&gain)[8],
                                float *squares)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        to[i] = bf16_pair(x[2 * i] * gain[2 * i], x[2 * i + 1] * gain[2 * i + 1]);
#pragma unroll
    for (int i = 0; i < 8; i++) *squares = fmaf(x[i], x[i], *squares);
}

/* Over the four lanes that hold one row's elements. */
__device__ inline float quad_sum(float x)
{
    x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
    return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}

/* 1 / sqrt(mean + eps) from the sums of squares of the slices, in ascending order. `part` is 1 / K.
 */
__device__ inline float norm_factor(const float *squares, int n, int step, float part, float eps)
{
    float sum = 0;
#pragma unroll 8
    for (int i = 0; i < n; i++) sum += squares[i * step];
    return rsqrtf(fmaf(sum, part, eps));
}

} // namespace sk
