/* Ops `conv`, `gdn_inputs`, `gdn_step`, `gdn_scan`, `gdn_fold`, `gated_norm`. Match any shape and
 * stride, windows and outputs in BF16 or F32, keys of at most 128 elements (sk_cuda_check). conv is
 * the definition in its order; sums of squares are in double, in another order than the CPU's; sums
 * over keys are trees (delta.cuh). Would be wrong if the rows of a slot were not neighbours, if a
 * live row's slot had no state, or if P times heads reached 2^31. */
#include "kernels/sk_kernels.h"

#include "kernels/common/setup.cuh"
#include "kernels/recurrent/around.cuh"
#include "kernels/recurrent/delta.cuh"

#include <math.h>

extern "C" int32_t sk_k_conv(const sk_conv_args *a, const sk_launch *l)
{
    if (a->window.dtype == SK_BF16) return sk::launch_conv<__nv_bfloat16>(a, l);
    return sk::launch_conv<float>(a, l);
}

extern "C" int32_t sk_k_gdn_inputs(const sk_gdn_inputs_args *a, const sk_launch *l)
{
    const int32_t hk = static_cast<int32_t>(a->q.dim[1]);
    const int32_t dk = static_cast<int32_t>(a->q.dim[2]);
    const int32_t hv = static_cast<int32_t>(a->a.dim[1]);
    const int32_t n_v = static_cast<int32_t>(a->c.dim[1]) - 2 * hk * dk;
    const sk::input_views v = {sk::rows_of<const float>(a->c),
                               sk::rows_of<const float>(a->a),
                               sk::rows_of<const float>(a->b),
                               sk::ptr<const float>(a->coef),
                               sk::ptr<const float>(a->dt),
                               sk::heads_of<float>(a->q),
                               sk::rows_of<float>(a->in),
                               hk,
                               dk,
                               hv,
                               n_v,
                               dk % 4 == 0 && sk::row_aligned(a->c, 16) &&
                                   sk::row_aligned(a->q, 16) && sk::row_aligned(a->in, 16),
                               1.0f / sqrtf(static_cast<float>(dk))};
    const int32_t items = sk::input_items(hk, n_v, hv);
    const dim3 grid(static_cast<unsigned>(a->c.dim[0]),
                    static_cast<unsigned>((items + sk::kInputWarps - 1) / sk::kInputWarps));
    return sk::launch(l, sk::make_inputs, grid, dim3(32 * sk::kInputWarps), 0, v,
                      sk::pass_of(l, a->count, a->c.dim[0]));
}

extern "C" int32_t sk_k_gdn_step(const sk_gdn_step_args *a, const sk_launch *l)
{
    return sk::launch_delta<false>(a, l);
}

extern "C" int32_t sk_k_gdn_scan(const sk_gdn_scan_args *a, const sk_launch *l)
{
    return sk::launch_delta<true>(a, l);
}

extern "C" int32_t sk_k_gdn_fold(const sk_gdn_fold_args *a, const sk_launch *l)
{
    return sk::launch(l, sk::delta_fold, sk::delta_grid(a->m), dim3(sk::kDeltaThreads), 0,
                      sk::delta_of(l, a->key, a->m, a->pending), sk::step_of<float>(a->pending, 1),
                      sk::ptr<const int32_t>(a->kept));
}

extern "C" int32_t sk_k_gated_norm(const sk_gated_norm_args *a, const sk_launch *l)
{
    if (a->out.dtype == SK_BF16) return sk::launch_gated<__nv_bfloat16>(a, l);
    return sk::launch_gated<float>(a, l);
}

extern "C" int32_t sk_setup_recurrent(void)
{
    using bf16 = __nv_bfloat16;
    return sk::prefer_shared_all(sk::convolve<float>, sk::convolve<bf16>, sk::make_inputs,
                                 sk::delta_rows<false>, sk::delta_rows<true>, sk::delta_fold,
                                 sk::norm_gated<float>, sk::norm_gated<bf16>);
}
