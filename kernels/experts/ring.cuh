/* A warp's own ring of weights in shared memory: what it will need in its next steps is under way
 * while it computes. Bulk copies where the architecture has them, else copies of sixteen bytes a
 * lane. */
#pragma once

#include "kernels/common/bulk.cuh"

namespace sk
{

/* Depth slots, each in two halves that come from two places. */
template <int Depth, int Half> struct StepRing {
    static constexpr int kBytes = 2 * Half;
    static constexpr bool kOneLane = SK_BULK; // lane 0 asks for all
    uint8_t *slots;
    uint64_t *barriers;
    uint32_t phase;
    int at;

    /* All lanes. */
    __device__ void open(uint8_t *room, uint64_t *behind, int lane)
    {
        slots = room;
        barriers = behind;
        phase = 0;
        at = 0;
        if (!kOneLane) return;
        if (lane == 0) {
            for (int i = 0; i < Depth; i++) barrier_init(barriers + i);
            barrier_init_done();
        }
        __syncwarp();
    }
    /* `bytes` of each half are going to be asked for, into slot i. */
    __device__ void expect(int i, int bytes) const
    {
        if (kOneLane) barrier_expect(barriers + i, static_cast<uint32_t>(2 * bytes));
    }
    __device__ void fetch(int i, int half, const uint8_t *from, int bytes, int lane) const
    {
        uint8_t *to = slots + kBytes * i + Half * half;
        if constexpr (kOneLane) {
            bulk_copy_once(to, from, static_cast<uint32_t>(bytes), barriers + i);
        } else {
            for (int k = 16 * lane; k < bytes; k += 512)
                copy_async16(reinterpret_cast<uint16_t *>(to + k),
                             reinterpret_cast<const uint16_t *>(from + k));
        }
    }
    /* Behind the last copy of a step, also where there was none: they are counted. */
    __device__ void asked() const
    {
        if (!kOneLane) copy_async_commit();
    }
    /* Until the next slot is full. */
    __device__ const uint8_t *wait() const
    {
        if (kOneLane) {
            barrier_wait(barriers + at, phase);
        } else {
            copy_async_wait<Depth - 1>();
            __syncwarp();
        }
        return slots + kBytes * at;
    }
    /* All lanes have read it. Returns its number. */
    __device__ int release()
    {
        const int free = at;
        __syncwarp();
        if (++at == Depth) {
            at = 0;
            phase ^= 1;
        }
        return free;
    }
};

} // namespace sk
