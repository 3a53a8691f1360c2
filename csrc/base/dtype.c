/* See dtype.h: the type table as functions. */
#include "base/dtype.h"

const sk_dtype_info *sk_dtype_find(int64_t id)
{
    switch (id) {
#define X(name, number, elems, bytes)                                                              \
    case number: {                                                                                 \
        static const sk_dtype_info info = {#name, number, elems, bytes};                           \
        return &info;                                                                              \
    }
        SK_DTYPES(X)
#undef X
    default:
        return NULL;
    }
}

const char *sk_dtype_name(int64_t id)
{
    const sk_dtype_info *info = sk_dtype_find(id);
    return info ? info->name : "?";
}

bool sk_dtype_row_bytes(int64_t id, uint64_t n, uint64_t *out)
{
    const sk_dtype_info *info = sk_dtype_find(id);
    uint64_t elems;
    if (!info) return false;
    elems = (uint64_t)info->block_elems;
    return n % elems == 0 && sk_mul_u64(n / elems, (uint64_t)info->block_bytes, out);
}

bool sk_dtype_decodable(int64_t id)
{
    switch (id) {
    case SK_F32:
    case SK_F16:
    case SK_BF16:
    case SK_F64:
    case SK_I8:
    case SK_I16:
    case SK_I32:
    case SK_I64:
    case SK_Q4_0:
    case SK_Q4_1:
    case SK_Q5_0:
    case SK_Q5_1:
    case SK_Q8_0:
    case SK_Q4_K:
    case SK_Q5_K:
    case SK_Q6_K:
        return true;
    default:
        return false;
    }
}
