/* BF16 on the device: rounding to nearest, ties to even. A NaN stays a NaN but loses its payload
 * (the conversion instruction gives 0x7fff), so it may differ from the CPU's in bits. */
#pragma once

#include <cuda_bf16.h>
#include <stdint.h>

namespace sk
{

__device__ inline __nv_bfloat16 to_bf16(float x) { return __float2bfloat16_rn(x); }

__device__ inline uint16_t bf16_bits(float x)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

/* Two neighbours in one word, `low` at the lower address. */
__device__ inline uint32_t bf16_pair(float low, float high)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return static_cast<uint32_t>(__bfloat16_as_ushort(pair.x)) |
           static_cast<uint32_t>(__bfloat16_as_ushort(pair.y)) << 16;
}

__device__ inline float from_bf16(uint16_t bits)
{
    return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

__device__ inline float from_bf16(__nv_bfloat16 x) { return from_bf16(__bfloat16_as_ushort(x)); }

/* One element of an output of the activation type. */
__device__ inline void put(float *to, float x) { *to = x; }
__device__ inline void put(__nv_bfloat16 *to, float x) { *to = to_bf16(x); }

} // namespace sk
