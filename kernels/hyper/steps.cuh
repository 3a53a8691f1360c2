/* Kernels around the products of a hyper-connection, which are launches of their own.
 *
 * First half: a CTA a stream of a row works out the stream's factor and what the products take:
 * rows of all streams for those that are left in parts, and S rows of which each has one stream and
 * zeros for those that are not. Few rows of F32 it multiplies by itself, as it has the stream in
 * its registers. After the products a second kernel sums over streams. Second half, behind its
 * product: gates, norms and the sum over streams. */
#pragma once

#include "kernels/hyper/down.cuh"
#include "kernels/hyper/mix.cuh"

namespace sk
{

/* Sums of the CTA: trees over lanes, then over warps. */
__device__ inline void put_own(const float (&acc)[kOwnOutputs], const down_views &v, float *to,
                               float (*room)[32])
{
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int32_t warps = static_cast<int32_t>(blockDim.x) / 32;
#pragma unroll
    for (int32_t o = 0; o < kOwnOutputs; o++) {
        const float sum = tree_sum(acc[o]);
        if (lane == 0) room[o][warp] = sum;
    }
    __syncthreads();
    for (int32_t o = warp; o < v.n_streams; o += warps) {
        const float sum = tree_sum(lane < warps ? room[o][lane] : 0.0f);
        if (lane == 0) to[o] = sum;
    }
}

/* Zeros for the streams of row `to` that are not stream i. */
__device__ inline void clear_others(const down_views &v, __nv_bfloat16 *to, int32_t i)
{
    const int32_t end = v.n_streams * v.n;
    for (int32_t k = threadIdx.x; k < end; k += blockDim.x)
        if (k < i * v.n || k >= (i + 1) * v.n) put(to + k, 0.0f);
}

/* Grid: streams, rows; as many threads as rms_norm has for a stream. */
__global__ void __launch_bounds__(kNormBlockMax) scale_streams(down_views v, pass p)
{
    __shared__ double room[32];
    __shared__ float own_room[kOwnOutputs][32];
    const team t = {static_cast<int32_t>(threadIdx.x), static_cast<int32_t>(blockDim.x)};
    const int32_t i = static_cast<int32_t>(blockIdx.x), r = static_cast<int32_t>(blockIdx.y);
    const int64_t at = static_cast<int64_t>(r) * v.n_streams + i;
    const float *gain = v.gain + static_cast<int64_t>(i) * v.n;
    const int64_t columns = static_cast<int64_t>(v.n_streams) * v.n;
    fetch_ahead(gain, v.n, t);
    const int32_t live = wait_rows(p);
    if (i == 0 && r == 0 && t.lane == 0) *v.live = live * v.n_streams;
    if (r >= live) return;
    const float *s = v.s.at(r, i);
    __nv_bfloat16 *all = v.all ? v.all + r * columns + i * v.n : nullptr;
    __nv_bfloat16 *one = v.one ? v.one + at * columns + i * v.n : nullptr;
    float acc[kOwnOutputs] = {};
    for (int32_t k = 4 * t.lane; k < v.n; k += 4 * t.size) {
        const float4 x = load_quad(s, k, v.n, v.wide), g = load_quad(gain, k, v.n, v.wide);
        const float4 a = make_float4(__fmul_rn(x.x, g.x), __fmul_rn(x.y, g.y), __fmul_rn(x.z, g.z),
                                     __fmul_rn(x.w, g.w));
        if (all) store_quad(all, k, v.n, v.wide, a);
        if (one) store_quad(one, k, v.n, v.wide, a);
        if (v.own)
            add_own(acc, v, i * v.n + k,
                    make_float4(bf16_rounded(a.x), bf16_rounded(a.y), bf16_rounded(a.z),
                                bf16_rounded(a.w)));
    }
    if (one) clear_others(v, v.one + at * columns, i);
    const double squares = block_sum(lane_squares(s, v.n, t, v.wide), room);
    if (t.lane == 0) v.factor[r][i] = norm_factor(squares, v.n, v.eps);
    if (v.own) put_own(acc, v, v.part + at * v.n_streams, own_room);
}

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
