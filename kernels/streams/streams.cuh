/* The streams of a wide residual: copies, additions, and the norms over streams that gate a hashed
 * embedding or join the input of a draft head. See streams.cu. */
#pragma once

#include "kernels/common/exp.cuh"
#include "kernels/norm/norm.cuh"

namespace sk
{

struct stream_copy {
    static constexpr bool reads = false;
    __device__ static float of(float, float x, float) { return x; }
};

struct stream_add {
    static constexpr bool reads = true;
    __device__ static float of(float s, float x, float) { return __fadd_rn(s, x); }
};

struct stream_inject {
    static constexpr bool reads = true;
    __device__ static float of(float s, float x, float by) { return fmaf(by, x, s); }
};

struct stream_views {
    rows<const float> x;
    rows<const float> by; // of hyper_inject: a factor a stream
    heads<float> s;
    int32_t n_streams, n;
    int32_t wide; // rows are aligned for four elements at a time
};

/* Four elements a thread, in all streams. */
template <typename Op>
__global__ void __launch_bounds__(kElemThreads) into_streams(stream_views v, pass p)
{
    const int32_t r = blockIdx.x;
    const int32_t i = 4 * static_cast<int32_t>(blockIdx.y * blockDim.x + threadIdx.x);
    if (r >= wait_rows(p) || i >= v.n) return;
    const float4 x = load_quad(v.x[r], i, v.n, v.wide);
    for (int32_t j = 0; j < v.n_streams; j++) {
        float *s = v.s.at(r, j);
        const float by = v.by.p ? v.by[r][j] : 0.0f;
        const float4 y = Op::reads ? load_quad(s, i, v.n, v.wide) : x;
        const float4 z = make_float4(Op::of(y.x, x.x, by), Op::of(y.y, x.y, by),
                                     Op::of(y.z, x.z, by), Op::of(y.w, x.w, by));
        store_quad(s, i, v.n, v.wide, z);
    }
}

template <typename Op>
int32_t launch_streams(const sk_launch *l, const sk_view &x, const sk_view *by,
                       const sk_view &count, const sk_view &s)
{
    const int64_t n = x.dim[1];
    const stream_views v = {
        rows_of<const float>(x), by ? rows_of<const float>(*by) : rows<const float>{nullptr, 0},
        heads_of<float>(s),      static_cast<int32_t>(s.dim[1]),
        static_cast<int32_t>(n), row_aligned(x, 16) && row_aligned(s, 16)};
    const dim3 grid(static_cast<unsigned>(x.dim[0]),
                    static_cast<unsigned>((n + 4 * kElemThreads - 1) / (4 * kElemThreads)));
    return launch(l, into_streams<Op>, grid, dim3(kElemThreads), 0, v, pass_of(l, count, x.dim[0]));
}

/* ---- ple_gate -------------------------------------------------------------------------------- */

struct ple_views {
    rows<const float> key, value;
    heads<const float> s;
    const float *key_gain, *query_gain, *conv_gain;
    rows<float> y, normed;
    int32_t n_streams, n;
    float root; // sqrt(n)
    float eps;
    int32_t wide; // rows are aligned for four elements at a time
};

/* Root with the sign; a NaN stays one. */
__device__ inline float gate_root(float t)
{
    const float root = __fsqrt_rn(fmaxf(fabsf(t), 1e-6f));
    return t > 0 ? root : t < 0 ? -root : t;
}

/* A CTA a stream of a row. Elements go to threads as those of a norm do; the sum of key and query
 * is in double as well, of products that are exact there. */
__global__ void __launch_bounds__(kNormBlockMax) gate_streams(ple_views v, pass p)
{
    __shared__ double room[4][32];
    const team t = {static_cast<int32_t>(threadIdx.x), static_cast<int32_t>(blockDim.x)};
    const int32_t r = static_cast<int32_t>(blockIdx.x) / v.n_streams;
    const int32_t i = static_cast<int32_t>(blockIdx.x) % v.n_streams;
    const int32_t first = i * v.n;
    if (r >= wait_rows(p)) return;
    const float *key = v.key[r] + first;
    const float *s = v.s.at(r, i);
    const float *value = v.value[r];
    float *y = v.y[r] + first;
    float *out = v.normed[r] + first;
    const float of_key =
        norm_factor(block_sum(lane_squares(key, v.n, t, v.wide), room[0]), v.n, v.eps);
    const float of_query =
        norm_factor(block_sum(lane_squares(s, v.n, t, v.wide), room[1]), v.n, v.eps);
    double alike = 0;
    for (int32_t d = t.lane; d < v.n; d += t.size)
        alike = fma(static_cast<double>(normed(key[d], of_key, v.key_gain[first + d])),
                    static_cast<double>(normed(s[d], of_query, v.query_gain[first + d])), alike);
    const float whole = static_cast<float>(block_sum(alike, room[2]));
    const float by = gate_divisor(gate_root(__fdiv_rn(whole, v.root)));
    for (int32_t d = t.lane; d < v.n; d += t.size) y[d] = __fdiv_rn(value[d], by);
    __syncthreads(); // the norm reads other lanes' elements
    const float of_y = norm_factor(block_sum(lane_squares(y, v.n, t, v.wide), room[3]), v.n, v.eps);
    for (int32_t d = t.lane; d < v.n; d += t.size)
        out[d] = normed(y[d], of_y, v.conv_gain[first + d]);
}

/* ---- mtp_join -------------------------------------------------------------------------------- */

template <typename Out> struct join_views {
    rows<const float> e;
    heads<const float> x;
    const float *e_gain, *gain;
    heads<Out> out;
    int32_t *n_out;
    int32_t n_streams, n;
    int32_t whole; // one factor for all streams of a row
    float eps;
    int32_t wide_e, wide_x; // rows are aligned for four elements at a time
};

/* A CTA a stream of a row. With `whole` each of a row's CTAs sums up all of its streams, in the
 * same order. */
template <typename Out>
__global__ void __launch_bounds__(kNormBlockMax) join_streams(join_views<Out> v, pass p)
{
    __shared__ double room[2][32];
    const team t = {static_cast<int32_t>(threadIdx.x), static_cast<int32_t>(blockDim.x)};
    const int32_t r = static_cast<int32_t>(blockIdx.x) / v.n_streams;
    const int32_t i = static_cast<int32_t>(blockIdx.x) % v.n_streams;
    const int32_t live = wait_rows(p);
    if (blockIdx.x == 0 && threadIdx.x == 0) *v.n_out = live * v.n_streams;
    if (r >= live) return;
    const float *e = v.e[r];
    const float *x = v.x.at(r, i);
    const float *gain = v.gain + i * v.n;
    Out *out = v.out.at(r, i);
    const float of_e =
        norm_factor(block_sum(lane_squares(e, v.n, t, v.wide_e), room[0]), v.n, v.eps);
    double squares = 0;
    if (v.whole)
        for (int32_t j = 0; j < v.n_streams; j++)
            squares += lane_squares(v.x.at(r, j), v.n, t, v.wide_x);
    else
        squares = lane_squares(x, v.n, t, v.wide_x);
    const int32_t n = v.whole ? v.n_streams * v.n : v.n;
    const float of_x = norm_factor(block_sum(squares, room[1]), n, v.eps);
    for (int32_t d = t.lane; d < v.n; d += t.size) {
        put(out + d, normed(e[d], of_e, v.e_gain[d]));
        put(out + v.n + d, normed(x[d], of_x, gain[d]));
    }
}

template <typename Out> int32_t launch_join(const sk_mtp_join_args *a, const sk_launch *l)
{
    const int32_t n = static_cast<int32_t>(a->x.dim[2]);
    const int64_t vectors = a->x.dim[0] * a->x.dim[1];
    const join_views<Out> v = {rows_of<const float>(a->e),
                               heads_of<const float>(a->x),
                               ptr<const float>(a->e_gain),
                               ptr<const float>(a->gain),
                               heads_of<Out>(a->out),
                               ptr<int32_t>(a->n),
                               static_cast<int32_t>(a->x.dim[1]),
                               n,
                               a->whole,
                               a->eps,
                               row_aligned(a->e, 16),
                               row_aligned(a->x, 16)};
    return launch(l, join_streams<Out>, dim3(static_cast<unsigned>(vectors)), dim3(norm_threads(n)),
                  0, v, pass_of(l, a->count, a->x.dim[0]));
}

} // namespace sk
