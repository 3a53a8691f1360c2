/* Matrix products of four warps together (sm_90a): 64 rows of A out of the warps' registers,
 * sixteen of each as in m16n8k16, times up to 40 columns of B that the tensor cores read from
 * shared memory by themselves, once for all four warps and without an instruction of theirs. Sums
 * have the bits of mma.sync: tests hold both against each other through every product.
 *
 * B lies in core matrices of eight columns by sixteen bytes of K, each a run of 128 bytes: those of
 * the next eight columns follow at once, those of the next eight of K `step` bytes on. */
#pragma once

#include "kernels/common/bulk.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SK_WGMMA 1
#else
#define SK_WGMMA 0
#endif

namespace sk
{

/* Where B begins, as the instruction wants it told: an address in sixteen bytes, so that another
 * place is an addition away, and the step. The upper word is the same for all B. */
__device__ inline uint32_t core_matrices(const void *b, uint32_t step)
{
    return (shared_address(b) >> 4) | (step >> 4) << 16;
}

/* What threads have written into shared memory is there for the tensor cores; ahead of the barrier
 * that ends the writing. */
__device__ inline void cores_written()
{
#if SK_WGMMA
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

#if SK_WGMMA
/* Registers of A are final, and the sums may be written. */
__device__ inline void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/* The products are under way; ahead of their end nothing may touch what they read or write. */
__device__ inline void products_go()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* The end of all products but those of the last `Going` calls of products_go. */
template <int Going> __device__ inline void products_end()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Going) : "memory");
}

/* d += a b, or d = a b where it is the first: sums [columns / 8][4] as those of mma.sync. */
template <bool First>
__device__ inline void products_add(float (&d)[3][4], const uint32_t *a, uint32_t b)
{
    asm volatile("{\n"
                 ".reg .pred add;\n"
                 ".reg .b64 b;\n"
                 "setp.ne.b32 add, %17, 0;\n"
                 "mov.b64 b, {%16, 8};\n"
                 "wgmma.mma_async.sync.aligned.m64n24k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11}, "
                 "{%12, %13, %14, %15}, b, add, 1, 1, 0;\n"
                 "}"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]),
                   "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]),
                   "+f"(d[2][2]), "+f"(d[2][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(First ? 0 : 1));
}

template <bool First>
__device__ inline void products_add(float (&d)[5][4], const uint32_t *a, uint32_t b)
{
    asm volatile("{\n"
                 ".reg .pred add;\n"
                 ".reg .b64 b;\n"
                 "setp.ne.b32 add, %25, 0;\n"
                 "mov.b64 b, {%24, 8};\n"
                 "wgmma.mma_async.sync.aligned.m64n40k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19}, "
                 "{%20, %21, %22, %23}, b, add, 1, 1, 0;\n"
                 "}"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]),
                   "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]),
                   "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]),
                   "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(First ? 0 : 1));
}
#endif

} // namespace sk
