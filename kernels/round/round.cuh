/* What the kernels of a round share. All are one CTA with sixteen lanes a slot: lane i of a slot
 * has its token or row i, and what concerns the slot as a whole is loaded by all of them, as that
 * costs no more than one load and no exchange. Two slots share a warp. */
#pragma once

#include "kernels/common/rows.cuh"

namespace sk
{

constexpr int kSlotLanes = SK_WIDTH_MAX;
constexpr int kRoundThreads = SK_SLOTS_MAX * kSlotLanes;
static_assert(kSlotLanes == 16, "two slots a warp");

/* Whole warps; lanes of slots that do not exist stay in the kernel, as they are in warp votes. */
inline dim3 round_block(int64_t slots)
{
    return dim3(static_cast<unsigned>((slots * kSlotLanes + 31) / 32 * 32));
}

__device__ inline int32_t slot_of_lane() { return static_cast<int32_t>(threadIdx.x) / kSlotLanes; }

__device__ inline int32_t lane_of_slot() { return static_cast<int32_t>(threadIdx.x) % kSlotLanes; }

/* Mask of the slot's lanes in its warp. */
__device__ inline uint32_t lanes_of_slot() { return 0xffffu << (threadIdx.x & 16u); }

/* Votes of the slot's lanes, lane i in bit i. All lanes of the warp take part. */
__device__ inline uint32_t slot_votes(bool vote)
{
    const uint32_t all = __ballot_sync(0xffffffffu, vote);
    return (threadIdx.x & 16u ? all >> 16 : all) & 0xffffu;
}

/* How many lanes from the first on voted yes. */
__device__ inline int32_t leading_votes(uint32_t votes) { return __ffs(~votes) - 1; }

/* A round's place in a ring of n. Rounds count up from 0, so the short division is the usual one.
 */
__device__ inline uint32_t place_in_ring(uint64_t round, uint32_t n)
{
    if (round >> 32 == 0) return static_cast<uint32_t>(round) % n;
    return static_cast<uint32_t>(round % n);
}

/* A slot waits when it is told to, and when nothing legible tells it anything. */
__device__ inline bool slot_waits(int32_t valid, int32_t licence)
{
    return !valid || licence < SK_LICENCE_ALL;
}

} // namespace sk
