/* attend for AVX2: threads take (row, head) pairs; scores and the product with V go eight lanes at
 * a time in the order of attend.c, and sk_exp is the same function, so the bits are the same. Heads
 * whose size is no multiple of eight take the definition. */
#include "op/cpu/fast_decode.h"

#include "op/cpu/exp.h"

#include <math.h>

#if SK_HAVE_AVX2

#define KEYS 4 // dot products that hide each other's latency

SK_INLINE __m256 load8(int32_t type, const uint8_t *row, int64_t i)
{
    if (type == SK_F32) return _mm256_loadu_ps((const float *)(const void *)row + i);
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(sk_fast_load16(row + 2 * i)), 16));
}

/* `n` keys against q, one accumulator each; n is a constant. */
SK_INLINE void scores(int32_t type, int n, const float *q, const uint8_t *k, int64_t stride,
                      int64_t dim, float scale, float *out)
{
    __m256 acc[KEYS];
    SK_UNROLL
    for (int j = 0; j < n; j++) acc[j] = _mm256_setzero_ps();
    for (int64_t i = 0; i < dim; i += 8) {
        __m256 x = _mm256_loadu_ps(q + i);
        SK_UNROLL
        for (int j = 0; j < n; j++)
            acc[j] = _mm256_fmadd_ps(x, load8(type, k + j * stride, i), acc[j]);
    }
    SK_UNROLL
    for (int j = 0; j < n; j++) out[j] = sk_fast_tree8(acc[j]) * scale;
}

/* part[8*i ..] += p[j] * v[j][8*i ..] for j in ascending order; n vectors, a constant. */
SK_INLINE void mix(int32_t type, int n, const float *p, int64_t n_keys, const uint8_t *v,
                   int64_t stride, int64_t at, float *part)
{
    __m256 acc[8];
    SK_UNROLL
    for (int i = 0; i < n; i++) acc[i] = _mm256_setzero_ps();
    for (int64_t j = 0; j < n_keys; j++) {
        __m256 w = _mm256_broadcast_ss(p + j);
        SK_UNROLL
        for (int i = 0; i < n; i++)
            acc[i] = _mm256_fmadd_ps(w, load8(type, v + j * stride, at + 8 * i), acc[i]);
    }
    SK_UNROLL
    for (int i = 0; i < n; i++) _mm256_storeu_ps(part + at + 8 * i, acc[i]);
}

SK_INLINE void attend_head(const sk_attend_args *a, int32_t type, int64_t r, int64_t head,
                           const sk_attend_scratch *s)
{
    const sk_row *row = sk_row_at(&a->rows, r);
    int64_t dim = a->q.dim[2];
    int64_t kv_head = head / (a->q.dim[1] / a->k_cache.dim[2]);
    int64_t first = sk_attend_first(a, row);
    int64_t n = row->pos - first + 1;
    int64_t k_stride = a->k_cache.stride[1];
    int64_t v_stride = a->v_cache.stride[1];
    const uint8_t *q = sk_view_head(&a->q, r, head);
    const uint8_t *k = sk_cache_at(&a->k_cache, row->slot, first, kv_head);
    const uint8_t *v = sk_cache_at(&a->v_cache, row->slot, first, kv_head);
    uint8_t *out = sk_view_head(&a->out, r, head);
    float total = 0;
    float max;
    int64_t j = 0;
    for (int64_t i = 0; i < dim; i += 8) _mm256_storeu_ps(s->q + i, load8(type, q, i));
    for (; j + KEYS <= n; j += KEYS)
        scores(type, KEYS, s->q, k + j * k_stride, k_stride, dim, a->scale, s->score + j);
    for (; j < n; j++)
        scores(type, 1, s->q, k + j * k_stride, k_stride, dim, a->scale, s->score + j);
    max = sk_max_of(s->score, n);
    for (int64_t i = 0; i < dim; i++) s->merged[i] = 0;
    for (int64_t begin = 0; begin < n; begin += a->split) {
        int64_t keys = n - begin < a->split ? n - begin : a->split;
        float *p = s->score + begin;
        const uint8_t *values = v + begin * v_stride;
        float part_max = sk_max_of(p, keys);
        float sum = 0;
        float weight;
        int64_t at = 0;
        for (j = 0; j < keys; j++) {
            float e = sk_exp(p[j] - part_max);
            sum += e;
            p[j] = sk_act_round(type, e);
        }
        for (; at + 64 <= dim; at += 64) mix(type, 8, p, keys, values, v_stride, at, s->part);
        for (; at + 16 <= dim; at += 16) mix(type, 2, p, keys, values, v_stride, at, s->part);
        if (at < dim) mix(type, 1, p, keys, values, v_stride, at, s->part);
        weight = sk_exp(part_max - max);
        total = __builtin_fmaf(sum, weight, total);
        for (int64_t i = 0; i < dim; i += 8)
            _mm256_storeu_ps(s->merged + i,
                             _mm256_fmadd_ps(_mm256_loadu_ps(s->part + i), _mm256_set1_ps(weight),
                                             _mm256_loadu_ps(s->merged + i)));
    }
    for (int64_t i = 0; i < dim; i++) sk_act_set(type, out, i, s->merged[i] / total);
}

SK_AVX2 static void head_bf16(const sk_attend_args *a, int64_t r, int64_t head,
                              const sk_attend_scratch *s)
{
    attend_head(a, SK_BF16, r, head, s);
}

SK_AVX2 static void head_f32(const sk_attend_args *a, int64_t r, int64_t head,
                             const sk_attend_scratch *s)
{
    attend_head(a, SK_F32, r, head, s);
}

typedef struct job {
    const sk_attend_args *a;
    const sk_cpu *cpu;
    void (*head)(const sk_attend_args *a, int64_t r, int64_t head, const sk_attend_scratch *s);
} job;

static void run_heads(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const job *j = ctx;
    sk_attend_scratch s = sk_attend_scratch_at(j->a, j->cpu, worker);
    int64_t heads = j->a->q.dim[1];
    for (int64_t i = begin; i < end; i++) j->head(j->a, i / heads, i % heads, &s);
}

void sk_avx2_attend(const void *args, const sk_cpu *cpu)
{
    const sk_attend_args *a = args;
    int64_t n_rows = sk_live_rows(&a->count, a->q.dim[0]);
    int64_t longest = 1;
    job j = {.a = a, .cpu = cpu, .head = a->q.dtype == SK_BF16 ? head_bf16 : head_f32};
    if (a->q.dim[2] % 8 != 0) j.head = sk_attend_head;
    for (int64_t r = 0; r < n_rows; r++)
        if (sk_row_at(&a->rows, r)->pos >= longest) longest = sk_row_at(&a->rows, r)->pos + 1;
    // Some ten microseconds a piece, or the threads are not worth waking.
    sk_pool_run(cpu->pool, n_rows * a->q.dim[1], 1 + 65536 / (longest * a->q.dim[2]), run_heads,
                &j);
}
#endif
