/* Contract checks of block-sparse attention and of routing. */
#include "op/check.h"

static void check_index_append(const sk_index_append_args *a, sk_checker *c)
{
    const sk_view *k = &a->k;
    const sk_view *raw = &a->raw;
    sk_want_i32(c, "ratio", a->ratio, 1, INT32_MAX);
    if (c->rc != SK_OK) return;
    sk_want(c, "k", k, SK_TYPES_F32, 2, SK_ANY, SK_ANY, 0, 0);
    sk_want(c, "gain", &a->gain, SK_TYPES_F32, 1, k->dim[1], 0, 0, 0);
    sk_want_freq(c, &a->freq, k->dim[1]);
    sk_want_rows(c, &a->rows, k->dim[0]);
    sk_want_count(c, &a->count);
    sk_want(c, "raw", raw, SK_TYPES_ACT, 3, SK_ANY, SK_ANY, k->dim[1], 0);
    sk_want(c, "pooled", &a->pooled, SK_TYPES_ACT, 3, raw->dim[0],
            (raw->dim[1] + a->ratio - 1) / a->ratio, k->dim[1], 0);
    sk_want_type(c, "pooled", &a->pooled, "raw", raw);
    sk_want_eps(c, a->eps);
}

static void check_block_topk(const sk_block_topk_args *a, sk_checker *c)
{
    const sk_view *q = &a->q;
    sk_want(c, "q", q, SK_TYPES_ACT, 3, SK_ANY, SK_ANY, SK_ANY, 0);
    sk_want(c, "pooled", &a->pooled, SK_TYPES_ACT, 3, SK_ANY, SK_ANY, q->dim[2], 0);
    sk_want_type(c, "pooled", &a->pooled, "q", q);
    sk_want_rows(c, &a->rows, q->dim[0]);
    sk_want_count(c, &a->count);
    sk_want(c, "out", &a->out, SK_TYPES_I32, 2, q->dim[0], SK_ANY, 0, 0);
    sk_want_finite(c, "scale", a->scale);
    sk_want_i32(c, "ratio", a->ratio, 1, INT32_MAX);
}

static void check_attend_blocks(const sk_attend_blocks_args *a, sk_checker *c)
{
    const sk_view *q = &a->q;
    sk_want(c, "q", q, SK_TYPES_ACT, 3, SK_ANY, SK_ANY, SK_ANY, 0);
    if (sk_view_present(&a->gate))
        sk_want(c, "gate", &a->gate, SK_TYPES_F32, 3, q->dim[0], q->dim[1], q->dim[2], 0);
    sk_want(c, "blocks", &a->blocks, SK_TYPES_I32, 2, q->dim[0], SK_ANY, 0, 0);
    sk_want_attention(c, &SK_ATTENTION_OF(a));
    sk_want_type(c, "v_cache", &a->v_cache, "q", q);
    sk_want_i32(c, "ratio", a->ratio, 1, INT32_MAX);
}

static void check_route_topk(const sk_route_topk_args *a, sk_checker *c)
{
    const sk_view *logits = &a->logits;
    const sk_view *ids = &a->ids;
    sk_want(c, "logits", logits, SK_TYPES_F32, 2, SK_ANY, SK_ANY, 0, 0);
    sk_want_count(c, &a->count);
    sk_want(c, "ids", ids, SK_TYPES_I32, 2, logits->dim[0], SK_ANY, 0, 0);
    if (c->rc == SK_OK && ids->dim[1] > logits->dim[1])
        sk_break(c, "ids", "expected at most the %lld of logits in a row, found %lld",
                 (long long)logits->dim[1], (long long)ids->dim[1]);
    sk_want(c, "weight", &a->weight, SK_TYPES_F32, 2, ids->dim[0], ids->dim[1], 0, 0);
    sk_want_i32(c, "normed", a->normed, 0, 1);
}

static void check_route_force(const sk_route_force_args *a, sk_checker *c)
{
    const sk_view *ids = &a->ids;
    sk_want(c, "ids", ids, SK_TYPES_I32, 2, SK_ANY, SK_ANY, 0, 0);
    sk_want(c, "table", &a->table, SK_TYPES_I32, 2, SK_ANY, ids->dim[1], 0, 0);
    sk_want_rows(c, &a->rows, ids->dim[0]);
    sk_want_count(c, &a->count);
    sk_want_i32(c, "stride", a->stride, 0, SK_FORCE_STRIDE_MAX);
}

static void check_gate_add(const sk_gate_add_args *a, sk_checker *c)
{
    sk_want(c, "x", &a->x, SK_TYPES_F32, 2, SK_ANY, SK_ANY, 0, 0);
    sk_want(c, "gate", &a->gate, SK_TYPES_F32, 2, a->x.dim[0], 1, 0, 0);
    sk_want_count(c, &a->count);
    sk_want(c, "y", &a->y, SK_TYPES_F32, 2, a->x.dim[0], a->x.dim[1], 0, 0);
}

bool sk_check_sparse_op(enum sk_op op, const void *args, sk_checker *c)
{
    switch (op) {
    case SK_OP_index_append:
        check_index_append(args, c);
        return true;
    case SK_OP_block_topk:
        check_block_topk(args, c);
        return true;
    case SK_OP_attend_blocks:
        check_attend_blocks(args, c);
        return true;
    case SK_OP_route_topk:
        check_route_topk(args, c);
        return true;
    case SK_OP_route_force:
        check_route_force(args, c);
        return true;
    case SK_OP_gate_add:
        check_gate_add(args, c);
        return true;
    default:
        return false;
    }
}
