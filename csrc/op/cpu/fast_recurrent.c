/* Recurrences for AVX2: columns, channels and elements by eights, and what is left over by the
 * definition. No sum runs across them, so each has the definition's operations one by one. */
#include "op/cpu/fast_lanes.h"
#include "op/cpu/recurrent.h"

#if SK_HAVE_AVX2

/* ---- the gated delta rule -------------------------------------------------------------------- */

#define VECTORS (SK_DELTA_COLUMNS / 8)

/* Columns j .. j+8n-1 in the order of operations of sk_delta_columns. */
SK_INLINE void delta_vectors(const sk_delta *s, int64_t j, int n, bool asked)
{
    const __m256 decay = _mm256_set1_ps(s->decay);
    const __m256 beta = _mm256_set1_ps(s->beta);
    const float *old = s->old + j;
    float *work = s->work + j;
    float *after = s->m + j;
    __m256 u[VECTORS], out[VECTORS];
    SK_UNROLL
    for (int v = 0; v < n; v++) u[v] = out[v] = _mm256_setzero_ps();
    for (int64_t i = 0; i < s->dk; i++) {
        const __m256 k = _mm256_broadcast_ss(s->k + i);
        SK_UNROLL
        for (int v = 0; v < n; v++) {
            __m256 m = _mm256_mul_ps(decay, _mm256_loadu_ps(old + 8 * v));
            _mm256_storeu_ps(work + 8 * v, m);
            u[v] = _mm256_fmadd_ps(k, m, u[v]);
        }
        old += s->old_stride;
        work += SK_DELTA_COLUMNS;
    }
    SK_UNROLL
    for (int v = 0; v < n; v++)
        u[v] = _mm256_mul_ps(beta, _mm256_sub_ps(_mm256_loadu_ps(s->v + j + 8 * v), u[v]));
    work = s->work + j;
    for (int64_t i = 0; i < s->dk; i++) {
        const __m256 k = _mm256_broadcast_ss(s->k + i);
        const __m256 q = asked ? _mm256_broadcast_ss(s->q + i) : k;
        SK_UNROLL
        for (int v = 0; v < n; v++) {
            __m256 m = _mm256_fmadd_ps(k, u[v], _mm256_loadu_ps(work + 8 * v));
            _mm256_storeu_ps(after + 8 * v, m);
            if (asked) out[v] = _mm256_fmadd_ps(q, m, out[v]);
        }
        work += SK_DELTA_COLUMNS;
        after += s->m_stride;
    }
    if (!asked) return;
    SK_UNROLL
    for (int v = 0; v < n; v++) _mm256_storeu_ps(s->out + j + 8 * v, out[v]);
}

SK_INLINE void delta_all(const sk_delta *s, bool asked)
{
    int64_t j = 0;
    if (s->n == SK_DELTA_COLUMNS) {
        delta_vectors(s, 0, VECTORS, asked);
        return;
    }
    for (; j + 8 <= s->n; j += 8) delta_vectors(s, j, 1, asked);
    sk_delta_columns(s, j);
}

SK_AVX2 static void delta(const sk_delta *s)
{
    if (s->q)
        delta_all(s, true);
    else
        delta_all(s, false);
}

void sk_avx2_gdn_step(const void *args, const sk_cpu *cpu) { sk_gdn_step_run(args, cpu, delta); }

void sk_avx2_gdn_scan(const void *args, const sk_cpu *cpu) { sk_gdn_scan_run(args, cpu, delta); }

void sk_avx2_gdn_fold(const void *args, const sk_cpu *cpu) { sk_gdn_fold_run(args, cpu, delta); }

/* ---- conv ------------------------------------------------------------------------------------ */

SK_INLINE __m256 from_bf16(__m128i bits)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

/* Eight elements of a row, as the type of the window has them. */
SK_INLINE __m256 row8(const sk_tap_row *row, int32_t dtype, int64_t d)
{
    __m256 x;
    if (row->dtype == SK_BF16) return from_bf16(sk_fast_load16(row->p + 2 * d));
    x = _mm256_loadu_ps((const float *)(const void *)row->p + d);
    return dtype == SK_BF16 ? from_bf16(sk_fast_to_bf16(x)) : x;
}

/* Tap k of eight channels, the rows of which are `stride` bytes apart. */
SK_INLINE __m256 taps8(const uint8_t *p, int64_t stride)
{
    float t[8];
    SK_UNROLL
    for (int i = 0; i < 8; i++) t[i] = *(const float *)(const void *)(p + i * stride);
    return _mm256_loadu_ps(t);
}

SK_AVX2 static void conv_channels(const sk_conv_args *a, int64_t r, int64_t begin, int64_t end)
{
    const __m256 one = _mm256_set1_ps(1);
    const __m256 minus = _mm256_set1_ps(-0.0f);
    const int64_t stride = a->taps.stride[0];
    const int64_t whole = begin + (end - begin) / 8 * 8;
    float *out = (float *)(void *)sk_view_row(&a->out, r);
    for (int64_t k = 0; k < a->taps.dim[1]; k++) {
        const sk_tap_row row = sk_tap_row_of(a, r, k);
        const uint8_t *taps = a->taps.p + 4 * k;
        for (int64_t d = begin; d < whole; d += 8) {
            __m256 sum = k == 0 ? _mm256_setzero_ps() : _mm256_loadu_ps(out + d);
            sum = _mm256_fmadd_ps(taps8(taps + d * stride, stride), row8(&row, a->window.dtype, d),
                                  sum);
            _mm256_storeu_ps(out + d, sum);
        }
    }
    for (int64_t d = begin; d < whole; d += 8) {
        __m256 sum = _mm256_loadu_ps(out + d);
        __m256 e = sk_fast_exp(_mm256_xor_ps(sum, minus));
        _mm256_storeu_ps(out + d, _mm256_div_ps(sum, _mm256_add_ps(one, e)));
    }
    sk_conv_channels(a, r, whole, end);
}

void sk_avx2_conv(const void *args, const sk_cpu *cpu) { sk_conv_run(args, cpu, conv_channels); }

/* ---- gated_norm ------------------------------------------------------------------------------ */

SK_AVX2 static void gated_head(const sk_gated_norm_args *a, int64_t r, int64_t head)
{
    const int64_t dim = a->x.dim[2];
    const float *x = (const float *)(const void *)sk_view_head(&a->x, r, head);
    const float *gate = (const float *)(const void *)sk_view_row(&a->gate, r) + head * dim;
    const float *gain = (const float *)(const void *)a->gain.p;
    uint8_t *out = sk_view_row(&a->out, r);
    const float n = sk_rms_factor(x, dim, a->eps);
    int64_t i = 0;
    for (; i + 8 <= dim; i += 8) {
        const int64_t at = head * dim + i;
        __m256 g = _mm256_xor_ps(_mm256_loadu_ps(gate + i), _mm256_set1_ps(-0.0f));
        __m256 y = _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(n));
        y = _mm256_mul_ps(y, _mm256_loadu_ps(gain + i));
        y = _mm256_div_ps(y, _mm256_add_ps(_mm256_set1_ps(1), sk_fast_exp(g)));
        if (a->out.dtype == SK_BF16)
            _mm_storeu_si128((__m128i *)(void *)(out + 2 * at), sk_fast_to_bf16(y));
        else
            _mm256_storeu_ps((float *)(void *)out + at, y);
    }
    sk_gated_norm_tail(a, r, head, n, i);
}

void sk_avx2_gated_norm(const void *args, const sk_cpu *cpu)
{
    sk_gated_norm_run(args, cpu, gated_head);
}
#endif
