/* A warp's own ring of weights in shared memory: what it will need in its next steps is under way
 * while it computes. Bulk copies where the architecture has them, else copies of sixteen bytes a
 * lane. */
#pragma once

#include "kernels/common/bulk.cuh"

namespace sk
{

/* Depth slots of one or two tiles, that come from as many places. */
template <int Depth, int Tiles, int TileBytes> struct StepRing {
    static constexpr int kBytes = Tiles * TileBytes;
    static constexpr bool kOneLane = SK_BULK; // lane 0 asks for all
    uint8_t *slots;
    uint64_t *barriers;
    uint64_t policy;
    uint32_t phase;
    int at;

    /* All lanes. */
    __device__ void open(uint8_t *room, uint64_t *behind, int lane)
    {
        slots = room;
        barriers = behind;
        policy = once_policy();
        phase = 0;
        at = 0;
        if (!kOneLane) return;
        if (lane == 0) {
            for (int i = 0; i < Depth; i++) barrier_init(barriers + i);
            barrier_init_done();
        }
        __syncwarp();
    }
    /* Asks for `bytes` of a tile, or of each of two, into slot i. All lanes, with the same
     * arguments. */
    __device__ void fetch_one(int i, const uint8_t *from, int bytes, int lane) const
    {
        uint8_t *to = slots + kBytes * i;
        if constexpr (kOneLane)
            bulk_copy_elected(policy, to, from, static_cast<uint32_t>(bytes), barriers + i);
        else
            copy(to, from, bytes, lane);
    }
    __device__ void fetch_two(int i, const uint8_t *first, const uint8_t *second, int bytes,
                              int lane) const
    {
        uint8_t *to = slots + kBytes * i;
        if constexpr (kOneLane) {
            bulk_copy_two(policy, to, first, to + TileBytes, second, static_cast<uint32_t>(bytes),
                          barriers + i);
        } else {
            copy(to, first, bytes, lane);
            copy(to + TileBytes, second, bytes, lane);
        }
    }
    /* Behind the last copy of a slot, also where there was none: they are counted. */
    __device__ void asked() const
    {
        if (!kOneLane) copy_async_commit();
    }
    /* Until the next slot is full; where it is in shared memory. */
    __device__ uint32_t wait() const
    {
        if (kOneLane) {
            barrier_wait(barriers + at, phase);
        } else {
            copy_async_wait<Depth - 1>();
            __syncwarp();
        }
        return shared_address(slots) + static_cast<uint32_t>(kBytes * at);
    }
    /* All lanes have read it. Returns its number. Copies do not go the way of loads: without the
     * fence one can overtake loads that were issued long before, and a lane finds the weights of
     * two steps later. */
    __device__ int release()
    {
        const int free = at;
        proxy_fence();
        __syncwarp();
        if (++at == Depth) {
            at = 0;
            phase ^= 1;
        }
        return free;
    }

  private:
    __device__ static void copy(uint8_t *to, const uint8_t *from, int bytes, int lane)
    {
        for (int k = 16 * lane; k < bytes; k += 512)
            copy_async16(reinterpret_cast<uint16_t *>(to + k),
                         reinterpret_cast<const uint16_t *>(from + k));
    }
};

} // namespace sk
