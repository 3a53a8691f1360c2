/* See safetensors.h.
 *
 * The header is read twice: once to see that it is JSON and how much room it needs, once to fill
 * that room. So there are four allocations, all bounded by the header, which is bounded by the
 * file. Names of checks (BAD_JSON, ...) are part of the interface: tests and users match on them.
 */
#include "ckpt/safetensors.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/order.h"
#include "base/text.h"

#include <inttypes.h>
#include <string.h>

#define LENGTH_BYTES     8u
#define MAX_HEADER_BYTES UINT64_C(100000000)
#define MAX_TENSORS      1048576u
#define MAX_META         65536u
#define MAX_NAME_BYTES   1024u

typedef struct parse {
    const uint8_t *bytes;
    uint64_t size;
    sk_json j; // over the header
    sk_safetensors s;
    uint64_t text_bytes; // measured, then filled
    bool strict;
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

/* Where the reader stands, in the file. */
static uint64_t where(const parse *p) { return LENGTH_BYTES + p->j.pos; }

static sk_code bad_json(parse *p, sk_status *st)
{
    return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_JSON", where(p),
                         "%s: header: expected %s at offset %" PRIu64
                         ", found other bytes or the end",
                         p->label, p->j.fault ? p->j.fault : "an object", where(p));
}

static sk_json_token next(parse *p) { return sk_json_next(&p->j); }

/* ---- first reading --------------------------------------------------------------------------- */

static sk_code read_length(parse *p, sk_status *st)
{
    uint64_t n = 0;
    if (p->size < LENGTH_BYTES)
        return SK_FAIL_CHECK(st, SK_FORMAT, "TRUNCATED", 0,
                             "%s: header: expected 8 bytes of length, found a file of %" PRIu64,
                             p->label, p->size);
    for (uint32_t i = 0; i < LENGTH_BYTES; i++) n |= (uint64_t)p->bytes[i] << 8 * i;
    if (n < 2 || n > MAX_HEADER_BYTES)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_HEADER_LENGTH", 0,
                             "%s: header: expected a length of 2 to %" PRIu64
                             " bytes, found %" PRIu64,
                             p->label, MAX_HEADER_BYTES, n);
    if (n > p->size - LENGTH_BYTES)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_HEADER_LENGTH", 0,
                             "%s: header: expected a length within the %" PRIu64
                             " bytes that follow, found %" PRIu64,
                             p->label, p->size - LENGTH_BYTES, n);
    p->s.data_off = LENGTH_BYTES + n;
    p->j = sk_json_over(p->bytes + LENGTH_BYTES, n);
    if (!sk_utf8_valid(p->j.p, n))
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_UTF8", LENGTH_BYTES,
                             "%s: header: expected UTF-8 text, found other bytes", p->label);
    return SK_OK;
}

static sk_code measure_meta(parse *p, sk_status *st)
{
    sk_json_token t = next(p);
    if (t.kind == SK_JSON_BAD) return bad_json(p, st);
    if (t.kind != SK_JSON_OBJECT)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_METADATA", where(p),
                             "%s: __metadata__: expected an object, found another value", p->label);
    for (t = next(p); t.kind == SK_JSON_NAME; t = next(p)) {
        const sk_json_token name = t;
        t = next(p);
        if (t.kind == SK_JSON_BAD) return bad_json(p, st);
        if (t.kind != SK_JSON_STRING)
            return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_METADATA", where(p),
                                 "%s: __metadata__: member %s: expected a string, found another "
                                 "value",
                                 p->label, quote(p, (sk_str){name.p, name.n}));
        if (++p->s.n_meta > MAX_META)
            return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_COUNT", where(p),
                                 "%s: __metadata__: expected at most %u members, found more",
                                 p->label, MAX_META);
        p->text_bytes += name.text_n + 8 + t.text_n;
    }
    return t.kind == SK_JSON_OBJECT_END ? SK_OK : bad_json(p, st);
}

static sk_code measure(parse *p, sk_status *st)
{
    bool had_meta = false;
    sk_json_token t = next(p);
    if (t.kind != SK_JSON_OBJECT) return bad_json(p, st);
    for (t = next(p); t.kind == SK_JSON_NAME; t = next(p)) {
        if (sk_json_is(&t, "__metadata__")) {
            if (had_meta)
                return SK_FAIL_CHECK(st, SK_FORMAT, "DUPLICATE_KEY", where(p),
                                     "%s: __metadata__: expected it once, found it twice",
                                     p->label);
            had_meta = true;
            SK_TRY(measure_meta(p, st));
            continue;
        }
        if (++p->s.n_tensors > MAX_TENSORS)
            return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_COUNT", where(p),
                                 "%s: header: expected at most %u tensors, found more", p->label,
                                 MAX_TENSORS);
        if (t.text_n != t.n) p->text_bytes += t.text_n;
        t = next(p);
        if (!sk_json_skip(&p->j, &t)) return bad_json(p, st);
    }
    if (t.kind != SK_JSON_OBJECT_END || next(p).kind != SK_JSON_END) return bad_json(p, st);
    p->j = sk_json_over(p->j.p, p->j.n);
    return SK_OK;
}

/* ---- second reading: no fault of JSON is left ------------------------------------------------ */

static char *take_text(parse *p, const sk_json_token *t)
{
    char *out = p->s.text + p->text_bytes;
    sk_json_text(t, out);
    p->text_bytes += t->text_n;
    return out;
}

static void read_meta(parse *p)
{
    sk_json_token t;
    (void)next(p); // the object
    for (t = next(p); t.kind == SK_JSON_NAME; t = next(p)) {
        sk_meta *m = &p->s.meta[p->s.n_meta++];
        uint64_t n;
        m->key = (sk_str){take_text(p, &t), t.text_n};
        m->type = m->elem_type = SK_META_STRING;
        m->n = 1;
        t = next(p);
        n = t.text_n;
        m->data = (const uint8_t *)p->s.text + p->text_bytes;
        m->n_bytes = 8 + n;
        for (uint32_t i = 0; i < 8; i++) p->s.text[p->text_bytes++] = (char)(uint8_t)(n >> 8 * i);
        (void)take_text(p, &t);
    }
}

static sk_code read_name(parse *p, const sk_json_token *t, sk_str *out, sk_status *st)
{
    const char *fault = NULL;
    if (t->text_n < 1 || t->text_n > MAX_NAME_BYTES)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_TENSOR_NAME", where(p),
                             "%s: tensor %" PRIu32 ": expected a name of 1 to %u bytes, found "
                             "%" PRIu64,
                             p->label, p->s.n_tensors, MAX_NAME_BYTES, t->text_n);
    *out = (sk_str){t->text_n == t->n ? t->p : take_text(p, t), t->text_n};
    if (sk_has_control(out->p, out->n)) fault = "a control byte";
    if (!fault) return SK_OK;
    return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_TENSOR_NAME", where(p),
                         "%s: tensor %" PRIu32 ": expected a printable name, found %s in %s",
                         p->label, p->s.n_tensors, fault, quote(p, *out));
}

static const struct {
    const char *name;
    sk_dtype type;
} dtypes[] = {{"BF16", SK_BF16},
              {"F16", SK_F16},
              {"F32", SK_F32},
              {"F64", SK_F64},
              {"F8_E4M3", SK_F8_E4M3},
              {"F8_E5M2", SK_F8_E5M2},
              {"F8_E8M0", SK_F8_E8M0},
              {"F8_E4M3FNUZ", SK_F8_E4M3FNUZ},
              {"F8_E5M2FNUZ", SK_F8_E5M2FNUZ},
              {"F4", SK_F4},
              {"F6_E2M3", SK_F6_E2M3},
              {"F6_E3M2", SK_F6_E3M2},
              {"BOOL", SK_BOOL},
              {"U8", SK_U8},
              {"U16", SK_U16},
              {"U32", SK_U32},
              {"U64", SK_U64},
              {"I8", SK_I8},
              {"I16", SK_I16},
              {"I32", SK_I32},
              {"I64", SK_I64},
              {"C64", SK_C64}};

static sk_code read_dtype(parse *p, sk_tensor *t, sk_status *st)
{
    const sk_json_token v = next(p);
    if (v.kind != SK_JSON_STRING)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_DTYPE", where(p),
                             "%s: tensor %s: dtype: expected a string, found another value",
                             p->label, quote(p, t->name));
    for (size_t i = 0; i < SK_COUNT(dtypes); i++)
        if (sk_json_is(&v, dtypes[i].name)) {
            t->type = dtypes[i].type;
            return SK_OK;
        }
    return SK_FAIL_CHECK(st, SK_UNSUPPORTED, "BAD_DTYPE", where(p),
                         "%s: tensor %s: dtype: expected a known type, found %s", p->label,
                         quote(p, t->name), quote_other(p, (sk_str){v.p, v.n}));
}

/* The next value as an unsigned integer; *end when it is the end of the array. */
static sk_code read_number(parse *p, const sk_tensor *t, const char *member, const char *check,
                           uint64_t *out, bool *end, sk_status *st)
{
    const sk_json_token v = next(p);
    *end = v.kind == SK_JSON_ARRAY_END;
    if (*end || sk_json_u64(&v, out)) return SK_OK;
    return SK_FAIL_CHECK(st, SK_FORMAT, check, where(p),
                         "%s: tensor %s: %s: expected integers from 0 to 2^64-1, found %s",
                         p->label, quote(p, t->name), member,
                         quote_other(p, (sk_str){v.p, v.n < 40 ? v.n : 40}));
}

static sk_code want_array(parse *p, const sk_tensor *t, const char *member, const char *check,
                          sk_status *st)
{
    if (next(p).kind == SK_JSON_ARRAY) return SK_OK;
    return SK_FAIL_CHECK(st, SK_FORMAT, check, where(p),
                         "%s: tensor %s: %s: expected an array, found another value", p->label,
                         quote(p, t->name), member);
}

static sk_code read_shape(parse *p, sk_tensor *t, sk_status *st)
{
    uint64_t n = 0;
    bool end;
    SK_TRY(want_array(p, t, "shape", "BAD_DIM", st));
    for (;;) {
        SK_TRY(read_number(p, t, "shape", "BAD_DIM", &n, &end, st));
        if (end) return SK_OK;
        if (t->n_dims == SK_MAX_DIMS)
            return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_NDIMS", where(p),
                                 "%s: tensor %s: expected at most %d dimensions, found more",
                                 p->label, quote(p, t->name), SK_MAX_DIMS);
        t->dim[t->n_dims++] = n;
    }
}

static sk_code read_offsets(parse *p, sk_tensor *t, sk_status *st)
{
    uint64_t at[2] = {0, 0};
    uint64_t more;
    bool end = false;
    int n = 0;
    SK_TRY(want_array(p, t, "data_offsets", "BAD_OFFSETS", st));
    for (; n < 3; n++) {
        SK_TRY(read_number(p, t, "data_offsets", "BAD_OFFSETS", n < 2 ? &at[n] : &more, &end, st));
        if (end) break;
    }
    if (n != 2)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_OFFSETS", where(p),
                             "%s: tensor %s: data_offsets: expected two numbers, found %s",
                             p->label, quote(p, t->name), n < 2 ? "fewer" : "more");
    if (at[0] > at[1])
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_OFFSETS", where(p),
                             "%s: tensor %s: data_offsets: expected the end behind the beginning, "
                             "found [%" PRIu64 ", %" PRIu64 "]",
                             p->label, quote(p, t->name), at[0], at[1]);
    t->file_off = at[0]; // from the start of the buffer until place_tensors
    t->n_bytes = at[1] - at[0];
    return SK_OK;
}

/* Bytes by type and shape against those of the offsets. A zero anywhere makes the tensor empty,
 * whatever the product of the others. */
static sk_code check_size(parse *p, sk_tensor *t, sk_status *st)
{
    const sk_dtype_info *info = sk_dtype_find(t->type);
    uint64_t n_bytes = 0;
    bool fits = true;
    bool empty = false;
    t->n_elems = 1;
    for (int32_t i = 0; i < t->n_dims; i++) empty = empty || t->dim[i] == 0;
    for (int32_t i = 0; i < t->n_dims && fits; i++)
        fits = sk_mul_u64(t->n_elems, t->dim[i] ? t->dim[i] : 1, &t->n_elems);
    fits = fits && t->n_elems <= INT64_MAX &&
           sk_mul_u64(t->n_elems / (uint64_t)info->block_elems, (uint64_t)info->block_bytes,
                      &n_bytes) &&
           n_bytes <= INT64_MAX;
    if (!fits)
        return SK_FAIL_CHECK(
            st, SK_FORMAT, "OVERFLOW", where(p),
            "%s: tensor %s: expected at most 2^63-1 elements and bytes, found more", p->label,
            quote(p, t->name));
    if (empty) t->n_elems = n_bytes = 0;
    if (t->n_elems % (uint64_t)info->block_elems != 0)
        return SK_FAIL_CHECK(st, SK_FORMAT, "ODD_BITS", where(p),
                             "%s: tensor %s: expected whole bytes, found %" PRIu64
                             " elements of %s",
                             p->label, quote(p, t->name), t->n_elems, info->name);
    if (n_bytes != t->n_bytes)
        return SK_FAIL_CHECK(st, SK_FORMAT, "SIZE_MISMATCH", where(p),
                             "%s: tensor %s: expected %" PRIu64
                             " bytes by its type and shape, found %" PRIu64 " by its offsets",
                             p->label, quote(p, t->name), n_bytes, t->n_bytes);
    return SK_OK;
}

static sk_code read_tensor(parse *p, sk_tensor *t, sk_status *st)
{
    static const char *const names[3] = {"dtype", "shape", "data_offsets"};
    bool had[3] = {false};
    sk_json_token m = next(p);
    if (m.kind != SK_JSON_OBJECT)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_TENSOR", where(p),
                             "%s: tensor %s: expected an object, found another value", p->label,
                             quote(p, t->name));
    for (m = next(p); m.kind == SK_JSON_NAME; m = next(p)) {
        int which = 0;
        while (which < 3 && !sk_json_is(&m, names[which])) which++;
        if (which == 3) {
            if (p->strict)
                return SK_FAIL_CHECK(st, SK_FORMAT, "UNKNOWN_MEMBER", where(p),
                                     "%s: tensor %s: expected dtype, shape and data_offsets, found "
                                     "a member %s",
                                     p->label, quote(p, t->name),
                                     quote_other(p, (sk_str){m.p, m.n}));
            m = next(p);
            (void)sk_json_skip(&p->j, &m);
            continue;
        }
        if (had[which])
            return SK_FAIL_CHECK(st, SK_FORMAT, "DUPLICATE_MEMBER", where(p),
                                 "%s: tensor %s: %s: expected it once, found it twice", p->label,
                                 quote(p, t->name), names[which]);
        had[which] = true;
        SK_TRY(which == 0   ? read_dtype(p, t, st)
               : which == 1 ? read_shape(p, t, st)
                            : read_offsets(p, t, st));
    }
    for (int i = 0; i < 3; i++)
        if (!had[i])
            return SK_FAIL_CHECK(st, SK_FORMAT, "MISSING_MEMBER", where(p),
                                 "%s: tensor %s: expected a member %s, found none", p->label,
                                 quote(p, t->name), names[i]);
    return check_size(p, t, st);
}

static sk_code read_all(parse *p, sk_status *st)
{
    sk_json_token t;
    void *meta = NULL;
    void *tensors = NULL;
    void *text = NULL;
    SK_TRY(sk_mem_new(&meta, p->s.n_meta, sizeof(sk_meta), "the metadata index", st));
    p->s.meta = meta;
    SK_TRY(sk_mem_new(&tensors, p->s.n_tensors, sizeof(sk_tensor), "the tensor index", st));
    p->s.tensors = tensors;
    SK_TRY(sk_mem_new(&text, (size_t)p->text_bytes, 1, "names of tensors", st));
    p->s.text = text;
    p->text_bytes = 0;
    p->s.n_meta = p->s.n_tensors = 0;
    (void)next(p); // the object
    for (t = next(p); t.kind == SK_JSON_NAME; t = next(p)) {
        sk_tensor *tensor;
        if (sk_json_is(&t, "__metadata__")) {
            read_meta(p);
            continue;
        }
        tensor = &p->s.tensors[p->s.n_tensors];
        SK_TRY(read_name(p, &t, &tensor->name, st));
        SK_TRY(read_tensor(p, tensor, st));
        p->s.n_tensors++;
    }
    return SK_OK;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static sk_code check_names_differ(parse *p, sk_status *st)
{
    uint32_t a;
    uint32_t b;
    if (sk_index_find_twins(&p->s.by_key, &a, &b))
        return SK_FAIL_CHECK(st, SK_FORMAT, "DUPLICATE_KEY", LENGTH_BYTES,
                             "%s: __metadata__: member %s: expected it once, found it twice",
                             p->label, quote(p, p->s.meta[b].key));
    if (sk_index_find_twins(&p->s.by_name, &a, &b))
        return SK_FAIL_CHECK(st, SK_FORMAT, "DUPLICATE_TENSOR", LENGTH_BYTES,
                             "%s: tensor %s: expected it once, found it as tensors %" PRIu32
                             " and %" PRIu32,
                             p->label, quote(p, p->s.tensors[b].name), a, b);
    return SK_OK;
}

static bool place_less(const void *items, uint32_t a, uint32_t b)
{
    const sk_tensor *t = items;
    if (t[a].file_off != t[b].file_off) return t[a].file_off < t[b].file_off;
    return t[a].n_bytes < t[b].n_bytes;
}

/* Every byte of the buffer belongs to exactly one tensor. */
static sk_code check_cover(parse *p, const uint32_t *order, sk_status *st)
{
    const uint64_t room = p->size - p->s.data_off;
    uint64_t expected = 0;
    for (uint32_t i = 0; i < p->s.n_tensors; i++) {
        const sk_tensor *t = &p->s.tensors[order[i]];
        const bool hole = t->file_off > expected;
        if (t->file_off != expected)
            return SK_FAIL_CHECK(st, SK_FORMAT, hole ? "HOLE" : "OVERLAP", p->s.data_off,
                                 "%s: tensor %s: expected its bytes from buffer offset %" PRIu64
                                 ", right behind those of %s, found them from %" PRIu64,
                                 p->label, quote(p, t->name), expected,
                                 i ? quote_other(p, p->s.tensors[order[i - 1]].name) : "the header",
                                 t->file_off);
        if (t->n_bytes > room - expected)
            return SK_FAIL_CHECK(st, SK_FORMAT, "INCOMPLETE", p->size,
                                 "%s: tensor %s: expected %" PRIu64
                                 " bytes from buffer offset %" PRIu64
                                 ", found a buffer of %" PRIu64,
                                 p->label, quote(p, t->name), t->n_bytes, t->file_off, room);
        expected += t->n_bytes;
    }
    if (expected != room)
        return SK_FAIL_CHECK(st, SK_FORMAT, "TRAILING_DATA", p->s.data_off + expected,
                             "%s: end of file: expected nothing behind the last tensor, found "
                             "%" PRIu64 " bytes",
                             p->label, room - expected);
    return SK_OK;
}

static sk_code finish(parse *p, sk_status *st)
{
    uint32_t *order = NULL;
    sk_code rc;
    SK_TRY(sk_index_init(&p->s.by_key, p->s.meta, sizeof(sk_meta), p->s.n_meta,
                         "the metadata index", st));
    SK_TRY(sk_index_init(&p->s.by_name, p->s.tensors, sizeof(sk_tensor), p->s.n_tensors,
                         "the tensor index", st));
    SK_TRY(check_names_differ(p, st));
    SK_TRY(sk_order_make(&order, p->s.n_tensors, place_less, p->s.tensors, "the tensor order", st));
    rc = check_cover(p, order, st);
    sk_mem_free(order);
    SK_TRY(rc);
    for (uint32_t i = 0; i < p->s.n_tensors; i++) {
        sk_tensor *t = &p->s.tensors[i];
        t->file_off += p->s.data_off;
        t->data = p->bytes + t->file_off;
    }
    return SK_OK;
}

sk_code sk_safetensors_init(sk_safetensors *out, const uint8_t *bytes, uint64_t size,
                            const char *label, bool strict, sk_status *st)
{
    parse p = {.bytes = bytes, .size = size, .s = {.bytes = bytes, .size = size}, .strict = strict};
    sk_code rc;
    (void)sk_quote_path(p.label, sizeof p.label, label);
    rc = read_length(&p, st);
    if (rc == SK_OK) rc = measure(&p, st);
    if (rc == SK_OK) rc = read_all(&p, st);
    if (rc == SK_OK) rc = finish(&p, st);
    if (rc != SK_OK) {
        sk_safetensors_fini(&p.s);
        return rc;
    }
    *out = p.s;
    return SK_OK;
}

void sk_safetensors_fini(sk_safetensors *s)
{
    sk_mem_free(s->meta);
    sk_mem_free(s->tensors);
    sk_mem_free(s->text);
    sk_index_fini(&s->by_key);
    sk_index_fini(&s->by_name);
    *s = (sk_safetensors){0};
}
