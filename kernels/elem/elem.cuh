/* Elementwise ops on rows of F32: out[r][i] = f(a[r][i], b[r][i]), four neighbours a thread. Each
 * element depends on its own inputs only, so how wide the accesses are changes nothing. */
#pragma once

#include "kernels/common/gates.cuh"
#include "kernels/common/quads.cuh"
#include "kernels/common/rows.cuh"

namespace sk
{

struct op_add {
    static constexpr bool binary = true;
    __device__ static float of(float y, float x) { return __fadd_rn(y, x); }
};

struct op_copy {
    static constexpr bool binary = false;
    __device__ static float of(float x, float) { return x; }
};

struct op_silu_mul {
    static constexpr bool binary = true;
    __device__ static float of(float gate, float up) { return __fmul_rn(silu(gate), up); }
};

struct op_gelu_mul {
    static constexpr bool binary = true;
    __device__ static float of(float gate, float up) { return __fmul_rn(gelu_tanh(gate), up); }
};

/* b and out may be the same rows as a. */
template <typename Out> struct elem_views {
    rows<const float> a;
    rows<const float> b;
    rows<Out> out;
    int32_t n;    // columns
    int32_t wide; // rows are aligned for four elements at a time
};

template <typename Op, typename Out>
__global__ void __launch_bounds__(kElemThreads) elem_rows(elem_views<Out> v, pass p)
{
    const int32_t r = blockIdx.x;
    const int32_t i = 4 * static_cast<int32_t>(blockIdx.y * blockDim.x + threadIdx.x);
    if (r >= wait_rows(p) || i >= v.n) return;
    const float4 x = load_quad(v.a[r], i, v.n, v.wide);
    const float4 y = Op::binary ? load_quad(v.b[r], i, v.n, v.wide) : x;
    const float4 z =
        make_float4(Op::of(x.x, y.x), Op::of(x.y, y.y), Op::of(x.z, y.z), Op::of(x.w, y.w));
    store_quad(v.out[r], i, v.n, v.wide, z);
}

template <typename Op, typename Out>
int32_t launch_elem(const sk_launch *l, const sk_view &a, const sk_view &b, const sk_view &count,
                    const sk_view &out)
{
    const int64_t n = a.dim[1];
    const int64_t per_block = 4 * kElemThreads;
    const elem_views<Out> v = {rows_of<const float>(a), rows_of<const float>(b), rows_of<Out>(out),
                               static_cast<int32_t>(n),
                               row_aligned(a, 16) && (!Op::binary || row_aligned(b, 16)) &&
                                   row_aligned(out, 4 * sizeof(Out))};
    const dim3 grid(static_cast<unsigned>(a.dim[0]),
                    static_cast<unsigned>((n + per_block - 1) / per_block));
    return launch(l, elem_rows<Op, Out>, grid, dim3(kElemThreads), 0, v,
                  pass_of(l, count, a.dim[0]));
}

/* `out` has the activation type. */
template <typename Op>
int32_t launch_act(const sk_launch *l, const sk_view &a, const sk_view &b, const sk_view &count,
                   const sk_view &out)
{
    if (out.dtype == SK_BF16) return launch_elem<Op, __nv_bfloat16>(l, a, b, count, out);
    return launch_elem<Op, float>(l, a, b, count, out);
}

} // namespace sk
