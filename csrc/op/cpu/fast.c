/* The fast table: which entries of the definition are replaced, by what the processor has. */
#include "op/cpu/fast.h"

#include <string.h>
#if SK_HAVE_AVX2
#include <cpuid.h>
#endif

typedef enum isa_kind { ISA_GENERIC, ISA_AVX2, ISA_AVX512 } isa_kind; // each has the ones before

static isa_kind best_isa(void)
{
#if SK_HAVE_AVX2
    // clang 14 has no name for F16C. The others also say that the system saves the registers.
    unsigned a, b, c, d;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_F16C))
        return ISA_GENERIC;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return ISA_AVX512;
    return ISA_AVX2;
#else
    return ISA_GENERIC;
#endif
}

static const char *const names[] = {"generic", "avx2", "avx512"};

const char *sk_cpu_isa(void) { return names[best_isa()]; }

bool sk_cpu_table_find(sk_cpu_fn table[SK_OP_COUNT], const char *name)
{
    isa_kind isa = best_isa();
    memcpy(table, sk_cpu_ops, sizeof sk_cpu_ops);
    if (strcmp(name, "definition") == 0) return true;
    if (strcmp(name, "fast") != 0) {
        int i = 0;
        while (i <= (int)isa && strcmp(name, names[i]) != 0) i++;
        if (i > (int)isa) return false;
        isa = (isa_kind)i;
    }
    table[SK_OP_add] = sk_fast_add;
    table[SK_OP_rope] = sk_fast_rope;
    table[SK_OP_rms_norm] = sk_fast_rms_norm;
    table[SK_OP_silu_mul] = sk_fast_silu_mul;
    table[SK_OP_gelu_mul] = sk_fast_gelu_mul;
#if SK_HAVE_AVX2
    if (isa == ISA_GENERIC) return true;
    table[SK_OP_linear] = isa == ISA_AVX512 ? sk_avx512_linear : sk_avx2_linear;
    table[SK_OP_attend] = isa == ISA_AVX512 ? sk_avx512_attend : sk_avx2_attend;
    table[SK_OP_attend_blocks] = sk_avx2_attend_blocks;
    table[SK_OP_block_topk] = sk_avx2_block_topk;
    table[SK_OP_silu_mul] = sk_avx2_silu_mul;
    table[SK_OP_argmax] = sk_avx2_argmax;
    table[SK_OP_hyper_mix] = sk_avx2_hyper_mix;
    table[SK_OP_hyper_inject] = sk_avx2_hyper_inject;
    table[SK_OP_conv] = sk_avx2_conv;
    table[SK_OP_gdn_step] = sk_avx2_gdn_step;
    table[SK_OP_gdn_scan] = sk_avx2_gdn_scan;
    table[SK_OP_gdn_fold] = sk_avx2_gdn_fold;
    table[SK_OP_gated_norm] = sk_avx2_gated_norm;
#endif
    return true;
}
