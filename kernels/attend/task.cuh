/* What one step of attention is for the kernels: addresses and steps of its views, and how its
 * ordinals are cut. Splits are the unit of the arithmetic; how many of them a CTA takes (a chunk)
 * is free. */
#pragma once

#include "kernels/attend/head.cuh"
#include "kernels/attend/sizes.h"
#include "kernels/common/launch.cuh"

namespace sk
{

constexpr int32_t kSplit = SK_ATTEND_SPLIT;
constexpr int32_t kCols = 8;     // query heads that one product takes
constexpr int32_t kPad = 8;      // elements behind a row of BF16: no bank conflicts
constexpr int32_t kScorePad = 4; // the same behind a row of floats
constexpr int32_t kAttendWarps = 16;
constexpr int32_t kAttendThreads = 32 * kAttendWarps;

/* [P, H, D]; steps in elements. */
template <typename T> struct head_rows {
    T *p;
    int64_t row, head;
};

/* [B, C, Hkv, D] */
struct cache_rows {
    bf16 *p;
    int64_t slot, pos, head;
};

/* Splits of one query head, and of its neighbours: maximum and sum, product with V. */
struct split_parts {
    float2 *sums; // [.]{maximum, sum}
    float *o;     // [., D]
    int32_t sums_split, sums_head;
    int32_t o_split, o_head;
};

/* Byte offsets of the areas of attend_shared behind the first. */
struct shared_map {
    int32_t v, q, p, score, o, sums, gains, sines;
    int32_t bytes; // of all
};

struct attend_task {
    head_rows<const float> q, k, v; // of the projections: when this pass is not in the caches yet
    head_rows<const bf16> turned;   // q, rotated: when it is
    head_rows<bf16> out;
    cache_rows k_cache, v_cache;
    const float *q_norm, *k_norm, *freq; // [D], [D] or NULL; [n_rot]
    const int32_t *rows;                 // sk_row
    const int32_t *count;
    float2 *sums; // [rows of a launch, H, n_splits]; NULL: the CTA sees every split and merges
    float *o;     // [rows of a launch, H, n_splits, D]
    shared_map shared;
    head_form form;
    float scale;
    int32_t row_step; // of `rows`, in words
    int32_t capacity; // P
    int32_t first;    // row of the launch's first CTA
    int32_t group;    // query heads of a key head
    int32_t n_rot;
    int32_t window;
    int32_t cells; // ordinals of a chunk
    int32_t n_splits;
    int32_t rows_ready; // as in sk_launch
};

/* What a CTA has to do with its row: `here` cells of its chunk, the first `old` of them from the
 * caches, the others being rows of this pass. */
struct row_span {
    int32_t row, slot, pos, at;
    int32_t first; // position of ordinal 0
    int32_t n;     // ordinals the row sees
    int32_t base;  // first ordinal of the chunk
    int32_t here;  // 0: nothing to do
    int32_t old;
};

__device__ inline int32_t clamped(int32_t x, int32_t most)
{
    return x < 0 ? 0 : x > most ? most : x;
}

/* Words of a row of the table, and how many rows are live. */
struct row_words {
    int32_t slot, pos, at, count;
};

__device__ inline row_words words_of(const attend_task &t, int32_t row)
{
    const int32_t *entry = t.rows + static_cast<int64_t>(row) * t.row_step;
    return {entry[0], entry[1], entry[2], *t.count};
}

__device__ inline row_span span_from(const attend_task &t, const row_words &w, int32_t row,
                                     int32_t chunk, bool fresh)
{
    row_span s;
    s.row = row;
    s.slot = w.slot;
    s.pos = w.pos;
    s.at = w.at;
    s.first = t.window > 0 && s.pos >= t.window ? s.pos - t.window + 1 : 0;
    s.n = row < w.count && row < t.capacity ? s.pos - s.first + 1 : 0;
    s.base = chunk * t.cells;
    s.here = clamped(s.n - s.base, t.cells);
    s.old = fresh ? clamped(s.pos - s.at - s.first - s.base, s.here) : s.here;
    return s;
}

__device__ inline row_span span_of(const attend_task &t, int32_t row, int32_t chunk, bool fresh)
{
    return span_from(t, words_of(t, row), row, chunk, fresh);
}

/* The CTA's shared memory, area by area. */
struct attend_shared {
    bf16 *k, *v;   // [cells, dim + kPad]
    bf16 *q;       // [kCols, dim + kPad]
    bf16 *p;       // [kCols, cells + kPad]
    float *score;  // [kCols, cells + kScorePad]
    float *o;      // [splits, kCols, dim + kScorePad]
    float2 *sums;  // [splits, kCols]
    float *gains;  // [2, dim] of q and of k
    float2 *sines; // [n_sines, n_rot]
};

__device__ inline attend_shared shared_of(uint8_t *base, const shared_map &at)
{
    return {reinterpret_cast<bf16 *>(base),
            reinterpret_cast<bf16 *>(base + at.v),
            reinterpret_cast<bf16 *>(base + at.q),
            reinterpret_cast<bf16 *>(base + at.p),
            reinterpret_cast<float *>(base + at.score),
            reinterpret_cast<float *>(base + at.o),
            reinterpret_cast<float2 *>(base + at.sums),
            reinterpret_cast<float *>(base + at.gains),
            reinterpret_cast<float2 *>(base + at.sines)};
}

/* n_sines: rows of the pass that a CTA may have to rotate. Every area is a multiple of 16 bytes. */
inline shared_map map_shared(int32_t dim, int32_t cells, int32_t n_sines, int32_t n_rot)
{
    const int32_t splits = cells / kSplit;
    shared_map m;
    m.v = cells * (dim + kPad) * 2;
    m.q = 2 * m.v;
    m.p = m.q + kCols * (dim + kPad) * 2;
    m.score = m.p + kCols * (cells + kPad) * 2;
    m.o = m.score + kCols * (cells + kScorePad) * 4;
    m.sums = m.o + splits * kCols * (dim + kScorePad) * 4;
    m.gains = m.sums + splits * kCols * 8;
    m.sines = m.gains + 2 * dim * 4;
    m.bytes = m.sines + n_sines * n_rot * 8;
    return m;
}

/* ---- on the host ------------------------------------------------------------------------------
 */

template <typename T> head_rows<T> heads_at(const sk_view &v)
{
    return {ptr<T>(v), step_of<T>(v, 0), step_of<T>(v, 1)};
}

inline cache_rows cells_at(const sk_view &v)
{
    return {ptr<bf16>(v), step_of<bf16>(v, 0), step_of<bf16>(v, 1), step_of<bf16>(v, 2)};
}

/* What the arguments of every form of attention say alike. */
template <typename Args> attend_task task_of_args(const Args *a)
{
    attend_task t = {};
    t.out = heads_at<bf16>(a->out);
    t.k_cache = cells_at(a->k_cache);
    t.v_cache = cells_at(a->v_cache);
    t.rows = ptr<const int32_t>(a->rows);
    t.count = ptr<const int32_t>(a->count);
    t.form.dim = static_cast<int32_t>(a->q.dim[2]);
    t.scale = a->scale;
    t.row_step = static_cast<int32_t>(step_of<int32_t>(a->rows, 0));
    t.capacity = static_cast<int32_t>(a->q.dim[0]);
    t.group = static_cast<int32_t>(a->q.dim[1] / a->k_cache.dim[2]);
    return t;
}

} // namespace sk
