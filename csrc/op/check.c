/* Contract checks: what holds for the views of every op, and the ops that compute on rows. The
 * fused ops are in check_fused.c, those of experts in check_experts.c, those that run the round in
 * check_round.c.
 *
 * All checks work on unbound views (buffer numbers and offsets), so a plan is verified once, before
 * it has addresses, for all backends alike. */
#include "op/check.h"

#include "base/quant.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- reporting ------------------------------------------------------------------------------- */

void sk_break(sk_checker *c, const char *field, const char *fmt, ...)
{
    char text[SK_STATUS_MSG / 2];
    va_list ap;
    if (c->rc != SK_OK) return;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    c->rc = SK_FAIL(c->st, SK_INVALID, "%s: %s: %s", c->op, field, text);
}

static const char *types_text(sk_types types)
{
    switch (types) {
    case SK_TYPES_F32:
        return "F32";
    case SK_TYPES_I32:
        return "I32";
    case SK_TYPES_I64:
        return "I64";
    case SK_TYPES_U8:
        return "U8";
    case SK_TYPES_ACT:
        return "BF16 or F32";
    case SK_TYPES_WEIGHT:
        return "of a weight type";
    }
    return "?";
}

static bool types_have(sk_types types, int32_t dtype)
{
    switch (types) {
    case SK_TYPES_F32:
        return dtype == SK_F32;
    case SK_TYPES_I32:
        return dtype == SK_I32;
    case SK_TYPES_I64:
        return dtype == SK_I64;
    case SK_TYPES_U8:
        return dtype == SK_U8;
    case SK_TYPES_ACT:
        return dtype == SK_BF16 || dtype == SK_F32;
    case SK_TYPES_WEIGHT:
        return sk_dtype_is_weight(dtype);
    }
    return false;
}

/* "[*, 576]" */
static const char *shape_text(char *out, size_t room, int32_t rank, const int64_t *dim)
{
    size_t used = 0;
    out[0] = '\0';
    for (int32_t i = 0; i < rank && i < SK_VIEW_DIMS && used < room; i++) {
        const char *before = i == 0 ? "[" : ", ";
        int n = dim[i] == SK_ANY
                    ? snprintf(out + used, room - used, "%s*", before)
                    : snprintf(out + used, room - used, "%s%lld", before, (long long)dim[i]);
        used += n > 0 ? (size_t)n : 0;
    }
    if (used < room) (void)snprintf(out + used, room - used, "%s", rank > 0 ? "]" : "[]");
    return out;
}

/* ---- expectations ---------------------------------------------------------------------------- */

void sk_want(sk_checker *c, const char *field, const sk_view *v, sk_types types, int32_t rank,
             int64_t d0, int64_t d1, int64_t d2, int64_t d3)
{
    const int64_t want[SK_VIEW_DIMS] = {d0, d1, d2, d3};
    char expected[96];
    char found[96];
    bool same = v->rank == rank && types_have(types, v->dtype);
    if (c->rc != SK_OK) return;
    for (int32_t i = 0; same && i < rank; i++) same = want[i] == SK_ANY || want[i] == v->dim[i];
    if (same) return;
    sk_break(c, field, "expected %s %s, found %s %s",
             shape_text(expected, sizeof expected, rank, want), types_text(types),
             shape_text(found, sizeof found, v->rank, v->dim), sk_dtype_name(v->dtype));
}

void sk_want_type(sk_checker *c, const char *field, const sk_view *v, const char *as,
                  const sk_view *other)
{
    if (c->rc != SK_OK || v->dtype == other->dtype) return;
    sk_break(c, field, "expected %s as %s, found %s", sk_dtype_name(other->dtype), as,
             sk_dtype_name(v->dtype));
}

void sk_want_structs(sk_checker *c, const char *field, const sk_view *v, int64_t rows, size_t bytes,
                     size_t align)
{
    if (rows == 0)
        sk_want(c, field, v, SK_TYPES_U8, 1, (int64_t)bytes, 0, 0, 0);
    else
        sk_want(c, field, v, SK_TYPES_U8, 2, rows, (int64_t)bytes, 0, 0);
    if (c->rc != SK_OK) return;
    if (v->off % align != 0 || (v->rank > 1 && v->stride[0] % (int64_t)align != 0))
        sk_break(c, field,
                 "expected structures aligned to %zu bytes, found offset %llu, stride %lld", align,
                 (unsigned long long)v->off, (long long)(v->rank > 1 ? v->stride[0] : 0));
}

void sk_want_i32(sk_checker *c, const char *field, int32_t x, int32_t lowest, int32_t highest)
{
    if (c->rc != SK_OK || (x >= lowest && x <= highest)) return;
    if (highest == INT32_MAX)
        sk_break(c, field, "expected at least %d, found %d", lowest, x);
    else
        sk_break(c, field, "expected %d .. %d, found %d", lowest, highest, x);
}

/* ---- what holds for every view --------------------------------------------------------------- */

/* Bytes of the part of a view below dimension `from`. The view has passed check_view. */
static uint64_t inner_span(const sk_view *v, int32_t from)
{
    uint64_t span = 0;
    (void)sk_dtype_row_bytes(v->dtype, (uint64_t)v->dim[v->rank - 1], &span);
    for (int32_t i = v->rank - 2; i >= from; i--)
        span += (uint64_t)(v->dim[i] - 1) * (uint64_t)v->stride[i];
    return span;
}

/* Of caches, [B, C, heads, D], and of rows whose heads may be apart, [P, heads, D], the second
 * dimension may be spread out too. */
static int32_t first_dense_dim(const sk_field *f, const sk_view *v)
{
    return v->rank == 4 || (v->rank == 3 && f->mode & SK_APART) ? 2 : 1;
}

static void check_strides(sk_checker *c, const sk_field *f, const sk_view *v)
{
    const char *field = f->name;
    for (int32_t i = v->rank - 2; i >= 0; i--) {
        uint64_t below = inner_span(v, i + 1);
        bool dense = i >= first_dense_dim(f, v);
        if (dense ? (uint64_t)v->stride[i] == below : (uint64_t)v->stride[i] >= below) continue;
        sk_break(c, field, "expected a stride of dimension %d of %s %llu bytes, found %lld", i,
                 dense ? "exactly" : "at least", (unsigned long long)below,
                 (long long)v->stride[i]);
        return;
    }
}

static uint64_t elem_align(int32_t dtype)
{
    const sk_dtype_info *info = sk_dtype_find(dtype);
    return info && info->block_elems == 1 ? (uint64_t)info->block_bytes : 1;
}

static void check_view(sk_checker *c, const sk_field *f, const sk_view *v)
{
    const char *field = f->name;
    uint64_t span;
    uint64_t end;
    uint64_t align;
    if (c->rc != SK_OK) return;
    if (!sk_dtype_find(v->dtype)) {
        sk_break(c, field, "expected a known type, found type id %d", v->dtype);
        return;
    }
    if (v->rank < 1 || v->rank > SK_VIEW_DIMS) {
        sk_break(c, field, "expected rank 1 .. %d, found %d", SK_VIEW_DIMS, v->rank);
        return;
    }
    if (!sk_view_span(v, &span) || !sk_add_u64(v->off, span, &end)) {
        char shape[96];
        sk_break(c, field,
                 "expected positive dimensions, whole blocks and a span below 2^64, "
                 "found %s %s",
                 shape_text(shape, sizeof shape, v->rank, v->dim), sk_dtype_name(v->dtype));
        return;
    }
    for (int32_t i = 0; i < v->rank; i++) {
        if (v->dim[i] <= INT32_MAX) continue;
        sk_break(c, field, "expected dimensions below 2^31, found %lld", (long long)v->dim[i]);
        return;
    }
    check_strides(c, f, v);
    align = elem_align(v->dtype);
    if (v->off % align != 0) {
        sk_break(c, field, "expected an offset that is a multiple of %llu, found %llu",
                 (unsigned long long)align, (unsigned long long)v->off);
        return;
    }
    for (int32_t i = 0; i < v->rank - 1; i++) {
        if ((uint64_t)v->stride[i] % align == 0) continue;
        sk_break(c, field, "expected strides that are multiples of %llu, found %lld",
                 (unsigned long long)align, (long long)v->stride[i]);
        return;
    }
}

/* Do two views share a byte? Exact for spans that are apart and for slices of the same packed rows;
 * otherwise intersecting spans count as overlap. */
static bool overlap(const sk_view *a, const sk_view *b)
{
    uint64_t stride;
    uint64_t shift;
    if (a->buf != b->buf) return false;
    if (a->off + inner_span(a, 0) <= b->off || b->off + inner_span(b, 0) <= a->off) return false;
    if (a->rank < 2 || b->rank < 2 || a->stride[0] != b->stride[0]) return true;
    stride = (uint64_t)a->stride[0];
    shift = b->off >= a->off ? (b->off - a->off) % stride
                             : (stride - (a->off - b->off) % stride) % stride;
    return shift < inner_span(a, 1) || shift + inner_span(b, 1) > stride;
}

static void check_overlaps(sk_checker *c, const sk_op_desc *desc, const void *args)
{
    for (const sk_field *w = desc->fields; w->kind != SK_FIELD_END; w++) {
        const sk_view *written = sk_field_view_const(args, w);
        if (w->kind != SK_FIELD_VIEW || !(w->mode & SK_WRITE) || !sk_view_present(written))
            continue;
        for (const sk_field *f = desc->fields; f->kind != SK_FIELD_END; f++) {
            const sk_view *other = sk_field_view_const(args, f);
            if (f == w || f->kind != SK_FIELD_VIEW || !sk_view_present(other)) continue;
            if (!overlap(written, other)) continue;
            sk_break(c, w->name, "expected no overlap with %s, found both in buffer %d", f->name,
                     written->buf);
            return;
        }
    }
}

/* ---- ops that compute on rows ---------------------------------------------------------------- */

void sk_want_count(sk_checker *c, const sk_view *count)
{
    sk_want(c, "count", count, SK_TYPES_I32, 1, 1, 0, 0, 0);
}

void sk_want_rows(sk_checker *c, const sk_view *rows, int64_t capacity)
{
    sk_want(c, "rows", rows, SK_TYPES_I32, 2, capacity, 3, 0, 0);
}

void sk_want_freq(sk_checker *c, const sk_view *freq, int64_t dim)
{
    sk_want(c, "freq", freq, SK_TYPES_F32, 1, SK_ANY, 0, 0, 0);
    if (c->rc == SK_OK && 2 * freq->dim[0] > dim)
        sk_break(c, "freq", "expected at most %lld frequencies for heads of %lld, found %lld",
                 (long long)(dim / 2), (long long)dim, (long long)freq->dim[0]);
}

void sk_want_finite(sk_checker *c, const char *field, float x)
{
    if (!isfinite(x)) sk_break(c, field, "expected a finite number, found %g", (double)x);
}

void sk_want_eps(sk_checker *c, float eps)
{
    if (!isfinite(eps) || eps <= 0)
        sk_break(c, "eps", "expected a finite number above 0, found %g", (double)eps);
}

static void check_gather_rows(const sk_gather_rows_args *a, sk_checker *c)
{
    sk_want(c, "table", &a->table, SK_TYPES_WEIGHT, 2, SK_ANY, SK_ANY, 0, 0);
    sk_want(c, "ids", &a->ids, SK_TYPES_I32, 1, SK_ANY, 0, 0, 0);
    sk_want_count(c, &a->count);
    sk_want(c, "out", &a->out, SK_TYPES_F32, 2, a->ids.dim[0], a->table.dim[1], 0, 0);
    sk_want_finite(c, "scale", a->scale);
}

static void check_rms_norm(const sk_rms_norm_args *a, sk_checker *c)
{
    const sk_view *x = &a->x;
    int32_t rank = x->rank == 3 ? 3 : 2;
    sk_want(c, "x", x, SK_TYPES_F32, rank, SK_ANY, SK_ANY, SK_ANY, 0);
    if (c->rc != SK_OK) return;
    sk_want(c, "gain", &a->gain, SK_TYPES_F32, 1, x->dim[rank - 1], 0, 0, 0);
    sk_want_count(c, &a->count);
    sk_want(c, "out", &a->out, SK_TYPES_ACT, rank, x->dim[0], x->dim[1], x->dim[2], 0);
    sk_want_eps(c, a->eps);
}

static int64_t blocks(int64_t n, int32_t each) { return (n + each - 1) / each; }

/* Name of a segment's field. */
typedef struct field_name {
    char text[24];
} field_name;

static field_name name_of(const sk_segment *s, const char *field)
{
    field_name n;
    if (s->index < 0)
        (void)snprintf(n.text, sizeof n.text, "%s", field);
    else
        (void)snprintf(n.text, sizeof n.text, "%s[%d]", field, s->index);
    return n;
}

static void want_scale(sk_checker *c, const sk_segment *s, int64_t k)
{
    const int32_t group = sk_quant_group_elems((sk_dtype)s->w->dtype);
    sk_want_i32(c, name_of(s, "scale_n").text, s->scale_n, 1, INT32_MAX);
    sk_want_i32(c, name_of(s, "scale_k").text, s->scale_k, 1, INT32_MAX);
    if (c->rc != SK_OK) return;
    if (s->scale_k < k && s->scale_k % group != 0)
        sk_break(c, name_of(s, "scale_k").text,
                 "expected a multiple of the group of %d, or at least %lld, found %d", group,
                 (long long)k, s->scale_k);
    sk_want(c, name_of(s, "scale").text, s->scale, SK_TYPES_F32, 2,
            blocks(s->w->dim[0], s->scale_n), blocks(k, s->scale_k), 0, 0);
}

/* Is an optional companion of the segment's weight there, as it may be? */
static bool belongs(sk_checker *c, const sk_segment *s, const char *field, const sk_view *v)
{
    if (!sk_view_present(v)) return false;
    if (!sk_view_present(s->w))
        sk_break(c, name_of(s, field).text, "expected no view, as %s is absent",
                 name_of(s, "w").text);
    return c->rc == SK_OK;
}

void sk_want_segment(sk_checker *c, const sk_segment *s, const sk_view *x)
{
    const bool present = sk_view_present(s->w);
    if (present)
        sk_want(c, name_of(s, "w").text, s->w, SK_TYPES_WEIGHT, 2, SK_ANY, x->dim[1], 0, 0);
    if (s->y && sk_view_present(s->y) != present)
        sk_break(c, name_of(s, "y").text, "expected %s, as %s is %s",
                 present ? "a view" : "no view", name_of(s, "w").text,
                 present ? "present" : "absent");
    if (s->y && present && s->parts)
        sk_want(c, name_of(s, "y").text, s->y, SK_TYPES_F32, 3, s->parts, x->dim[0], s->w->dim[0],
                0);
    else if (s->y && present)
        sk_want(c, name_of(s, "y").text, s->y, SK_TYPES_F32, 2, x->dim[0], s->w->dim[0], 0, 0);
    if (belongs(c, s, "scale", s->scale))
        want_scale(c, s, x->dim[1]);
    else if (s->scale_n != 0 || s->scale_k != 0)
        sk_break(c, name_of(s, "scale").text,
                 "expected a view, as scale_n and scale_k are given, found none");
    if (belongs(c, s, "bias", s->bias))
        sk_want(c, name_of(s, "bias").text, s->bias, SK_TYPES_F32, 1, s->w->dim[0], 0, 0, 0);
}

void sk_want_segments(sk_checker *c, const sk_segments *all)
{
    for (int32_t i = 0; i < SK_LINEAR_SEGS; i++) {
        const sk_segment s = {.index = i,
                              .w = &all->w[i],
                              .bias = &all->bias[i],
                              .scale = &all->scale[i],
                              .y = &all->y[i],
                              .scale_n = all->scale_n[i],
                              .scale_k = all->scale_k[i],
                              .parts = all->parts};
        if (i > 0 && sk_view_present(s.w) && !sk_view_present(s.w - 1))
            sk_break(c, name_of(&s, "w").text,
                     "expected segments without a gap, found none before this one");
        sk_want_segment(c, &s, all->x);
    }
}

static void check_linear(const sk_linear_args *a, sk_checker *c)
{
    sk_want(c, "x", &a->x, SK_TYPES_ACT, 2, SK_ANY, SK_ANY, 0, 0);
    sk_want_count(c, &a->count);
    sk_want_segments(c, &(sk_segments){.x = &a->x,
                                       .w = a->w,
                                       .bias = a->bias,
                                       .scale = a->scale,
                                       .y = a->y,
                                       .scale_n = a->scale_n,
                                       .scale_k = a->scale_k});
}

static void check_rope(const sk_rope_args *a, sk_checker *c)
{
    const sk_view *x = &a->x;
    sk_want(c, "x", x, SK_TYPES_F32, 3, SK_ANY, SK_ANY, SK_ANY, 0);
    sk_want_freq(c, &a->freq, x->dim[2]);
    sk_want_rows(c, &a->rows, x->dim[0]);
    sk_want_count(c, &a->count);
    sk_want(c, "out", &a->out, SK_TYPES_ACT, 3, x->dim[0], x->dim[1], x->dim[2], 0);
    sk_want_i32(c, "neox", a->neox, 0, 1);
}

static void check_kv_append(const sk_kv_append_args *a, sk_checker *c)
{
    const sk_view *k = &a->k;
    sk_want(c, "k", k, SK_TYPES_ACT, 3, SK_ANY, SK_ANY, SK_ANY, 0);
    sk_want(c, "v", &a->v, SK_TYPES_ACT, 3, k->dim[0], k->dim[1], k->dim[2], 0);
    sk_want_rows(c, &a->rows, k->dim[0]);
    sk_want_count(c, &a->count);
    sk_want(c, "k_cache", &a->k_cache, SK_TYPES_ACT, 4, SK_ANY, SK_ANY, k->dim[1], k->dim[2]);
    sk_want(c, "v_cache", &a->v_cache, SK_TYPES_ACT, 4, a->k_cache.dim[0], a->k_cache.dim[1],
            k->dim[1], k->dim[2]);
    sk_want_type(c, "v_cache", &a->v_cache, "k_cache", &a->k_cache);
    // A BF16 row in an F32 cache would be a rounding that mode f32 does not have.
    if (k->dtype != SK_F32) sk_want_type(c, "k", k, "k_cache", &a->k_cache);
    if (a->v.dtype != SK_F32) sk_want_type(c, "v", &a->v, "v_cache", &a->v_cache);
}

void sk_want_attention(sk_checker *c, const sk_attention *a)
{
    const sk_view *q = a->q, *k = a->k_cache;
    sk_want(c, "k_cache", k, SK_TYPES_ACT, 4, SK_ANY, SK_ANY, SK_ANY, q->dim[2]);
    sk_want_type(c, "k_cache", k, "q", q);
    if (c->rc == SK_OK && q->dim[1] % k->dim[2] != 0)
        sk_break(c, "k_cache", "expected heads that divide the %lld of q, found %lld",
                 (long long)q->dim[1], (long long)k->dim[2]);
    sk_want(c, "v_cache", a->v_cache, SK_TYPES_ACT, 4, k->dim[0], k->dim[1], k->dim[2], k->dim[3]);
    sk_want_rows(c, a->rows, q->dim[0]);
    sk_want_count(c, a->count);
    sk_want(c, "out", a->out, SK_TYPES_ACT, 3, q->dim[0], q->dim[1], q->dim[2], 0);
    sk_want_type(c, "out", a->out, "q", q);
    sk_want_finite(c, "scale", a->scale);
    sk_want_i32(c, "split", a->split, 1, INT32_MAX);
}

static void check_attend(const sk_attend_args *a, sk_checker *c)
{
    sk_want(c, "q", &a->q, SK_TYPES_ACT, 3, SK_ANY, SK_ANY, SK_ANY, 0);
    sk_want_attention(c, &SK_ATTENTION_OF(a));
    sk_want_type(c, "v_cache", &a->v_cache, "k_cache", &a->k_cache);
    sk_want_i32(c, "window", a->window, 0, INT32_MAX);
}

static void check_add(const sk_add_args *a, sk_checker *c)
{
    sk_want(c, "x", &a->x, SK_TYPES_F32, 2, SK_ANY, SK_ANY, 0, 0);
    sk_want_count(c, &a->count);
    sk_want(c, "y", &a->y, SK_TYPES_F32, 2, a->x.dim[0], a->x.dim[1], 0, 0);
}

static void check_copy_rows(const sk_copy_rows_args *a, sk_checker *c)
{
    sk_want(c, "x", &a->x, SK_TYPES_F32, 2, SK_ANY, SK_ANY, 0, 0);
    sk_want_count(c, &a->count);
    sk_want(c, "out", &a->out, SK_TYPES_F32, 2, a->x.dim[0], a->x.dim[1], 0, 0);
}

static void check_gated(const sk_view *gate, const sk_view *up, const sk_view *count,
                        const sk_view *out, sk_checker *c)
{
    sk_want(c, "gate", gate, SK_TYPES_F32, 2, SK_ANY, SK_ANY, 0, 0);
    sk_want(c, "up", up, SK_TYPES_F32, 2, gate->dim[0], gate->dim[1], 0, 0);
    sk_want_count(c, count);
    sk_want(c, "out", out, SK_TYPES_ACT, 2, gate->dim[0], gate->dim[1], 0, 0);
}

static void check_silu_mul(const sk_silu_mul_args *a, sk_checker *c)
{
    check_gated(&a->gate, &a->up, &a->count, &a->out, c);
}

static void check_gelu_mul(const sk_gelu_mul_args *a, sk_checker *c)
{
    check_gated(&a->gate, &a->up, &a->count, &a->out, c);
}

static void check_argmax(const sk_argmax_args *a, sk_checker *c)
{
    sk_want(c, "x", &a->x, SK_TYPES_F32, 2, SK_ANY, SK_ANY, 0, 0);
    sk_want_count(c, &a->count);
    sk_want(c, "id", &a->id, SK_TYPES_I32, 1, a->x.dim[0], 0, 0, 0);
}

/* False: not one of these ops. */
static bool check_rows_op(enum sk_op op, const void *args, sk_checker *c)
{
    switch (op) {
    case SK_OP_gather_rows:
        check_gather_rows(args, c);
        return true;
    case SK_OP_rms_norm:
        check_rms_norm(args, c);
        return true;
    case SK_OP_linear:
        check_linear(args, c);
        return true;
    case SK_OP_rope:
        check_rope(args, c);
        return true;
    case SK_OP_kv_append:
        check_kv_append(args, c);
        return true;
    case SK_OP_attend:
        check_attend(args, c);
        return true;
    case SK_OP_add:
        check_add(args, c);
        return true;
    case SK_OP_copy_rows:
        check_copy_rows(args, c);
        return true;
    case SK_OP_silu_mul:
        check_silu_mul(args, c);
        return true;
    case SK_OP_gelu_mul:
        check_gelu_mul(args, c);
        return true;
    case SK_OP_argmax:
        check_argmax(args, c);
        return true;
    default:
        return false;
    }
}

sk_code sk_op_check(enum sk_op op, const void *args, sk_status *st)
{
    sk_checker c = {.st = st, .rc = SK_OK};
    const sk_op_desc *desc;
    if ((int)op < 0 || op >= SK_OP_COUNT)
        return SK_FAIL(st, SK_INVALID, "op: expected a number below %d, found %d", SK_OP_COUNT,
                       (int)op);
    desc = &sk_ops[op];
    c.op = desc->name;
    for (const sk_field *f = desc->fields; f->kind != SK_FIELD_END; f++) {
        const sk_view *v = sk_field_view_const(args, f);
        if (f->kind != SK_FIELD_VIEW) continue;
        if (sk_view_present(v))
            check_view(&c, f, v);
        else if (!(f->mode & SK_OPTIONAL))
            sk_break(&c, f->name, "expected a view, found none");
    }
    if (c.rc == SK_OK && !check_rows_op(op, args, &c) && !sk_check_fused_op(op, args, &c) &&
        !sk_check_experts_op(op, args, &c) && !sk_check_recurrent_op(op, args, &c) &&
        !sk_check_streams_op(op, args, &c) && !sk_check_sparse_op(op, args, &c))
        sk_check_round_op(op, args, &c);
    if (c.rc == SK_OK) check_overlaps(&c, desc, args);
    return c.rc;
}
