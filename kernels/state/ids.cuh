/* Row tables and ids of hybrid models: integers only; see state.cu. */
#pragma once

#include "kernels/common/rows.cuh"

namespace sk
{

constexpr int kSlotThreads = SK_SLOTS_MAX; // a thread a slot
static_assert(kSlotThreads == 64, "two warps");

/* The sum of `mine` over the threads before this one, and over all of them. The whole CTA. */
__device__ inline int32_t sum_before(int32_t mine, int32_t *total)
{
    __shared__ int32_t of_warp[2];
    const int32_t lane = threadIdx.x % 32;
    const int32_t warp = threadIdx.x / 32;
    int32_t sum = mine;
    for (int32_t by = 1; by < 32; by *= 2) {
        const int32_t below = __shfl_up_sync(0xffffffffu, sum, by);
        if (lane >= by) sum += below;
    }
    if (lane == 31) of_warp[warp] = sum;
    __syncthreads();
    *total = of_warp[0] + of_warp[1];
    return sum - mine + (warp == 1 ? of_warp[0] : 0);
}

/* A row table that the kernel fills: rows from `used` on are empty. */
struct new_rows {
    rows<sk_row> table;
    int32_t *count;
    int32_t capacity;
};

inline new_rows new_rows_of(const sk_view &table, const sk_view &count)
{
    return new_rows{rows_of<sk_row>(table), ptr<int32_t>(count),
                    static_cast<int32_t>(table.dim[0])};
}

__device__ inline void end_rows(const new_rows &v, int32_t used)
{
    if (threadIdx.x == 0) *v.count = used;
    for (int32_t r = used + static_cast<int32_t>(threadIdx.x); r < v.capacity; r += blockDim.x)
        *v.table[r] = sk_row{-1, 0, 0};
}

__global__ void __launch_bounds__(kSlotThreads)
    fill_draft_rows(new_rows v, rows<const sk_slot> slots, int32_t n_slots, const int32_t *chosen,
                    int32_t *ids, int32_t step)
{
    const int32_t b = threadIdx.x;
    int32_t used;
    sk_slot slot = {};
    edge_wait();
    edge_open();
    if (b < n_slots) slot = *slots[b];
    const bool takes_part = slot.active && slot.n >= 1;
    const int32_t r = sum_before(takes_part, &used);
    if (takes_part) {
        *v.table[r] = sk_row{b, slot.n - 1 + step, 0};
        ids[r] = step == 0 ? slot.anchor : chosen[r];
    }
    end_rows(v, used);
    for (int32_t i = used + b; i < v.capacity; i += blockDim.x) ids[i] = 0;
}

__global__ void __launch_bounds__(kSlotThreads)
    put_drafts(rows<const sk_row> table, const int32_t *chosen, rows<int32_t> drafts,
               int32_t *n_draft, int32_t step, pass p)
{
    const int32_t live = wait_rows(p);
    for (int32_t r = threadIdx.x; r < live; r += blockDim.x) {
        const int32_t b = table[r]->slot;
        drafts[b][step] = chosen[r];
        n_draft[b] = step + 1;
    }
}

__global__ void __launch_bounds__(kSlotThreads)
    fill_commit_rows(new_rows v, rows<const sk_slot> slots, int32_t n_slots, const int32_t *kept)
{
    const int32_t b = threadIdx.x;
    int32_t n = 0, first = 0, used;
    edge_wait();
    edge_open();
    if (b < n_slots) {
        n = kept[b];
        first = slots[b]->n - n;
    }
    const int32_t r = sum_before(n, &used);
    for (int32_t i = 0; i < n; i++) *v.table[r + i] = sk_row{b, first + i, i};
    end_rows(v, used);
}

__global__ void __launch_bounds__(kElemThreads)
    look_ahead(rows<const int32_t> tokens, rows<const sk_row> table, int32_t *ids, pass p)
{
    const int32_t r = static_cast<int32_t>(elem_first());
    if (r >= wait_rows(p)) return;
    const sk_row row = *table[r];
    ids[r] = tokens[row.slot][row.pos + 1];
}

struct hash_views {
    const int32_t *ids;
    rows<const int32_t> tokens;
    rows<const sk_row> table;
    const uint64_t *mult;
    const uint64_t *size;
    const int64_t *offset;
    rows<int32_t> out;
    int32_t n_heads;
    int32_t per; // heads an order
    int32_t eos;
};

/* A thread a (row, head). */
__global__ void __launch_bounds__(kElemThreads) hash_ngrams(hash_views v, pass p)
{
    const int64_t at = elem_first();
    const int32_t r = static_cast<int32_t>(at / v.n_heads);
    const int32_t g = static_cast<int32_t>(at % v.n_heads);
    if (r >= wait_rows(p)) return;
    const sk_row row = *v.table[r];
    const int32_t *before = v.tokens[row.slot];
    uint64_t x = static_cast<uint64_t>(v.ids[r]) * v.mult[0];
    bool cut = false; // the row's own token never cuts
    for (int32_t i = 1; i <= g / v.per + 1; i++) {
        int32_t token = v.eos;
        if (!cut && i <= row.pos) token = i <= row.at ? v.ids[r - i] : before[row.pos - i];
        cut = cut || token == v.eos;
        x ^= static_cast<uint64_t>(token) * v.mult[i];
    }
    v.out[r][g] = static_cast<int32_t>(v.offset[g] + static_cast<int64_t>(x % v.size[g]));
}

} // namespace sk
