/* Ops `rope` and `kv_append`. Match any number of heads and any head length, rows and heads at any
 * stride; x and v in F32 or BF16 as the contract allows. BF16 that goes into a BF16 cache is kept
 * as it is. Would be wrong if a live row's slot or position lay outside the cache. */
#include "kernels/sk_kernels.h"

#include "kernels/common/rotate.cuh"
#include "kernels/common/setup.cuh"
#include "kernels/rows/rope.cuh"

extern "C" int32_t sk_k_rope(const sk_rope_args *a, const sk_launch *l)
{
    if (a->out.dtype == SK_BF16) return sk::launch_rope<__nv_bfloat16>(a, l);
    return sk::launch_rope<float>(a, l);
}

extern "C" int32_t sk_k_kv_append(const sk_kv_append_args *a, const sk_launch *l)
{
    if (a->k_cache.dtype == SK_BF16) return sk::launch_append<__nv_bfloat16>(a, l);
    return sk::launch_append<float>(a, l);
}

extern "C" int32_t sk_setup_rope(void)
{
    using bf16 = __nv_bfloat16;
    return sk::prefer_shared_all(sk::rotate_heads<float>, sk::rotate_heads<bf16>,
                                 sk::append_heads<float>, sk::append_heads<bf16>);
}
