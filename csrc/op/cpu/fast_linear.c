/* linear for AVX2: the sums of linear.c in the same order, eight lanes at a time; and the driver,
 * which wider registers share.
 *
 * Threads take blocks of outputs, never parts of K. The activations are widened once. With few rows
 * a group is decoded into registers and used at once for all of them; with many, a chunk of several
 * outputs is decoded into the first-level cache and multiplied there by pairs of rows. Either way a
 * (row, output) goes through the same operations, so its bits do not depend on the path. */
#include "op/cpu/fast_linear.h"

#include "op/cpu/fast_decode.h"

#include <assert.h>

static uint64_t round_up(uint64_t x, uint64_t to) { return (x + to - 1) / to * to; }

static uint64_t x_stride(int64_t k) { return round_up((uint64_t)k, 16); }

uint64_t sk_fast_linear_bytes(const sk_linear_args *a, int32_t n_threads)
{
    uint64_t rows = round_up((uint64_t)a->x.dim[0], SK_LANES);
    uint64_t k = (uint64_t)a->x.dim[1];
    uint64_t floats = rows * (x_stride(a->x.dim[1]) + k / 32 + k / 16);
    return round_up(4 * floats, 64) + 4 * SK_LINEAR_SCRATCH * (uint64_t)n_threads;
}

#if SK_HAVE_AVX2

#define OUTPUTS  SK_OUTPUTS_AVX2
#define FEW_ROWS 4 // up to here a group stays in registers

/* Private to a worker. */
typedef struct scratch {
    float code[OUTPUTS][SK_CHUNK];
    float scale[OUTPUTS][SK_CHUNK_GROUPS];
    float min[OUTPUTS][SK_CHUNK_GROUPS];
    float acc[OUTPUTS][SK_TILE_ROWS][SK_LANES];
    float acc_min[OUTPUTS][SK_TILE_ROWS];
} scratch;
static_assert(sizeof(scratch) <= 4 * SK_LINEAR_SCRATCH, "scratch of a worker");

/* ---- activations ----------------------------------------------------------------------------- */

SK_AVX2 static void widen_row(const sk_view *x, int64_t r, float *out)
{
    const uint8_t *row = sk_view_row(x, r);
    int64_t k = x->dim[1];
    int64_t i = 0;
    if (x->dtype == SK_F32) {
        memcpy(out, row, (size_t)k * sizeof *out);
        return;
    }
    for (; i + 8 <= k; i += 8) {
        __m256i wide = _mm256_cvtepu16_epi32(sk_fast_load16(row + 2 * i));
        _mm256_storeu_ps(out + i, _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
    }
    for (; i < k; i++) out[i] = sk_act_get(x->dtype, row, i);
}

/* `vectors` of a group. */
SK_AVX2 static void sum_groups(const float *x, int64_t n_groups, int64_t vectors, float *sx,
                               int64_t stride)
{
    for (int64_t g = 0; g < n_groups; g++) {
        __m256 s = _mm256_setzero_ps();
        for (int64_t v = 0; v < vectors; v++)
            s = _mm256_add_ps(s, _mm256_loadu_ps(x + 8 * (vectors * g + v)));
        sx[g * stride] = sk_fast_tree8(s);
    }
}

typedef struct widen_job {
    const sk_view *x;
    float *out;
    float *sx;   // NULL: no segment has groups of 32 with minima
    float *sx16; // NULL: no segment has groups of 16 with minima
    int64_t x_stride, sx_stride;
} widen_job;

static void widen_rows(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const widen_job *w = ctx;
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        float *out = w->out + r * w->x_stride;
        widen_row(w->x, r, out);
        if (w->sx) sum_groups(out, w->x->dim[1] / 32, 4, w->sx + r, w->sx_stride);
        if (w->sx16) sum_groups(out, w->x->dim[1] / 16, 2, w->sx16 + r, w->sx_stride);
    }
}

/* ---- few rows: groups in registers ----------------------------------------------------------- */

/* Output o of a segment for rows 0 .. n-1; n and type are constants. */
SK_INLINE void dot_few(const sk_linear_job *j, sk_dtype type, int n, const uint8_t *w_row,
                       float *out)
{
    const int64_t vectors = sk_fast_group_vectors(type);
    const int64_t groups = sk_fast_block_groups(type);
    const int64_t elems = 8 * vectors;
    const bool has_min = sk_fast_has_min(type);
    const float *sx = vectors == 2 ? j->sx16 : j->sx;
    int64_t n_blocks = j->k / (elems * groups);
    __m256 acc[FEW_ROWS];
    float acc_min[FEW_ROWS] = {0};
    SK_UNROLL
    for (int r = 0; r < n; r++) acc[r] = _mm256_setzero_ps();
    for (int64_t b = 0; b < n_blocks; b++) {
        const uint8_t *block = w_row + b * sk_fast_block_bytes(type);
        float scale[SK_BLOCK_GROUPS_MAX];
        float min[SK_BLOCK_GROUPS_MAX];
        __m256 only = _mm256_setzero_ps();
        if (groups > 1)
            sk_fast_scales(type, block, scale, min);
        else
            only = sk_fast_scale(type, block, min);
        SK_UNROLL
        for (int64_t i = 0; i < groups; i++) {
            int64_t g = b * groups + i;
            __m256 code[4];
            __m256 s = groups > 1 ? _mm256_broadcast_ss(&scale[i]) : only;
            sk_fast_codes(type, block, i, code);
            SK_UNROLL
            for (int r = 0; r < n; r++) {
                const float *x = j->x + r * j->x_stride + g * elems;
                __m256 p = _mm256_setzero_ps();
                SK_UNROLL
                for (int64_t v = 0; v < vectors; v++)
                    p = _mm256_fmadd_ps(code[v], _mm256_loadu_ps(x + 8 * v), p);
                acc[r] = _mm256_fmadd_ps(s, p, acc[r]);
                if (has_min)
                    acc_min[r] = __builtin_fmaf(min[i], sx[g * j->sx_stride + r], acc_min[r]);
            }
        }
    }
    SK_UNROLL
    for (int r = 0; r < n; r++) {
        if (j->k % elems != 0) {
            float lanes[SK_LANES];
            _mm256_storeu_ps(lanes, acc[r]);
            sk_fast_add_tail(type, w_row, j->x + r * j->x_stride, j->k, 1, lanes);
            acc[r] = _mm256_loadu_ps(lanes);
        }
        out[r] = has_min ? sk_fast_tree8(acc[r]) + acc_min[r] : sk_fast_tree8(acc[r]);
    }
}

SK_INLINE void dot_few_rows(const sk_linear_job *j, sk_dtype type, const uint8_t *w_row, float *out)
{
    switch (j->n_rows) {
    case 1:
        dot_few(j, type, 1, w_row, out);
        break;
    case 2:
        dot_few(j, type, 2, w_row, out);
        break;
    case 3:
        dot_few(j, type, 3, w_row, out);
        break;
    default:
        dot_few(j, type, 4, w_row, out);
        break;
    }
}

static void put(const sk_linear_job *j, int32_t seg, int64_t r, int64_t o, float sum)
{
    const sk_view *bias = &j->a->bias[seg];
    float *y = (float *)(void *)sk_view_row(&j->a->y[seg], r);
    y[o] = sk_view_present(bias) ? sum + ((const float *)(const void *)bias->p)[o] : sum;
}

/* ---- many rows: chunks in the cache ---------------------------------------------------------- */

/* n_out outputs times n_rows rows over the chunk; both, and the vectors of a group, are constants.
 */
SK_INLINE void multiply(scratch *s, int o, int64_t r, int n_out, int n_rows, int64_t vectors,
                        int64_t n_groups, const float *x, int64_t stride)
{
    __m256 acc[3][2];
    SK_UNROLL
    for (int i = 0; i < n_out; i++) SK_UNROLL
    for (int q = 0; q < n_rows; q++) acc[i][q] = _mm256_load_ps(s->acc[o + i][r + q]);
    for (int64_t g = 0; g < n_groups; g++) {
        __m256 p[3][2];
        SK_UNROLL
        for (int i = 0; i < n_out; i++) SK_UNROLL
        for (int q = 0; q < n_rows; q++) p[i][q] = _mm256_setzero_ps();
        SK_UNROLL
        for (int64_t v = 0; v < vectors; v++) {
            int64_t at = (g * vectors + v) * 8;
            __m256 xv[2];
            SK_UNROLL
            for (int q = 0; q < n_rows; q++) xv[q] = _mm256_loadu_ps(x + q * stride + at);
            SK_UNROLL
            for (int i = 0; i < n_out; i++) {
                __m256 c = _mm256_load_ps(&s->code[o + i][at]);
                SK_UNROLL
                for (int q = 0; q < n_rows; q++) p[i][q] = _mm256_fmadd_ps(c, xv[q], p[i][q]);
            }
        }
        SK_UNROLL
        for (int i = 0; i < n_out; i++) {
            __m256 scale = _mm256_broadcast_ss(&s->scale[o + i][g]);
            SK_UNROLL
            for (int q = 0; q < n_rows; q++) acc[i][q] = _mm256_fmadd_ps(scale, p[i][q], acc[i][q]);
        }
    }
    SK_UNROLL
    for (int i = 0; i < n_out; i++) SK_UNROLL
    for (int q = 0; q < n_rows; q++) _mm256_store_ps(s->acc[o + i][r + q], acc[i][q]);
}

SK_INLINE void multiply_tile(scratch *s, int n_out, int64_t n_rows, int64_t vectors,
                             int64_t n_groups, const float *x, int64_t stride)
{
    int o = 0;
    for (; o + 3 <= n_out; o += 3) {
        int64_t r = 0;
        for (; r + 2 <= n_rows; r += 2)
            multiply(s, o, r, 3, 2, vectors, n_groups, x + r * stride, stride);
        if (r < n_rows) multiply(s, o, r, 3, 1, vectors, n_groups, x + r * stride, stride);
    }
    for (; o < n_out; o++) {
        int64_t r = 0;
        for (; r + 2 <= n_rows; r += 2)
            multiply(s, o, r, 1, 2, vectors, n_groups, x + r * stride, stride);
        if (r < n_rows) multiply(s, o, r, 1, 1, vectors, n_groups, x + r * stride, stride);
    }
}

SK_AVX2 static void multiply_32(scratch *s, int n_out, int64_t n_rows, int64_t n_groups,
                                const float *x, int64_t stride)
{
    multiply_tile(s, n_out, n_rows, 4, n_groups, x, stride);
}

SK_AVX2 static void multiply_16(scratch *s, int n_out, int64_t n_rows, int64_t n_groups,
                                const float *x, int64_t stride)
{
    multiply_tile(s, n_out, n_rows, 2, n_groups, x, stride);
}

/* Outputs o .. o+n_out-1 of a segment for rows first_row .. */
SK_AVX2 static void tile(const sk_linear_job *j, scratch *s, int32_t seg, int64_t o, int n_out,
                         int64_t first_row, int64_t n_rows)
{
    const sk_view *w = &j->a->w[seg];
    const sk_dtype type = (sk_dtype)w->dtype;
    const int64_t elems = sk_quant_group_elems(type);
    const bool has_min = sk_quant_has_min(type);
    const int64_t whole = j->k - j->k % elems;
    const float *x = j->x + first_row * j->x_stride;
    const int32_t scale_k = j->a->scale_k[seg];
    memset(s->acc, 0, sizeof s->acc);
    memset(s->acc_min, 0, sizeof s->acc_min);
    for (int64_t first = 0; first < whole; first += SK_CHUNK) {
        int64_t n = whole - first < SK_CHUNK ? whole - first : SK_CHUNK;
        for (int i = 0; i < n_out; i++) {
            const float *on_top = sk_scale_row(j->a, seg, o + i);
            sk_fast_decode_chunk(type, sk_view_row(w, o + i), first, n, 8, s->code[i], s->scale[i],
                                 s->min[i]);
            if (on_top)
                sk_fast_scale_chunk(on_top, scale_k, first, n, elems, s->scale[i],
                                    has_min ? s->min[i] : NULL);
        }
        if (has_min)
            sk_fast_add_minima(j, n_out, s->min, s->acc_min, first_row, n_rows, first, n, elems);
        if (elems == 16)
            multiply_16(s, n_out, n_rows, n / elems, x + first, j->x_stride);
        else
            multiply_32(s, n_out, n_rows, n / elems, x + first, j->x_stride);
    }
    for (int i = 0; i < n_out; i++)
        for (int64_t r = 0; r < n_rows; r++) {
            const float *on_top = sk_scale_row(j->a, seg, o + i);
            float *acc = s->acc[i][r];
            float sum;
            if (whole < j->k)
                sk_fast_add_tail(type, sk_view_row(w, o + i), x + r * j->x_stride, j->k,
                                 on_top ? on_top[whole / scale_k] : 1, acc);
            sum = sk_tree8(acc);
            put(j, seg, first_row + r, o + i, has_min ? sum + s->acc_min[i][r] : sum);
        }
}

/* ---- blocks of outputs ----------------------------------------------------------------------- */

#define X(name)                                                                                    \
    SK_AVX2 static void few_##name(const sk_linear_job *j, const uint8_t *w_row, float *out)       \
    {                                                                                              \
        dot_few_rows(j, SK_##name, w_row, out);                                                    \
    }
SK_FAST_TYPES(X)
#undef X

static void few(const sk_linear_job *j, sk_dtype type, const uint8_t *w_row, float *out)
{
    switch (type) {
#define X(name)                                                                                    \
    case SK_##name:                                                                                \
        few_##name(j, w_row, out);                                                                 \
        break;
        SK_FAST_TYPES(X)
#undef X
    default:
        break; // not called for others
    }
}

void sk_avx2_linear_block(const sk_linear_job *j, float *scratch_of, int32_t seg, int64_t o,
                          int n_out)
{
    const sk_dtype type = (sk_dtype)j->a->w[seg].dtype;
    scratch *s = (scratch *)(void *)scratch_of;
    // Scales on top are applied in the cache: registers are for the formats that have none.
    if (sk_fast_has(type) && j->n_rows <= FEW_ROWS && !sk_view_present(&j->a->scale[seg])) {
        for (int i = 0; i < n_out; i++) {
            float sum[FEW_ROWS] = {0};
            few(j, type, sk_view_row(&j->a->w[seg], o + i), sum);
            for (int64_t r = 0; r < j->n_rows; r++) put(j, seg, r, o + i, sum[r]);
        }
        return;
    }
    for (; n_out > 0; o += OUTPUTS, n_out -= OUTPUTS)
        for (int64_t r = 0; r < j->n_rows; r += SK_TILE_ROWS) {
            int64_t left = j->n_rows - r;
            tile(j, s, seg, o, n_out < OUTPUTS ? n_out : OUTPUTS, r,
                 left < SK_TILE_ROWS ? left : SK_TILE_ROWS);
        }
}

/* ---- the driver ------------------------------------------------------------------------------ */

static int64_t blocks_of(const sk_linear_job *j, const sk_view *w)
{
    return (w->dim[0] + j->outputs - 1) / j->outputs;
}

static void run_blocks(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const sk_linear_job *j = ctx;
    float *scratch_of = j->scratch + (int64_t)SK_LINEAR_SCRATCH * worker;
    int64_t seg_begin = 0; // first block of the segment
    for (int32_t seg = 0; seg < SK_LINEAR_SEGS && sk_view_present(&j->a->w[seg]); seg++) {
        int64_t n_out = j->a->w[seg].dim[0];
        int64_t seg_end = seg_begin + blocks_of(j, &j->a->w[seg]);
        for (; begin < end && begin < seg_end; begin++) {
            int64_t o = (begin - seg_begin) * j->outputs;
            j->block(j, scratch_of, seg, o, (int)(n_out - o < j->outputs ? n_out - o : j->outputs));
        }
        seg_begin = seg_end;
    }
}

void sk_fast_linear_run(const void *args, const sk_cpu *cpu, sk_linear_block block, int64_t outputs)
{
    const sk_linear_args *a = args;
    int64_t k = a->x.dim[1];
    int64_t n_rows = sk_live_rows(&a->count, a->x.dim[0]);
    int64_t rows_up = (int64_t)round_up((uint64_t)n_rows, SK_LANES);
    int64_t stride = (int64_t)x_stride(k);
    int64_t n_blocks = 0;
    float *x = (float *)(void *)cpu->work;
    float *sx = x + rows_up * stride;
    float *sx16 = sx + rows_up * (k / 32);
    uint64_t floats = (uint64_t)rows_up * (uint64_t)(stride + k / 32 + k / 16);
    widen_job widen = {.x = &a->x, .out = x, .x_stride = stride, .sx_stride = rows_up};
    sk_linear_job j = {.a = a,
                       .x = x,
                       .sx = sx,
                       .sx16 = sx16,
                       .n_rows = n_rows,
                       .k = k,
                       .x_stride = stride,
                       .sx_stride = rows_up,
                       .block = block,
                       .outputs = outputs};
    if (n_rows == 0) return;
    for (int32_t s = 0; s < SK_LINEAR_SEGS && sk_view_present(&a->w[s]); s++) {
        sk_dtype type = (sk_dtype)a->w[s].dtype;
        if (!sk_fast_has(type) && (sk_quant_group_elems(type) != 32 || sk_quant_has_min(type))) {
            sk_cpu_linear(args, cpu); // a block format that is new to this file
            return;
        }
        if (sk_quant_has_min(type) && sk_quant_group_elems(type) == 16)
            widen.sx16 = sx16;
        else if (sk_quant_has_min(type))
            widen.sx = sx;
        n_blocks += blocks_of(&j, &a->w[s]);
    }
    j.scratch = (float *)(void *)(cpu->work + round_up(4 * floats, 64));
    sk_pool_run(cpu->pool, n_rows, 65536 / k + 1, widen_rows, &widen);
    // A few microseconds of work: less is not worth waking a thread for.
    sk_pool_run(cpu->pool, n_blocks, 1 + 32768 / (k * outputs * n_rows), run_blocks, &j);
}

void sk_avx2_linear(const void *args, const sk_cpu *cpu)
{
    sk_fast_linear_run(args, cpu, sk_avx2_linear_block, OUTPUTS);
}
#endif
