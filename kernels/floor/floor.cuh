/* Device code of the floor harness. What is read goes into a sum that is stored if it has one value
 * out of 2^32, so that no load can be left out. */
#pragma once

#include "kernels/common/launch.cuh"

namespace sk
{

constexpr int kFloorThreads = 256;
constexpr uint32_t kFloorNever = 0x5eedf100;

/* Streamed once: nothing to keep in L1. Not through the read-only path (ld.global.nc): such a load
 * may be moved behind the dependency wait, and the compiler does that. */
__device__ inline uint4 floor_load(const uint4 *p)
{
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* N loads, `stride` apart, of which those beyond n are left out. */
template <int N>
__device__ inline void floor_batch(uint4 (&v)[N], const uint4 *p, int64_t i, int64_t stride,
                                   int64_t n)
{
#pragma unroll
    for (int k = 0; k < N; k++) {
        v[k] = make_uint4(0, 0, 0, 0);
        if (i + k * stride < n) v[k] = floor_load(p + i + k * stride);
    }
}

template <int N> __device__ inline uint32_t floor_mix(const uint4 (&v)[N])
{
    uint32_t sum = 0;
#pragma unroll
    for (int k = 0; k < N; k++) sum ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    return sum;
}

/* The whole grid moves over the range as one front, so that every multiprocessor gets the same
 * share of a small range too. */
template <int THREADS, int PER_SM, int N>
__global__ void __launch_bounds__(THREADS, PER_SM)
    floor_read(const uint4 *p, int64_t n, uint32_t *sink)
{
    const int64_t stride = elem_stride();
    int64_t i = elem_first();
    uint32_t sum = 0;
    uint4 v[N];
    floor_batch<N>(v, p, i, stride, n);
    edge_wait();
    edge_open();
    // One loop without a way out in its middle: else its first half is copied in front of it, and a
    // use of the first batch, which waits for memory, scheduled ahead of the opening.
#pragma unroll 1
    do {
        sum ^= floor_mix<N>(v);
        i += N * stride;
        floor_batch<N>(v, p, i, stride, n);
    } while (i < n);
    if (sum == kFloorNever) *sink = sum;
}

__global__ void __launch_bounds__(kFloorThreads) floor_empty(uint32_t never, uint32_t *sink)
{
    edge_wait();
    edge_open();
    if (never != 0) *sink = never;
}

/* A bijection of 64 bits that looks random (the finaliser of MurmurHash3). */
__device__ inline uint64_t floor_hash(uint64_t x)
{
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdULL;
    x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ULL;
    return x ^ x >> 33;
}

__global__ void __launch_bounds__(kFloorThreads)
    floor_random(ulonglong2 *p, int64_t n, uint64_t seed)
{
    for (int64_t i = elem_first(); i < n; i += elem_stride()) {
        const uint64_t at = seed + 2 * static_cast<uint64_t>(i);
        p[i] = make_ulonglong2(floor_hash(at), floor_hash(at + 1));
    }
}

__device__ inline uint32_t floor_peek(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

/* One counter that only grows: barrier k is passed when every block has added to it k times. */
__global__ void __launch_bounds__(kFloorThreads) floor_barrier(uint32_t *count, int32_t n)
{
    for (int32_t k = 1; k <= n; k++) {
        __syncthreads();
        if (threadIdx.x == 0) {
            const uint32_t all = gridDim.x * static_cast<uint32_t>(k);
            asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(count) : "memory");
            while (floor_peek(count) < all) {
            }
        }
        __syncthreads();
    }
}

} // namespace sk
