/* The fast table: which entries of the definition are replaced, by what the processor has. */
#include "op/cpu/fast.h"

#include <string.h>
#if SK_HAVE_AVX2
#include <cpuid.h>
#endif

static bool have_avx2(void)
{
#if SK_HAVE_AVX2
    // clang 14 has no name for F16C; the first two also say that the system saves the registers.
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
#else
    return false;
#endif
}

void sk_cpu_fast_table(sk_cpu_fn table[SK_OP_COUNT])
{
    memcpy(table, sk_cpu_ops, sizeof sk_cpu_ops);
    table[SK_OP_rms_norm] = sk_fast_rms_norm;
    table[SK_OP_silu_mul] = sk_fast_silu_mul;
    table[SK_OP_gelu_mul] = sk_fast_gelu_mul;
#if SK_HAVE_AVX2
    if (!have_avx2()) return;
    table[SK_OP_linear] = sk_avx2_linear;
    table[SK_OP_attend] = sk_avx2_attend;
    table[SK_OP_argmax] = sk_avx2_argmax;
#endif
}

const char *sk_cpu_isa(void) { return have_avx2() ? "avx2" : "generic"; }
