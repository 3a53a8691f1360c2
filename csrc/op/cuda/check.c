/* What the kernels ask for beside the contracts. See cuda.h. */
#include "op/cuda/cuda.h"

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
        return refuse(st, op, f->name, "F32, F16, BF16, Q4_0, Q4_1, Q8_0, Q4_K, Q5_K or Q6_K",
                      sk_dtype_name(v->dtype));
    if (v->dim[1] % K_UNIT)
        return refuse_number(st, op, f->name, "a multiple of 32 columns", v->dim[1]);
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
        {SK_OP_kv_append, "k_cache"},
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

static sk_code check_act_constant(enum sk_op op, int32_t act, sk_status *st)
{
    if (act == SK_BF16) return SK_OK;
    return refuse(st, op, "act", "BF16 (numerics bf16)", sk_dtype_name(act));
}

sk_code sk_cuda_check(enum sk_op op, const void *args, sk_status *st)
{
    for (const sk_field *f = sk_ops[op].fields; f->kind != SK_FIELD_END; f++) {
        const sk_view *v;
        if (f->kind != SK_FIELD_VIEW) continue;
        v = sk_field_view_const(args, f);
        if (!sk_view_present(v)) continue;
        if (is_scale(f)) return refuse(st, op, f->name, "no scales beside the weight", "some");
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
    case SK_OP_norm_argmax:
        return check_act_constant(op, ((const sk_norm_argmax_args *)args)->act, st);
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

bool sk_cuda_is_packed(int32_t rank) { return rank == 2; }
