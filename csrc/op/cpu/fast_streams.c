/* hyper_mix and hyper_inject for AVX2: the loops of streams.c, eight columns at a time. */
#include "op/cpu/fast_decode.h"

#include "op/cpu/streams.h"

#if SK_HAVE_AVX2
SK_AVX2 static void mix_piece(const sk_hyper_mix *m, int64_t r, int64_t first, int64_t last)
{
    const int64_t n_streams = m->a->s.dim[1];
    const int64_t dim = m->a->s.dim[2];
    const float *z = (const float *)(const void *)sk_view_row(&m->z, r);
    const float *n = (const float *)(const void *)sk_view_row(&m->a->factor, r);
    const float *gain = (const float *)(const void *)m->a->gain.p;
    const int32_t dtype = m->a->out.dtype;
    uint8_t *out = sk_view_row(&m->a->out, r);
    const __m256 one = _mm256_set1_ps(1);
    int64_t d = first;
    for (; d + 8 <= last; d += 8) {
        __m256 sum = _mm256_setzero_ps();
        for (int64_t i = 0; i < n_streams; i++) {
            const int64_t at = i * dim + d;
            __m256 g = _mm256_xor_ps(_mm256_loadu_ps(z + at), _mm256_set1_ps(-0.0f));
            __m256 y = _mm256_loadu_ps(sk_stream_at(&m->a->s, r, i) + d);
            y = _mm256_mul_ps(_mm256_mul_ps(y, _mm256_set1_ps(n[i])), _mm256_loadu_ps(gain + at));
            g = _mm256_div_ps(one, _mm256_add_ps(one, sk_fast_exp(g)));
            sum = _mm256_fmadd_ps(g, y, sum);
        }
        sum = _mm256_div_ps(sum, _mm256_set1_ps((float)n_streams));
        if (dtype == SK_BF16)
            _mm_storeu_si128((__m128i *)(void *)(out + 2 * d), sk_fast_to_bf16(sum));
        else
            _mm256_storeu_ps((float *)(void *)out + d, sum);
    }
    for (; d < last; d++) sk_act_set(dtype, out, d, sk_hyper_mix_at(m, r, d));
}

static void mix_pieces(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const sk_hyper_mix *m = ctx;
    const int64_t dim = m->a->out.dim[1];
    const int64_t n_pieces = sk_mix_pieces(dim);
    (void)worker;
    for (int64_t k = begin; k < end; k++) {
        const int64_t first = k % n_pieces * SK_MIX_COLS;
        const int64_t last = first + SK_MIX_COLS;
        mix_piece(m, k / n_pieces, first, last < dim ? last : dim);
    }
}

void sk_avx2_hyper_mix(const void *args, const sk_cpu *cpu)
{
    sk_hyper_mix_run(args, cpu, mix_pieces);
}

SK_AVX2 static void inject_stream(const float *x, float by, int64_t dim, float *s)
{
    const __m256 factor = _mm256_set1_ps(by);
    int64_t d = 0;
    for (; d + 8 <= dim; d += 8)
        _mm256_storeu_ps(s + d,
                         _mm256_fmadd_ps(factor, _mm256_loadu_ps(x + d), _mm256_loadu_ps(s + d)));
    for (; d < dim; d++) s[d] = fmaf(by, x[d], s[d]);
}

static void inject_streams(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const sk_hyper_inject_args *a = ctx;
    const int64_t n_streams = a->s.dim[1];
    (void)worker;
    for (int64_t k = begin; k < end; k++) {
        const int64_t r = k / n_streams;
        const float *inject = (const float *)(const void *)sk_view_row(&a->inject, r);
        inject_stream((const float *)(const void *)sk_view_row(&a->x, r), inject[k % n_streams],
                      a->x.dim[1], sk_stream_at(&a->s, r, k % n_streams));
    }
}

void sk_avx2_hyper_inject(const void *args, const sk_cpu *cpu)
{
    sk_hyper_inject_run(args, cpu, inject_streams);
}
#endif
