/* In front of the products of hyper_down: a CTA a stream of a row works out the stream's factor and
 * what the products take, rows of all streams for those that are left in parts, and S rows of which
 * each has one stream and zeros for those that are not. Few rows of F32 it multiplies by itself, as
 * it has the stream in its registers; so it also adds to the stream what the block before has
 * given, where that is the step ahead. */
#pragma once

#include "kernels/hyper/down.cuh"

namespace sk
{

/* What a thread needs of its quad, from column k of the stream on: constants, which wait in
 * registers where there are registers enough. */
template <int Outputs> struct EnterQuad {
    static constexpr bool kAhead = Outputs <= 4;
    float4 gain, own[kAhead ? Outputs : 1];
};

template <int Outputs>
__device__ inline void load_constants(EnterQuad<Outputs> &q, const down_views &v, const float *gain,
                                      int32_t first, int32_t k)
{
    q.gain = load_quad(gain, k, v.n, v.wide);
    if constexpr (EnterQuad<Outputs>::kAhead) {
#pragma unroll
        for (int32_t o = 0; o < Outputs; o++)
            if (v.own && o < v.n_streams) q.own[o] = packed_quad(v.own, o, first + k);
    }
}

/* a: from column k of all streams on. */
template <int Outputs>
__device__ inline void add_products(float (&acc)[Outputs], const down_views &v, float4 a,
                                    const EnterQuad<Outputs> &q, int32_t k)
{
    a = make_float4(bf16_rounded(a.x), bf16_rounded(a.y), bf16_rounded(a.z), bf16_rounded(a.w));
#pragma unroll
    for (int32_t o = 0; o < Outputs; o++) {
        if (!v.own || o >= v.n_streams) break;
        if constexpr (EnterQuad<Outputs>::kAhead)
            add_quad(acc[o], a, q.own[o]);
        else
            add_quad(acc[o], a, packed_quad(v.own, o, k));
    }
}

/* Zeros for the streams of row `to` that are not stream i. */
__device__ inline void clear_others(const down_views &v, __nv_bfloat16 *to, int32_t i)
{
    const int32_t end = v.n_streams * v.n;
    for (int32_t k = threadIdx.x; k < end; k += blockDim.x)
        if (k < i * v.n || k >= (i + 1) * v.n) put(to + k, 0.0f);
}

/* Grid: streams, rows; as many threads as rms_norm has for a stream, of which each has a quad at a
 * time. Sums are trees over lanes, then over warps. */
template <bool Inject, int Outputs>
__global__ void __launch_bounds__(kNormBlockMax) enter_streams(const down_views v, pass p)
{
    __shared__ double squares_of[32]; // by warp
    __shared__ float own_of[Outputs][32];
    const int32_t thread = static_cast<int32_t>(threadIdx.x), lane = thread % 32;
    const int32_t warp = thread / 32, warps = static_cast<int32_t>(blockDim.x) / 32;
    const int32_t i = static_cast<int32_t>(blockIdx.x), r = static_cast<int32_t>(blockIdx.y);
    const int64_t at = static_cast<int64_t>(r) * v.n_streams + i;
    const int64_t columns = static_cast<int64_t>(v.n_streams) * v.n;
    const float *gain = v.gain + static_cast<int64_t>(i) * v.n;
    EnterQuad<Outputs> q = {};
    if (4 * thread < v.n) load_constants(q, v, gain, i * v.n, 4 * thread);
    const int32_t live = wait_rows(p);
    if (i == 0 && r == 0 && thread == 0) *v.live = live * v.n_streams;
    if (r >= live) return;
    const float by = Inject ? v.by[r][i] : 0.0f;
    float *s = v.s.at(r, i);
    __nv_bfloat16 *all = v.all ? v.all + r * columns + i * v.n : nullptr;
    __nv_bfloat16 *one = v.one ? v.one + at * columns + i * v.n : nullptr;
    double squares[4] = {};
    float acc[Outputs] = {};
    for (int32_t k = 4 * thread; k < v.n; k += 4 * static_cast<int32_t>(blockDim.x)) {
        float4 x = load_quad(s, k, v.n, v.wide);
        if (k != 4 * thread) load_constants(q, v, gain, i * v.n, k);
        if constexpr (Inject) {
            const float4 y = load_quad(v.x[r], k, v.n, v.wide);
            x = make_float4(fmaf(by, y.x, x.x), fmaf(by, y.y, x.y), fmaf(by, y.z, x.z),
                            fmaf(by, y.w, x.w));
            store_quad(s, k, v.n, v.wide, x);
        }
        const float4 a = make_float4(__fmul_rn(x.x, q.gain.x), __fmul_rn(x.y, q.gain.y),
                                     __fmul_rn(x.z, q.gain.z), __fmul_rn(x.w, q.gain.w));
        if (all) store_quad(all, k, v.n, v.wide, a);
        if (one) store_quad(one, k, v.n, v.wide, a);
        add_squares(squares, x);
        add_products(acc, v, a, q, i * v.n + k);
    }
    if (one) clear_others(v, v.one + at * columns, i);
    const double sum = warp_sum((squares[0] + squares[1]) + (squares[2] + squares[3]));
    if (lane == 0) squares_of[warp] = sum;
#pragma unroll
    for (int32_t o = 0; o < Outputs; o++) {
        if (!v.own || o >= v.n_streams) continue;
        const float own = tree_sum(acc[o]);
        if (lane == 0) own_of[o][warp] = own;
    }
    __syncthreads();
    if (warp == warps - 1) { // beside the first warps' sums
        const double whole = warp_sum(lane < warps ? squares_of[lane] : 0.0);
        if (lane == 0) v.factor[r][i] = norm_factor(whole, v.n, v.eps);
    }
    for (int32_t o = warp; o < v.n_streams && v.own; o += warps) {
        const float whole = tree_sum(lane < warps ? own_of[o][lane] : 0.0f);
        if (lane == 0) v.part[at * v.n_streams + o] = whole;
    }
}

} // namespace sk
