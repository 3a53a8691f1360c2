/* Contract checks of the fused ops: the rules of their parts, on the fields that are left. */
#include "op/check.h"

static void want_act(sk_checker *c, int32_t act)
{
    if (act == SK_BF16 || act == SK_F32) return;
    sk_break(c, "act", "expected BF16 or F32, found %s (type id %d)", sk_dtype_name((sk_dtype)act),
             act);
}

/* The row and the gain of a norm in front of a product. */
static void want_normed(sk_checker *c, const sk_view *x, const sk_view *gain, const sk_view *count)
{
    sk_want(c, "x", x, SK_TYPES_F32, 2, SK_ANY, SK_ANY, 0, 0);
    sk_want(c, "gain", gain, SK_TYPES_F32, 1, x->dim[1], 0, 0, 0);
    sk_want_count(c, count);
}

static void check_norm_linear(const sk_norm_linear_args *a, sk_checker *c)
{
    want_normed(c, &a->x, &a->gain, &a->count);
    sk_want_segments(c, &(sk_segments){.x = &a->x,
                                       .w = a->w,
                                       .bias = a->bias,
                                       .scale = a->scale,
                                       .y = a->y,
                                       .scale_n = a->scale_n,
                                       .scale_k = a->scale_k});
    sk_want_eps(c, a->eps);
    want_act(c, a->act);
}

static void check_norm_glu(const sk_norm_glu_args *a, sk_checker *c)
{
    want_normed(c, &a->x, &a->gain, &a->count);
    for (int32_t i = 0; i < 2; i++)
        sk_want_segment(c,
                        &(sk_segment){.index = i,
                                      .w = &a->w[i],
                                      .bias = &a->bias[i],
                                      .scale = &a->scale[i],
                                      .scale_n = a->scale_n[i],
                                      .scale_k = a->scale_k[i]},
                        &a->x);
    sk_want(c, "w[1]", &a->w[1], SK_TYPES_WEIGHT, 2, a->w[0].dim[0], a->x.dim[1], 0, 0);
    sk_want(c, "out", &a->out, SK_TYPES_ACT, 2, a->x.dim[0], a->w[0].dim[0], 0, 0);
    sk_want_eps(c, a->eps);
    sk_want_i32(c, "gelu", a->gelu, 0, 1);
}

/* The weight of an op that has one, with what belongs to it; its output is the caller's. */
#define ONLY_SEGMENT(a)                                                                            \
    {                                                                                              \
        .index = -1, .w = &(a)->w, .bias = &(a)->bias, .scale = &(a)->scale,                       \
        .scale_n = (a)->scale_n, .scale_k = (a)->scale_k                                           \
    }

static void check_linear_add(const sk_linear_add_args *a, sk_checker *c)
{
    sk_want(c, "x", &a->x, SK_TYPES_ACT, 2, SK_ANY, SK_ANY, 0, 0);
    sk_want_count(c, &a->count);
    sk_segment only = ONLY_SEGMENT(a);
    only.y = &a->y;
    sk_want_segment(c, &only, &a->x);
}

#define PARTS_MAX 32
#define PART_COLS 256 // a part is a multiple of: no block of any type is longer

static void check_linear_parts(const sk_linear_parts_args *a, sk_checker *c)
{
    static const sk_view none[SK_LINEAR_SEGS] = {SK_VIEW_NONE, SK_VIEW_NONE, SK_VIEW_NONE,
                                                 SK_VIEW_NONE};
    static const int32_t zero[SK_LINEAR_SEGS];
    const int64_t parts = a->y[0].dim[0];
    sk_want(c, "x", &a->x, SK_TYPES_ACT, 2, SK_ANY, SK_ANY, 0, 0);
    sk_want_count(c, &a->count);
    sk_want(c, "y[0]", &a->y[0], SK_TYPES_F32, 3, SK_ANY, a->x.dim[0], SK_ANY, 0);
    if (c->rc == SK_OK && parts > PARTS_MAX)
        sk_break(c, "y[0]", "expected 1 .. %d parts, found %lld", PARTS_MAX, (long long)parts);
    if (c->rc == SK_OK && a->x.dim[1] % (parts * PART_COLS) != 0)
        sk_break(c, "x",
                 "expected a multiple of %d columns in each of %lld parts, found %lld in all",
                 PART_COLS, (long long)parts, (long long)a->x.dim[1]);
    sk_want_segments(c, &(sk_segments){.x = &a->x,
                                       .w = a->w,
                                       .bias = none,
                                       .scale = none,
                                       .y = a->y,
                                       .scale_n = zero,
                                       .scale_k = zero,
                                       .parts = parts});
}

static void check_norm_add(const sk_norm_add_args *a, sk_checker *c)
{
    want_normed(c, &a->x, &a->gain, &a->count);
    sk_want(c, "y", &a->y, SK_TYPES_F32, 2, a->x.dim[0], a->x.dim[1], 0, 0);
    sk_want_eps(c, a->eps);
}

static void check_norm_argmax(const sk_norm_argmax_args *a, sk_checker *c)
{
    want_normed(c, &a->x, &a->gain, &a->count);
    const sk_segment only = ONLY_SEGMENT(a);
    sk_want_segment(c, &only, &a->x);
    sk_want(c, "id", &a->id, SK_TYPES_I32, 1, a->x.dim[0], 0, 0, 0);
    sk_want_eps(c, a->eps);
    want_act(c, a->act);
}

static void check_linear_argmax(const sk_linear_argmax_args *a, sk_checker *c)
{
    sk_want(c, "x", &a->x, SK_TYPES_ACT, 2, SK_ANY, SK_ANY, 0, 0);
    sk_want_count(c, &a->count);
    const sk_segment only = ONLY_SEGMENT(a);
    sk_want_segment(c, &only, &a->x);
    sk_want(c, "id", &a->id, SK_TYPES_I32, 1, a->x.dim[0], 0, 0, 0);
}

static void check_rope_attend(const sk_rope_attend_args *a, sk_checker *c)
{
    const sk_view *q = &a->q;
    const sk_view *k = &a->k;
    const sk_view *cache = &a->k_cache;
    const bool normed = sk_view_present(&a->q_norm) || sk_view_present(&a->k_norm);
    sk_want(c, "q", q, SK_TYPES_F32, 3, SK_ANY, SK_ANY, SK_ANY, 0);
    sk_want(c, "k", k, SK_TYPES_F32, 3, q->dim[0], SK_ANY, q->dim[2], 0);
    if (c->rc == SK_OK && q->dim[1] % k->dim[1] != 0)
        sk_break(c, "k", "expected heads that divide the %lld of q, found %lld",
                 (long long)q->dim[1], (long long)k->dim[1]);
    sk_want(c, "v", &a->v, SK_TYPES_F32, 3, k->dim[0], k->dim[1], k->dim[2], 0);
    if (sk_view_present(&a->q_norm))
        sk_want(c, "q_norm", &a->q_norm, SK_TYPES_F32, 1, q->dim[2], 0, 0, 0);
    if (sk_view_present(&a->k_norm))
        sk_want(c, "k_norm", &a->k_norm, SK_TYPES_F32, 1, q->dim[2], 0, 0, 0);
    sk_want_freq(c, &a->freq, q->dim[2]);
    sk_want_rows(c, &a->rows, q->dim[0]);
    sk_want_count(c, &a->count);
    sk_want(c, "k_cache", cache, SK_TYPES_ACT, 4, SK_ANY, SK_ANY, k->dim[1], k->dim[2]);
    sk_want(c, "v_cache", &a->v_cache, SK_TYPES_ACT, 4, cache->dim[0], cache->dim[1], k->dim[1],
            k->dim[2]);
    sk_want_type(c, "v_cache", &a->v_cache, "k_cache", cache);
    sk_want(c, "out", &a->out, SK_TYPES_ACT, 3, q->dim[0], q->dim[1], q->dim[2], 0);
    sk_want_type(c, "out", &a->out, "k_cache", cache);
    if (normed) sk_want_eps(c, a->eps);
    sk_want_finite(c, "scale", a->scale);
    sk_want_i32(c, "window", a->window, 0, INT32_MAX);
    sk_want_i32(c, "split", a->split, 1, INT32_MAX);
    sk_want_i32(c, "neox", a->neox, 0, 1);
}

bool sk_check_fused_op(enum sk_op op, const void *args, sk_checker *c)
{
    switch (op) {
    case SK_OP_norm_linear:
        check_norm_linear(args, c);
        return true;
    case SK_OP_norm_glu:
        check_norm_glu(args, c);
        return true;
    case SK_OP_linear_add:
        check_linear_add(args, c);
        return true;
    case SK_OP_linear_parts:
        check_linear_parts(args, c);
        return true;
    case SK_OP_norm_add:
        check_norm_add(args, c);
        return true;
    case SK_OP_norm_argmax:
        check_norm_argmax(args, c);
        return true;
    case SK_OP_linear_argmax:
        check_linear_argmax(args, c);
        return true;
    case SK_OP_rope_attend:
        check_rope_attend(args, c);
        return true;
    default:
        return false;
    }
}
