/* Contract checks of the ops that run the round: control ring, commit, drafters, row table, accept,
 * completion ring. */
#include "op/check.h"

#include <stdalign.h>

static void want_ctl(sk_checker *c, const sk_view *v)
{
    sk_want_structs(c, "ctl", v, 0, sizeof(sk_ctl_entry), alignof(sk_ctl_entry));
}

/* The number of slots is that of `slots`, and no more than the control entry has room for. */
void sk_want_slots(sk_checker *c, const sk_view *v)
{
    sk_want_structs(c, "slots", v, SK_ANY, sizeof(sk_slot), alignof(sk_slot));
    if (c->rc == SK_OK && v->dim[0] > SK_SLOTS_MAX)
        sk_break(c, "slots", "expected at most %d slots, found %lld", SK_SLOTS_MAX,
                 (long long)v->dim[0]);
}

static void want_pending(sk_checker *c, const sk_view *v, int64_t slots)
{
    sk_want_structs(c, "pending", v, slots, sizeof(sk_pending), alignof(sk_pending));
}

static void want_requests(sk_checker *c, const sk_view *v, int64_t slots)
{
    sk_want_structs(c, "requests", v, slots, sizeof(sk_request), alignof(sk_request));
}

static void want_counters(sk_checker *c, const sk_view *v, int64_t slots)
{
    sk_want_structs(c, "counters", v, slots, sizeof(sk_counters), alignof(sk_counters));
}

/* K proposals a slot: 1 .. SK_WIDTH_MAX - 1. */
void sk_want_drafts(sk_checker *c, const sk_view *drafts, const sk_view *n_draft, int64_t slots)
{
    sk_want(c, "drafts", drafts, SK_TYPES_I32, 2, slots, SK_ANY, 0, 0);
    if (c->rc == SK_OK && drafts->dim[1] > SK_WIDTH_MAX - 1)
        sk_break(c, "drafts", "expected at most %d proposals, found %lld", SK_WIDTH_MAX - 1,
                 (long long)drafts->dim[1]);
    sk_want(c, "n_draft", n_draft, SK_TYPES_I32, 1, drafts->dim[0], 0, 0, 0);
}

/* I32 [B, C+1] with C >= 1. */
void sk_want_window(sk_checker *c, const char *field, const sk_view *v, int64_t slots)
{
    sk_want(c, field, v, SK_TYPES_I32, 2, slots, SK_ANY, 0, 0);
    if (c->rc == SK_OK && v->dim[1] < 2)
        sk_break(c, field, "expected at least 2 positions, found %lld", (long long)v->dim[1]);
}

static void want_span(sk_checker *c, const sk_view *v, int64_t slots)
{
    sk_want(c, "span", v, SK_TYPES_I32, 2, slots, 2, 0, 0);
}

static void check_ctl_read(const sk_ctl_read_args *a, sk_checker *c)
{
    sk_want_structs(c, "ring", &a->ring, SK_ANY, sizeof(sk_ctl_entry), alignof(sk_ctl_entry));
    sk_want(c, "round", &a->round, SK_TYPES_I64, 1, 1, 0, 0, 0);
    want_ctl(c, &a->ctl);
}

static void check_commit(const sk_commit_args *a, sk_checker *c)
{
    int64_t slots = a->slots.dim[0];
    want_ctl(c, &a->ctl);
    sk_want_slots(c, &a->slots);
    want_pending(c, &a->pending, slots);
    want_counters(c, &a->counters, slots);
    sk_want_window(c, "tokens", &a->tokens, slots);
    sk_want(c, "kept", &a->kept, SK_TYPES_I32, 1, slots, 0, 0, 0);
}

static void check_draft_none(const sk_draft_none_args *a, sk_checker *c)
{
    sk_want_drafts(c, &a->drafts, &a->n_draft, SK_ANY);
}

static void check_draft_planted(const sk_draft_planted_args *a, sk_checker *c)
{
    int64_t slots = a->slots.dim[0];
    sk_want_slots(c, &a->slots);
    want_counters(c, &a->counters, slots);
    sk_want_window(c, "table", &a->table, slots);
    sk_want(c, "accept", &a->accept, SK_TYPES_I32, 1, SK_ANY, 0, 0, 0);
    sk_want_drafts(c, &a->drafts, &a->n_draft, slots);
    sk_want_i32(c, "vocab", a->vocab, 1, INT32_MAX);
}

static void check_draft_ngram(const sk_draft_ngram_args *a, sk_checker *c)
{
    int64_t slots = a->slots.dim[0];
    sk_want_slots(c, &a->slots);
    sk_want_window(c, "tokens", &a->tokens, slots);
    sk_want_drafts(c, &a->drafts, &a->n_draft, slots);
    sk_want_i32(c, "n_min", a->n_min, 1, INT32_MAX);
    sk_want_i32(c, "n_max", a->n_max, a->n_min, INT32_MAX);
}

static void check_round_rows(const sk_round_rows_args *a, sk_checker *c)
{
    int64_t slots = a->slots.dim[0];
    int64_t capacity = a->rows.dim[0];
    want_ctl(c, &a->ctl);
    sk_want_slots(c, &a->slots);
    want_requests(c, &a->requests, slots);
    want_pending(c, &a->pending, slots);
    sk_want_drafts(c, &a->drafts, &a->n_draft, slots);
    sk_want(c, "rows", &a->rows, SK_TYPES_I32, 2, SK_ANY, 3, 0, 0);
    sk_want(c, "ids", &a->ids, SK_TYPES_I32, 1, capacity, 0, 0, 0);
    sk_want(c, "count", &a->count, SK_TYPES_I32, 1, 1, 0, 0, 0);
    want_span(c, &a->span, slots);
    sk_want_i32(c, "width", a->width, 1, SK_WIDTH_MAX);
    if (c->rc == SK_OK && a->width - 1 > a->drafts.dim[1])
        sk_break(c, "width", "expected at most %lld with %lld drafts, found %d",
                 (long long)a->drafts.dim[1] + 1, (long long)a->drafts.dim[1], a->width);
    if (c->rc == SK_OK && capacity < a->width)
        sk_break(c, "rows", "expected room for a width of %d, found %lld rows", a->width,
                 (long long)capacity);
    sk_want_i32(c, "ctx", a->ctx, 1, INT32_MAX);
}

static void check_accept(const sk_accept_args *a, sk_checker *c)
{
    int64_t slots = a->slots.dim[0];
    sk_want_slots(c, &a->slots);
    want_requests(c, &a->requests, slots);
    sk_want_drafts(c, &a->drafts, &a->n_draft, slots);
    want_span(c, &a->span, slots);
    sk_want(c, "chosen", &a->chosen, SK_TYPES_I32, 1, SK_ANY, 0, 0, 0);
    want_pending(c, &a->pending, slots);
    sk_want_i32(c, "ctx", a->ctx, 1, INT32_MAX);
}

static void check_publish(const sk_publish_args *a, sk_checker *c)
{
    int64_t slots = a->slots.dim[0];
    want_ctl(c, &a->ctl);
    sk_want_slots(c, &a->slots);
    want_pending(c, &a->pending, slots);
    sk_want(c, "kept", &a->kept, SK_TYPES_I32, 1, slots, 0, 0, 0);
    want_span(c, &a->span, slots);
    sk_want(c, "round", &a->round, SK_TYPES_I64, 1, 1, 0, 0, 0);
    sk_want_structs(c, "ring", &a->ring, SK_ANY, sizeof(sk_done), alignof(sk_done));
}

void sk_check_round_op(enum sk_op op, const void *args, sk_checker *c)
{
    switch (op) {
    case SK_OP_ctl_read:
        check_ctl_read(args, c);
        break;
    case SK_OP_commit:
        check_commit(args, c);
        break;
    case SK_OP_draft_none:
        check_draft_none(args, c);
        break;
    case SK_OP_draft_planted:
        check_draft_planted(args, c);
        break;
    case SK_OP_draft_ngram:
        check_draft_ngram(args, c);
        break;
    case SK_OP_round_rows:
        check_round_rows(args, c);
        break;
    case SK_OP_accept:
        check_accept(args, c);
        break;
    case SK_OP_publish:
        check_publish(args, c);
        break;
    default:
        sk_break(c, "op", "expected one with a contract check, found number %d", (int)op);
    }
}
