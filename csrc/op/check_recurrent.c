/* Contract checks of rows that are kept, windows and recurrences. */
#include "op/check.h"

static void check_keep_rows(const sk_keep_rows_args *a, sk_checker *c)
{
    sk_want(c, "x", &a->x, SK_TYPES_F32, 2, SK_ANY, SK_ANY, 0, 0);
    sk_want_rows(c, &a->rows, a->x.dim[0]);
    sk_want_count(c, &a->count);
    sk_want(c, "pending", &a->pending, SK_TYPES_ACT, 3, SK_ANY, SK_ANY, a->x.dim[1], 0);
}

static void check_take_rows(const sk_take_rows_args *a, sk_checker *c)
{
    sk_want(c, "pending", &a->pending, SK_TYPES_ACT, 3, SK_ANY, SK_ANY, SK_ANY, 0);
    sk_want(c, "out", &a->out, SK_TYPES_F32, 2, SK_ANY, a->pending.dim[2], 0, 0);
    sk_want_rows(c, &a->rows, a->out.dim[0]);
    sk_want_count(c, &a->count);
}

static void check_window_commit(const sk_window_commit_args *a, sk_checker *c)
{
    const sk_view *pending = &a->pending;
    sk_want(c, "pending", pending, SK_TYPES_ACT, 3, SK_ANY, SK_ANY, SK_ANY, 0);
    sk_want(c, "kept", &a->kept, SK_TYPES_I32, 1, pending->dim[0], 0, 0, 0);
    sk_want(c, "window", &a->window, SK_TYPES_ACT, 3, pending->dim[0], SK_ANY, pending->dim[2], 0);
    sk_want_type(c, "window", &a->window, "pending", pending);
}

static void check_window_push(const sk_window_push_args *a, sk_checker *c)
{
    sk_want(c, "x", &a->x, SK_TYPES_F32, 2, SK_ANY, SK_ANY, 0, 0);
    sk_want_rows(c, &a->rows, a->x.dim[0]);
    sk_want_count(c, &a->count);
    sk_want(c, "window", &a->window, SK_TYPES_ACT, 3, SK_ANY, SK_ANY, a->x.dim[1], 0);
}

static void check_conv(const sk_conv_args *a, sk_checker *c)
{
    const sk_view *x = &a->x;
    const sk_view *taps = &a->taps;
    sk_want(c, "x", x, SK_TYPES_F32, 2, SK_ANY, SK_ANY, 0, 0);
    sk_want(c, "taps", taps, SK_TYPES_F32, 2, x->dim[1], SK_ANY, 0, 0);
    if (c->rc == SK_OK && taps->dim[1] < 2)
        sk_break(c, "taps", "expected at least 2 taps, found %lld", (long long)taps->dim[1]);
    sk_want_i32(c, "dilation", a->dilation, 1, INT32_MAX);
    sk_want(c, "window", &a->window, SK_TYPES_ACT, 3, SK_ANY, (taps->dim[1] - 1) * a->dilation,
            x->dim[1], 0);
    sk_want_rows(c, &a->rows, x->dim[0]);
    sk_want_count(c, &a->count);
    sk_want(c, "out", &a->out, SK_TYPES_F32, 2, x->dim[0], x->dim[1], 0, 0);
}

static void check_gdn_inputs(const sk_gdn_inputs_args *a, sk_checker *c)
{
    const sk_view *p = &a->c;
    const sk_view *q = &a->q;
    const int64_t hv = a->a.dim[1];
    int64_t keys; // columns of q, and of k
    int64_t both;
    sk_want(c, "c", p, SK_TYPES_F32, 2, SK_ANY, SK_ANY, 0, 0);
    sk_want(c, "a", &a->a, SK_TYPES_F32, 2, p->dim[0], SK_ANY, 0, 0);
    sk_want(c, "b", &a->b, SK_TYPES_F32, 2, p->dim[0], hv, 0, 0);
    sk_want(c, "coef", &a->coef, SK_TYPES_F32, 1, hv, 0, 0, 0);
    sk_want(c, "dt", &a->dt, SK_TYPES_F32, 1, hv, 0, 0, 0);
    sk_want_count(c, &a->count);
    sk_want(c, "q", q, SK_TYPES_F32, 3, p->dim[0], SK_ANY, SK_ANY, 0);
    if (c->rc != SK_OK) return;
    keys = q->dim[1] * q->dim[2];
    both = 2 * keys;
    if (p->dim[1] <= both || (p->dim[1] - both) % hv != 0)
        sk_break(c, "c", "expected %lld columns of q and k and a multiple of %lld of v, found %lld",
                 (long long)both, (long long)hv, (long long)p->dim[1]);
    sk_want(c, "in", &a->in, SK_TYPES_F32, 2, p->dim[0], p->dim[1] - keys + 2 * hv, 0, 0);
}

/* What gdn_step and gdn_scan have in common: all but whether m is written. */
static void check_gdn_rows(const sk_gdn_step_args *a, sk_checker *c)
{
    const sk_view *q = &a->q;
    const sk_view *m = &a->m;
    sk_want(c, "q", q, SK_TYPES_F32, 3, SK_ANY, SK_ANY, SK_ANY, 0);
    sk_want(c, "m", m, SK_TYPES_F32, 4, SK_ANY, SK_ANY, q->dim[2], SK_ANY);
    if (c->rc != SK_OK) return;
    sk_want(c, "in", &a->in, SK_TYPES_F32, 2, q->dim[0],
            q->dim[1] * q->dim[2] + m->dim[1] * m->dim[3] + 2 * m->dim[1], 0, 0);
    sk_want(c, "key", &a->key, SK_TYPES_I32, 1, m->dim[1], 0, 0, 0);
    sk_want_rows(c, &a->rows, q->dim[0]);
    sk_want_count(c, &a->count);
    sk_want(c, "out", &a->out, SK_TYPES_F32, 3, q->dim[0], m->dim[1], m->dim[3], 0);
}

static void check_gdn_scan(const sk_gdn_scan_args *a, sk_checker *c)
{
    check_gdn_rows(&(sk_gdn_step_args){a->q, a->in, a->key, a->m, a->rows, a->count, a->out}, c);
}

static void check_gdn_fold(const sk_gdn_fold_args *a, sk_checker *c)
{
    const sk_view *pending = &a->pending;
    const sk_view *m = &a->m;
    int64_t rest; // of an entry: v, decay, beta
    sk_want(c, "pending", pending, SK_TYPES_F32, 3, SK_ANY, SK_ANY, SK_ANY, 0);
    sk_want(c, "kept", &a->kept, SK_TYPES_I32, 1, pending->dim[0], 0, 0, 0);
    sk_want(c, "m", m, SK_TYPES_F32, 4, pending->dim[0], SK_ANY, SK_ANY, SK_ANY);
    if (c->rc != SK_OK) return;
    sk_want(c, "key", &a->key, SK_TYPES_I32, 1, m->dim[1], 0, 0, 0);
    rest = m->dim[1] * (m->dim[3] + 2);
    if (pending->dim[2] <= rest || (pending->dim[2] - rest) % m->dim[2] != 0)
        sk_break(c, "pending", "expected a multiple of %lld columns of k and %lld more, found %lld",
                 (long long)m->dim[2], (long long)rest, (long long)pending->dim[2]);
}

static void check_gated_norm(const sk_gated_norm_args *a, sk_checker *c)
{
    const sk_view *x = &a->x;
    sk_want(c, "x", x, SK_TYPES_F32, 3, SK_ANY, SK_ANY, SK_ANY, 0);
    if (c->rc != SK_OK) return;
    sk_want(c, "gate", &a->gate, SK_TYPES_F32, 2, x->dim[0], x->dim[1] * x->dim[2], 0, 0);
    sk_want(c, "gain", &a->gain, SK_TYPES_F32, 1, x->dim[2], 0, 0, 0);
    sk_want_count(c, &a->count);
    sk_want(c, "out", &a->out, SK_TYPES_ACT, 2, x->dim[0], x->dim[1] * x->dim[2], 0, 0);
    sk_want_eps(c, a->eps);
}

bool sk_check_recurrent_op(enum sk_op op, const void *args, sk_checker *c)
{
    switch (op) {
    case SK_OP_keep_rows:
        check_keep_rows(args, c);
        return true;
    case SK_OP_take_rows:
        check_take_rows(args, c);
        return true;
    case SK_OP_window_commit:
        check_window_commit(args, c);
        return true;
    case SK_OP_window_push:
        check_window_push(args, c);
        return true;
    case SK_OP_conv:
        check_conv(args, c);
        return true;
    case SK_OP_gdn_inputs:
        check_gdn_inputs(args, c);
        return true;
    case SK_OP_gdn_step:
        check_gdn_rows(args, c);
        return true;
    case SK_OP_gdn_scan:
        check_gdn_scan(args, c);
        return true;
    case SK_OP_gdn_fold:
        check_gdn_fold(args, c);
        return true;
    case SK_OP_gated_norm:
        check_gated_norm(args, c);
        return true;
    default:
        return false;
    }
}
