/* Contract checks of streams, hashed embeddings and the draft head. */
#include "op/check.h"

/* Streams of rows, and what is one row of numbers for all of them. */
static void want_streams(sk_checker *c, const char *field, const sk_view *v, int64_t rows)
{
    sk_want(c, field, v, SK_TYPES_F32, 3, rows, SK_ANY, SK_ANY, 0);
}

static void want_gain(sk_checker *c, const char *field, const sk_view *v, const sk_view *s)
{
    sk_want(c, field, v, SK_TYPES_F32, 1, s->dim[1] * s->dim[2], 0, 0, 0);
}

/* A view that is there exactly when something else is. */
static void want_present(sk_checker *c, const char *field, const sk_view *v, bool present,
                         const char *as)
{
    if (sk_view_present(v) == present) return;
    sk_break(c, field, "expected %s, as %s", present ? "a view" : "no view", as);
}

/* ---- streams --------------------------------------------------------------------------------- */

static void check_onto_streams(const sk_view *x, const sk_view *count, const sk_view *s,
                               sk_checker *c)
{
    sk_want(c, "x", x, SK_TYPES_F32, 2, SK_ANY, SK_ANY, 0, 0);
    sk_want_count(c, count);
    sk_want(c, "s", s, SK_TYPES_F32, 3, x->dim[0], SK_ANY, x->dim[1], 0);
}

static void check_stream_copy(const sk_stream_copy_args *a, sk_checker *c)
{
    check_onto_streams(&a->x, &a->count, &a->s, c);
}

static void check_stream_add(const sk_stream_add_args *a, sk_checker *c)
{
    check_onto_streams(&a->x, &a->count, &a->s, c);
}

static void check_hyper_down(const sk_hyper_down_args *a, sk_checker *c)
{
    const sk_view *s = &a->s;
    const bool injects = sk_view_present(&a->w[1]);
    want_streams(c, "s", s, SK_ANY);
    want_gain(c, "gain", &a->gain, s);
    sk_want_count(c, &a->count);
    sk_want(c, "w[0]", &a->w[0], SK_TYPES_WEIGHT, 2, SK_ANY, s->dim[1] * s->dim[2], 0, 0);
    if (injects)
        sk_want(c, "w[1]", &a->w[1], SK_TYPES_WEIGHT, 2, s->dim[1], s->dim[1] * s->dim[2], 0, 0);
    sk_want(c, "low", &a->low, SK_TYPES_ACT, 2, s->dim[0], a->w[0].dim[0], 0, 0);
    sk_want(c, "factor", &a->factor, SK_TYPES_F32, 2, s->dim[0], s->dim[1], 0, 0);
    want_present(c, "inject", &a->inject, injects, injects ? "w[1] is present" : "w[1] is absent");
    if (injects) sk_want(c, "inject", &a->inject, SK_TYPES_F32, 2, s->dim[0], s->dim[1], 0, 0);
    sk_want_eps(c, a->eps);
}

static void check_hyper_mix(const sk_hyper_mix_args *a, sk_checker *c)
{
    const sk_view *low = &a->low;
    const sk_view *s = &a->s;
    sk_want(c, "low", low, SK_TYPES_ACT, 2, SK_ANY, SK_ANY, 0, 0);
    want_streams(c, "s", s, low->dim[0]);
    sk_want(c, "w", &a->w, SK_TYPES_WEIGHT, 2, s->dim[1] * s->dim[2], low->dim[1], 0, 0);
    sk_want(c, "factor", &a->factor, SK_TYPES_F32, 2, s->dim[0], s->dim[1], 0, 0);
    want_gain(c, "gain", &a->gain, s);
    sk_want_count(c, &a->count);
    sk_want(c, "out", &a->out, SK_TYPES_ACT, 2, s->dim[0], s->dim[2], 0, 0);
    sk_want_type(c, "out", &a->out, "low", low);
}

static void check_hyper_inject(const sk_hyper_inject_args *a, sk_checker *c)
{
    const sk_view *x = &a->x;
    sk_want(c, "x", x, SK_TYPES_F32, 2, SK_ANY, SK_ANY, 0, 0);
    sk_want(c, "inject", &a->inject, SK_TYPES_F32, 2, x->dim[0], SK_ANY, 0, 0);
    sk_want_count(c, &a->count);
    sk_want(c, "s", &a->s, SK_TYPES_F32, 3, x->dim[0], a->inject.dim[1], x->dim[1], 0);
}

/* ---- hashed embeddings ----------------------------------------------------------------------- */

static void check_ngram_rows(const sk_ngram_rows_args *a, sk_checker *c)
{
    const int64_t orders = a->mult.dim[0] - 1;
    const int64_t heads = a->size.dim[0];
    sk_want(c, "ids", &a->ids, SK_TYPES_I32, 1, SK_ANY, 0, 0, 0);
    sk_want_window(c, "tokens", &a->tokens, SK_ANY);
    sk_want_rows(c, &a->rows, a->ids.dim[0]);
    sk_want_count(c, &a->count);
    sk_want(c, "mult", &a->mult, SK_TYPES_I64, 1, SK_ANY, 0, 0, 0);
    if (c->rc == SK_OK && orders < 1)
        sk_break(c, "mult", "expected at least 2 multipliers, found %lld",
                 (long long)a->mult.dim[0]);
    sk_want(c, "size", &a->size, SK_TYPES_I64, 1, SK_ANY, 0, 0, 0);
    if (c->rc == SK_OK && heads % orders != 0)
        sk_break(c, "size", "expected heads that are a multiple of the %lld orders, found %lld",
                 (long long)orders, (long long)heads);
    sk_want(c, "offset", &a->offset, SK_TYPES_I64, 1, heads, 0, 0, 0);
    sk_want(c, "out", &a->out, SK_TYPES_I32, 2, a->ids.dim[0], heads, 0, 0);
    sk_want_i32(c, "eos", a->eos, 0, INT32_MAX);
}

static void check_gather_heads(const sk_gather_heads_args *a, sk_checker *c)
{
    const sk_view *table = &a->table;
    const sk_view *ids = &a->ids;
    sk_want(c, "table", table, SK_TYPES_WEIGHT, 2, SK_ANY, SK_ANY, 0, 0);
    if (sk_view_present(&a->piece))
        sk_want_i32(c, "piece_rows", a->piece_rows, 1, INT32_MAX);
    else if (a->piece_rows != 0)
        sk_break(c, "piece", "expected a view, as piece_rows is given, found none");
    if (c->rc == SK_OK && sk_view_present(&a->piece))
        sk_want(c, "piece", &a->piece, SK_TYPES_I64, 1,
                (table->dim[0] + a->piece_rows - 1) / a->piece_rows, 0, 0, 0);
    sk_want(c, "ids", ids, SK_TYPES_I32, 2, SK_ANY, SK_ANY, 0, 0);
    sk_want_count(c, &a->count);
    sk_want(c, "out", &a->out, SK_TYPES_ACT, 2, ids->dim[0], ids->dim[1] * table->dim[1], 0, 0);
    sk_want_finite(c, "scale", a->scale);
}

static void check_ple_gate(const sk_ple_gate_args *a, sk_checker *c)
{
    const sk_view *s = &a->s;
    const int64_t wide = s->dim[1] * s->dim[2];
    want_streams(c, "s", s, SK_ANY);
    sk_want(c, "key", &a->key, SK_TYPES_F32, 2, s->dim[0], wide, 0, 0);
    sk_want(c, "value", &a->value, SK_TYPES_F32, 2, s->dim[0], s->dim[2], 0, 0);
    want_gain(c, "key_gain", &a->key_gain, s);
    want_gain(c, "query_gain", &a->query_gain, s);
    want_gain(c, "conv_gain", &a->conv_gain, s);
    sk_want_count(c, &a->count);
    sk_want(c, "y", &a->y, SK_TYPES_F32, 2, s->dim[0], wide, 0, 0);
    sk_want(c, "normed", &a->normed, SK_TYPES_F32, 2, s->dim[0], wide, 0, 0);
    sk_want_eps(c, a->eps);
}

/* ---- draft head ------------------------------------------------------------------------------ */

static void check_draft_rows(const sk_draft_rows_args *a, sk_checker *c)
{
    const int64_t slots = a->slots.dim[0];
    sk_want_slots(c, &a->slots);
    sk_want_i32(c, "step", a->step, 0, SK_WIDTH_MAX - 2);
    want_present(c, "chosen", &a->chosen, a->step > 0,
                 a->step > 0 ? "step is above 0" : "step is 0");
    if (sk_view_present(&a->chosen))
        sk_want(c, "chosen", &a->chosen, SK_TYPES_I32, 1, slots, 0, 0, 0);
    sk_want_rows(c, &a->rows, slots);
    sk_want(c, "ids", &a->ids, SK_TYPES_I32, 1, slots, 0, 0, 0);
    sk_want_count(c, &a->count);
}

static void check_draft_put(const sk_draft_put_args *a, sk_checker *c)
{
    sk_want_rows(c, &a->rows, SK_ANY);
    sk_want_count(c, &a->count);
    sk_want(c, "chosen", &a->chosen, SK_TYPES_I32, 1, a->rows.dim[0], 0, 0, 0);
    sk_want_drafts(c, &a->drafts, &a->n_draft, a->rows.dim[0]);
    if (c->rc == SK_OK) sk_want_i32(c, "step", a->step, 0, (int32_t)a->drafts.dim[1] - 1);
}

static void check_commit_rows(const sk_commit_rows_args *a, sk_checker *c)
{
    sk_want_slots(c, &a->slots);
    sk_want(c, "kept", &a->kept, SK_TYPES_I32, 1, a->slots.dim[0], 0, 0, 0);
    sk_want_rows(c, &a->rows, SK_ANY);
    sk_want_count(c, &a->count);
}

static void check_next_ids(const sk_next_ids_args *a, sk_checker *c)
{
    sk_want_window(c, "tokens", &a->tokens, SK_ANY);
    sk_want_rows(c, &a->rows, SK_ANY);
    sk_want_count(c, &a->count);
    sk_want(c, "ids", &a->ids, SK_TYPES_I32, 1, a->rows.dim[0], 0, 0, 0);
}

static void check_mtp_join(const sk_mtp_join_args *a, sk_checker *c)
{
    const sk_view *x = &a->x;
    want_streams(c, "x", x, SK_ANY);
    sk_want(c, "e", &a->e, SK_TYPES_F32, 2, x->dim[0], x->dim[2], 0, 0);
    sk_want(c, "e_gain", &a->e_gain, SK_TYPES_F32, 1, x->dim[2], 0, 0, 0);
    want_gain(c, "gain", &a->gain, x);
    sk_want_count(c, &a->count);
    sk_want(c, "out", &a->out, SK_TYPES_ACT, 3, x->dim[0], x->dim[1], 2 * x->dim[2], 0);
    sk_want(c, "n", &a->n, SK_TYPES_I32, 1, 1, 0, 0, 0);
    sk_want_eps(c, a->eps);
    sk_want_i32(c, "whole", a->whole, 0, 1);
}

bool sk_check_streams_op(enum sk_op op, const void *args, sk_checker *c)
{
    switch (op) {
    case SK_OP_stream_copy:
        check_stream_copy(args, c);
        return true;
    case SK_OP_stream_add:
        check_stream_add(args, c);
        return true;
    case SK_OP_hyper_down:
        check_hyper_down(args, c);
        return true;
    case SK_OP_hyper_mix:
        check_hyper_mix(args, c);
        return true;
    case SK_OP_hyper_inject:
        check_hyper_inject(args, c);
        return true;
    case SK_OP_ngram_rows:
        check_ngram_rows(args, c);
        return true;
    case SK_OP_gather_heads:
        check_gather_heads(args, c);
        return true;
    case SK_OP_ple_gate:
        check_ple_gate(args, c);
        return true;
    case SK_OP_draft_rows:
        check_draft_rows(args, c);
        return true;
    case SK_OP_draft_put:
        check_draft_put(args, c);
        return true;
    case SK_OP_commit_rows:
        check_commit_rows(args, c);
        return true;
    case SK_OP_next_ids:
        check_next_ids(args, c);
        return true;
    case SK_OP_mtp_join:
        check_mtp_join(args, c);
        return true;
    default:
        return false;
    }
}
