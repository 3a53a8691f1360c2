/* What setting up a kernel consists of. */
#pragma once

#include "kernels/common/setup.h"

#include <cuda_runtime.h>

namespace sk
{

/* Asks for the largest share of shared memory, also for kernels that use little: neighbours with
 * different carve-outs drain the multiprocessor between them. */
template <typename... Params> int32_t prefer_shared(void (*kernel)(Params...))
{
    return static_cast<int32_t>(
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
}

/* 0, or the error of the first kernel that had one. */
template <typename... Kernels> int32_t prefer_shared_all(Kernels... kernels)
{
    int32_t first = 0;
    ((first = first ? first : prefer_shared(kernels)), ...);
    return first;
}

/* The same, and so many bytes of dynamic shared memory; with what the kernel has by itself they may
 * not be more than a CTA can have. */
template <typename... Params> int32_t allow_shared(void (*kernel)(Params...), size_t bytes)
{
    const auto e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(bytes));
    return e == cudaSuccess ? prefer_shared(kernel) : static_cast<int32_t>(e);
}

} // namespace sk
