/* Which tasks of a work list are a CTA's: runs of about equal cost, as in schedule.h. Every CTA
 * finds its own out of the list, which is one read and some shuffles. */
#pragma once

#include "kernels/common/divide.h"
#include "kernels/common/launch.cuh"
#include "kernels/experts/schedule.h"
#include "kernels/linear/fragment.cuh"

#include <stddef.h>

namespace sk
{

struct ExpertArgs {
    const uint8_t *w;     // gate, or the only weight
    int64_t expert_bytes; // of one packed matrix
    const uint16_t *x;    // BF16
    int64_t x_step;
    sk_divisor per; // routes that share a row of x
    const uint8_t *list;
    int32_t list_step; // bytes
    const int32_t *n;
    int32_t capacity; // entries
    int32_t k, n_out;
    int32_t units, steps;      // of K
    int64_t tile_bytes, apart; // of the two tiles of a task
    int32_t tiles, stripes;    // of an expert: tiles of 16 outputs, tasks
    sk_divisor of_stripes;
    void *out; // BF16 where gated, else F32
    int64_t out_step;
    int32_t gelu;
    int32_t list_ready; // the list may be read before the wait
};

/* Word i of entry e. Asked for at once, whether or not the list has so many. */
__device__ inline int32_t entry_word(const ExpertArgs &a, int32_t e, int i)
{
    return static_cast<int32_t>(load4(a.list + static_cast<int64_t>(e) * a.list_step + 4 * i));
}

__device__ inline int32_t routes_of(const ExpertArgs &a, int32_t e)
{
    return entry_word(a, e, offsetof(sk_route_entry, n) / 4);
}

__device__ inline int32_t entries_listed(const ExpertArgs &a)
{
    return static_cast<int32_t>(load4(reinterpret_cast<const uint8_t *>(a.n)));
}

__device__ inline int32_t up_to_lane(int32_t x, int lane)
{
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        const int32_t other = __shfl_up_sync(0xFFFFFFFFu, x, by);
        if (lane >= by) x += other;
    }
    return x;
}

struct Tasks {
    int32_t begin, end;
};

/* The CTA's tasks, by all of its threads: entries in as many runs as there are threads, the costs
 * of the runs added up, and in the runs where the CTA's costs begin and end a look at each entry.
 */
__device__ inline Tasks find_tasks(const ExpertArgs &a, int32_t *costs, int32_t *tasks)
{
    const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = tid >> 5;
    const int threads = static_cast<int>(blockDim.x);
    const int each = (a.capacity + threads - 1) / threads;
    const int first = min(tid * each, a.capacity), end = min(first + each, a.capacity);
    const int32_t listed = entries_listed(a);
    int32_t cost = 0;
    for (int e = first; e < end; e++) {
        const int32_t routes = routes_of(a, e);
        cost += e < listed ? sk_task_cost(routes) : 0;
    }
    const int32_t n = min(listed, a.capacity), through = up_to_lane(cost, lane);
    if (lane == 31) costs[warp] = through;
    __syncthreads();
    int32_t before = through - cost, all = 0;
    for (int w = 0; w < threads / 32; w++) {
        if (w < warp) before += costs[w];
        all += costs[w];
    }
    for (int edge = 0; edge < 2; edge++) {
        const int64_t whole = static_cast<int64_t>(all) * a.stripes;
        const int64_t at = sk_cost_before(whole, static_cast<int32_t>(blockIdx.x) + edge,
                                          static_cast<int32_t>(gridDim.x));
        int64_t front = static_cast<int64_t>(before) * a.stripes;
        if (at >= whole) {
            if (tid == 0) tasks[edge] = n * a.stripes;
        } else if (at >= front && at < front + static_cast<int64_t>(cost) * a.stripes) {
            for (int e = first; e < n; e++) {
                const int32_t one = sk_task_cost(routes_of(a, e));
                const int64_t behind = front + static_cast<int64_t>(one) * a.stripes;
                if (at < behind) {
                    tasks[edge] = sk_task_at(at, front, e * a.stripes, one);
                    break;
                }
                front = behind;
            }
        }
    }
    __syncthreads();
    return {tasks[0], tasks[1]};
}

/* The same for a list that is short enough for every warp to read all of it, so that none waits
 * for another one. Reading is a step of its own: it takes long, and there is something to do. */
constexpr int kRunOfLane = 8; // entries
constexpr int kShortList = 32 * kRunOfLane;

struct ShortList {
    int32_t listed, each;
    int32_t routes[kRunOfLane];

    __device__ void read(const ExpertArgs &a, int lane)
    {
        listed = entries_listed(a);
        each = (a.capacity + 31) / 32;
#pragma unroll
        for (int i = 0; i < kRunOfLane; i++) {
            routes[i] = 0;
            if (i < each) routes[i] = routes_of(a, min(lane * each + i, a.capacity - 1));
        }
    }

    /* The lower half of the lanes looks for the first edge, the upper one for the second. All costs
     * are below 2^31: 256 entries, 115, 65536 stripes. */
    __device__ Tasks find(const ExpertArgs &a, int lane) const
    {
        const int32_t n = min(listed, a.capacity);
        const int half = lane >> 4;
        int32_t cost = 0;
#pragma unroll
        for (int i = 0; i < kRunOfLane; i++)
            cost += i < each && lane * each + i < n ? sk_task_cost(routes[i]) : 0;
        const int32_t through = up_to_lane(cost, lane), front = (through - cost) * a.stripes;
        const int32_t whole = __shfl_sync(0xFFFFFFFFu, through, 31) * a.stripes;
        const int32_t at = static_cast<int32_t>(
            sk_parts(static_cast<uint32_t>(whole), blockIdx.x + half, gridDim.x));
        // the lane whose run has it, then which of its entries
        const uint32_t low = __ballot_sync(0xFFFFFFFFu, front <= other_half(at, 0));
        const uint32_t high = __ballot_sync(0xFFFFFFFFu, front <= other_half(at, 1));
        const int run = __popc(half ? high : low) - 1, i = lane & 15;
        const int e = run * each + i;
        int32_t one = 0;
        if (i < each && e < n) one = sk_task_cost(routes_of(a, e));
        int32_t before = one;
#pragma unroll
        for (int by = 1; by < kRunOfLane; by *= 2) {
            const int32_t other = __shfl_up_sync(0xFFFFFFFFu, before, by, 16);
            if (i >= by) before += other;
        }
        before = __shfl_sync(0xFFFFFFFFu, front, run) + (before - one) * a.stripes;
        const bool here = at >= before && at < before + one * a.stripes;
        const uint32_t found = __ballot_sync(0xFFFFFFFFu, here);
        const int32_t task =
            e * a.stripes + static_cast<int32_t>(static_cast<uint32_t>(at - before) /
                                                 static_cast<uint32_t>(max(one, 1)));
        const int32_t begin = __shfl_sync(0xFFFFFFFFu, task, __ffs(found & 0xFFFFu) - 1);
        const int32_t end = __shfl_sync(0xFFFFFFFFu, task, __ffs(found & 0xFFFF0000u) - 1);
        return {found & 0xFFFFu ? begin : n * a.stripes, found & 0xFFFF0000u ? end : n * a.stripes};
    }

  private:
    __device__ static int32_t other_half(int32_t x, int half)
    {
        return __shfl_sync(0xFFFFFFFFu, x, 16 * half);
    }
};

} // namespace sk
