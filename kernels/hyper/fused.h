/* The second half of a hyper-connection in one launch. */
#pragma once

#include "kernels/sk_kernels.h"

namespace sk
{

constexpr int32_t kNotFused = -1;

/* 0 or a CUDA error number; kNotFused, and nothing is launched: these arguments take the other
 * kernels, whose bits are the same. */
int32_t hyper_mix_fused(const sk_hyper_mix_args *a, const sk_launch *l);
int32_t setup_hyper_fused();

} // namespace sk
