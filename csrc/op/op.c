/* Descriptor table of the ops, generated from ops.def. */
#include "op/op.h"

#include <string.h>

#define VIEW(T, f, m) {#f, offsetof(sk_##T##_args, f), SK_FIELD_VIEW, (m)},

#define SK_OP(name, ...) static const sk_field fields_##name[] = {__VA_ARGS__{0}};
#define IN(op, f)        VIEW(op, f, SK_READ)
#define OUT(op, f)       VIEW(op, f, SK_WRITE)
#define INOUT(op, f)     VIEW(op, f, SK_READ | SK_WRITE)
#define OPT(op, f)       VIEW(op, f, SK_READ | SK_OPTIONAL)
#define APART(op, f)     VIEW(op, f, SK_READ | SK_APART)
#define OPTAPART(op, f)  VIEW(op, f, SK_READ | SK_OPTIONAL | SK_APART)
#define OPTOUT(op, f)    VIEW(op, f, SK_WRITE | SK_OPTIONAL)
#define I32(op, f)       {#f, offsetof(sk_##op##_args, f), SK_FIELD_I32, 0},
#define F32(op, f)       {#f, offsetof(sk_##op##_args, f), SK_FIELD_F32, 0},
#include "op/ops.def"

#define SK_OP(name, ...)                                                                           \
    _Static_assert(sizeof(sk_##name##_args) <= SK_ARGS_MAX, "argument struct of " #name);
#include "op/ops.def"

const sk_op_desc sk_ops[SK_OP_COUNT] = {
#define SK_OP(name, ...) [SK_OP_##name] = {#name, sizeof(sk_##name##_args), fields_##name},
#include "op/ops.def"
};

enum sk_op sk_op_find(const char *name)
{
    int op = 0;
    while (op < SK_OP_COUNT && strcmp(sk_ops[op].name, name) != 0) op++;
    return (enum sk_op)op;
}

void sk_args_clear(enum sk_op op, void *args)
{
    static const sk_view none = SK_VIEW_NONE;
    memset(args, 0, sk_ops[op].args_bytes);
    for (const sk_field *f = sk_ops[op].fields; f->kind != SK_FIELD_END; f++)
        if (f->kind == SK_FIELD_VIEW) *sk_field_view(args, f) = none;
}

bool sk_view_span(const sk_view *v, uint64_t *out)
{
    uint64_t span;
    if (v->rank < 1 || v->rank > SK_VIEW_DIMS) return false;
    for (int32_t i = 0; i < v->rank; i++)
        if (v->dim[i] < 1) return false;
    if (!sk_dtype_row_bytes(v->dtype, (uint64_t)v->dim[v->rank - 1], &span)) return false;
    for (int32_t i = v->rank - 2; i >= 0; i--) {
        uint64_t step;
        if (v->stride[i] < 0) return false;
        if (!sk_mul_u64((uint64_t)(v->dim[i] - 1), (uint64_t)v->stride[i], &step) ||
            !sk_add_u64(span, step, &span))
            return false;
    }
    *out = span;
    return true;
}

sk_view sk_view_dense(int32_t buf, int32_t dtype, int32_t rank, const int64_t *dim)
{
    sk_view v = SK_VIEW_NONE;
    uint64_t bytes = 0;
    v.buf = buf;
    v.dtype = dtype;
    v.rank = rank;
    for (int32_t i = 0; i < rank; i++) v.dim[i] = dim[i];
    if (rank >= 1 && dim[rank - 1] > 0)
        (void)sk_dtype_row_bytes(dtype, (uint64_t)dim[rank - 1], &bytes);
    for (int32_t i = rank - 2; i >= 0; i--) {
        v.stride[i] = (int64_t)bytes;
        if (!sk_mul_u64(bytes, (uint64_t)dim[i], &bytes)) bytes = UINT64_MAX;
    }
    return v;
}
