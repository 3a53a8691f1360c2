/* The exponential of this backend, in binary32: one sequence of operations for scalars and for
 * vectors of any width, so that no result depends on the C library. Within one unit in the last
 * place over the whole range, subnormal results included; see docs/numerics.md. */
#ifndef SK_CPU_EXP_H
#define SK_CPU_EXP_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define SK_EXP_MIN   (-105.0f) // from here down the result is 0
#define SK_EXP_MAX   89.0f     // from here up it is infinite
#define SK_EXP_LOG2E 0x1.715476p+0f
#define SK_EXP_MAGIC 12582912.0f // 1.5 * 2^23: adding it leaves an integer in the last places
#define SK_EXP_LN2_A 0x1.62e4p-1f
#define SK_EXP_LN2_B 0x1.7f7d1cp-20f

/* 1/7! .. 1/0! */
#define SK_EXP_TERMS                                                                               \
    {                                                                                              \
        0x1.a01a02p-13f, 0x1.6c16c2p-10f, 0x1.111112p-7f, 0x1.555556p-5f, 0x1.555556p-3f, 0.5f,    \
            1.0f, 1.0f                                                                             \
    }

/* 2^k for k in -126 .. 127. */
static inline float sk_power_of_2(int32_t k)
{
    uint32_t bits = (uint32_t)(k + 127) << 23;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float sk_exp(float x)
{
    static const float term[] = SK_EXP_TERMS;
    float n, r;
    float p = term[0];
    int32_t k;
    if (x != x) return x;
    x = x < SK_EXP_MIN ? SK_EXP_MIN : x > SK_EXP_MAX ? SK_EXP_MAX : x;
    n = fmaf(x, SK_EXP_LOG2E, SK_EXP_MAGIC) - SK_EXP_MAGIC;
    r = fmaf(n, -SK_EXP_LN2_A, x);
    r = fmaf(n, -SK_EXP_LN2_B, r);
    for (int i = 1; i < 8; i++) p = fmaf(p, r, term[i]);
    k = (int32_t)n;
    return p * sk_power_of_2(k / 2) * sk_power_of_2(k - k / 2); // the first product is exact
}

/* x / (1 + exp(-gate[i])), or x where there is no gate. */
static inline float sk_gated(float x, const float *gate, int64_t i)
{
    return gate ? x / (1.0f + sk_exp(-gate[i])) : x;
}

#endif
