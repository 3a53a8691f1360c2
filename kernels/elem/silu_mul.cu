/* Op `silu_mul`: out = silu(gate) * up in FP32. Matches any n >= 0, any alignment of float, every
 * SM. No pointer is restrict: out may be gate or up. For gate -> -inf the quotient is -0, as its
 * limit is. */
#include "kernels/sk_kernels.h"

#include "kernels/elem/silu_mul.cuh"

extern "C" int32_t sk_k_silu_mul(const float *gate, const float *up, float *out, int64_t n,
                                 struct CUstream_st *stream)
{
    if (n == 0) return 0;
    const cudaLaunchConfig_t cfg = sk::elem_config(n, stream);
    return static_cast<int32_t>(cudaLaunchKernelEx(&cfg, sk::silu_mul_f32, gate, up, out, n));
}
