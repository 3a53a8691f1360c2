/* Both halves of the edge for a kernel that works on one row of the pass. */
#pragma once

#include "kernels/common/rows.cuh"

namespace sk
{

/* A row of the pass. */
struct live_row {
    int32_t slot, pos, at;
    bool live;
};

/* Both halves of the edge. The row and the count are on their way together, and while the kernel
 * waits if they are ready. */
__device__ inline live_row wait_row(const rows<const sk_row> &at, const pass &p, int32_t r)
{
    int32_t slot = 0, pos = 0, number = 0, count = 0;
    if (p.ready) {
        slot = at[r]->slot;
        pos = at[r]->pos;
        number = at[r]->at;
        count = *p.count;
    }
    edge_wait();
    edge_open();
    if (!p.ready) {
        slot = at[r]->slot;
        pos = at[r]->pos;
        number = at[r]->at;
        count = *p.count;
    }
    // Read here, not where it is needed.
    asm volatile("" : "+r"(slot), "+r"(pos), "+r"(number), "+r"(count));
    return {slot, pos, number, r < count};
}

} // namespace sk
