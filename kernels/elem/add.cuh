/* y += x, one element a thread. */
#pragma once

#include "kernels/common/launch.cuh"

namespace sk
{

__global__ void __launch_bounds__(kElemThreads) add_f32(const float *x, float *y, int64_t n)
{
    for (int64_t i = elem_first(); i < n; i += elem_stride()) y[i] += x[i];
}

} // namespace sk
