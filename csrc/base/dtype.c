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

bool sk_dtype_decodable(int64_t id) { return sk_dtype_find(id) && id != SK_Q8_1 && id != SK_U8; }

bool sk_dtype_is_weight(int64_t id) { return sk_dtype_decodable(id) && id != SK_Q8_K; }
