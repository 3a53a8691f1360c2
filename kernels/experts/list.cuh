/* The work list of a mixture, by one CTA: the routes by expert and number, then cut into entries.
 * Routes that are no more than threads, to experts of low numbers, find their places by counting
 * who is in front of them, in three barriers. Others are sorted; more than shared memory has room
 * for are counted again, by expert. It is nobody's order but the contract's. */
#pragma once

#include "kernels/common/divide.h"
#include "kernels/common/launch.cuh"

namespace sk
{

struct ListArgs {
    const int32_t *ids;
    int64_t ids_step;
    const int32_t *count;
    int32_t capacity, per; // rows, routes of a row
    sk_divisor of_per;
    int32_t room; // keys in shared memory: a power of two
    uint8_t *list;
    int64_t list_step;
    int32_t *n;
    int32_t rows_ready;
};

constexpr int kListThreads = 512;
constexpr int32_t kSortedRoutes = 8192; // that are sorted: keys in the shared memory of any GPU

constexpr int kListWarps = kListThreads / 32;

/* What is counted where routes are few, those of expert i by thread i. */
struct alignas(16) counted_shared {
    uint8_t of[kListThreads][kListWarps]; // routes to an expert that each warp has
    uint8_t entries[kListWarps];          // of 32 experts
    uint32_t before[kListThreads];        // entries of those 32 in front of an expert's
};

/* Shared memory of a list with room for so many routes, a power of two. */
constexpr size_t list_bytes(int32_t room)
{
    const size_t sorted = 8 * static_cast<size_t>(room) + 4 * kListWarps;
    return sorted < sizeof(counted_shared) ? sizeof(counted_shared) : sorted;
}

/* Where the expert of route i is. */
__device__ inline const int32_t *route_at(const ListArgs &a, int32_t i)
{
    const int32_t r = sk_quotient(i, &a.of_per);
    return a.ids + r * a.ids_step + (i - r * a.per);
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

/* Route i, number `at` of the `all` of its expert, whose first entry is number `first`. The first
 * route of an entry begins it. */
__device__ inline void put_route(const ListArgs &a, int32_t expert, int32_t first, int32_t all,
                                 int32_t at, int32_t i)
{
    const int64_t entry = first + at / SK_ENTRY_ROUTES;
    sk_route_entry *e = reinterpret_cast<sk_route_entry *>(a.list + entry * a.list_step);
    const int32_t place = at % SK_ENTRY_ROUTES;
    e->route[place] = i;
    if (place > 0) return;
    e->expert = expert;
    e->n = min(all - at, SK_ENTRY_ROUTES);
    e->reserved[0] = e->reserved[1] = 0;
#pragma unroll
    for (int32_t j = 1; j < SK_ENTRY_ROUTES; j++)
        if (j >= all - at) e->route[j] = -1;
}

/* Sum of the first n of sixteen bytes. */
__device__ inline uint32_t sum_of_bytes(const uint8_t (&bytes)[kListWarps], int32_t n)
{
    static_assert(kListWarps == 16, "one load");
    const uint4 all = *reinterpret_cast<const uint4 *>(bytes);
    const uint32_t word[4] = {all.x, all.y, all.z, all.w};
    uint32_t sum = 0;
#pragma unroll
    for (int32_t i = 0; i < 4; i++) {
        const int32_t of_word = min(max(n - 4 * i, 0), 4);
        sum = __dp4a(word[i], of_word ? 0x01010101u >> (32 - 8 * of_word) : 0u, sum);
    }
    return sum;
}

/* The list of n routes, of which each thread has one: no more than there are threads, and counts
 * that are 0. No list but false if an expert's number is not below that of the threads. */
__device__ inline bool list_counted(const ListArgs &a, counted_shared &m, int32_t n,
                                    uint32_t expert)
{
    const int32_t tid = static_cast<int32_t>(threadIdx.x), lane = tid & 31, warp = tid >> 5;
    const bool mine = tid < n && expert < kListThreads;
    const uint32_t same = __match_any_sync(0xFFFFFFFFu, mine ? expert : kListThreads);
    uint32_t at = __popc(same & ((1u << lane) - 1u)), all = 0;
    if (mine && at == 0) m.of[expert][warp] = static_cast<uint8_t>(__popc(same));
    if (__syncthreads_or(tid < n && !mine)) return false;

    if (mine) {
        at += sum_of_bytes(m.of[expert], warp);
        all = sum_of_bytes(m.of[expert], kListWarps);
    }
    const uint32_t entries =
        (sum_of_bytes(m.of[tid], kListWarps) + SK_ENTRY_ROUTES - 1) / SK_ENTRY_ROUTES;
    uint32_t end = entries;
    for (int32_t by = 1; by < 32; by *= 2) {
        const uint32_t other = __shfl_up_sync(0xFFFFFFFFu, end, by);
        if (lane >= by) end += other;
    }
    m.before[tid] = end - entries;
    if (lane == 31) m.entries[warp] = static_cast<uint8_t>(end); // of 512 routes no more than 152
    __syncthreads();

    if (tid == 0) *a.n = static_cast<int32_t>(sum_of_bytes(m.entries, kListWarps));
    if (!mine) return true;
    const uint32_t first =
        m.before[expert] + sum_of_bytes(m.entries, static_cast<int32_t>(expert / 32));
    put_route(a, static_cast<int32_t>(expert), static_cast<int32_t>(first),
              static_cast<int32_t>(all), static_cast<int32_t>(at), tid);
    return true;
}

/* The list of any n routes, sorted in keys[0 .. room). */
__device__ inline void list_sorted(const ListArgs &a, uint64_t *keys, int n)
{
    int32_t *starts = reinterpret_cast<int32_t *>(keys + a.room); // entries that each warp begins
    const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = tid >> 5;
    int room = 1;
    while (room < n) room *= 2;
    for (int i = tid; i < room; i += kListThreads)
        keys[i] = i < n ? key_of_route(*route_at(a, i), i) : ~0ull;
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
        for (int w = 0; w < kListWarps; w++) {
            if (w < warp) at += starts[w];
            before += starts[w];
        }
        if (begins) put_entry(a, keys, n, i, at);
        __syncthreads();
    }
    if (tid == 0) *a.n = before;
}

__global__ void __launch_bounds__(kListThreads) list_routes(const ListArgs a)
{
    extern __shared__ __align__(16) uint64_t keys[];
    counted_shared &m = *reinterpret_cast<counted_shared *>(keys);
    const int32_t tid = static_cast<int32_t>(threadIdx.x);
    const int32_t *id = route_at(a, tid);
    *reinterpret_cast<uint4 *>(m.of[tid]) = make_uint4(0, 0, 0, 0);
    __syncthreads();
    const int rows_early = a.rows_ready ? live_rows(a.count, a.capacity) : 0;
    edge_wait();
    edge_open();
    const int n = (a.rows_ready ? rows_early : live_rows(a.count, a.capacity)) * a.per;
    if (n > kListThreads || !list_counted(a, m, n, tid < n ? static_cast<uint32_t>(*id) : 0))
        list_sorted(a, keys, n);
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
    return i < end ? static_cast<uint32_t>(*route_at(a, i)) : kNoExpert;
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
        if (in)
            put_route(a, static_cast<int32_t>(base + d), m.entry[d], m.all[d], before + rank,
                      at + lane);
    }
}

__global__ void __launch_bounds__(kManyThreads) list_many_routes(const ListArgs a)
{
    extern __shared__ __align__(16) uint64_t keys[];
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
