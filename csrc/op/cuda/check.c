/* What the kernels ask for beside the contracts. See cuda.h. Every op has a launcher, or the table
 * of a build with CUDA would not link; a build without it checks too, for whoever only plans. */
#include "op/cuda/cuda.h"

#include <stdio.h>
#include <string.h>

#define K_UNIT   32  // columns of a product come in whole blocks
#define HEAD_MAX 256 // elements of an attention head
#define KEYS_MAX 128 // elements of a key of the delta rule: a matrix lies in registers
#define SPLIT    128 // ordinals of a split of attend_blocks
// What lies in shared memory: a key of an index, its queries in F32, routes of a row.
#define KEY_MAX     8192
#define QUERIES_MAX 12288
#define ROUTES_MAX  64

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

/* Products that need no whole blocks, of plain weights. */
static bool takes_uneven(enum sk_op op, int32_t dtype)
{
    const bool plain = op == SK_OP_linear || op == SK_OP_linear_add || op == SK_OP_hyper_down ||
                       op == SK_OP_hyper_mix;
    return plain && sk_k_has_uneven(dtype);
}

static sk_code check_weight(enum sk_op op, const sk_field *f, const sk_view *v, sk_status *st)
{
    if (!sk_k_packs(v->dtype))
        return refuse(st, op, f->name, "a float of at most 32 bits or a block format",
                      sk_dtype_name(v->dtype));
    if (v->dim[v->rank - 1] % K_UNIT && !takes_uneven(op, v->dtype))
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

/* Activations are BF16 wherever the contract leaves a choice. */
static sk_code check_acts(enum sk_op op, const sk_field *f, const sk_view *v, sk_status *st)
{
    static const struct {
        enum sk_op op;
        const char *field;
    } acts[] = {
        {SK_OP_linear, "x"},          {SK_OP_linear_add, "x"},     {SK_OP_silu_mul, "out"},
        {SK_OP_gelu_mul, "out"},      {SK_OP_norm_glu, "out"},     {SK_OP_attend, "q"},
        {SK_OP_attend, "k_cache"},    {SK_OP_rope_attend, "out"},  {SK_OP_rope_attend, "k_cache"},
        {SK_OP_kv_append, "k_cache"}, {SK_OP_linear_parts, "x"},   {SK_OP_expert_glu, "x"},
        {SK_OP_expert_linear, "x"},   {SK_OP_index_append, "raw"}, {SK_OP_block_topk, "q"},
        {SK_OP_attend_blocks, "q"},   {SK_OP_hyper_down, "low"},   {SK_OP_hyper_mix, "low"},
        {SK_OP_linear_argmax, "x"},
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

static sk_code check_delta(enum sk_op op, const sk_view *m, sk_status *st)
{
    if (m->dim[2] <= KEYS_MAX) return SK_OK;
    return refuse_number(st, op, "m", "keys of at most 128 elements", m->dim[2]);
}

static sk_code check_table(enum sk_op op, const sk_view *table, sk_status *st)
{
    if (sk_k_gathers(table->dtype)) return SK_OK;
    return refuse(st, op, "table", "F32, F16, BF16, Q8_0, Q4_0 or IQ4_NL",
                  sk_dtype_name(table->dtype));
}

/* ---- ops of hybrid models ----------------------------------------------------------------------
 */

static sk_code check_most(enum sk_op op, const char *field, const char *expected, int64_t found,
                          int64_t most, sk_status *st)
{
    return found <= most ? SK_OK : refuse_number(st, op, field, expected, found);
}

static sk_code check_queries(const sk_view *q, sk_status *st)
{
    const int64_t n = q->dim[1] * ((q->dim[2] + 7) / 8 * 8);
    return check_most(SK_OP_block_topk, "q", "heads of at most 12288 elements in all", n,
                      QUERIES_MAX, st);
}

static sk_code check_attend_blocks(const sk_attend_blocks_args *a, sk_status *st)
{
    SK_TRY(check_heads(SK_OP_attend_blocks, &a->q, st));
    if (a->split == SPLIT) return SK_OK;
    return refuse_number(st, SK_OP_attend_blocks, "split", "128", a->split);
}

static sk_code check_hybrid(enum sk_op op, const void *args, sk_status *st)
{
    switch (op) {
    case SK_OP_index_append:
        return check_most(op, "k", "keys of at most 8192 elements",
                          ((const sk_index_append_args *)args)->k.dim[1], KEY_MAX, st);
    case SK_OP_block_topk:
        return check_queries(&((const sk_block_topk_args *)args)->q, st);
    case SK_OP_attend_blocks:
        return check_attend_blocks(args, st);
    case SK_OP_route_topk:
        return check_most(op, "ids", "at most 64 routes of a row",
                          ((const sk_route_topk_args *)args)->ids.dim[1], ROUTES_MAX, st);
    default:
        return SK_OK;
    }
}

/* The `at` of the experts' weights is not looked at: on the device their matrices are packed, one
 * behind the other, wherever they lie in the file. */
sk_code sk_cuda_check(enum sk_op op, const void *args, sk_status *st)
{
    for (const sk_field *f = sk_ops[op].fields; f->kind != SK_FIELD_END; f++) {
        const sk_view *v;
        if (f->kind != SK_FIELD_VIEW) continue;
        v = sk_field_view_const(args, f);
        if (!sk_view_present(v)) continue;
        if (is_scale(f)) SK_TRY(check_scale(op, args, f, st));
        if (sk_cuda_takes_packed(op, f)) SK_TRY(check_weight(op, f, v, st));
        SK_TRY(check_acts(op, f, v, st));
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
    case SK_OP_expert_glu:
        return check_expert_glu(((const sk_expert_glu_args *)args)->w, st);
    case SK_OP_gdn_step:
        return check_delta(op, &((const sk_gdn_step_args *)args)->m, st);
    case SK_OP_gdn_scan:
        return check_delta(op, &((const sk_gdn_scan_args *)args)->m, st);
    case SK_OP_gdn_fold:
        return check_delta(op, &((const sk_gdn_fold_args *)args)->m, st);
    case SK_OP_gather_heads:
        return check_table(op, &((const sk_gather_heads_args *)args)->table, st);
    default:
        return check_hybrid(op, args, st);
    }
}

static uint64_t attend_work(const sk_view *q, const sk_view *k_cache, int32_t ctx_bound)
{
    return sk_k_attend_work(q->dim[0], q->dim[1], k_cache->dim[2], q->dim[2], ctx_bound);
}

/* Of a step with several weights, each of which may be the only one of its type. */
static uint64_t split_work(const sk_view *x, const sk_view *w, int32_t n_w)
{
    uint64_t most = 0;
    for (int32_t i = 0; i < n_w; i++) {
        uint64_t bytes;
        if (!sk_view_present(&w[i])) continue;
        bytes = sk_cuda_split_bytes(w[i].dtype, x->dim[0], w[i].dim[0], x->dim[1]);
        if (bytes > most) most = bytes;
    }
    return most;
}

uint64_t sk_cuda_work_bytes(enum sk_op op, const void *args, int32_t ctx_bound)
{
    switch (op) {
    case SK_OP_linear: {
        const sk_linear_args *a = args;
        return split_work(&a->x, a->w, SK_LINEAR_SEGS);
    }
    case SK_OP_linear_add: {
        const sk_linear_add_args *a = args;
        return split_work(&a->x, &a->w, 1);
    }
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
    case SK_OP_linear_argmax: {
        const sk_linear_argmax_args *a = args;
        return sk_k_linear_work(a->x.dim[0], a->x.dim[1], 0, 0);
    }
    case SK_OP_block_topk:
        return sk_k_block_topk_work(args, ctx_bound);
    case SK_OP_attend_blocks:
        return sk_k_attend_blocks_work(args, ctx_bound);
    case SK_OP_hyper_down:
        return sk_k_hyper_down_work(args);
    case SK_OP_hyper_mix:
        return sk_k_hyper_mix_work(args);
    default:
        return 0;
    }
}

bool sk_cuda_is_packed(int32_t rank) { return rank == 2 || rank == 3; }
