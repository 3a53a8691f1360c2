/* How attention cuts what it reads, and the scratch that the pieces take. */
#ifndef SK_ATTEND_SIZES_H
#define SK_ATTEND_SIZES_H

#include "kernels/common/size.h"

#define SK_ATTEND_SPLIT       128        // ordinals of a split; part of the numerics
#define SK_ATTEND_DECODE_ROWS 40         // widest pass whose rows are rotated where they are used
#define SK_ATTEND_PART_BYTES  (64 << 20) // splits of the rows of one launch, unless of one row

/* Ordinals of the largest chunk whose cells and everything else fit into an SM. */
SK_SIZE int32_t sk_attend_chunk_cells(int64_t dim)
{
    return dim <= 64 ? 512 : dim <= 128 ? 256 : 128;
}

SK_SIZE int64_t sk_attend_splits(int64_t ordinals)
{
    return (ordinals + SK_ATTEND_SPLIT - 1) / SK_ATTEND_SPLIT;
}

/* Bytes of one row's splits: maximum, sum and product with V of every head. */
SK_SIZE int64_t sk_attend_split_bytes(int64_t heads, int64_t dim, int64_t n_splits)
{
    return heads * n_splits * (dim + 2) * 4;
}

/* The same in whole chunks. The tier decides, not the window, so that the scratch is enough for any
 * window. */
SK_SIZE int64_t sk_attend_row_bytes(int64_t heads, int64_t dim, int32_t ctx_bound)
{
    const int64_t chunk = sk_attend_chunk_cells(dim);
    return sk_attend_split_bytes(heads, dim,
                                 sk_attend_splits((ctx_bound + chunk - 1) / chunk * chunk));
}

/* Rows of one launch when splits go through scratch. */
SK_SIZE int64_t sk_attend_rows_at_once(int64_t rows, int64_t heads, int64_t dim, int32_t ctx_bound)
{
    return sk_rows_at_once(rows, sk_attend_row_bytes(heads, dim, ctx_bound), SK_ATTEND_PART_BYTES);
}

/* Queries of a wide pass, rotated, ahead of the splits. */
SK_SIZE int64_t sk_attend_turned_bytes(int64_t rows, int64_t heads, int64_t dim)
{
    return rows > SK_ATTEND_DECODE_ROWS
               ? (int64_t)sk_work_aligned((uint64_t)(rows * heads * dim * 2))
               : 0;
}

SK_SIZE uint64_t sk_attend_work(int64_t rows, int64_t heads, int64_t dim, int32_t ctx_bound)
{
    const uint64_t turned = (uint64_t)sk_attend_turned_bytes(rows, heads, dim);
    if (ctx_bound <= sk_attend_chunk_cells(dim)) return turned;
    return turned +
           sk_rows_work(rows, sk_attend_row_bytes(heads, dim, ctx_bound), SK_ATTEND_PART_BYTES);
}

#endif
