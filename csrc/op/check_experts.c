/* Contract checks of the ops of a mixture's experts. */
#include "op/check.h"

#include <stdalign.h>

static void want_list(sk_checker *c, const sk_view *list, const sk_view *n, int64_t routes)
{
    sk_want_structs(c, "list", list, routes, sizeof(sk_route_entry), alignof(sk_route_entry));
    sk_want(c, "n", n, SK_TYPES_I32, 1, 1, 0, 0, 0);
}

static void want_at(sk_checker *c, const char *field, const sk_view *at, const sk_view *w)
{
    if (sk_view_present(at)) sk_want(c, field, at, SK_TYPES_I64, 1, w->dim[0], 0, 0, 0);
}

static void check_route_list(const sk_route_list_args *a, sk_checker *c)
{
    const sk_view *ids = &a->ids;
    sk_want(c, "ids", ids, SK_TYPES_I32, 2, SK_ANY, SK_ANY, 0, 0);
    sk_want_count(c, &a->count);
    want_list(c, &a->list, &a->n, ids->dim[0] * ids->dim[1]);
}

static void check_expert_glu(const sk_expert_glu_args *a, sk_checker *c)
{
    const sk_view *x = &a->x;
    const sk_view *gate = &a->w[0];
    sk_want(c, "x", x, SK_TYPES_ACT, 2, SK_ANY, SK_ANY, 0, 0);
    sk_want(c, "w[0]", gate, SK_TYPES_WEIGHT, 3, SK_ANY, SK_ANY, x->dim[1], 0);
    sk_want(c, "w[1]", &a->w[1], SK_TYPES_WEIGHT, 3, gate->dim[0], gate->dim[1], x->dim[1], 0);
    want_at(c, "at[0]", &a->at[0], gate);
    want_at(c, "at[1]", &a->at[1], gate);
    sk_want(c, "out", &a->out, SK_TYPES_ACT, 2, SK_ANY, gate->dim[1], 0, 0);
    sk_want_type(c, "out", &a->out, "x", x);
    if (c->rc == SK_OK && a->out.dim[0] % x->dim[0] != 0)
        sk_break(c, "out", "expected routes that are a multiple of the %lld rows of x, found %lld",
                 (long long)x->dim[0], (long long)a->out.dim[0]);
    want_list(c, &a->list, &a->n, a->out.dim[0]);
    sk_want_i32(c, "gelu", a->gelu, 0, 1);
}

static void check_expert_linear(const sk_expert_linear_args *a, sk_checker *c)
{
    const sk_view *x = &a->x;
    sk_want(c, "x", x, SK_TYPES_ACT, 2, SK_ANY, SK_ANY, 0, 0);
    want_list(c, &a->list, &a->n, x->dim[0]);
    sk_want(c, "w", &a->w, SK_TYPES_WEIGHT, 3, SK_ANY, SK_ANY, x->dim[1], 0);
    want_at(c, "at", &a->at, &a->w);
    sk_want(c, "y", &a->y, SK_TYPES_F32, 2, x->dim[0], a->w.dim[1], 0, 0);
}

static void check_expert_sum(const sk_expert_sum_args *a, sk_checker *c)
{
    const sk_view *weight = &a->weight;
    sk_want(c, "weight", weight, SK_TYPES_F32, 2, SK_ANY, SK_ANY, 0, 0);
    sk_want(c, "x", &a->x, SK_TYPES_F32, 2, weight->dim[0] * weight->dim[1], SK_ANY, 0, 0);
    sk_want_count(c, &a->count);
    sk_want(c, "y", &a->y, SK_TYPES_F32, 2, weight->dim[0], a->x.dim[1], 0, 0);
}

bool sk_check_experts_op(enum sk_op op, const void *args, sk_checker *c)
{
    switch (op) {
    case SK_OP_route_list:
        check_route_list(args, c);
        return true;
    case SK_OP_expert_glu:
        check_expert_glu(args, c);
        return true;
    case SK_OP_expert_linear:
        check_expert_linear(args, c);
        return true;
    case SK_OP_expert_sum:
        check_expert_sum(args, c);
        return true;
    default:
        return false;
    }
}
