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

static void add_rows(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    sk_add_rows(ctx, begin, end);
}

void sk_fast_add(const void *args, const sk_cpu *cpu)
{
    sk_add_args a = *(const sk_add_args *)args;
    sk_pool_run(cpu->pool, sk_live_rows(&a.count, a.x.dim[0]), 1 + GRAIN / a.x.dim[1], add_rows,
                &a);
}

static void rope_rows(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    sk_rope_rows(ctx, begin, end);
}

void sk_fast_rope(const void *args, const sk_cpu *cpu)
{
    sk_rope_args a = *(const sk_rope_args *)args;
    // cosf and sinf take most of it, once a row.
    sk_pool_run(cpu->pool, sk_live_rows(&a.count, a.x.dim[0]), 1 + 256 / a.freq.dim[0], rope_rows,
                &a);
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
/* silu(gate) * up, and what is left over by the definition's scalars. */
SK_AVX2 static void silu_row(const sk_silu_mul_args *a, int64_t r)
{
    const float *gate = (const float *)(void *)sk_view_row(&a->gate, r);
    const float *up = (const float *)(void *)sk_view_row(&a->up, r);
    uint8_t *out = sk_view_row(&a->out, r);
    const int64_t n = a->gate.dim[1];
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 g = _mm256_loadu_ps(gate + i);
        __m256 e = sk_fast_exp(_mm256_xor_ps(g, _mm256_set1_ps(-0.0f)));
        __m256 y = _mm256_div_ps(g, _mm256_add_ps(_mm256_set1_ps(1), e));
        y = _mm256_mul_ps(y, _mm256_loadu_ps(up + i));
        if (a->out.dtype == SK_BF16)
            _mm_storeu_si128((__m128i *)(void *)(out + 2 * i), sk_fast_to_bf16(y));
        else
            _mm256_storeu_ps((float *)(void *)out + i, y);
    }
    for (; i < n; i++)
        sk_act_set(a->out.dtype, out, i, gate[i] / (1.0f + sk_exp(-gate[i])) * up[i]);
}

static void silu_rows_avx2(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    for (int64_t r = begin; r < end; r++) silu_row(ctx, r);
}

void sk_avx2_silu_mul(const void *args, const sk_cpu *cpu)
{
    sk_silu_mul_args a = *(const sk_silu_mul_args *)args;
    sk_pool_run(cpu->pool, sk_live_rows(&a.count, a.gate.dim[0]), 1 + GRAIN / 2 / a.gate.dim[1],
                silu_rows_avx2, &a);
}

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
