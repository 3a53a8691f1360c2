/* Row ops of the fast table: the definition's loops with rows split over threads, and argmax for
 * AVX2. */
#include "op/cpu/fast_decode.h"

#include <math.h>

#define GRAIN 16384 // elements worth waking a thread for

static void norm_rows(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    sk_rms_norm_rows(ctx, begin, end);
}

void sk_fast_rms_norm(const void *args, const sk_cpu *cpu)
{
    sk_rms_norm_args a = *(const sk_rms_norm_args *)args;
    int64_t row = a.x.dim[1] * (a.x.rank == 3 ? a.x.dim[2] : 1);
    sk_pool_run(cpu->pool, sk_live_rows(&a.count, a.x.dim[0]), 1 + GRAIN / row, norm_rows, &a);
}

static void silu_rows(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    sk_silu_mul_rows(ctx, begin, end);
}

void sk_fast_silu_mul(const void *args, const sk_cpu *cpu)
{
    sk_silu_mul_args a = *(const sk_silu_mul_args *)args;
    sk_pool_run(cpu->pool, sk_live_rows(&a.count, a.gate.dim[0]), 1 + GRAIN / 4 / a.gate.dim[1],
                silu_rows, &a);
}

static void gelu_rows(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    sk_gelu_mul_rows(ctx, begin, end);
}

void sk_fast_gelu_mul(const void *args, const sk_cpu *cpu)
{
    sk_gelu_mul_args a = *(const sk_gelu_mul_args *)args;
    sk_pool_run(cpu->pool, sk_live_rows(&a.count, a.gate.dim[0]), 1 + GRAIN / 4 / a.gate.dim[1],
                gelu_rows, &a);
}

#if SK_HAVE_AVX2
/* The largest number, then the first place where it stands. */
SK_AVX2 static int32_t argmax_of(const float *x, int64_t n)
{
    __m256 best = _mm256_set1_ps(-INFINITY);
    float lanes[SK_LANES];
    float max;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) best = _mm256_max_ps(_mm256_loadu_ps(x + i), best); // NaN: best
    _mm256_storeu_ps(lanes, best);
    max = sk_max_of(lanes, SK_LANES);
    for (; i < n; i++)
        if (x[i] > max) max = x[i];
    for (i = 0; i + 8 <= n; i += 8) {
        __m256 same = _mm256_cmp_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(max), _CMP_EQ_OQ);
        int mask = _mm256_movemask_ps(same);
        if (mask) return (int32_t)(i + __builtin_ctz((unsigned)mask));
    }
    for (; i < n; i++)
        if (x[i] == max) return (int32_t)i;
    return 0; // nothing but NaN
}

void sk_avx2_argmax(const void *args, const sk_cpu *cpu)
{
    const sk_argmax_args *a = args;
    int32_t *id = (int32_t *)(void *)a->id.p;
    int64_t n_rows = sk_live_rows(&a->count, a->x.dim[0]);
    (void)cpu;
    for (int64_t r = 0; r < n_rows; r++)
        id[r] = argmax_of((const float *)(void *)sk_view_row(&a->x, r), a->x.dim[1]);
}
#endif
