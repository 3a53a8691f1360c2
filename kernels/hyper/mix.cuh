/* Second half of a hyper-connection, behind its product: gates, norms and the sum over streams. */
#pragma once

#include "kernels/norm/norm.cuh"

namespace sk
{

constexpr int32_t kMixThreads = 64;
constexpr int32_t kMixCols = 4 * kMixThreads; // outputs of a CTA, at most

struct mix_views {
    const float *z; // [P, S*D] the product
    heads<const float> s;
    rows<const float> factor;
    const float *gain;
    rows<__nv_bfloat16> out;
    int32_t n_streams, n;
    int32_t wide; // streams are aligned for four elements at a time
};

__device__ inline float mixed(float sum, float z, float s, float factor, float gain)
{
    const float gate = __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-z)));
    return fmaf(gate, normed(s, factor, gain), sum);
}

/* Grid: parts of the outputs, rows. A thread has four of them. */
__global__ void __launch_bounds__(kMixThreads) mix_streams(mix_views v, pass p)
{
    const int32_t r = static_cast<int32_t>(blockIdx.y);
    const int32_t k = 4 * static_cast<int32_t>(blockIdx.x * kMixThreads + threadIdx.x);
    if (r >= wait_rows(p) || k >= v.n) return;
    const float *factor = v.factor[r];
    const float *z = v.z + static_cast<int64_t>(r) * v.n_streams * v.n;
    float4 sum = make_float4(0, 0, 0, 0);
    for (int32_t i = 0; i < v.n_streams; i++) {
        const float4 y = load_quad(z + static_cast<int64_t>(i) * v.n, k, v.n, v.wide);
        const float4 s = load_quad(v.s.at(r, i), k, v.n, v.wide);
        const float4 g = load_quad(v.gain + static_cast<int64_t>(i) * v.n, k, v.n, v.wide);
        sum.x = mixed(sum.x, y.x, s.x, factor[i], g.x);
        sum.y = mixed(sum.y, y.y, s.y, factor[i], g.y);
        sum.z = mixed(sum.z, y.z, s.z, factor[i], g.z);
        sum.w = mixed(sum.w, y.w, s.w, factor[i], g.w);
    }
    const float by = static_cast<float>(v.n_streams);
    store_quad(v.out[r], k, v.n, v.wide,
               make_float4(__fdiv_rn(sum.x, by), __fdiv_rn(sum.y, by), __fdiv_rn(sum.z, by),
                           __fdiv_rn(sum.w, by)));
}

} // namespace sk
