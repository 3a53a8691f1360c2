/* What the kernels ask for beside the contracts. See cuda.h. */
#include "op/cuda/cuda.h"

#include <stdio.h>
#include <string.h>

#define K_UNIT   32  // columns of a product come in whole blocks
#define HEAD_MAX 256 // elements of an attention head

static sk_code refuse(sk_status *st, enum sk_op op, const char *field, const char *expected,
                      const char *found)
{
    return SK_FAIL(st, SK_UNSUPPORTED, "%s on CUDA: %s: expected %s, found %s", sk_ops[op].name,
                   field, expected, found);
}

static sk_code refuse_number(sk_status *st, enum sk_op op, const char *field, const char *expected,
                             int64_t found)
{
    return SK_FAIL(st, SK_UNSUPPORTED, "%s on CUDA: %s: expected %s, found %lld", sk_ops[op].name,
                   field, expected, (long long)found);
}

static bool is_scale(const sk_field *f)
{
    return strncmp(f->name, "scale", 5) == 0 && f->kind == SK_FIELD_VIEW;
}

static sk_code check_weight(enum sk_op op, const sk_field *f, const sk_view *v, sk_status *st)
{
    if (!sk_k_packs(v->dtype))
        return refuse(st, op, f->name, "a float of at most 32 bits or a block format",
                      sk_dtype_name(v->dtype));
    if (v->dim[v->rank - 1] % K_UNIT)
        return refuse_number(st, op, f->name, "a multiple of 32 columns", v->dim[v->rank - 1]);
    if (v->rank == 3 && !sk_k_has_experts(v->dtype))
        return refuse(st, op, f->name, "a type of weights that experts have kernels for",
                      sk_dtype_name(v->dtype));
    return SK_OK;
}

/* The field called `name` with the suffix of `like` ("", or "[i]"). */
static const sk_field *field_like(enum sk_op op, const char *name, const sk_field *like)
{
    const char *suffix = strchr(like->name, '[');
    char full[32];
    (void)snprintf(full, sizeof full, "%s%s", name, suffix ? suffix : "");
    for (const sk_field *f = sk_ops[op].fields; f->kind != SK_FIELD_END; f++)
        if (strcmp(f->name, full) == 0) return f;
    return NULL;
}

/* Scales beside a weight: for types that come with such, of all columns or of a power of two of
 * them, which is what block FP8 and NVFP4 have. */
static sk_code check_scale(enum sk_op op, const void *args, const sk_field *f, sk_status *st)
{
    const sk_field *weight = field_like(op, "w", f), *columns = field_like(op, "scale_k", f);
    const sk_view *w = sk_field_view_const(args, weight);
    int32_t k;
    memcpy(&k, (const char *)args + columns->at, sizeof k);
    if (!sk_k_scales(w->dtype))
        return refuse(st, op, f->name, "no scales beside weights other than FP8 and NVFP4",
                      sk_dtype_name(w->dtype));
    if (k < w->dim[1] && (k & (k - 1)) != 0)
        return refuse_number(st, op, columns->name, "a power of two, or all columns", k);
    return SK_OK;
}

/* Kernels take the heads of a row, and the matrices of experts, as one run of memory. */
static sk_code check_dense(enum sk_op op, const sk_field *f, const sk_view *v, sk_status *st)
{
    const sk_view dense = sk_view_dense(v->buf, v->dtype, v->rank, v->dim);
    if (f->mode & SK_APART && v->rank == 3 && v->stride[1] != dense.stride[1])
        return SK_FAIL(
            st, SK_UNSUPPORTED, "%s on CUDA: %s: expected heads %lld bytes apart, found %lld",
            sk_ops[op].name, f->name, (long long)dense.stride[1], (long long)v->stride[1]);
    if (strcmp(f->name, "at") == 0 || strncmp(f->name, "at[", 3) == 0)
        return refuse(st, op, f->name, "no view, as matrices follow each other", "one");
    return SK_OK;
}

/* Activations are BF16 wherever the contract leaves a choice. */
static sk_code check_acts(enum sk_op op, const sk_field *f, const sk_view *v, sk_status *st)
{
    static const struct {
        enum sk_op op;
        const char *field;
    } acts[] = {
        {SK_OP_linear, "x"},          {SK_OP_linear_add, "x"},    {SK_OP_silu_mul, "out"},
        {SK_OP_gelu_mul, "out"},      {SK_OP_norm_glu, "out"},    {SK_OP_attend, "q"},
        {SK_OP_attend, "k_cache"},    {SK_OP_rope_attend, "out"}, {SK_OP_rope_attend, "k_cache"},
        {SK_OP_kv_append, "k_cache"}, {SK_OP_linear_parts, "x"},  {SK_OP_expert_glu, "x"},
        {SK_OP_expert_linear, "x"},
    };
    for (size_t i = 0; i < SK_COUNT(acts); i++)
        if (acts[i].op == op && strcmp(acts[i].field, f->name) == 0 && v->dtype != SK_BF16)
            return refuse(st, op, f->name, "BF16 (numerics bf16)", sk_dtype_name(v->dtype));
    return SK_OK;
}

static sk_code check_heads(enum sk_op op, const sk_view *q, sk_status *st)
{
    const int64_t d = q->dim[2];
    if (d % 16 == 0 && d <= HEAD_MAX) return SK_OK;
    return refuse_number(st, op, "q", "heads of 16 to 256 elements in multiples of 16", d);
}

static sk_code check_route_list(const sk_view *ids, sk_status *st)
{
    const int64_t routes = ids->dim[0] * ids->dim[1];
    if (routes <= SK_ROUTES_MAX) return SK_OK;
    return refuse_number(st, SK_OP_route_list, "ids", "at most 4096 routes", routes);
}

static sk_code check_expert_glu(const sk_view *w, sk_status *st)
{
    if (w[0].dtype == w[1].dtype) return SK_OK;
    return refuse(st, SK_OP_expert_glu, "w[1]", "the type of w[0]", sk_dtype_name(w[1].dtype));
}

static sk_code check_act_constant(enum sk_op op, int32_t act, sk_status *st)
{
    if (act == SK_BF16) return SK_OK;
    return refuse(st, op, "act", "BF16 (numerics bf16)", sk_dtype_name(act));
}

/* A part is whole slices of the sum over K. */
static sk_code check_parts(const sk_linear_parts_args *a, sk_status *st)
{
    const char *op = sk_ops[SK_OP_linear_parts].name;
    const int64_t k = a->x.dim[1], part = k / a->y[0].dim[0];
    for (int32_t i = 0; i < SK_LINEAR_SEGS && sk_view_present(&a->w[i]); i++) {
        const int64_t unit = sk_k_part_unit(a->w[i].dtype, k);
        if (unit == 0)
            return SK_FAIL(
                st, SK_UNSUPPORTED,
                "%s on CUDA: w[%d]: expected a type and columns whose product can be left "
                "in parts, found %s with %lld columns",
                op, i, sk_dtype_name((sk_dtype)a->w[i].dtype), (long long)k);
        if (part % unit != 0)
            return SK_FAIL(st, SK_UNSUPPORTED,
                           "%s on CUDA: y[%d]: expected parts of a multiple of %lld columns, "
                           "found %lld",
                           op, i, (long long)unit, (long long)part);
    }
    return SK_OK;
}

sk_code sk_cuda_check(enum sk_op op, const void *args, sk_status *st)
{
    if (!sk_cuda_ops[op])
        return SK_FAIL(st, SK_UNSUPPORTED, "%s on CUDA: expected an op with a kernel, found none",
                       sk_ops[op].name);
    for (const sk_field *f = sk_ops[op].fields; f->kind != SK_FIELD_END; f++) {
        const sk_view *v;
        if (f->kind != SK_FIELD_VIEW) continue;
        v = sk_field_view_const(args, f);
        if (!sk_view_present(v)) continue;
        if (is_scale(f)) SK_TRY(check_scale(op, args, f, st));
        if (sk_cuda_takes_packed(op, f)) SK_TRY(check_weight(op, f, v, st));
        SK_TRY(check_acts(op, f, v, st));
        SK_TRY(check_dense(op, f, v, st));
    }
    switch (op) {
    case SK_OP_attend:
        return check_heads(op, &((const sk_attend_args *)args)->q, st);
    case SK_OP_rope_attend:
        return check_heads(op, &((const sk_rope_attend_args *)args)->q, st);
    case SK_OP_norm_linear:
        return check_act_constant(op, ((const sk_norm_linear_args *)args)->act, st);
    case SK_OP_linear_parts:
        return check_parts(args, st);
    case SK_OP_norm_argmax:
        return check_act_constant(op, ((const sk_norm_argmax_args *)args)->act, st);
    case SK_OP_route_list:
        return check_route_list(&((const sk_route_list_args *)args)->ids, st);
    case SK_OP_expert_glu:
        return check_expert_glu(((const sk_expert_glu_args *)args)->w, st);
    default:
        return SK_OK;
    }
}

static uint64_t attend_work(const sk_view *q, const sk_view *k_cache, int32_t ctx_bound)
{
    return sk_k_attend_work(q->dim[0], q->dim[1], k_cache->dim[2], q->dim[2], ctx_bound);
}

uint64_t sk_cuda_work_bytes(enum sk_op op, const void *args, int32_t ctx_bound)
{
    switch (op) {
    case SK_OP_norm_linear: {
        const sk_norm_linear_args *a = args;
        return sk_k_linear_work(a->x.dim[0], a->x.dim[1], 0, 0);
    }
    case SK_OP_norm_argmax: {
        const sk_norm_argmax_args *a = args;
        return sk_k_linear_work(a->x.dim[0], a->x.dim[1], 0, 0);
    }
    case SK_OP_norm_glu: {
        const sk_norm_glu_args *a = args;
        return sk_k_linear_work(a->x.dim[0], a->x.dim[1], a->w[0].dim[0], 2);
    }
    case SK_OP_attend: {
        const sk_attend_args *a = args;
        return attend_work(&a->q, &a->k_cache, ctx_bound);
    }
    case SK_OP_rope_attend: {
        const sk_rope_attend_args *a = args;
        return attend_work(&a->q, &a->k_cache, ctx_bound);
    }
    default:
        return 0;
    }
}

bool sk_cuda_is_packed(int32_t rank) { return rank == 2 || rank == 3; }
