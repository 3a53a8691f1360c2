/* Ops `add`, `copy_rows`, `silu_mul`, `gelu_mul`. Match any shape and stride; rows that are aligned
 * to 16 bytes (8 for BF16) go four elements at a time. Would be wrong if a row had 2^31 columns or
 * more, or if out overlapped an input elsewhere than element on element. */
#include "kernels/sk_kernels.h"

#include "kernels/common/setup.cuh"
#include "kernels/elem/elem.cuh"

extern "C" int32_t sk_k_add(const sk_add_args *a, const sk_launch *l)
{
    return sk::launch_elem<sk::op_add, float>(l, a->y, a->x, a->count, a->y);
}

extern "C" int32_t sk_k_copy_rows(const sk_copy_rows_args *a, const sk_launch *l)
{
    return sk::launch_elem<sk::op_copy, float>(l, a->x, a->x, a->count, a->out);
}

extern "C" int32_t sk_k_silu_mul(const sk_silu_mul_args *a, const sk_launch *l)
{
    return sk::launch_act<sk::op_silu_mul>(l, a->gate, a->up, a->count, a->out);
}

extern "C" int32_t sk_k_gelu_mul(const sk_gelu_mul_args *a, const sk_launch *l)
{
    return sk::launch_act<sk::op_gelu_mul>(l, a->gate, a->up, a->count, a->out);
}

extern "C" int32_t sk_setup_elem(void)
{
    using bf16 = __nv_bfloat16;
    return sk::prefer_shared_all(
        sk::elem_rows<sk::op_add, float>, sk::elem_rows<sk::op_copy, float>,
        sk::elem_rows<sk::op_silu_mul, float>, sk::elem_rows<sk::op_silu_mul, bf16>,
        sk::elem_rows<sk::op_gelu_mul, float>, sk::elem_rows<sk::op_gelu_mul, bf16>);
}
