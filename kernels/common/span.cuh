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

/* All threads of the CTA, once, after the wait. */
__device__ inline slot_span find_rows(const rows<const sk_row> &table, int32_t live, int32_t slot)
{
    __shared__ int32_t first, end;
    if (threadIdx.x == 0) first = end = 0;
    __syncthreads();
    for (int32_t r = threadIdx.x; r < live; r += blockDim.x) {
        if (table[r]->slot != slot) continue;
        if (r == 0 || table[r - 1]->slot != slot) first = r;
        if (r == live - 1 || table[r + 1]->slot != slot) end = r + 1;
    }
    __syncthreads();
    return slot_span{first, end - first};
}

} // namespace sk
