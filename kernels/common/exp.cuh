/* The exponential of the definition (docs/numerics.md, exp), operation by operation, so that what
 * is elementwise has the CPU's bits. */
#pragma once

#include <math.h>
#include <stdint.h>

namespace sk
{

/* 2^k for k in -126 .. 127. */
__device__ inline float power_of_2(int32_t k)
{
    return __uint_as_float(static_cast<uint32_t>(k + 127) << 23);
}

__device__ inline float exp_same(float x)
{
    const float magic = 12582912.0f; // 1.5 * 2^23
    const float at = x < -105.0f ? -105.0f : x > 89.0f ? 89.0f : x;
    const float n = __fsub_rn(fmaf(at, 0x1.715476p+0f, magic), magic);
    const float r = fmaf(n, -0x1.7f7d1cp-20f, fmaf(n, -0x1.62e4p-1f, at));
    const int32_t k = static_cast<int32_t>(n);
    float p = 0x1.a01a02p-13f; // 1/7!
    p = fmaf(p, r, 0x1.6c16c2p-10f);
    p = fmaf(p, r, 0x1.111112p-7f);
    p = fmaf(p, r, 0x1.555556p-5f);
    p = fmaf(p, r, 0x1.555556p-3f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    p = __fmul_rn(__fmul_rn(p, power_of_2(k / 2)), power_of_2(k - k / 2));
    return x != x ? x : p;
}

/* 1 + exp(-x): what a gate divides by. */
__device__ inline float gate_divisor(float x) { return __fadd_rn(1.0f, exp_same(-x)); }

} // namespace sk
