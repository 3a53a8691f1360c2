/* attend and attend_blocks for AVX2: threads take (row, head) pairs; scores and the product with V
 * go eight lanes at a time in the order of attend.c, and sk_exp is the same function, so the bits
 * are the same. block_topk has its products here too. Heads whose size is no multiple of eight take
 * the definition. */
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

/* Rows of a cache from `base` on: one behind the other, or those of a list (a constant NULL where
 * there is none). */
typedef struct lines {
    const uint8_t *base;
    int64_t stride;
    const int32_t *list;
} lines;

SK_INLINE const uint8_t *line(const lines *l, int64_t j)
{
    return l->base + (l->list ? l->list[j] : j) * l->stride;
}

SK_INLINE lines lines_from(const lines *l, int64_t j)
{
    if (l->list) return (lines){l->base, l->stride, l->list + j};
    return (lines){l->base + j * l->stride, l->stride, NULL};
}

/* Keys at .. at+n-1 against q, one accumulator each; n is a constant. */
SK_INLINE void scores(int32_t q_type, int32_t type, int n, const uint8_t *q, const lines *keys,
                      int64_t at, int64_t dim, float scale, float *out)
{
    const uint8_t *k[KEYS];
    __m256 acc[KEYS];
    SK_UNROLL
    for (int j = 0; j < n; j++) k[j] = line(keys, at + j);
    SK_UNROLL
    for (int j = 0; j < n; j++) acc[j] = _mm256_setzero_ps();
    for (int64_t i = 0; i < dim; i += 8) {
        __m256 x = load8(q_type, q, i);
        SK_UNROLL
        for (int j = 0; j < n; j++) acc[j] = _mm256_fmadd_ps(x, load8(type, k[j], i), acc[j]);
    }
    SK_UNROLL
    for (int j = 0; j < n; j++) out[j] = sk_fast_tree8(acc[j]) * scale;
}

/* part[8*i ..] += p[j] * v[j][8*i ..] for j in ascending order; n vectors, a constant. */
SK_INLINE void mix(int32_t type, int n, const float *p, int64_t n_keys, const lines *values,
                   int64_t at, float *part)
{
    __m256 acc[8];
    SK_UNROLL
    for (int i = 0; i < n; i++) acc[i] = _mm256_setzero_ps();
    for (int64_t j = 0; j < n_keys; j++) {
        const uint8_t *v = line(values, j);
        __m256 w = _mm256_broadcast_ss(p + j);
        SK_UNROLL
        for (int i = 0; i < n; i++) acc[i] = _mm256_fmadd_ps(w, load8(type, v, at + 8 * i), acc[i]);
    }
    SK_UNROLL
    for (int i = 0; i < n; i++) _mm256_storeu_ps(part + at + 8 * i, acc[i]);
}

/* `list` is that of seen, or a constant NULL. */
SK_INLINE void attend_over(const sk_attend_args *a, int32_t type, const int32_t *list, int64_t r,
                           int64_t head, const sk_seen *seen, const float *gate,
                           const sk_attend_scratch *s)
{
    const sk_row *row = sk_row_at(&a->rows, r);
    int64_t dim = a->q.dim[2];
    int64_t kv_head = head / (a->q.dim[1] / a->k_cache.dim[2]);
    int64_t n = seen->n;
    const lines keys = {sk_cache_at(&a->k_cache, row->slot, seen->first, kv_head),
                        a->k_cache.stride[1], list};
    const lines values = {sk_cache_at(&a->v_cache, row->slot, seen->first, kv_head),
                          a->v_cache.stride[1], list};
    const uint8_t *q = sk_view_head(&a->q, r, head);
    const uint8_t *wide = (const uint8_t *)s->q;
    uint8_t *out = sk_view_head(&a->out, r, head);
    float total = 0;
    float max;
    int64_t j = 0;
    for (int64_t i = 0; i < dim; i += 8) _mm256_storeu_ps(s->q + i, load8(type, q, i));
    for (; j + KEYS <= n; j += KEYS)
        scores(SK_F32, type, KEYS, wide, &keys, j, dim, a->scale, s->score + j);
    for (; j < n; j++) scores(SK_F32, type, 1, wide, &keys, j, dim, a->scale, s->score + j);
    max = sk_max_of(s->score, n);
    for (int64_t i = 0; i < dim; i++) s->merged[i] = 0;
    for (int64_t begin = 0; begin < n; begin += a->split) {
        int64_t n_part = n - begin < a->split ? n - begin : a->split;
        float *p = s->score + begin;
        const lines part = lines_from(&values, begin);
        float part_max = sk_max_of(p, n_part);
        float sum = 0;
        float weight;
        int64_t at = 0;
        for (j = 0; j < n_part; j++) {
            float e = sk_exp(p[j] - part_max);
            sum += e;
            p[j] = sk_act_round(type, e);
        }
        for (; at + 64 <= dim; at += 64) mix(type, 8, p, n_part, &part, at, s->part);
        for (; at + 16 <= dim; at += 16) mix(type, 2, p, n_part, &part, at, s->part);
        if (at < dim) mix(type, 1, p, n_part, &part, at, s->part);
        weight = sk_exp(part_max - max);
        total = __builtin_fmaf(sum, weight, total);
        for (int64_t i = 0; i < dim; i += 8)
            _mm256_storeu_ps(s->merged + i,
                             _mm256_fmadd_ps(_mm256_loadu_ps(s->part + i), _mm256_set1_ps(weight),
                                             _mm256_loadu_ps(s->merged + i)));
    }
    for (int64_t i = 0; i < dim; i++)
        sk_act_set(type, out, i, sk_gated(s->merged[i] / total, gate, i));
}

SK_AVX2 static void head_bf16(const sk_attend_args *a, int64_t r, int64_t head,
                              const sk_attend_scratch *s)
{
    const sk_seen seen = sk_attend_seen(a, sk_row_at(&a->rows, r));
    attend_over(a, SK_BF16, NULL, r, head, &seen, NULL, s);
}

SK_AVX2 static void head_f32(const sk_attend_args *a, int64_t r, int64_t head,
                             const sk_attend_scratch *s)
{
    const sk_seen seen = sk_attend_seen(a, sk_row_at(&a->rows, r));
    attend_over(a, SK_F32, NULL, r, head, &seen, NULL, s);
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

/* ---- block-sparse attention ------------------------------------------------------------------ */

SK_AVX2 static void over_bf16(const sk_attend_args *a, int64_t r, int64_t head, const sk_seen *seen,
                              const float *gate, const sk_attend_scratch *s)
{
    attend_over(a, SK_BF16, seen->list, r, head, seen, gate, s);
}

SK_AVX2 static void over_f32(const sk_attend_args *a, int64_t r, int64_t head, const sk_seen *seen,
                             const float *gate, const sk_attend_scratch *s)
{
    attend_over(a, SK_F32, seen->list, r, head, seen, gate, s);
}

void sk_avx2_attend_blocks(const void *args, const sk_cpu *cpu)
{
    const sk_attend_blocks_args *a = args;
    const bool bf16 = a->q.dtype == SK_BF16;
    sk_attend_blocks_with(a, cpu,
                          a->q.dim[2] % 8 != 0 ? sk_attend_over
                          : bf16               ? over_bf16
                                               : over_f32);
}

/* `n` blocks from b on; n is a constant. */
SK_INLINE void block_scores(const sk_block_topk_args *a, int32_t type, int n, int64_t r, int64_t b,
                            float *score)
{
    const sk_row *row = sk_row_at(&a->rows, r);
    const lines keys = {a->pooled.p + row->slot * a->pooled.stride[0], a->pooled.stride[1], NULL};
    float dot[KEYS];
    float sum[KEYS] = {0};
    for (int64_t h = 0; h < a->q.dim[1]; h++) {
        scores(type, type, n, sk_view_head(&a->q, r, h), &keys, b, a->q.dim[2], 1, dot);
        for (int j = 0; j < n; j++) sum[j] += dot[j] < 0 ? 0 : dot[j]; // NaN stays
    }
    for (int j = 0; j < n; j++) score[j] = a->scale * sum[j];
}

SK_AVX2 static void scores_bf16(const sk_block_topk_args *a, int64_t r, int64_t begin, int64_t end,
                                float *score)
{
    int64_t b = begin;
    for (; b + KEYS <= end; b += KEYS) block_scores(a, SK_BF16, KEYS, r, b, score + b - begin);
    for (; b < end; b++) block_scores(a, SK_BF16, 1, r, b, score + b - begin);
}

SK_AVX2 static void scores_f32(const sk_block_topk_args *a, int64_t r, int64_t begin, int64_t end,
                               float *score)
{
    int64_t b = begin;
    for (; b + KEYS <= end; b += KEYS) block_scores(a, SK_F32, KEYS, r, b, score + b - begin);
    for (; b < end; b++) block_scores(a, SK_F32, 1, r, b, score + b - begin);
}

void sk_avx2_block_topk(const void *args, const sk_cpu *cpu)
{
    const sk_block_topk_args *a = args;
    const bool bf16 = a->q.dtype == SK_BF16;
    sk_block_topk_with(a, cpu,
                       a->q.dim[2] % 8 != 0 ? sk_block_scores
                       : bf16               ? scores_bf16
                                            : scores_f32);
}
#endif
