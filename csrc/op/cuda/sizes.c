/* The half of kernels/sk_kernels.h that only computes: what weights take when they are packed, what
 * has kernels, scratch. Compiled into every build, so that sizes are known without CUDA. */
#include "op/cuda/cuda.h"

#include "kernels/attend/sizes.h"
#include "kernels/hyper/sizes.h"
#include "kernels/linear/sizes.h"
#include "kernels/linear/split.h"
#include "kernels/sparse/sizes.h"
#include "kernels/streams/tables.h"

#define TILE 16 // rows

int32_t sk_k_packs(int32_t dtype) { return sk_unit_of(dtype).elems != 0; }

int32_t sk_k_scales(int32_t dtype)
{
    return dtype == SK_F8_E4M3 || dtype == SK_F8_E5M2 || dtype == SK_NVFP4;
}

int32_t sk_k_has_uneven(int32_t dtype) { return sk_has_uneven(dtype); }

int32_t sk_k_has_experts(int32_t dtype) { return sk_unit_of(dtype).ring; }

uint64_t sk_k_packed_bytes(int32_t dtype, int64_t n, int64_t k)
{
    const sk_unit unit = sk_unit_of(dtype);
    if (!unit.elems) return 0;
    return (uint64_t)((n + TILE - 1) / TILE) * (uint64_t)sk_units_of(&unit, k) *
           (uint64_t)unit.packed_bytes;
}

int64_t sk_k_part_unit(int32_t dtype, int64_t k) { return sk_part_unit(dtype, k); }

int32_t sk_k_gathers(int32_t dtype)
{
#define TABLE(type, name)                                                                          \
    if (dtype == SK_##type) return 1;
    SK_TABLES(TABLE)
#undef TABLE
    return 0;
}

uint64_t sk_k_linear_work(int64_t rows, int64_t k, int64_t n_out, int32_t n_hidden)
{
    return sk_linear_scratch_of(rows, k, n_out, n_hidden).bytes;
}

uint64_t sk_cuda_split_bytes(int32_t dtype, int64_t rows, int64_t n, int64_t k)
{
    return sk_split_bytes(dtype, rows, n, k);
}

uint64_t sk_k_attend_work(int64_t rows, int64_t heads, int64_t kv_heads, int64_t dim,
                          int32_t ctx_bound)
{
    (void)kv_heads;
    return sk_attend_work(rows, heads, dim, ctx_bound);
}

uint64_t sk_k_block_topk_work(const sk_block_topk_args *a, int32_t ctx_bound)
{
    return sk_block_topk_work(a, ctx_bound);
}

uint64_t sk_k_attend_blocks_work(const sk_attend_blocks_args *a, int32_t ctx_bound)
{
    return sk_attend_blocks_work(a, ctx_bound);
}

uint64_t sk_k_hyper_down_work(const sk_hyper_down_args *a) { return sk_hyper_scratch_of(a).bytes; }

uint64_t sk_k_hyper_mix_work(const sk_hyper_mix_args *a) { return sk_hyper_mix_work(a); }
