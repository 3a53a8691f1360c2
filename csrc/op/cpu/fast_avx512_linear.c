/* linear for AVX-512: two outputs share a register, eight lanes each, so that every (row, output)
 * goes through the operations of linear.c in their order.
 *
 * With few rows, four outputs at a time stay in registers from the decoder on. With many, a chunk
 * of SK_OUTPUTS_AVX512 outputs is decoded into the first-level cache and multiplied there, up to
 * three pairs of outputs by four rows at a time. Activations are broadcast to both halves from
 * memory. */
#include "op/cpu/fast_avx512.h"

#include "op/cpu/fast_linear.h"

#include <assert.h>

#if SK_HAVE_AVX2

#define OUTPUTS  SK_OUTPUTS_AVX512
#define PAIRS    (OUTPUTS / 2)
#define FEW_ROWS 4 // up to here a group stays in registers
#define FEW_OUTS 4
#define AHEAD    2 // sets of FEW_OUTS rows that memory is asked for in advance

/* Private to a worker. */
typedef struct scratch {
    float code[PAIRS][2 * SK_CHUNK + 16];             // not a page apart
    float wide[PAIRS][SK_CHUNK_GROUPS][2 * SK_LANES]; // scales, one a lane
    float acc[PAIRS][SK_TILE_ROWS + 1][2 * SK_LANES];
    float scale[OUTPUTS][SK_CHUNK_GROUPS];
    float min[OUTPUTS][SK_CHUNK_GROUPS];
    float acc_min[OUTPUTS][SK_TILE_ROWS];
} scratch;
static_assert(sizeof(scratch) <= 4 * SK_LINEAR_SCRATCH, "scratch of a worker");

/* x[0..7] in both halves. */
SK_INLINE512 __m512 twice(const float *x)
{
    return _mm512_castpd_ps(_mm512_broadcast_f64x4(_mm256_castps_pd(_mm256_loadu_ps(x))));
}

/* The first n of four results into y[o ..]. */
SK_INLINE512 void put4(const sk_linear_job *j, int32_t seg, int64_t r, int64_t o, int n, __m128 sum)
{
    const sk_view *bias = &j->a->bias[seg];
    float *y = (float *)(void *)sk_view_row(&j->a->y[seg], r) + o;
    __mmask8 which = (__mmask8)((1 << n) - 1);
    if (sk_view_present(bias))
        sum = _mm_add_ps(sum, _mm_maskz_loadu_ps(which, (const float *)(const void *)bias->p + o));
    _mm_mask_storeu_ps(y, which, sum);
}

/* ---- few rows: groups in registers ----------------------------------------------------------- */

/* Scales and minima of the groups of a block for four rows. */
typedef struct scales {
    float scale[FEW_OUTS][SK_BLOCK_GROUPS_MAX];
    float min[SK_BLOCK_GROUPS_MAX][FEW_OUTS];
} scales;

SK_INLINE512 void block_scales(sk_dtype type, const uint8_t *const *row, int64_t at, scales *s)
{
    float min[FEW_OUTS][SK_BLOCK_GROUPS_MAX];
    SK_UNROLL
    for (int o = 0; o < FEW_OUTS; o++) sk_fast_scales(type, row[o] + at, s->scale[o], min[o]);
    if (!sk_fast_has_min(type)) return;
    SK_UNROLL
    for (int64_t i = 0; i < sk_fast_block_groups(type); i += 4) {
        __m128 a = _mm_loadu_ps(&min[0][i]);
        __m128 b = _mm_loadu_ps(&min[1][i]);
        __m128 c = _mm_loadu_ps(&min[2][i]);
        __m128 d = _mm_loadu_ps(&min[3][i]);
        _MM_TRANSPOSE4_PS(a, b, c, d);
        _mm_storeu_ps(s->min[i], a);
        _mm_storeu_ps(s->min[i + 1], b);
        _mm_storeu_ps(s->min[i + 2], c);
        _mm_storeu_ps(s->min[i + 3], d);
    }
}

/* Scales of the only group of the four blocks, pair by pair, and their minima in the odd lanes. */
SK_INLINE512 void only_scales(sk_dtype type, const uint8_t *const *row, int64_t at, __m512 *scale,
                              __m256 *min)
{
    const __m512i ab = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2);
    const __m512i cd = _mm512_setr_epi32(4, 4, 4, 4, 4, 4, 4, 4, 6, 6, 6, 6, 6, 6, 6, 6);
    if (type == SK_F32 || type == SK_F16 || type == SK_BF16) {
        scale[0] = scale[1] = _mm512_set1_ps(1);
    } else if (type == SK_MXFP4) {
        float unused;
        SK_UNROLL
        for (int p = 0; p < 2; p++) {
            __m256 a = sk_fast_scale(type, row[2 * p] + at, &unused);
            __m256 b = sk_fast_scale(type, row[2 * p + 1] + at, &unused);
            scale[p] = _mm512_insertf32x8(_mm512_castps256_ps512(a), b, 1);
        }
    } else {
        __m128i x = _mm_cvtsi32_si128((int32_t)sk_fast_u32(row[0] + at));
        __m512 wide;
        x = _mm_insert_epi32(x, (int32_t)sk_fast_u32(row[1] + at), 1);
        x = _mm_insert_epi32(x, (int32_t)sk_fast_u32(row[2] + at), 2);
        x = _mm_insert_epi32(x, (int32_t)sk_fast_u32(row[3] + at), 3);
        *min = _mm256_cvtph_ps(x);
        wide = _mm512_castps256_ps512(*min);
        scale[0] = _mm512_permutexvar_ps(ab, wide);
        scale[1] = _mm512_permutexvar_ps(cd, wide);
    }
}

/* The last, short group of the four rows. */
SK_AVX512 static void add_tails(const sk_linear_job *j, sk_dtype type, const uint8_t *const *row,
                                const float *x, __m512 *acc)
{
    float lanes[FEW_OUTS][SK_LANES];
    _mm512_storeu_ps(lanes[0], acc[0]);
    _mm512_storeu_ps(lanes[2], acc[1]);
    for (int o = 0; o < FEW_OUTS; o++) sk_fast_add_tail(type, row[o], x, j->k, 1, lanes[o]);
    acc[0] = _mm512_loadu_ps(lanes[0]);
    acc[1] = _mm512_loadu_ps(lanes[2]);
}

/* Four weight rows for rows 0 .. n-1 of the job; n and type are constants. `step` bytes to the four
 * weight rows that come next. */
SK_INLINE512 void dot_few(const sk_linear_job *j, sk_dtype type, int n, const uint8_t *const *row,
                          int64_t step, __m128 *out)
{
    const __m256i odd = _mm256_setr_epi32(1, 3, 5, 7, 1, 3, 5, 7);
    const int64_t vectors = sk_fast_group_vectors(type);
    const int64_t groups = sk_fast_block_groups(type);
    const int64_t elems = 8 * vectors;
    const int64_t bytes = sk_fast_block_bytes(type);
    const bool has_min = sk_fast_has_min(type);
    const float *sx = j->sx; // none of the types with groups of 16 has minima
    const uint8_t *ahead = row[0] + AHEAD * step;
    int64_t n_blocks = j->k / (elems * groups);
    __m512 acc[FEW_ROWS][2];
    __m256 acc_min[FEW_ROWS]; // in the low half, or in the odd lanes
    SK_UNROLL
    for (int r = 0; r < n; r++) {
        acc[r][0] = acc[r][1] = _mm512_setzero_ps();
        acc_min[r] = _mm256_setzero_ps();
    }
    for (int64_t b = 0; b < n_blocks; b++) {
        const int64_t at = b * bytes;
        __m512 scale[2];
        __m256 min = _mm256_setzero_ps();
        scales all;
        SK_UNROLL
        for (int64_t l = 0; l < FEW_OUTS * bytes; l += 64)
            _mm_prefetch((const char *)(ahead + FEW_OUTS * at + l), _MM_HINT_T0);
        if (groups > 1)
            block_scales(type, row, at, &all);
        else
            only_scales(type, row, at, scale, &min);
        SK_UNROLL
        for (int64_t i = 0; i < groups; i++) {
            const int64_t g = b * groups + i;
            const float *x = j->x + g * elems;
            if (groups > 1) {
                scale[0] = sk_pair_floats(&all.scale[0][i], &all.scale[1][i]);
                scale[1] = sk_pair_floats(&all.scale[2][i], &all.scale[3][i]);
                if (has_min) min = _mm256_castps128_ps256(_mm_loadu_ps(all.min[i]));
            }
            SK_UNROLL
            for (int pair = 0; pair < 2; pair++) {
                __m512 code[4];
                sk_pair_codes(type, row[2 * pair] + at, row[2 * pair + 1] + at, i, code);
                SK_UNROLL
                for (int r = 0; r < n; r++) {
                    __m512 p = _mm512_setzero_ps();
                    SK_UNROLL
                    for (int64_t v = 0; v < vectors; v++)
                        p = _mm512_fmadd_ps(code[v], twice(x + r * j->x_stride + 8 * v), p);
                    acc[r][pair] = _mm512_fmadd_ps(scale[pair], p, acc[r][pair]);
                }
            }
            SK_UNROLL
            for (int r = 0; r < n; r++)
                if (has_min)
                    acc_min[r] = _mm256_fmadd_ps(
                        min, _mm256_broadcast_ss(&sx[g * j->sx_stride + r]), acc_min[r]);
        }
    }
    SK_UNROLL
    for (int r = 0; r < n; r++) {
        if (j->k % elems != 0) add_tails(j, type, row, j->x + r * j->x_stride, acc[r]);
        out[r] = sk_pair_trees(acc[r][0], acc[r][1]);
        if (has_min) {
            if (groups == 1) acc_min[r] = _mm256_permutevar8x32_ps(acc_min[r], odd);
            out[r] = _mm_add_ps(out[r], _mm256_castps256_ps128(acc_min[r]));
        }
    }
}

SK_INLINE512 void dot_few_rows(const sk_linear_job *j, sk_dtype type, const uint8_t *const *row,
                               int64_t step, __m128 *out)
{
    switch (j->n_rows) {
    case 1:
        dot_few(j, type, 1, row, step, out);
        break;
    case 2:
        dot_few(j, type, 2, row, step, out);
        break;
    case 3:
        dot_few(j, type, 3, row, step, out);
        break;
    default:
        dot_few(j, type, 4, row, step, out);
        break;
    }
}

#define X(name)                                                                                    \
    SK_AVX512 static void few_##name(const sk_linear_job *j, const uint8_t *const *row,            \
                                     int64_t step, __m128 *out)                                    \
    {                                                                                              \
        dot_few_rows(j, SK_##name, row, step, out);                                                \
    }
SK_PAIR_TYPES(X)
#undef X

/* At most FEW_ROWS rows of the job. */
SK_AVX512 static void few_outputs(const sk_linear_job *j, int64_t first_row, int32_t seg, int64_t o,
                                  int n_out)
{
    const sk_view *w = &j->a->w[seg];
    for (int64_t end = o + n_out; o < end; o += FEW_OUTS) {
        int n = (int)(end - o < FEW_OUTS ? end - o : FEW_OUTS);
        const uint8_t *row[FEW_OUTS];
        __m128 out[FEW_ROWS];
        for (int i = 0; i < FEW_OUTS; i++) row[i] = sk_view_row(w, o + (i < n ? i : n - 1));
        switch (w->dtype) {
#define X(name)                                                                                    \
    case SK_##name:                                                                                \
        few_##name(j, row, FEW_OUTS * w->stride[0], out);                                          \
        break;
            SK_PAIR_TYPES(X)
#undef X
        default:
            return; // not called for others
        }
        for (int64_t r = 0; r < j->n_rows; r++) put4(j, seg, first_row + r, o, n, out[r]);
    }
}

/* ---- many rows: chunks in the cache ---------------------------------------------------------- */

/* Elements first .. of two rows into pairs of vectors. */
SK_INLINE512 void decode_pair(sk_dtype type, const uint8_t *a, const uint8_t *b, int64_t first,
                              int64_t n, float *code, float *scale, float *min)
{
    const int64_t vectors = sk_fast_group_vectors(type);
    const int64_t groups = sk_fast_block_groups(type);
    const int64_t bytes = sk_fast_block_bytes(type);
    const int64_t elems = 8 * vectors * groups;
    for (int64_t k = 0; k < n / elems; k++) {
        const int64_t at = (first / elems + k) * bytes;
        SK_UNROLL
        for (int o = 0; o < 2; o++) {
            float *s = scale + o * SK_CHUNK_GROUPS + k * groups;
            float *m = min + o * SK_CHUNK_GROUPS + k * groups;
            if (groups > 1)
                sk_fast_scales(type, (o ? b : a) + at, s, m);
            else
                *s = _mm256_cvtss_f32(sk_fast_scale(type, (o ? b : a) + at, m));
        }
        SK_UNROLL
        for (int64_t i = 0; i < groups; i++) {
            __m512 c[4];
            sk_pair_codes(type, a + at, b + at, i, c);
            SK_UNROLL
            for (int64_t v = 0; v < vectors; v++)
                _mm512_store_ps(code + ((k * groups + i) * vectors + v) * 16, c[v]);
        }
    }
}

#define X(name)                                                                                    \
    SK_AVX512 static void pair_##name(const uint8_t *a, const uint8_t *b, int64_t first,           \
                                      int64_t n, float *code, float *scale, float *min)            \
    {                                                                                              \
        decode_pair(SK_##name, a, b, first, n, code, scale, min);                                  \
    }
SK_PAIR_TYPES(X)
#undef X

static void decode(sk_dtype type, const uint8_t *a, const uint8_t *b, int64_t first, int64_t n,
                   scratch *s, int pair)
{
    float *code = s->code[pair];
    const int i = 2 * pair;
    switch (type) {
#define X(name)                                                                                    \
    case SK_##name:                                                                                \
        pair_##name(a, b, first, n, code, s->scale[i], s->min[i]);                                 \
        break;
        SK_PAIR_TYPES(X)
#undef X
    default:
        sk_fast_decode_chunk(type, a, first, n, 16, code, s->scale[i], s->min[i]);
        sk_fast_decode_chunk(type, b, first, n, 16, code + 8, s->scale[i + 1], s->min[i + 1]);
        break;
    }
}

/* n_pairs of outputs times n_rows rows over the chunk; both, and the vectors of a group, are
 * constants. */
SK_INLINE512 void multiply(scratch *s, int pair, int64_t r, int n_pairs, int n_rows,
                           int64_t vectors, int64_t n_groups, const float *x, int64_t stride)
{
    __m512 acc[3][4];
    SK_UNROLL
    for (int i = 0; i < n_pairs; i++) SK_UNROLL
    for (int q = 0; q < n_rows; q++) acc[i][q] = _mm512_load_ps(s->acc[pair + i][r + q]);
    for (int64_t g = 0; g < n_groups; g++) {
        __m512 p[3][4];
        SK_UNROLL
        for (int i = 0; i < n_pairs; i++) SK_UNROLL
        for (int q = 0; q < n_rows; q++) p[i][q] = _mm512_setzero_ps();
        SK_UNROLL
        for (int64_t v = 0; v < vectors; v++) {
            int64_t at = (g * vectors + v) * 8;
            __m512 xv[4];
            SK_UNROLL
            for (int q = 0; q < n_rows; q++) xv[q] = twice(x + q * stride + at);
            SK_UNROLL
            for (int i = 0; i < n_pairs; i++) {
                __m512 c = _mm512_load_ps(&s->code[pair + i][2 * at]);
                SK_UNROLL
                for (int q = 0; q < n_rows; q++) p[i][q] = _mm512_fmadd_ps(c, xv[q], p[i][q]);
            }
        }
        SK_UNROLL
        for (int i = 0; i < n_pairs; i++) {
            __m512 scale = _mm512_load_ps(s->wide[pair + i][g]);
            SK_UNROLL
            for (int q = 0; q < n_rows; q++) acc[i][q] = _mm512_fmadd_ps(scale, p[i][q], acc[i][q]);
        }
    }
    SK_UNROLL
    for (int i = 0; i < n_pairs; i++) SK_UNROLL
    for (int q = 0; q < n_rows; q++) _mm512_store_ps(s->acc[pair + i][r + q], acc[i][q]);
}

SK_INLINE512 void multiply_rows(scratch *s, int n_pairs, int64_t r, int n_rows, int64_t vectors,
                                int64_t n_groups, const float *x, int64_t stride)
{
    int pair = 0;
    x += r * stride;
    for (; pair + 3 <= n_pairs; pair += 3)
        multiply(s, pair, r, 3, n_rows, vectors, n_groups, x, stride);
    for (; pair < n_pairs; pair++) multiply(s, pair, r, 1, n_rows, vectors, n_groups, x, stride);
}

/* Rows by fours; five are three and two. */
SK_INLINE512 void multiply_tile(scratch *s, int n_pairs, int64_t n_rows, int64_t vectors,
                                int64_t n_groups, const float *x, int64_t stride)
{
    int64_t r = 0;
    for (; n_rows - r >= 4 && n_rows - r != 5; r += 4)
        multiply_rows(s, n_pairs, r, 4, vectors, n_groups, x, stride);
    if (n_rows - r == 5 || n_rows - r == 3) {
        multiply_rows(s, n_pairs, r, 3, vectors, n_groups, x, stride);
        r += 3;
    }
    if (n_rows - r == 2)
        multiply_rows(s, n_pairs, r, 2, vectors, n_groups, x, stride);
    else if (n_rows - r == 1)
        multiply_rows(s, n_pairs, r, 1, vectors, n_groups, x, stride);
}

SK_AVX512 static void multiply_32(scratch *s, int n_pairs, int64_t n_rows, int64_t n_groups,
                                  const float *x, int64_t stride)
{
    multiply_tile(s, n_pairs, n_rows, 4, n_groups, x, stride);
}

SK_AVX512 static void multiply_16(scratch *s, int n_pairs, int64_t n_rows, int64_t n_groups,
                                  const float *x, int64_t stride)
{
    multiply_tile(s, n_pairs, n_rows, 2, n_groups, x, stride);
}

/* Decodes elements first .. first+n-1 of n_out outputs and takes their minima into account. */
SK_AVX512 static void fill(const sk_linear_job *j, scratch *s, int32_t seg, int64_t o, int n_out,
                           int64_t first_row, int64_t n_rows, int64_t first, int64_t n)
{
    const sk_view *w = &j->a->w[seg];
    const sk_dtype type = (sk_dtype)w->dtype;
    const int64_t elems = sk_quant_group_elems(type);
    const bool has_min = sk_quant_has_min(type);
    for (int i = 0; i < n_out; i += 2) {
        const int64_t other = i + 1 < n_out ? i + 1 : i; // an odd one is its own partner
        decode(type, sk_view_row(w, o + i), sk_view_row(w, o + other), first, n, s, i / 2);
        for (int q = i; q < i + 2; q++) {
            const float *on_top = sk_scale_row(j->a, seg, o + (q < n_out ? q : n_out - 1));
            if (on_top)
                sk_fast_scale_chunk(on_top, j->a->scale_k[seg], first, n, elems, s->scale[q],
                                    has_min ? s->min[q] : NULL);
        }
        for (int64_t g = 0; g < n / elems; g++)
            _mm512_store_ps(s->wide[i / 2][g],
                            sk_pair_floats(&s->scale[i][g], &s->scale[i + 1][g]));
    }
    if (has_min)
        sk_fast_add_minima(j, n_out, s->min, s->acc_min, first_row, n_rows, first, n, elems);
}

static void add_tile_tails(const sk_linear_job *j, scratch *s, int32_t seg, int64_t o, int n_out,
                           int64_t first_row, int64_t n_rows)
{
    const sk_view *w = &j->a->w[seg];
    const sk_dtype type = (sk_dtype)w->dtype;
    const int64_t whole = j->k - j->k % SK_GROUP_MAX;
    for (int i = 0; i < n_out; i++) {
        const float *on_top = sk_scale_row(j->a, seg, o + i);
        const float scale = on_top ? on_top[whole / j->a->scale_k[seg]] : 1;
        for (int64_t r = 0; r < n_rows; r++)
            sk_fast_add_tail(type, sk_view_row(w, o + i), j->x + (first_row + r) * j->x_stride,
                             j->k, scale, s->acc[i / 2][r] + (i % 2) * SK_LANES);
    }
}

/* Outputs o .. o+n_out-1 of a segment for rows first_row .. */
SK_AVX512 static void tile(const sk_linear_job *j, scratch *s, int32_t seg, int64_t o, int n_out,
                           int64_t first_row, int64_t n_rows)
{
    const sk_dtype type = (sk_dtype)j->a->w[seg].dtype;
    const int64_t elems = sk_quant_group_elems(type);
    const bool has_min = sk_quant_has_min(type);
    const int64_t whole = j->k - j->k % elems;
    const float *x = j->x + first_row * j->x_stride;
    const int n_pairs = (n_out + 1) / 2;
    for (int i = 0; i < n_pairs; i++) memset(s->acc[i], 0, (size_t)n_rows * sizeof s->acc[i][0]);
    if (has_min) memset(s->acc_min, 0, sizeof s->acc_min);
    for (int64_t first = 0; first < whole; first += SK_CHUNK) {
        int64_t n = whole - first < SK_CHUNK ? whole - first : SK_CHUNK;
        fill(j, s, seg, o, n_out, first_row, n_rows, first, n);
        if (elems == 16)
            multiply_16(s, n_pairs, n_rows, n / elems, x + first, j->x_stride);
        else
            multiply_32(s, n_pairs, n_rows, n / elems, x + first, j->x_stride);
    }
    if (whole < j->k) add_tile_tails(j, s, seg, o, n_out, first_row, n_rows);
    for (int i = 0; i < n_out; i += 4) {
        const int second = i + 2 < n_out ? i / 2 + 1 : i / 2;
        for (int64_t r = 0; r < n_rows; r++) {
            __m128 sum =
                sk_pair_trees(_mm512_load_ps(s->acc[i / 2][r]), _mm512_load_ps(s->acc[second][r]));
            if (has_min)
                sum = _mm_add_ps(sum, _mm_setr_ps(s->acc_min[i][r], s->acc_min[i + 1][r],
                                                  s->acc_min[i + 2][r], s->acc_min[i + 3][r]));
            put4(j, seg, first_row + r, o + i, n_out - i < 4 ? n_out - i : 4, sum);
        }
    }
}

/* Rows of the job by twos of about equal size: what the decoders cost twice, a chunk in the cache
 * would cost in stores and loads. */
static void few_rows(const sk_linear_job *j, int32_t seg, int64_t o, int n_out)
{
    const int64_t most = j->n_rows <= FEW_ROWS ? j->n_rows : (j->n_rows + 1) / 2;
    for (int64_t r = 0; r < j->n_rows; r += most) {
        sk_linear_job part = *j;
        part.x += r * j->x_stride;
        part.sx += r;
        part.n_rows = j->n_rows - r < most ? j->n_rows - r : most;
        few_outputs(&part, r, seg, o, n_out);
    }
}

static void block(const sk_linear_job *j, float *scratch_of, int32_t seg, int64_t o, int n_out)
{
    const sk_dtype type = (sk_dtype)j->a->w[seg].dtype;
    const bool is_pair = sk_pair_has(type) && !sk_view_present(&j->a->scale[seg]);
    if (is_pair && j->n_rows <= 2 * FEW_ROWS) {
        few_rows(j, seg, o, n_out);
        return;
    }
    if (j->n_rows <= FEW_ROWS) { // decoders without pairs, or scales on top, which need a chunk
        sk_avx2_linear_block(j, scratch_of, seg, o, n_out);
        return;
    }
    for (int64_t r = 0; r < j->n_rows; r += SK_TILE_ROWS) {
        int64_t left = j->n_rows - r;
        tile(j, (scratch *)(void *)scratch_of, seg, o, n_out, r,
             left < SK_TILE_ROWS ? left : SK_TILE_ROWS);
    }
}

void sk_avx512_linear(const void *args, const sk_cpu *cpu)
{
    sk_fast_linear_run(args, cpu, block, OUTPUTS);
}
#endif
