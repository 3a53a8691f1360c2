/* The work list of a mixture, by one CTA: the routes sorted by expert and number, then cut into
 * entries. A sort of so few numbers is a matter of a microsecond or two, and of nobody's order but
 * the contract's. */
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

} // namespace sk
