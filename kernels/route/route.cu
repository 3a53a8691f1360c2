/* Ops `route_topk`, `route_force` and `gate_add`. Match any number of experts, up to 64 routes of a
 * row, any stride. Few routes to no more experts than a warp has in its registers are found by
 * counting who goes ahead of whom, and only among the logits that can be chosen at all. Otherwise
 * one CTA of each row takes the largest key below the last one, over and over: a thread keeps the
 * best of its own and looks again only when that was taken. How many threads there are, and with it
 * the order of the sum over all experts, is a function of their number alone. Would be wrong if
 * there were more than 64 routes, which are kept in shared memory. */
#include "kernels/sk_kernels.h"

#include "kernels/common/keys.cuh"
#include "kernels/common/quads.cuh"
#include "kernels/common/rows.cuh"
#include "kernels/common/setup.cuh"

namespace sk
{

constexpr int32_t kRoutesMax = 64;
constexpr int32_t kRouteThreads = 1024;
constexpr int32_t kRouteWarps = kRouteThreads / 32;

struct route_views {
    rows<const float> logits;
    rows<int32_t> ids;
    rows<float> weight;
    int32_t n;      // experts
    int32_t routes; // of a row
    int32_t normed;
};

struct route_shared {
    uint64_t best[2][kRouteWarps]; // in turns, so that one barrier a round is enough
    float sum[kRouteWarps];
    int32_t id[kRoutesMax];
    float weight[kRoutesMax];
    float total;
};

/* The thread's largest key below `last`. */
__device__ inline uint64_t best_below(const float *x, int32_t n, uint64_t last)
{
    uint64_t best = 0;
#pragma unroll 4
    for (int32_t i = threadIdx.x; i < n; i += blockDim.x) {
        const uint64_t key = best_key(x[i], static_cast<uint32_t>(i));
        best = key < last ? best_of(best, key) : best;
    }
    return best;
}

/* Largest key of the CTA, in every thread; all of them come. `room` has a word for each warp. */
__device__ inline uint64_t best_of_all(uint64_t key, uint64_t *room)
{
    key = best_of_warp(key);
    if (blockDim.x == 32) return key;
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = key;
    __syncthreads();
    return best_of_warp(threadIdx.x % 32 < blockDim.x / 32 ? room[threadIdx.x % 32] : 0);
}

/* Sum over the lanes, a tree, with the same bits in all of them. */
__device__ inline float sum_of_warp(float sum)
{
    for (int32_t by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
    return sum;
}

/* Sum of exp(x - max) over all experts, in every thread: a lane's own ascending, trees over lanes
 * and over warps. */
__device__ inline float sum_of_all(const float *x, int32_t n, float max, float *room)
{
    float sum = 0;
    for (int32_t i = threadIdx.x; i < n; i += blockDim.x)
        sum = __fadd_rn(sum, expf(__fsub_rn(x[i], max)));
    sum = sum_of_warp(sum);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = sum;
    __syncthreads();
    return sum_of_warp(threadIdx.x % 32 < blockDim.x / 32 ? room[threadIdx.x % 32] : 0.0f);
}

/* Sum of the chosen, in order. */
__device__ inline float sum_of_chosen(const float *weight, int32_t n)
{
    float total = 0;
#pragma unroll 4
    for (int32_t j = 0; j < n; j++) total = __fadd_rn(total, weight[j]);
    return total;
}

/* Row r by all threads of the CTA, whatever is in it. */
__device__ inline void route_row(const route_views &v, int32_t r, route_shared &m)
{
    const int32_t thread = static_cast<int32_t>(threadIdx.x);
    const float *x = v.logits[r];
    uint64_t own = best_below(x, v.n, ~static_cast<uint64_t>(0));
    for (int32_t j = 0; j < v.routes; j++) {
        const uint64_t top = best_of_all(own, m.best[j & 1]);
        if (thread == 0) m.id[j] = static_cast<int32_t>(best_index(top));
        if (own == top) own = best_below(x, v.n, top);
        __syncwarp();
    }
    __syncthreads();
    const float max = x[m.id[0]];
    for (int32_t j = thread; j < v.routes; j += blockDim.x)
        m.weight[j] = expf(__fsub_rn(x[m.id[j]], max));
    const float all = v.normed ? 0.0f : sum_of_all(x, v.n, max, m.sum);
    __syncthreads();
    if (thread == 0) m.total = v.normed ? sum_of_chosen(m.weight, v.routes) : all;
    __syncthreads();
    for (int32_t j = thread; j < v.routes; j += blockDim.x) {
        v.ids[r][j] = m.id[j];
        v.weight[r][j] = __fdiv_rn(m.weight[j], m.total);
    }
}

/* Grid: rows. */
__global__ void __launch_bounds__(kRouteThreads) route_rows(route_views v, pass p)
{
    __shared__ route_shared m;
    const int32_t r = static_cast<int32_t>(blockIdx.x);
    if (r >= wait_rows(p)) return;
    route_row(v, r, m);
}

inline unsigned route_threads(int64_t n) { return n <= 512 ? 32 : n <= 4096 ? 256 : kRouteThreads; }

/* ---- few routes --------------------------------------------------------------------------------
 *
 * A lane's largest logit is large if fewer than T of the other lanes' are larger. T lanes have one,
 * so nothing below the least of these is chosen. What is left is hardly more than T logits, unless
 * they come in few lanes or many are equal. */

constexpr int32_t kFewRoutes = 32; // as many as there are lanes
constexpr int32_t kFewEach = 16;   // logits of a lane
constexpr int32_t kFewExperts = 32 * kFewEach;
constexpr int32_t kFewLeft = 64; // more of them are for route_row

struct alignas(8) candidate {
    float x; // a number; NaN behind the last one
    int32_t id;
};

struct alignas(16) few_shared {
    candidate left[kFewExperts];
    float weight[kFewRoutes]; // 0 behind the last one
    uint32_t top[32];         // of a lane
    int32_t id[kFewRoutes];
    int32_t n; // that are left
};

__device__ inline float no_number() { return __uint_as_float(0x7fffffffu); }

/* By all lanes; may come ahead of the wait. */
__device__ inline void begin_few(few_shared &m, int32_t lane)
{
#pragma unroll
    for (int32_t i = 0; i < kFewLeft; i += 32) m.left[i + lane] = candidate{no_number(), 0};
    m.weight[lane] = 0;
    if (lane == 0) m.n = 0;
}

/* NaN only if all are. */
__device__ inline float largest_of(const float (&x)[kFewEach])
{
    float top[4] = {x[0], x[1], x[2], x[3]};
#pragma unroll
    for (int32_t k = 4; k < kFewEach; k++) top[k % 4] = fmaxf(top[k % 4], x[k]);
    return fmaxf(fmaxf(top[0], top[1]), fmaxf(top[2], top[3]));
}

/* Is the lane's largest logit a large one? Compared but for the lowest bit, so that a difference
 * has a sign; that can only make more of them large. */
__device__ inline bool is_large(few_shared &m, uint32_t order, int32_t lane, int32_t routes)
{
    uint32_t larger = 0;
    m.top[lane] = order >> 1;
    __syncwarp();
#pragma unroll
    for (int32_t i = 0; i < 32; i++) larger += ((order >> 1) - m.top[i]) >> 31;
    return order > 0 && static_cast<int32_t>(larger) < routes;
}

/* Those of the lane's logits that are no less than `least` to what is left, in any order. */
__device__ inline void leave(few_shared &m, const float (&own)[kFewEach], int32_t lane, float least)
{
    uint32_t which = 0;
#pragma unroll
    for (int32_t k = 0; k < kFewEach; k++) which |= own[k] >= least ? 1u << k : 0u;
    candidate *to = m.left + (which ? atomicAdd(&m.n, __popc(which)) : 0);
#pragma unroll
    for (int32_t k = 0; k < kFewEach; k++)
        if (which & 1u << k) *to++ = candidate{own[k], lane + 32 * k};
}

/* How many of those that are left go ahead of c. */
__device__ inline int32_t rank_of(const few_shared &m, int32_t n, const candidate &c)
{
    int32_t rank = 0;
#pragma unroll 1
    for (int32_t i = 0; i < n; i += 4)
#pragma unroll
        for (int32_t j = 0; j < 4; j++) {
            const candidate o = m.left[i + j];
            rank += (o.x > c.x) | ((o.x == c.x) & (o.id < c.id)); // branches would take longer
        }
    return rank;
}

/* Grid: rows; a warp. */
__global__ void __launch_bounds__(32) route_few(route_views v, pass p)
{
    __shared__ few_shared m;
    __shared__ route_shared other;
    const int32_t lane = static_cast<int32_t>(threadIdx.x);
    const int32_t r = static_cast<int32_t>(blockIdx.x);
    begin_few(m, lane);
    if (r >= wait_rows(p)) return;
    const float *x = v.logits[r] + lane;
    float own[kFewEach];
#pragma unroll
    for (int32_t k = 0; k < kFewEach; k++) own[k] = lane + 32 * k < v.n ? x[32 * k] : no_number();

    const uint32_t order = best_order(largest_of(own));
    const bool large = is_large(m, order, lane, v.routes);
    const float max = value_of_order(__reduce_max_sync(0xffffffffu, order));
    const float least = value_of_order(~__reduce_max_sync(0xffffffffu, large ? ~order : 0u));
    const bool enough = __popc(__ballot_sync(0xffffffffu, large)) >= v.routes; // numbers
    if (enough) leave(m, own, lane, least);
    __syncwarp();
    const int32_t n = m.n;
    if (!enough || n > kFewLeft) {
        route_row(v, r, other);
        return;
    }
#pragma unroll 1
    for (int32_t i = lane; i < n; i += 32) {
        const candidate c = m.left[i];
        const int32_t rank = rank_of(m, n, c);
        if (rank >= v.routes) continue;
        m.id[rank] = c.id;
        m.weight[rank] = expf(__fsub_rn(c.x, max));
    }
    __syncwarp();
    float total = 0; // in the order of sum_of_chosen, zeros behind it, or of sum_of_all
    if (v.normed) {
#pragma unroll 1
        for (int32_t j = 0; j < v.routes; j += 4)
#pragma unroll
            for (int32_t k = 0; k < 4; k++) total = __fadd_rn(total, m.weight[j + k]);
    } else {
#pragma unroll
        for (int32_t k = 0; k < kFewEach; k++)
            if (lane + 32 * k < v.n) total = __fadd_rn(total, expf(__fsub_rn(own[k], max)));
        total = sum_of_warp(total);
    }
    if (lane >= v.routes) return;
    v.ids[r][lane] = m.id[lane];
    v.weight[r][lane] = __fdiv_rn(m.weight[lane], total);
}

/* ---- route_force ----------------------------------------------------------------------------- */

constexpr int32_t kForceThreads = 32;

struct force_views {
    rows<const int32_t> table;
    rows<const sk_row> row;
    rows<int32_t> ids;
    uint32_t n;      // entries of the table
    int32_t routes;  // of a row
    uint32_t stride; // from slot to slot
};

/* Grid: rows. */
__global__ void __launch_bounds__(kForceThreads) force_routes(force_views v, pass p)
{
    const int32_t r = static_cast<int32_t>(blockIdx.x);
    if (r >= wait_rows(p)) return;
    const sk_row *row = v.row[r];
    const uint32_t at =
        (static_cast<uint32_t>(row->slot) * v.stride + static_cast<uint32_t>(row->pos)) % v.n;
    for (int32_t j = threadIdx.x; j < v.routes; j += kForceThreads) v.ids[r][j] = v.table[at][j];
}

/* ---- gate_add -------------------------------------------------------------------------------- */

constexpr int32_t kGateThreads = 256;

struct gate_views {
    rows<const float> x, gate;
    rows<float> y;
    int32_t n;
    int32_t wide; // rows are aligned for four elements at a time
};

/* Grid: parts of a row, rows. */
__global__ void __launch_bounds__(kGateThreads) add_gated(gate_views v, pass p)
{
    const int32_t r = static_cast<int32_t>(blockIdx.y);
    const int32_t i = 4 * static_cast<int32_t>(blockIdx.x * kGateThreads + threadIdx.x);
    if (r >= wait_rows(p) || i >= v.n) return;
    const float by = __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-v.gate[r][0])));
    const float4 x = load_quad(v.x[r], i, v.n, v.wide), y = load_quad(v.y[r], i, v.n, v.wide);
    store_quad(v.y[r], i, v.n, v.wide,
               make_float4(fmaf(by, x.x, y.x), fmaf(by, x.y, y.y), fmaf(by, x.z, y.z),
                           fmaf(by, x.w, y.w)));
}

} // namespace sk

extern "C" int32_t sk_k_route_topk(const sk_route_topk_args *a, const sk_launch *l)
{
    const sk::route_views v = {
        sk::rows_of<const float>(a->logits), sk::rows_of<int32_t>(a->ids),
        sk::rows_of<float>(a->weight),       static_cast<int32_t>(a->logits.dim[1]),
        static_cast<int32_t>(a->ids.dim[1]), a->normed,
    };
    if (v.routes > sk::kRoutesMax) return static_cast<int32_t>(cudaErrorInvalidValue);
    const dim3 rows(static_cast<unsigned>(a->logits.dim[0]));
    const sk::pass p = sk::pass_of(l, a->count, a->logits.dim[0]);
    if (v.n <= sk::kFewExperts && v.routes <= sk::kFewRoutes)
        return sk::launch(l, sk::route_few, rows, dim3(32), 0, v, p);
    return sk::launch(l, sk::route_rows, rows, dim3(sk::route_threads(v.n)), 0, v, p);
}

extern "C" int32_t sk_k_route_force(const sk_route_force_args *a, const sk_launch *l)
{
    const sk::force_views v = {
        sk::rows_of<const int32_t>(a->table), sk::rows_of<const sk_row>(a->rows),
        sk::rows_of<int32_t>(a->ids),         static_cast<uint32_t>(a->table.dim[0]),
        static_cast<int32_t>(a->ids.dim[1]),  static_cast<uint32_t>(a->stride),
    };
    return sk::launch(l, sk::force_routes, dim3(static_cast<unsigned>(a->ids.dim[0])),
                      dim3(sk::kForceThreads), 0, v, sk::pass_of(l, a->count, a->ids.dim[0]));
}

extern "C" int32_t sk_k_gate_add(const sk_gate_add_args *a, const sk_launch *l)
{
    const sk::gate_views v = {
        sk::rows_of<const float>(a->x),
        sk::rows_of<const float>(a->gate),
        sk::rows_of<float>(a->y),
        static_cast<int32_t>(a->y.dim[1]),
        sk::row_aligned(a->x, 16) && sk::row_aligned(a->y, 16),
    };
    const int64_t parts = (a->y.dim[1] + 4 * sk::kGateThreads - 1) / (4 * sk::kGateThreads);
    return sk::launch(l, sk::add_gated,
                      dim3(static_cast<unsigned>(parts), static_cast<unsigned>(a->y.dim[0])),
                      dim3(sk::kGateThreads), 0, v, sk::pass_of(l, a->count, a->y.dim[0]));
}

extern "C" int32_t sk_setup_route(void)
{
    return sk::prefer_shared_all(sk::route_rows, sk::route_few, sk::force_routes, sk::add_gated);
}
