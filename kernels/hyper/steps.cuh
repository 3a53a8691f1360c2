/* Kernels behind the products of a hyper-connection, which are launches of their own. First half:
 * the sum over streams. Second half: gates, norms and the sum over streams. */
#pragma once

#include "kernels/hyper/down.cuh"
#include "kernels/hyper/mix.cuh"

namespace sk
{

/* ---- behind the products --------------------------------------------------------------------- */

constexpr int32_t kDownThreads = 128;

/* (W a)_i of all rows. */
struct down_parts {
    const float *p;
    int64_t row, stream; // steps
};

struct down_sums {
    rows<const float> factor; // [P, S]
    down_parts low_part, inject_part;
    rows<__nv_bfloat16> low;
    rows<float> inject;
    int32_t n_streams, n_low, n_inject;
};

/* y / S of output o. */
__device__ inline float down_sum(const down_sums &v, const down_parts &part, int32_t r, int32_t o)
{
    const float *n = v.factor[r];
    const float *y = part.p + r * part.row + o;
    float sum = 0;
#pragma unroll 4
    for (int32_t i = 0; i < v.n_streams; i++) sum = fmaf(n[i], y[i * part.stream], sum);
    return __fdiv_rn(sum, static_cast<float>(v.n_streams));
}

/* Grid: parts of the outputs, rows. */
__global__ void __launch_bounds__(kDownThreads) sum_streams(down_sums v, pass p)
{
    const int32_t r = static_cast<int32_t>(blockIdx.y);
    const int32_t o = static_cast<int32_t>(blockIdx.x * kDownThreads + threadIdx.x);
    if (r >= wait_rows(p) || o >= v.n_low + v.n_inject) return;
    if (o < v.n_low) {
        const float y = down_sum(v, v.low_part, r, o);
        put(v.low[r] + o, __fdiv_rn(y, __fadd_rn(1.0f, expf(-y))));
    } else {
        const float y = down_sum(v, v.inject_part, r, o - v.n_low);
        v.inject[r][o - v.n_low] = __fdiv_rn(2.0f, __fadd_rn(1.0f, expf(-y)));
    }
}

/* ---- second half -------------------------------------------------------------------------------
 */

constexpr int32_t kMixThreads = 64;
constexpr int32_t kMixCols = 4 * kMixThreads; // outputs of a CTA, at most

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
