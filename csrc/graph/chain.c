/* Making and recording chains; chain_time.c replays them. See chain.h. */
#include "graph/chain.h"

#include "base/layout.h"
#include "base/mem.h"
#include "dev/floor.h"
#include "graph/chain_impl.h"
#include "graph/once.h"
#include "graph/walk.h"
#include "op/cuda/cuda.h"

#include <string.h>

/* ---- checks ---------------------------------------------------------------------------------- */

static sk_code in_range(const char *what, int64_t n, int64_t most, sk_status *st)
{
    if (n >= 1 && n <= most) return SK_OK;
    return SK_FAIL(st, SK_INVALID, "chain: %s: expected 1 to %lld, found %lld", what,
                   (long long)most, (long long)n);
}

sk_code sk_chain_check_weights(const sk_chain_weights *w, sk_status *st)
{
    int i = 0;
    SK_TRY(in_range("copies", w->n_copies, SK_CHAIN_MAX_COPIES, st));
    for (const sk_field *f = sk_ops[w->op].fields; f->kind != SK_FIELD_END; f++, i++) {
        if (!(w->weights >> i & 1)) continue;
        if (f->kind != SK_FIELD_VIEW || (f->mode & SK_WRITE) ||
            !sk_view_present(sk_field_view_const(w->args, f)))
            return SK_FAIL(st, SK_INVALID, "chain: %s: %s: expected an input that is given",
                           sk_ops[w->op].name, f->name);
    }
    if (!w->weights) return SK_FAIL(st, SK_INVALID, "chain: weights: expected a field, found none");
    return SK_OK;
}

static sk_code check_flag(const char *what, int32_t v, sk_status *st)
{
    if (v >= -1 && v <= 1) return SK_OK;
    return SK_FAIL(st, SK_INVALID, "chain: %s: expected -1, 0 or 1, found %d", what, (int)v);
}

sk_code sk_chain_check_spec(enum sk_op op, uint64_t weights, const sk_chain_spec *spec,
                            sk_status *st)
{
    int i = 0;
    SK_TRY(in_range("nodes", spec->n_nodes, SK_CHAIN_MAX_NODES, st));
    SK_TRY(check_flag("rows_ready", spec->rows_ready, st));
    SK_TRY(check_flag("open_early", spec->open_early, st));
    for (const sk_field *f = sk_ops[op].fields; f->kind != SK_FIELD_END; f++, i++) {
        if (!spec->stack[i]) continue;
        SK_TRY(in_range(f->name, spec->n_stack[i], SK_CHAIN_MAX_NODES, st));
        if (f->kind != SK_FIELD_VIEW || (f->mode & SK_WRITE) || weights >> i & 1 ||
            !sk_view_present(sk_field_view_const(spec->args, f)))
            return SK_FAIL(st, SK_INVALID,
                           "chain: %s: %s: expected an input that is no weight, for a stack",
                           sk_ops[op].name, f->name);
    }
    return SK_OK;
}

static sk_code check_same_weights(const sk_chain *c, const void *args, sk_status *st)
{
    int i = 0;
    for (const sk_field *f = sk_ops[c->op].fields; f->kind != SK_FIELD_END; f++, i++) {
        const sk_view *v, *own = &c->weight[i];
        if (!(c->weights >> i & 1)) continue;
        v = sk_field_view_const(args, f);
        if (!sk_view_present(v) || v->dtype != own->dtype || v->rank != own->rank ||
            memcmp(v->dim, own->dim, (size_t)own->rank * sizeof own->dim[0]) != 0)
            return SK_FAIL(
                st, SK_INVALID,
                "chain: %s: %s: expected the type and shape that the chain was made with",
                sk_ops[c->op].name, f->name);
    }
    return SK_OK;
}

/* ---- weights --------------------------------------------------------------------------------- */

static sk_code upload_weight(sk_chain *c, const sk_view *v, uint64_t packed, uint8_t *at,
                             sk_status *st)
{
    const sk_pieces whole = {0};
    uint64_t bytes;
    if (packed) return sk_once_pack(c->dev, v, &whole, at, st);
    if (!sk_view_span(v, &bytes)) return SK_FAIL(st, SK_INVALID, "chain: size out of range");
    return sk_dev_write(c->dev, at, v->p, bytes, st);
}

/* The first copy from the host, the others from it. */
static sk_code fill_copies(sk_chain *c, const uint64_t *packed, const uint64_t *at, sk_status *st)
{
    for (int i = 0; i < SK_CHAIN_FIELDS; i++) {
        if (!(c->weights >> i & 1)) continue;
        SK_TRY(upload_weight(c, &c->weight[i], packed[i], c->copies + at[i], st));
        c->weight[i].p = c->copies + at[i];
    }
    for (int32_t k = 1; k < c->n_copies; k++)
        SK_TRY(sk_dev_copy(c->dev, c->copies + (uint64_t)k * c->copy_bytes, c->copies,
                           c->copy_bytes, st));
    return sk_dev_sync(c->dev, st);
}

static sk_code make_copies(sk_chain *c, const void *args, sk_status *st)
{
    uint64_t packed[SK_CHAIN_FIELDS] = {0}, at[SK_CHAIN_FIELDS] = {0}, all;
    sk_layout l = {0};
    int i = 0;
    for (const sk_field *f = sk_ops[c->op].fields; f->kind != SK_FIELD_END; f++, i++) {
        uint64_t bytes;
        if (!(c->weights >> i & 1)) continue;
        c->weight[i] = *sk_field_view_const(args, f);
        SK_TRY(sk_once_packed(c->op, f, &c->weight[i], &packed[i], st));
        if (!sk_view_span(&c->weight[i], &bytes)) l.bad = true;
        at[i] = sk_layout_add(&l, packed[i] ? packed[i] : bytes);
    }
    c->node_bytes = l.used;
    c->copy_bytes = sk_layout_add(&l, 0); // aligned
    if (l.bad || !sk_mul_u64(c->copy_bytes, (uint64_t)c->n_copies, &all))
        return SK_FAIL(st, SK_NOMEM, "sizes exceed the address space");
    SK_TRY(sk_dev_alloc(c->dev, all, "copies of the weights of a chain", &c->copies, st));
    return fill_copies(c, packed, at, st);
}

static sk_code make(sk_chain *c, int32_t device, const sk_chain_weights *w, sk_status *st)
{
    SK_TRY(sk_dev_open(&c->dev, device, st));
    SK_TRY(sk_cuda_check(w->op, w->args, st));
    SK_TRY(sk_dev_check(sk_k_setup(), "preparing the kernels", -1, st));
    SK_TRY(sk_mem_new_aligned(&c->args, SK_ARGS_MAX, "arguments of an op", st));
    return make_copies(c, w->args, st);
}

sk_code sk_chain_open(sk_chain **out, int32_t device, const sk_chain_weights *w, sk_status *st)
{
    sk_chain *c;
    void *p;
    sk_code rc;
    SK_TRY(sk_chain_check_weights(w, st));
    SK_TRY(sk_mem_new(&p, 1, sizeof *c, "chain", st));
    c = p;
    c->op = w->op;
    c->weights = w->weights;
    c->n_copies = w->n_copies;
    rc = make(c, device, w, st);
    if (rc != SK_OK) {
        sk_chain_close(c);
        return rc;
    }
    *out = c;
    return SK_OK;
}

static void drop_recording(sk_chain *c)
{
    if (!c->dev) return;
    sk_dev_free(c->dev, c->block); // waits for replays that are queued
    sk_dev_graph_drop(c->graph);
    c->graph = NULL;
    c->block = NULL;
    c->of_op = false;
}

void sk_chain_close(sk_chain *c)
{
    if (!c) return;
    drop_recording(c);
    sk_dev_free(c->dev, c->copies);
    sk_dev_close(c->dev);
    sk_mem_free(c->args);
    sk_mem_free(c);
}

/* ---- arguments of the nodes ------------------------------------------------------------------ */

/* Fields that begin at the same byte, as an input and an output may, share their place. */
static sk_place *owner_of(sk_chain *c, int i)
{
    for (int k = 0; k < i; k++)
        if (c->places[k].host && c->places[k].n == 1 && c->places[i].n == 1 &&
            c->places[k].host == c->places[i].host && !c->places[k].shared)
            return &c->places[k];
    return NULL;
}

static sk_code plan_places(sk_chain *c, const sk_chain_spec *spec, sk_status *st)
{
    int i = 0;
    memset(c->places, 0, sizeof c->places);
    for (const sk_field *f = sk_ops[c->op].fields; f->kind != SK_FIELD_END; f++, i++) {
        sk_place *p = &c->places[i], *owner;
        const sk_view *v;
        if (f->kind != SK_FIELD_VIEW || c->weights >> i & 1) continue;
        v = sk_field_view_const(spec->args, f);
        if (!sk_view_present(v)) continue;
        if (!sk_view_span(v, &p->bytes))
            return SK_FAIL(st, SK_INVALID, "%s: %s: size outside the allowed range",
                           sk_ops[c->op].name, f->name);
        p->host = spec->stack[i] ? (uint8_t *)(uintptr_t)spec->stack[i] : v->p;
        p->n = spec->stack[i] ? spec->n_stack[i] : 1;
        p->written = (f->mode & SK_WRITE) != 0;
        owner = owner_of(c, i);
        p->shared = owner != NULL;
        if (owner && owner->bytes < p->bytes)
            return SK_FAIL(st, SK_UNSUPPORTED, "chain: %s: %s: expected the larger view first",
                           sk_ops[c->op].name, f->name);
        if (owner) owner->written |= p->written;
    }
    return SK_OK;
}

static sk_code lay_out(sk_chain *c, uint64_t work_bytes, sk_status *st)
{
    sk_layout l = {0};
    for (int i = 0; i < SK_CHAIN_FIELDS; i++) {
        sk_place *p = &c->places[i];
        if (!p->host) continue;
        if (p->shared) {
            p->at = owner_of(c, i)->at;
            continue;
        }
        p->at = sk_layout_add(&l, p->bytes);
        p->step = sk_layout_add(&l, 0) - p->at; // every element of a stack aligned
        for (int32_t k = 1; k < p->n; k++) (void)sk_layout_add(&l, p->bytes);
    }
    c->work_bytes = work_bytes;
    c->work_at = sk_layout_add(&l, work_bytes);
    c->sync_at = sk_layout_add(&l, SK_SYNC_WORDS * sizeof(uint32_t));
    if (l.bad) return SK_FAIL(st, SK_NOMEM, "sizes exceed the address space");
    return sk_dev_alloc(c->dev, l.used, "a chain's arguments", &c->block, st);
}

sk_code sk_chain_upload(sk_chain *c, bool only_written, sk_status *st)
{
    for (int i = 0; i < SK_CHAIN_FIELDS; i++) {
        const sk_place *p = &c->places[i];
        if (!p->host || p->shared || (only_written && !p->written)) continue;
        for (int32_t k = 0; k < p->n; k++)
            SK_TRY(sk_dev_write(c->dev, c->block + p->at + (uint64_t)k * p->step,
                                p->host + (uint64_t)k * p->bytes, p->bytes, st));
    }
    return SK_OK;
}

static void bind_node(sk_chain *c, int32_t node)
{
    int i = 0;
    for (const sk_field *f = sk_ops[c->op].fields; f->kind != SK_FIELD_END; f++, i++) {
        const sk_place *p = &c->places[i];
        sk_view *v;
        if (f->kind != SK_FIELD_VIEW) continue;
        v = sk_field_view(c->args, f);
        if (c->weights >> i & 1)
            v->p = c->weight[i].p + (uint64_t)(node % c->n_copies) * c->copy_bytes;
        else if (p->host)
            v->p = c->block + p->at + (uint64_t)(node % p->n) * p->step;
    }
}

/* ---- recording ------------------------------------------------------------------------------- */

typedef struct op_body {
    sk_chain *c;
    const sk_chain_spec *spec;
    int32_t rows_ready, open_early, ctx_bound;
} op_body;

static sk_code put_op(void *ctx, sk_status *st)
{
    const op_body *b = ctx;
    sk_chain *c = b->c;
    for (int32_t i = 0; i < b->spec->n_nodes; i++) {
        const bool edge = b->spec->edges && i > 0;
        const sk_launch l = {.stream = sk_dev_stream(c->dev),
                             .work = c->block + c->work_at,
                             .work_bytes = c->work_bytes,
                             .sync = (uint32_t *)(void *)(c->block + c->sync_at),
                             .ctx_bound = b->ctx_bound,
                             .n_sm = sk_dev_about(c->dev)->n_sm,
                             .edge = edge,
                             .rows_ready = b->rows_ready,
                             .list_ready = b->rows_ready, // not states, which a node may write
                             .open_early = edge && b->open_early};
        bind_node(c, i);
        SK_TRY(sk_dev_check(sk_cuda_ops[c->op](c->args, &l), sk_ops[c->op].name, -1, st));
    }
    return SK_OK;
}

typedef struct stream_body {
    sk_chain *c;
    const sk_chain_stream *s;
} stream_body;

static sk_code put_stream(void *ctx, sk_status *st)
{
    const stream_body *b = ctx;
    const sk_chain *c = b->c;
    const uint64_t arena = (uint64_t)c->n_copies * c->copy_bytes;
    const uint64_t bytes = (b->s->bytes + 15) / 16 * 16;
    uint64_t at = 0;
    for (int32_t i = 0; i < b->s->n_nodes; i++) {
        if (arena - at < bytes) at = 0;
        SK_TRY(sk_floor_put_read(c->dev, c->copies + at, bytes, b->s->shape, b->s->edges && i > 0,
                                 (uint32_t *)(void *)c->block, st));
        at += bytes;
    }
    return SK_OK;
}

/* A step may be several kernels, of which those behind the first one have edges of either kind; in
 * the first step, which has none ahead of it, maybe fewer programmatic ones than in the others. */
static bool within_steps(int64_t programmatic, int64_t n_nodes, int64_t kernels)
{
    for (int64_t each = 0; each < kernels; each++) {
        const int64_t first = programmatic - (n_nodes - 1) * each;
        if (first >= 0 && first <= each) return true;
    }
    return false;
}

bool sk_chain_is_row(const sk_chain_about *a, int32_t n_nodes, bool edges)
{
    const int64_t between = edges ? n_nodes - 1 : 0;
    return a->n_nodes >= n_nodes && a->n_nodes % n_nodes == 0 && a->n_edges == a->n_nodes - 1 &&
           within_steps(a->n_programmatic - between, n_nodes, a->n_nodes / n_nodes);
}

static sk_code check_graph(const sk_chain_about *a, int32_t n_nodes, bool edges, sk_status *st)
{
    if (sk_chain_is_row(a, n_nodes, edges)) return SK_OK;
    return SK_FAIL(st, SK_MISMATCH,
                   "chain: expected %d steps in one row with %s edges between them, found %lld "
                   "nodes, %lld edges, %lld of them programmatic",
                   (int)n_nodes, edges ? "programmatic" : "plain", (long long)a->n_nodes,
                   (long long)a->n_edges, (long long)a->n_programmatic);
}

static sk_code record(sk_chain *c, sk_code (*body)(void *ctx, sk_status *st), void *ctx,
                      int32_t n_nodes, bool edges, sk_chain_about *about, sk_status *st)
{
    int32_t has = sk_k_has_edges();
    if (has < 0) return sk_dev_check(-has, "cudaFuncGetAttributes", -1, st);
    if (edges && !has)
        return SK_FAIL(st, SK_UNSUPPORTED,
                       "CUDA device %s: programmatic edges need compute capability 9.0 and kernels "
                       "built for it",
                       sk_dev_about(c->dev)->name);
    SK_TRY(body(ctx, st)); // once by hand, which loads the kernels
    SK_TRY(sk_dev_sync(c->dev, st));
    SK_TRY(sk_dev_capture(c->dev, body, ctx, &c->graph, st));
    about->n_nodes = sk_dev_graph_nodes(c->graph);
    about->n_edges = sk_dev_graph_edges(c->graph, &about->n_programmatic);
    about->copy_bytes = c->node_bytes;
    c->n_nodes = n_nodes;
    return check_graph(about, n_nodes, edges, st);
}

static sk_code record_op(sk_chain *c, const sk_chain_spec *spec, sk_chain_about *about,
                         sk_status *st)
{
    op_body b = {c, spec, spec->rows_ready != 0, // nothing in a chain writes rows or counts
                 spec->open_early < 0 ? sk_walk_opens_early(c->op) : spec->open_early,
                 sk_once_bound(c->op, spec->args)};
    memcpy(c->args, spec->args, sk_ops[c->op].args_bytes);
    SK_TRY(plan_places(c, spec, st));
    SK_TRY(lay_out(c, sk_cuda_work_bytes(c->op, spec->args, b.ctx_bound), st));
    SK_TRY(sk_chain_upload(c, false, st));
    // NaN: an op may expect nothing in there
    SK_TRY(sk_dev_fill(c->dev, c->block + c->work_at, 0xff, c->work_bytes, st));
    about->rows_ready = b.rows_ready;
    about->open_early = b.open_early;
    return record(c, put_op, &b, spec->n_nodes, spec->edges, about, st);
}

sk_code sk_chain_record(sk_chain *c, const sk_chain_spec *spec, sk_chain_about *about,
                        sk_status *st)
{
    sk_chain_about found = {0};
    sk_code rc;
    SK_TRY(sk_chain_check_spec(c->op, c->weights, spec, st));
    SK_TRY(check_same_weights(c, spec->args, st));
    SK_TRY(sk_cuda_check(c->op, spec->args, st));
    drop_recording(c);
    rc = record_op(c, spec, &found, st);
    if (rc != SK_OK) {
        drop_recording(c);
        return rc;
    }
    c->of_op = true;
    *about = found;
    return SK_OK;
}

sk_code sk_chain_record_stream(sk_chain *c, const sk_chain_stream *s, sk_chain_about *about,
                               sk_status *st)
{
    sk_chain_about found = {0};
    stream_body b = {c, s};
    int32_t threads, per_sm, loads;
    sk_code rc;
    SK_TRY(in_range("nodes", s->n_nodes, SK_CHAIN_MAX_NODES, st));
    SK_TRY(in_range("bytes", (int64_t)(s->bytes > INT64_MAX ? 0 : s->bytes),
                    (int64_t)((uint64_t)c->n_copies * c->copy_bytes), st));
    if (s->shape != -1 && !sk_floor_shape(s->shape, &threads, &per_sm, &loads))
        return SK_FAIL(st, SK_INVALID, "chain: launch shape %d: there is none with this number",
                       (int)s->shape);
    drop_recording(c);
    rc = sk_dev_alloc(c->dev, 256, "a chain's sink", &c->block, st);
    if (rc == SK_OK) rc = record(c, put_stream, &b, s->n_nodes, s->edges, &found, st);
    if (rc != SK_OK) {
        drop_recording(c);
        return rc;
    }
    *about = found;
    return SK_OK;
}
