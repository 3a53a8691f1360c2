/* Bulk copies from global into shared memory, with the barriers that say when they have arrived
 * (sm_90). One thread asks, the memory system copies, and everybody waits on the barrier; weights
 * pass through L2 without displacing what stays. Addresses and sizes are multiples of 16 bytes.
 *
 * Elsewhere (the generic path) the asking thread copies by itself, and the barrier is a flag. On
 * the host, for tests, tests/c/emulated_cuda.h has all of this. */
#pragma once

#ifdef __CUDACC__

#include <cuda_runtime.h>
#include <stdint.h>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define SK_BULK 1
#else
#define SK_BULK 0
#endif

namespace sk
{

__device__ inline uint32_t shared_address(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/* A barrier is eight bytes of shared memory; one arrival completes a phase. */
__device__ inline void barrier_init(uint64_t *bar)
{
#if SK_BULK
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(bar)) : "memory");
#else
    *bar = 0;
#endif
}

/* After all barrier_init of a thread, ahead of the first copy. */
__device__ inline void barrier_init_done()
{
#if SK_BULK
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* What this thread has read and written of shared memory so far is ahead of the bulk copies that
 * anybody asks for after it. */
__device__ inline void proxy_fence()
{
#if SK_BULK
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* The phase will be complete when `bytes` have arrived. Ahead of the copies, and by one thread: the
 * one of `mine`. A whole warp may come here; what is the same in all its lanes then stays in
 * uniform registers, which the copies want. */
__device__ inline void barrier_expect(uint64_t *bar, uint32_t bytes, bool mine = true)
{
#if SK_BULK
    asm volatile("{\n"
                 ".reg .pred mine;\n"
                 "setp.ne.u32 mine, %2, 0;\n"
                 "@mine mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n"
                 "}" ::"r"(shared_address(bar)),
                 "r"(bytes), "r"(static_cast<uint32_t>(mine))
                 : "memory");
#else
    (void)bar;
    (void)bytes;
    (void)mine;
#endif
}

/* Waits for the end of the phase of this parity (0 first). */
__device__ inline void barrier_wait(uint64_t *bar, uint32_t parity)
{
#if SK_BULK
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "again_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again_%=;\n"
                 "}" ::"r"(shared_address(bar)),
                 "r"(parity)
                 : "memory");
#else
    (void)bar;
    (void)parity;
    __syncwarp(); // what a lane of this warp has copied is there; of another warp, after a barrier
#endif
}

__device__ inline void plain_copy(uint8_t *to, const uint8_t *from, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i += 16)
        *reinterpret_cast<uint4 *>(to + i) = *reinterpret_cast<const uint4 *>(from + i);
}

/* What is read once: weights. */
__device__ inline void bulk_copy_once(uint8_t *to, const uint8_t *from, uint32_t bytes,
                                      uint64_t *bar, bool mine = true)
{
#if SK_BULK
    asm volatile("{\n"
                 ".reg .pred mine;\n"
                 ".reg .b64 policy;\n"
                 "setp.ne.u32 mine, %4, 0;\n"
                 "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
                 "@mine cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1], %2, [%3], policy;\n"
                 "}" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(bar)), "r"(static_cast<uint32_t>(mine))
                 : "memory");
#else
    (void)bar;
    if (mine) plain_copy(to, from, bytes);
#endif
}

/* The same with a policy that a loop has from outside: forming it takes a handful of instructions.
 */
__device__ inline uint64_t once_policy()
{
    uint64_t policy = 0;
#if SK_BULK
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}

/* One copy, or two of `bytes` each, that complete a phase of the barrier. A whole warp comes here,
 * with the same arguments, and one lane asks. That it is an elected one tells the assembler that it
 * is one: it then needs no loop over lanes, and what is the same stays in uniform registers. */
__device__ inline void bulk_copy_elected(uint64_t policy, uint8_t *to, const uint8_t *from,
                                         uint32_t bytes, uint64_t *bar)
{
#if SK_BULK
    asm volatile("{\n"
                 ".reg .pred mine;\n"
                 "elect.sync _|mine, 0xFFFFFFFF;\n"
                 "@mine mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n"
                 "@mine cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%2], [%3], %1, [%0], %4;\n"
                 "}" ::"r"(shared_address(bar)),
                 "r"(bytes), "r"(shared_address(to)), "l"(from), "l"(policy)
                 : "memory");
#else
    (void)policy;
    (void)bar;
    plain_copy(to, from, bytes);
#endif
}

__device__ inline void bulk_copy_two(uint64_t policy, uint8_t *to0, const uint8_t *from0,
                                     uint8_t *to1, const uint8_t *from1, uint32_t bytes,
                                     uint64_t *bar)
{
#if SK_BULK
    asm volatile("{\n"
                 ".reg .pred mine;\n"
                 "elect.sync _|mine, 0xFFFFFFFF;\n"
                 "@mine mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %2;\n"
                 "@mine cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%3], [%4], %1, [%0], %7;\n"
                 "@mine cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%5], [%6], %1, [%0], %7;\n"
                 "}" ::"r"(shared_address(bar)),
                 "r"(bytes), "r"(2 * bytes), "r"(shared_address(to0)), "l"(from0),
                 "r"(shared_address(to1)), "l"(from1), "l"(policy)
                 : "memory");
#else
    (void)policy;
    (void)bar;
    plain_copy(to0, from0, bytes);
    plain_copy(to1, from1, bytes);
#endif
}

/* What others read too: activations. */
__device__ inline void bulk_copy(uint8_t *to, const uint8_t *from, uint32_t bytes, uint64_t *bar)
{
#if SK_BULK
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(bar))
                 : "memory");
#else
    (void)bar;
    plain_copy(to, from, bytes);
#endif
}

/* Sixteen bytes a thread, or four, in groups that it waits for by itself. */
__device__ inline void copy_async16(uint16_t *shared, const uint16_t *global)
{
    const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}

__device__ inline void copy_async4(int32_t *shared, const int32_t *global)
{
    const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(global) : "memory");
}

__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int Pending> __device__ inline void copy_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

} // namespace sk

#endif
