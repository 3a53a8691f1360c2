/* Attention of one row, the query heads of one key head, over one chunk of its ordinals: a CTA.
 *
 * Cells of the chunk lie in shared memory. Scores, softmax and the product with V run in units
 * (16 cells; a head's split; 16 dimensions of a split) that warps take in turn, and no unit's
 * arithmetic depends on which warp has it or on what else is there: see docs/numerics.md.
 *
 * Two instances. kFresh: the rows of this pass come from the projections, are rotated here, and the
 * CTA that has the row's own cell appends it; all that is older is fetched ahead of the dependency
 * wait. Otherwise the caches have everything and q is rotated. */
#pragma once

#include "kernels/attend/fill.cuh"
#include "kernels/attend/merge.cuh"

namespace sk
{

/* ---- the three products of a split ----------------------------------------------------------- */

/* What a lane reads and writes, counted in elements from the start of each area: its row of a tile
 * of K or V, its column of q and p, its place in the products. */
struct lane_places {
    int32_t k, v, q, p, score;
};

__device__ inline lane_places places_of(const attend_task &t)
{
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32;
    const int32_t pitch = t.form.dim + kPad;
    lane_places l;
    l.k = (warp * 16 + lane % 16) * pitch + lane / 16 * 8;
    l.v = (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 8;
    l.q = lane / 4 * pitch + lane % 4 * 2;
    l.p = lane / 4 * (t.cells + kPad) + lane % 4 * 2;
    l.score = lane % 4 * 2 * (t.cells + kScorePad) + warp * 16 + lane / 4;
    // Worked out here, ahead of the wait, and not where it is needed.
    asm volatile("" : "+r"(l.k), "+r"(l.v), "+r"(l.q), "+r"(l.p), "+r"(l.score));
    return l;
}

/* score[head][cell] = scale * (q . k) */
__device__ inline void score_cells(const attend_task &t, const attend_shared &m,
                                   const lane_places &l, int32_t here, int32_t n_q)
{
    const bool used = static_cast<int32_t>(threadIdx.x) % 32 / 4 < n_q;
    const bf16 *q = m.q + l.q;
    const bf16 *k = m.k + l.k;
    float *to = m.score + l.score;
#pragma unroll 1
    for (int32_t cell = static_cast<int32_t>(threadIdx.x) / 32 * 16; cell < here;
         cell += kAttendWarps * 16) {
        float *next = to + t.cells + kScorePad;
        float c[4] = {0, 0, 0, 0};
#pragma unroll 4
        for (int32_t i = 0; i < t.form.dim; i += 16)
            multiply(c, load_tiles(k + i), load_columns(q + i, used));
        to[0] = c[0] * t.scale;
        to[8] = c[2] * t.scale;
        next[0] = c[1] * t.scale;
        next[8] = c[3] * t.scale;
        k += kAttendWarps * 16 * (t.form.dim + kPad);
        to += kAttendWarps * 16;
    }
}

/* Largest of the warp; order of the bits as a signed integer, with negative numbers turned round.
 */
__device__ inline float warp_max(float x)
{
    const int32_t bits = __float_as_int(x);
    const int32_t top = __reduce_max_sync(0xffffffffu, bits ^ (bits >> 31 & 0x7fffffff));
    return __int_as_float(top ^ (top >> 31 & 0x7fffffff));
}

__device__ inline float warp_sum(float x)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* One split of one head: p = exp(score - maximum), rounded for the product; {maximum, the lane's
 * part of the sum of p}. */
__device__ inline float2 soften(const float *score, bf16 *p, int32_t here)
{
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    float x[kSplit / 32];
    const float lowest = -__int_as_float(0x7f800000);
    float top = lowest;
#pragma unroll
    for (int i = 0; i < kSplit / 32; i++) {
        x[i] = lane + 32 * i < here ? score[lane + 32 * i] : lowest;
        top = fmaxf(top, x[i]);
    }
    top = warp_max(top);
#pragma unroll
    for (int i = 0; i < kSplit / 32; i++) {
        x[i] = expf(x[i] - top); // zero behind the last cell
        p[lane + 32 * i] = to_bf16(x[i]);
    }
    return make_float2(top, (x[0] + x[1]) + (x[2] + x[3]));
}

__device__ inline void soften_splits(const attend_task &t, const attend_shared &m,
                                     const split_parts &parts, int32_t here, int32_t n_q)
{
    const int32_t shift = 32 - __clz(n_q - 1); // heads of a split, to a power of two
    const int32_t n_splits = (here + kSplit - 1) / kSplit;
#pragma unroll 1
    for (int32_t u = static_cast<int32_t>(threadIdx.x) / 32; u >> shift < n_splits;
         u += kAttendWarps) {
        const int32_t split = u >> shift;
        const int32_t head = u - (split << shift);
        if (head >= n_q) continue;
        const int32_t from = split * kSplit;
        float2 sums = soften(m.score + head * (t.cells + kScorePad) + from,
                             m.p + head * (t.cells + kPad) + from, here - from);
        sums.y = warp_sum(sums.y);
        if (threadIdx.x % 32 == 0)
            parts.sums[split * parts.sums_split + head * parts.sums_head] = sums;
    }
}

/* o[split][head][16 dimensions] of one unit; v and p are the lane's, o is the unit's. */
__device__ inline void weigh_unit(const bf16 *v, const bf16 *p, float *o, int32_t o_head,
                                  int32_t pitch, int32_t n, int32_t n_q)
{
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    const int32_t col = lane % 4 * 2;
    float c[4] = {0, 0, 0, 0};
#pragma unroll 4
    for (int32_t i = 0; i < n; i += 16) {
        multiply(c, load_tiles_turned(v), load_columns(p + i, lane / 4 < n_q));
        v += 16 * pitch;
    }
    o += col * o_head + lane / 4;
    if (col < n_q) {
        o[0] = c[0];
        o[8] = c[2];
    }
    if (col + 1 < n_q) {
        o[o_head] = c[1];
        o[o_head + 8] = c[3];
    }
}

__device__ inline void weigh_splits(const attend_task &t, const attend_shared &m,
                                    const lane_places &l, const split_parts &parts, int32_t here,
                                    int32_t n_q)
{
    const int32_t pitch = t.form.dim + kPad;
    const bf16 *v = m.v + l.v;
    const bf16 *p = m.p + l.p;
    int32_t at = static_cast<int32_t>(threadIdx.x) / 32 * 16; // dimension
#pragma unroll 1
    for (int32_t from = 0, split = 0; from < here; from += kSplit, split++) {
        const int32_t n = here - from < kSplit ? here - from : kSplit;
#pragma unroll 1
        for (; at < t.form.dim; at += kAttendWarps * 16)
            weigh_unit(v + from * pitch + at, p + from, parts.o + split * parts.o_split + at,
                       parts.o_head, pitch, n, n_q);
        at -= t.form.dim;
    }
}

/* A warp takes 64 dimensions of a head. */
__device__ inline void merge_here(const attend_task &t, const split_parts &parts, const row_span &s,
                                  int32_t head0, int32_t n_q)
{
    const int32_t blocks = t.form.dim <= 64 ? 0 : t.form.dim <= 128 ? 1 : 2; // log2
    const int32_t head = static_cast<int32_t>(blockIdx.y) * t.group + head0;
    bf16 *out = t.out.p + s.row * t.out.row + head * t.out.head;
#pragma unroll 1
    for (int32_t u = static_cast<int32_t>(threadIdx.x) / 32; u >> blocks < n_q; u += kAttendWarps) {
        const int32_t i = u >> blocks;
        const int32_t block = u - (i << blocks);
        const int32_t pair = block * 32 + static_cast<int32_t>(threadIdx.x) % 32;
        if (pair < t.form.dim / 2)
            merge_into<1>(out + i * t.out.head, parts, i, pair, (s.n + kSplit - 1) / kSplit);
    }
}

constexpr int32_t kResident = 2; // half of an SM's registers, so that the next step finds room

/* ---- the CTA --------------------------------------------------------------------------------- */

/* Where the splits of heads head0 .. go. */
__device__ inline split_parts parts_of(const attend_task &t, const attend_shared &m,
                                       const row_span &s, int32_t head0)
{
    const int32_t o_head = t.form.dim + kScorePad;
    if (t.sums)
        return parts_in_work(t, s.row, static_cast<int64_t>(gridDim.y) * t.group,
                             static_cast<int32_t>(blockIdx.y) * t.group + head0, s.base / kSplit);
    return {m.sums, m.o, kCols, 1, kCols * o_head, o_head};
}

/* Up to kCols query heads that lie in shared memory, as soon as every warp is done with its part.
 * The barriers also keep one round apart from the next: whatever is overwritten there was last read
 * two barriers earlier. */
__device__ inline void attend_heads(const attend_task &t, const attend_shared &m, const row_span &s,
                                    const lane_places &l, int32_t head0, bool append)
{
    const int32_t n_q = heads_of(t, head0);
    const split_parts parts = parts_of(t, m, s, head0);
    copies_wait<1>(); // K; V has time until it is multiplied
    __syncthreads();
    score_cells(t, m, l, s.here, n_q);
    __syncthreads();
    soften_splits(t, m, parts, s.here, n_q);
    if (append && threadIdx.x / 32 == kAttendWarps - 1) append_own(t, m, s);
    copies_wait<0>();
    __syncthreads();
    weigh_splits(t, m, l, parts, s.here, n_q);
    if (t.sums) return;
    __syncthreads();
    merge_here(t, parts, s, head0, n_q);
}

/* Everything that does not depend on the step before. */
template <bool kFresh>
__device__ inline void prepare(const attend_task &t, const attend_shared &m, const row_span &s,
                               float freq)
{
    if (s.here == 0) return;
    load_cells(t, m, s);
    if (!kFresh) return;
    load_angles(t, m, s, freq);
    copies_wait<2>(); // gains
    __syncthreads();  // for whoever rotates
}

/* Grid: rows, key heads, chunks. */
template <bool kFresh>
__global__ void __launch_bounds__(kAttendThreads, kResident) attend_chunk(const attend_task t)
{
    extern __shared__ __align__(16) uint8_t memory[];
    const attend_shared m = shared_of(memory, t.shared);
    const bool early = kFresh && t.rows_ready;
    const float freq = kFresh ? load_constants(t, m) : 0.0f;
    const lane_places places = places_of(t);
    if (!early) edge_wait();
    const row_span s = span_of(t, t.first + static_cast<int32_t>(blockIdx.x),
                               static_cast<int32_t>(blockIdx.z), kFresh);
    prepare<kFresh>(t, m, s, freq);
    fresh_head first = kFresh ? fresh_head_of(t, s) : fresh_head();
    if (early) edge_wait();
    edge_open();
    if (s.here == 0) {
        copies_wait<0>(); // nothing may arrive in shared memory that is someone else's by then
        return;
    }
    fresh_data data = part_load(first.part, first.pairs);
#pragma unroll 1
    for (int32_t head0 = 0;;) {
        if (kFresh)
            fill_fresh(t, m, s, first.pairs, head0, first.part, data);
        else
            fill_turned(t, m, s, head0);
        attend_heads(t, m, s, places, head0, kFresh && head0 == 0 && s.base + s.here == s.n);
        head0 += kCols;
        if (head0 >= t.group) break;
        if (!kFresh) continue;
        first.part = part_of(t, s, head0, 0);
        data = part_load(first.part, first.pairs);
    }
}

} // namespace sk
