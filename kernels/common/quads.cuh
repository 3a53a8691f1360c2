/* Four neighbouring elements of a row, in one access where rows are aligned for it. `wide` says
 * that they are (row_aligned), n is the length of the row; i < n. */
#pragma once

#include "kernels/common/bf16.cuh"

namespace sk
{

/* Elements i .. i+3; 0 past the end. */
__device__ inline float4 load_quad(const float *x, int32_t i, int32_t n, bool wide)
{
    if (wide && i + 4 <= n) return *reinterpret_cast<const float4 *>(x + i);
    float4 q = make_float4(x[i], 0.0f, 0.0f, 0.0f);
    if (i + 1 < n) q.y = x[i + 1];
    if (i + 2 < n) q.z = x[i + 2];
    if (i + 3 < n) q.w = x[i + 3];
    return q;
}

/* The same where i may be n or more: nothing but zeros then. */
__device__ inline float4 quad_or_zero(const float *x, int32_t i, int32_t n, bool wide)
{
    return i < n ? load_quad(x, i, n, wide) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

__device__ inline void put_quad(float *to, float4 q) { *reinterpret_cast<float4 *>(to) = q; }

__device__ inline void put_quad(__nv_bfloat16 *to, float4 q)
{
    *reinterpret_cast<uint2 *>(to) = make_uint2(bf16_pair(q.x, q.y), bf16_pair(q.z, q.w));
}

template <typename Out>
__device__ inline void store_quad(Out *out, int32_t i, int32_t n, bool wide, float4 q)
{
    if (wide && i + 4 <= n) {
        put_quad(out + i, q);
        return;
    }
    put(out + i, q.x);
    if (i + 1 < n) put(out + i + 1, q.y);
    if (i + 2 < n) put(out + i + 2, q.z);
    if (i + 3 < n) put(out + i + 3, q.w);
}

} // namespace sk
