/* See gguf.h.
 *
 * The parser trusts no number of the file: a read is checked against what is left, a count against
 * the bytes that its smallest entries would need, a product before it is formed. So no allocation
 * exceeds a small multiple of the file, and no loop runs longer than the file is. Names of checks
 * (BAD_KEY, ...) are part of the interface: tests and users match on them. */
#include "ckpt/gguf.h"

#include "base/mem.h"
#include "base/order.h"
#include "base/reader.h"
#include "base/text.h"

#include <inttypes.h>
#include <string.h>

#define HEADER_BYTES     24
#define MAX_META         65536u
#define MAX_TENSORS      1048576u
#define MIN_META_BYTES   13 // key length, value type, one value byte
#define MIN_TENSOR_BYTES 24 // name length, number of dimensions, type, offset
#define MAX_KEY_BYTES    65535u
#define MAX_NAME_BYTES   63u
#define MAX_STRING_BYTES (UINT64_C(64) << 20)
#define MAX_NDIMS        4
#define MIN_ALIGNMENT    8u
#define MAX_ALIGNMENT    (UINT32_C(1) << 20)
#define DEF_ALIGNMENT    32u
#define LAST_FILE_TYPE   SK_Q2_0 // ids above it are ours or nobody's

typedef struct parse {
    sk_reader r;
    sk_gguf g;
    char label[SK_LABEL_MAX];
    char quote_a[SK_QUOTE_MAX];
    char quote_b[SK_QUOTE_MAX];
} parse;

static const char *quote(parse *p, sk_str s)
{
    return sk_quote(p->quote_a, sizeof p->quote_a, s.p, s.n);
}

static const char *quote_other(parse *p, sk_str s)
{
    return sk_quote(p->quote_b, sizeof p->quote_b, s.p, s.n);
}

static sk_code fail_short(parse *p, const char *kind, sk_str name, const char *part, sk_status *st)
{
    uint64_t left = sk_reader_left(&p->r);
    return SK_FAIL_CHECK(st, SK_FORMAT, "TRUNCATED", p->r.pos,
                         "%s: %s %s: expected %" PRIu64 " bytes for its %s, found %" PRIu64
                         " before the end of the file",
                         p->label, kind, quote(p, name), left + p->r.short_by, part, left);
}

/* ---- names ----------------------------------------------------------------------------------- */

/* What is wrong with a key or name as text; NULL if nothing is. */
static const char *text_fault(sk_str s)
{
    if (sk_has_control(s.p, s.n)) return "a control byte";
    if (!sk_utf8_valid(s.p, s.n)) return "invalid UTF-8";
    return NULL;
}

/* Reads the key or name of item `at`. `kind` is "metadata key" or "tensor". */
static sk_code read_name(parse *p, const char *kind, const char *check, uint32_t at, uint64_t max,
                         sk_str *out, sk_status *st)
{
    uint64_t where = p->r.pos;
    uint64_t n = sk_read_u64(&p->r);
    const char *fault;
    if (p->r.short_by)
        return SK_FAIL_CHECK(st, SK_FORMAT, "TRUNCATED", where,
                             "%s: %s %" PRIu32 ": expected 8 bytes for its name's length, found "
                             "%" PRIu64 " before the end of the file",
                             p->label, kind, at, sk_reader_left(&p->r));
    if (n < 1 || n > max)
        return SK_FAIL_CHECK(st, SK_FORMAT, check, where,
                             "%s: %s %" PRIu32 ": expected a name of 1 to %" PRIu64
                             " bytes, found length %" PRIu64,
                             p->label, kind, at, max, n);
    if (n > sk_reader_left(&p->r))
        return SK_FAIL_CHECK(st, SK_FORMAT, check, where,
                             "%s: %s %" PRIu32 ": expected a name within the %" PRIu64
                             " bytes left in the file, found length %" PRIu64,
                             p->label, kind, at, sk_reader_left(&p->r), n);
    out->p = (const char *)sk_take_bytes(&p->r, n);
    out->n = n;
    fault = text_fault(*out);
    if (fault)
        return SK_FAIL_CHECK(st, SK_FORMAT, check, where,
                             "%s: %s %" PRIu32 ": expected UTF-8 text, found %s in %s", p->label,
                             kind, at, fault, quote(p, *out));
    return SK_OK;
}

/* ---- header ---------------------------------------------------------------------------------- */

static sk_code read_version(parse *p, sk_status *st)
{
    uint32_t version = sk_read_u32(&p->r);
    if (version != 0 && (version & 0xffffu) == 0)
        return SK_FAIL_CHECK(st, SK_FORMAT, "WRONG_ENDIAN", 4,
                             "%s: header: expected a little-endian file, found big-endian GGUF "
                             "(version bytes read 0x%08" PRIx32 ")",
                             p->label, version);
    if (version == 1)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_VERSION", 4,
                             "%s: header: expected GGUF version 2 or 3, found version 1, an "
                             "obsolete layout with 32-bit counts",
                             p->label);
    if (version != 2 && version != 3)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_VERSION", 4,
                             "%s: header: expected GGUF version 2 or 3, found version %" PRIu32,
                             p->label, version);
    p->g.version = version;
    return SK_OK;
}

static sk_code read_counts(parse *p, sk_status *st)
{
    uint64_t n_tensors = sk_read_u64(&p->r);
    uint64_t n_meta = sk_read_u64(&p->r);
    uint64_t left = sk_reader_left(&p->r);
    if (n_tensors > MAX_TENSORS)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_COUNT", 8,
                             "%s: header: expected at most %u tensors, found a count of %" PRIu64,
                             p->label, MAX_TENSORS, n_tensors);
    if (n_meta > MAX_META)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_COUNT", 16,
                             "%s: header: expected at most %u metadata keys, found a count of "
                             "%" PRIu64,
                             p->label, MAX_META, n_meta);
    if (n_tensors * MIN_TENSOR_BYTES + n_meta * MIN_META_BYTES > left)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_COUNT", 8,
                             "%s: header: expected counts that fit in the %" PRIu64
                             " bytes left, found %" PRIu64 " tensors and %" PRIu64 " metadata keys",
                             p->label, left, n_tensors, n_meta);
    p->g.n_tensors = (uint32_t)n_tensors;
    p->g.n_meta = (uint32_t)n_meta;
    return SK_OK;
}

static sk_code read_header(parse *p, sk_status *st)
{
    const uint8_t *magic;
    if (p->r.size < HEADER_BYTES)
        return SK_FAIL_CHECK(st, SK_FORMAT, "TRUNCATED", 0,
                             "%s: header: expected at least %d bytes, found a file of %" PRIu64,
                             p->label, HEADER_BYTES, p->r.size);
    magic = sk_take_bytes(&p->r, 4);
    if (memcmp(magic, "GGUF", 4) != 0)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_MAGIC", 0,
                             "%s: header: expected magic 47 47 55 46 (GGUF), found %02x %02x %02x "
                             "%02x (%s)",
                             p->label, magic[0], magic[1], magic[2], magic[3],
                             quote(p, (sk_str){(const char *)magic, 4}));
    SK_TRY(read_version(p, st));
    return read_counts(p, st);
}

/* ---- metadata -------------------------------------------------------------------------------- */

static uint64_t value_bytes(sk_meta_type type) // 0 for strings and arrays
{
    static const uint8_t bytes[SK_META_TYPE_COUNT] = {
        [SK_META_U8] = 1,  [SK_META_I8] = 1,  [SK_META_U16] = 2, [SK_META_I16] = 2,
        [SK_META_U32] = 4, [SK_META_I32] = 4, [SK_META_F32] = 4, [SK_META_BOOL] = 1,
        [SK_META_U64] = 8, [SK_META_I64] = 8, [SK_META_F64] = 8};
    return bytes[type];
}

static sk_code read_value_type(parse *p, const sk_meta *m, const char *part, sk_meta_type *out,
                               sk_status *st)
{
    uint64_t where = p->r.pos;
    uint32_t type = sk_read_u32(&p->r);
    if (p->r.short_by) return fail_short(p, "metadata key", m->key, part, st);
    if (type >= SK_META_TYPE_COUNT)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_VALUE_TYPE", where,
                             "%s: metadata key %s: expected %s of 0 to 12, found %" PRIu32,
                             p->label, quote(p, m->key), part, type);
    *out = (sk_meta_type)type;
    return SK_OK;
}

static sk_code walk_strings(parse *p, const sk_meta *m, sk_status *st)
{
    for (uint64_t i = 0; i < m->n; i++) {
        uint64_t where = p->r.pos;
        uint64_t n = sk_read_u64(&p->r);
        uint64_t left = sk_reader_left(&p->r);
        if (p->r.short_by) return fail_short(p, "metadata key", m->key, "string length", st);
        if (n > left || n > MAX_STRING_BYTES)
            return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_STRING", where,
                                 "%s: metadata key %s: string %" PRIu64 " of %" PRIu64
                                 ": expected at most %" PRIu64 " bytes, found length %" PRIu64,
                                 p->label, quote(p, m->key), i + 1, m->n,
                                 left < MAX_STRING_BYTES ? left : MAX_STRING_BYTES, n);
        (void)sk_take_bytes(&p->r, n);
    }
    return SK_OK;
}

static sk_code walk_scalars(parse *p, const sk_meta *m, uint64_t each, sk_status *st)
{
    uint64_t where = p->r.pos;
    const uint8_t *values = sk_take_bytes(&p->r, m->n * each); // fits: n was checked against left
    if (!values) return fail_short(p, "metadata key", m->key, "value", st);
    if (m->elem_type != SK_META_BOOL) return SK_OK;
    for (uint64_t i = 0; i < m->n; i++)
        if (values[i] > 1)
            return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_BOOL", where + i,
                                 "%s: metadata key %s: expected a bool of 0 or 1, found %d",
                                 p->label, quote(p, m->key), values[i]);
    return SK_OK;
}

static sk_code read_array_head(parse *p, sk_meta *m, sk_status *st)
{
    uint64_t where = p->r.pos;
    uint64_t each;
    SK_TRY(read_value_type(p, m, "an array element type", &m->elem_type, st));
    if (m->elem_type == SK_META_ARRAY)
        return SK_FAIL_CHECK(st, SK_FORMAT, "NESTED_ARRAY", where,
                             "%s: metadata key %s: expected an array of plain values, found an "
                             "array of arrays",
                             p->label, quote(p, m->key));
    where = p->r.pos;
    m->n = sk_read_u64(&p->r);
    if (p->r.short_by) return fail_short(p, "metadata key", m->key, "array length", st);
    each = m->elem_type == SK_META_STRING ? 8 : value_bytes(m->elem_type);
    if (m->n > sk_reader_left(&p->r) / each)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_ARRAY", where,
                             "%s: metadata key %s: expected at most %" PRIu64
                             " array elements in the bytes left, found a length of %" PRIu64,
                             p->label, quote(p, m->key), sk_reader_left(&p->r) / each, m->n);
    return SK_OK;
}

static sk_code read_meta(parse *p, uint32_t at, sk_status *st)
{
    sk_meta *m = &p->g.meta[at];
    uint64_t from;
    SK_TRY(read_name(p, "metadata key", "BAD_KEY", at, MAX_KEY_BYTES, &m->key, st));
    SK_TRY(read_value_type(p, m, "a value type", &m->type, st));
    m->elem_type = m->type;
    m->n = 1;
    if (m->type == SK_META_ARRAY) SK_TRY(read_array_head(p, m, st));
    from = p->r.pos;
    m->data = p->r.bytes + from;
    if (m->elem_type == SK_META_STRING)
        SK_TRY(walk_strings(p, m, st));
    else
        SK_TRY(walk_scalars(p, m, value_bytes(m->elem_type), st));
    m->n_bytes = p->r.pos - from;
    return SK_OK;
}

static sk_code check_keys_differ(parse *p, sk_status *st)
{
    uint32_t a;
    uint32_t b;
    sk_str key;
    if (!sk_index_find_twins(&p->g.by_key, &a, &b)) return SK_OK;
    key = p->g.meta[b].key;
    return SK_FAIL_CHECK(
        st, SK_FORMAT, "DUPLICATE_KEY", (uint64_t)((const uint8_t *)key.p - p->r.bytes),
        "%s: metadata key %s: expected it once, found it as keys %" PRIu32 " and %" PRIu32,
        p->label, quote(p, key), a, b);
}

static sk_code find_alignment(parse *p, sk_status *st)
{
    static const char key[] = "general.alignment";
    const sk_meta *m = sk_index_find(&p->g.by_key, key, sizeof key - 1);
    uint64_t where;
    uint32_t a;
    p->g.alignment = DEF_ALIGNMENT;
    if (!m) return SK_OK;
    where = (uint64_t)(m->data - p->r.bytes);
    if (m->type != SK_META_U32)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_ALIGNMENT", where,
                             "%s: metadata key %s: expected a uint32, found %s", p->label, key,
                             sk_meta_type_name(m->type));
    a = (uint32_t)m->data[0] | (uint32_t)m->data[1] << 8 | (uint32_t)m->data[2] << 16 |
        (uint32_t)m->data[3] << 24;
    if (a < MIN_ALIGNMENT || a > MAX_ALIGNMENT || (a & (a - 1)) != 0)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_ALIGNMENT", where,
                             "%s: metadata key %s: expected a power of two from %u to %u, found "
                             "%" PRIu32,
                             p->label, key, MIN_ALIGNMENT, MAX_ALIGNMENT, a);
    p->g.alignment = a;
    return SK_OK;
}

static sk_code read_all_meta(parse *p, sk_status *st)
{
    void *items = NULL;
    SK_TRY(sk_mem_new(&items, p->g.n_meta, sizeof(sk_meta), "the metadata index", st));
    p->g.meta = items;
    for (uint32_t at = 0; at < p->g.n_meta; at++) SK_TRY(read_meta(p, at, st));
    SK_TRY(sk_index_init(&p->g.by_key, p->g.meta, sizeof(sk_meta), p->g.n_meta,
                         "the metadata index", st));
    SK_TRY(check_keys_differ(p, st));
    return find_alignment(p, st);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static sk_code read_dims(parse *p, sk_tensor *t, sk_status *st)
{
    uint64_t where = p->r.pos;
    uint32_t n_dims = sk_read_u32(&p->r);
    if (p->r.short_by) return fail_short(p, "tensor", t->name, "number of dimensions", st);
    if (n_dims > MAX_NDIMS)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_NDIMS", where,
                             "%s: tensor %s: expected at most %d dimensions, found %" PRIu32,
                             p->label, quote(p, t->name), MAX_NDIMS, n_dims);
    t->n_dims = (int32_t)n_dims;
    t->n_elems = 1;
    for (uint32_t i = 0; i < SK_MAX_DIMS; i++) t->dim[i] = 1;
    for (uint32_t i = 0; i < n_dims; i++) { // the file has the row length first
        uint64_t n;
        where = p->r.pos;
        n = sk_read_u64(&p->r);
        if (p->r.short_by) return fail_short(p, "tensor", t->name, "dimensions", st);
        if (n < 1 || n > INT64_MAX)
            return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_DIM", where,
                                 "%s: tensor %s: dimension %" PRIu32
                                 ": expected 1 to 2^63-1, found %" PRIu64,
                                 p->label, quote(p, t->name), i, n);
        if (!sk_mul_u64(t->n_elems, n, &t->n_elems) || t->n_elems > INT64_MAX)
            return SK_FAIL_CHECK(st, SK_FORMAT, "OVERFLOW", where,
                                 "%s: tensor %s: expected at most 2^63-1 elements, found more "
                                 "(dimension %" PRIu32 " is %" PRIu64 ")",
                                 p->label, quote(p, t->name), i, n);
        t->dim[n_dims - 1 - i] = n;
    }
    return SK_OK;
}

static sk_code read_type(parse *p, sk_tensor *t, sk_status *st)
{
    uint64_t where = p->r.pos;
    uint32_t id = sk_read_u32(&p->r);
    bool dead = id == 4 || id == 5 || (id >= 31 && id <= 33) || (id >= 36 && id <= 38);
    if (p->r.short_by) return fail_short(p, "tensor", t->name, "type", st);
    if (id > LAST_FILE_TYPE || !sk_dtype_find(id))
        return SK_FAIL_CHECK(st, SK_UNSUPPORTED, "UNKNOWN_TYPE", where,
                             "%s: tensor %s: expected a known tensor type, found id %" PRIu32 "%s",
                             p->label, quote(p, t->name), id,
                             dead ? " (a type removed from GGUF)" : "");
    t->type = (sk_dtype)id;
    return SK_OK;
}

static sk_code find_bytes(parse *p, sk_tensor *t, uint64_t where, sk_status *st)
{
    uint64_t row = t->n_dims ? t->dim[t->n_dims - 1] : 1;
    const sk_dtype_info *info = sk_dtype_find(t->type);
    uint64_t row_bytes;
    if (row % (uint64_t)info->block_elems != 0)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_ROW_LENGTH", where,
                             "%s: tensor %s: expected rows in multiples of %" PRId32
                             " elements for %s, found %" PRIu64,
                             p->label, quote(p, t->name), info->block_elems, info->name, row);
    if (!sk_dtype_row_bytes(t->type, row, &row_bytes) ||
        !sk_mul_u64(row_bytes, t->n_elems / row, &t->n_bytes) || t->n_bytes > SIZE_MAX)
        return SK_FAIL_CHECK(st, SK_FORMAT, "OVERFLOW", where,
                             "%s: tensor %s: expected at most 2^64-1 bytes, found %" PRIu64
                             " elements of %s",
                             p->label, quote(p, t->name), t->n_elems, info->name);
    return SK_OK;
}

static sk_code read_tensor(parse *p, uint32_t at, sk_status *st)
{
    sk_tensor *t = &p->g.tensors[at];
    uint64_t where = p->r.pos;
    SK_TRY(read_name(p, "tensor", "BAD_TENSOR_NAME", at, MAX_NAME_BYTES, &t->name, st));
    SK_TRY(read_dims(p, t, st));
    SK_TRY(read_type(p, t, st));
    SK_TRY(find_bytes(p, t, where, st));
    t->file_off = sk_read_u64(&p->r); // relative to the data section until place_tensors
    if (p->r.short_by) return fail_short(p, "tensor", t->name, "offset", st);
    return SK_OK;
}

static sk_code check_names_differ(parse *p, sk_status *st)
{
    uint32_t a;
    uint32_t b;
    sk_str name;
    if (!sk_index_find_twins(&p->g.by_name, &a, &b)) return SK_OK;
    name = p->g.tensors[b].name;
    return SK_FAIL_CHECK(
        st, SK_FORMAT, "DUPLICATE_TENSOR", (uint64_t)((const uint8_t *)name.p - p->r.bytes),
        "%s: tensor %s: expected it once, found it as tensors %" PRIu32 " and %" PRIu32, p->label,
        quote(p, name), a, b);
}

/* Where the directory holds the tensor's offset: behind name, dimensions and type. */
static uint64_t offset_field(const parse *p, const sk_tensor *t)
{
    uint64_t name_end = (uint64_t)((const uint8_t *)t->name.p - p->r.bytes) + t->name.n;
    return name_end + 4 + 8 * (uint64_t)t->n_dims + 4;
}

static bool offset_less(const void *items, uint32_t a, uint32_t b)
{
    const sk_tensor *tensors = items;
    return tensors[a].file_off < tensors[b].file_off;
}

/* From offsets in the data section to places in the file. */
static sk_code place_tensors(parse *p, sk_status *st)
{
    sk_gguf *g = &p->g;
    uint64_t room;
    g->data_off = g->data_end = p->r.pos;
    if (g->n_tensors == 0) return SK_OK;
    if (!sk_align_up(p->r.pos, g->alignment, &g->data_off) || g->data_off > p->r.size)
        return SK_FAIL_CHECK(st, SK_FORMAT, "TRUNCATED", p->r.pos,
                             "%s: data section: expected its start at offset %" PRIu64
                             ", found the end of the file at %" PRIu64,
                             p->label, g->data_off, p->r.size);
    room = p->r.size - g->data_off;
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        sk_tensor *t = &g->tensors[i];
        uint64_t off = t->file_off;
        if (off % g->alignment != 0)
            return SK_FAIL_CHECK(st, SK_FORMAT, "MISALIGNED_OFFSET", offset_field(p, t),
                                 "%s: tensor %s: expected an offset in multiples of %" PRIu64
                                 ", found %" PRIu64,
                                 p->label, quote(p, t->name), g->alignment, off);
        if (off > room || t->n_bytes > room - off)
            return SK_FAIL_CHECK(st, SK_FORMAT, "OUT_OF_BOUNDS", offset_field(p, t),
                                 "%s: tensor %s: expected %" PRIu64 " bytes at data offset %" PRIu64
                                 ", found a data section of %" PRIu64 " bytes",
                                 p->label, quote(p, t->name), t->n_bytes, off, room);
        t->file_off = g->data_off + off;
        t->data = p->r.bytes + t->file_off;
        if (t->file_off + t->n_bytes > g->data_end) g->data_end = t->file_off + t->n_bytes;
    }
    return SK_OK;
}

static sk_code check_overlap(parse *p, const uint32_t *by_offset, sk_status *st)
{
    const sk_gguf *g = &p->g;
    for (uint32_t i = 1; i < g->n_tensors; i++) {
        const sk_tensor *a = &g->tensors[by_offset[i - 1]];
        const sk_tensor *b = &g->tensors[by_offset[i]];
        if (b->file_off - a->file_off < a->n_bytes)
            return SK_FAIL_CHECK(st, SK_FORMAT, "OVERLAP", b->file_off,
                                 "%s: tensor %s: expected bytes of its own, found them from offset "
                                 "%" PRIu64 " inside those of tensor %s (%" PRIu64
                                 " from offset %" PRIu64 ")",
                                 p->label, quote(p, b->name), b->file_off, quote_other(p, a->name),
                                 a->n_bytes, a->file_off);
    }
    return SK_OK;
}

/* Strict: each tensor begins where the padding of the one before it in the directory ends. */
static sk_code check_gaps(parse *p, sk_status *st)
{
    const sk_gguf *g = &p->g;
    uint64_t expected = g->data_off;
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        const sk_tensor *t = &g->tensors[i];
        if (t->file_off != expected)
            return SK_FAIL_CHECK(st, SK_FORMAT, "GAP", offset_field(p, t),
                                 "%s: tensor %s: expected data offset %" PRIu64
                                 " right behind the tensor before it, found %" PRIu64,
                                 p->label, quote(p, t->name), expected - g->data_off,
                                 t->file_off - g->data_off);
        // Cannot wrap: the tensor lies in the file and the alignment is small.
        expected = (t->file_off + t->n_bytes + g->alignment - 1) & ~(g->alignment - 1);
    }
    return SK_OK;
}

static sk_code check_zero(parse *p, uint64_t from, uint64_t to, sk_status *st)
{
    for (uint64_t at = from; at < to; at++)
        if (p->r.bytes[at] != 0)
            return SK_FAIL_CHECK(st, SK_FORMAT, "TRAILING_DATA", at,
                                 "%s: padding: expected zero bytes from offset %" PRIu64
                                 " to %" PRIu64 ", found 0x%02x at %" PRIu64,
                                 p->label, from, to, p->r.bytes[at], at);
    return SK_OK;
}

/* Strict: nothing behind the last tensor but its padding, and all padding zero. Runs after
 * check_gaps, so tensors are in order here. */
static sk_code check_padding(parse *p, sk_status *st)
{
    const sk_gguf *g = &p->g;
    uint64_t trailing = p->r.size - g->data_end;
    uint64_t end = p->r.pos;
    if (trailing >= g->alignment)
        return SK_FAIL_CHECK(st, SK_FORMAT, "TRAILING_DATA", g->data_end,
                             "%s: end of file: expected fewer than %" PRIu64
                             " bytes behind the last tensor, found %" PRIu64,
                             p->label, g->alignment, trailing);
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        const sk_tensor *t = &g->tensors[i];
        SK_TRY(check_zero(p, end, t->file_off, st));
        end = t->file_off + t->n_bytes;
    }
    return check_zero(p, end, p->r.size, st);
}

static sk_code read_all_tensors(parse *p, sk_status *st)
{
    sk_gguf *g = &p->g;
    void *items = NULL;
    uint32_t *by_offset = NULL;
    sk_code rc;
    SK_TRY(sk_mem_new(&items, g->n_tensors, sizeof(sk_tensor), "the tensor index", st));
    g->tensors = items;
    for (uint32_t at = 0; at < g->n_tensors; at++) SK_TRY(read_tensor(p, at, st));
    SK_TRY(sk_index_init(&g->by_name, g->tensors, sizeof(sk_tensor), g->n_tensors,
                         "the tensor index", st));
    SK_TRY(check_names_differ(p, st));
    SK_TRY(place_tensors(p, st));
    SK_TRY(
        sk_order_make(&by_offset, g->n_tensors, offset_less, g->tensors, "the tensor order", st));
    rc = check_overlap(p, by_offset, st);
    sk_mem_free(by_offset);
    return rc;
}

/* ---- the interface --------------------------------------------------------------------------- */

sk_code sk_gguf_init(sk_gguf *out, const uint8_t *bytes, uint64_t size, const char *label,
                     bool strict, sk_status *st)
{
    parse p = {.r = {.bytes = bytes, .size = size}, .g = {.bytes = bytes, .size = size}};
    sk_code rc;
    (void)sk_quote_path(p.label, sizeof p.label, label);
    rc = read_header(&p, st);
    if (rc == SK_OK) rc = read_all_meta(&p, st);
    if (rc == SK_OK) rc = read_all_tensors(&p, st);
    if (rc == SK_OK && strict) rc = check_gaps(&p, st);
    if (rc == SK_OK && strict) rc = check_padding(&p, st);
    if (rc != SK_OK) {
        sk_gguf_fini(&p.g);
        return rc;
    }
    *out = p.g;
    return SK_OK;
}

void sk_gguf_fini(sk_gguf *g)
{
    sk_mem_free(g->meta);
    sk_mem_free(g->tensors);
    sk_index_fini(&g->by_key);
    sk_index_fini(&g->by_name);
    *g = (sk_gguf){0};
}
