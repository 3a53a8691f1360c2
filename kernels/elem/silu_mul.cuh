/* out = silu(gate) * up, one element a thread. */
#pragma once

#include "kernels/common/launch.cuh"

namespace sk
{

__global__ void __launch_bounds__(kElemThreads)
    silu_mul_f32(const float *gate, const float *up, float *out, int64_t n)
{
    for (int64_t i = elem_first(); i < n; i += elem_stride()) {
        const float g = gate[i];
        out[i] = g / (1.0f + expf(-g)) * up[i];
    }
}

} // namespace sk
