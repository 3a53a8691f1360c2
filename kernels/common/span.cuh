/* The rows of one slot in a pass, found by a CTA. They are neighbours, so a launch may have CTAs
 * for every slot there is, and its shape depends on nothing that changes by round. */
#pragma once

#include "kernels/common/rows.cuh"

namespace sk
{

struct slot_span {
    int32_t first;
    int32_t n; // 0: the slot has no rows
};

/* All threads of the CTA, once. A row and its neighbours are read together. */
__device__ inline slot_span find_rows(const rows<const sk_row> &table, int32_t live, int32_t slot)
{
    __shared__ int32_t first, end;
    if (threadIdx.x == 0) first = end = 0;
    __syncthreads();
    for (int32_t r = threadIdx.x; r < live; r += blockDim.x) {
        const int32_t before = r > 0 ? table[r - 1]->slot : -1;
        const int32_t own = table[r]->slot;
        const int32_t behind = r + 1 < live ? table[r + 1]->slot : -1;
        if (own != slot) continue;
        if (before != slot) first = r;
        if (behind != slot) end = r + 1;
    }
    __syncthreads();
    return slot_span{first, end - first};
}

/* Both halves of the edge, and the rows of the slot. A table that is ready is searched ahead of the
 * wait. */
__device__ inline slot_span wait_span(const rows<const sk_row> &table, const pass &p, int32_t slot)
{
    if (!p.ready) edge_wait();
    const slot_span span = find_rows(table, live_rows(p.count, p.capacity), slot);
    edge_wait();
    edge_open();
    return span;
}

} // namespace sk
