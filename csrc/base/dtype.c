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
    case SK_Q8_1:
    case SK_F8_E4M3FNUZ:
    case SK_F8_E5M2FNUZ:
    case SK_F4:
    case SK_F6_E2M3:
    case SK_F6_E3M2:
    case SK_C64:
        return false;
    default:
        return sk_dtype_find(id) != NULL;
    }
}

bool sk_dtype_is_weight(int64_t id)
{
    switch (id) {
    case SK_Q8_K:
    case SK_U8:
    case SK_BOOL:
    case SK_U16:
    case SK_U32:
    case SK_U64:
    case SK_F8_E8M0:
        return false;
    default:
        return sk_dtype_decodable(id);
    }
}
