/* Attention over the positions of a row's blocks, then those behind its whole blocks. A CTA has one
 * split of a row's ordinals, whose cells it finds through the list, and up to 16 query heads of a
 * key head. The arithmetic is that of a chunk of kernels/attend, so that all blocks give the bits
 * of attend; splits go through the step's scratch and are merged by a launch of their own, which
 * applies the gate.
 *
 * Two CTAs fit into a multiprocessor, so that one computes while the other's cells are on their
 * way. For that V shares a ring with K: its first cells lie behind those of K, the others come to
 * where K was as soon as all scores are there. */
#pragma once

#include "kernels/attend/chunk.cuh"
#include "kernels/sparse/divisor.cuh"
#include "kernels/sparse/sizes.h"

namespace sk
{

constexpr int32_t kListedCols = 2 * kCols; // query heads of a CTA

struct blocks_task {
    attend_task t; // cells is kSplit, window 0; sums and o lie in the scratch
    const int32_t *blocks;
    int64_t block_step;          // of a row, in elements
    head_rows<const float> gate; // p NULL: none
    int32_t n_blocks;            // K
    divisor ratio;
    int32_t n_heads;
    int32_t batches; // of query heads, of a key head
    int32_t ahead;   // cells of V that have a place of their own; a multiple of 16
};

/* Where a cell of V lies in the ring. */
__device__ inline int32_t ring_of(const blocks_task &b, int32_t cell)
{
    return cell < b.ahead ? kSplit + cell : cell - b.ahead;
}

/* The CTA's shared memory. */
struct listed_shared {
    bf16 *cells;  // [kSplit + ahead, dim + kPad]
    bf16 *q;      // [kListedCols, dim + kPad]
    bf16 *p;      // [kListedCols, kSplit + kPad]
    float *score; // [kListedCols, kSplit + kScorePad]
};

__device__ inline listed_shared listed_shared_of(uint8_t *base, const blocks_task &b)
{
    const int32_t pitch = b.t.form.dim + kPad;
    listed_shared m;
    m.cells = reinterpret_cast<bf16 *>(base);
    m.q = m.cells + (kSplit + b.ahead) * pitch;
    m.p = m.q + kListedCols * pitch;
    m.score = reinterpret_cast<float *>(m.p + kListedCols * (kSplit + kPad));
    return m;
}

/* What a CTA does: `here` ordinals of its row. */
struct listed_span {
    int32_t slot;
    int32_t here;
    bool live;
};

/* What a thread reads of its row, all at once: the table, its entry of the list (`own`), and that
 * in which its ordinal of the split lies. */
struct listed_words {
    row_words row;
    int32_t own;
    uint32_t entry, within;
};

__device__ inline listed_words load_list(const blocks_task &b, const int32_t *list, int32_t row)
{
    const int32_t i = static_cast<int32_t>(threadIdx.x);
    const uint32_t ordinal = blockIdx.z * kSplit + threadIdx.x;
    const uint32_t block = divided(ordinal, b.ratio);
    listed_words w;
    w.row = words_of(b.t, row);
    w.own = i < b.n_blocks ? list[i] : -1;
    w.entry = i < kSplit && block < static_cast<uint32_t>(b.n_blocks)
                  ? static_cast<uint32_t>(list[block])
                  : 0;
    w.within = ordinal - block * b.ratio.by;
    return w;
}

/* All threads of the CTA. `position`, of [kSplit], has where the split's ordinals are. */
__device__ inline listed_span find_listed(const blocks_task &b, const listed_words &w,
                                          const int32_t *list, int32_t row, int32_t *position)
{
    const int32_t i = static_cast<int32_t>(threadIdx.x);
    if (i < kSplit) position[i] = static_cast<int32_t>(w.entry * b.ratio.by + w.within);
    int32_t n = __syncthreads_count(w.own >= 0);
#pragma unroll 1
    for (int32_t at = kAttendThreads; at < b.n_blocks && n == at; at += kAttendThreads)
        n += __syncthreads_count(at + i < b.n_blocks && list[at + i] >= 0);
    const uint32_t seen = static_cast<uint32_t>(w.row.pos) + 1;
    const int32_t tail = static_cast<int32_t>(divided(seen, b.ratio) * b.ratio.by);
    const int32_t listed = n * static_cast<int32_t>(b.ratio.by) -
                           static_cast<int32_t>(blockIdx.z) * kSplit; // of the split, and behind it
    listed_span s;
    s.slot = w.row.slot;
    s.live = row < w.row.count;
    s.here = s.live ? clamped(listed + static_cast<int32_t>(seen) - tail, kSplit) : 0;
    if (listed < s.here) { // as a rule in one split only
        if (i >= listed && i < s.here) position[i] = tail + i - listed;
        __syncthreads();
    }
    return s;
}

/* Rotated queries, on their way as soon as the step before has ended: they depend on no table. */
__device__ inline void load_queries(const blocks_task &b, const listed_shared &m, int32_t row,
                                    int32_t head, int32_t n_q)
{
    const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32;
    if (warp < n_q) {
        const bf16 *from = b.t.turned.p + row * b.t.turned.row + (head + warp) * b.t.turned.head;
        bf16 *to = m.q + warp * (b.t.form.dim + kPad);
#pragma unroll 1
        for (int32_t i = static_cast<int32_t>(threadIdx.x) % 32 * 2; i < b.t.form.dim; i += 64)
            copy4(reinterpret_cast<float *>(to + i), reinterpret_cast<const float *>(from + i));
    }
    copies_close();
}

/* Cells first .. end-1 of the split, from a cache. A warp has a cell; instructions are few, as all
 * cells together take a good part of the CTA's. */
__device__ inline void load_listed(const attend_task &t, const cache_rows &cache, int32_t slot,
                                   int32_t kv, const int32_t *position, bf16 *to, int32_t first,
                                   int32_t end)
{
    constexpr int32_t kAtOnce = 4;
    const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32;
    const int32_t lane_at = static_cast<int32_t>(threadIdx.x) % 32 * 8;
    const uint8_t *from =
        reinterpret_cast<const uint8_t *>(cache.p + slot * cache.slot + kv * cache.head + lane_at);
    const uint32_t step = static_cast<uint32_t>(cache.pos) * 2;
    const int32_t pitch = kAttendWarps * (t.form.dim + kPad);
    bf16 *at = to + warp * (t.form.dim + kPad) + lane_at;
    if (lane_at >= t.form.dim) end = first;
#pragma unroll 1
    for (int32_t cell = first + warp; cell < end; cell += kAtOnce * kAttendWarps) {
        uint32_t where[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; j++)
            where[j] = static_cast<uint32_t>(position[(cell + j * kAttendWarps) % kSplit]);
#pragma unroll
        for (int j = 0; j < kAtOnce; j++) {
            if (cell + j * kAttendWarps < end)
                copy16(at, reinterpret_cast<const bf16 *>(from + uint64_t{where[j]} * step));
            at += pitch;
        }
    }
    copies_close();
}

/* Nothing behind the last cell: V there is multiplied by zeros. The scores of such cells are not
 * looked at. */
__device__ inline void clear_behind(const blocks_task &b, const listed_shared &m, int32_t here,
                                    int32_t end)
{
    const int32_t pitch = b.t.form.dim + kPad;
    const int32_t cell = here + static_cast<int32_t>(threadIdx.x) / 32;
    const int32_t lane_at = static_cast<int32_t>(threadIdx.x) % 32 * 8;
    if (cell < end && lane_at < b.t.form.dim)
        *reinterpret_cast<uint4 *>(m.cells + ring_of(b, cell) * pitch + lane_at) =
            make_uint4(0, 0, 0, 0);
}

/* score[head][cell] = scale * (q . k). Eight tiles of cells, two of heads: one for each warp. */
__device__ inline void score_listed(const blocks_task &b, const listed_shared &m, int32_t here,
                                    int32_t n_q)
{
    static_assert(kAttendWarps == kSplit / 16 * (kListedCols / kCols), "a tile for each warp");
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    const int32_t tile = static_cast<int32_t>(threadIdx.x) / 32 % (kSplit / 16);
    const int32_t head = static_cast<int32_t>(threadIdx.x) / 32 / (kSplit / 16) * kCols;
    const int32_t pitch = b.t.form.dim + kPad, score_pitch = kSplit + kScorePad;
    if (tile * 16 >= here || head >= n_q) return;
    const bf16 *k = m.cells + (tile * 16 + lane % 16) * pitch + lane / 16 * 8;
    const bf16 *q = m.q + (head + lane / 4) * pitch + lane % 4 * 2;
    float *to = m.score + (head + lane % 4 * 2) * score_pitch + tile * 16 + lane / 4;
    float c[4] = {0, 0, 0, 0};
#pragma unroll 4
    for (int32_t i = 0; i < b.t.form.dim; i += 16)
        multiply(c, load_tiles(k + i), load_columns(q + i, head + lane / 4 < n_q));
    to[0] = c[0] * b.t.scale;
    to[8] = c[2] * b.t.scale;
    to[score_pitch] = c[1] * b.t.scale;
    to[score_pitch + 8] = c[3] * b.t.scale;
}

/* Maximum and sum of each head, a warp for each. */
__device__ inline void soften_listed(const listed_shared &m, const split_parts &parts, int32_t here,
                                     int32_t n_q)
{
    static_assert(kAttendWarps == kListedCols, "a head for each warp");
    const int32_t head = static_cast<int32_t>(threadIdx.x) / 32;
    if (head >= n_q) return;
    float2 sums = soften(m.score + head * (kSplit + kScorePad), m.p + head * (kSplit + kPad), here);
    sums.y = warp_sum(sums.y);
    if (threadIdx.x % 32 == 0) parts.sums[head * parts.sums_head] = sums;
}

/* o[head][16 dimensions] of a warp, all heads. */
__device__ inline void weigh_listed(const blocks_task &b, const listed_shared &m,
                                    const split_parts &parts, int32_t here, int32_t n_q)
{
    static_assert(kAttendWarps * 16 >= kDimMax, "each warp has at most 16 dimensions");
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    const int32_t at = static_cast<int32_t>(threadIdx.x) / 32 * 16;
    const int32_t pitch = b.t.form.dim + kPad, p_pitch = kSplit + kPad;
    if (at >= b.t.form.dim) return;
    const bf16 *v = m.cells + (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 8 + at;
    const bf16 *p = m.p + lane / 4 * p_pitch + lane % 4 * 2;
    float c[2][4] = {};
#pragma unroll 4
    for (int32_t i = 0; i < here; i += 16) {
        const frag_a cells = load_tiles_turned(v + ring_of(b, i) * pitch);
        multiply(c[0], cells, load_columns(p + i, lane / 4 < n_q));
        multiply(c[1], cells, load_columns(p + kCols * p_pitch + i, kCols + lane / 4 < n_q));
    }
    float *o = parts.o + at + lane / 4;
#pragma unroll
    for (int j = 0; j < 4; j++) { // of a head, and of its neighbour
        const int32_t head = j / 2 * kCols + lane % 4 * 2 + j % 2;
        if (head >= n_q) continue;
        o[head * parts.o_head] = c[j / 2][j % 2];
        o[head * parts.o_head + 8] = c[j / 2][j % 2 + 2];
    }
}

/* Grid: rows, batches of the query heads of all key heads, splits. A split without ordinals says so
 * by a sum of zero, which no other has. */
__global__ void __launch_bounds__(kAttendThreads, kResident) attend_listed(const blocks_task b)
{
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ int32_t position[kSplit];
    const attend_task &t = b.t;
    const listed_shared m = listed_shared_of(memory, b);
    const int32_t thread = static_cast<int32_t>(threadIdx.x);
    const int32_t row = t.first + static_cast<int32_t>(blockIdx.x);
    const int32_t kv = b.batches == 1 ? static_cast<int32_t>(blockIdx.y)
                                      : static_cast<int32_t>(blockIdx.y) / b.batches;
    const int32_t head0 = (static_cast<int32_t>(blockIdx.y) - kv * b.batches) * kListedCols;
    const int32_t head = kv * t.group + head0, n_q = clamped(t.group - head0, kListedCols);
    const split_parts parts =
        parts_in_work(t, row, b.n_heads, head, static_cast<int32_t>(blockIdx.z));
    const int32_t *list = b.blocks + row * b.block_step;
    edge_wait();
    edge_open();
    const listed_words words = load_list(b, list, row);
    load_queries(b, m, row, head, n_q);
    const listed_span s = find_listed(b, words, list, row, position);
    const int32_t here = s.here, end = (here + 15) / 16 * 16;
    const int32_t ahead = here < b.ahead ? here : b.ahead;
    if (here == 0) {
        if (s.live && thread < n_q)
            parts.sums[thread * parts.sums_head] = make_float2(-__int_as_float(0x7f800000), 0.0f);
        copies_wait<0>(); // nothing may arrive in shared memory that is someone else's by then
        return;
    }
    load_listed(t, t.k_cache, s.slot, kv, position, m.cells, 0, here);
    load_listed(t, t.v_cache, s.slot, kv, position, m.cells + kSplit * (t.form.dim + kPad), 0,
                ahead);
    copies_wait<1>(); // q and K
    __syncthreads();
    score_listed(b, m, here, n_q);
    __syncthreads();
    load_listed(t, t.v_cache, s.slot, kv, position, m.cells, ahead, here);
    clear_behind(b, m, here, end);
    soften_listed(m, parts, here, n_q);
    copies_wait<0>();
    __syncthreads();
    weigh_listed(b, m, parts, here, n_q);
}

constexpr int32_t kTogether = 20; // splits whose loads are in flight at a time

/* What a thread has of kTogether splits: a pair of dimensions of all, and as a lane the sums of
 * one. */
struct some_splits {
    float2 sums;
    float2 part[kTogether];
};

__device__ inline float2 sums_or_none(const float2 *sums, int32_t i, int32_t n)
{
    return i < n ? sums[i] : make_float2(-__int_as_float(0x7f800000), 0.0f);
}

__device__ inline some_splits load_splits(const split_parts &parts, int32_t pair, int32_t from,
                                          int32_t n, int32_t n_pairs)
{
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    const int32_t left = n - from, mine = pair < n_pairs ? left : 0;
    const float *o = parts.o + from * parts.o_split + 2 * pair;
    some_splits s;
    s.sums = sums_or_none(parts.sums + from, lane, left < kTogether ? left : kTogether);
#pragma unroll
    for (int i = 0; i < kTogether; i++) {
        s.part[i] = make_float2(0, 0);
        if (i < mine) s.part[i] = *reinterpret_cast<const float2 *>(o);
        o += parts.o_split;
    }
    return s;
}

/* One CTA a (row, query head), a thread a pair of dimensions. The additions of merge_splits; which
 * splits there are is seen in their sums, so that everything is loaded at once. */
__global__ void __launch_bounds__(kMergeThreads) merge_listed(const blocks_task b)
{
    const attend_task &t = b.t;
    const int32_t row = t.first + static_cast<int32_t>(blockIdx.x);
    const int32_t head = static_cast<int32_t>(blockIdx.y);
    const int32_t pair = static_cast<int32_t>(threadIdx.x);
    const int32_t lane = pair % 32, n_pairs = t.form.dim / 2;
    const split_parts parts = parts_in_work(t, row, b.n_heads, head, 0);
    const float *at = b.gate.p + row * b.gate.row + head * b.gate.head + 2 * pair;
    float2 gate = make_float2(0, 0), y = make_float2(0, 0);
    float total = 0;
    edge_wait();
    edge_open();
    const int32_t count = *t.count;
    if (b.gate.p && pair < n_pairs) gate = make_float2(at[0], at[1]);
    some_splits s = load_splits(parts, pair, 0, t.n_splits, n_pairs);
    float top = s.sums.x;
#pragma unroll 1
    for (int32_t i = kTogether + lane; i < t.n_splits; i += 32) top = fmaxf(top, parts.sums[i].x);
    top = warp_max(top);
    for (int32_t from = 0;;) {
        const float own = expf(s.sums.x - top);
#pragma unroll
        for (int i = 0; i < kTogether; i++) {
            const float weight = __shfl_sync(0xffffffffu, own, i);
            const float sum = __shfl_sync(0xffffffffu, s.sums.y, i);
            if (sum == 0) continue; // no such split
            total = fmaf(sum, weight, total);
            y.x = fmaf(s.part[i].x, weight, y.x);
            y.y = fmaf(s.part[i].y, weight, y.y);
        }
        from += kTogether;
        if (from >= t.n_splits) break;
        s = load_splits(parts, pair, from, t.n_splits, n_pairs);
    }
    if (row >= count || total == 0 || pair >= n_pairs) return;
    y = make_float2(__fdiv_rn(y.x, total), __fdiv_rn(y.y, total));
    if (b.gate.p) {
        y.x = __fdiv_rn(y.x, __fadd_rn(1.0f, expf(-gate.x)));
        y.y = __fdiv_rn(y.y, __fadd_rn(1.0f, expf(-gate.y)));
    }
    bf16 *out = t.out.p + row * t.out.row + head * t.out.head + 2 * pair;
    *reinterpret_cast<uint32_t *>(out) = bf16_pair(y.x, y.y);
}

/* ---- launching ------------------------------------------------------------------------------- */

constexpr int32_t kListedShared = 112 * 1024; // half of a multiprocessor's, `position` apart
constexpr int32_t kListedFixed = kListedCols * ((kSplit + kPad) * 2 + (kSplit + kScorePad) * 4);

/* Cells of V that fit behind those of K. */
inline int32_t listed_ahead(int32_t dim)
{
    const int32_t cells = (kListedShared - kListedFixed) / ((dim + kPad) * 2) - kListedCols;
    const int32_t ahead = (cells - kSplit) / 16 * 16;
    return ahead < kSplit ? ahead : kSplit;
}

inline size_t listed_shared_bytes(int32_t dim, int32_t ahead)
{
    return static_cast<size_t>(kListedFixed + (kSplit + ahead + kListedCols) * (dim + kPad) * 2);
}

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
           lies_on(a->out, 4) && lies_on(a->q, 4) && lies_on(a->rows, 4) &&
           a->k_cache.stride[1] <= UINT32_MAX && a->v_cache.stride[1] <= UINT32_MAX;
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
    b.blocks = ptr<const int32_t>(a->blocks);
    b.block_step = step_of<int32_t>(a->blocks, 0);
    if (sk_view_present(&a->gate)) b.gate = heads_at<const float>(a->gate);
    b.n_blocks = static_cast<int32_t>(a->blocks.dim[1]);
    b.ratio = divisor_of(a->ratio);
    b.n_heads = static_cast<int32_t>(a->q.dim[1]);
    b.batches = (t.group + kListedCols - 1) / kListedCols;
    b.ahead = listed_ahead(t.form.dim);
    return b;
}

/* As many rows at a time as there is scratch for their splits. */
inline int32_t launch_attend_blocks(const sk_attend_blocks_args *a, const sk_launch *l)
{
    const int64_t rows = a->q.dim[0], step = sk_listed_rows(a, l->ctx_bound);
    blocks_task b = blocks_task_of(a, l, step);
    const size_t shared = listed_shared_bytes(b.t.form.dim, b.ahead);
    const dim3 pairs(static_cast<unsigned>((b.t.form.dim / 2 + 31) / 32 * 32));
    int32_t rc = 0;
    for (int64_t row = 0; row < rows && rc == 0; row += step) {
        const auto n = static_cast<unsigned>(rows - row < step ? rows - row : step);
        const dim3 splits(n, static_cast<unsigned>(a->k_cache.dim[2] * b.batches),
                          static_cast<unsigned>(b.t.n_splits));
        const dim3 heads(n, static_cast<unsigned>(a->q.dim[1]));
        b.t.first = static_cast<int32_t>(row);
        rc = launch(l, attend_listed, splits, dim3(kAttendThreads), shared, b);
        if (rc == 0) rc = launch(l, merge_listed, heads, pairs, 0, b);
    }
    return rc;
}

} // namespace sk
