/* The experts of a mixture: the work list, the products of its entries, and the weighted sum.
 *
 * A product is linear on the rows that go to one expert, brought together in scratch; neighbouring
 * entries of an expert are one product. It runs in the table that the op runs in, so a route has
 * the bits that linear gives its row with the expert's matrix, in every table. */
#include "op/cpu/parts.h"

#include <math.h>

#define GRAIN    16384 // elements worth waking a thread for
#define ROWS_MAX 64    // that share a product: as many as a decoded chunk serves

/* ---- the work list --------------------------------------------------------------------------- */

/* The smallest id above `last` among n; false: there is none. */
static bool next_expert(const sk_route_list_args *a, int64_t n_rows, int32_t last, int32_t *out)
{
    bool found = false;
    for (int64_t r = 0; r < n_rows; r++) {
        const int32_t *ids = (const int32_t *)(const void *)sk_view_row(&a->ids, r);
        for (int64_t j = 0; j < a->ids.dim[1]; j++) {
            if (ids[j] <= last || (found && ids[j] >= *out)) continue;
            *out = ids[j];
            found = true;
        }
    }
    return found;
}

static sk_route_entry *entry_at(const sk_view *list, int64_t i)
{
    return (sk_route_entry *)(void *)sk_view_row(list, i);
}

static void add_route(const sk_view *list, int32_t expert, int32_t route, bool first, int32_t *n)
{
    sk_route_entry *e = *n > 0 ? entry_at(list, *n - 1) : NULL;
    if (first || !e || e->n == SK_ENTRY_ROUTES) {
        e = entry_at(list, (*n)++);
        *e = (sk_route_entry){.expert = expert};
        for (int32_t i = 0; i < SK_ENTRY_ROUTES; i++) e->route[i] = -1;
    }
    e->route[e->n++] = route;
}

void sk_cpu_route_list(const void *args, const sk_cpu *cpu)
{
    const sk_route_list_args *a = args;
    const int64_t n_rows = sk_live_rows(&a->count, a->ids.dim[0]);
    int32_t expert = -1;
    int32_t n = 0;
    (void)cpu;
    while (next_expert(a, n_rows, expert, &expert)) {
        bool first = true;
        for (int64_t r = 0; r < n_rows; r++) {
            const int32_t *ids = (const int32_t *)(const void *)sk_view_row(&a->ids, r);
            for (int64_t j = 0; j < a->ids.dim[1]; j++) {
                if (ids[j] != expert) continue;
                add_route(&a->list, expert, (int32_t)(r * a->ids.dim[1] + j), first, &n);
                first = false;
            }
        }
    }
    *(int32_t *)(void *)a->n.p = n;
}

/* ---- products of a run of entries ------------------------------------------------------------ */

/* Entries of one expert, one behind the other: the routes, in order. */
typedef struct run {
    int32_t expert;
    int32_t n;
    int32_t route[ROWS_MAX];
} run;

/* Takes the run that begins with entry *at, and moves on. */
static run next_run(const sk_view *list, int32_t n, int32_t *at)
{
    run r = {.expert = entry_at(list, *at)->expert};
    for (; *at < n; (*at)++) {
        const sk_route_entry *e = entry_at(list, *at);
        if (e->expert != r.expert || r.n + e->n > ROWS_MAX) break;
        for (int32_t i = 0; i < e->n; i++) r.route[r.n++] = e->route[i];
    }
    return r;
}

/* `at`: bytes from the first matrix to each; absent: they are a stride apart. */
static sk_view expert_of(const sk_view *w, const sk_view *at, int32_t e)
{
    sk_view m = *w;
    m.p += sk_view_present(at) ? ((const int64_t *)(const void *)at->p)[e] : e * w->stride[0];
    m.rank = 2;
    m.dim[0] = w->dim[1];
    m.dim[1] = w->dim[2];
    m.stride[0] = w->stride[1];
    return m;
}

/* linear over the rows of a run. */
typedef struct product {
    sk_linear_args linear; // input and outputs lie in scratch
    int32_t live;          // its count
} product;

static int64_t rows_of(const sk_view *routes)
{
    return routes->dim[0] < ROWS_MAX ? routes->dim[0] : ROWS_MAX;
}

static product product_of(const sk_view *x, const sk_view *routes, int64_t n_out, int32_t segments,
                          sk_arena *s)
{
    const int64_t rows = rows_of(routes);
    product p = {.live = 0};
    sk_args_clear(SK_OP_linear, &p.linear);
    p.linear.x = sk_arena_take(s, x->dtype, 2, (int64_t[]){rows, x->dim[1]});
    for (int32_t i = 0; i < segments; i++)
        p.linear.y[i] = sk_arena_take(s, SK_F32, 2, (int64_t[]){rows, n_out});
    p.linear.count = sk_view_dense(0, SK_I32, 1, (int64_t[]){1});
    return p;
}

static uint64_t row_bytes(const sk_view *v)
{
    uint64_t bytes = 0;
    (void)sk_dtype_row_bytes(v->dtype, (uint64_t)v->dim[v->rank - 1], &bytes);
    return bytes;
}

/* Rows route[i] / per of x become rows i of the product's input. */
static void bring_rows(product *p, const sk_view *x, const run *r, int64_t per)
{
    for (int32_t i = 0; i < r->n; i++)
        memcpy(sk_view_row(&p->linear.x, i), sk_view_row(x, r->route[i] / per),
               (size_t)row_bytes(x));
    p->live = r->n;
    p->linear.count.p = (uint8_t *)(void *)&p->live;
}

static void put_rows(const sk_view *from, const sk_view *to, const run *r)
{
    for (int32_t i = 0; i < r->n; i++)
        memcpy(sk_view_row(to, r->route[i]), sk_view_row(from, i), (size_t)row_bytes(to));
}

static int32_t entries(const sk_view *n, const sk_view *list)
{
    return (int32_t)sk_live_rows(n, list->dim[0]);
}

/* ---- expert_glu ------------------------------------------------------------------------------ */

typedef struct glu {
    product product;
    sk_view hidden; // act [rows, N]
} glu;

static glu glu_parts(const sk_expert_glu_args *a, sk_arena *s)
{
    const int64_t n = a->out.dim[1];
    glu g = {.product = product_of(&a->x, &a->out, n, 2, s)};
    g.hidden = sk_arena_take(s, a->out.dtype, 2, (int64_t[]){rows_of(&a->out), n});
    return g;
}

void sk_cpu_expert_glu(const void *args, const sk_cpu *cpu)
{
    const sk_expert_glu_args *a = args;
    const int32_t n = entries(&a->n, &a->list);
    const int64_t per = a->out.dim[0] / a->x.dim[0];
    sk_arena s = {.base = cpu->work};
    glu g = glu_parts(a, &s);
    sk_linear_args *p = &g.product.linear;
    for (int32_t at = 0; at < n;) {
        const run r = next_run(&a->list, n, &at);
        bring_rows(&g.product, &a->x, &r, per);
        for (int32_t i = 0; i < 2; i++) p->w[i] = expert_of(&a->w[i], &a->at[i], r.expert);
        sk_run_part(SK_OP_linear, p, cpu, &s);
        if (a->gelu)
            sk_run_part(SK_OP_gelu_mul, &(sk_gelu_mul_args){p->y[0], p->y[1], p->count, g.hidden},
                        cpu, &s);
        else
            sk_run_part(SK_OP_silu_mul, &(sk_silu_mul_args){p->y[0], p->y[1], p->count, g.hidden},
                        cpu, &s);
        put_rows(&g.hidden, &a->out, &r);
    }
}

/* ---- expert_linear --------------------------------------------------------------------------- */

void sk_cpu_expert_linear(const void *args, const sk_cpu *cpu)
{
    const sk_expert_linear_args *a = args;
    const int32_t n = entries(&a->n, &a->list);
    sk_arena s = {.base = cpu->work};
    product p = product_of(&a->x, &a->y, a->y.dim[1], 1, &s);
    for (int32_t at = 0; at < n;) {
        const run r = next_run(&a->list, n, &at);
        bring_rows(&p, &a->x, &r, 1);
        p.linear.w[0] = expert_of(&a->w, &a->at, r.expert);
        sk_run_part(SK_OP_linear, &p.linear, cpu, &s);
        put_rows(&p.linear.y[0], &a->y, &r);
    }
}

/* ---- expert_sum ------------------------------------------------------------------------------ */

static void sum_rows(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const sk_expert_sum_args *a = ctx;
    const int64_t per = a->weight.dim[1];
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        const float *weight = (const float *)(const void *)sk_view_row(&a->weight, r);
        float *y = (float *)(void *)sk_view_row(&a->y, r);
        for (int64_t i = 0; i < a->y.dim[1]; i++) y[i] = 0;
        for (int64_t j = 0; j < per; j++) {
            const float *x = (const float *)(const void *)sk_view_row(&a->x, r * per + j);
            for (int64_t i = 0; i < a->y.dim[1]; i++) y[i] = fmaf(weight[j], x[i], y[i]);
        }
    }
}

void sk_cpu_expert_sum(const void *args, const sk_cpu *cpu)
{
    sk_expert_sum_args a = *(const sk_expert_sum_args *)args;
    const int64_t row = a.y.dim[1] * a.weight.dim[1];
    sk_pool_run(cpu->pool, sk_live_rows(&a.count, a.y.dim[0]), 1 + GRAIN / row, sum_rows, &a);
}

/* ---- how much scratch ------------------------------------------------------------------------ */

uint64_t sk_experts_bytes(enum sk_op op, const void *args, int32_t n_threads)
{
    sk_arena s = {.base = NULL};
    uint64_t part;
    if (op == SK_OP_expert_glu) {
        const glu g = glu_parts(args, &s);
        part = sk_cpu_work_bytes(SK_OP_linear, &g.product.linear, n_threads);
    } else {
        const sk_expert_linear_args *a = args;
        const product p = product_of(&a->x, &a->y, a->y.dim[1], 1, &s);
        part = sk_cpu_work_bytes(SK_OP_linear, &p.linear, n_threads);
    }
    return s.used + part;
}
