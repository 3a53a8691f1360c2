/* Recurrences by definition: the convolution ahead of them, the gated delta rule, the gated norm
 * behind it. Every column of a matrix is on its own, so is every channel; what is split over
 * threads never meets in a sum. */
#include "op/cpu/recurrent.h"

#include "op/cpu/exp.h"

#include <math.h>

#define GRAIN    16384 // elements worth waking a thread for
#define CHANNELS 1024  // of a convolution in one piece

/* ---- conv ------------------------------------------------------------------------------------ */

sk_tap_row sk_tap_row_of(const sk_conv_args *a, int64_t r, int64_t k)
{
    const sk_row *row = sk_row_at(&a->rows, r);
    const int64_t back = (a->taps.dim[1] - 1 - k) * a->dilation;
    if (back <= row->at) return (sk_tap_row){sk_view_row(&a->x, r - back), SK_F32};
    return (sk_tap_row){
        sk_view_head(&a->window, row->slot, a->window.dim[1] + row->at - back),
        a->window.dtype,
    };
}

void sk_conv_channels(const sk_conv_args *a, int64_t r, int64_t begin, int64_t end)
{
    float *out = (float *)(void *)sk_view_row(&a->out, r);
    for (int64_t d = begin; d < end; d++) out[d] = 0;
    for (int64_t k = 0; k < a->taps.dim[1]; k++) {
        const sk_tap_row row = sk_tap_row_of(a, r, k);
        for (int64_t d = begin; d < end; d++) {
            const float *taps = (const float *)(const void *)sk_view_row(&a->taps, d);
            const float h = sk_act_round(a->window.dtype, sk_act_get(row.dtype, row.p, d));
            out[d] = fmaf(taps[k], h, out[d]);
        }
    }
    for (int64_t d = begin; d < end; d++) out[d] = out[d] / (1.0f + sk_exp(-out[d]));
}

typedef struct conv_job {
    const sk_conv_args *a;
    sk_conv_fn channels;
    int64_t pieces; // of a row
} conv_job;

static void conv_pieces(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const conv_job *j = ctx;
    const int64_t n = j->a->x.dim[1];
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const int64_t from = i % j->pieces * CHANNELS;
        j->channels(j->a, i / j->pieces, from, n - from < CHANNELS ? n : from + CHANNELS);
    }
}

void sk_conv_run(const sk_conv_args *a, const sk_cpu *cpu, sk_conv_fn channels)
{
    const int64_t n = a->x.dim[1];
    conv_job j = {.a = a, .channels = channels, .pieces = (n + CHANNELS - 1) / CHANNELS};
    const int64_t each = (n < CHANNELS ? n : CHANNELS) * a->taps.dim[1];
    sk_pool_run(cpu->pool, sk_live_rows(&a->count, a->x.dim[0]) * j.pieces, 1 + GRAIN / each,
                conv_pieces, &j);
}

void sk_cpu_conv(const void *args, const sk_cpu *cpu) { sk_conv_run(args, cpu, sk_conv_channels); }

/* ---- gdn_inputs ------------------------------------------------------------------------------ */

static float softplus(float x) { return x > 20.0f ? x : log1pf(sk_exp(x)); }

static float sigmoid(float x) { return 1.0f / (1.0f + sk_exp(-x)); }

/* 1 / sqrt(sum(x^2) + 1e-6), summed as for a norm. */
static float length_factor(const float *x, int64_t n)
{
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += (double)x[i] * (double)x[i];
    return 1.0f / sqrtf((float)squares + 1e-6f);
}

static void inputs_rows(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const sk_gdn_inputs_args *a = ctx;
    const int64_t hk = a->q.dim[1];
    const int64_t dk = a->q.dim[2];
    const int64_t hv = a->a.dim[1];
    const int64_t n_v = a->c.dim[1] - 2 * hk * dk;
    const float *coef = (const float *)(const void *)a->coef.p;
    const float *dt = (const float *)(const void *)a->dt.p;
    const float root = 1.0f / sqrtf((float)dk);
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        const float *c = (const float *)(const void *)sk_view_row(&a->c, r);
        const float *step = (const float *)(const void *)sk_view_row(&a->a, r);
        const float *b = (const float *)(const void *)sk_view_row(&a->b, r);
        float *in = (float *)(void *)sk_view_row(&a->in, r);
        for (int64_t h = 0; h < hk; h++, c += dk) {
            const float n = length_factor(c, dk);
            float *q = (float *)(void *)sk_view_head(&a->q, r, h);
            for (int64_t i = 0; i < dk; i++) q[i] = (c[i] * n) * root;
        }
        for (int64_t h = 0; h < hk; h++, c += dk) {
            const float n = length_factor(c, dk);
            for (int64_t i = 0; i < dk; i++) *in++ = c[i] * n;
        }
        for (int64_t i = 0; i < n_v; i++) *in++ = c[i];
        for (int64_t h = 0; h < hv; h++) *in++ = sk_exp(coef[h] * softplus(step[h] + dt[h]));
        for (int64_t h = 0; h < hv; h++) *in++ = sigmoid(b[h]);
    }
}

void sk_cpu_gdn_inputs(const void *args, const sk_cpu *cpu)
{
    sk_gdn_inputs_args a = *(const sk_gdn_inputs_args *)args;
    sk_pool_run(cpu->pool, sk_live_rows(&a.count, a.c.dim[0]), 1 + GRAIN / a.c.dim[1], inputs_rows,
                &a);
}

/* ---- the gated delta rule -------------------------------------------------------------------- */

void sk_delta_columns(const sk_delta *s, int64_t begin)
{
    float u[SK_DELTA_COLUMNS] = {0};
    float out[SK_DELTA_COLUMNS] = {0};
    for (int64_t i = 0; i < s->dk; i++) {
        const float *old = s->old + i * s->old_stride;
        float *work = s->work + i * SK_DELTA_COLUMNS;
        for (int64_t j = begin; j < s->n; j++) {
            work[j] = s->decay * old[j];
            u[j] = fmaf(s->k[i], work[j], u[j]);
        }
    }
    for (int64_t j = begin; j < s->n; j++) u[j] = s->beta * (s->v[j] - u[j]);
    for (int64_t i = 0; i < s->dk; i++) {
        const float *work = s->work + i * SK_DELTA_COLUMNS;
        float *m = s->m + i * s->m_stride;
        for (int64_t j = begin; j < s->n; j++) m[j] = fmaf(s->k[i], u[j], work[j]);
        if (!s->q) continue;
        for (int64_t j = begin; j < s->n; j++) out[j] = fmaf(s->q[i], m[j], out[j]);
    }
    if (!s->q) return;
    for (int64_t j = begin; j < s->n; j++) s->out[j] = out[j];
}

static void delta(const sk_delta *s) { sk_delta_columns(s, 0); }

/* What the three ops come down to. Items are (head, row or slot), heads outermost: the rows of one
 * slot are one piece of work, and threads get heads. */
typedef struct gdn_job {
    sk_delta_fn step;
    const int32_t *key;
    const sk_view *in, *m;
    const sk_view *q, *out, *rows; // of gdn_step and gdn_scan
    const int32_t *kept;           // of gdn_fold
    bool keep;                     // m takes in what the rows make of it
    uint8_t *work;                 // columns of each worker
    uint64_t work_bytes;           // of one
    int64_t items;                 // of a head
} gdn_job;

static uint64_t columns_bytes(const sk_view *m)
{
    return (uint64_t)m->dim[2] * SK_DELTA_COLUMNS * sizeof(float);
}

/* Entries that a head of a slot takes in, one behind the other. */
typedef struct gdn_run {
    const uint8_t *in;
    int64_t in_stride;
    int64_t row; // of q and out, the first one
    int64_t n, slot, head;
} gdn_run;

/* Entry i of a run for columns `from` .. : see gdn_inputs. */
static sk_delta delta_of(const gdn_job *j, const gdn_run *run, int64_t i, int64_t from)
{
    const float *in = (const float *)(const void *)(run->in + i * run->in_stride);
    const int64_t hv = j->m->dim[1];
    const int64_t dv = j->m->dim[3];
    const float *gates = in + j->in->dim[j->in->rank - 1] - 2 * hv;
    const int64_t key = j->key[run->head];
    sk_delta s = {.dk = j->m->dim[2]};
    s.n = dv - from < SK_DELTA_COLUMNS ? dv - from : SK_DELTA_COLUMNS;
    s.k = in + key * s.dk;
    s.v = gates - (hv - run->head) * dv + from;
    s.decay = gates[run->head];
    s.beta = gates[hv + run->head];
    if (j->q) {
        s.q = (const float *)(const void *)sk_view_head(j->q, run->row + i, key);
        s.out = (float *)(void *)sk_view_head(j->out, run->row + i, run->head) + from;
    }
    return s;
}

/* The columns come out of the matrix with the first entry and go back with the last one. */
static void take_in(const gdn_job *j, const gdn_run *run, int32_t worker)
{
    float *m = (float *)(void *)sk_view_head(j->m, run->slot, run->head);
    float *work = (float *)(void *)(j->work + (uint64_t)worker * j->work_bytes);
    const int64_t dv = j->m->dim[3];
    for (int64_t from = 0; from < dv; from += SK_DELTA_COLUMNS)
        for (int64_t i = 0; i < run->n; i++) {
            const bool back = j->keep && i == run->n - 1;
            sk_delta s = delta_of(j, run, i, from);
            s.work = work;
            s.old = i == 0 ? m + from : work;
            s.old_stride = i == 0 ? dv : SK_DELTA_COLUMNS;
            s.m = back ? m + from : work;
            s.m_stride = back ? dv : SK_DELTA_COLUMNS;
            j->step(&s);
        }
}

static void row_items(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const gdn_job *j = ctx;
    for (int64_t i = begin; i < end; i++) {
        const int64_t r = i % j->items;
        gdn_run run = {.head = i / j->items, .row = r, .slot = sk_row_at(j->rows, r)->slot};
        if (sk_row_at(j->rows, r)->at != 0) continue; // the slot's first row stands for all of them
        run.in = sk_view_row(j->in, r);
        run.in_stride = j->in->stride[0];
        run.n = sk_slot_rows(j->rows, r, j->items);
        take_in(j, &run, worker);
    }
}

static void slot_items(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const gdn_job *j = ctx;
    for (int64_t i = begin; i < end; i++) {
        gdn_run run = {.head = i / j->items, .slot = i % j->items};
        run.in = sk_view_row(j->in, run.slot);
        run.in_stride = j->in->stride[1];
        run.n = j->kept[run.slot];
        take_in(j, &run, worker);
    }
}

static void run_job(gdn_job *j, const sk_view *key, const sk_cpu *cpu, sk_pool_fn items)
{
    const int64_t each = j->m->dim[2] * j->m->dim[3];
    j->key = (const int32_t *)(const void *)key->p;
    j->work = cpu->work;
    j->work_bytes = columns_bytes(j->m);
    sk_pool_run(cpu->pool, j->items * j->m->dim[1], 1 + GRAIN / each, items, j);
}

void sk_gdn_step_run(const sk_gdn_step_args *a, const sk_cpu *cpu, sk_delta_fn step)
{
    gdn_job j = {.step = step, .in = &a->in, .m = &a->m, .q = &a->q, .out = &a->out};
    j.rows = &a->rows;
    j.items = sk_live_rows(&a->count, a->q.dim[0]);
    run_job(&j, &a->key, cpu, row_items);
}

void sk_gdn_scan_run(const sk_gdn_scan_args *a, const sk_cpu *cpu, sk_delta_fn step)
{
    gdn_job j = {.step = step, .in = &a->in, .m = &a->m, .q = &a->q, .out = &a->out};
    j.rows = &a->rows;
    j.keep = true;
    j.items = sk_live_rows(&a->count, a->q.dim[0]);
    run_job(&j, &a->key, cpu, row_items);
}

void sk_gdn_fold_run(const sk_gdn_fold_args *a, const sk_cpu *cpu, sk_delta_fn step)
{
    gdn_job j = {.step = step, .in = &a->pending, .m = &a->m, .items = a->m.dim[0], .keep = true};
    j.kept = (const int32_t *)(const void *)a->kept.p;
    run_job(&j, &a->key, cpu, slot_items);
}

void sk_cpu_gdn_step(const void *args, const sk_cpu *cpu) { sk_gdn_step_run(args, cpu, delta); }

void sk_cpu_gdn_scan(const void *args, const sk_cpu *cpu) { sk_gdn_scan_run(args, cpu, delta); }

void sk_cpu_gdn_fold(const void *args, const sk_cpu *cpu) { sk_gdn_fold_run(args, cpu, delta); }

/* ---- gated_norm ------------------------------------------------------------------------------ */

void sk_gated_norm_tail(const sk_gated_norm_args *a, int64_t r, int64_t head, float n,
                        int64_t begin)
{
    const int64_t dim = a->x.dim[2];
    const float *x = (const float *)(const void *)sk_view_head(&a->x, r, head);
    const float *gate = (const float *)(const void *)sk_view_row(&a->gate, r) + head * dim;
    const float *gain = (const float *)(const void *)a->gain.p;
    uint8_t *out = sk_view_row(&a->out, r);
    for (int64_t i = begin; i < dim; i++)
        sk_act_set(a->out.dtype, out, head * dim + i,
                   ((x[i] * n) * gain[i]) / (1.0f + sk_exp(-gate[i])));
}

static void gated_head(const sk_gated_norm_args *a, int64_t r, int64_t head)
{
    const float *x = (const float *)(const void *)sk_view_head(&a->x, r, head);
    sk_gated_norm_tail(a, r, head, sk_rms_factor(x, a->x.dim[2], a->eps), 0);
}

typedef struct gated_job {
    const sk_gated_norm_args *a;
    sk_gated_norm_fn one;
} gated_job;

static void gated_heads(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const gated_job *j = ctx;
    const int64_t heads = j->a->x.dim[1];
    (void)worker;
    for (int64_t i = begin; i < end; i++) j->one(j->a, i / heads, i % heads);
}

void sk_gated_norm_run(const sk_gated_norm_args *a, const sk_cpu *cpu, sk_gated_norm_fn one)
{
    gated_job j = {.a = a, .one = one};
    sk_pool_run(cpu->pool, sk_live_rows(&a->count, a->x.dim[0]) * a->x.dim[1],
                1 + GRAIN / 4 / a->x.dim[2], gated_heads, &j);
}

void sk_cpu_gated_norm(const void *args, const sk_cpu *cpu)
{
    sk_gated_norm_run(args, cpu, gated_head);
}

/* ---- how much scratch ------------------------------------------------------------------------ */

uint64_t sk_recurrent_bytes(enum sk_op op, const void *args, int32_t n_threads)
{
    switch (op) {
    case SK_OP_gdn_step:
        return columns_bytes(&((const sk_gdn_step_args *)args)->m) * (uint64_t)n_threads;
    case SK_OP_gdn_scan:
        return columns_bytes(&((const sk_gdn_scan_args *)args)->m) * (uint64_t)n_threads;
    case SK_OP_gdn_fold:
        return columns_bytes(&((const sk_gdn_fold_args *)args)->m) * (uint64_t)n_threads;
    default:
        return 0;
    }
}
