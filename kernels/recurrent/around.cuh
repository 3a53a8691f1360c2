/* What is in front of the delta rule and behind it: the convolution, the inputs, the gated norm.
 * See recurrent.cu. */
#pragma once

#include "kernels/common/exp.cuh"
#include "kernels/norm/norm.cuh"

namespace sk
{

/* ---- conv ------------------------------------------------------------------------------------ */

/* As the window's type has it. */
__device__ inline float as_kept(float x, const float *) { return x; }
__device__ inline float as_kept(float x, const __nv_bfloat16 *) { return from_bf16(to_bf16(x)); }
__device__ inline float kept_value(const float *x) { return *x; }
__device__ inline float kept_value(const __nv_bfloat16 *x) { return from_bf16(*x); }

template <typename T> struct conv_views {
    rows<const float> x;
    rows<const float> taps;
    heads<const T> window;
    rows<const sk_row> table;
    rows<float> out;
    int32_t n_taps, n, dilation;
    int32_t size; // rows of the window
    int32_t wide; // taps of a channel are aligned for four at a time
};

constexpr int32_t kConvTaps = 4; // on their way together
constexpr int32_t kConvCtas = 6; // of a multiprocessor: as many threads as one has everywhere

/* A thread a channel of a row: the sum in the definition's order. The first taps, and the row where
 * it is ready, are read ahead of the wait; what they meet is not looked at before all of it has
 * been asked for. */
template <typename T>
__global__ void __launch_bounds__(kElemThreads, kConvCtas) convolve(conv_views<T> v, pass p)
{
    const int32_t r = blockIdx.x;
    const int32_t d = static_cast<int32_t>(blockIdx.y * blockDim.x + threadIdx.x);
    const float *taps = v.taps[d];
    float4 some = quad_or_zero(taps, 0, d < v.n ? v.n_taps : 0, v.wide);
    if (!p.ready) edge_wait();
    const int32_t live = live_rows(p.count, p.capacity);
    const sk_row row = *v.table[r];
    edge_wait();
    edge_open();
    if (r >= live || d >= v.n) return;
    float sum = 0.0f;
#pragma unroll 1
    for (int32_t k = 0; k < v.n_taps; k += kConvTaps) {
        if (k > 0) some = load_quad(taps, k, v.n_taps, v.wide);
        const float tap[kConvTaps] = {some.x, some.y, some.z, some.w};
        float fresh[kConvTaps]; // of the two one, and no zero: it would wait for the other
        T old[kConvTaps];
#pragma unroll
        for (int32_t j = 0; j < kConvTaps; j++) {
            const int32_t back = (v.n_taps - 1 - k - j) * v.dilation;
            if (back < 0) break;
            if (back <= row.at)
                fresh[j] = v.x[r - back][d];
            else
                old[j] = v.window.at(row.slot, v.size + row.at - back)[d];
        }
#pragma unroll
        for (int32_t j = 0; j < kConvTaps; j++) {
            const int32_t back = (v.n_taps - 1 - k - j) * v.dilation;
            const T *type = nullptr;
            if (back < 0) break;
            sum = fmaf(tap[j], back <= row.at ? as_kept(fresh[j], type) : kept_value(old + j), sum);
        }
    }
    v.out[r][d] = __fdiv_rn(sum, gate_divisor(sum));
}

template <typename T> int32_t launch_conv(const sk_conv_args *a, const sk_launch *l)
{
    const int64_t n = a->x.dim[1];
    const conv_views<T> v = {rows_of<const float>(a->x),
                             rows_of<const float>(a->taps),
                             heads_of<const T>(a->window),
                             rows_of<const sk_row>(a->rows),
                             rows_of<float>(a->out),
                             static_cast<int32_t>(a->taps.dim[1]),
                             static_cast<int32_t>(n),
                             a->dilation,
                             static_cast<int32_t>(a->window.dim[1]),
                             row_aligned(a->taps, 16)};
    const dim3 grid(static_cast<unsigned>(a->x.dim[0]),
                    static_cast<unsigned>((n + kElemThreads - 1) / kElemThreads));
    return launch(l, convolve<T>, grid, dim3(kElemThreads), 0, v,
                  pass_of(l, a->count, a->x.dim[0]));
}

/* ---- gdn_inputs ------------------------------------------------------------------------------ */

constexpr int32_t kInputWarps = 4;  // of a CTA
constexpr int32_t kInputCopy = 128; // values that a warp copies, a quad a lane

struct input_views {
    rows<const float> c, a, b;
    const float *coef, *dt;
    heads<float> q;
    rows<float> in;
    int32_t hk, dk, hv, n_v;
    int32_t wide; // heads of c, q and in are aligned for four elements at a time
    float root;   // 1 / sqrt(dk)
};

__device__ inline float softplus(float x) { return x > 20.0f ? x : log1pf(exp_same(x)); }

/* A warp: a head times its factor, and times `by` after that where `again` says so. Up to 128
 * elements are read once. */
__device__ inline void unit_head(const float *x, float *out, const input_views &v, bool again)
{
    const team t = {static_cast<int32_t>(threadIdx.x % 32), 32};
    const float4 first = quad_or_zero(x, 4 * t.lane, v.dk, v.wide);
    const double squares = warp_sum(lane_squares(first, x, v.dk, t, v.wide));
    const float length = __fadd_rn(static_cast<float>(squares), 1e-6f);
    const float factor = __fdiv_rn(1.0f, __fsqrt_rn(length));
#pragma unroll 1
    for (int32_t i = 4 * t.lane; i < v.dk; i += 4 * t.size) {
        const float4 y = i < 4 * t.size ? first : load_quad(x, i, v.dk, v.wide);
        float4 unit = make_float4(__fmul_rn(y.x, factor), __fmul_rn(y.y, factor),
                                  __fmul_rn(y.z, factor), __fmul_rn(y.w, factor));
        if (again)
            unit = make_float4(__fmul_rn(unit.x, v.root), __fmul_rn(unit.y, v.root),
                               __fmul_rn(unit.z, v.root), __fmul_rn(unit.w, v.root));
        store_quad(out, i, v.dk, v.wide, unit);
    }
}

/* Items of a row, a warp each: heads of q, heads of k, pieces of v, the gates of 32 heads. */
__host__ __device__ inline int32_t input_items(int32_t hk, int32_t n_v, int32_t hv)
{
    return 2 * hk + (n_v + kInputCopy - 1) / kInputCopy + (hv + 31) / 32;
}

__global__ void __launch_bounds__(32 * kInputWarps) make_inputs(input_views v, pass p)
{
    const int32_t r = blockIdx.x;
    const int32_t lane = threadIdx.x % 32;
    const int32_t keys = v.hk * v.dk;
    const int32_t item = static_cast<int32_t>(blockIdx.y) * kInputWarps + threadIdx.x / 32;
    const int32_t copy = item - 2 * v.hk;
    const int32_t copies = (v.n_v + kInputCopy - 1) / kInputCopy;
    const int32_t h = 32 * (copy - copies) + lane; // whose gates
    const bool gated = h >= 0 && h < v.hv;
    const float coef = gated ? v.coef[h] : 0.0f, dt = gated ? v.dt[h] : 0.0f;
    if (r >= wait_rows(p)) return;
    const float *c = v.c[r];
    float *in = v.in[r];
    if (copy < 0) {
        const bool is_q = item < v.hk;
        unit_head(c + item * v.dk, is_q ? v.q.at(r, item) : in + (item - v.hk) * v.dk, v, is_q);
    } else if (copy < copies) {
        const int32_t i = copy * kInputCopy + 4 * lane;
        if (i < v.n_v)
            store_quad(in + keys, i, v.n_v, v.wide, load_quad(c + 2 * keys, i, v.n_v, v.wide));
    } else if (gated) {
        float *gates = in + keys + v.n_v;
        const float a = v.a[r][h], b = v.b[r][h];
        gates[h] = exp_same(__fmul_rn(coef, softplus(__fadd_rn(a, dt))));
        gates[v.hv + h] = __fdiv_rn(1.0f, gate_divisor(b));
    }
}

/* ---- gated_norm ------------------------------------------------------------------------------ */

template <typename Out> struct gated_views {
    heads<const float> x;
    rows<const float> gate;
    const float *gain;
    rows<Out> out;
    int32_t n_heads, n;
    float eps;
    int32_t wide; // rows and heads of all are aligned for four elements at a time
};

__device__ inline float4 gate_divisors(const float4 &x)
{
    return make_float4(gate_divisor(x.x), gate_divisor(x.y), gate_divisor(x.z), gate_divisor(x.w));
}

/* A warp a head. Up to 128 elements are on their way together, the gain ahead of the wait. */
template <typename Out>
__global__ void __launch_bounds__(32 * kNormWarps) norm_gated(gated_views<Out> v, pass p)
{
    const team t = {static_cast<int32_t>(threadIdx.x % 32), 32};
    const int32_t r = blockIdx.x;
    const int32_t h = static_cast<int32_t>(blockIdx.y) * kNormWarps + threadIdx.x / 32;
    float4 gain = quad_or_zero(v.gain, 4 * t.lane, v.n, v.wide);
    if (r >= wait_rows(p) || h >= v.n_heads) return;
    const float *x = v.x.at(r, h);
    const float *gates = v.gate[r] + h * v.n;
    Out *out = v.out[r] + h * v.n;
    float4 y = quad_or_zero(x, 4 * t.lane, v.n, v.wide);
    float4 by = gate_divisors(quad_or_zero(gates, 4 * t.lane, v.n, v.wide));
    const float factor = norm_factor(warp_sum(lane_squares(y, x, v.n, t, v.wide)), v.n, v.eps);
#pragma unroll 1
    for (int32_t i = 4 * t.lane; i < v.n; i += 4 * t.size) {
        if (i >= 4 * t.size) {
            y = load_quad(x, i, v.n, v.wide);
            by = gate_divisors(load_quad(gates, i, v.n, v.wide));
            gain = load_quad(v.gain, i, v.n, v.wide);
        }
        store_quad(out, i, v.n, v.wide,
                   make_float4(__fdiv_rn(normed(y.x, factor, gain.x), by.x),
                               __fdiv_rn(normed(y.y, factor, gain.y), by.y),
                               __fdiv_rn(normed(y.z, factor, gain.z), by.z),
                               __fdiv_rn(normed(y.w, factor, gain.w), by.w)));
    }
}

template <typename Out> int32_t launch_gated(const sk_gated_norm_args *a, const sk_launch *l)
{
    const int64_t n_heads = a->x.dim[1];
    const gated_views<Out> v = {heads_of<const float>(a->x),
                                rows_of<const float>(a->gate),
                                ptr<const float>(a->gain),
                                rows_of<Out>(a->out),
                                static_cast<int32_t>(n_heads),
                                static_cast<int32_t>(a->x.dim[2]),
                                a->eps,
                                a->x.dim[2] % 4 == 0 && row_aligned(a->x, 16) &&
                                    row_aligned(a->gate, 16) && row_aligned(a->gain, 16) &&
                                    row_aligned(a->out, 4 * sizeof(Out))};
    const dim3 grid(static_cast<unsigned>(a->x.dim[0]),
                    static_cast<unsigned>((n_heads + kNormWarps - 1) / kNormWarps));
    return launch(l, norm_gated<Out>, grid, dim3(32 * kNormWarps), 0, v,
                  pass_of(l, a->count, a->x.dim[0]));
}

} // namespace sk
