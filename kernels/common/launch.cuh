/* Launch shapes of elementwise kernels: grid-stride loops over a grid that depends on plan
 * constants only, so that a recorded launch never has to change. */
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

namespace sk
{

constexpr int kElemThreads = 256;
constexpr int64_t kElemBlocks = 1024; // several waves on every GPU of today

inline cudaLaunchConfig_t elem_config(int64_t n, cudaStream_t stream)
{
    const int64_t blocks = (n + kElemThreads - 1) / kElemThreads;
    cudaLaunchConfig_t cfg = {};
    cfg.gridDim = dim3(static_cast<unsigned>(blocks < kElemBlocks ? blocks : kElemBlocks));
    cfg.blockDim = dim3(kElemThreads);
    cfg.stream = stream;
    return cfg;
}

__device__ inline int64_t elem_first()
{
    return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ inline int64_t elem_stride() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

} // namespace sk
