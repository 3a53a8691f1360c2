/* Routing to the experts of a mixture, and the gate of the one that all rows share: route_topk,
 * route_force, gate_add. The same in all tables, with rows split over threads where that pays. */
#include "op/cpu/def.h"

#include "op/cpu/exp.h"

#include <string.h>

#define GRAIN 16384 // elements worth waking a thread for

/* ---- route_topk ------------------------------------------------------------------------------ */

/* The t first in rank of n logits, in this order: each goes ahead of those that it beats. */
static void best(const float *x, int64_t n, int64_t t, int32_t *ids)
{
    int64_t used = 0;
    for (int64_t e = 0; e < n; e++) {
        int64_t at = used;
        if (used == t && !sk_ranks_before(x, e, ids[t - 1])) continue;
        if (used == t)
            at--;
        else
            used++;
        for (; at > 0 && sk_ranks_before(x, e, ids[at - 1]); at--) ids[at] = ids[at - 1];
        ids[at] = (int32_t)e;
    }
}

static float total_of(const float *x, int64_t n, float max)
{
    float acc[SK_LANES] = {0};
    for (int64_t e = 0; e < n; e++) acc[e % SK_LANES] += sk_exp(x[e] - max);
    return sk_tree8(acc);
}

static void route_rows(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const sk_route_topk_args *a = ctx;
    const int64_t n = a->logits.dim[1];
    const int64_t t = a->ids.dim[1];
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        const float *x = (const float *)(const void *)sk_view_row(&a->logits, r);
        int32_t *ids = (int32_t *)(void *)sk_view_row(&a->ids, r);
        float *weight = (float *)(void *)sk_view_row(&a->weight, r);
        float total = 0;
        best(x, n, t, ids);
        for (int64_t j = 0; j < t; j++) {
            weight[j] = sk_exp(x[ids[j]] - x[ids[0]]);
            total += weight[j];
        }
        if (!a->normed) total = total_of(x, n, x[ids[0]]);
        for (int64_t j = 0; j < t; j++) weight[j] /= total;
    }
}

void sk_cpu_route_topk(const void *args, const sk_cpu *cpu)
{
    sk_route_topk_args a = *(const sk_route_topk_args *)args;
    sk_pool_run(cpu->pool, sk_live_rows(&a.count, a.logits.dim[0]), 1 + GRAIN / 4 / a.logits.dim[1],
                route_rows, &a);
}

/* ---- route_force ----------------------------------------------------------------------------- */

void sk_cpu_route_force(const void *args, const sk_cpu *cpu)
{
    const sk_route_force_args *a = args;
    const int64_t n = sk_live_rows(&a->count, a->ids.dim[0]);
    (void)cpu;
    for (int64_t r = 0; r < n; r++) {
        const sk_row *row = sk_row_at(&a->rows, r);
        const int64_t at = ((int64_t)row->slot * a->stride + row->pos) % a->table.dim[0];
        memcpy(sk_view_row(&a->ids, r), sk_view_row(&a->table, at),
               (size_t)a->ids.dim[1] * sizeof(int32_t));
    }
}

/* ---- gate_add -------------------------------------------------------------------------------- */

static void gate_rows(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const sk_gate_add_args *a = ctx;
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        const float *x = (const float *)(const void *)sk_view_row(&a->x, r);
        const float gate = *(const float *)(const void *)sk_view_row(&a->gate, r);
        const float by = 1.0f / (1.0f + sk_exp(-gate));
        float *y = (float *)(void *)sk_view_row(&a->y, r);
        for (int64_t i = 0; i < a->y.dim[1]; i++) y[i] = fmaf(by, x[i], y[i]);
    }
}

void sk_cpu_gate_add(const void *args, const sk_cpu *cpu)
{
    sk_gate_add_args a = *(const sk_gate_add_args *)args;
    sk_pool_run(cpu->pool, sk_live_rows(&a.count, a.x.dim[0]), 1 + GRAIN / a.x.dim[1], gate_rows,
                &a);
}
