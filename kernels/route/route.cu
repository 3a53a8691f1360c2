/* Ops `route_topk`, `route_force` and `gate_add`. Match any number of experts, up to 64 routes of a
 * row, any stride. Of each row one CTA takes the largest key below the last one, over and over: a
 * thread keeps the best of its own and looks again only when that was taken. How many threads there
 * are, and with it the order of the sum over all experts, is a function of their number alone.
 * Would be wrong if there were more than 64 routes, which are kept in shared memory. */
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

/* Sum of exp(x - max) over all experts, in every thread: a lane's own ascending, trees over lanes
 * and over warps. */
__device__ inline float sum_of_all(const float *x, int32_t n, float max, float *room)
{
    float sum = 0;
    for (int32_t i = threadIdx.x; i < n; i += blockDim.x)
        sum = __fadd_rn(sum, expf(__fsub_rn(x[i], max)));
    for (int32_t by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = threadIdx.x % 32 < blockDim.x / 32 ? room[threadIdx.x % 32] : 0.0f;
    for (int32_t by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
    return sum;
}

/* Grid: rows. */
__global__ void __launch_bounds__(kRouteThreads) route_rows(route_views v, pass p)
{
    __shared__ route_shared m;
    const int32_t thread = static_cast<int32_t>(threadIdx.x);
    const int32_t r = static_cast<int32_t>(blockIdx.x);
    if (r >= wait_rows(p)) return;
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
    if (thread == 0) {
        float total = 0;
        for (int32_t j = 0; j < v.routes; j++) total = __fadd_rn(total, m.weight[j]);
        m.total = v.normed ? total : all;
    }
    __syncthreads();
    for (int32_t j = thread; j < v.routes; j += blockDim.x) {
        v.ids[r][j] = m.id[j];
        v.weight[r][j] = __fdiv_rn(m.weight[j], m.total);
    }
}

/* A warp as long as that is fast, as it needs no barriers. */
inline unsigned route_threads(int64_t n) { return n <= 512 ? 32 : n <= 4096 ? 256 : kRouteThreads; }

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
    return sk::launch(l, sk::route_rows, dim3(static_cast<unsigned>(a->logits.dim[0])),
                      dim3(sk::route_threads(v.n)), 0, v,
                      sk::pass_of(l, a->count, a->logits.dim[0]));
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
    return sk::prefer_shared_all(sk::route_rows, sk::force_routes, sk::add_gated);
}
