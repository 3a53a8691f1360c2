/* The gated delta rule. A warp has eight columns of a matrix, eight lanes by keys and four by
 * columns: lane (k, c) has the keys 4k + 32i + 0 .. 3 of the columns 2c and 2c + 1, in registers
 * from the first row of the slot to the last. Columns know nothing of each other, so warps never
 * meet.
 *
 * A sum over keys: four chains a lane, by the place of a key in its quad, quads ascending; the
 * chains by a tree, the lanes by a tree. Keys that do not exist add zeros. The three ops share
 * take_in, hence their bits. */
#pragma once

#include "kernels/common/quads.cuh"
#include "kernels/common/span.cuh"

namespace sk
{

constexpr int32_t kKeyLanes = 8;
constexpr int32_t kColumnLanes = 4;
constexpr int32_t kKeyQuads = 4; // of a lane
constexpr int32_t kMostKeys = 4 * kKeyLanes * kKeyQuads;
constexpr int32_t kDeltaColumns = 2 * kColumnLanes; // of a warp
constexpr int32_t kDeltaWarps = 4;                  // of a CTA

struct delta_views {
    const int32_t *key;
    heads<float> m; // [B, Hv], a matrix [dk, dv]
    int64_t m_step; // elements between keys
    rows<const float> in;
    heads<const float> q;
    heads<float> out;
    int32_t dk, dv, hv;
    int32_t width;  // of an entry
    int32_t wide;   // entries are aligned for four keys at a time
    int32_t wide_q; // so is q
};

/* What a lane has of a matrix: m[4i + j] is key 4k + 32i + j, x of column 2c, y of the next one. */
struct delta_state {
    float2 m[4 * kKeyQuads];
};

/* What a lane takes of an entry and of q. */
struct delta_entry {
    float4 k[kKeyQuads];
    float4 q[kKeyQuads];
    float2 v;
    float decay, beta;
};

struct delta_lane {
    int32_t key;    // the first one
    int32_t column; // the first one
};

__device__ inline delta_lane lane_of_delta()
{
    const int32_t lane = threadIdx.x % 32;
    const int32_t warp = static_cast<int32_t>(blockIdx.x) * kDeltaWarps + threadIdx.x / 32;
    return delta_lane{4 * (lane / kColumnLanes), kDeltaColumns * warp + 2 * (lane % kColumnLanes)};
}

__device__ inline void load_matrix(const delta_views &v, const float *m, const delta_lane &at,
                                   delta_state *s)
{
#pragma unroll
    for (int32_t i = 0; i < 4 * kKeyQuads; i++) {
        const int32_t key = at.key + 32 * (i / 4) + i % 4;
        const float *from = m + key * v.m_step + at.column;
        const bool exists = key < v.dk;
        s->m[i].x = exists && at.column < v.dv ? from[0] : 0.0f;
        s->m[i].y = exists && at.column + 1 < v.dv ? from[1] : 0.0f;
    }
}

__device__ inline void store_matrix(const delta_views &v, float *m, const delta_lane &at,
                                    const delta_state &s)
{
#pragma unroll
    for (int32_t i = 0; i < 4 * kKeyQuads; i++) {
        const int32_t key = at.key + 32 * (i / 4) + i % 4;
        float *to = m + key * v.m_step + at.column;
        if (key >= v.dk) continue;
        if (at.column < v.dv) to[0] = s.m[i].x;
        if (at.column + 1 < v.dv) to[1] = s.m[i].y;
    }
}

/* Of the entry `in` and, with Out, of q. */
template <bool Out>
__device__ inline void load_entry(const delta_views &v, const float *in, const float *q,
                                  int32_t key, int32_t head, const delta_lane &at, delta_entry *e)
{
    const float *gates = in + v.width - 2 * v.hv;
    const float *value = gates - (v.hv - head) * v.dv + at.column;
#pragma unroll
    for (int32_t i = 0; i < kKeyQuads; i++) {
        e->k[i] = quad_or_zero(in + key * v.dk, at.key + 32 * i, v.dk, v.wide);
        if (Out) e->q[i] = quad_or_zero(q, at.key + 32 * i, v.dk, v.wide_q);
    }
    e->v.x = at.column < v.dv ? value[0] : 0.0f;
    e->v.y = at.column + 1 < v.dv ? value[1] : 0.0f;
    e->decay = gates[head];
    e->beta = gates[v.hv + head];
}

/* Sum over the lanes with the same columns, in all of them. */
__device__ inline float sum_of_keys(float x)
{
    for (int32_t by = 16; by >= kColumnLanes; by /= 2)
        x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, by));
    return x;
}

/* The sum over keys of by * m, for both columns. */
__device__ inline float2 times_matrix(const float4 (&by)[kKeyQuads], const delta_state &s)
{
    float2 sum[4] = {};
#pragma unroll
    for (int32_t i = 0; i < kKeyQuads; i++) {
        const float x[4] = {by[i].x, by[i].y, by[i].z, by[i].w};
#pragma unroll
        for (int32_t j = 0; j < 4; j++) {
            sum[j].x = fmaf(x[j], s.m[4 * i + j].x, sum[j].x);
            sum[j].y = fmaf(x[j], s.m[4 * i + j].y, sum[j].y);
        }
    }
    const float x = __fadd_rn(__fadd_rn(sum[0].x, sum[1].x), __fadd_rn(sum[2].x, sum[3].x));
    const float y = __fadd_rn(__fadd_rn(sum[0].y, sum[1].y), __fadd_rn(sum[2].y, sum[3].y));
    return make_float2(sum_of_keys(x), sum_of_keys(y));
}

/* One entry into the matrix. */
__device__ inline void take_in(delta_state *s, const delta_entry &e)
{
#pragma unroll
    for (int32_t i = 0; i < 4 * kKeyQuads; i++) {
        s->m[i].x = __fmul_rn(e.decay, s->m[i].x);
        s->m[i].y = __fmul_rn(e.decay, s->m[i].y);
    }
    const float2 seen = times_matrix(e.k, *s);
    const float ux = __fmul_rn(e.beta, __fsub_rn(e.v.x, seen.x));
    const float uy = __fmul_rn(e.beta, __fsub_rn(e.v.y, seen.y));
#pragma unroll
    for (int32_t i = 0; i < kKeyQuads; i++) {
        const float k[4] = {e.k[i].x, e.k[i].y, e.k[i].z, e.k[i].w};
#pragma unroll
        for (int32_t j = 0; j < 4; j++) {
            s->m[4 * i + j].x = fmaf(k[j], ux, s->m[4 * i + j].x);
            s->m[4 * i + j].y = fmaf(k[j], uy, s->m[4 * i + j].y);
        }
    }
}

/* n > 0 entries, `step` floats apart, on a matrix; with Out also what q sees of each. The next
 * entry is on its way while one is taken in. */
template <bool Out>
__device__ inline void run_delta(const delta_views &v, const float *in, int64_t step, int32_t row,
                                 int32_t n, int32_t head, float *m, bool keep)
{
    const delta_lane at = lane_of_delta();
    const int32_t key = v.key[head];
    const bool writes = Out && threadIdx.x % 32 < kColumnLanes;
    delta_state s;
    delta_entry e;
    if (at.column - 2 * static_cast<int32_t>(threadIdx.x % kColumnLanes) >= v.dv) return; // a warp
    load_entry<Out>(v, in, Out ? v.q.at(row, key) : nullptr, key, head, at, &e);
    load_matrix(v, m, at, &s);
    for (int32_t i = 0; i < n; i++) {
        const int32_t next = i + 1 < n ? i + 1 : i;
        const delta_entry now = e;
        load_entry<Out>(v, in + next * step, Out ? v.q.at(row + next, key) : nullptr, key, head, at,
                        &e);
        take_in(&s, now);
        if constexpr (Out) {
            const float2 o = times_matrix(now.q, s);
            float *to = v.out.at(row + i, head) + at.column;
            if (writes && at.column < v.dv) to[0] = o.x;
            if (writes && at.column + 1 < v.dv) to[1] = o.y;
        }
    }
    if (keep) store_matrix(v, m, at, s);
}

/* A CTA a (slot, head, slice of columns); the row table says whether the slot has rows. */
template <bool Keep>
__global__ void __launch_bounds__(32 * kDeltaWarps)
    delta_rows(delta_views v, rows<const sk_row> table, pass p)
{
    const int32_t head = blockIdx.y;
    const int32_t slot = blockIdx.z;
    const slot_span span = find_rows(table, wait_rows(p), slot);
    if (span.n == 0) return;
    run_delta<true>(v, v.in[span.first], v.in.step / static_cast<int64_t>(sizeof(float)),
                    span.first, span.n, head, v.m.at(slot, head), Keep);
}

__global__ void __launch_bounds__(32 * kDeltaWarps)
    delta_fold(delta_views v, int64_t step, const int32_t *kept)
{
    const int32_t head = blockIdx.y;
    const int32_t slot = blockIdx.z;
    edge_wait();
    edge_open();
    const int32_t n = kept[slot];
    if (n <= 0) return;
    run_delta<false>(v, v.in[slot], step, 0, n, head, v.m.at(slot, head), true);
}

inline delta_views delta_of(const sk_view &key, const sk_view &m, const sk_view &in)
{
    delta_views v = {};
    v.key = ptr<const int32_t>(key);
    v.m = heads_of<float>(m);
    v.m_step = step_of<float>(m, 2);
    v.in = rows_of<const float>(in);
    v.dk = static_cast<int32_t>(m.dim[2]);
    v.dv = static_cast<int32_t>(m.dim[3]);
    v.hv = static_cast<int32_t>(m.dim[1]);
    v.width = static_cast<int32_t>(in.dim[in.rank - 1]);
    v.wide = row_aligned(in, 16) && v.dk % 4 == 0;
    return v;
}

inline dim3 delta_grid(const sk_view &m)
{
    const int64_t columns = kDeltaColumns * kDeltaWarps;
    return dim3(static_cast<unsigned>((m.dim[3] + columns - 1) / columns),
                static_cast<unsigned>(m.dim[1]), static_cast<unsigned>(m.dim[0]));
}

/* gdn_step or gdn_scan: their arguments have the same fields. */
template <bool Keep, typename Args> int32_t launch_delta(const Args *a, const sk_launch *l)
{
    delta_views v = delta_of(a->key, a->m, a->in);
    v.q = heads_of<const float>(a->q);
    v.out = heads_of<float>(a->out);
    v.wide_q = row_aligned(a->q, 16);
    return launch(l, delta_rows<Keep>, delta_grid(a->m), dim3(32 * kDeltaWarps), 0, v,
                  rows_of<const sk_row>(a->rows), pass_of(l, a->count, a->q.dim[0]));
}

} // namespace sk
