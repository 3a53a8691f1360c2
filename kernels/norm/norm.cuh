/* RMS norm of a vector by a warp or by a CTA. The order of the sum is a function of the length
 * alone: which lane has which elements, four chains a lane, one tree over the lanes. How many
 * vectors there are, and how wide the accesses are, changes nothing. */
#pragma once

#include "kernels/common/quads.cuh"
#include "kernels/common/rows.cuh"

namespace sk
{

constexpr int32_t kNormWarpMax = 512;   // longest vector that one warp takes
constexpr int32_t kNormWarps = 4;       // vectors a CTA, then
constexpr int32_t kNormBlockMax = 1024; // threads of a CTA with one vector

/* The lanes that share a vector: one warp, or all of the CTA. */
struct team {
    int32_t lane;
    int32_t size;
};

/* Squares are exact in double, so fma rounds like an addition. */
__device__ inline void add_squares(double (&s)[4], const float4 &q)
{
    s[0] = fma(static_cast<double>(q.x), static_cast<double>(q.x), s[0]);
    s[1] = fma(static_cast<double>(q.y), static_cast<double>(q.y), s[1]);
    s[2] = fma(static_cast<double>(q.z), static_cast<double>(q.z), s[2]);
    s[3] = fma(static_cast<double>(q.w), static_cast<double>(q.w), s[3]);
}

__device__ inline double lane_squares(const float *x, int32_t n, const team &t, bool wide)
{
    double s[4] = {};
    for (int32_t i = 4 * t.lane; i < n; i += 4 * t.size) add_squares(s, load_quad(x, i, n, wide));
    return (s[0] + s[1]) + (s[2] + s[3]);
}

/* The same when the lane has its first quad (quad_or_zero) already, which as a rule is all: the
 * loop is kept short, as a short kernel waits for its own code too. */
__device__ inline double lane_squares(const float4 &first, const float *x, int32_t n, const team &t,
                                      bool wide)
{
    double s[4] = {};
    add_squares(s, first);
#pragma unroll 1
    for (int32_t i = 4 * (t.lane + t.size); i < n; i += 4 * t.size)
        add_squares(s, load_quad(x, i, n, wide));
    return (s[0] + s[1]) + (s[2] + s[3]);
}

/* The same bits in every lane, as both sides of each exchange add the same two numbers. */
__device__ inline double warp_sum(double x)
{
    for (int32_t by = 16; by > 0; by /= 2) x += __shfl_xor_sync(0xffffffffu, x, by);
    return x;
}

/* `room` has a number for each of 32 warps. */
__device__ inline double block_sum(double x, double *room)
{
    const uint32_t lane = threadIdx.x % 32;
    x = warp_sum(x);
    if (lane == 0) room[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_sum(lane < blockDim.x / 32 ? room[lane] : 0.0);
}

__device__ inline float norm_factor(double squares, int32_t n, float eps)
{
    const float mean = static_cast<float>(squares / static_cast<double>(n));
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}

__device__ inline float normed(float x, float factor, float gain)
{
    return __fmul_rn(__fmul_rn(x, factor), gain);
}

/* What a normed element becomes part of. */
struct norm_store {
    static constexpr bool onto = false;
};
struct norm_onto {
    static constexpr bool onto = true;
};

/* A quad is read in full before it is written. */
template <typename Then, typename Out>
__device__ inline void write_normed(const float *x, const float *gain, Out *out, int32_t n,
                                    float factor, const team &t, bool wide)
{
    for (int32_t i = 4 * t.lane; i < n; i += 4 * t.size) {
        const float4 q = load_quad(x, i, n, wide);
        const float4 g = load_quad(gain, i, n, wide);
        float4 z = make_float4(normed(q.x, factor, g.x), normed(q.y, factor, g.y),
                               normed(q.z, factor, g.z), normed(q.w, factor, g.w));
        if constexpr (Then::onto) {
            const float4 y = load_quad(out, i, n, wide);
            z = make_float4(__fadd_rn(y.x, z.x), __fadd_rn(y.y, z.y), __fadd_rn(y.z, z.z),
                            __fadd_rn(y.w, z.w));
        }
        store_quad(out, i, n, wide, z);
    }
}

/* The gain is a constant: on its way to the cache while the kernel waits. */
__device__ inline void fetch_ahead(const float *gain, int32_t n, const team &t)
{
#if defined(__CUDA_ARCH__)
    for (int32_t i = 32 * t.lane; i < n; i += 32 * t.size)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(gain + i));
#else
    (void)gain;
    (void)n;
    (void)t;
#endif
}

template <typename Out> struct norm_views {
    heads<const float> x;
    const float *gain;
    heads<Out> out;
    int32_t n;
    int32_t n_groups;
    float eps;
    int32_t wide; // rows are aligned for four elements at a time
};

/* One warp a vector. */
template <typename Then, typename Out>
__global__ void __launch_bounds__(32 * kNormWarps) norm_by_warp(norm_views<Out> v, pass p)
{
    const team t = {static_cast<int32_t>(threadIdx.x % 32), 32};
    const int32_t at = static_cast<int32_t>(blockIdx.x) * kNormWarps + threadIdx.x / 32;
    const int32_t r = at / v.n_groups;
    const int32_t g = at % v.n_groups;
    fetch_ahead(v.gain, v.n, t);
    if (r >= wait_rows(p)) return;
    const float *x = v.x.at(r, g);
    const double squares = warp_sum(lane_squares(x, v.n, t, v.wide));
    write_normed<Then>(x, v.gain, v.out.at(r, g), v.n, norm_factor(squares, v.n, v.eps), t, v.wide);
}

/* One CTA a vector. */
template <typename Then, typename Out>
__global__ void __launch_bounds__(kNormBlockMax) norm_by_block(norm_views<Out> v, pass p)
{
    __shared__ double room[32];
    const team t = {static_cast<int32_t>(threadIdx.x), static_cast<int32_t>(blockDim.x)};
    const int32_t r = static_cast<int32_t>(blockIdx.x) / v.n_groups;
    const int32_t g = static_cast<int32_t>(blockIdx.x) % v.n_groups;
    fetch_ahead(v.gain, v.n, t);
    if (r >= wait_rows(p)) return;
    const float *x = v.x.at(r, g);
    const double squares = block_sum(lane_squares(x, v.n, t, v.wide), room);
    write_normed<Then>(x, v.gain, v.out.at(r, g), v.n, norm_factor(squares, v.n, v.eps), t, v.wide);
}

/* A quad for each thread, as long as there are enough of them. A function of the length only. */
inline unsigned norm_threads(int32_t n)
{
    const int32_t warps = (n + 127) / 128;
    return static_cast<unsigned>(32 * warps < kNormBlockMax ? 32 * warps : kNormBlockMax);
}

template <typename Then, typename Out>
int32_t launch_norm(const sk_launch *l, const sk_view &x, const sk_view &gain, const sk_view &count,
                    const sk_view &out, float eps)
{
    const bool grouped = x.rank == 3;
    const int32_t n = static_cast<int32_t>(x.dim[x.rank - 1]);
    const int64_t vectors = x.dim[0] * (grouped ? x.dim[1] : 1);
    const norm_views<Out> v = {heads_of<const float>(x),
                               ptr<const float>(gain),
                               heads_of<Out>(out),
                               n,
                               grouped ? static_cast<int32_t>(x.dim[1]) : 1,
                               eps,
                               row_aligned(x, 16)};
    const pass p = pass_of(l, count, x.dim[0]);
    if (n <= kNormWarpMax)
        return launch(l, norm_by_warp<Then, Out>,
                      dim3(static_cast<unsigned>((vectors + kNormWarps - 1) / kNormWarps)),
                      dim3(32 * kNormWarps), 0, v, p);
    return launch(l, norm_by_block<Then, Out>, dim3(static_cast<unsigned>(vectors)),
                  dim3(norm_threads(n)), 0, v, p);
}

} // namespace sk
