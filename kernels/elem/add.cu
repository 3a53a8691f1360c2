/* Op `add`: y += x in FP32, one rounding per element. Matches any n >= 0, any alignment of float,
 * every SM. No pointer is restrict: x may be y. */
#include "kernels/sk_kernels.h"

#include "kernels/elem/add.cuh"

extern "C" int32_t sk_k_add(const float *x, float *y, int64_t n, struct CUstream_st *stream)
{
    if (n == 0) return 0;
    const cudaLaunchConfig_t cfg = sk::elem_config(n, stream);
    return static_cast<int32_t>(cudaLaunchKernelEx(&cfg, sk::add_f32, x, y, n));
}
