/* See round.h. */
#include "plan/round.h"

#include <string.h>

#define ARGS(op, a)                                                                                \
    sk_##op##_args a;                                                                              \
    sk_args_clear(SK_OP_##op, &(a))

sk_code sk_round_add_buffers(sk_space *sp, int32_t n_slots, int32_t ctx, int32_t n_ring,
                             const sk_drafter *drafter, sk_round_bufs *out, sk_status *st)
{
    sk_round_bufs rb = {
        .n_slots = n_slots, .ctx = ctx, .n_ring = n_ring, .planted = -1, .accept = -1};
    const int64_t n = n_slots, window[] = {n_slots, (int64_t)ctx + 1};
    const struct {
        const char *name;
        sk_role role;
        int32_t dtype;
        int32_t rank;
        int64_t dim[2];
        int32_t *out;
    } bufs[] = {
        {"round.ring", SK_ROLE_CONTROL, SK_U8, 2, {n_ring, sizeof(sk_ctl_entry)}, &rb.ring},
        {"round.done", SK_ROLE_CONTROL, SK_U8, 2, {n_ring, sizeof(sk_done)}, &rb.done},
        {"round.number", SK_ROLE_CONTROL, SK_I64, 1, {1, 0}, &rb.round},
        {"round.control", SK_ROLE_CONTROL, SK_U8, 1, {sizeof(sk_ctl_entry), 0}, &rb.ctl},
        {"round.requests", SK_ROLE_CONTROL, SK_U8, 2, {n, sizeof(sk_request)}, &rb.requests},
        {"round.kept", SK_ROLE_CONTROL, SK_I32, 1, {n, 0}, &rb.kept},
        {"round.slots", SK_ROLE_STATE, SK_U8, 2, {n, sizeof(sk_slot)}, &rb.slots},
        {"round.counters", SK_ROLE_STATE, SK_U8, 2, {n, sizeof(sk_counters)}, &rb.counters},
        {"round.tokens", SK_ROLE_STATE, SK_I32, 2, {window[0], window[1]}, &rb.tokens},
        {"round.pending", SK_ROLE_PENDING, SK_U8, 2, {n, sizeof(sk_pending)}, &rb.pending},
    };
    for (size_t i = 0; i < SK_COUNT(bufs); i++)
        SK_TRY(sk_space_add(sp, bufs[i].name, bufs[i].role, bufs[i].dtype, bufs[i].rank,
                            bufs[i].dim, bufs[i].out, st));
    sk_space_keep(sp, rb.tokens, SK_KEEP_ROWS, 1); // positions 0 .. n: the anchor is known too
    if (drafter->kind == SK_DRAFTER_PLANTED || drafter->replaced) {
        SK_TRY(
            sk_space_add(sp, "round.planted", SK_ROLE_CONTROL, SK_I32, 2, window, &rb.planted, st));
        SK_TRY(sk_space_add(sp, "round.planted_accept", SK_ROLE_CONTROL, SK_I32, 1,
                            (int64_t[]){SK_PLANTED_CYCLE}, &rb.accept, st));
    }
    *out = rb;
    return SK_OK;
}

void sk_round_begin(sk_builder *b, const sk_round_bufs *rb)
{
    ARGS(ctl_read, r);
    ARGS(commit, c);
    sk_b_at(b, "round");
    b->stage = SK_STAGE_CONTROL;
    r.ring = sk_b_buf(b, rb->ring);
    r.round = sk_b_buf(b, rb->round);
    r.ctl = sk_b_buf(b, rb->ctl);
    sk_b_step(b, SK_OP_ctl_read, &r);

    b->stage = SK_STAGE_COMMIT;
    c.ctl = r.ctl;
    c.slots = sk_b_buf(b, rb->slots);
    c.pending = sk_b_buf(b, rb->pending);
    c.counters = sk_b_buf(b, rb->counters);
    c.tokens = sk_b_buf(b, rb->tokens);
    c.kept = sk_b_buf(b, rb->kept);
    sk_b_step(b, SK_OP_commit, &c);
}

static void draft_planted(sk_builder *b, const sk_round_bufs *rb, int32_t vocab,
                          const sk_round_vals *v)
{
    ARGS(draft_planted, a);
    a.slots = sk_b_buf(b, rb->slots);
    a.counters = sk_b_buf(b, rb->counters);
    a.table = sk_b_buf(b, rb->planted);
    a.accept = sk_b_buf(b, rb->accept);
    a.drafts = v->drafts;
    a.n_draft = v->n_draft;
    a.vocab = vocab;
    sk_b_step(b, SK_OP_draft_planted, &a);
}

static void draft_ngram(sk_builder *b, const sk_round_bufs *rb, const sk_drafter *d,
                        const sk_round_vals *v)
{
    ARGS(draft_ngram, a);
    a.slots = sk_b_buf(b, rb->slots);
    a.tokens = sk_b_buf(b, rb->tokens);
    a.drafts = v->drafts;
    a.n_draft = v->n_draft;
    a.n_max = d->n_max;
    a.n_min = d->n_min;
    sk_b_step(b, SK_OP_draft_ngram, &a);
}

static void draft_none(sk_builder *b, const sk_round_vals *v)
{
    ARGS(draft_none, a);
    a.drafts = v->drafts;
    a.n_draft = v->n_draft;
    sk_b_step(b, SK_OP_draft_none, &a);
}

void sk_round_draft(sk_builder *b, const sk_round_bufs *rb, const sk_drafter *d, int32_t vocab,
                    sk_round_vals *v)
{
    b->stage = SK_STAGE_DRAFT;
    sk_b_at(b, "draft");
    // A view has no empty dimension: with no drafts at all there is one unused column.
    v->drafts = sk_b_temp(b, "tokens", SK_I32, 2, (int64_t[]){rb->n_slots, sk_max_i32(1, d->k)});
    v->n_draft = sk_b_temp(b, "count", SK_I32, 1, (int64_t[]){rb->n_slots});
    switch (d->kind) {
    case SK_DRAFTER_NONE:
    case SK_DRAFTER_MTP:
    case SK_DRAFTER_COUNT:
        draft_none(b, v);
        break;
    case SK_DRAFTER_PLANTED:
        draft_planted(b, rb, vocab, v);
        break;
    case SK_DRAFTER_NGRAM:
        draft_ngram(b, rb, d, v);
        break;
    }
    sk_b_result(b, v->drafts); // Engine.draft reads them
    sk_b_result(b, v->n_draft);
}

void sk_round_replant(sk_builder *b, const sk_round_bufs *rb, const sk_drafter *d, int32_t vocab,
                      const sk_round_vals *v)
{
    if (!d->replaced || d->kind == SK_DRAFTER_PLANTED) return;
    sk_b_at(b, "draft");
    draft_planted(b, rb, vocab, v);
}

void sk_round_rows(sk_builder *b, const sk_round_bufs *rb, int32_t width, sk_round_vals *v)
{
    ARGS(round_rows, a);
    b->stage = SK_STAGE_VERIFY;
    sk_b_at(b, "rows");
    a.ctl = sk_b_buf(b, rb->ctl);
    a.slots = sk_b_buf(b, rb->slots);
    a.requests = sk_b_buf(b, rb->requests);
    a.pending = sk_b_buf(b, rb->pending);
    a.drafts = v->drafts;
    a.n_draft = v->n_draft;
    a.rows = sk_b_temp(b, "table", SK_I32, 2, (int64_t[]){b->n_rows, 3});
    a.ids = sk_b_temp(b, "ids", SK_I32, 1, (int64_t[]){b->n_rows});
    a.count = sk_b_temp(b, "count", SK_I32, 1, (int64_t[]){1});
    a.span = sk_b_temp(b, "span", SK_I32, 2, (int64_t[]){rb->n_slots, 2});
    a.width = width;
    a.ctx = rb->ctx;
    sk_b_step(b, SK_OP_round_rows, &a);
    b->rows = a.rows;
    b->count = a.count;
    v->ids = a.ids;
    v->span = a.span;
}

void sk_round_end(sk_builder *b, const sk_round_bufs *rb, const sk_round_vals *v, sk_view chosen)
{
    ARGS(accept, a);
    ARGS(publish, p);
    b->stage = SK_STAGE_ACCEPT;
    sk_b_at(b, "round");
    a.slots = sk_b_buf(b, rb->slots);
    a.requests = sk_b_buf(b, rb->requests);
    a.drafts = v->drafts;
    a.n_draft = v->n_draft;
    a.span = v->span;
    a.chosen = chosen;
    a.pending = sk_b_buf(b, rb->pending);
    a.ctx = rb->ctx;
    sk_b_step(b, SK_OP_accept, &a);

    b->stage = SK_STAGE_PUBLISH;
    p.ctl = sk_b_buf(b, rb->ctl);
    p.slots = a.slots;
    p.pending = a.pending;
    p.kept = sk_b_buf(b, rb->kept);
    p.span = v->span;
    p.round = sk_b_buf(b, rb->round);
    p.ring = sk_b_buf(b, rb->done);
    sk_b_step(b, SK_OP_publish, &p);
}
