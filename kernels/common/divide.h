/* Divisions that a kernel would begin with, by numbers that the host knows: a product with what the
 * host has divided. The start of a short kernel is a good part of it. Plain C, so that a test holds
 * it against division on the host. */
#ifndef SK_COMMON_DIVIDE_H
#define SK_COMMON_DIVIDE_H

#include <stdint.h>

#ifdef __CUDACC__
#define SK_DIVIDE __host__ __device__ static inline
#else
#define SK_DIVIDE static inline
#endif

SK_DIVIDE uint32_t sk_high_product(uint32_t a, uint32_t b)
{
#ifdef __CUDA_ARCH__
    return __umulhi(a, b);
#else
    return (uint32_t)(((uint64_t)a * b) >> 32);
#endif
}

/* For sk_divided by n > 0: 1 / n in units of 2^-32, more than that by at most one; 1 for 1. */
SK_DIVIDE uint32_t sk_reciprocal(int32_t n)
{
    return (uint32_t)((UINT64_C(1) << 32) / (uint64_t)n + 1);
}

/* i / n for 0 <= i < 2^32 / n, `by` being the reciprocal of n. */
SK_DIVIDE int32_t sk_divided(int32_t i, uint32_t by)
{
    return by == 1 ? i : (int32_t)sk_high_product((uint32_t)i, by);
}

/* For numbers of any size: what is multiplied with gives the quotient, or one less, and that is
 * seen. */
typedef struct sk_divisor {
    uint32_t by, reciprocal;
} sk_divisor;

SK_DIVIDE sk_divisor sk_divisor_of(int32_t n)
{
    const sk_divisor d = {(uint32_t)n, 0xFFFFFFFFu / (uint32_t)n};
    return d;
}

/* i / n for i >= 0. */
SK_DIVIDE int32_t sk_quotient(int32_t i, const sk_divisor *n)
{
    const uint32_t u = (uint32_t)i, q = sk_high_product(u, n->reciprocal);
    return (int32_t)(q + (u - q * n->by >= n->by));
}

#undef SK_DIVIDE

#endif
