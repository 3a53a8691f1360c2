/* The largest key of a CTA, and of several CTAs that work on one thing: each brings its key, and
 * the last one to come takes the largest of all and leaves the cell zero again, as it found it. The
 * result does not depend on the order. Wrong if a CTA of the group never comes. */
#pragma once

#include "kernels/common/keys.cuh"
#include "kernels/common/launch.cuh"

namespace sk
{

/* Lies in sk_launch.sync. */
struct best_cell {
    uint64_t key;
    uint32_t came;
    uint32_t unused;
};
constexpr int64_t kCellWords = sizeof(best_cell) / 4;
constexpr int64_t kCells = SK_SYNC_WORDS / kCellWords;

/* Largest key of the CTA, in every lane of its first warp. `room` has a word for each warp. */
__device__ inline uint64_t best_of_block(uint64_t key, uint64_t *room)
{
    const uint32_t lane = threadIdx.x % 32;
    key = best_of_warp(key);
    if (lane == 0) room[threadIdx.x / 32] = key;
    __syncthreads();
    return threadIdx.x < 32 ? best_of_warp(lane < blockDim.x / 32 ? room[lane] : 0) : 0;
}

/* Draws a number, counting from 0; earlier visitors' writes are visible, and ours to later ones. */
__device__ inline uint32_t draw(uint32_t *came)
{
    uint32_t number = 0;
#if defined(__CUDA_ARCH__)
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                 : "=r"(number)
                 : "l"(came)
                 : "memory");
#elif !defined(__CUDACC__)
    number = atomicAdd(came, 1u);
#endif
    return number;
}

/* By one thread of each of n CTAs: true in the last one, which gets the largest key. */
__device__ inline bool best_of_blocks(best_cell *cell, uint32_t n, uint64_t *key)
{
    if (n == 1) return true;
    atomicMax(reinterpret_cast<unsigned long long *>(&cell->key), *key);
    if (draw(&cell->came) != n - 1) return false;
    *key = atomicExch(reinterpret_cast<unsigned long long *>(&cell->key), 0ull);
    cell->came = 0;
    return true;
}

} // namespace sk
