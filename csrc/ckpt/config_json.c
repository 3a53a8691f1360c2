/* See config_json.h. Both readers go over the text twice: once to measure, once to fill. */
#include "ckpt/config_json.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"

#include <inttypes.h>
#include <string.h>

#define MAX_CONFIG_BYTES (UINT64_C(16) << 20)
#define MAX_INDEX_BYTES  (UINT64_C(512) << 20)
#define MAX_KEYS         65536u
#define MAX_KEY_BYTES    255u // of a joined key
#define MAX_TENSORS      1048576u
#define MAX_NAME_BYTES   1024u
#define MAX_FILE_BYTES   255u

typedef struct reader {
    sk_json j;
    char label[SK_LABEL_MAX];
    char quoted[SK_QUOTE_MAX];
    uint32_t n;
    uint64_t text_n; // measured, then filled
    char *text;      // NULL: measuring
} reader;

static sk_code bad_json(reader *r, sk_status *st)
{
    return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_JSON", r->j.pos,
                         "%s: expected %s at offset %" PRIu64 ", found other bytes or the end",
                         r->label, r->j.fault ? r->j.fault : "one object", r->j.pos);
}

static sk_code check_bytes(reader *r, uint64_t size, uint64_t max, const char *check, sk_status *st)
{
    if (size <= max) return SK_OK;
    return SK_FAIL_CHECK(st, SK_FORMAT, check, 0,
                         "%s: expected at most %" PRIu64 " bytes, found a file of %" PRIu64,
                         r->label, max, size);
}

static char *put(reader *r, const void *bytes, uint64_t n)
{
    char *at = r->text ? r->text + r->text_n : NULL;
    if (at && n) memcpy(at, bytes, (size_t)n);
    r->text_n += n;
    return at;
}

static char *put_text(reader *r, const sk_json_token *t)
{
    char *at = r->text ? r->text + r->text_n : NULL;
    if (at) sk_json_text(t, at);
    r->text_n += t->text_n;
    return at;
}

static char *put_u64(reader *r, uint64_t x)
{
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(x >> 8 * i);
    return put(r, bytes, 8);
}

/* ---- config.json ----------------------------------------------------------------------------- */

typedef struct config_reader {
    reader r;
    sk_meta *meta; // NULL: measuring
    char key[MAX_KEY_BYTES + 1];
    uint32_t key_n;
} config_reader;

/* Type of a scalar token; SK_META_TYPE_COUNT for what is none. */
static sk_meta_type type_of(const sk_json_token *t)
{
    uint64_t magnitude;
    bool negative;
    switch (t->kind) {
    case SK_JSON_STRING:
        return SK_META_STRING;
    case SK_JSON_TRUE:
    case SK_JSON_FALSE:
        return SK_META_BOOL;
    case SK_JSON_NUMBER:
        if (!sk_json_integer(t, &magnitude, &negative)) return SK_META_F64;
        if (!negative) return SK_META_U64;
        return magnitude <= INT64_MAX ? SK_META_I64 : SK_META_F64;
    default:
        return SK_META_TYPE_COUNT;
    }
}

static bool is_number(sk_meta_type type)
{
    return type == SK_META_U64 || type == SK_META_I64 || type == SK_META_F64;
}

/* The type that can hold both. */
static sk_meta_type join(sk_meta_type a, sk_meta_type b)
{
    if (a == b) return a;
    if (!is_number(a) || !is_number(b)) return SK_META_TYPE_COUNT;
    return SK_META_F64; // signs that differ are rare enough to be written as floats
}

static char *put_value(reader *r, const sk_json_token *t, sk_meta_type type)
{
    uint64_t x = 0;
    bool negative = false;
    char *at;
    uint8_t flag = t->kind == SK_JSON_TRUE;
    double f;
    switch (type) {
    case SK_META_STRING:
        at = put_u64(r, t->text_n);
        (void)put_text(r, t);
        return at;
    case SK_META_BOOL:
        return put(r, &flag, 1);
    case SK_META_F64:
        f = sk_json_f64(t);
        memcpy(&x, &f, sizeof x);
        return put_u64(r, x);
    default:
        (void)sk_json_integer(t, &x, &negative);
        return put_u64(r, negative ? UINT64_MAX - x + 1 : x);
    }
}

/* The next item, of the current key; NULL while measuring. */
static sk_code add_item(config_reader *c, sk_meta **out, sk_status *st)
{
    char *key;
    *out = NULL;
    if (c->r.n == MAX_KEYS)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_CONFIG", c->r.j.pos,
                             "%s: expected at most %u keys, found more", c->r.label, MAX_KEYS);
    key = put(&c->r, c->key, c->key_n);
    if (c->meta) {
        *out = &c->meta[c->r.n];
        (*out)->key = (sk_str){key, c->key_n};
        (*out)->type = (*out)->elem_type = SK_META_TYPE_COUNT; // holds its place among the names
        (*out)->n = 1;
    }
    c->r.n++;
    return SK_OK;
}

static sk_code read_array(config_reader *c, sk_meta *m, sk_status *st)
{
    const sk_json begin = c->r.j;
    sk_json_token t = sk_json_next(&c->r.j);
    sk_meta_type type = t.kind == SK_JSON_ARRAY_END ? SK_META_F64 : type_of(&t);
    uint64_t n = 0;
    uint64_t from;
    for (; t.kind != SK_JSON_ARRAY_END; t = sk_json_next(&c->r.j), n++) {
        if (!sk_json_skip(&c->r.j, &t)) return bad_json(&c->r, st);
        type = join(type, type_of(&t));
    }
    if (type == SK_META_TYPE_COUNT) return SK_OK; // not for us
    c->r.j = begin;
    from = c->r.text_n;
    if (m) {
        m->data = (const uint8_t *)c->r.text + from;
        m->type = SK_META_ARRAY;
        m->elem_type = type;
        m->n = n;
    }
    for (t = sk_json_next(&c->r.j); t.kind != SK_JSON_ARRAY_END; t = sk_json_next(&c->r.j))
        (void)put_value(&c->r, &t, type);
    if (m) m->n_bytes = c->r.text_n - from;
    return SK_OK;
}

static sk_code read_value(config_reader *c, const sk_json_token *t, sk_status *st)
{
    const sk_meta_type type = type_of(t);
    const uint64_t from = c->r.text_n + c->key_n;
    sk_meta *m;
    SK_TRY(add_item(c, &m, st));
    if (t->kind == SK_JSON_ARRAY) return read_array(c, m, st);
    if (type == SK_META_TYPE_COUNT) return SK_OK;
    {
        const char *data = put_value(&c->r, t, type);
        if (!m) return SK_OK;
        m->data = (const uint8_t *)data;
    }
    m->type = m->elem_type = type;
    m->n_bytes = c->r.text_n - from;
    return SK_OK;
}

static sk_code push_key(config_reader *c, const sk_json_token *t, sk_status *st)
{
    const uint32_t dot = c->key_n > 0;
    if (c->key_n + dot > MAX_KEY_BYTES || t->text_n > MAX_KEY_BYTES - c->key_n - dot)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_CONFIG", c->r.j.pos,
                             "%s: expected keys of at most %u bytes, found a longer one below %s",
                             c->r.label, MAX_KEY_BYTES,
                             sk_quote(c->r.quoted, sizeof c->r.quoted, c->key, c->key_n));
    if (dot) c->key[c->key_n++] = '.';
    sk_json_text(t, c->key + c->key_n);
    c->key_n += (uint32_t)t->text_n;
    return SK_OK;
}

/* One reading, measuring or filling. Objects are walked by hand: `outer` has the length of the key
 * of every object that is open. */
static sk_code walk_config(config_reader *c, sk_status *st)
{
    uint32_t outer[SK_JSON_DEPTH] = {0};
    uint32_t depth = 1;
    sk_json_token t = sk_json_next(&c->r.j);
    if (t.kind == SK_JSON_BAD) return bad_json(&c->r, st);
    if (t.kind != SK_JSON_OBJECT)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_CONFIG", 0,
                             "%s: expected an object, found another value", c->r.label);
    while (depth > 0) {
        t = sk_json_next(&c->r.j);
        if (t.kind == SK_JSON_BAD) return bad_json(&c->r, st);
        if (t.kind == SK_JSON_OBJECT_END) {
            depth--;
            c->key_n = depth ? outer[depth - 1] : 0;
            continue;
        }
        c->key_n = outer[depth - 1];
        SK_TRY(push_key(c, &t, st));
        t = sk_json_next(&c->r.j);
        if (t.kind == SK_JSON_BAD) return bad_json(&c->r, st);
        SK_TRY(read_value(c, &t, st));
        if (t.kind == SK_JSON_OBJECT && depth < SK_JSON_DEPTH) outer[depth++] = c->key_n;
    }
    return sk_json_next(&c->r.j).kind == SK_JSON_END ? SK_OK : bad_json(&c->r, st);
}

static sk_code index_keys(config_reader *c, sk_config_json *out, sk_status *st)
{
    uint32_t a;
    uint32_t b;
    uint32_t n = 0;
    SK_TRY(sk_index_init(&out->by_key, out->meta, sizeof(sk_meta), out->n_meta, "the config index",
                         st));
    if (sk_index_find_twins(&out->by_key, &a, &b))
        return SK_FAIL_CHECK(
            st, SK_FORMAT, "DUPLICATE_KEY", 0, "%s: key %s: expected it once, found it twice",
            c->r.label,
            sk_quote(c->r.quoted, sizeof c->r.quoted, out->meta[b].key.p, out->meta[b].key.n));
    sk_index_fini(&out->by_key);
    for (uint32_t i = 0; i < out->n_meta; i++)
        if (out->meta[i].type != SK_META_TYPE_COUNT) out->meta[n++] = out->meta[i];
    out->n_meta = n;
    return sk_index_init(&out->by_key, out->meta, sizeof(sk_meta), n, "the config index", st);
}

static sk_code fill_config(config_reader *c, sk_config_json *out, sk_status *st)
{
    void *meta = NULL;
    void *text = NULL;
    SK_TRY(sk_mem_new(&meta, c->r.n, sizeof(sk_meta), "the config index", st));
    out->meta = meta;
    SK_TRY(sk_mem_new(&text, (size_t)c->r.text_n, 1, "values of config.json", st));
    out->text = text;
    c->meta = out->meta;
    c->r.text = out->text;
    c->r.n = 0;
    c->r.text_n = 0;
    c->r.j = sk_json_over(out->bytes, out->size);
    SK_TRY(walk_config(c, st));
    out->n_meta = c->r.n;
    return index_keys(c, out, st);
}

sk_code sk_config_json_init(sk_config_json *out, const uint8_t *bytes, uint64_t size,
                            const char *label, sk_status *st)
{
    config_reader c = {.r = {.j = sk_json_over(bytes, size)}};
    sk_config_json result = {.bytes = bytes, .size = size};
    sk_code rc;
    (void)sk_quote_path(c.r.label, sizeof c.r.label, label);
    rc = check_bytes(&c.r, size, MAX_CONFIG_BYTES, "BAD_CONFIG", st);
    if (rc == SK_OK) rc = walk_config(&c, st);
    if (rc == SK_OK) rc = fill_config(&c, &result, st);
    if (rc != SK_OK) {
        sk_config_json_fini(&result);
        return rc;
    }
    *out = result;
    return SK_OK;
}

void sk_config_json_fini(sk_config_json *c)
{
    sk_mem_free(c->meta);
    sk_mem_free(c->text);
    sk_index_fini(&c->by_key);
    *c = (sk_config_json){0};
}

/* ---- model.safetensors.index.json ------------------------------------------------------------ */

static sk_code bad_index(reader *r, const char *expected, sk_status *st)
{
    return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_INDEX", r->j.pos,
                         "%s: expected %s, found something else at offset %" PRIu64, r->label,
                         expected, r->j.pos);
}

static bool plain_name(sk_str s)
{
    if (s.n < 1 || s.n > MAX_FILE_BYTES || sk_has_control(s.p, s.n)) return false;
    for (uint64_t i = 0; i < s.n; i++) {
        if (s.p[i] == '/' || s.p[i] == '\\') return false;
        if (i && s.p[i] == '.' && s.p[i - 1] == '.') return false;
    }
    return s.n > 1 || s.p[0] != '.';
}

static sk_code check_mapped(reader *r, const sk_mapped *m, sk_status *st)
{
    if (m->name.n < 1 || m->name.n > MAX_NAME_BYTES || sk_has_control(m->name.p, m->name.n))
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_TENSOR_NAME", r->j.pos,
                             "%s: weight_map: expected printable names of 1 to %u bytes, found %s",
                             r->label, MAX_NAME_BYTES,
                             sk_quote(r->quoted, sizeof r->quoted, m->name.p, m->name.n));
    if (!plain_name(m->file))
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_FILE_NAME", r->j.pos,
                             "%s: weight_map: expected names of files in the same folder, found %s",
                             r->label, sk_quote(r->quoted, sizeof r->quoted, m->file.p, m->file.n));
    return SK_OK;
}

static sk_code read_map(reader *r, sk_mapped *items, sk_status *st)
{
    sk_json_token t = sk_json_next(&r->j);
    if (t.kind == SK_JSON_BAD) return bad_json(r, st);
    if (t.kind != SK_JSON_OBJECT) return bad_index(r, "weight_map to be an object", st);
    for (t = sk_json_next(&r->j); t.kind == SK_JSON_NAME; t = sk_json_next(&r->j)) {
        sk_mapped m = {{put_text(r, &t), t.text_n}, {NULL, 0}};
        t = sk_json_next(&r->j);
        if (t.kind == SK_JSON_BAD) return bad_json(r, st);
        if (t.kind != SK_JSON_STRING) return bad_index(r, "file names as strings", st);
        m.file = (sk_str){put_text(r, &t), t.text_n};
        if (r->n == MAX_TENSORS) return bad_index(r, "at most 1048576 tensors", st);
        if (items) {
            SK_TRY(check_mapped(r, &m, st));
            items[r->n] = m;
        }
        r->n++;
    }
    return t.kind == SK_JSON_BAD ? bad_json(r, st) : SK_OK;
}

static sk_code walk_index(reader *r, sk_mapped *items, sk_status *st)
{
    bool had_map = false;
    sk_json_token t = sk_json_next(&r->j);
    if (t.kind == SK_JSON_BAD) return bad_json(r, st);
    if (t.kind != SK_JSON_OBJECT) return bad_index(r, "an object", st);
    for (t = sk_json_next(&r->j); t.kind == SK_JSON_NAME; t = sk_json_next(&r->j)) {
        if (sk_json_is(&t, "weight_map")) {
            if (had_map) return bad_index(r, "one weight_map", st);
            had_map = true;
            SK_TRY(read_map(r, items, st));
            continue;
        }
        t = sk_json_next(&r->j);
        if (!sk_json_skip(&r->j, &t)) return bad_json(r, st);
    }
    if (t.kind != SK_JSON_OBJECT_END || sk_json_next(&r->j).kind != SK_JSON_END)
        return bad_json(r, st);
    return had_map && r->n ? SK_OK : bad_index(r, "a weight_map with tensors", st);
}

static sk_code fill_map(reader *r, sk_weight_map *out, sk_status *st)
{
    const sk_json again = sk_json_over(r->j.p, r->j.n);
    void *items = NULL;
    void *text = NULL;
    uint32_t a;
    uint32_t b;
    SK_TRY(sk_mem_new(&items, r->n, sizeof(sk_mapped), "the weight map", st));
    out->items = items;
    SK_TRY(sk_mem_new(&text, (size_t)r->text_n, 1, "names of tensors", st));
    out->text = r->text = text;
    r->n = 0;
    r->text_n = 0;
    r->j = again;
    SK_TRY(walk_index(r, out->items, st));
    out->n = r->n;
    SK_TRY(
        sk_index_init(&out->by_name, out->items, sizeof(sk_mapped), out->n, "the weight map", st));
    if (!sk_index_find_twins(&out->by_name, &a, &b)) return SK_OK;
    return SK_FAIL_CHECK(
        st, SK_FORMAT, "DUPLICATE_TENSOR", 0,
        "%s: weight_map: tensor %s: expected it once, found it twice", r->label,
        sk_quote(r->quoted, sizeof r->quoted, out->items[b].name.p, out->items[b].name.n));
}

sk_code sk_weight_map_init(sk_weight_map *out, const uint8_t *bytes, uint64_t size,
                           const char *label, sk_status *st)
{
    reader r = {.j = sk_json_over(bytes, size)};
    sk_weight_map result = {0};
    sk_code rc;
    (void)sk_quote_path(r.label, sizeof r.label, label);
    rc = check_bytes(&r, size, MAX_INDEX_BYTES, "BAD_INDEX", st);
    if (rc == SK_OK) rc = walk_index(&r, NULL, st);
    if (rc == SK_OK) rc = fill_map(&r, &result, st);
    if (rc != SK_OK) {
        sk_weight_map_fini(&result);
        return rc;
    }
    *out = result;
    return SK_OK;
}

void sk_weight_map_fini(sk_weight_map *m)
{
    sk_mem_free(m->items);
    sk_mem_free(m->text);
    sk_index_fini(&m->by_name);
    *m = (sk_weight_map){0};
}
