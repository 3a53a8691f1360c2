/* Second half of a hyper-connection: what its kernels have in common. */
#pragma once

#include "kernels/norm/norm.cuh"

namespace sk
{

struct mix_views {
    const float *z; // [P, S*D] the product
    heads<const float> s;
    rows<const float> factor;
    const float *gain;
    rows<__nv_bfloat16> out;
    int32_t n_streams, n;
    int32_t wide; // streams are aligned for four elements at a time
};

__device__ inline float mixed(float sum, float z, float s, float factor, float gain)
{
    const float gate = __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-z)));
    return fmaf(gate, normed(s, factor, gain), sum);
}

} // namespace sk
