/* Typed access to hyper-parameters, wherever they come from; see ckpt.h. */
#include "ckpt/ckpt_impl.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

size_t sk_ckpt_n_meta(const sk_ckpt *ck) { return ck->n_meta; }

const sk_meta *sk_ckpt_meta(const sk_ckpt *ck, size_t at)
{
    return at < ck->n_meta ? &ck->meta[at] : NULL;
}

const sk_meta *sk_ckpt_find_meta(const sk_ckpt *ck, const char *key)
{
    return ck->by_key ? sk_index_find(ck->by_key, key, strlen(key)) : NULL;
}

const char *sk_meta_type_name(sk_meta_type type)
{
    static const char *const names[SK_META_TYPE_COUNT] = {
        "uint8", "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
        "bool",  "string", "array",  "uint64", "int64",  "float64"};
    return (unsigned)type < SK_META_TYPE_COUNT ? names[type] : "?";
}

/* ---- values ---------------------------------------------------------------------------------- */

static uint64_t load(const uint8_t *p, uint32_t n_bytes) // little-endian
{
    uint64_t x = 0;
    for (uint32_t i = 0; i < n_bytes; i++) x |= (uint64_t)p[i] << 8 * i;
    return x;
}

static uint32_t scalar_bytes(sk_meta_type type)
{
    switch (type) {
    case SK_META_U8:
    case SK_META_I8:
    case SK_META_BOOL:
        return 1;
    case SK_META_U16:
    case SK_META_I16:
        return 2;
    case SK_META_U64:
    case SK_META_I64:
    case SK_META_F64:
        return 8;
    default:
        return 4;
    }
}

static bool is_signed(sk_meta_type type)
{
    return type == SK_META_I8 || type == SK_META_I16 || type == SK_META_I32 || type == SK_META_I64;
}

static bool is_integer(sk_meta_type type)
{
    return is_signed(type) || type == SK_META_U8 || type == SK_META_U16 || type == SK_META_U32 ||
           type == SK_META_U64;
}

/* JSON writes 10000 and 10000.0 for the same number. */
static bool is_float(const sk_ckpt *ck, sk_meta_type type)
{
    return type == SK_META_F32 || type == SK_META_F64 ||
           (ck->format == SK_FORMAT_SAFETENSORS && (type == SK_META_U64 || type == SK_META_I64));
}

/* A float, or an integer of config.json. */
static double load_float(const uint8_t *p, sk_meta_type type)
{
    uint64_t bits = load(p, scalar_bytes(type));
    double x;
    if (type == SK_META_U64) return (double)bits;
    if (type == SK_META_I64) {
        int64_t y;
        memcpy(&y, &bits, sizeof y);
        return (double)y;
    }
    if (type == SK_META_F32) {
        uint32_t half = (uint32_t)bits;
        float y;
        memcpy(&y, &half, sizeof y);
        return (double)y;
    }
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint64_t offset_of(const sk_ckpt *ck, const sk_meta *m)
{
    uintptr_t at = (uintptr_t)m->key.p;
    uintptr_t begin = (uintptr_t)ck->meta_bytes;
    return at >= begin && at - begin < ck->meta_size ? (uint64_t)(at - begin) : 0;
}

static sk_code fail_type(const sk_ckpt *ck, const sk_meta *m, const char *key, const char *wanted,
                         sk_status *st)
{
    bool array = m->type == SK_META_ARRAY;
    return SK_FAIL_CHECK(st, SK_FORMAT, "KEY_TYPE", offset_of(ck, m),
                         "%s: key %.100s: expected %s, found %s%s", ck->meta_label, key, wanted,
                         array ? "an array of " : "", sk_meta_type_name(m->elem_type));
}

static sk_code fail_missing(const sk_ckpt *ck, const char *key, const char *wanted, sk_status *st)
{
    return SK_FAIL_CHECK(st, SK_FORMAT, "MISSING_KEY", 0,
                         "%s: key %.100s: expected %s, found no such key", ck->meta_label, key,
                         wanted);
}

/* Element `at` of an integer value. */
static sk_code take_u64(const sk_ckpt *ck, const sk_meta *m, const char *key, uint64_t at,
                        uint64_t max, uint64_t *out, sk_status *st)
{
    uint32_t n_bytes = scalar_bytes(m->elem_type);
    uint64_t x = load(m->data + at * n_bytes, n_bytes);
    uint64_t sign = UINT64_C(1) << (8 * n_bytes - 1);
    if (is_signed(m->elem_type) && (x & sign)) {
        // -2^63 prints right too: its magnitude is computed without a sign.
        uint64_t magnitude = sign - (x & (sign - 1));
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_HPARAM", offset_of(ck, m),
                             "%s: key %.100s: expected an integer from 0 to %" PRIu64
                             ", found -%" PRIu64,
                             ck->meta_label, key, max, magnitude);
    }
    if (x > max)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_HPARAM", offset_of(ck, m),
                             "%s: key %.100s: expected an integer from 0 to %" PRIu64
                             ", found %" PRIu64,
                             ck->meta_label, key, max, x);
    *out = x;
    return SK_OK;
}

static sk_code take_f64(const sk_ckpt *ck, const sk_meta *m, const char *key, uint64_t at,
                        double *out, sk_status *st)
{
    double x = load_float(m->data + at * scalar_bytes(m->elem_type), m->elem_type);
    if (!isfinite(x))
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_HPARAM", offset_of(ck, m),
                             "%s: key %.100s: expected a finite number, found %f", ck->meta_label,
                             key, x);
    *out = x;
    return SK_OK;
}

sk_code sk_meta_find_u64(const sk_ckpt *ck, const char *key, uint64_t max, uint64_t *out,
                         bool *found, sk_status *st)
{
    const sk_meta *m = sk_ckpt_find_meta(ck, key);
    *found = m != NULL;
    if (!m) return SK_OK;
    if (!is_integer(m->type)) return fail_type(ck, m, key, "an integer", st);
    return take_u64(ck, m, key, 0, max, out, st);
}

sk_code sk_meta_need_u64(const sk_ckpt *ck, const char *key, uint64_t max, uint64_t *out,
                         sk_status *st)
{
    bool found;
    SK_TRY(sk_meta_find_u64(ck, key, max, out, &found, st));
    return found ? SK_OK : fail_missing(ck, key, "an integer", st);
}

sk_code sk_meta_find_f64(const sk_ckpt *ck, const char *key, double *out, bool *found,
                         sk_status *st)
{
    const sk_meta *m = sk_ckpt_find_meta(ck, key);
    *found = m != NULL;
    if (!m) return SK_OK;
    if (!is_float(ck, m->type)) return fail_type(ck, m, key, "a float", st);
    return take_f64(ck, m, key, 0, out, st);
}

sk_code sk_meta_need_f64(const sk_ckpt *ck, const char *key, double *out, sk_status *st)
{
    bool found;
    SK_TRY(sk_meta_find_f64(ck, key, out, &found, st));
    return found ? SK_OK : fail_missing(ck, key, "a float", st);
}

sk_code sk_meta_find_bool(const sk_ckpt *ck, const char *key, bool *out, bool *found, sk_status *st)
{
    const sk_meta *m = sk_ckpt_find_meta(ck, key);
    *found = m != NULL;
    if (!m) return SK_OK;
    if (m->type != SK_META_BOOL) return fail_type(ck, m, key, "a bool", st);
    *out = m->data[0] != 0;
    return SK_OK;
}

sk_code sk_meta_find_str(const sk_ckpt *ck, const char *key, sk_str *out, bool *found,
                         sk_status *st)
{
    const sk_meta *m = sk_ckpt_find_meta(ck, key);
    uint64_t at = 0;
    *found = m != NULL;
    if (!m) return SK_OK;
    if (m->type != SK_META_STRING) return fail_type(ck, m, key, "a string", st);
    *out = sk_meta_next_str(m, &at);
    return SK_OK;
}

sk_code sk_meta_need_str(const sk_ckpt *ck, const char *key, sk_str *out, sk_status *st)
{
    bool found;
    SK_TRY(sk_meta_find_str(ck, key, out, &found, st));
    return found ? SK_OK : fail_missing(ck, key, "a string", st);
}

static sk_code check_length(const sk_ckpt *ck, const sk_meta *m, const char *key, size_t n,
                            sk_status *st)
{
    if (m->type != SK_META_ARRAY || m->n == n) return SK_OK;
    return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_HPARAM", offset_of(ck, m),
                         "%s: key %.100s: expected one value or an array of %zu, found %" PRIu64
                         " elements",
                         ck->meta_label, key, n, m->n);
}

sk_code sk_meta_find_u64s(const sk_ckpt *ck, const char *key, uint64_t max, uint64_t *out, size_t n,
                          bool *found, sk_status *st)
{
    const sk_meta *m = sk_ckpt_find_meta(ck, key);
    *found = m != NULL;
    if (!m) return SK_OK;
    if (!is_integer(m->elem_type)) return fail_type(ck, m, key, "integers", st);
    SK_TRY(check_length(ck, m, key, n, st));
    for (size_t i = 0; i < n; i++)
        SK_TRY(take_u64(ck, m, key, m->type == SK_META_ARRAY ? i : 0, max, &out[i], st));
    return SK_OK;
}

sk_code sk_meta_find_f64s(const sk_ckpt *ck, const char *key, double *out, size_t n, bool *found,
                          sk_status *st)
{
    const sk_meta *m = sk_ckpt_find_meta(ck, key);
    *found = m != NULL;
    if (!m) return SK_OK;
    if (!is_float(ck, m->elem_type)) return fail_type(ck, m, key, "floats", st);
    SK_TRY(check_length(ck, m, key, n, st));
    for (size_t i = 0; i < n; i++)
        SK_TRY(take_f64(ck, m, key, m->type == SK_META_ARRAY ? i : 0, &out[i], st));
    return SK_OK;
}

sk_str sk_meta_next_str(const sk_meta *m, uint64_t *at)
{
    sk_str s;
    s.n = load(m->data + *at, 8);
    s.p = (const char *)m->data + *at + 8;
    *at += 8 + s.n;
    return s;
}
