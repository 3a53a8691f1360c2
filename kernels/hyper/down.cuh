/* First half of a hyper-connection: what its kernels have in common. */
#pragma once

#include "kernels/hyper/sizes.h"
#include "kernels/norm/norm.cuh"

namespace sk
{

constexpr int32_t kOwnOutputs = SK_HYPER_OWN_OUTPUTS;

struct down_views {
    heads<float> s;
    rows<const float> x, by; // of the hyper_inject ahead, or NULL
    const float *gain;
    const uint8_t *own; // packed F32 [S, S*D] that is multiplied here, or NULL
    __nv_bfloat16 *all; // [P, S*D] or NULL
    __nv_bfloat16 *one; // [P*S, S*D] or NULL
    rows<float> factor; // [P, S]
    float *part;        // [P, S, S] of `own`
    int32_t *live;      // rows of `one` that mean something
    int32_t n_streams, n;
    float eps;
    int32_t wide; // streams are aligned for four elements at a time
};

/* Four elements of a packed F32 weight of up to 16 rows, from column k on, a multiple of 4. */
__device__ inline float4 packed_quad(const uint8_t *w, int32_t row, int32_t k)
{
    const int32_t at = k % 32, plane = 2 * (row / 8) + at / 4 % 2, lane = row % 8 * 4 + at / 8;
    return *reinterpret_cast<const float4 *>(w + static_cast<int64_t>(k / 32) * 2048 + 512 * plane +
                                             16 * lane);
}

__device__ inline float bf16_rounded(float x) { return from_bf16(to_bf16(x)); }

__device__ inline void add_quad(float &sum, float4 a, float4 w)
{
    sum = fmaf(a.x, w.x, sum);
    sum = fmaf(a.y, w.y, sum);
    sum = fmaf(a.z, w.z, sum);
    sum = fmaf(a.w, w.w, sum);
}

/* Over the lanes of a warp. */
__device__ inline float tree_sum(float x)
{
    for (int32_t by = 16; by > 0; by /= 2) x += __shfl_xor_sync(0xffffffffu, x, by);
    return x;
}

inline unsigned stream_threads(int64_t n)
{
    return n <= kNormWarpMax ? 32 : norm_threads(static_cast<int32_t>(n));
}

} // namespace sk
