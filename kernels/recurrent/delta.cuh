/* The gated delta rule. A warp has eight columns of a matrix, eight lanes by keys and four by
 * columns: lane (k, c) has the keys 4k + 32i + 0 .. 3 of the columns 2c and 2c + 1, in registers
 * from the first row of the slot to the last. Columns know nothing of each other, so warps meet
 * only to share what they take in: entries come into shared memory eight at a time, on their way
 * together with the matrix, and the next eight while these are taken in.
 *
 * A sum over keys: four chains a lane, by the place of a key in its quad, quads ascending; the
 * chains by a tree, the lanes by a tree. Keys that do not exist add zeros. The three ops share
 * take_in, hence their bits. */
#pragma once

#include "kernels/common/bulk.cuh"
#include "kernels/common/span.cuh"

namespace sk
{

constexpr int32_t kKeyLanes = 8;
constexpr int32_t kColumnLanes = 4;
constexpr int32_t kKeyQuads = 4; // of a lane
constexpr int32_t kMostKeys = 4 * kKeyLanes * kKeyQuads;
constexpr int32_t kDeltaColumns = 2 * kColumnLanes; // of a warp
constexpr int32_t kDeltaWarps = 4;                  // of a CTA
constexpr int32_t kDeltaThreads = 32 * kDeltaWarps;
constexpr int32_t kCtaColumns = kDeltaColumns * kDeltaWarps;
constexpr int32_t kDeltaEntries = 8; // in shared memory together; a verify pass seldom has more
constexpr int32_t kDeltaCtas = 6;    // of a multiprocessor: 4 slots of 48 heads are there at once

struct delta_views {
    const int32_t *key;
    heads<float> m; // [B, Hv], a matrix [dk, dv]
    int64_t m_step; // elements between keys
    rows<const float> in;
    heads<const float> q;
    heads<float> out;
    int64_t q_step, out_step; // elements between rows
    int32_t dk, dv, hv;
    int32_t width; // of an entry
    int32_t wide;  // entries and q are aligned for four keys at a time
    int32_t pairs; // matrices are aligned for two columns at a time
    int32_t ready; // sk_launch.state_ready
};

/* n entries for one head. */
struct delta_run {
    int32_t row; // of q and out, the first one
    int32_t n, head, key;
};

/* Where a lane's part of its warp's next entry is. */
struct delta_copy {
    const float *k, *q;
    int32_t key;          // of k and q, the first one that is the lane's
    int32_t value, gate;  // from k on, in elements
    int64_t step, q_step; // from one of the warp's entries to its next one
};

/* What a lane has of a matrix: m[4i + j] is key 4k + 32i + j, x of column 2c, y of the next one. */
struct delta_state {
    float2 m[4 * kKeyQuads];
};

/* An entry and its row of q, as the head of a CTA sees them. Keys that do not exist are zero. */
struct alignas(16) delta_entry {
    float k[kMostKeys];
    float q[kMostKeys];
    float v[kCtaColumns];
    float gates[4]; // decay, beta
};

struct delta_lane {
    int32_t key;    // the first one
    int32_t column; // the first one
    int32_t own;    // the same, of the CTA's columns
};

__device__ inline delta_lane lane_of_delta()
{
    const int32_t lane = threadIdx.x % 32;
    const int32_t own =
        kDeltaColumns * static_cast<int32_t>(threadIdx.x / 32) + 2 * (lane % kColumnLanes);
    return delta_lane{4 * (lane / kColumnLanes),
                      kCtaColumns * static_cast<int32_t>(blockIdx.x) + own, own};
}

/* Calls `each` with the index of a lane's keys that exist, ascending, and their place. */
template <typename Each>
__device__ inline void each_key(const delta_views &v, float *m, const delta_lane &at, Each each)
{
    float *place = m + at.key * v.m_step + at.column;
#pragma unroll
    for (int32_t i = 0; i < 4 * kKeyQuads; i++) {
        if (at.key + 32 * (i / 4) + i % 4 < v.dk) each(i, place);
        place += i % 4 < 3 ? v.m_step : 29 * v.m_step;
    }
}

/* Past L1, which has nothing to keep of it. */
__device__ inline void load_matrix(const delta_views &v, float *m, const delta_lane &at,
                                   delta_state *s)
{
#pragma unroll
    for (int32_t i = 0; i < 4 * kKeyQuads; i++) s->m[i] = make_float2(0.0f, 0.0f);
    if (v.pairs && at.column < v.dv)
        each_key(v, m, at, [&](int32_t i, const float *from) {
            s->m[i] = __ldcg(reinterpret_cast<const float2 *>(from));
        });
    else
        each_key(v, m, at, [&](int32_t i, const float *from) {
            if (at.column < v.dv) s->m[i].x = __ldcg(from);
            if (at.column + 1 < v.dv) s->m[i].y = __ldcg(from + 1);
        });
}

/* The columns of a lane that exist. */
__device__ inline void put_columns(const delta_views &v, float *to, const delta_lane &at, float2 x)
{
    if (at.column < v.dv) to[0] = x.x;
    if (at.column + 1 < v.dv) to[1] = x.y;
}

__device__ inline void store_matrix(const delta_views &v, float *m, const delta_lane &at,
                                    const delta_state &s)
{
    if (v.pairs && at.column < v.dv)
        each_key(v, m, at, [&](int32_t i, float *to) { *reinterpret_cast<float2 *>(to) = s.m[i]; });
    else
        each_key(v, m, at, [&](int32_t i, float *to) { put_columns(v, to, at, s.m[i]); });
}

__device__ inline void copy_float(float *to, const float *from)
{
    copy_async4(reinterpret_cast<int32_t *>(to), reinterpret_cast<const int32_t *>(from));
}

/* The entries begin at `in`, `step` elements apart. Sets out what copy_entries needs, so that
 * little is left to do when they are there. */
template <bool Out>
__device__ inline delta_copy copy_of_delta(const delta_views &v, const delta_run &run,
                                           const float *in, int64_t step)
{
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int32_t gates = v.width - 2 * v.hv;
    delta_copy c = {};
    c.key = v.wide ? 4 * lane : lane;
    const int32_t k = run.key * v.dk + c.key;
    c.k = in + warp * step + k;
    c.value = gates - (v.hv - run.head) * v.dv + kCtaColumns * static_cast<int32_t>(blockIdx.x) +
              lane - k;
    c.gate = gates + run.head + (lane % 2) * v.hv - k;
    c.step = kDeltaWarps * step;
    if (Out) c.q = v.q.at(run.row + warp, run.key) + c.key;
    if (Out) c.q_step = kDeltaWarps * v.q_step;
    return c;
}

/* A warp: n <= kMostKeys floats. */
__device__ inline void copy_keys(float *to, const float *from, int32_t key, int32_t n, bool wide)
{
    if (wide) {
        if (key < n)
            copy_async16(reinterpret_cast<uint16_t *>(to + key),
                         reinterpret_cast<const uint16_t *>(from));
        return;
    }
#pragma unroll 1
    for (; key < n; key += 32, from += 32) copy_float(to + key, from);
}

/* Asks for the next n entries, a warp each in turn. */
template <bool Out>
__device__ inline void copy_entries(const delta_views &v, delta_copy *c, int32_t n, delta_entry *to)
{
    static_assert(kDeltaEntries % kDeltaWarps == 0, "whole turns, but for the last entries");
    const int32_t lane = threadIdx.x % 32;
    const bool value = kCtaColumns * static_cast<int32_t>(blockIdx.x) + lane < v.dv;
#pragma unroll 1
    for (int32_t i = threadIdx.x / 32; i < n; i += kDeltaWarps) {
        copy_keys(to[i].k, c->k, c->key, v.dk, v.wide);
        if (Out) copy_keys(to[i].q, c->q, c->key, v.dk, v.wide);
        if (value) copy_float(to[i].v + lane, c->k + c->value);
        if (lane < 2) copy_float(to[i].gates + lane, c->k + c->gate);
        c->k += c->step;
        if (Out) c->q += c->q_step;
    }
    copy_async_commit();
}

/* Of both columns, over the lane's keys. */
__device__ inline float2 times_keys(const float *by, const delta_lane &at, const delta_state &s,
                                    float4 (&x)[kKeyQuads])
{
    float2 sum[4] = {};
#pragma unroll
    for (int32_t i = 0; i < kKeyQuads; i++) {
        x[i] = *reinterpret_cast<const float4 *>(by + at.key + 32 * i);
        const float of[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
#pragma unroll
        for (int32_t j = 0; j < 4; j++) {
            sum[j].x = fmaf(of[j], s.m[4 * i + j].x, sum[j].x);
            sum[j].y = fmaf(of[j], s.m[4 * i + j].y, sum[j].y);
        }
    }
    return make_float2(__fadd_rn(__fadd_rn(sum[0].x, sum[1].x), __fadd_rn(sum[2].x, sum[3].x)),
                       __fadd_rn(__fadd_rn(sum[0].y, sum[1].y), __fadd_rn(sum[2].y, sum[3].y)));
}

/* The sum over the lanes with the same columns, in all of them; with Two of two numbers at once, so
 * that one waits while the other goes on. */
template <bool Two> __device__ inline void add_lanes(float2 *x, float2 *y)
{
#pragma unroll
    for (int32_t by = 16; by >= kColumnLanes; by /= 2) {
        x->x = __fadd_rn(x->x, __shfl_xor_sync(0xffffffffu, x->x, by));
        x->y = __fadd_rn(x->y, __shfl_xor_sync(0xffffffffu, x->y, by));
        if (!Two) continue;
        y->x = __fadd_rn(y->x, __shfl_xor_sync(0xffffffffu, y->x, by));
        y->y = __fadd_rn(y->y, __shfl_xor_sync(0xffffffffu, y->y, by));
    }
}

/* One entry into the matrix. With Out *asked is the lane's part of what q saw of the entry before,
 * and becomes the whole; q's sums are over while k's are. */
template <bool Out>
__device__ inline void take_in(const delta_entry &e, const delta_lane &at, delta_state *s,
                               float2 *asked)
{
    float4 k[kKeyQuads];
#pragma unroll
    for (int32_t i = 0; i < 4 * kKeyQuads; i++) {
        s->m[i].x = __fmul_rn(e.gates[0], s->m[i].x);
        s->m[i].y = __fmul_rn(e.gates[0], s->m[i].y);
    }
    const float2 value = *reinterpret_cast<const float2 *>(e.v + at.own);
    float2 seen = times_keys(e.k, at, *s, k);
    add_lanes<Out>(&seen, asked);
    const float ux = __fmul_rn(e.gates[1], __fsub_rn(value.x, seen.x));
    const float uy = __fmul_rn(e.gates[1], __fsub_rn(value.y, seen.y));
#pragma unroll
    for (int32_t i = 0; i < kKeyQuads; i++) {
        const float of[4] = {k[i].x, k[i].y, k[i].z, k[i].w};
#pragma unroll
        for (int32_t j = 0; j < 4; j++) {
            s->m[4 * i + j].x = fmaf(of[j], ux, s->m[4 * i + j].x);
            s->m[4 * i + j].y = fmaf(of[j], uy, s->m[4 * i + j].y);
        }
    }
}

/* What load_matrix has loaded takes in the entries of the run; with Out also what q sees of each,
 * which is written with the next one. The first entries have been asked for, into `room`. */
template <bool Out>
__device__ inline void run_delta(const delta_views &v, const delta_run &run, const delta_lane &at,
                                 delta_copy *copy, delta_entry *room, delta_state *s)
{
    const bool writes = threadIdx.x % 32 < kColumnLanes;
    float *out = Out ? v.out.at(run.row, run.head) + at.column : nullptr; // of the entry before
    float2 asked = make_float2(0.0f, 0.0f);
    float4 q[kKeyQuads];
    static_assert(kDeltaThreads == kMostKeys, "a thread a key");
    if (static_cast<int32_t>(threadIdx.x) >= v.dk)
#pragma unroll 1
        for (int32_t i = 0; i < 2 * kDeltaEntries; i++)
            room[i].k[threadIdx.x] = room[i].q[threadIdx.x] = 0.0f;
    for (int32_t first = 0; first < run.n; first += kDeltaEntries) {
        const int32_t half = first % (2 * kDeltaEntries);
        const int32_t n = min(run.n - first, kDeltaEntries);
        copy_async_wait<0>();
        __syncthreads(); // these are here, and those before have been taken in by all
        if (n < run.n - first)
            copy_entries<Out>(v, copy, min(run.n - first - n, kDeltaEntries),
                              room + (kDeltaEntries - half));
        for (int32_t i = 0; i < n; i++) {
            const delta_entry &e = room[half + i];
            take_in<Out>(e, at, s, &asked);
            if constexpr (Out) {
                if (first + i > 0) {
                    if (writes) put_columns(v, out, at, asked);
                    out += v.out_step;
                }
                asked = times_keys(e.q, at, *s, q);
            }
        }
    }
    if constexpr (Out) {
        add_lanes<false>(&asked, nullptr);
        if (writes) put_columns(v, out, at, asked);
    }
}

/* A CTA a (slot, head, slice of columns); the row table says whether the slot has rows. A matrix
 * that is ready is on its way while the kernel waits. */
template <bool Keep>
__global__ void __launch_bounds__(kDeltaThreads, kDeltaCtas)
    delta_rows(delta_views v, rows<const sk_row> table, pass p)
{
    __shared__ delta_entry room[2 * kDeltaEntries]; // two halves, in turn
    const int32_t head = blockIdx.y;
    const int32_t slot = blockIdx.z;
    const int32_t key = v.key[head];
    const delta_lane at = lane_of_delta();
    delta_state s;
    float *m = v.m.at(slot, head);
    if (!p.ready) edge_wait();
    const slot_span span = find_rows(table, live_rows(p.count, p.capacity), slot);
    if (!v.ready) edge_wait();
    if (span.n > 0) load_matrix(v, m, at, &s);
    const delta_run run = {span.first, span.n, head, key};
    delta_copy copy = copy_of_delta<true>(v, run, v.in[span.first],
                                          v.in.step / static_cast<int64_t>(sizeof(float)));
    edge_wait();
    edge_open();
    if (span.n == 0) return;
    copy_entries<true>(v, &copy, min(run.n, kDeltaEntries), room);
    run_delta<true>(v, run, at, &copy, room, &s);
    if (Keep) store_matrix(v, m, at, s);
}

/* Where everything is ready, all that it reads is on its way while it waits. */
__global__ void __launch_bounds__(kDeltaThreads, kDeltaCtas)
    delta_fold(delta_views v, int64_t step, const int32_t *kept)
{
    __shared__ delta_entry room[2 * kDeltaEntries];
    const int32_t head = blockIdx.y;
    const int32_t slot = blockIdx.z;
    const delta_lane at = lane_of_delta();
    delta_state s;
    float *m = v.m.at(slot, head);
    delta_run run = {0, 0, head, v.key[head]};
    delta_copy copy = copy_of_delta<false>(v, run, v.in[slot], step);
    if (!v.ready) edge_wait();
    run.n = kept[slot];
    if (run.n > 0) {
        load_matrix(v, m, at, &s);
        copy_entries<false>(v, &copy, min(run.n, kDeltaEntries), room);
    }
    edge_wait();
    edge_open();
    if (run.n <= 0) return;
    run_delta<false>(v, run, at, &copy, room, &s);
    store_matrix(v, m, at, s);
}

inline delta_views delta_of(const sk_launch *l, const sk_view &key, const sk_view &m,
                            const sk_view &in)
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
    v.ready = l->state_ready;
    v.pairs = row_aligned(m, 8) && v.dv % 2 == 0;
    return v;
}

inline dim3 delta_grid(const sk_view &m)
{
    return dim3(static_cast<unsigned>((m.dim[3] + kCtaColumns - 1) / kCtaColumns),
                static_cast<unsigned>(m.dim[1]), static_cast<unsigned>(m.dim[0]));
}

/* gdn_step or gdn_scan: their arguments have the same fields. */
template <bool Keep, typename Args> int32_t launch_delta(const Args *a, const sk_launch *l)
{
    delta_views v = delta_of(l, a->key, a->m, a->in);
    v.q = heads_of<const float>(a->q);
    v.out = heads_of<float>(a->out);
    v.out_step = step_of<float>(a->out, 0);
    v.q_step = step_of<float>(a->q, 0);
    v.wide = v.wide && row_aligned(a->q, 16);
    return launch(l, delta_rows<Keep>, delta_grid(a->m), dim3(kDeltaThreads), 0, v,
                  rows_of<const sk_row>(a->rows), pass_of(l, a->count, a->q.dim[0]));
}

} // namespace sk
