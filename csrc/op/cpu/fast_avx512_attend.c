/* attend for AVX-512: in the order of attend.c, with more of it in flight.
 *
 * A *set* is a few consecutive rows of one slot times a few query heads of one key head: they see
 * the same keys from the same first position on, so each key and value is widened once for all of
 * them. Two keys share a register in the scores, eight lanes each; the product with V has no sum
 * across elements. What a row does not see is never mixed into it, not even with weight zero. */
#include "op/cpu/fast_avx512.h"

#include "op/cpu/exp.h"

#define SET  12 // queries of a set
#define ROWS 4  // rows of a set
#define KEYS 32 // keys widened at a time

static int64_t up_to(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* Queries that scores are kept for: fewer where the context is long. */
static int64_t set_size(const sk_attend_args *a)
{
    const int64_t c = a->k_cache.dim[1];
    return c <= 16384 ? SET : c <= 131072 ? 4 : 1;
}

static int64_t score_stride(const sk_attend_args *a) { return up_to(a->k_cache.dim[1], 16) + KEYS; }

uint64_t sk_fast_attend_bytes(const sk_attend_args *a)
{
    const int64_t dim = up_to(a->q.dim[2], 16);
    return 4 * (uint64_t)(set_size(a) * (score_stride(a) + 3 * dim) + KEYS * dim);
}

#if SK_HAVE_AVX2

/* Queries of a set, and the scratch of a worker. */
typedef struct set {
    const sk_attend_args *a;
    int64_t dim, stride; // stride of the scores
    int n;
    int64_t n_keys[SET]; // that each sees
    int64_t most;        // the largest of them
    uint8_t *out[SET];
    const uint8_t *k, *v;     // of the first position seen
    float *score;             // [n][stride]
    float *q, *part, *merged; // [n][dim]
    float *wide;              // [KEYS][dim] keys, by pairs, or values
} set;

SK_INLINE512 __m512 load16(int32_t type, const uint8_t *row, int64_t i)
{
    if (type == SK_F32) return _mm512_loadu_ps((const float *)(const void *)row + i);
    return _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(row + 2 * i))),
        16));
}

SK_INLINE512 __m512 load_pair(int32_t type, const uint8_t *a, const uint8_t *b, int64_t i)
{
    __m256i x;
    if (type == SK_F32) {
        __m256 lo = _mm256_loadu_ps((const float *)(const void *)a + i);
        __m256 hi = _mm256_loadu_ps((const float *)(const void *)b + i);
        return _mm512_insertf32x8(_mm512_castps256_ps512(lo), hi, 1);
    }
    x = _mm256_castsi128_si256(sk_fast_load16(a + 2 * i));
    x = _mm256_inserti128_si256(x, sk_fast_load16(b + 2 * i), 1);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

/* sk_exp of 16 lanes: one rounding of p * 2^n, as there. */
SK_INLINE512 __m512 exp16(__m512 x)
{
    static const float term[] = SK_EXP_TERMS;
    const __m512 magic = _mm512_set1_ps(SK_EXP_MAGIC);
    __m512 p = _mm512_set1_ps(term[0]);
    __m512 n, r;
    x = _mm512_min_ps(_mm512_set1_ps(SK_EXP_MAX), _mm512_max_ps(_mm512_set1_ps(SK_EXP_MIN), x));
    n = _mm512_sub_ps(_mm512_fmadd_ps(x, _mm512_set1_ps(SK_EXP_LOG2E), magic), magic);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-SK_EXP_LN2_A), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-SK_EXP_LN2_B), r);
    SK_UNROLL
    for (int i = 1; i < 8; i++) p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(term[i]));
    return _mm512_scalef_ps(p, n);
}

/* What storing as BF16 makes of 16 lanes. */
SK_INLINE512 __m512i round_bf16(__m512 x)
{
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    up = _mm512_mask_or_epi32(up, is_nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_and_si512(up, _mm512_set1_epi32((int32_t)0xffff0000u));
}

/* ---- scores -----------------------------------------------------------------------------------
 */

/* Eight keys against n queries, a constant: out[i][0..7]. */
SK_INLINE512 void scores8(const set *s, int n, int64_t at, const float *wide, int i)
{
    __m512 acc[2][4];
    const __m128 scale = _mm_set1_ps(s->a->scale);
    SK_UNROLL
    for (int q = 0; q < n; q++) SK_UNROLL
    for (int p = 0; p < 4; p++) acc[q][p] = _mm512_setzero_ps();
    for (int64_t d = 0; d < s->dim; d += 8) {
        __m512 k[4];
        SK_UNROLL
        for (int p = 0; p < 4; p++) k[p] = _mm512_load_ps(wide + 2 * (p * s->dim + d));
        SK_UNROLL
        for (int q = 0; q < n; q++) {
            __m512 x = _mm512_castpd_ps(_mm512_broadcast_f64x4(
                _mm256_castps_pd(_mm256_load_ps(s->q + (i + q) * s->dim + d))));
            SK_UNROLL
            for (int p = 0; p < 4; p++) acc[q][p] = _mm512_fmadd_ps(x, k[p], acc[q][p]);
        }
    }
    SK_UNROLL
    for (int q = 0; q < n; q++) {
        float *out = s->score + (i + q) * s->stride + at;
        _mm_storeu_ps(out, _mm_mul_ps(sk_pair_trees(acc[q][0], acc[q][1]), scale));
        _mm_storeu_ps(out + 4, _mm_mul_ps(sk_pair_trees(acc[q][2], acc[q][3]), scale));
    }
}

/* All scores; those of keys that a query does not see are never looked at. */
SK_INLINE512 void all_scores(const set *s, int32_t type)
{
    const int64_t step = s->a->k_cache.stride[1];
    for (int64_t at = 0; at < s->most; at += KEYS) {
        const int64_t n = s->most - at < KEYS ? s->most - at : KEYS;
        for (int64_t p = 0; p < up_to(n, 8); p += 2) { // past the end the last one again
            const uint8_t *a = s->k + (at + (p < n ? p : n - 1)) * step;
            const uint8_t *b = s->k + (at + (p + 1 < n ? p + 1 : n - 1)) * step;
            for (int64_t d = 0; d < s->dim; d += 8)
                _mm512_store_ps(s->wide + p * s->dim + 2 * d, load_pair(type, a, b, d));
        }
        for (int64_t p = 0; p < n; p += 8) {
            int i = 0;
            for (; i + 2 <= s->n; i += 2) scores8(s, 2, at + p, s->wide + p * s->dim, i);
            if (i < s->n) scores8(s, 1, at + p, s->wide + p * s->dim, i);
        }
    }
}

/* ---- softmax and the product with V -----------------------------------------------------------
 */

SK_INLINE512 float max_of(const float *x, int64_t n)
{
    __m512 best = _mm512_set1_ps(-INFINITY);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) best = _mm512_max_ps(_mm512_loadu_ps(x + i), best);
    if (i < n) {
        __mmask16 left = (__mmask16)((1u << (n - i)) - 1);
        best = _mm512_mask_max_ps(best, left, _mm512_loadu_ps(x + i), best);
    }
    return _mm512_reduce_max_ps(best);
}

/* p[0..n-1] = round(exp(p - max)); the sum of what is not rounded, in ascending order. */
SK_INLINE512 float weigh(int32_t type, float *p, int64_t n, float max)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i += 16) {
        const int64_t left = n - i < 16 ? n - i : 16;
        float e[16];
        __m512 x = exp16(_mm512_sub_ps(_mm512_loadu_ps(p + i), _mm512_set1_ps(max)));
        _mm512_storeu_ps(e, x);
        if (type == SK_BF16) x = _mm512_castsi512_ps(round_bf16(x));
        _mm512_mask_storeu_ps(p + i, (__mmask16)((1u << left) - 1), x);
        for (int64_t j = 0; j < left; j++) sum += e[j];
    }
    return sum;
}

/* part[i ..][16 * first ..] += p[j] * value[j] for j ascending; n queries and n_vectors are
 * constants. `p` is the first weight of query i. */
SK_INLINE512 void mix(const set *s, int n, int n_vectors, int i, const float *p, int64_t n_keys,
                      const float *values, int64_t d)
{
    __m512 acc[4][4];
    SK_UNROLL
    for (int q = 0; q < n; q++) SK_UNROLL
    for (int c = 0; c < n_vectors; c++)
        acc[q][c] = _mm512_load_ps(s->part + (i + q) * s->dim + d + 16 * c);
    for (int64_t j = 0; j < n_keys; j++) {
        __m512 v[4];
        SK_UNROLL
        for (int c = 0; c < n_vectors; c++) v[c] = _mm512_load_ps(values + j * s->dim + d + 16 * c);
        SK_UNROLL
        for (int q = 0; q < n; q++) {
            __m512 w = _mm512_set1_ps(p[q * s->stride + j]);
            SK_UNROLL
            for (int c = 0; c < n_vectors; c++) acc[q][c] = _mm512_fmadd_ps(w, v[c], acc[q][c]);
        }
    }
    SK_UNROLL
    for (int q = 0; q < n; q++) SK_UNROLL
    for (int c = 0; c < n_vectors; c++)
        _mm512_store_ps(s->part + (i + q) * s->dim + d + 16 * c, acc[q][c]);
}

SK_AVX512 static void mix_keys(const set *s, int n, int i, int64_t at, int64_t n_keys,
                               const float *values)
{
    const float *p = s->score + i * s->stride + at;
    int64_t d = 0;
    for (; d + 64 <= s->dim; d += 64) {
        if (n == 4)
            mix(s, 4, 4, i, p, n_keys, values, d);
        else
            mix(s, 1, 4, i, p, n_keys, values, d);
    }
    for (; d < s->dim; d += 16) {
        if (n == 4)
            mix(s, 4, 1, i, p, n_keys, values, d);
        else
            mix(s, 1, 1, i, p, n_keys, values, d);
    }
}

/* Keys begin .. end-1 of a split into `part`. */
SK_INLINE512 void mix_split(const set *s, int32_t type, int64_t begin, int64_t end)
{
    const int64_t step = s->a->v_cache.stride[1];
    for (int64_t at = begin; at < end; at += KEYS) {
        const int64_t n = end - at < KEYS ? end - at : KEYS;
        for (int64_t j = 0; j < n; j++)
            for (int64_t d = 0; d < s->dim; d += 16)
                _mm512_store_ps(s->wide + j * s->dim + d, load16(type, s->v + (at + j) * step, d));
        for (int i = 0; i < s->n; i += 4) {
            int64_t common = 0; // keys that four queries see
            if (i + 4 <= s->n) {
                common = n;
                for (int q = i; q < i + 4; q++)
                    if (s->n_keys[q] - at < common) common = s->n_keys[q] - at;
                if (common > 0) mix_keys(s, 4, i, at, common, s->wide);
                if (common < 0) common = 0;
            }
            for (int q = i; q < s->n && q < i + 4; q++) {
                int64_t own = s->n_keys[q] - at < n ? s->n_keys[q] - at : n;
                if (own > common)
                    mix_keys(s, 1, q, at + common, own - common, s->wide + common * s->dim);
            }
        }
    }
}

SK_INLINE512 void attend_set(const set *s, int32_t type)
{
    float max[SET], total[SET] = {0};
    all_scores(s, type);
    for (int i = 0; i < s->n; i++) max[i] = max_of(s->score + i * s->stride, s->n_keys[i]);
    memset(s->merged, 0, (size_t)(s->n * s->dim) * sizeof *s->merged);
    for (int64_t begin = 0; begin < s->most; begin += s->a->split) {
        const int64_t end = s->most - begin < s->a->split ? s->most : begin + s->a->split;
        float part_max[SET] = {0}, sum[SET] = {0};
        for (int i = 0; i < s->n; i++) {
            const int64_t own = s->n_keys[i] < end ? s->n_keys[i] - begin : end - begin;
            float *p = s->score + i * s->stride + begin;
            if (own <= 0) continue;
            part_max[i] = max_of(p, own);
            sum[i] = weigh(type, p, own, part_max[i]);
        }
        memset(s->part, 0, (size_t)(s->n * s->dim) * sizeof *s->part);
        mix_split(s, type, begin, end);
        for (int i = 0; i < s->n; i++) {
            float weight;
            if (s->n_keys[i] <= begin) continue;
            weight = sk_exp(part_max[i] - max[i]);
            total[i] = __builtin_fmaf(sum[i], weight, total[i]);
            for (int64_t d = 0; d < s->dim; d += 16) {
                float *merged = s->merged + i * s->dim + d;
                __m512 part = _mm512_load_ps(s->part + i * s->dim + d);
                _mm512_store_ps(
                    merged, _mm512_fmadd_ps(part, _mm512_set1_ps(weight), _mm512_load_ps(merged)));
            }
        }
    }
    for (int i = 0; i < s->n; i++)
        for (int64_t d = 0; d < s->dim; d += 16) {
            __m512 y =
                _mm512_div_ps(_mm512_load_ps(s->merged + i * s->dim + d), _mm512_set1_ps(total[i]));
            if (type == SK_F32)
                _mm512_storeu_ps((float *)(void *)s->out[i] + d, y);
            else
                _mm256_storeu_si256((__m256i *)(void *)(s->out[i] + 2 * d),
                                    _mm512_cvtepi32_epi16(_mm512_srli_epi32(round_bf16(y), 16)));
        }
}

SK_AVX512 static void set_bf16(const set *s) { attend_set(s, SK_BF16); }

SK_AVX512 static void set_f32(const set *s) { attend_set(s, SK_F32); }

/* ---- sets -------------------------------------------------------------------------------------
 */

typedef struct job {
    const sk_attend_args *a;
    const sk_cpu *cpu;
    int64_t n_rows;
    int64_t heads, head_sets; // query heads of a set, and sets of a key head
} job;

/* Rows r .. r+n-1 and the heads of a set; all rows see keys from the same one on. */
SK_AVX512 static void run_set(const job *j, int64_t r, int64_t n, int64_t kv_head, int64_t head,
                              int64_t n_heads, uint8_t *work)
{
    const sk_attend_args *a = j->a;
    const sk_row *row = sk_row_at(&a->rows, r);
    const int64_t first = sk_attend_first(a, row);
    set s = {.a = a, .dim = a->q.dim[2], .stride = score_stride(a)};
    s.k = sk_cache_at(&a->k_cache, row->slot, first, kv_head);
    s.v = sk_cache_at(&a->v_cache, row->slot, first, kv_head);
    s.wide = (float *)(void *)work;
    s.q = s.wide + KEYS * s.dim;
    s.part = s.q + set_size(a) * s.dim;
    s.merged = s.part + set_size(a) * s.dim;
    s.score = s.merged + set_size(a) * s.dim;
    for (int64_t i = r; i < r + n; i++)
        for (int64_t h = head; h < head + n_heads; h++) {
            const uint8_t *q = sk_view_head(&a->q, i, h);
            s.n_keys[s.n] = sk_row_at(&a->rows, i)->pos - first + 1;
            s.out[s.n] = sk_view_head(&a->out, i, h);
            if (s.n_keys[s.n] > s.most) s.most = s.n_keys[s.n];
            for (int64_t d = 0; d < s.dim; d += 16)
                _mm512_store_ps(s.q + s.n * s.dim + d, load16(a->q.dtype, q, d));
            s.n++;
        }
    if (a->q.dtype == SK_BF16)
        set_bf16(&s);
    else
        set_f32(&s);
}

/* A unit is ROWS rows and the heads of a set; it splits where rows do not see alike. */
static void run_units(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const job *j = ctx;
    const sk_attend_args *a = j->a;
    uint8_t *work = j->cpu->work + (uint64_t)worker * sk_attend_scratch_bytes(a);
    const int64_t group = a->q.dim[1] / a->k_cache.dim[2];
    const int64_t sets = a->k_cache.dim[2] * j->head_sets;
    const int64_t most = set_size(a) / j->heads < ROWS ? set_size(a) / j->heads : ROWS;
    for (int64_t u = begin; u < end; u++) {
        const int64_t kv_head = u % sets / j->head_sets;
        const int64_t in_group = u % j->head_sets * j->heads;
        const int64_t n_heads = group - in_group < j->heads ? group - in_group : j->heads;
        const int64_t last = (u / sets + 1) * ROWS < j->n_rows ? (u / sets + 1) * ROWS : j->n_rows;
        int64_t n;
        for (int64_t r = u / sets * ROWS; r < last; r += n) {
            const sk_row *row = sk_row_at(&a->rows, r);
            for (n = 1; n < most && r + n < last; n++) {
                const sk_row *next = sk_row_at(&a->rows, r + n);
                if (next->slot != row->slot || sk_attend_first(a, next) != sk_attend_first(a, row))
                    break;
            }
            run_set(j, r, n, kv_head, kv_head * group + in_group, n_heads, work);
        }
    }
}

void sk_avx512_attend(const void *args, const sk_cpu *cpu)
{
    const sk_attend_args *a = args;
    const int64_t group = a->q.dim[1] / a->k_cache.dim[2];
    const int64_t threads = sk_pool_threads(cpu->pool);
    int64_t longest = 1;
    int64_t blocks;
    job j = {.a = a, .cpu = cpu, .n_rows = sk_live_rows(&a->count, a->q.dim[0])};
    if (a->q.dim[2] % 16 != 0) {
        sk_avx2_attend(args, cpu);
        return;
    }
    for (int64_t r = 0; r < j.n_rows; r++)
        if (sk_row_at(&a->rows, r)->pos >= longest) longest = sk_row_at(&a->rows, r)->pos + 1;
    blocks = (j.n_rows + ROWS - 1) / ROWS;
    j.heads = group < 4 ? group : 4;
    if (set_size(a) < j.heads) j.heads = set_size(a);
    // Whether heads share keys is free; with few rows there are better uses for threads.
    if (threads > 1 && blocks * a->k_cache.dim[2] < 3 * threads) j.heads = 1;
    j.head_sets = (group + j.heads - 1) / j.heads;
    sk_pool_run(cpu->pool, blocks * a->k_cache.dim[2] * j.head_sets,
                1 + 16384 / (longest * a->q.dim[2] * j.heads), run_units, &j);
}
#endif
