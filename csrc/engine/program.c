/* See program.h. */
#include "engine/program.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

static sk_code outside(sk_status *st, const char *what, const char *expected, int64_t found)
{
    return SK_FAIL(st, SK_INVALID, "%s: expected %s, found %lld", what, expected, (long long)found);
}

static sk_code check_options(const sk_options *o, sk_status *st)
{
    const sk_drafter *d = &o->drafter;
    if (o->slots < 1 || o->slots > SK_SLOTS_MAX) return outside(st, "slots", "1 .. 64", o->slots);
    if (o->ctx < 1 || o->ctx > SK_MAX_CTX) return outside(st, "context", "1 .. 16777216", o->ctx);
    if (o->prefill_chunk < 1 || o->prefill_chunk > 8192)
        return outside(st, "prefill_chunk", "1 .. 8192", o->prefill_chunk);
    if (o->threads < 1 || o->threads > 1024) return outside(st, "threads", "1 .. 1024", o->threads);
    if (o->device < -1) return outside(st, "device", "at least -1", o->device);
    if ((int)o->mode < 0 || o->mode > SK_MODE_DIRECT)
        return outside(st, "mode", "0 .. 2", (int)o->mode);
    if (o->device >= 0 && o->f32)
        return SK_FAIL(st, SK_UNSUPPORTED, "numerics f32: expected device cpu, found cuda:%d",
                       (int)o->device);
    if ((int)d->kind < 0 || d->kind >= SK_DRAFTER_COUNT)
        return outside(st, "drafter", "a kind in 0 .. 3", (int64_t)d->kind);
    if (d->k < 0 || d->k >= SK_WIDTH_MAX) return outside(st, "drafter", "0 .. 15 proposals", d->k);
    if (d->kind != SK_DRAFTER_NONE && d->k < 1)
        return outside(st, "drafter", "at least 1 proposal", d->k);
    if ((int)o->forced.routing < 0 || o->forced.routing >= SK_ROUTING_COUNT)
        return outside(st, "forced routing", "a kind in 0 .. 2", (int32_t)o->forced.routing);
    if (o->forced.plants && d->k < 1)
        return outside(st, "forced acceptance", "a drafter with at least 1 proposal", d->k);
    return SK_OK;
}

static sk_code check_table(const sk_program *p, sk_status *st)
{
    for (size_t i = 0; i < p->space.n; i++)
        if (p->space.bufs[i].sparse) return SK_OK;
    if (!p->options.table_in_ram) return SK_OK;
    return SK_FAIL(st, SK_INVALID,
                   "embedding_table: expected device for a model without a hashed embedding, found "
                   "ram");
}

static sk_dtype act_type(const sk_options *o) { return o->f32 ? SK_F32 : SK_BF16; }

static sk_code pass_buffers(sk_pass *pass, sk_space *sp, const char *name, int32_t n_rows,
                            sk_status *st)
{
    const int64_t n = n_rows;
    char full[SK_NAME_MAX];
    pass->n_rows = n_rows;
    (void)snprintf(full, sizeof full, "%s.rows", name);
    SK_TRY(sk_space_add(sp, full, SK_ROLE_CONTROL, SK_I32, 2, (int64_t[]){n, 3}, &pass->rows, st));
    (void)snprintf(full, sizeof full, "%s.ids", name);
    SK_TRY(sk_space_add(sp, full, SK_ROLE_CONTROL, SK_I32, 1, &n, &pass->ids, st));
    (void)snprintf(full, sizeof full, "%s.count", name);
    return sk_space_add(sp, full, SK_ROLE_CONTROL, SK_I32, 1, (int64_t[]){1}, &pass->count, st);
}

static void pass_builder(sk_builder *b, sk_program *p, sk_pass *pass, sk_status *st)
{
    sk_b_init(b, &p->space, &pass->plan, act_type(&p->options), pass->n_rows, st);
    b->stage = SK_STAGE_VERIFY;
    b->rows = sk_b_buf(b, pass->rows);
    b->count = sk_b_buf(b, pass->count);
}

static sk_code build_prefill(sk_program *p, sk_status *st)
{
    sk_builder b;
    sk_plan_init(&p->prefill.plan, "prefill", &p->space);
    SK_TRY(pass_buffers(&p->prefill, &p->space, "prefill", p->options.prefill_chunk, st));
    pass_builder(&b, p, &p->prefill, st);
    {
        const sk_trunk t = {.ids = sk_b_buf(&b, p->prefill.ids),
                            .tokens = p->rb.tokens,
                            .settle = true,
                            .cache_only = !p->mtp,
                            .gather_beside = p->options.table_in_ram};
        const sk_view x = sk_model_trunk(p->model, &b, &t);
        if (p->mtp) sk_mtp_settle(p->mtp, &b, x, p->rb.tokens, NULL);
    }
    return sk_b_finish(&b);
}

/* When measuring, the host reads which experts the rows went to. */
static void keep_routes(sk_builder *b, const sk_forced *f)
{
    for (size_t i = 0; f->on && i < b->plan->n_steps; i++)
        if (b->plan->steps[i].op == SK_OP_route_topk)
            sk_b_result(b, ((const sk_route_topk_args *)sk_plan_args(b->plan, i))->ids);
}

static sk_code build_round(sk_program *p, int32_t n_rows, bool full, sk_status *st)
{
    const sk_options *o = &p->options;
    sk_round_plan *r = &p->rounds[p->n_rounds++];
    sk_round_vals v;
    sk_view x, chosen;
    sk_builder b;
    int32_t beside = 0;
    r->n_rows = n_rows;
    r->full = full;
    r->logits = -1;
    sk_plan_init(&r->plan, full ? "round" : "round.greedy", &p->space);
    sk_b_init(&b, &p->space, &r->plan, act_type(o), n_rows, st);
    sk_round_begin(&b, &p->rb);
    // Nothing that drafts looks at the target's state.
    if (p->mtp) beside = sk_b_fork(&b);
    sk_model_commit(p->model, &b, sk_b_buf(&b, p->rb.kept));
    sk_b_main(&b);
    // The last round may have had more rows than this one has room for.
    if (p->mtp) sk_mtp_commit(p->mtp, &b, &p->rb, p->n_rows);
    sk_round_draft(&b, &p->rb, &o->drafter, sk_model_config(p->model)->vocab, &v);
    if (p->mtp) sk_mtp_draft(p->mtp, &b, &p->rb, &v);
    sk_round_replant(&b, &p->rb, &o->drafter, sk_model_config(p->model)->vocab, &v);
    sk_round_rows(&b, &p->rb, p->width, &v);
    if (p->mtp) sk_b_join(&b, beside);
    x = sk_model_trunk(
        p->model, &b,
        &(sk_trunk){.ids = v.ids, .tokens = p->rb.tokens, .gather_beside = o->table_in_ram});
    if (p->mtp) sk_mtp_keep(p->mtp, &b, x);
    if (full) {
        x = sk_model_head(p->model, &b, x);
        sk_b_result(&b, x);
        r->logits = x.buf;
        chosen = sk_b_argmax(&b, x);
    } else {
        chosen = sk_model_head_argmax(p->model, &b, x);
    }
    sk_round_end(&b, &p->rb, &v, chosen);
    r->drafts = v.drafts.buf;
    r->n_draft = v.n_draft.buf;
    keep_routes(&b, &o->forced);
    return sk_b_finish(&b);
}

/* Both classes of every capacity. A device has smaller ones too: fewer rows, smaller grids. */
static sk_code build_rounds(sk_program *p, sk_status *st)
{
    static const int32_t capacity[] = {40, 20, 10, 5, 2, 1};
    SK_TRY(build_round(p, p->n_rows, true, st));
    SK_TRY(build_round(p, p->n_rows, false, st));
    if (p->options.device < 0 && !p->options.capacities) return SK_OK;
    for (size_t i = 0; i < SK_COUNT(capacity); i++) {
        if (capacity[i] >= p->n_rows || capacity[i] < p->width) continue;
        SK_TRY(build_round(p, capacity[i], true, st));
        SK_TRY(build_round(p, capacity[i], false, st));
    }
    return SK_OK;
}

int32_t sk_program_round_find(const sk_program *p, int32_t rows, bool full)
{
    int32_t found = full ? 0 : 1;
    for (int32_t i = found; i < p->n_rounds; i += 2)
        if (p->rounds[i].n_rows >= rows) found = i;
    return found;
}

static sk_code force_routes(sk_program *p, sk_status *st)
{
    const sk_forced *f = &p->options.forced;
    if (f->routing == SK_ROUTING_OWN) return SK_OK;
    SK_TRY(sk_model_force(p->model, f, &p->space, "target.", st));
    return p->mtp ? sk_mtp_force(p->mtp, f, &p->space, st) : SK_OK;
}

static sk_code open_in(sk_program *p, const sk_ckpt *ck, sk_status *st)
{
    const sk_options *o = &p->options;
    SK_TRY(check_options(o, st));
    p->options.drafter.replaced = o->forced.plants;
    p->width = o->drafter.k + 1;
    p->n_rows = o->slots * p->width;
    {
        const sk_state_size size = {o->slots, o->ctx, p->width, act_type(o)};
        const sk_mtp_options mtp = {o->draft != NULL, o->drafter.per_stream, o->drafter.k};
        SK_TRY(sk_model_open(&p->model, ck, &p->space, "target.", &size, st));
        SK_TRY(check_table(p, st));
        if (o->drafter.kind == SK_DRAFTER_MTP)
            SK_TRY(sk_mtp_open(&p->mtp, p->model, o->draft ? o->draft : ck, &p->space, &size, &mtp,
                               st));
    }
    SK_TRY(force_routes(p, st));
    SK_TRY(sk_round_add_buffers(&p->space, o->slots, o->ctx, SK_RING, &o->drafter, &p->rb, st));
    SK_TRY(build_rounds(p, st));
    return build_prefill(p, st);
}

sk_code sk_program_open(sk_program *out, const sk_ckpt *ck, const sk_options *options,
                        sk_status *st)
{
    sk_code rc;
    memset(out, 0, sizeof *out); // plans point at the space inside, so it is built in place
    out->options = *options;
    out->ck = ck;
    sk_space_init(&out->space);
    out->space.elsewhere = options->device >= 0 || options->sizes_only;
    out->space.sizes_only = options->sizes_only;
    rc = open_in(out, ck, st);
    if (rc != SK_OK) sk_program_close(out);
    return rc;
}

void sk_program_close(sk_program *p)
{
    for (int32_t i = 0; i < p->n_rounds; i++) sk_plan_fini(&p->rounds[i].plan);
    sk_plan_fini(&p->prefill.plan);
    sk_mtp_close(p->mtp);
    sk_model_close(p->model);
    sk_space_fini(&p->space);
    memset(p, 0, sizeof *p);
}

/* ---- scoring --------------------------------------------------------------------------------- */

int32_t sk_program_n_taps(const sk_program *p)
{
    return SK_TAP_LAYER + sk_model_config(p->model)->n_layer;
}

int64_t sk_program_tap_width(const sk_program *p, int32_t tap)
{
    const sk_config *c = sk_model_config(p->model);
    const sk_hybrid *h = &c->hybrid;
    switch (tap) {
    case SK_TAP_LOGITS:
        return c->vocab;
    case SK_TAP_MTP_LOGITS:
        return p->mtp ? c->vocab : 0;
    case SK_TAP_PLE_ROWS:
        return h->n_stream && h->ple_layer >= 0 ? (int64_t)(h->ngram - 1) * h->heads_per_ngram : 0;
    default:
        return tap >= 0 && tap < sk_program_n_taps(p) ? c->width : 0;
    }
}

static void tap(sk_score *s, sk_builder *b, int32_t i, sk_view v)
{
    s->taps[i] = v.buf;
    sk_b_result(b, v);
}

static sk_code build_score(sk_score *s, sk_program *p, const uint8_t *want, sk_status *st)
{
    const int32_t n_layer = sk_model_config(p->model)->n_layer;
    sk_view *layers = NULL;
    sk_view x, ple_rows = SK_VIEW_NONE, mtp_logits = SK_VIEW_NONE;
    sk_trunk t = {.tokens = p->rb.tokens,
                  .settle = true,
                  .gather_beside = p->options.table_in_ram,
                  .layer = want + SK_TAP_LAYER};
    sk_builder b;
    SK_TRY(sk_mem_new((void **)&layers, (size_t)n_layer, sizeof *layers, "score taps", st));
    pass_builder(&b, p, &s->pass, st);
    t.ids = sk_b_buf(&b, s->pass.ids);
    t.out = layers;
    t.ple_rows = &ple_rows;
    x = sk_model_trunk(p->model, &b, &t);
    for (int32_t i = 0; i < n_layer; i++)
        if (want[SK_TAP_LAYER + i]) tap(s, &b, SK_TAP_LAYER + i, layers[i]);
    if (want[SK_TAP_PLE_ROWS]) tap(s, &b, SK_TAP_PLE_ROWS, ple_rows);
    if (want[SK_TAP_LOGITS]) tap(s, &b, SK_TAP_LOGITS, sk_model_head(p->model, &b, x));
    if (want[SK_TAP_MTP_LOGITS]) {
        sk_mtp_settle(p->mtp, &b, x, p->rb.tokens, &mtp_logits);
        tap(s, &b, SK_TAP_MTP_LOGITS, mtp_logits);
    }
    sk_mem_free(layers);
    return sk_b_finish(&b);
}

sk_code sk_score_open(sk_score *out, sk_program *p, int32_t n_rows, const uint8_t *want,
                      sk_status *st)
{
    const int32_t n = sk_program_n_taps(p);
    sk_code rc;
    memset(out, 0, sizeof *out);
    for (int32_t i = 0; i < n; i++)
        if (want[i] && !sk_program_tap_width(p, i))
            return SK_FAIL(st, SK_INVALID, "score: expected what this model has, found output %d",
                           (int)i);
    SK_TRY(sk_mem_new((void **)&out->taps, (size_t)n, sizeof *out->taps, "score taps", st));
    for (int32_t i = 0; i < n; i++) out->taps[i] = -1;
    out->space_mark = p->space.n;
    sk_plan_init(&out->pass.plan, "score", &p->space);
    rc = pass_buffers(&out->pass, &p->space, "score", n_rows, st);
    if (rc == SK_OK) rc = build_score(out, p, want, st);
    if (rc != SK_OK) sk_score_close(out, p);
    return rc;
}

void sk_score_close(sk_score *s, sk_program *p)
{
    sk_plan_fini(&s->pass.plan);
    sk_mem_free(s->taps);
    if (s->space_mark) p->space.n = s->space_mark;
    memset(s, 0, sizeof *s);
}
