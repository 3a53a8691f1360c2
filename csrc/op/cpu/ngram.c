/* Hashed embeddings: the rows of the n-grams, their lookup, and the gate into the streams. */
#include "op/cpu/streams.h"

#include "op/cpu/parts.h"

#include <math.h>
#include <string.h>

#define GRAIN      16384 // elements worth waking a thread for
#define FEW_LOOKUP 4     // heads that are: each may be a page that is not in memory

/* ---- ngram_rows ------------------------------------------------------------------------------ */

/* The token `back` positions before row r, which is not ahead of position 0. */
static int32_t token_before(const sk_ngram_rows_args *a, int64_t r, int64_t back)
{
    const sk_row *row = sk_row_at(&a->rows, r);
    const int32_t *ids = (const int32_t *)(const void *)a->ids.p;
    if (back <= row->at) return ids[r - back]; // the slot's rows are neighbours
    return ((const int32_t *)(const void *)sk_view_row(&a->tokens, row->slot))[row->pos - back];
}

static void hash_row(const sk_ngram_rows_args *a, int64_t r)
{
    const int64_t *mult = (const int64_t *)(const void *)a->mult.p;
    const int64_t *size = (const int64_t *)(const void *)a->size.p;
    const int64_t *offset = (const int64_t *)(const void *)a->offset.p;
    const int64_t n_orders = a->mult.dim[0] - 1;
    const int64_t per = a->size.dim[0] / n_orders;
    const int32_t pos = sk_row_at(&a->rows, r)->pos;
    int32_t *out = (int32_t *)(void *)sk_view_row(&a->out, r);
    uint64_t x = (uint64_t)token_before(a, r, 0) * (uint64_t)mult[0];
    bool cut = false; // the row's own token never cuts
    for (int64_t i = 1; i <= n_orders; i++) {
        int32_t token = a->eos;
        if (!cut && i <= pos) token = token_before(a, r, i);
        cut = cut || token == a->eos;
        x ^= (uint64_t)token * (uint64_t)mult[i];
        for (int64_t g = (i - 1) * per; g < i * per; g++)
            out[g] = (int32_t)(offset[g] + (int64_t)(x % (uint64_t)size[g]));
    }
}

static void hash_rows(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    for (int64_t r = begin; r < end; r++) hash_row(ctx, r);
}

void sk_cpu_ngram_rows(const void *args, const sk_cpu *cpu)
{
    sk_ngram_rows_args a = *(const sk_ngram_rows_args *)args;
    sk_pool_run(cpu->pool, sk_live_rows(&a.count, a.ids.dim[0]), 1 + GRAIN / 16 / a.size.dim[0],
                hash_rows, &a);
}

/* ---- gather_heads ---------------------------------------------------------------------------- */

typedef struct gather {
    const sk_gather_heads_args *a;
    uint8_t *work; // a decoded row of each worker
} gather;

static uint64_t decoded_bytes(const sk_gather_heads_args *a)
{
    return ((uint64_t)a->table.dim[1] * sizeof(float) + 63) & ~(uint64_t)63;
}

uint64_t sk_gather_heads_bytes(const sk_gather_heads_args *a, int32_t n_threads)
{
    return decoded_bytes(a) * (uint64_t)n_threads;
}

static const uint8_t *table_row(const sk_gather_heads_args *a, int32_t id)
{
    const int64_t *piece = (const int64_t *)(const void *)a->piece.p;
    if (!sk_view_present(&a->piece)) return sk_view_row(&a->table, id);
    return sk_view_row(&a->table, id % a->piece_rows) + piece[id / a->piece_rows];
}

static void gather_items(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const gather *g = ctx;
    const sk_gather_heads_args *a = g->a;
    const int64_t n_heads = a->ids.dim[1];
    const int64_t dim = a->table.dim[1];
    float *x = (float *)(void *)(g->work + (uint64_t)worker * decoded_bytes(a));
    for (int64_t k = begin; k < end; k++) {
        const int64_t head = k % n_heads;
        const int32_t *ids = (const int32_t *)(const void *)sk_view_row(&a->ids, k / n_heads);
        uint8_t *out = sk_view_row(&a->out, k / n_heads);
        sk_quant_row((sk_dtype)a->table.dtype, table_row(a, ids[head]), (uint64_t)dim, x);
        for (int64_t d = 0; d < dim; d++)
            sk_act_set(a->out.dtype, out, head * dim + d, a->scale * x[d]);
    }
}

void sk_cpu_gather_heads(const void *args, const sk_cpu *cpu)
{
    const sk_gather_heads_args *a = args;
    gather g = {.a = a, .work = cpu->work};
    sk_pool_run(cpu->pool, sk_live_rows(&a->count, a->ids.dim[0]) * a->ids.dim[1], FEW_LOOKUP,
                gather_items, &g);
}

/* ---- ple_gate -------------------------------------------------------------------------------- */

static const float *row_part(const sk_view *v, int64_t r, int64_t first)
{
    return (const float *)(const void *)sk_view_row(v, r) + first;
}

/* How alike key and stream are: t, then its root with the sign. */
static float gate_of(const sk_ple_gate_args *a, int64_t r, int64_t i)
{
    const int64_t dim = a->s.dim[2];
    const float *key = row_part(&a->key, r, i * dim);
    const float *s = sk_stream_at(&a->s, r, i);
    const float *key_gain = (const float *)(const void *)a->key_gain.p + i * dim;
    const float *query_gain = (const float *)(const void *)a->query_gain.p + i * dim;
    const float of_key = sk_rms_factor(key, dim, a->eps);
    const float of_query = sk_rms_factor(s, dim, a->eps);
    float lane[SK_LANES] = {0};
    float t, root;
    for (int64_t d = 0; d < dim; d++)
        lane[d % SK_LANES] = fmaf((key[d] * of_key) * key_gain[d],
                                  (s[d] * of_query) * query_gain[d], lane[d % SK_LANES]);
    t = sk_tree8(lane) / sqrtf((float)dim);
    root = sqrtf(fmaxf(fabsf(t), 1e-6f));
    return t > 0 ? root : t < 0 ? -root : t; // NaN stays
}

static void gate_streams(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const sk_ple_gate_args *a = ctx;
    const int64_t n_streams = a->s.dim[1];
    const int64_t dim = a->s.dim[2];
    (void)worker;
    for (int64_t k = begin; k < end; k++) {
        const int64_t r = k / n_streams;
        const int64_t first = k % n_streams * dim;
        const float *value = row_part(&a->value, r, 0);
        const float *gain = (const float *)(const void *)a->conv_gain.p + first;
        const float by = 1.0f + sk_exp(-gate_of(a, r, k % n_streams));
        float *y = (float *)(void *)sk_view_row(&a->y, r) + first;
        float *normed = (float *)(void *)sk_view_row(&a->normed, r) + first;
        float n;
        for (int64_t d = 0; d < dim; d++) y[d] = value[d] / by;
        n = sk_rms_factor(y, dim, a->eps);
        for (int64_t d = 0; d < dim; d++) normed[d] = (y[d] * n) * gain[d];
    }
}

void sk_cpu_ple_gate(const void *args, const sk_cpu *cpu)
{
    sk_ple_gate_args a = *(const sk_ple_gate_args *)args;
    sk_pool_run(cpu->pool, sk_live_rows(&a.count, a.s.dim[0]) * a.s.dim[1],
                1 + GRAIN / 16 / a.s.dim[2], gate_streams, &a);
}
