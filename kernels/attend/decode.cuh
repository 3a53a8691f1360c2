/* attend_chunk<true> for common shapes: head dimension 64, 128 or 256, up to kCols query heads on a
 * key head. The same bits, with the shape known to the compiler. Most of its code runs once, so
 * what counts is how little of it there is to fetch, above all behind the wait.
 *
 * At those dimensions a chunk has as many units of 16 dimensions of a split as the CTA has warps.
 */
#pragma once

#include "kernels/attend/chunk.cuh"

namespace sk
{

template <int kDim> struct decode_shape {
    static constexpr int32_t kPitch = kDim + kPad;
    static constexpr int32_t kPieces = kDim / 8; // of 16 bytes, in a cell
    static constexpr int32_t kStepCells = kAttendThreads / kPieces;
    static constexpr int32_t kPairs = kDim / 64; // of a lane
    static constexpr int32_t kQuads = kDim / 4;
    static constexpr int32_t kTiles = kDim / 16;
    static constexpr int32_t kSplits = kAttendWarps / kTiles; // of a chunk
    static constexpr int32_t kOutPitch = kDim + kScorePad;
};

/* Unsigned, so that the compiler knows that they are not negative. */
__device__ inline int32_t own_thread() { return static_cast<int32_t>(threadIdx.x & 0xffffu); }
__device__ inline int32_t own_warp()
{
    return __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x / 32u), 0) & kAttendWarps - 1;
}
__device__ inline int32_t own_lane() { return static_cast<int32_t>(threadIdx.x % 32u); }

/* n neighbours; the launcher has made sure that the step fits. */
__device__ inline uint64_t times(int32_t n, int64_t step)
{
    return static_cast<uint64_t>(static_cast<uint32_t>(n)) * static_cast<uint32_t>(step);
}

/* ---- ahead of the wait ----------------------------------------------------------------------- */

/* Cells of one cache; to and from are the thread's first piece. */
template <int kDim>
__device__ inline void copy_cells(bf16 *to, const bf16 *from, int32_t step, int32_t old)
{
    using shape = decode_shape<kDim>;
#pragma unroll 1
    for (int32_t cell = own_thread() / shape::kPieces; cell < old; cell += shape::kStepCells) {
        copy16(to, from);
        to += shape::kStepCells * shape::kPitch;
        from += step;
    }
    copies_close();
}

/* V behind the last visible cell, to the end of its split, is zeroed: p is zero there, but what
 * else could lie there may be NaN. */
template <int kDim> __device__ inline void clear_cells(bf16 *v, int32_t here)
{
    using shape = decode_shape<kDim>;
    const int32_t end = (here + kSplit - 1) / kSplit * kSplit;
#pragma unroll 1
    for (int32_t cell = here + own_thread() / shape::kPieces; cell < end;
         cell += shape::kStepCells) {
        const int32_t at = cell * shape::kPitch + own_thread() % shape::kPieces * 8;
        *reinterpret_cast<uint4 *>(v + at) = make_uint4(0, 0, 0, 0);
    }
}

template <int kDim>
__device__ inline void decode_cells(const attend_task &t, const attend_shared &m, const row_span &s)
{
    using shape = decode_shape<kDim>;
    const int32_t cell = own_thread() / shape::kPieces;
    const int32_t piece = own_thread() % shape::kPieces * 8;
    const int32_t kv_head = static_cast<int32_t>(blockIdx.y);
    const int32_t at = cell * shape::kPitch + piece;
    const int32_t pos = s.first + s.base + cell;
    const bf16 *k = t.k_cache.p + times(s.slot, t.k_cache.slot) + times(pos, t.k_cache.pos) +
                    times(kv_head, t.k_cache.head) + piece;
    const bf16 *v = t.v_cache.p + times(s.slot, t.v_cache.slot) + times(pos, t.v_cache.pos) +
                    times(kv_head, t.v_cache.head) + piece;
    copy_cells<kDim>(m.k + at, k, shape::kStepCells * static_cast<int32_t>(t.k_cache.pos), s.old);
    copy_cells<kDim>(m.v + at, v, shape::kStepCells * static_cast<int32_t>(t.v_cache.pos), s.old);
    clear_cells<kDim>(m.v, s.here);
}

/* Angles of n_turns positions from `from` on: 32 pairs of one position a warp. */
template <int kDim>
__device__ inline void decode_angles(const attend_task &t, const attend_shared &m, int32_t warp,
                                     int32_t from, int32_t n_turns, float freq)
{
    constexpr int32_t kBlocks = decode_shape<kDim>::kPairs;
    const int32_t pair = warp % kBlocks * 32 + own_lane();
#pragma unroll 1
    for (int32_t i = warp / kBlocks; i < n_turns; i += kAttendWarps / kBlocks) {
        float2 turn;
        rotation(static_cast<float>(from + i), freq, &turn.x, &turn.y);
        if (pair < t.n_rot) m.sines[i * t.n_rot + pair] = turn;
    }
}

/* Vectors to rotate, a warp each: the query heads, then K of the fresh rows of the chunk. And their
 * values, four a thread, from the last warp on. */
struct decode_work {
    int32_t n_fresh; // rows of this pass in the chunk
    int32_t row;     // the first of them
    int32_t n_turns; // positions from there to the row's own
    int32_t vector, value;
};

template <int kDim> struct decode_vector {
    static constexpr int32_t kPairs = decode_shape<kDim>::kPairs;
    int32_t a[kPairs], b[kPairs]; // elements of the lane's pairs
    head_vec<kPairs> gain;
    float2 turn[kPairs];
    bool norm;
};

template <int kDim>
__device__ inline void decode_pairs(const attend_task &t, decode_vector<kDim> *d)
{
#pragma unroll
    for (int i = 0; i < d->kPairs; i++) {
        const int32_t p = own_lane() + 32 * i;
        const bool apart = t.form.neox && p < t.n_rot;
        d->a[i] = apart ? p : 2 * p;
        d->b[i] = apart ? p + t.n_rot : 2 * p + 1;
    }
}

template <int kDim>
__device__ inline void decode_gains(const attend_task &t, int32_t vector, decode_vector<kDim> *d)
{
    const float *gains = vector < t.group ? t.q_norm : t.k_norm;
    d->norm = gains;
    if (!gains) return;
#pragma unroll
    for (int i = 0; i < d->kPairs; i++) {
        d->gain.a[i] = gains[d->a[i]];
        d->gain.b[i] = gains[d->b[i]];
    }
}

template <int kDim>
__device__ inline void decode_turns(const attend_task &t, const attend_shared &m,
                                    const decode_work &w, decode_vector<kDim> *d)
{
    const int32_t i = w.vector < t.group ? w.n_turns - 1 : w.vector - t.group;
    if (w.vector >= t.group + w.n_fresh) return;
#pragma unroll
    for (int k = 0; k < d->kPairs; k++) {
        const int32_t p = own_lane() + 32 * k;
        d->turn[k] = p < t.n_rot ? m.sines[i * t.n_rot + p] : make_float2(1, 0);
    }
}

__device__ inline const float *decode_vector_from(const attend_task &t, const decode_work &w)
{
    const int32_t kv_head = static_cast<int32_t>(blockIdx.y);
    const bool is_q = w.vector < t.group;
    const head_rows<const float> &x = is_q ? t.q : t.k;
    const int32_t row = w.row + (is_q ? w.n_turns - 1 : w.vector - t.group);
    const int32_t head = is_q ? kv_head * t.group + w.vector : kv_head;
    return x.p + times(row, x.row) + times(head, x.head);
}

template <int kDim>
__device__ inline const float *decode_values_from(const attend_task &t, const decode_work &w)
{
    constexpr int32_t kQuads = decode_shape<kDim>::kQuads;
    return t.v.p + times(w.row + w.value / kQuads, t.v.row) +
           times(static_cast<int32_t>(blockIdx.y), t.v.head) + w.value % kQuads * 4;
}

/* Where the lane's first pair of the outcome goes. */
template <int kDim>
__device__ inline bf16 *decode_out(const attend_task &t, int32_t warp, int32_t row)
{
    constexpr int32_t kPairs = decode_shape<kDim>::kPairs;
    const int32_t head = static_cast<int32_t>(blockIdx.y) * t.group + warp / kPairs;
    return t.out.p + times(row, t.out.row) + times(head, t.out.head) +
           (warp % kPairs * 32 + own_lane()) * 2;
}

/* A split of a head: where its scores and what becomes of them lie, counted in elements; its cells,
 * none if there is no such unit. */
struct soft_unit {
    int32_t score, p, at, n;
};

/* Heads of a split, to a power of two. */
__device__ inline int32_t soft_shift(const attend_task &t) { return 32 - __clz(t.group - 1); }

__device__ inline soft_unit soft_unit_of(const attend_task &t, const row_span &s, int32_t u)
{
    const int32_t split = u >> soft_shift(t);
    const int32_t head = u - (split << soft_shift(t));
    const int32_t from = split * kSplit;
    return {head * (t.cells + kScorePad) + from, head * (t.cells + kPad) + from,
            split * kCols + head, head < t.group ? s.here - from : 0};
}

/* ---- behind the wait ------------------------------------------------------------------------- */

/* Norm, rotation, rounding: head_put from registers. */
template <int kDim>
__device__ inline void decode_put(const attend_task &t, const decode_vector<kDim> &d,
                                  head_vec<decode_shape<kDim>::kPairs> x, bf16 *to)
{
    if (d.norm) {
        const float r = head_factor(x, t.form.eps, kDim);
#pragma unroll
        for (int i = 0; i < d.kPairs; i++) {
            x.a[i] = (x.a[i] * r) * d.gain.a[i];
            x.b[i] = (x.b[i] * r) * d.gain.b[i];
        }
    }
#pragma unroll
    for (int i = 0; i < d.kPairs; i++) {
        float a = x.a[i];
        float b = x.b[i];
        if (own_lane() + 32 * i < t.n_rot) rotate_pair(a, b, d.turn[i].x, d.turn[i].y, &a, &b);
        to[d.a[i]] = to_bf16(a);
        to[d.b[i]] = to_bf16(b);
    }
}

/* What a thread has to do in one trip of filling; values NULL: none. */
struct decode_trip {
    const float *vector, *values;
    int32_t to_vector, to_values; // elements from the start of K, of V
    bool has_vector;
};

template <int kDim>
__device__ inline int32_t decode_trips(const attend_task &t, const decode_work &w)
{
    const int32_t vectors = (t.group + w.n_fresh + kAttendWarps - 1) / kAttendWarps;
    const int32_t values =
        (w.n_fresh * decode_shape<kDim>::kQuads + kAttendThreads - 1) / kAttendThreads;
    return vectors > values ? vectors : values;
}

template <int kDim>
__device__ inline decode_trip decode_trip_of(const attend_task &t, const decode_work &w,
                                             int32_t old)
{
    using shape = decode_shape<kDim>;
    const bool is_q = w.vector < t.group;
    decode_trip p;
    p.has_vector = w.vector < t.group + w.n_fresh;
    p.vector = decode_vector_from(t, w);
    p.values = w.value < w.n_fresh * shape::kQuads ? decode_values_from<kDim>(t, w) : nullptr;
    p.to_vector = is_q ? t.shared.q / 2 + w.vector * shape::kPitch
                       : (old + w.vector - t.group) * shape::kPitch;
    p.to_values = (old + w.value / shape::kQuads) * shape::kPitch + w.value % shape::kQuads * 4;
    return p;
}

template <int kDim> struct decode_data {
    head_vec<decode_shape<kDim>::kPairs> vector;
    float4 values;
};

template <int kDim>
__device__ inline decode_data<kDim> decode_load(const decode_trip &p, const decode_vector<kDim> &d)
{
    decode_data<kDim> x;
    if (p.has_vector) {
#pragma unroll
        for (int i = 0; i < d.kPairs; i++) {
            x.vector.a[i] = in_global(p.vector)[d.a[i]];
            x.vector.b[i] = in_global(p.vector)[d.b[i]];
        }
    }
    if (p.values) x.values = *reinterpret_cast<const float4 *>(in_global(p.values));
    return x;
}

template <int kDim>
__device__ inline void decode_fill(const attend_task &t, const attend_shared &m,
                                   const decode_trip &p, const decode_vector<kDim> &d,
                                   const decode_data<kDim> &x)
{
    const float4 &y = x.values;
    if (p.has_vector) decode_put<kDim>(t, d, x.vector, m.k + p.to_vector);
    if (p.values)
        *reinterpret_cast<uint2 *>(m.v + p.to_values) =
            make_uint2(bf16_pair(y.x, y.y), bf16_pair(y.z, y.w));
}

/* score[head][cell] = scale * (q . k). What lies behind the last cell or query head goes into
 * scores that nobody reads. */
template <int kDim>
__device__ inline void decode_scores(const attend_task &t, const attend_shared &m,
                                     const lane_places &l, int32_t warp, int32_t here)
{
    using shape = decode_shape<kDim>;
    const bf16 *k = m.k + l.k;
    const bf16 *q = m.q + l.q;
    float *to = m.score + l.score;
    int32_t cell = warp * 16;
    if (cell >= here) return;
#pragma unroll 1
    do {
        float *next = to + t.cells + kScorePad;
        float c[4] = {0, 0, 0, 0};
#pragma unroll(kDim <= 128 ? kDim / 32 : 4)
        for (int32_t i = 0; i < kDim; i += 32) {
            const frag_a b = load_tiles(q + i);
            multiply(c, load_tiles(k + i), frag_b{{b.x[0], b.x[1]}});
            multiply(c, load_tiles(k + i + 16), frag_b{{b.x[2], b.x[3]}});
        }
        to[0] = c[0] * t.scale;
        to[8] = c[2] * t.scale;
        next[0] = c[1] * t.scale;
        next[8] = c[3] * t.scale;
        k += kAttendWarps * 16 * shape::kPitch;
        to += kAttendWarps * 16;
        cell += kAttendWarps * 16;
    } while (shape::kSplits * kSplit > kAttendWarps * 16 && cell < here);
}

/* Number of a split of the chunk in the launch's scratch. */
__device__ inline int32_t part_of_work(const attend_task &t, const row_span &s, int32_t head,
                                       int32_t split)
{
    const int32_t kv_heads = static_cast<int32_t>(gridDim.y);
    const int32_t kv_head = static_cast<int32_t>(blockIdx.y);
    return (((s.row - t.first) * kv_heads + kv_head) * t.group + head) * t.n_splits +
           s.base / kSplit + split;
}

/* o[split][head][16 dimensions]: a warp's only unit. The first warps have other things to do. */
template <int kDim>
__device__ inline void decode_weigh(const attend_task &t, const attend_shared &m,
                                    const lane_places &l, int32_t warp, const row_span &s)
{
    using shape = decode_shape<kDim>;
    const int32_t unit = kAttendWarps - 1 - warp;
    const int32_t split = unit / shape::kTiles;
    const int32_t col = own_lane() % 4 * 2;
    const int32_t at = unit % shape::kTiles * 16 + own_lane() / 4;
    float c[4] = {0, 0, 0, 0};
    if (split * kSplit >= s.here) return;
    const bf16 *v = m.v + l.v;
    const bf16 *p = m.p + l.p;
#pragma unroll
    for (int32_t i = 0; i < kSplit; i += 32) {
        const frag_a b = load_tiles(p + i);
        multiply(c, load_tiles_turned(v + i * shape::kPitch), frag_b{{b.x[0], b.x[1]}});
        multiply(c, load_tiles_turned(v + (i + 16) * shape::kPitch), frag_b{{b.x[2], b.x[3]}});
    }
    if (!t.sums) {
        float *o = m.o + (split * kCols + col) * shape::kOutPitch + at;
        o[0] = c[0];
        o[8] = c[2];
        o[shape::kOutPitch] = c[1];
        o[shape::kOutPitch + 8] = c[3];
        return;
    }
    const int32_t step = t.n_splits * kDim;
    float *o = t.o + static_cast<int64_t>(part_of_work(t, s, col, split)) * kDim + at;
    if (col < t.group) {
        o[0] = c[0];
        o[8] = c[2];
    }
    if (col + 1 < t.group) {
        o[step] = c[1];
        o[step + 8] = c[3];
    }
}

/* Merging: a warp takes 64 dimensions of a head, a lane two of them. Splits ascending, as in
 * merge_splits. */
template <int kDim>
__device__ inline void decode_merge(const attend_shared &m, int32_t head, int32_t pair,
                                    const float *weight, int32_t n_splits, bf16 *out)
{
    using shape = decode_shape<kDim>;
    const float *o = m.o + head * shape::kOutPitch + 2 * pair;
    float total = 0;
    float2 y = make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < shape::kSplits; i++) {
        if (i > 0 && i >= n_splits) break;
        const float2 part = *reinterpret_cast<const float2 *>(o + i * kCols * shape::kOutPitch);
        total = fmaf(m.sums[i * kCols + head].y, weight[i], total);
        y.x = fmaf(part.x, weight[i], y.x);
        y.y = fmaf(part.y, weight[i], y.y);
    }
    *reinterpret_cast<uint32_t *>(in_global(out)) =
        bf16_pair(__fdiv_rn(y.x, total), __fdiv_rn(y.y, total));
}

/* exp(maximum - largest maximum) of each split of a head. */
template <int kSplits>
__device__ inline void decode_weights(const attend_shared &m, int32_t head, int32_t n_splits,
                                      float *weight)
{
    const float lowest = -__int_as_float(0x7f800000);
    float top = m.sums[head].x;
    weight[0] = top;
#pragma unroll
    for (int i = 1; i < kSplits; i++) {
        weight[i] = i < n_splits ? m.sums[i * kCols + head].x : lowest;
        top = fmaxf(top, weight[i]);
    }
#pragma unroll
    for (int i = 0; i < kSplits; i++) weight[i] = expf(weight[i] - top);
}

/* Whatever is left to do when the warp's products are on their way. */
template <int kDim>
__device__ inline void decode_end(const attend_task &t, const attend_shared &m, int32_t warp,
                                  const row_span &s, bf16 *out)
{
    using shape = decode_shape<kDim>;
    constexpr int32_t kUnits = kCols * shape::kPairs;
    const int32_t n_splits = (s.here + kSplit - 1) / kSplit;
    int32_t head = warp / shape::kPairs;
    const int32_t pair = warp % shape::kPairs * 32 + own_lane();
    float weight[shape::kSplits] = {1};
    if (shape::kSplits > 1 && head < t.group)
        decode_weights<shape::kSplits>(m, head, n_splits, weight);
    __syncthreads();
    if (t.sums) {
        const int32_t split = own_thread() / kCols;
        head = own_thread() % kCols;
        if (split < n_splits && head < t.group)
            t.sums[part_of_work(t, s, head, split)] = m.sums[threadIdx.x];
        return;
    }
#pragma unroll
    for (int i = 0; i < kUnits; i += kAttendWarps) {
        if (head >= t.group) return;
        decode_merge<kDim>(m, head, pair, weight, n_splits, out);
        head += kAttendWarps / shape::kPairs;
        out += times(kAttendWarps / shape::kPairs, t.out.head);
    }
}

/* The sum of a split of a head, which has time until the products are there. */
struct decode_sum {
    int32_t at; // in sums; -1: none
    float part;
};

__device__ inline void decode_finish(const attend_shared &m, const decode_sum &d)
{
    const float sum = warp_sum(d.part);
    if (own_lane() == 0 && d.at >= 0) m.sums[d.at].y = sum;
}

template <int kSplits>
__device__ inline decode_sum decode_soften(const attend_task &t, const attend_shared &m,
                                           int32_t warp, const row_span &s, soft_unit unit)
{
    decode_sum d = {-1, 0};
#pragma unroll 1
    for (int32_t u = warp + kAttendWarps;; u += kAttendWarps) {
        if (unit.n > 0) {
            const float2 sums = soften(m.score + unit.score, m.p + unit.p, unit.n);
            d = {unit.at, sums.y};
            if (own_lane() == 0) m.sums[d.at].x = sums.x;
        }
        if (kSplits * kCols <= kAttendWarps || u >= kSplits << soft_shift(t)) break;
        unit = soft_unit_of(t, s, u);
        if (unit.n <= 0) continue;
        decode_finish(m, d);
        d.at = -1;
    }
    return d;
}

/* append_own */
template <int kDim>
__device__ inline void decode_append(const attend_task &t, const attend_shared &m,
                                     const row_span &s)
{
    const int32_t kv_head = static_cast<int32_t>(blockIdx.y);
    const int32_t at = own_lane() * 8;
    const int32_t own = (s.here - 1) * decode_shape<kDim>::kPitch + at;
    const cache_rows &k = t.k_cache;
    const cache_rows &v = t.v_cache;
    if (at >= kDim) return;
    bf16 *to_k = k.p + (times(s.slot, k.slot) + times(s.pos, k.pos) + times(kv_head, k.head) + at);
    bf16 *to_v = v.p + (times(s.slot, v.slot) + times(s.pos, v.pos) + times(kv_head, v.head) + at);
    *reinterpret_cast<uint4 *>(to_k) = *reinterpret_cast<const uint4 *>(m.k + own);
    *reinterpret_cast<uint4 *>(to_v) = *reinterpret_cast<const uint4 *>(m.v + own);
}

template <int kDim> __device__ inline lane_places decode_places(const attend_task &t, int32_t warp)
{
    using shape = decode_shape<kDim>;
    const int32_t lane = own_lane();
    const int32_t unit = kAttendWarps - 1 - warp;
    const int32_t from = unit / shape::kTiles * kSplit;
    lane_places l;
    l.k = (warp * 16 + lane % 16) * shape::kPitch + lane / 16 * 8;
    l.v = (from + lane % 8 + lane / 16 * 8) * shape::kPitch + lane / 8 % 2 * 8 +
          unit % shape::kTiles * 16;
    l.q = lane % 8 * shape::kPitch + lane / 8 * 8;
    l.p = lane % 8 * (t.cells + kPad) + lane / 8 * 8 + from;
    l.score = lane % 4 * 2 * (t.cells + kScorePad) + warp * 16 + lane / 4;
    asm volatile("" : "+r"(l.k), "+r"(l.v), "+r"(l.q), "+r"(l.p), "+r"(l.score));
    return l;
}

/* Otherwise the compiler moves the arithmetic behind the wait, to where it is needed. */
template <int kDim>
__device__ inline void decode_pin(decode_trip *p, decode_vector<kDim> *d, bf16 **out)
{
    asm volatile("" : "+l"(p->vector), "+l"(p->values), "+l"(*out));
    asm volatile("" : "+r"(p->to_vector), "+r"(p->to_values));
    if (d->kPairs > 1) return; // registers are scarce
    asm volatile("" : "+r"(d->a[0]), "+r"(d->b[0]));
}

/* ---- the CTA --------------------------------------------------------------------------------- */

/* Grid: rows, key heads, chunks. */
template <int kDim>
__global__ void __launch_bounds__(kAttendThreads, kResident) attend_decode(const attend_task t)
{
    using shape = decode_shape<kDim>;
    extern __shared__ __align__(16) uint8_t memory[];
    const attend_shared m = shared_of(memory, t.shared);
    if (!t.rows_ready) edge_wait();
    const int32_t row = t.first + static_cast<int32_t>(blockIdx.x);
    const row_words words = words_of(t, row);
    const int32_t warp = own_warp();
    const int32_t own_pair = warp % shape::kPairs * 32 + own_lane();
    const float freq = own_pair < t.n_rot ? t.freq[own_pair] : 0.0f;
    decode_vector<kDim> d;
    decode_pairs<kDim>(t, &d);
    decode_gains<kDim>(t, warp, &d);
    const lane_places l = decode_places<kDim>(t, warp);
    const row_span s = span_from(t, words, row, static_cast<int32_t>(blockIdx.z), true);
    // Live rows have a slot. Asked for here so that it is fetched with the other words.
    if ((s.here == 0) | (s.slot < 0)) {
        edge_wait();
        edge_open();
        return;
    }
    decode_cells<kDim>(t, m, s);
    decode_work w;
    w.n_fresh = s.here - s.old;
    w.n_turns = w.n_fresh > 0 ? s.pos - (s.first + s.base + s.old) + 1 : 1;
    w.row = s.row - (w.n_turns - 1);
    w.vector = warp;
    w.value = (kAttendWarps - 1 - warp) * 32 + own_lane();
    decode_angles<kDim>(t, m, warp, s.pos - (w.n_turns - 1), w.n_turns, freq);
    int32_t trips = decode_trips<kDim>(t, w);
    soft_unit unit = soft_unit_of(t, s, warp);
    decode_trip trip = decode_trip_of<kDim>(t, w, s.old);
    bf16 *out = decode_out<kDim>(t, warp, s.row);
    decode_pin<kDim>(&trip, &d, &out);
    asm volatile("" : "+r"(trips), "+r"(unit.score), "+r"(unit.p), "+r"(unit.at));
    __syncthreads();
    decode_turns<kDim>(t, m, w, &d);
    edge_wait();
    edge_open();
    decode_data<kDim> data = decode_load<kDim>(trip, d);
#pragma unroll 1
    for (int32_t left = trips;;) {
        decode_fill<kDim>(t, m, trip, d, data);
        if (--left <= 0) break; // only wide passes have more
        w.vector += kAttendWarps;
        w.value += kAttendThreads;
        trip = decode_trip_of<kDim>(t, w, s.old);
        decode_gains<kDim>(t, w.vector, &d);
        decode_turns<kDim>(t, m, w, &d);
        data = decode_load<kDim>(trip, d);
    }
    copies_wait<1>(); // K; V has time until it is multiplied
    __syncthreads();
    decode_scores<kDim>(t, m, l, warp, s.here);
    __syncthreads();
    const decode_sum sum = decode_soften<shape::kSplits>(t, m, warp, s, unit);
    if (warp == kAttendWarps - 1 && s.base + s.here == s.n) decode_append<kDim>(t, m, s);
    copies_wait<0>();
    __syncthreads();
    decode_finish(m, sum);
    decode_weigh<kDim>(t, m, l, warp, s);
    decode_end<kDim>(t, m, warp, s, out);
}

} // namespace sk
