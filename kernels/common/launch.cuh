/* What every kernel file shares: the launch with its programmatic edge, the two halves of the edge
 * on the device, grid-stride loops, live rows. Launch shapes depend on plan constants only, so that
 * a recorded launch never has to change.
 *
 * Without __CUDACC__ a test has the kernels run on the host; names in `emulated` are of
 * tests/c/emulated_cuda.h. */
#pragma once

#include "kernels/sk_kernels.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

namespace sk
{

/* One kernel on the launch's stream; 0 or the CUDA error number. */
template <typename... Params, typename... Args>
int32_t launch(const sk_launch *l, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared,
               Args... args)
{
    cudaLaunchAttribute edge[1] = {};
    cudaLaunchConfig_t cfg = {};
    cfg.gridDim = grid;
    cfg.blockDim = block;
    cfg.dynamicSmemBytes = shared;
    cfg.stream = l->stream;
    edge[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    edge[0].val.programmaticStreamSerializationAllowed = 1;
    cfg.attrs = edge;
    cfg.numAttrs = l->edge ? 1 : 0;
    return static_cast<int32_t>(cudaLaunchKernelEx(&cfg, kernel, static_cast<Params>(args)...));
}

/* First half of the edge: returns when everything launched before has ended and its writes are
 * visible. Before it a kernel may read constants (weights, tables of the plan), what earlier rounds
 * have written, and with sk_launch.rows_ready the row table and the count, with .state_ready what
 * slots have; it may write nothing and must not exit. Once more it returns at once. */
__device__ inline void edge_wait()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#elif !defined(__CUDACC__)
    emulated::edge_wait();
#endif
}

/* Second half: lets the next kernel start. After edge_wait, unless sk_launch.open_early says that
 * it may come first. */
__device__ inline void edge_open()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#elif !defined(__CUDACC__)
    emulated::edge_open();
#endif
}

constexpr int kElemThreads = 256;
constexpr int64_t kElemBlocks = 1024; // several waves on every GPU of today

inline dim3 elem_grid(int64_t n)
{
    const int64_t blocks = (n + kElemThreads - 1) / kElemThreads;
    return dim3(static_cast<unsigned>(blocks < 1             ? 1
                                      : blocks < kElemBlocks ? blocks
                                                             : kElemBlocks));
}

__device__ inline int64_t elem_first()
{
    return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ inline int64_t elem_stride() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

/* Rows of a pass that mean something. */
__device__ inline int32_t live_rows(const int32_t *count, int32_t capacity)
{
    const int32_t n = *count;
    return n < 0 ? 0 : n > capacity ? capacity : n;
}

/* A value that is the same in all lanes, in a register that they share: what is worked out from it
 * costs no register of a lane. All lanes. */
__device__ inline int32_t uniform(int32_t x)
{
#ifdef __CUDACC__
    int32_t same;
    asm volatile("redux.sync.or.b32 %0, %1, 0xFFFFFFFF;" : "=r"(same) : "r"(x));
    return same;
#else
    return emulated::any_bits(x);
#endif
}

__device__ inline const uint8_t *uniform(const uint8_t *p)
{
    const uint64_t bits = reinterpret_cast<uint64_t>(p);
    const uint32_t low = static_cast<uint32_t>(uniform(static_cast<int32_t>(bits)));
    const uint32_t high = static_cast<uint32_t>(uniform(static_cast<int32_t>(bits >> 32)));
    return reinterpret_cast<const uint8_t *>(static_cast<uint64_t>(high) << 32 | low);
}

/* Belongs into a loop that waits for another thread of the CTA. */
__device__ inline void spin()
{
#ifndef __CUDACC__
    emulated::spin();
#endif
}

template <typename T> T *ptr(const sk_view &v) { return reinterpret_cast<T *>(v.p); }

/* Elements between neighbours along dimension d of a view whose elements have type T. */
template <typename T> int64_t step_of(const sk_view &v, int d)
{
    return v.stride[d] / static_cast<int64_t>(sizeof(T));
}

} // namespace sk
