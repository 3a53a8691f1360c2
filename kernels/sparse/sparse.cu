/* Ops `index_append`, `block_topk` and `attend_blocks` in mode BF16. Match keys of an index of up
 * to 8192 elements; queries of an index that fit into 48 KB in F32; attention with heads in
 * multiples of 16 up to 256, splits of 128, caches whose cells lie on 16 bytes and less than 4 GiB
 * apart, q and out on 4; other arguments are refused. Wrong if a live row's position reached the
 * tier's bound, if it saw a cell or a key that nobody has written, if a list of blocks did not
 * ascend or had a block at or behind the row's last whole one, or if a block were completed by two
 * rows of a pass. */
#include "kernels/sk_kernels.h"

#include "kernels/common/setup.cuh"
#include "kernels/sparse/blocks.cuh"
#include "kernels/sparse/pool.cuh"
#include "kernels/sparse/topk.cuh"

extern "C" int32_t sk_k_index_append(const sk_index_append_args *a, const sk_launch *l)
{
    return sk::launch_index_append(a, l);
}

extern "C" int32_t sk_k_block_topk(const sk_block_topk_args *a, const sk_launch *l)
{
    return sk::launch_block_topk(a, l);
}

extern "C" int32_t sk_k_attend_blocks(const sk_attend_blocks_args *a, const sk_launch *l)
{
    if (!sk::listed_matches(a)) return static_cast<int32_t>(cudaErrorInvalidValue);
    return sk::launch_attend_blocks(a, l);
}

extern "C" int32_t sk_setup_sparse(void)
{
    const int32_t rc = sk::allow_shared(sk::attend_listed, sk::kListedShared);
    if (rc != 0) return rc;
    return sk::prefer_shared_all(sk::append_keys, sk::score_blocks, sk::choose_blocks<0>,
                                 sk::choose_blocks<2>, sk::choose_blocks<4>, sk::choose_blocks<16>,
                                 sk::merge_listed);
}
