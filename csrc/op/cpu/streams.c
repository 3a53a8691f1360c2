/* The streams of a wide residual, and the hyper-connections that lead into a block and out of it.
 *
 * Threads take streams of rows, pieces of rows or rows, never a part of a sum. The products run in
 * the table that the op runs in, so one version serves all tables but for two loops
 * (fast_streams.c). */
#include "op/cpu/streams.h"

#include "op/cpu/parts.h"

#include <math.h>
#include <string.h>

#define GRAIN 16384 // elements worth waking a thread for

/* ---- stream_copy, stream_add ----------------------------------------------------------------- */

static void copy_streams(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const sk_stream_copy_args *a = ctx;
    const int64_t n_streams = a->s.dim[1];
    (void)worker;
    for (int64_t k = begin; k < end; k++)
        memcpy(sk_view_head(&a->s, k / n_streams, k % n_streams), sk_view_row(&a->x, k / n_streams),
               (size_t)a->x.dim[1] * sizeof(float));
}

void sk_cpu_stream_copy(const void *args, const sk_cpu *cpu)
{
    sk_stream_copy_args a = *(const sk_stream_copy_args *)args;
    sk_pool_run(cpu->pool, sk_live_rows(&a.count, a.x.dim[0]) * a.s.dim[1], 1 + GRAIN / a.x.dim[1],
                copy_streams, &a);
}

static void add_streams(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const sk_stream_add_args *a = ctx;
    const int64_t n_streams = a->s.dim[1];
    (void)worker;
    for (int64_t k = begin; k < end; k++) {
        const float *x = (const float *)(const void *)sk_view_row(&a->x, k / n_streams);
        float *s = sk_stream_at(&a->s, k / n_streams, k % n_streams);
        for (int64_t d = 0; d < a->x.dim[1]; d++) s[d] += x[d];
    }
}

void sk_cpu_stream_add(const void *args, const sk_cpu *cpu)
{
    sk_stream_add_args a = *(const sk_stream_add_args *)args;
    sk_pool_run(cpu->pool, sk_live_rows(&a.count, a.x.dim[0]) * a.s.dim[1], 1 + GRAIN / a.x.dim[1],
                add_streams, &a);
}

/* ---- hyper_down ------------------------------------------------------------------------------ */

/* (W a)_i is a product of its own. Where the groups of a weight begin with the stream, it is that
 * of the stream's columns: the groups left out would add zeros. A group that belongs to two streams
 * has to be summed as a whole, with zeros for the other one: then a is kept with S rows for each
 * row, all but the stream's columns 0. */
typedef struct down {
    const sk_hyper_down_args *a;
    bool apart[2];   // the streams' columns of w[j] can be multiplied by themselves
    bool padded;     // there are S rows of `in` for each row
    sk_view in;      // act [P, S*D], or [P*S, S*D]
    sk_view part[2]; // F32 [P, S, N_j]: (W_j a)_i
    sk_view live;    // I32 [1] rows of `in` that mean something, when it is padded
} down;

static bool groups_apart(const sk_view *w, int64_t dim)
{
    // Plain types have blocks of one element, and groups that are longer.
    return dim % sk_dtype_find(w->dtype)->block_elems == 0 &&
           dim % sk_quant_group_elems((sk_dtype)w->dtype) == 0;
}

static down down_parts(const sk_hyper_down_args *a, sk_arena *s)
{
    const int64_t n_rows = a->s.dim[0];
    const int64_t n_streams = a->s.dim[1];
    const int64_t dim = a->s.dim[2];
    down d = {.a = a};
    for (int32_t j = 0; j < 2; j++) {
        if (!sk_view_present(&a->w[j])) continue;
        d.apart[j] = groups_apart(&a->w[j], dim);
        d.padded = d.padded || !d.apart[j];
        d.part[j] = sk_arena_take(s, SK_F32, 3, (int64_t[]){n_rows, n_streams, a->w[j].dim[0]});
    }
    d.in = sk_arena_take(s, a->low.dtype, 2,
                         (int64_t[]){d.padded ? n_rows * n_streams : n_rows, n_streams * dim});
    return d;
}

static int64_t bytes_of(int32_t dtype, int64_t n)
{
    uint64_t bytes = 0;
    (void)sk_dtype_row_bytes(dtype, (uint64_t)n, &bytes);
    return (int64_t)bytes;
}

/* The columns of stream i. */
static sk_view columns_of(const sk_view *v, int64_t i, int64_t dim)
{
    sk_view part = *v;
    part.dim[1] = dim;
    if (part.p) part.p += bytes_of(v->dtype, i * dim);
    return part;
}

/* Linear of w[j]: on stream i, or on all of them at once. */
static sk_linear_args down_product(const down *d, int32_t j, int64_t i)
{
    const int64_t n_rows = d->a->s.dim[0];
    const int64_t n_streams = d->a->s.dim[1];
    const int64_t dim = d->a->s.dim[2];
    const sk_view *w = &d->a->w[j];
    sk_linear_args p;
    sk_args_clear(SK_OP_linear, &p);
    p.y[0] = sk_view_dense(0, SK_F32, 2, (int64_t[]){n_rows * n_streams, w->dim[0]});
    p.y[0].p = d->part[j].p;
    p.x = d->in;
    p.w[0] = *w;
    p.count = d->a->count;
    if (!d->apart[j]) {
        p.count = d->live;
        return p;
    }
    p.w[0] = columns_of(w, i, dim);
    p.x = columns_of(&d->in, i, dim);
    p.x.dim[0] = n_rows;
    if (d->padded) {
        if (p.x.p) p.x.p += i * d->in.stride[0];
        p.x.stride[0] = n_streams * d->in.stride[0];
    }
    if (p.y[0].p) p.y[0].p += i * p.y[0].stride[0];
    p.y[0].dim[0] = n_rows;
    p.y[0].stride[0] *= n_streams;
    return p;
}

/* n and a of every stream. */
static void scale_streams(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const down *d = ctx;
    const int64_t n_streams = d->a->s.dim[1];
    const int64_t dim = d->a->s.dim[2];
    (void)worker;
    for (int64_t k = begin; k < end; k++) {
        const int64_t i = k % n_streams;
        const float *s = sk_stream_at(&d->a->s, k / n_streams, i);
        const float *gain = (const float *)(const void *)d->a->gain.p + i * dim;
        uint8_t *in = sk_view_row(&d->in, d->padded ? k : k / n_streams);
        if (d->padded) memset(in, 0, (size_t)bytes_of(d->in.dtype, d->in.dim[1]));
        in += bytes_of(d->in.dtype, i * dim);
        for (int64_t c = 0; c < dim; c++) sk_act_set(d->in.dtype, in, c, s[c] * gain[c]);
        ((float *)(void *)sk_view_row(&d->a->factor, k / n_streams))[i] =
            sk_rms_factor(s, dim, d->a->eps);
    }
}

/* y / S of output o of w[j]. */
static float down_sum(const down *d, int32_t j, int64_t r, int64_t o)
{
    const int64_t n_streams = d->a->s.dim[1];
    const float *n = (const float *)(const void *)sk_view_row(&d->a->factor, r);
    float y = 0;
    for (int64_t i = 0; i < n_streams; i++) y = fmaf(n[i], sk_stream_at(&d->part[j], r, i)[o], y);
    return y / (float)n_streams;
}

static void down_rows(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const down *d = ctx;
    const sk_hyper_down_args *a = d->a;
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        uint8_t *low = sk_view_row(&a->low, r);
        for (int64_t o = 0; o < a->low.dim[1]; o++) {
            const float y = down_sum(d, 0, r, o);
            sk_act_set(a->low.dtype, low, o, y / (1.0f + sk_exp(-y)));
        }
        if (!sk_view_present(&a->w[1])) continue;
        for (int64_t i = 0; i < a->s.dim[1]; i++)
            ((float *)(void *)sk_view_row(&a->inject, r))[i] =
                2.0f / (1.0f + sk_exp(-down_sum(d, 1, r, i)));
    }
}

void sk_cpu_hyper_down(const void *args, const sk_cpu *cpu)
{
    const sk_hyper_down_args *a = args;
    const int64_t n_streams = a->s.dim[1];
    const int64_t n_rows = sk_live_rows(&a->count, a->s.dim[0]);
    int32_t live = (int32_t)(n_rows * n_streams);
    sk_arena s = {.base = cpu->work};
    down d = down_parts(a, &s);
    d.live = sk_view_dense(0, SK_I32, 1, (int64_t[]){1});
    d.live.p = (uint8_t *)(void *)&live;
    sk_pool_run(cpu->pool, n_rows * n_streams, 1 + GRAIN / 4 / a->s.dim[2], scale_streams, &d);
    for (int32_t j = 0; j < 2 && sk_view_present(&a->w[j]); j++)
        for (int64_t i = 0; i < (d.apart[j] ? n_streams : 1); i++) {
            const sk_linear_args product = down_product(&d, j, i);
            sk_run_part(SK_OP_linear, &product, cpu, &s);
        }
    sk_pool_run(cpu->pool, n_rows, 1 + GRAIN / 16 / a->low.dim[1], down_rows, &d);
}

/* ---- hyper_mix ------------------------------------------------------------------------------- */

typedef struct mix {
    sk_hyper_mix rest;
    sk_linear_args product;
} mix;

static mix mix_parts(const sk_hyper_mix_args *a, sk_arena *s)
{
    mix m = {.rest = {.a = a}};
    m.rest.z = sk_arena_take(s, SK_F32, 2, (int64_t[]){a->s.dim[0], a->w.dim[0]});
    sk_args_clear(SK_OP_linear, &m.product);
    m.product.x = a->low;
    m.product.count = a->count;
    m.product.w[0] = a->w;
    m.product.y[0] = m.rest.z;
    return m;
}

void sk_hyper_mix_run(const sk_hyper_mix_args *a, const sk_cpu *cpu, sk_pool_fn pieces)
{
    const int64_t n_rows = sk_live_rows(&a->count, a->s.dim[0]);
    sk_arena s = {.base = cpu->work};
    mix m = mix_parts(a, &s);
    sk_run_part(SK_OP_linear, &m.product, cpu, &s);
    sk_pool_run(cpu->pool, n_rows * sk_mix_pieces(a->s.dim[2]),
                1 + GRAIN / 8 / SK_MIX_COLS / a->s.dim[1], pieces, &m.rest);
}

static void mix_pieces(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const sk_hyper_mix *m = ctx;
    const sk_view *out = &m->a->out;
    const int64_t n_pieces = sk_mix_pieces(out->dim[1]);
    (void)worker;
    for (int64_t k = begin; k < end; k++) {
        const int64_t first = k % n_pieces * SK_MIX_COLS;
        for (int64_t d = first; d < first + SK_MIX_COLS && d < out->dim[1]; d++)
            sk_act_set(out->dtype, sk_view_row(out, k / n_pieces), d,
                       sk_hyper_mix_at(m, k / n_pieces, d));
    }
}

void sk_cpu_hyper_mix(const void *args, const sk_cpu *cpu)
{
    sk_hyper_mix_run(args, cpu, mix_pieces);
}

/* ---- hyper_inject ---------------------------------------------------------------------------- */

void sk_hyper_inject_run(const sk_hyper_inject_args *args, const sk_cpu *cpu, sk_pool_fn streams)
{
    sk_hyper_inject_args a = *args;
    sk_pool_run(cpu->pool, sk_live_rows(&a.count, a.x.dim[0]) * a.s.dim[1], 1 + GRAIN / a.x.dim[1],
                streams, &a);
}

static void inject_streams(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const sk_hyper_inject_args *a = ctx;
    const int64_t n_streams = a->s.dim[1];
    (void)worker;
    for (int64_t k = begin; k < end; k++) {
        const int64_t r = k / n_streams;
        const float *x = (const float *)(const void *)sk_view_row(&a->x, r);
        const float by = ((const float *)(const void *)sk_view_row(&a->inject, r))[k % n_streams];
        float *s = sk_stream_at(&a->s, r, k % n_streams);
        for (int64_t d = 0; d < a->x.dim[1]; d++) s[d] = fmaf(by, x[d], s[d]);
    }
}

void sk_cpu_hyper_inject(const void *args, const sk_cpu *cpu)
{
    sk_hyper_inject_run(args, cpu, inject_streams);
}

/* ---- how much scratch ------------------------------------------------------------------------ */

uint64_t sk_streams_bytes(enum sk_op op, const void *args, int32_t n_threads)
{
    sk_arena s = {.base = NULL};
    uint64_t part = 0;
    if (op == SK_OP_hyper_down) {
        const sk_hyper_down_args *a = args;
        const down d = down_parts(a, &s);
        for (int32_t j = 0; j < 2 && sk_view_present(&a->w[j]); j++) {
            const sk_linear_args product = down_product(&d, j, 0);
            const uint64_t bytes = sk_cpu_work_bytes(SK_OP_linear, &product, n_threads);
            part = bytes > part ? bytes : part;
        }
    } else if (op == SK_OP_hyper_mix) {
        const mix m = mix_parts(args, &s);
        part = sk_cpu_work_bytes(SK_OP_linear, &m.product, n_threads);
    } else if (op == SK_OP_gather_heads) {
        part = sk_gather_heads_bytes(args, n_threads);
    }
    return s.used + part;
}
