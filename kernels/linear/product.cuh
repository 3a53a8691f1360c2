/* The arithmetic of every matrix product: one block of 32 elements of K for 16 outputs and groups
 * of eight rows of the batch, as columns of m16n8k16. A column never meets another one, so a row's
 * bits do not depend on its neighbours; the order of the sums is a function of the weight's format
 * and K alone:
 *
 *   block:  p = the products of the block's codes (of each 16 where a scale covers 16), from zero
 *           sum = fma(scale, p, sum);  sum = fma(min, sum of the block's activations, sum)
 *   unit:   where scales of blocks are steps of the unit's, the sum is in steps, and added at the
 *           end of the unit: slice = fma(d, sum, slice). Minima in steps are a small product of
 *           their own: minima x sums of blocks, the latter as three BF16 numbers, smallest first;
 *           slice = fma(-dmin, that, slice)
 *   slice:  consecutive units, a function of format and K (slices_of); blocks in ascending k
 *   output: slices in ascending order, from zero; then the factor of the row's norm, then the bias
 *
 * Who does a slice is free: the narrow kernels give each one to a warp, the wide one and the ring
 * walk them in a loop. */
#pragma once

#include "kernels/common/bf16.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/linear/formats.cuh"
#include "kernels/linear/sizes.h"

namespace sk
{

struct Slices {
    int units; // of the whole K
    int per;   // units in a slice
    int n;     // slices
};

/* Plain types also have kernels for small weights, with slices as short as units and warps allow
 * where K is short. */
template <typename D>
constexpr bool kPlain = D::kType == SK_F32 || D::kType == SK_F16 || D::kType == SK_BF16 ||
                        D::kType == SK_Q4_0 || D::kType == SK_Q4_1 || D::kType == SK_Q8_0;

/* Types that come with scales beside the weight. */
template <typename D>
constexpr bool kOutside = D::kType == SK_F8_E4M3 || D::kType == SK_F8_E5M2 || D::kType == SK_NVFP4;

constexpr int kShortK = SK_SHORT_K;
constexpr int kMaxSlices = SK_MAX_SLICES;
constexpr int kSliceElems = SK_SLICE_ELEMS;

template <typename D> __host__ __device__ inline Slices slices_of(int64_t k)
{
    constexpr int kUnit = 32 * D::kBlocks;
    const int units = static_cast<int>((k + kUnit - 1) / kUnit);
    int per = sk_slice_pieces(k) * (kSliceElems / kUnit);
    if (kPlain<D> && k <= kShortK) per = (units + D::kWarps - 1) / D::kWarps;
    return {units, per, (units + per - 1) / per};
}

/* d += a b */
__device__ inline void mma(float (&d)[4], const uint32_t *a, const uint32_t *b)
{
#ifdef __CUDACC__
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    emulated::mma(d, a, b);
#endif
}

__device__ inline void scale_add(float (&acc)[4], const float (&p)[4], float row, float row8)
{
    acc[0] = fmaf(row, p[0], acc[0]);
    acc[1] = fmaf(row, p[1], acc[1]);
    acc[2] = fmaf(row8, p[2], acc[2]);
    acc[3] = fmaf(row8, p[3], acc[3]);
}

/* Products of a block with a scale of their own: one, or one for each sixteen elements. */
template <typename D> constexpr int kStepsOf = D::kGroup == 32 ? 1 : 2;

/* Sum of a block's activations, for a minimum that is a number of its own: columns 2t and 2t + 1,
 * the same in every row of the tile. */
__device__ inline void block_sums(float (&sums)[2], const uint32_t (&x)[4])
{
    const uint32_t ones[4] = {0x3F803F80u, 0x3F803F80u, 0x3F803F80u, 0x3F803F80u};
    float p[4] = {};
    mma(p, ones, x);
    mma(p, ones, x + 2);
    sums[0] = p[0];
    sums[1] = p[1];
}

/* Over the four lanes that hold one row's elements. */
__device__ inline float quad_sum(float x)
{
    x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
    return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}

/* The same where there is one for every product with a scale of its own. */
template <typename D>
__device__ inline void step_sums(float (&sums)[kStepsOf<D>][2], const uint32_t (&x)[4])
{
    const uint32_t ones[4] = {0x3F803F80u, 0x3F803F80u, 0x3F803F80u, 0x3F803F80u};
#pragma unroll
    for (int step = 0; step < kStepsOf<D>; step++) {
        float p[4] = {};
        mma(p, ones, x + 2 * step);
        if (D::kGroup == 32) mma(p, ones, x + 2);
        sums[step][0] = p[0];
        sums[step][1] = p[1];
    }
}

/* d += a b with eight of K */
__device__ inline void mma8(float (&d)[4], const uint32_t *a, uint32_t b)
{
#ifdef __CUDACC__
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
#else
    emulated::mma8(d, a, b);
#endif
}

/* Sums of a unit's blocks (of sixteens where these have scales) for one column, as the lane of the
 * B operand holds them: 2t, 2t + 1, and 2t + 8, 2t + 9 of sixteen. */
template <typename D> struct UnitSums {
    static constexpr bool kThere = D::kMin && D::kSuper;
    float of[kThere ? 2 * kStepsOf<D> : 1];

    /* Of block b, whose activations the warp has. */
    __device__ void keep(int b, const uint32_t (&x)[4], int lane)
    {
        if constexpr (kThere) {
            float s[kStepsOf<D>][2];
            step_sums<D>(s, x);
#pragma unroll
            for (int step = 0; step < kStepsOf<D>; step++) { // column g is with lane g / 2
                const float even = __shfl_sync(0xFFFFFFFFu, s[step][0], lane >> 3);
                const float odd = __shfl_sync(0xFFFFFFFFu, s[step][1], lane >> 3);
                const float mine = lane & 4 ? odd : even;
                const int at = kStepsOf<D> * b + step; // 2t + (0 or 1), and eight on
                if ((lane & 3) == ((at >> 1) & 3)) of[(at & 1) + 2 * (at >> 3)] = mine;
            }
        }
    }

    /* From a table [block][cols] of them. */
    __device__ void load(const float *from, int cols, int lane)
    {
        if constexpr (kThere) {
            const float *at = from + 2 * (lane & 3) * cols + (lane >> 2);
#pragma unroll
            for (int i = 0; i < 2 * kStepsOf<D>; i++) of[i] = at[((i & 1) + 8 * (i >> 1)) * cols];
        }
    }
};

/* A block of weights, decoded: the lane's fragments of every term, scales and minima of its rows.
 */
template <typename D> struct Block {
    uint32_t a[D::kTerms][8];
    float scale[kStepsOf<D>][2];
    float min[2]; // where it is a number of its own
};

template <typename D, typename Table>
__device__ inline Block<D> decode_block(const typename D::Frag &f, int b, const Table &table)
{
    Block<D> k;
#pragma unroll
    for (int term = 0; term < D::kTerms; term++) D::codes(f, b, term, table, k.a[term]);
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int step = 0; step < kStepsOf<D>; step++)
            if constexpr (D::kScaled)
                k.scale[step][half] = D::scale(f, b, step, half);
            else if constexpr (kOutside<D>)
                k.scale[step][half] = 1;
        if constexpr (D::kMin && !D::kSuper) k.min[half] = D::min(f, b, 0, half);
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
        for (int step = 0; step < kStepsOf<D>; step++)
            if (D::kScaled) bits |= __float_as_uint(k.scale[step][half]);
        if (D::kMin) bits |= __float_as_uint(k.min[half]);
    }
    return bits;
}

/* The products of a block, or of its sixteen elements with a scale of their own. */
template <typename D>
__device__ inline void block_products(float (&p)[4], const Block<D> &k, int step,
                                      const uint32_t (&x)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) p[i] = 0;
#pragma unroll
    for (int term = 0; term < D::kTerms; term++) {
        mma(p, k.a[term] + 4 * step, x + 2 * step);
        if (D::kGroup == 32) mma(p, k.a[term] + 4, x + 2);
    }
}

/* The sums of a slice for one tile and one group of eight columns. */
template <typename D> struct Acc {
    float slice[4];
    float unit[D::kSuper ? 4 : 1]; // in steps of the unit's scale

    __device__ void add(const Block<D> &k, const uint32_t (&x)[4])
    {
#pragma unroll
        for (int step = 0; step < kStepsOf<D>; step++) {
            float p[4];
            block_products<D>(p, k, step, x);
            take(k, step, p);
        }
    }

    /* Products p of the block. */
    __device__ void take(const Block<D> &k, int step, const float (&p)[4])
    {
        float(&to)[4] = sums();
        if constexpr (D::kScaled || kOutside<D>) {
            scale_add(to, p, k.scale[step][0], k.scale[step][1]);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) to[i] = to[i] + p[i];
        }
    }

    /* `block`: sums of the block's activations in columns 2t and 2t + 1. */
    __device__ void add_min(const Block<D> &k, const float (&block)[2])
    {
        const float both[4] = {block[0], block[1], block[0], block[1]};
        if constexpr (D::kMin && !D::kSuper) scale_add(slice, both, k.min[0], k.min[1]);
    }

    __device__ void end_unit(const typename D::Frag &f, const UnitSums<D> &sums, int t)
    {
        if constexpr (D::kSuper) {
            scale_add(slice, unit, D::outer(f, 0), D::outer(f, 1));
#pragma unroll
            for (int i = 0; i < 4; i++) unit[i] = 0;
        }
        if constexpr (D::kSuper && D::kMin) {
            uint32_t a[2 * kStepsOf<D>];
            float p[4] = {};
            D::min_frag(f, t, a);
#pragma unroll
            for (int term = 0; term < 3; term++) {
                uint32_t b[kStepsOf<D>];
#pragma unroll
                for (int i = 0; i < kStepsOf<D>; i++)
                    b[i] = high_pair(term_of(sums.of[2 * i], 3, term),
                                     term_of(sums.of[2 * i + 1], 3, term));
                if constexpr (D::kGroup == 32)
                    mma8(p, a, b[0]);
                else
                    mma(p, a, b);
            }
            scale_add(slice, p, D::outer_min(f, 0), D::outer_min(f, 1));
        }
    }

  private:
    __device__ float (&sums())[4]
    {
        if constexpr (D::kSuper)
            return unit;
        else
            return slice;
    }
};

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
