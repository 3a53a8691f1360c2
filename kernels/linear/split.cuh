/* The second launch of a product whose slices are left apart. See split.h. */
#pragma once

#include "kernels/common/quads.cuh"
#include "kernels/common/rows.cuh"
#include "kernels/linear/narrow.cuh"

namespace sk
{

constexpr int kSliceThreads = 64;

struct SliceArgs {
    const float *sums; // [slices, rows, n]
    const float *bias; // NULL: none
    float *y;
    int64_t y_step, slice_step;
    int32_t n, slices;
    int32_t add;  // to y, instead of storing
    int32_t wide; // four outputs at a time may be accessed at once
};

/* Four outputs of a row, of all slices at once: ascending from zero, as one product adds them. */
__global__ void __launch_bounds__(kSliceThreads) sum_slices(const SliceArgs a, pass p)
{
    const int32_t r = static_cast<int32_t>(blockIdx.y);
    const int32_t o = 4 * static_cast<int32_t>(blockIdx.x * kSliceThreads + threadIdx.x);
    const bool wide = a.wide;
    float4 b = make_float4(0, 0, 0, 0);
    if (a.bias && o < a.n) b = load_quad(a.bias, o, a.n, wide);
    if (r >= wait_rows(p) || o >= a.n) return;
    const float *at = a.sums + static_cast<int64_t>(r) * a.n;
    float *y = a.y + r * a.y_step;
    float4 s[kMaxSlices], sum = make_float4(0, 0, 0, 0), old = sum;
    if (a.add) old = load_quad(y, o, a.n, wide);
#pragma unroll
    for (int32_t i = 0; i < kMaxSlices; i++)
        if (i < a.slices) s[i] = load_quad(at + i * a.slice_step, o, a.n, wide);
#pragma unroll
    for (int32_t i = 0; i < kMaxSlices; i++) {
        if (i >= a.slices) break;
        sum = make_float4(__fadd_rn(sum.x, s[i].x), __fadd_rn(sum.y, s[i].y),
                          __fadd_rn(sum.z, s[i].z), __fadd_rn(sum.w, s[i].w));
    }
    if (a.bias)
        sum = make_float4(__fadd_rn(sum.x, b.x), __fadd_rn(sum.y, b.y), __fadd_rn(sum.z, b.z),
                          __fadd_rn(sum.w, b.w));
    if (a.add)
        sum = make_float4(__fadd_rn(old.x, sum.x), __fadd_rn(old.y, sum.y), __fadd_rn(old.z, sum.z),
                          __fadd_rn(old.w, sum.w));
    store_quad(y, o, a.n, wide, sum);
}

} // namespace sk
