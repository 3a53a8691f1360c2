/* Filling the shared memory of a chunk: cells from the caches, the rows of this pass from the
 * projections, the query heads; and the way back, the row's own cell into the caches. */
#pragma once

#include "kernels/attend/task.cuh"

namespace sk
{

/* Query heads from head0 on that one round takes. */
__device__ inline int32_t heads_of(const attend_task &t, int32_t head0)
{
    return t.group - head0 < kCols ? t.group - head0 : kCols;
}

/* Cell of the CTA's key head. */
__device__ inline bf16 *cell_of(const cache_rows &cache, int32_t slot, int32_t pos)
{
    return cache.p + slot * cache.slot + pos * cache.pos +
           static_cast<int32_t>(blockIdx.y) * cache.head;
}

/* The chunk's cells that are in the caches. Those behind the last visible one are zeroed: p is zero
 * there, but what else could lie there may be NaN. K and V are a group of copies each. */
__device__ inline void load_cells(const attend_task &t, const attend_shared &m, const row_span &s)
{
    const int32_t pieces = t.form.dim / 8;
    const int32_t next_cell = kAttendThreads / pieces;
    const int32_t next_piece = kAttendThreads % pieces;
    const int32_t end = (s.here + 15) / 16 * 16;
#pragma unroll 1
    for (int which = 0; which < 2; which++) {
        const cache_rows &cache = which == 0 ? t.k_cache : t.v_cache;
        bf16 *cells = which == 0 ? m.k : m.v;
        const bf16 *from = cell_of(cache, s.slot, s.first + s.base);
        int32_t cell = static_cast<int32_t>(threadIdx.x) / pieces;
        int32_t piece = static_cast<int32_t>(threadIdx.x) % pieces;
#pragma unroll 1
        while (cell < end) {
            bf16 *to = cells + cell * (t.form.dim + kPad) + piece * 8;
            if (cell < s.old)
                copy16(to, from + cell * cache.pos + piece * 8);
            else if (cell >= s.here)
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

/* Position of the first row of this pass that the CTA has to rotate. */
__device__ inline int32_t fresh_from(const row_span &s)
{
    return s.old < s.here ? s.first + s.base + s.old : s.pos;
}

/* Angles are worked out by warps: 32 pairs of one position each. A power of two divides the warps
 * among the blocks of pairs, so a warp has the same pairs at every position. */
__device__ inline int32_t pair_blocks_log2(int32_t pairs)
{
    return pairs <= 32 ? 0 : pairs <= 64 ? 1 : 2;
}

__device__ inline int32_t own_pair(const attend_task &t)
{
    const int32_t block =
        static_cast<int32_t>(threadIdx.x) / 32 & ((1 << pair_blocks_log2(t.n_rot)) - 1);
    return block * 32 + static_cast<int32_t>(threadIdx.x) % 32;
}

/* What is constant and wanted early: gains set out for shared memory; the frequency of the pair
 * that this thread has to do with. */
__device__ inline float load_constants(const attend_task &t, const attend_shared &m)
{
    const int32_t thread = static_cast<int32_t>(threadIdx.x);
    if (t.q_norm && thread < t.form.dim) copy4(m.gains + thread, t.q_norm + thread);
    if (t.k_norm && thread < t.form.dim) copy4(m.gains + t.form.dim + thread, t.k_norm + thread);
    copies_close();
    return own_pair(t) < t.n_rot ? t.freq[own_pair(t)] : 0.0f;
}

/* Angles of every position from fresh_from to the row's own. */
__device__ inline void load_angles(const attend_task &t, const attend_shared &m, const row_span &s,
                                   float freq)
{
    const int32_t blocks = pair_blocks_log2(t.n_rot);
    const int32_t from = fresh_from(s);
    if (own_pair(t) >= t.n_rot) return;
#pragma unroll 1
    for (int32_t i = static_cast<int32_t>(threadIdx.x) / 32 >> blocks; i <= s.pos - from;
         i += kAttendWarps >> blocks) {
        float2 *turn = m.sines + i * t.n_rot + own_pair(t);
        rotation(static_cast<float>(from + i), freq, &turn->x, &turn->y);
    }
}

/* Vector j to rotate: query heads head0 .., then K of the fresh rows of the chunk. */
__device__ inline const float *fresh_vector(const attend_task &t, const row_span &s, int32_t head0,
                                            int32_t j)
{
    const int32_t kv_head = static_cast<int32_t>(blockIdx.y);
    const int32_t i = j - heads_of(t, head0);
    const int64_t row = s.row - (s.pos - fresh_from(s) - i);
    if (i < 0) return t.q.p + s.row * t.q.row + (kv_head * t.group + head0 + j) * t.q.head;
    return t.k.p + row * t.k.row + kv_head * t.k.head;
}

/* What becomes of it. */
__device__ inline head_job fresh_job(const attend_task &t, const attend_shared &m,
                                     const row_span &s, int32_t head0, int32_t j)
{
    const int32_t pitch = t.form.dim + kPad;
    const int32_t i = j - heads_of(t, head0);
    if (i < 0)
        return {t.q_norm ? m.gains : nullptr, m.sines + (s.pos - fresh_from(s)) * t.n_rot,
                m.q + j * pitch, t.n_rot};
    return {t.k_norm ? m.gains + t.form.dim : nullptr, m.sines + i * t.n_rot,
            m.k + (s.old + i) * pitch, t.n_rot};
}

/* Quad j of four elements of V of the fresh rows. */
__device__ inline const float *fresh_values(const attend_task &t, const row_span &s, int32_t j)
{
    const int32_t quads = t.form.dim / 4;
    const int32_t i = j / quads;
    const int64_t row = s.row - (s.pos - fresh_from(s) - i);
    return t.v.p + row * t.v.row + static_cast<int32_t>(blockIdx.y) * t.v.head +
           (j - i * quads) * 4;
}

__device__ inline void put_values(const attend_task &t, const attend_shared &m, const row_span &s,
                                  int32_t j, const float4 &x)
{
    const int32_t quads = t.form.dim / 4;
    const int32_t i = j / quads;
    bf16 *to = m.v + (s.old + i) * (t.form.dim + kPad) + (j - i * quads) * 4;
    *reinterpret_cast<uint2 *>(to) = make_uint2(bf16_pair(x.x, x.y), bf16_pair(x.z, x.w));
}

/* A thread's part in trip `trip` of filling: four values, and its warp's vector. NULL: none. */
struct fresh_part {
    const float *vector, *values;
};

__device__ inline fresh_part part_of(const attend_task &t, const row_span &s, int32_t head0,
                                     int32_t trip)
{
    const int32_t j = static_cast<int32_t>(threadIdx.x) / 32 + trip * kAttendWarps;
    const int32_t k = static_cast<int32_t>(threadIdx.x) + trip * kAttendThreads;
    const int32_t n_fresh = head0 == 0 ? s.here - s.old : 0;
    fresh_part p = {nullptr, nullptr};
    if (j < heads_of(t, head0) + n_fresh) p.vector = fresh_vector(t, s, head0, j);
    if (k < n_fresh * (t.form.dim / 4)) p.values = fresh_values(t, s, k);
    return p;
}

struct fresh_data {
    head_vec<kLanePairs> vector;
    float4 values;
};

/* One trip to memory. */
__device__ inline fresh_data part_load(const fresh_part &p, const lane_pairs &pairs)
{
    fresh_data d;
    d.values = make_float4(0, 0, 0, 0);
    if (p.values) d.values = *reinterpret_cast<const float4 *>(p.values);
    if (p.vector) d.vector = head_load(p.vector, pairs);
    return d;
}

/* What the first trip needs, worked out ahead of the wait. */
struct fresh_head {
    fresh_part part;
    lane_pairs pairs;
};

__device__ inline fresh_head fresh_head_of(const attend_task &t, const row_span &s)
{
    fresh_head f = {part_of(t, s, 0, 0),
                    pairs_of(t.form, t.n_rot, static_cast<int32_t>(threadIdx.x) % 32)};
    // Otherwise the compiler moves the arithmetic behind the wait, to where it is needed.
    asm volatile("" : "+l"(f.part.vector), "+l"(f.part.values));
#pragma unroll
    for (int i = 0; i < kLanePairs; i++) asm volatile("" : "+r"(f.pairs.at[i]));
    return f;
}

/* Query heads head0 .. and, in the first round of heads, what this pass has of the chunk; `d` is
 * what the first trip has brought. Only wide passes take a second. */
__device__ inline void fill_fresh(const attend_task &t, const attend_shared &m, const row_span &s,
                                  const lane_pairs &pairs, int32_t head0, fresh_part p,
                                  fresh_data d)
{
    const int32_t thread = static_cast<int32_t>(threadIdx.x);
#pragma unroll 1
    for (int32_t trip = 0; p.vector || p.values;) { // a warp that has a vector is complete
        if (p.vector)
            head_put(fresh_job(t, m, s, head0, thread / 32 + trip * kAttendWarps), t.form, pairs,
                     d.vector, thread % 32);
        if (p.values) put_values(t, m, s, thread + trip * kAttendThreads, d.values);
        p = part_of(t, s, head0, ++trip);
        d = part_load(p, pairs);
    }
}

/* Query heads that are rotated already. */
__device__ inline void fill_turned(const attend_task &t, const attend_shared &m, const row_span &s,
                                   int32_t head0)
{
    const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32;
    const int64_t head = static_cast<int32_t>(blockIdx.y) * t.group + head0 + warp;
    if (warp >= heads_of(t, head0)) return;
    const bf16 *from = t.turned.p + s.row * t.turned.row + head * t.turned.head;
    bf16 *to = m.q + warp * (t.form.dim + kPad);
    for (int32_t i = static_cast<int32_t>(threadIdx.x) % 32; i < t.form.dim / 2; i += 32)
        reinterpret_cast<uint32_t *>(to)[i] = reinterpret_cast<const uint32_t *>(from)[i];
}

/* The row's own cell into the caches; one warp, 16 bytes a lane. */
__device__ inline void append_own(const attend_task &t, const attend_shared &m, const row_span &s)
{
    const int32_t lane_at = static_cast<int32_t>(threadIdx.x) % 32 * 8;
    const int32_t own = (s.n - 1 - s.base) * (t.form.dim + kPad) + lane_at;
    if (lane_at >= t.form.dim) return;
    bf16 *k = cell_of(t.k_cache, s.slot, s.pos) + lane_at;
    bf16 *v = cell_of(t.v_cache, s.slot, s.pos) + lane_at;
    *reinterpret_cast<uint4 *>(k) = *reinterpret_cast<const uint4 *>(m.k + own);
    *reinterpret_cast<uint4 *>(v) = *reinterpret_cast<const uint4 *>(m.v + own);
}

} // namespace sk
