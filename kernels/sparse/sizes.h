/* Scratch of block_topk and attend_blocks. */
#ifndef SK_SPARSE_SIZES_H
#define SK_SPARSE_SIZES_H

#include "kernels/attend/sizes.h"

#include "op/args.h"

#define SK_SCORE_BYTES  (64 << 20) // scores of the rows of one launch, unless of one row
#define SK_LISTED_BYTES (64 << 20) // splits of the rows of one launch, unless of one row

/* Blocks that a row of the tier may see. */
static inline int64_t sk_blocks_max(const sk_block_topk_args *a, int32_t ctx_bound)
{
    const int64_t bound = ctx_bound / a->ratio;
    return bound < a->pooled.dim[1] ? bound : a->pooled.dim[1];
}

/* Rows whose scores fit into the scratch at once. */
static inline int64_t sk_scored_rows(const sk_block_topk_args *a, int32_t ctx_bound)
{
    const int64_t n = sk_blocks_max(a, ctx_bound), rows = a->q.dim[0];
    return n > 0 ? sk_rows_at_once(rows, 4 * n, SK_SCORE_BYTES) : rows;
}

static inline uint64_t sk_block_topk_work(const sk_block_topk_args *a, int32_t ctx_bound)
{
    const int64_t n = sk_blocks_max(a, ctx_bound);
    if (n <= a->out.dim[1]) return 0; // all blocks are chosen
    return sk_rows_work(a->q.dim[0], 4 * n, SK_SCORE_BYTES);
}

/* Splits of a row: of the blocks it is given and the one it stands in. */
static inline int64_t sk_listed_splits(const sk_attend_blocks_args *a, int32_t ctx_bound)
{
    const int64_t most = (a->blocks.dim[1] + 1) * a->ratio - 1;
    const int64_t n = ctx_bound < most ? ctx_bound : most;
    return n < 1 ? 1 : sk_attend_splits(n);
}

static inline int64_t sk_listed_bytes(const sk_attend_blocks_args *a, int32_t ctx_bound)
{
    return sk_attend_split_bytes(a->q.dim[1], a->q.dim[2], sk_listed_splits(a, ctx_bound));
}

static inline int64_t sk_listed_rows(const sk_attend_blocks_args *a, int32_t ctx_bound)
{
    return sk_rows_at_once(a->q.dim[0], sk_listed_bytes(a, ctx_bound), SK_LISTED_BYTES);
}

static inline uint64_t sk_attend_blocks_work(const sk_attend_blocks_args *a, int32_t ctx_bound)
{
    return sk_rows_work(a->q.dim[0], sk_listed_bytes(a, ctx_bound), SK_LISTED_BYTES);
}

#endif
