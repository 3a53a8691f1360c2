/* Sizes that the host plans with and kernels are launched with: plain C, in the sizes.h of each
 * family, so that there is one formula for both and a build without CUDA has it too. */
#ifndef SK_COMMON_SIZE_H
#define SK_COMMON_SIZE_H

#include <stdint.h>

#ifdef __CUDACC__
#define SK_SIZE __host__ __device__ constexpr
#elif defined(__cplusplus)
#define SK_SIZE constexpr
#else
#define SK_SIZE static inline
#endif

#define SK_WORK_ALIGN 256 // of the parts of a step's scratch

SK_SIZE uint64_t sk_work_aligned(uint64_t bytes)
{
    return (bytes + SK_WORK_ALIGN - 1) / SK_WORK_ALIGN * SK_WORK_ALIGN;
}

/* Rows that a launch takes when each wants `each` bytes of scratch and all of them get `most`, or
 * what one row wants if that is more. */
SK_SIZE int64_t sk_rows_at_once(int64_t rows, int64_t each, int64_t most)
{
    const int64_t fit = most / each;
    return fit < 1 ? 1 : fit < rows ? fit : rows;
}

/* Scratch that is enough for such launches, also where a row wants fewer bytes than `each`: that of
 * a context serves all tiers below it. */
SK_SIZE uint64_t sk_rows_work(int64_t rows, int64_t each, int64_t most)
{
    const int64_t all = rows * each, least = most > each ? most : each;
    return (uint64_t)(all < least ? all : least);
}

#endif
