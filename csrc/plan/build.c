/* See build.h. */
#include "plan/build.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const sk_view absent = SK_VIEW_NONE;

void sk_b_init(sk_builder *b, sk_space *space, sk_plan *plan, sk_dtype act, int32_t n_rows,
               sk_status *st)
{
    memset(b, 0, sizeof *b);
    b->space = space;
    b->plan = plan;
    b->act = act;
    b->n_rows = n_rows;
    b->st = st;
    b->rows = absent;
    b->count = absent;
}

sk_code sk_b_finish(sk_builder *b)
{
    if (b->rc == SK_OK) b->rc = sk_plan_finish(b->plan, b->st);
    return b->rc;
}

void sk_b_at(sk_builder *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(b->label, sizeof b->label, fmt, ap);
    va_end(ap);
}

sk_view sk_b_buf(sk_builder *b, int32_t buf)
{
    if (b->rc != SK_OK || buf < 0) return absent;
    return sk_space_view(b->space, buf);
}

sk_view sk_b_temp(sk_builder *b, const char *name, sk_dtype type, int32_t rank, const int64_t *dim)
{
    char full[SK_NAME_MAX];
    int32_t buf;
    if (b->rc != SK_OK) return absent;
    (void)snprintf(full, sizeof full, "%s.%s", b->label, name);
    b->rc = sk_space_add(b->space, full, SK_ROLE_TRANSIENT, type, rank, dim, &buf, b->st);
    return sk_b_buf(b, buf);
}

static sk_view rows_of(sk_builder *b, const char *name, sk_dtype type, int64_t n)
{
    return sk_b_temp(b, name, type, 2, (int64_t[]){b->n_rows, n});
}

static sk_view like(sk_builder *b, const char *name, sk_dtype type, const sk_view *x)
{
    return sk_b_temp(b, name, type, x->rank, x->dim);
}

sk_view sk_b_heads(sk_view x, int32_t n_head)
{
    sk_view v = x;
    if (x.rank != 2 || n_head < 1 || x.dim[1] % n_head) return absent;
    v.rank = 3;
    v.dim[1] = n_head;
    v.dim[2] = x.dim[1] / n_head;
    v.stride[0] = x.stride[0];
    v.stride[1] = sk_view_dense(0, x.dtype, 2, (int64_t[]){n_head, v.dim[2]}).stride[0];
    return v;
}

sk_view sk_b_flat(sk_view x)
{
    sk_view v = x;
    if (x.rank != 3) return absent;
    v.rank = 2;
    v.dim[1] = x.dim[1] * x.dim[2];
    v.dim[2] = 0;
    v.stride[1] = 0;
    return v;
}

void sk_b_step(sk_builder *b, enum sk_op op, const void *args)
{
    if (b->rc == SK_OK)
        b->rc = sk_plan_append(b->plan, op, args, b->stage, b->branch, b->label, b->st);
}

int32_t sk_b_fork(sk_builder *b)
{
    if (b->rc == SK_OK) b->rc = sk_plan_fork(b->plan, &b->branch, b->st);
    return b->branch;
}

void sk_b_main(sk_builder *b) { b->branch = 0; }

void sk_b_join(sk_builder *b, int32_t branch)
{
    if (b->rc == SK_OK) b->rc = sk_plan_join(b->plan, branch, b->st);
}

void sk_b_result(sk_builder *b, sk_view v)
{
    if (b->rc == SK_OK) b->rc = sk_plan_result(b->plan, v.buf, b->st);
}

/* Declares `a`, the argument struct of `op`, with all views absent. */
#define ARGS(op, a)                                                                                \
    sk_##op##_args a;                                                                              \
    sk_args_clear(SK_OP_##op, &(a))

sk_view sk_b_gather_rows(sk_builder *b, int32_t table, sk_view ids, float scale)
{
    ARGS(gather_rows, a);
    a.table = sk_b_buf(b, table);
    a.ids = ids;
    a.count = b->count;
    a.out = rows_of(b, "x", SK_F32, a.table.dim[1]);
    a.scale = scale;
    sk_b_step(b, SK_OP_gather_rows, &a);
    return a.out;
}

sk_view sk_b_rms_norm(sk_builder *b, sk_view x, int32_t gain, float eps, sk_dtype out)
{
    ARGS(rms_norm, a);
    a.x = x;
    a.gain = sk_b_buf(b, gain);
    a.count = b->count;
    a.out = like(b, "norm", out, &x);
    a.eps = eps;
    sk_b_step(b, SK_OP_rms_norm, &a);
    return a.out;
}

/* Where one weight of a product and what belongs to it go. */
typedef struct segment {
    sk_view *w, *bias, *scale;
    int32_t *scale_n, *scale_k;
} segment;

static void set_segment(sk_builder *b, segment to, const sk_lin *from)
{
    *to.w = sk_b_buf(b, from->w);
    *to.bias = sk_b_buf(b, from->bias);
    if (from->scale_n < 1) return;
    *to.scale = sk_b_buf(b, from->scale);
    *to.scale_n = from->scale_n;
    *to.scale_k = from->scale_k;
}

/* The segment of index i, where the fields are arrays. */
#define SEGMENT(a, i)                                                                              \
    ((segment){&(a).w[i], &(a).bias[i], &(a).scale[i], &(a).scale_n[i], &(a).scale_k[i]})
#define ONLY_SEGMENT(a) ((segment){&(a).w, &(a).bias, &(a).scale, &(a).scale_n, &(a).scale_k})

void sk_b_linear(sk_builder *b, sk_view x, const sk_lin *seg, int32_t n_seg, sk_view *out)
{
    ARGS(linear, a);
    a.x = x;
    a.count = b->count;
    for (int32_t i = 0; i < n_seg; i++) {
        set_segment(b, SEGMENT(a, i), &seg[i]);
        a.y[i] = rows_of(b, "y", SK_F32, a.w[i].dim[0]);
        out[i] = a.y[i];
    }
    sk_b_step(b, SK_OP_linear, &a);
}

sk_view sk_b_rope(sk_builder *b, sk_view x, int32_t freq, bool neox)
{
    ARGS(rope, a);
    a.x = x;
    a.freq = sk_b_buf(b, freq);
    a.rows = b->rows;
    a.count = b->count;
    a.out = like(b, "rope", b->act, &x);
    a.neox = neox;
    sk_b_step(b, SK_OP_rope, &a);
    return a.out;
}

void sk_b_kv_append(sk_builder *b, sk_view k, sk_view v, int32_t k_cache, int32_t v_cache)
{
    ARGS(kv_append, a);
    a.k = k;
    a.v = v;
    a.rows = b->rows;
    a.count = b->count;
    a.k_cache = sk_b_buf(b, k_cache);
    a.v_cache = sk_b_buf(b, v_cache);
    sk_b_step(b, SK_OP_kv_append, &a);
}

sk_view sk_b_attend(sk_builder *b, sk_view q, int32_t k_cache, int32_t v_cache, float scale,
                    int32_t window)
{
    ARGS(attend, a);
    a.q = q;
    a.k_cache = sk_b_buf(b, k_cache);
    a.v_cache = sk_b_buf(b, v_cache);
    a.rows = b->rows;
    a.count = b->count;
    a.out = like(b, "attend", b->act, &q);
    a.scale = scale;
    a.window = window;
    a.split = SK_ATTEND_SPLIT;
    sk_b_step(b, SK_OP_attend, &a);
    return a.out;
}

void sk_b_add(sk_builder *b, sk_view y, sk_view x)
{
    ARGS(add, a);
    a.x = x;
    a.count = b->count;
    a.y = y;
    sk_b_step(b, SK_OP_add, &a);
}

sk_view sk_b_silu_mul(sk_builder *b, sk_view gate, sk_view up)
{
    ARGS(silu_mul, a);
    a.gate = gate;
    a.up = up;
    a.count = b->count;
    a.out = like(b, "hidden", b->act, &gate);
    sk_b_step(b, SK_OP_silu_mul, &a);
    return a.out;
}

sk_view sk_b_gelu_mul(sk_builder *b, sk_view gate, sk_view up)
{
    ARGS(gelu_mul, a);
    a.gate = gate;
    a.up = up;
    a.count = b->count;
    a.out = like(b, "hidden", b->act, &gate);
    sk_b_step(b, SK_OP_gelu_mul, &a);
    return a.out;
}

sk_view sk_b_argmax(sk_builder *b, sk_view x)
{
    ARGS(argmax, a);
    a.x = x;
    a.count = b->count;
    a.id = sk_b_temp(b, "id", SK_I32, 1, (int64_t[]){b->n_rows});
    sk_b_step(b, SK_OP_argmax, &a);
    return a.id;
}

sk_view sk_b_copy_rows(sk_builder *b, sk_view x)
{
    ARGS(copy_rows, a);
    a.x = x;
    a.count = b->count;
    a.out = like(b, "copy", SK_F32, &x);
    sk_b_step(b, SK_OP_copy_rows, &a);
    return a.out;
}

/* ---- fused ops ------------------------------------------------------------------------------- */

void sk_b_norm_linear(sk_builder *b, sk_view x, sk_norm norm, const sk_lin *seg, int32_t n_seg,
                      sk_view *out)
{
    ARGS(norm_linear, a);
    a.x = x;
    a.gain = sk_b_buf(b, norm.gain);
    a.count = b->count;
    for (int32_t i = 0; i < n_seg; i++) {
        set_segment(b, SEGMENT(a, i), &seg[i]);
        a.y[i] = rows_of(b, "y", SK_F32, a.w[i].dim[0]);
        out[i] = a.y[i];
    }
    a.eps = norm.eps;
    a.act = b->act;
    sk_b_step(b, SK_OP_norm_linear, &a);
}

sk_view sk_b_norm_glu(sk_builder *b, sk_view x, sk_norm norm, const sk_lin *gate_up, bool gelu)
{
    ARGS(norm_glu, a);
    a.x = x;
    a.gain = sk_b_buf(b, norm.gain);
    a.count = b->count;
    for (int32_t i = 0; i < 2; i++) set_segment(b, SEGMENT(a, i), &gate_up[i]);
    a.out = rows_of(b, "hidden", b->act, a.w[0].dim[0]);
    a.eps = norm.eps;
    a.gelu = gelu;
    sk_b_step(b, SK_OP_norm_glu, &a);
    return a.out;
}

void sk_b_linear_add(sk_builder *b, sk_view y, sk_view x, const sk_lin *w)
{
    ARGS(linear_add, a);
    a.x = x;
    a.count = b->count;
    set_segment(b, ONLY_SEGMENT(a), w);
    a.y = y;
    sk_b_step(b, SK_OP_linear_add, &a);
}

void sk_b_norm_add(sk_builder *b, sk_view y, sk_view x, sk_norm norm)
{
    ARGS(norm_add, a);
    a.x = x;
    a.gain = sk_b_buf(b, norm.gain);
    a.count = b->count;
    a.y = y;
    a.eps = norm.eps;
    sk_b_step(b, SK_OP_norm_add, &a);
}

sk_view sk_b_norm_argmax(sk_builder *b, sk_view x, sk_norm norm, const sk_lin *w)
{
    ARGS(norm_argmax, a);
    a.x = x;
    a.gain = sk_b_buf(b, norm.gain);
    a.count = b->count;
    set_segment(b, ONLY_SEGMENT(a), w);
    a.id = sk_b_temp(b, "id", SK_I32, 1, (int64_t[]){b->n_rows});
    a.eps = norm.eps;
    a.act = b->act;
    sk_b_step(b, SK_OP_norm_argmax, &a);
    return a.id;
}

sk_view sk_b_rope_attend(sk_builder *b, sk_view q, sk_view k, sk_view v, const sk_attention *at)
{
    ARGS(rope_attend, a);
    a.q = q;
    a.k = k;
    a.v = v;
    a.q_norm = sk_b_buf(b, at->q_norm);
    a.k_norm = sk_b_buf(b, at->k_norm);
    a.freq = sk_b_buf(b, at->freq);
    a.rows = b->rows;
    a.count = b->count;
    a.k_cache = sk_b_buf(b, at->k_cache);
    a.v_cache = sk_b_buf(b, at->v_cache);
    a.out = like(b, "attend", b->act, &q);
    a.eps = at->eps;
    a.scale = at->scale;
    a.window = at->window;
    a.split = SK_ATTEND_SPLIT;
    a.neox = at->neox;
    sk_b_step(b, SK_OP_rope_attend, &a);
    return a.out;
}
