/* Entries of the fast table. sk_avx2_* exist on x86-64 and run only where sk_cpu_isa() says so.
 * Private to op/cpu. */
#ifndef SK_CPU_FAST_H
#define SK_CPU_FAST_H

#include "op/cpu/def.h"

#if defined(__x86_64__)
#define SK_HAVE_AVX2 1
#define SK_AVX2      __attribute__((target("avx2,fma,f16c")))
#define SK_AVX512    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")))
#ifdef __SANITIZE_ADDRESS__
// Checked builds keep the functions apart: forced into one another, with every load checked, they
// take the compiler minutes.
#define SK_ALWAYS_INLINE
#else
#define SK_ALWAYS_INLINE __attribute__((always_inline))
#endif
#define SK_INLINE static inline SK_ALWAYS_INLINE SK_AVX2
/* Before a loop of few turns whose arrays are meant to be registers. gcc -O2 would not unroll it;
 * clang would, and does so too late for the arrays when asked. */
#if defined(__clang__) || defined(__SANITIZE_ADDRESS__)
#define SK_UNROLL
#else
#define SK_UNROLL _Pragma("GCC unroll 16")
#endif

void sk_avx2_linear(const void *args, const sk_cpu *cpu);
void sk_avx512_linear(const void *args, const sk_cpu *cpu);
void sk_avx2_attend(const void *args, const sk_cpu *cpu);
void sk_avx512_attend(const void *args, const sk_cpu *cpu);
void sk_avx2_attend_blocks(const void *args, const sk_cpu *cpu);
void sk_avx2_block_topk(const void *args, const sk_cpu *cpu);
void sk_avx2_silu_mul(const void *args, const sk_cpu *cpu);
void sk_avx2_argmax(const void *args, const sk_cpu *cpu);
void sk_avx2_hyper_mix(const void *args, const sk_cpu *cpu);
void sk_avx2_hyper_inject(const void *args, const sk_cpu *cpu);
void sk_avx2_conv(const void *args, const sk_cpu *cpu);
void sk_avx2_gdn_step(const void *args, const sk_cpu *cpu);
void sk_avx2_gdn_scan(const void *args, const sk_cpu *cpu);
void sk_avx2_gdn_fold(const void *args, const sk_cpu *cpu);
void sk_avx2_gated_norm(const void *args, const sk_cpu *cpu);
#else
#define SK_HAVE_AVX2 0
#endif

void sk_fast_add(const void *args, const sk_cpu *cpu);
void sk_fast_rope(const void *args, const sk_cpu *cpu);
void sk_fast_rms_norm(const void *args, const sk_cpu *cpu);
void sk_fast_silu_mul(const void *args, const sk_cpu *cpu);
void sk_fast_gelu_mul(const void *args, const sk_cpu *cpu);

/* Scratch that the widest version of attend wants for a worker. */
uint64_t sk_fast_attend_bytes(const sk_attend_args *a);

/* Scratch of the vector versions of linear; used by all tables so that plans do not depend on the
 * processor. */
uint64_t sk_fast_linear_bytes(const sk_linear_args *a, int32_t n_threads);

#endif
