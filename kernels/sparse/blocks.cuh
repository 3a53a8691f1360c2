/* Attention over the positions of a row's blocks, then those behind its whole blocks: the chunks of
 * kernels/attend with one split each, whose cells are found through the list. The arithmetic is
 * that of a chunk whose rows are in the caches, so that all blocks give the bits of attend; splits
 * go through the step's scratch and are merged by a launch of their own, which applies the gate. */
#pragma once

#include "kernels/attend/chunk.cuh"
#include "kernels/sparse/sizes.h"

namespace sk
{

struct blocks_task {
    attend_task t; // cells is kSplit, window 0; sums and o lie in the scratch
    const int32_t *blocks;
    int64_t block_step;          // of a row, in elements
    head_rows<const float> gate; // p NULL: none
    int32_t n_blocks;            // K
    int32_t ratio;
};

/* How a row's ordinals become positions. */
struct block_span {
    int32_t slot, pos;
    int32_t listed; // ordinals in blocks
    int32_t tail;   // first position behind the whole blocks
    int32_t n;      // ordinals in all; 0: a row that does not live
};

/* All threads of the CTA. */
__device__ inline block_span block_span_of(const blocks_task &b, int32_t row)
{
    block_span s = {0, 0, 0, 0, 0};
    const row_words w = words_of(b.t, row);
    if (row >= w.count || row >= b.t.capacity) return s;
    const int32_t *list = b.blocks + row * b.block_step;
    int32_t n = 0;
    for (int32_t at = 0; at < b.n_blocks; at += static_cast<int32_t>(blockDim.x)) {
        const int32_t i = at + static_cast<int32_t>(threadIdx.x);
        const int32_t here = __syncthreads_count(i < b.n_blocks && list[i] >= 0);
        n += here;
        if (here < static_cast<int32_t>(blockDim.x)) break;
    }
    s.slot = w.slot;
    s.pos = w.pos;
    s.listed = n * b.ratio;
    s.tail = static_cast<int32_t>((static_cast<int64_t>(w.pos) + 1) / b.ratio) * b.ratio;
    s.n = s.listed + w.pos + 1 - s.tail;
    return s;
}

/* Positions of the ordinals base .. of the CTA's split. */
__device__ inline void find_positions(const blocks_task &b, const block_span &s, int32_t row,
                                      int32_t base, int32_t here, int32_t *position)
{
    const int32_t *list = b.blocks + row * b.block_step;
    const int32_t i = static_cast<int32_t>(threadIdx.x);
    const int32_t ordinal = base + i;
    if (i >= here) return;
    const int32_t block = ordinal / b.ratio;
    position[i] = ordinal < s.listed ? list[block] * b.ratio + (ordinal - block * b.ratio)
                                     : s.tail + (ordinal - s.listed);
}

/* load_cells through the list. */
__device__ inline void load_listed(const attend_task &t, const attend_shared &m, int32_t slot,
                                   int32_t here, const int32_t *position)
{
    const int32_t pieces = t.form.dim / 8;
    const int32_t next_cell = kAttendThreads / pieces;
    const int32_t next_piece = kAttendThreads % pieces;
    const int32_t end = (here + 15) / 16 * 16;
#pragma unroll 1
    for (int which = 0; which < 2; which++) {
        const cache_rows &cache = which == 0 ? t.k_cache : t.v_cache;
        bf16 *cells = which == 0 ? m.k : m.v;
        const bf16 *from = cell_of(cache, slot, 0);
        int32_t cell = static_cast<int32_t>(threadIdx.x) / pieces;
        int32_t piece = static_cast<int32_t>(threadIdx.x) % pieces;
#pragma unroll 1
        while (cell < end) {
            bf16 *to = cells + cell * (t.form.dim + kPad) + piece * 8;
            if (cell < here)
                copy16(to, from + position[cell] * cache.pos + piece * 8);
            else
                *reinterpret_cast<uint4 *>(to) = make_uint4(0, 0, 0, 0);
            cell += next_cell;
            piece += next_piece;
            if (piece >= pieces) {
                piece -= pieces;
                cell++;
            }
        }
        copies_close();
    }
}

/* Grid: rows, key heads, splits. */
__global__ void __launch_bounds__(kAttendThreads, kResident) attend_listed(const blocks_task b)
{
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ int32_t position[kSplit];
    const attend_task &t = b.t;
    const attend_shared m = shared_of(memory, t.shared);
    const lane_places places = places_of(t);
    const int32_t row = t.first + static_cast<int32_t>(blockIdx.x);
    edge_wait();
    edge_open();
    const block_span of = block_span_of(b, row);
    row_span s = {row, of.slot, of.pos, 0, 0, of.n, static_cast<int32_t>(blockIdx.z) * kSplit,
                  0,   0};
    s.here = clamped(of.n - s.base, kSplit);
    s.old = s.here;
    if (s.here == 0) return;
    find_positions(b, of, row, s.base, s.here, position);
    __syncthreads();
    load_listed(t, m, s.slot, s.here, position);
#pragma unroll 1
    for (int32_t head0 = 0; head0 < t.group; head0 += kCols) {
        fill_turned(t, m, s, head0);
        attend_heads(t, m, s, places, head0, false);
    }
}

/* One CTA a (row, query head). */
__global__ void __launch_bounds__(kMergeThreads) merge_listed(const blocks_task b)
{
    const attend_task &t = b.t;
    const int32_t row = t.first + static_cast<int32_t>(blockIdx.x);
    const int32_t head = static_cast<int32_t>(blockIdx.y);
    const int32_t pair = static_cast<int32_t>(threadIdx.x);
    edge_wait();
    edge_open();
    const block_span s = block_span_of(b, row);
    if (s.n == 0 || pair >= t.form.dim / 2) return;
    const split_parts parts = parts_in_work(t, row, gridDim.y, head, 0);
    float2 y = merge_splits<8>(parts.sums, parts.sums_split, parts.o + 2 * pair, parts.o_split,
                               (s.n + kSplit - 1) / kSplit);
    if (b.gate.p) {
        const float *gate = b.gate.p + row * b.gate.row + head * b.gate.head + 2 * pair;
        y.x = __fdiv_rn(y.x, __fadd_rn(1.0f, expf(-gate[0])));
        y.y = __fdiv_rn(y.y, __fadd_rn(1.0f, expf(-gate[1])));
    }
    bf16 *out = t.out.p + row * t.out.row + head * t.out.head + 2 * pair;
    *reinterpret_cast<uint32_t *>(out) = bf16_pair(y.x, y.y);
}

/* ---- launching ------------------------------------------------------------------------------- */

constexpr int32_t kListedShared = 227 * 1024;

inline bool lies_on(const sk_view &v, int64_t bytes)
{
    int64_t all = static_cast<int64_t>(reinterpret_cast<uintptr_t>(v.p));
    for (int d = 0; d < v.rank - 1; d++) all |= v.stride[d];
    return all % bytes == 0;
}

inline bool listed_matches(const sk_attend_blocks_args *a)
{
    const int64_t dim = a->q.dim[2];
    return dim >= 16 && dim <= kDimMax && dim % 16 == 0 && a->split == kSplit &&
           a->q.dtype == SK_BF16 && lies_on(a->k_cache, 16) && lies_on(a->v_cache, 16) &&
           lies_on(a->out, 4) && lies_on(a->q, 4) && lies_on(a->rows, 4);
}

inline blocks_task blocks_task_of(const sk_attend_blocks_args *a, const sk_launch *l, int64_t step)
{
    blocks_task b = {};
    attend_task &t = b.t;
    t = task_of_args(a);
    t.turned = heads_at<const bf16>(a->q);
    t.cells = kSplit;
    t.n_splits = static_cast<int32_t>(sk_listed_splits(a, l->ctx_bound));
    t.sums = reinterpret_cast<float2 *>(l->work);
    t.o = reinterpret_cast<float *>(t.sums + step * a->q.dim[1] * t.n_splits);
    t.shared = map_shared(t.form.dim, kSplit, 0, 0);
    b.blocks = ptr<const int32_t>(a->blocks);
    b.block_step = step_of<int32_t>(a->blocks, 0);
    if (sk_view_present(&a->gate)) b.gate = heads_at<const float>(a->gate);
    b.n_blocks = static_cast<int32_t>(a->blocks.dim[1]);
    b.ratio = a->ratio;
    return b;
}

/* As many rows at a time as there is scratch for their splits. */
inline int32_t launch_attend_blocks(const sk_attend_blocks_args *a, const sk_launch *l)
{
    const int64_t rows = a->q.dim[0], step = sk_listed_rows(a, l->ctx_bound);
    blocks_task b = blocks_task_of(a, l, step);
    const auto shared = static_cast<size_t>(b.t.shared.bytes);
    int32_t rc = 0;
    for (int64_t row = 0; row < rows && rc == 0; row += step) {
        const auto n = static_cast<unsigned>(rows - row < step ? rows - row : step);
        const dim3 splits(n, static_cast<unsigned>(a->k_cache.dim[2]),
                          static_cast<unsigned>(b.t.n_splits));
        const dim3 heads(n, static_cast<unsigned>(a->q.dim[1]));
        b.t.first = static_cast<int32_t>(row);
        rc = launch(l, attend_listed, splits, dim3(kAttendThreads), shared, b);
        if (rc == 0) rc = launch(l, merge_listed, heads, dim3(kMergeThreads), 0, b);
    }
    return rc;
}

} // namespace sk
