/* See diff.h. */
#include "engine/diff.h"

#include "engine/session_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NARROW = 8 }; // columns; see norm_beside

struct sk_diff {
    sk_session *cpu; // borrowed, owns this
    sk_session *other;
    bool on, exact;
    int32_t n_passes;
    sk_diff_item *items;
    size_t n_items, items_cap;
    void *got; // an output of the other side
    struct {
        int32_t step; // -1: nothing is spoiled
        char field[16];
        uint64_t at;
        uint8_t flip;
    } spoil;
};

/* One run of one plan. */
typedef struct pass {
    const sk_bound *cpu, *other;
    int32_t n_rows;
    int32_t ctx_bound;
} pass;

static const sk_view *view_at(const sk_bound *b, size_t step, const sk_field *f)
{
    return sk_field_view_const(b->args + b->plan->steps[step].args_at, f);
}

static const sk_field *fields_of(const sk_plan *plan, size_t step)
{
    return sk_ops[plan->steps[step].op].fields;
}

/* The view that a step reads by that name; NULL when it has none. */
static const sk_view *find_input(const sk_bound *b, size_t step, const char *name)
{
    for (const sk_field *f = fields_of(b->plan, step); f->kind != SK_FIELD_END; f++)
        if (f->kind == SK_FIELD_VIEW && f->mode == SK_READ && !strcmp(f->name, name))
            return view_at(b, step, f);
    return NULL;
}

/* ---- bytes from side to side ----------------------------------------------------------------- */

/* The rings of a device session are the host's memory, and nothing runs while they are copied. NULL
 * for all other views. */
static uint8_t *in_rings(const sk_session *s, const sk_view *v)
{
    if (!s->place.dev) return NULL;
    if (v->buf == s->prog.rb.ring) return (uint8_t *)(void *)s->rings.ctl + v->off;
    if (v->buf == s->prog.rb.done) return (uint8_t *)(void *)s->device.done + v->off;
    return NULL;
}

static sk_code put(const sk_session *s, const sk_view *v, const uint8_t *from, uint64_t bytes,
                   sk_status *st)
{
    uint8_t *ring = in_rings(s, v);
    if (!ring) return sk_place_write(&s->place, v->p, from, bytes, st);
    memcpy(ring, from, bytes);
    return SK_OK;
}

static sk_code get(const sk_session *s, const sk_view *v, uint8_t *to, uint64_t bytes,
                   sk_status *st)
{
    const uint8_t *ring = in_rings(s, v);
    if (!ring) return sk_place_read(&s->place, to, v->p, bytes, st);
    memcpy(to, ring, bytes);
    return SK_OK;
}

/* Outputs too: what a step leaves alone has to be the same on both sides. */
static sk_code feed(const sk_diff *d, const pass *p, size_t step, sk_status *st)
{
    for (const sk_field *f = fields_of(p->cpu->plan, step); f->kind != SK_FIELD_END; f++) {
        const sk_view *v;
        uint64_t bytes;
        if (f->kind != SK_FIELD_VIEW) continue;
        v = view_at(p->cpu, step, f);
        if (!sk_view_present(v) || d->cpu->prog.space.bufs[v->buf].role == SK_ROLE_WEIGHT) continue;
        (void)sk_view_span(v, &bytes);
        SK_TRY(put(d->other, view_at(p->other, step, f), v->p, bytes, st));
    }
    return SK_OK;
}

static sk_code run_other(const sk_diff *d, const pass *p, size_t step, sk_status *st)
{
    sk_session *o = d->other;
    if (!o->place.dev) {
        sk_exec_step(&o->exec, p->other, step);
        return SK_OK;
    }
    SK_TRY(sk_walk_step(&o->device.walk, p->other, step, p->ctx_bound, st));
    return sk_dev_sync(o->place.dev, st);
}

/* ---- comparing ------------------------------------------------------------------------------- */

static sk_rule rule_of(const sk_diff *d, enum sk_op op, int32_t dtype)
{
    if (d->exact) return SK_RULE_EXACT;
    if (dtype == SK_BF16) return SK_RULE_BF16;
    if (op == SK_OP_norm_argmax || op == SK_OP_linear_argmax) return SK_RULE_CHOICE;
    if (dtype != SK_F32 || op == SK_OP_copy_rows) return SK_RULE_EXACT;
    if (op == SK_OP_linear || op == SK_OP_norm_linear || op == SK_OP_linear_add ||
        op == SK_OP_linear_parts || op == SK_OP_expert_linear)
        return SK_RULE_LINEAR;
    return SK_RULE_ELEMENTS;
}

static int64_t clipped(int64_t n, int64_t most) { return n < 0 ? 0 : n > most ? most : n; }

static int64_t number_in(const sk_view *v) { return *(const int32_t *)(const void *)v->p; }

/* Routes in a work list: those of the live rows, which come first. */
static int64_t routes_in(const sk_view *list, int64_t n)
{
    int64_t routes = 0;
    for (int64_t i = 0; i < clipped(n, list->dim[0]); i++)
        routes += ((const sk_route_entry *)(const void *)sk_view_row(list, i))->n;
    return routes;
}

/* Entries of dim 0 that mean something. */
static int64_t live_of(const sk_bound *b, size_t step, const sk_view *v)
{
    const void *args = b->args + b->plan->steps[step].args_at;
    const sk_view *count = find_input(b, step, "count");
    const sk_view *list = find_input(b, step, "list");
    int64_t n = count ? number_in(count) : v->dim[0];
    if (list) n = routes_in(list, number_in(find_input(b, step, "n")));
    if (b->plan->steps[step].op == SK_OP_route_list && v->rank == 2)
        n = number_in(&((const sk_route_list_args *)args)->n);
    return clipped(n, v->dim[0]);
}

/* The rows along the last dimension in what lies at `off`, an index of the dimensions before
 * `dim`. */
static void add_rows(sk_gap *g, const sk_view *v, const uint8_t *got, uint64_t off, int32_t dim,
                     int64_t row)
{
    if (dim == v->rank - 1) {
        sk_gap_add(g, v->dtype, got + off, v->p + off, v->dim[dim], row);
        return;
    }
    for (int64_t i = 0; i < v->dim[dim]; i++)
        add_rows(g, v, got, off + (uint64_t)(i * v->stride[dim]), dim + 1, row);
}

/* Bytes of what lies below dim 1. */
static uint64_t inner_bytes(const sk_view *v)
{
    uint64_t bytes = 0;
    (void)sk_dtype_row_bytes(v->dtype, (uint64_t)v->dim[v->rank - 1], &bytes);
    for (int32_t i = 2; i < v->rank - 1; i++) bytes *= (uint64_t)v->dim[i];
    return bytes;
}

static void add_live(sk_gap *g, const sk_view *v, const uint8_t *got, int64_t live)
{
    if (v->rank == 1) {
        sk_gap_add(g, v->dtype, got, v->p, live, 0);
        return;
    }
    for (int64_t i = 0; i < live; i++) add_rows(g, v, got, (uint64_t)(i * v->stride[0]), 1, i);
}

/* The norm that a row of v has if its columns are like those of wider results which `linear` writes
 * beside it. One column may be a sum that cancels, and then says nothing about how exact it is; so
 * this is what the errors of a few columns are held against. 0: there are none. */
static double norm_beside(const sk_bound *b, size_t step, const sk_view *v, int64_t row)
{
    const sk_linear_args *a = (const void *)(b->args + b->plan->steps[step].args_at);
    double sum = 0, n = 0;
    for (int32_t i = 0; i < SK_LINEAR_SEGS && sk_view_present(&a->y[i]); i++) {
        const float *y = (const void *)sk_view_row(&a->y[i], row);
        if (a->y[i].dtype != SK_F32 || a->y[i].dim[1] <= v->dim[1]) continue;
        for (int64_t j = 0; j < a->y[i].dim[1]; j++) sum += (double)y[j] * y[j];
        n += (double)a->y[i].dim[1];
    }
    return n > 0 ? sqrt(sum / n * (double)v->dim[1]) : 0;
}

/* All that a step writes. Heads that a delta rule reads are sums that may cancel, so those of a row
 * are one row here. */
static void add_result(sk_gap *g, const sk_bound *b, size_t step, const sk_view *v,
                       const uint8_t *got, int64_t live)
{
    const enum sk_op op = b->plan->steps[step].op;
    const bool heads = (op == SK_OP_gdn_step || op == SK_OP_gdn_scan) && v->rank == 3;
    if (!heads && (op != SK_OP_linear || v->dim[1] >= NARROW)) {
        add_live(g, v, got, live);
        return;
    }
    for (int64_t i = 0; i < live; i++) {
        const uint64_t off = (uint64_t)(i * v->stride[0]);
        g->beside = heads ? 0 : norm_beside(b, step, v, i);
        sk_gap_add(g, v->dtype, got + off, v->p + off, v->dim[1] * (heads ? v->dim[2] : 1), i);
    }
}

/* Which entry along dim 1 of what a step writes by its row table is this row's; -1: none. */
static int64_t entry_of(const sk_bound *b, size_t step, const char *field, const sk_row *row)
{
    const void *args = b->args + b->plan->steps[step].args_at;
    switch (b->plan->steps[step].op) {
    case SK_OP_keep_rows:
        return row->at;
    case SK_OP_index_append: {
        const int32_t ratio = ((const sk_index_append_args *)args)->ratio;
        if (strcmp(field, "raw") == 0) return row->pos;
        return (row->pos + 1) % ratio == 0 ? row->pos / ratio : -1;
    }
    default:
        return row->pos;
    }
}

static bool writes_by_rows(enum sk_op op, const sk_field *f)
{
    const size_t n = strlen(f->name);
    return op == SK_OP_keep_rows || op == SK_OP_index_append ||
           (n > 6 && strcmp(f->name + n - 6, "_cache") == 0);
}

/* A cache: the appended rows by the rule, all others to the byte. */
static void add_cache(sk_gap *g, const sk_bound *b, size_t step, const sk_field *f,
                      const sk_view *v, uint8_t *got, uint64_t bytes, const sk_row *rows,
                      int64_t live)
{
    const uint64_t row_bytes = inner_bytes(v);
    for (int64_t i = 0; i < live; i++) {
        const int64_t entry = entry_of(b, step, f->name, &rows[i]);
        const uint64_t off = (uint64_t)(rows[i].slot * v->stride[0] + entry * v->stride[1]);
        if (entry < 0) continue;
        add_rows(g, v, got, off, 2, i);
        memcpy(got + off, v->p + off, (size_t)row_bytes);
    }
    for (uint64_t i = 0; i < bytes; i++) g->stray += got[i] != v->p[i];
}

/* Arguments of norm_argmax, or those of linear_argmax in its shape, without a gain. */
static sk_norm_argmax_args choice_of(enum sk_op op, const void *args)
{
    const sk_linear_argmax_args *a = args;
    sk_norm_argmax_args n;
    if (op == SK_OP_norm_argmax) return *(const sk_norm_argmax_args *)args;
    sk_args_clear(SK_OP_norm_argmax, &n);
    n.x = a->x;
    n.count = a->count;
    n.w = a->w;
    n.bias = a->bias;
    n.scale = a->scale;
    n.id = a->id;
    n.scale_n = a->scale_n;
    n.scale_k = a->scale_k;
    return n;
}

static void plain_product(const sk_norm_linear_args *n, const sk_cpu *cpu)
{
    sk_linear_args l;
    sk_args_clear(SK_OP_linear, &l);
    l.x = n->x;
    l.count = n->count;
    l.w[0] = n->w[0];
    l.bias[0] = n->bias[0];
    l.scale[0] = n->scale[0];
    l.scale_n[0] = n->scale_n[0];
    l.scale_k[0] = n->scale_k[0];
    l.y[0] = n->y[0];
    cpu->table[SK_OP_linear](&l, cpu);
}

/* What the CPU makes of one output of the product before an argmax. */
static float score(const sk_diff *d, const sk_norm_argmax_args *a, int64_t row, int32_t id)
{
    int32_t one = 1;
    float y = 0;
    sk_cpu cpu = d->cpu->exec.cpu;
    sk_norm_linear_args l;
    sk_args_clear(SK_OP_norm_linear, &l);
    l.x = a->x;
    l.x.p = sk_view_row(&a->x, row);
    l.gain = a->gain;
    l.count = a->count;
    l.count.p = (uint8_t *)(void *)&one;
    l.w[0] = a->w;
    l.w[0].p = sk_view_row(&a->w, id);
    l.bias[0] = a->bias;
    if (sk_view_present(&a->bias)) l.bias[0].p += (size_t)id * sizeof y;
    l.scale[0] = a->scale;
    if (sk_view_present(&a->scale)) {
        l.scale[0].p = sk_view_row(&a->scale, id / a->scale_n);
        l.scale_n[0] = 1;
        l.scale_k[0] = a->scale_k;
    }
    l.x.dim[0] = l.w[0].dim[0] = l.bias[0].dim[0] = l.scale[0].dim[0] = 1;
    l.y[0] = sk_view_dense(0, SK_F32, 2, (int64_t[]){1, 1});
    l.y[0].p = (uint8_t *)(void *)&y;
    l.eps = a->eps;
    l.act = a->act;
    cpu.table = d->cpu->exec.table;
    if (sk_view_present(&a->gain))
        cpu.table[SK_OP_norm_linear](&l, &cpu);
    else
        plain_product(&l, &cpu);
    return y;
}

/* Where the choices differ: by how much the other side's scores less, relative to the larger. */
static void add_scores(const sk_diff *d, sk_gap *g, const sk_norm_argmax_args *a,
                       const uint8_t *got, int64_t live)
{
    for (int64_t i = 0; i < live; i++) {
        const int32_t mine = ((const int32_t *)(const void *)a->id.p)[i];
        const int32_t theirs = ((const int32_t *)(const void *)got)[i];
        double best, next, most;
        if (mine == theirs) continue;
        if (theirs < 0 || theirs >= a->w.dim[0]) {
            g->score = INFINITY;
            continue;
        }
        best = (double)score(d, a, i, mine);
        next = (double)score(d, a, i, theirs);
        most = fmax(fabs(best), fabs(next));
        g->score = fmax(g->score, most > 0 ? fabs(best - next) / most : 0);
    }
}

/* A product in parts: rows are the second dimension. */
static int64_t add_parts(sk_gap *g, const sk_bound *b, size_t step, const sk_view *v,
                         const uint8_t *got)
{
    sk_view part = sk_view_dense(v->buf, v->dtype, 2, v->dim + 1);
    const int64_t live = live_of(b, step, &part);
    part.stride[0] = v->stride[1];
    for (int64_t i = 0; i < v->dim[0]; i++) {
        part.p = v->p + i * v->stride[0];
        add_live(g, &part, got + i * v->stride[0], live);
    }
    return live;
}

/* The state of a slot and what is pending there has entries by slot, whatever the rows. */
static bool is_by_slot(const sk_diff *d, const sk_view *v)
{
    const sk_role role = d->cpu->prog.space.bufs[v->buf].role;
    return role == SK_ROLE_STATE || role == SK_ROLE_PENDING;
}

static void measure(const sk_diff *d, const sk_bound *b, size_t step, const sk_field *f,
                    const sk_view *v, uint64_t bytes, sk_diff_item *it)
{
    const enum sk_op op = b->plan->steps[step].op;
    const sk_view *rows = writes_by_rows(op, f) ? find_input(b, step, "rows") : NULL;
    if (rows) {
        const sk_row *table = (const sk_row *)(const void *)rows->p;
        it->rows = live_of(b, step, rows);
        add_cache(&it->gap, b, step, f, v, d->got, bytes, table, it->rows);
        return;
    }
    if (op == SK_OP_linear_parts) {
        it->rows = add_parts(&it->gap, b, step, v, d->got);
        return;
    }
    it->rows = is_by_slot(d, v) ? v->dim[0] : live_of(b, step, v);
    add_result(&it->gap, b, step, v, d->got, it->rows);
    if (it->rule == SK_RULE_CHOICE) {
        const void *args = b->args + b->plan->steps[step].args_at;
        const sk_norm_argmax_args choice = choice_of(op, args);
        add_scores(d, &it->gap, &choice, d->got, it->rows);
    }
}

static sk_code compare(sk_diff *d, const pass *p, size_t step, const sk_field *f, sk_status *st)
{
    const sk_step *s = &p->cpu->plan->steps[step];
    const sk_view *v = view_at(p->cpu, step, f);
    uint64_t bytes;
    sk_diff_item *it;
    (void)sk_view_span(v, &bytes);
    SK_TRY(get(d->other, view_at(p->other, step, f), d->got, bytes, st));
    if (d->spoil.step == (int32_t)step && !strcmp(d->spoil.field, f->name) && d->spoil.at < bytes)
        ((uint8_t *)d->got)[d->spoil.at] ^= d->spoil.flip;
    SK_TRY(sk_mem_grow((void **)&d->items, d->n_items, &d->items_cap, sizeof *it,
                       "records of a diff", st));
    it = &d->items[d->n_items++];
    *it = (sk_diff_item){.plan = p->cpu->plan->name,
                         .n_rows = p->n_rows,
                         .pass = d->n_passes,
                         .step = (int32_t)step,
                         .op = sk_ops[s->op].name,
                         .label = s->label,
                         .field = f->name,
                         .dtype = v->dtype,
                         .rank = v->rank,
                         .rule = rule_of(d, s->op, v->dtype)};
    memcpy(it->dim, v->dim, sizeof it->dim);
    sk_gap_init(&it->gap);
    measure(d, p->cpu, step, f, v, bytes, it);
    it->ok = sk_gap_ok(&it->gap, it->rule);
    return SK_OK;
}

/* ---- running --------------------------------------------------------------------------------- */

static sk_code run_step(sk_diff *d, const pass *p, size_t step, sk_status *st)
{
    SK_TRY(feed(d, p, step, st));
    sk_exec_step(&d->cpu->exec, p->cpu, step);
    SK_TRY(run_other(d, p, step, st));
    for (const sk_field *f = fields_of(p->cpu->plan, step); f->kind != SK_FIELD_END; f++)
        if (f->kind == SK_FIELD_VIEW && f->mode & SK_WRITE &&
            sk_view_present(view_at(p->cpu, step, f)))
            SK_TRY(compare(d, p, step, f, st));
    return SK_OK;
}

sk_code sk_diff_run(sk_diff *d, int32_t plan, int32_t positions, sk_status *st)
{
    sk_session *c = d->cpu, *o = d->other;
    const bool prefill = plan == SK_DIFF_PREFILL;
    const pass p = {
        .cpu = prefill ? &c->prefill : &c->rounds[plan],
        .other = prefill ? &o->prefill : &o->rounds[plan],
        .n_rows = prefill ? c->prog.prefill.n_rows : c->prog.rounds[plan].n_rows,
        .ctx_bound = o->place.dev ? o->device.tier[sk_device_tier(&o->device, positions)] : 0,
    };
    if (!d->on) {
        sk_exec_run(&c->exec, p.cpu, SK_STAGE_CONTROL, SK_STAGE_PUBLISH);
        return SK_OK;
    }
    // Whatever a step reads without saying so is NaN.
    SK_TRY(sk_place_fill(&o->place, p.other->transients, 0xff, p.other->plan->transient_bytes, st));
    for (size_t i = 0; i < p.cpu->plan->n_steps; i++) SK_TRY(run_step(d, &p, i, st));
    d->n_passes++;
    return SK_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Both sides have the same plans, and no output is of a type that cannot be compared. */
static sk_code check_plan(const sk_plan *a, const sk_plan *b, uint64_t *most, sk_status *st)
{
    if (memcmp(a->digest, b->digest, sizeof a->digest) != 0)
        return SK_FAIL(st, SK_STATE, "plan %s: expected the same on both sides, found two",
                       a->name);
    for (size_t i = 0; i < a->n_steps; i++)
        for (const sk_field *f = fields_of(a, i); f->kind != SK_FIELD_END; f++) {
            const sk_view *v;
            uint64_t bytes;
            if (f->kind != SK_FIELD_VIEW || !(f->mode & SK_WRITE)) continue;
            v = sk_field_view_const(sk_plan_args(a, i), f);
            if (!sk_view_present(v)) continue;
            if (!sk_gap_knows(v->dtype))
                return SK_FAIL(st, SK_UNSUPPORTED, "%s: %s: expected a type to compare, found %s",
                               sk_ops[a->steps[i].op].name, f->name, sk_dtype_name(v->dtype));
            (void)sk_view_span(v, &bytes);
            *most = bytes > *most ? bytes : *most;
        }
    return SK_OK;
}

static sk_code open_other(sk_diff *d, const sk_options *options, sk_status *st)
{
    const sk_program *mine = &d->cpu->prog, *theirs;
    uint64_t most = 0;
    SK_TRY(sk_session_open(&d->other, d->cpu->ck, options, st));
    theirs = &d->other->prog;
    for (int32_t i = 0; i < mine->n_rounds; i++)
        SK_TRY(check_plan(&mine->rounds[i].plan, &theirs->rounds[i].plan, &most, st));
    SK_TRY(check_plan(&mine->prefill.plan, &theirs->prefill.plan, &most, st));
    return sk_mem_new_aligned(&d->got, most, "an output to compare", st);
}

static sk_code attach(sk_session *cpu, int32_t device, bool exact, sk_status *st)
{
    sk_options o = cpu->prog.options;
    sk_diff *d = NULL;
    SK_TRY(sk_mem_new((void **)&d, 1, sizeof *d, "step diff", st));
    *d = (sk_diff){.cpu = cpu, .on = true, .exact = exact, .spoil = {.step = -1}};
    cpu->diff = d;
    o.device = device;
    o.mode = SK_MODE_DIRECT; // a step that fails is named
    (void)snprintf(o.kernels, sizeof o.kernels, "definition");
    return open_other(d, &o, st);
}

sk_code sk_diff_open(sk_session **out, const sk_ckpt *ck, const sk_options *options, int32_t device,
                     bool exact, sk_status *st)
{
    sk_options o = *options;
    sk_session *s = NULL;
    sk_code rc;
    o.device = -1;
    o.capacities = true; // as on a device, so that its small rounds are compared too
    SK_TRY(sk_session_open(&s, ck, &o, st));
    rc = attach(s, device, exact, st);
    if (rc != SK_OK) {
        sk_session_close(s);
        return rc;
    }
    *out = s;
    return SK_OK;
}

void sk_diff_drop(sk_diff *d)
{
    if (!d) return;
    sk_session_close(d->other);
    sk_mem_free(d->got);
    sk_mem_free(d->items);
    sk_mem_free(d);
}

bool sk_diff_has(const sk_session *s) { return s->diff != NULL; }

void sk_diff_switch(sk_session *s, bool on) { s->diff->on = on; }

const sk_diff_item *sk_diff_items(const sk_session *s, size_t *n)
{
    *n = s->diff->n_items;
    return s->diff->items;
}

void sk_diff_forget(sk_session *s) { s->diff->n_items = 0; }

void sk_diff_spoil(sk_session *s, int32_t step, const char *field, uint64_t at, uint8_t flip)
{
    s->diff->spoil.step = step;
    s->diff->spoil.at = at;
    s->diff->spoil.flip = flip;
    (void)snprintf(s->diff->spoil.field, sizeof s->diff->spoil.field, "%s", field);
}
