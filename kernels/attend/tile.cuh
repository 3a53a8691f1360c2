/* The instructions that attention is made of: BF16 tiles from shared memory into fragments, the
 * product of 16 x 16 by 16 x 8, and copies from global to shared memory that nobody waits for.
 *
 * With g = lane / 4 and t = lane % 4, element pairs of a fragment are: A (rows x k) {g, 2t},
 * {g + 8, 2t}, {g, 2t + 8}, {g + 8, 2t + 8}; B (k x columns) {2t, g}, {2t + 8, g}; C (rows x
 * columns) {g, 2t}, {g, 2t + 1}, {g + 8, 2t}, {g + 8, 2t + 1}. */
#pragma once

#include <cuda_bf16.h>
#include <stdint.h>

namespace sk
{

using bf16 = __nv_bfloat16;

struct frag_a {
    uint32_t x[4];
};

struct frag_b {
    uint32_t x[2];
};

__device__ inline uint32_t shared_at(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/* p, and the compiler knows that it points into global memory. */
template <typename T> __device__ inline T *in_global(T *p)
{
    __builtin_assume(__isGlobal(p));
    return p;
}

/* Four 8 x 8 tiles; lane l names the 16 bytes of row l % 8 of tile l / 8. */
__device__ inline frag_a load_tiles(const bf16 *row)
{
    frag_a f;
#ifdef __CUDACC__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(f.x[0]), "=r"(f.x[1]), "=r"(f.x[2]), "=r"(f.x[3])
                 : "r"(shared_at(row))
                 : "memory");
#else
    emulated::load_tiles(f.x, row, false);
#endif
    return f;
}

/* The same, each tile transposed. */
__device__ inline frag_a load_tiles_turned(const bf16 *row)
{
    frag_a f;
#ifdef __CUDACC__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(f.x[0]), "=r"(f.x[1]), "=r"(f.x[2]), "=r"(f.x[3])
                 : "r"(shared_at(row))
                 : "memory");
#else
    emulated::load_tiles(f.x, row, true);
#endif
    return f;
}

/* B of one k-step, stored as [column][k]: `at` is column g, k = 2t. Zero in columns unused. */
__device__ inline frag_b load_columns(const bf16 *at, bool used)
{
    frag_b f = {{0, 0}};
    if (used) {
        f.x[0] = *reinterpret_cast<const uint32_t *>(at);
        f.x[1] = *reinterpret_cast<const uint32_t *>(at + 8);
    }
    return f;
}

/* c += a b */
__device__ inline void multiply(float *c, const frag_a &a, const frag_b &b)
{
#ifdef __CUDACC__
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]));
#else
    emulated::mma(c, a.x, b.x);
#endif
}

#ifdef __CUDACC__

/* 16 bytes, not through the first-level cache. */
__device__ inline void copy16(bf16 *to, const bf16 *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_at(to)), "l"(from)
                 : "memory");
}

/* One float. */
__device__ inline void copy4(float *to, const float *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_at(to)), "l"(from)
                 : "memory");
}

/* Closes the group of copies that this thread has issued. */
__device__ inline void copies_close() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Waits for this thread's groups but the newest kOpen. */
template <int kOpen> __device__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(kOpen) : "memory");
}

#else // a test on the host

inline void copy16(bf16 *to, const bf16 *from) { emulated::copy_async(to, from, 16); }
inline void copy4(float *to, const float *from) { emulated::copy_async(to, from, 4); }
inline void copies_close() { copy_async_commit(); }
template <int kOpen> void copies_wait() { copy_async_wait_for(kOpen); }

#endif

} // namespace sk
