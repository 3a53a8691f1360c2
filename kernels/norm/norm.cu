/* Ops `rms_norm` and `norm_add`. Match any length and stride, with or without groups, out in F32 or
 * BF16. The sum is in double like the definition's but in another order, so a row may differ from
 * the CPU's by one rounding of the factor, rarely. Would be wrong if P times groups reached 2^31 or
 * if out overlapped x. */
#include "kernels/sk_kernels.h"

#include "kernels/common/setup.cuh"
#include "kernels/norm/norm.cuh"

extern "C" int32_t sk_k_rms_norm(const sk_rms_norm_args *a, const sk_launch *l)
{
    if (a->out.dtype == SK_BF16)
        return sk::launch_norm<sk::norm_store, __nv_bfloat16>(l, a->x, a->gain, a->count, a->out,
                                                              a->eps);
    return sk::launch_norm<sk::norm_store, float>(l, a->x, a->gain, a->count, a->out, a->eps);
}

extern "C" int32_t sk_k_norm_add(const sk_norm_add_args *a, const sk_launch *l)
{
    return sk::launch_norm<sk::norm_onto, float>(l, a->x, a->gain, a->count, a->y, a->eps);
}

extern "C" int32_t sk_setup_norm(void)
{
    using bf16 = __nv_bfloat16;
    return sk::prefer_shared_all(
        sk::norm_by_warp<sk::norm_store, float>, sk::norm_by_warp<sk::norm_store, bf16>,
        sk::norm_by_warp<sk::norm_onto, float>, sk::norm_by_block<sk::norm_store, float>,
        sk::norm_by_block<sk::norm_store, bf16>, sk::norm_by_block<sk::norm_onto, float>);
}
