/* The work list of a mixture, by one CTA: the routes sorted by expert and number, then cut into
 * entries. A sort of so few numbers is a matter of a microsecond or two, and of nobody's order but
 * the contract's. More than shared memory has room for are counted instead, by expert. */
#pragma once

#include "kernels/common/launch.cuh"

namespace sk
{

struct ListArgs {
    const int32_t *ids;
    int64_t ids_step;
    const int32_t *count;
    int32_t capacity, per; // rows, routes of a row
    int32_t room;          // keys in shared memory: a power of two
    uint8_t *list;
    int64_t list_step;
    int32_t *n;
    int32_t rows_ready;
};

constexpr int kListThreads = 512;
constexpr int32_t kSortedRoutes = 8192; // that are sorted: keys in the shared memory of any GPU

/* Shared memory of a list with room for so many routes, a power of two. */
constexpr size_t list_bytes(int32_t room)
{
    return 8 * static_cast<size_t>(room) + 4 * (kListThreads / 32);
}

__device__ inline uint64_t key_of_route(int32_t expert, int32_t route)
{
    return static_cast<uint64_t>(static_cast<uint32_t>(expert)) << 32 |
           static_cast<uint32_t>(route);
}

/* Sorts keys[0 .. n), n a power of two, by all threads. */
__device__ inline void sort_keys(uint64_t *keys, int n)
{
    for (int run = 2; run <= n; run *= 2)
        for (int apart = run / 2; apart > 0; apart /= 2) {
            __syncthreads();
            for (int i = static_cast<int>(threadIdx.x); i < n / 2; i += kListThreads) {
                const int low = 2 * i - (i & (apart - 1)), high = low + apart;
                const uint64_t a = keys[low], b = keys[high];
                if ((a > b) == ((low & run) == 0)) {
                    keys[low] = b;
                    keys[high] = a;
                }
            }
        }
    __syncthreads();
}

/* Keys below `key` among n sorted ones. */
__device__ inline int keys_below(const uint64_t *keys, int n, uint64_t key)
{
    int low = 0, high = n;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (keys[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The entry whose first route is number i of the sorted ones. */
__device__ inline void put_entry(const ListArgs &a, const uint64_t *keys, int n, int i, int32_t at)
{
    sk_route_entry e = {};
    e.expert = static_cast<int32_t>(keys[i] >> 32);
#pragma unroll
    for (int j = 0; j < SK_ENTRY_ROUTES; j++) {
        const bool mine =
            i + j < n && static_cast<int32_t>(keys[min(i + j, n - 1)] >> 32) == e.expert;
        e.route[j] = mine ? static_cast<int32_t>(keys[i + j]) : -1;
        e.n += mine;
    }
    *reinterpret_cast<sk_route_entry *>(a.list + at * a.list_step) = e;
}

__global__ void __launch_bounds__(kListThreads) list_routes(const ListArgs a)
{
    extern __shared__ uint64_t keys[];
    int32_t *starts = reinterpret_cast<int32_t *>(keys + a.room); // entries that each warp begins
    const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = tid >> 5;
    const int rows_early = a.rows_ready ? live_rows(a.count, a.capacity) : 0;
    edge_wait();
    edge_open();
    const int n = (a.rows_ready ? rows_early : live_rows(a.count, a.capacity)) * a.per;
    int room = 1;
    while (room < n) room *= 2;
    for (int i = tid; i < room; i += kListThreads)
        keys[i] = i < n ? key_of_route(a.ids[i / a.per * a.ids_step + i % a.per], i) : ~0ull;
    sort_keys(keys, room);

    int32_t before = 0; // entries of the rounds before this one
    for (int first = 0; first < n; first += kListThreads) {
        const int i = first + tid;
        bool begins = false;
        if (i < n) {
            const int32_t expert = static_cast<int32_t>(keys[i] >> 32);
            begins = (i - keys_below(keys, n, key_of_route(expert, 0))) % SK_ENTRY_ROUTES == 0;
        }
        const uint32_t mask = __ballot_sync(0xFFFFFFFFu, begins);
        if (lane == 0) starts[warp] = __popc(mask);
        __syncthreads();
        int32_t at = before + __popc(mask & ((1u << lane) - 1u));
        for (int w = 0; w < kListThreads / 32; w++) {
            if (w < warp) at += starts[w];
            before += starts[w];
        }
        if (begins) put_entry(a, keys, n, i, at);
        __syncthreads();
    }
    if (tid == 0) *a.n = before;
}

/* ---- many routes -------------------------------------------------------------------------------
 *
 * A warp has a stretch of the routes. It counts how many of them go to each expert of a window;
 * with what all warps have counted it knows the place of each, and goes through its stretch again.
 * Then comes the window that begins with the first expert not yet listed. */

constexpr int kManyThreads = 1024;
constexpr int kManyWarps = kManyThreads / 32;
constexpr int kListWindow = 512; // experts
constexpr uint32_t kNoExpert = 0xFFFFFFFFu;

struct many_shared {
    int32_t count[kManyWarps][kListWindow]; // of a warp; then those in front of the warp's next one
    int32_t all[kListWindow];               // routes of an expert
    int32_t entry[kListWindow];             // its first one
    int32_t sum[kListWindow / 32];
    uint32_t next; // the smallest id behind the window
};

struct route_stretch {
    int32_t from, to;
};

/* The expert of a route; none behind the end. */
__device__ inline uint32_t id_of_route(const ListArgs &a, int32_t i, int32_t end)
{
    return i < end ? static_cast<uint32_t>(a.ids[i / a.per * a.ids_step + i % a.per]) : kNoExpert;
}

/* Counts the stretch; the smallest id behind the window, in every lane. */
__device__ inline uint32_t count_routes(const ListArgs &a, int32_t *count, const route_stretch &s,
                                        uint32_t base, int lane)
{
    constexpr int kAtOnce = 4;
    uint32_t next = kNoExpert;
    for (int32_t at = s.from; at < s.to; at += 32 * kAtOnce) {
        uint32_t id[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; j++) id[j] = id_of_route(a, at + 32 * j + lane, s.to);
#pragma unroll
        for (int j = 0; j < kAtOnce; j++) {
            if (id[j] == kNoExpert || id[j] < base) continue;
            if (id[j] - base < kListWindow)
                atomicAdd(count + (id[j] - base), 1);
            else
                next = min(next, id[j]);
        }
    }
    return ~__reduce_max_sync(0xFFFFFFFFu, ~next);
}

/* What each warp has counted becomes what lies in front of it; how many entries the window has. A
 * thread an expert, and all threads come. */
__device__ inline int32_t place_experts(many_shared &m, int32_t first, int tid)
{
    const int lane = tid & 31, warp = tid >> 5;
    int32_t all = 0, mine = 0, before = 0, total = 0;
    if (tid < kListWindow) {
        for (int w = 0; w < kManyWarps; w++) {
            const int32_t here = m.count[w][tid];
            m.count[w][tid] = all;
            all += here;
        }
        m.all[tid] = all;
        mine = (all + SK_ENTRY_ROUTES - 1) / SK_ENTRY_ROUTES;
        before = mine;
        for (int by = 1; by < 32; by *= 2) {
            const int32_t other = __shfl_up_sync(0xFFFFFFFFu, before, by);
            if (lane >= by) before += other;
        }
        if (lane == 31) m.sum[warp] = before;
        before -= mine;
    }
    __syncthreads();
    for (int w = 0; w < kListWindow / 32; w++) {
        if (w < warp) before += m.sum[w];
        total += m.sum[w];
    }
    if (tid < kListWindow) m.entry[tid] = first + before;
    return total;
}

/* Route i, number `at` of its expert. The first one of an entry begins it. */
__device__ inline void put_route(const ListArgs &a, const many_shared &m, uint32_t base, uint32_t d,
                                 int32_t at, int32_t i)
{
    const int64_t entry = m.entry[d] + at / SK_ENTRY_ROUTES;
    sk_route_entry *e = reinterpret_cast<sk_route_entry *>(a.list + entry * a.list_step);
    const int32_t place = at % SK_ENTRY_ROUTES;
    e->route[place] = i;
    if (place > 0) return;
    e->expert = static_cast<int32_t>(base + d);
    e->n = min(m.all[d] - at, SK_ENTRY_ROUTES);
    e->reserved[0] = e->reserved[1] = 0;
#pragma unroll
    for (int32_t j = 1; j < SK_ENTRY_ROUTES; j++)
        if (j >= m.all[d] - at) e->route[j] = -1;
}

/* The stretch into the list, in order. */
__device__ inline void put_routes(const ListArgs &a, const many_shared &m, int32_t *count,
                                  const route_stretch &s, uint32_t base, int lane)
{
    uint32_t ahead = id_of_route(a, s.from + lane, s.to);
    for (int32_t at = s.from; at < s.to; at += 32) {
        const uint32_t d = ahead - base; // of what is below the window, or none: beyond it
        ahead = id_of_route(a, at + 32 + lane, s.to);
        const bool in = d < kListWindow;
        const uint32_t same = __match_any_sync(0xFFFFFFFFu, in ? d : kListWindow);
        const int32_t rank = __popc(same & ((1u << lane) - 1u));
        const int32_t before = in ? count[d] : 0;
        __syncwarp();
        if (in && rank == 0) count[d] = before + __popc(same);
        __syncwarp();
        if (in) put_route(a, m, base, d, before + rank, at + lane);
    }
}

__global__ void __launch_bounds__(kManyThreads) list_many_routes(const ListArgs a)
{
    extern __shared__ uint64_t keys[];
    many_shared &m = *reinterpret_cast<many_shared *>(keys);
    const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = tid >> 5;
    const int rows_early = a.rows_ready ? live_rows(a.count, a.capacity) : 0;
    edge_wait();
    edge_open();
    const int32_t n = (a.rows_ready ? rows_early : live_rows(a.count, a.capacity)) * a.per;
    const int32_t each = (n + kManyThreads - 1) / kManyThreads * 32; // of a warp
    const int32_t from = min(warp * each, n);
    const route_stretch s = {from, min(from + each, n)};
    int32_t entries = 0;
    for (uint32_t base = 0; base != kNoExpert; base = m.next) {
        __syncthreads();
        for (int i = lane; i < kListWindow; i += 32) m.count[warp][i] = 0;
        if (tid == 0) m.next = kNoExpert;
        __syncthreads();
        const uint32_t next = count_routes(a, m.count[warp], s, base, lane);
        if (lane == 0) atomicMin(&m.next, next);
        __syncthreads();
        entries += place_experts(m, entries, tid);
        __syncthreads();
        put_routes(a, m, m.count[warp], s, base, lane);
    }
    if (tid == 0) *a.n = entries;
}

} // namespace sk
