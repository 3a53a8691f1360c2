/* libFuzzer target: any bytes as JSON, as config.json and as an index of shards. The tokens must
 * tile the text in order, every text must decode into the room that was announced, and whatever
 * opens is looked up again by its own names. */
#include "base/json.h"
#include "ckpt/config_json.h"

#include <math.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#define TEXT_MAX 4096

static volatile uint64_t sink; // keeps reads that nobody else needs

static void use_token(const sk_json *j, const sk_json_token *t)
{
    char text[TEXT_MAX];
    uint64_t x;
    bool negative;
    if (t->kind == SK_JSON_BAD || t->kind == SK_JSON_END) return;
    if (t->p < j->p || t->p + t->n > j->p + j->n || j->pos > j->n) __builtin_trap();
    if (t->text_n > t->n) __builtin_trap();
    if ((t->kind == SK_JSON_NAME || t->kind == SK_JSON_STRING) && t->text_n <= TEXT_MAX) {
        sk_json_text(t, text);
        if (t->kind == SK_JSON_NAME && t->text_n && memchr(text, 0, (size_t)t->text_n))
            __builtin_trap();
        sink += sk_json_is(t, "dtype");
    }
    if (t->kind != SK_JSON_NUMBER) return;
    if (isnan(sk_json_f64(t))) __builtin_trap();
    if (sk_json_u64(t, &x) && (!sk_json_integer(t, &x, &negative) || negative)) __builtin_trap();
}

static void read_all(const uint8_t *bytes, size_t size)
{
    sk_json j = sk_json_over(bytes, size);
    sk_json_token t;
    uint64_t n = 0;
    do {
        t = sk_json_next(&j);
        use_token(&j, &t);
        if (++n > size + 2) __builtin_trap(); // a token takes at least a byte
    } while (t.kind != SK_JSON_BAD && t.kind != SK_JSON_END);
    if ((t.kind == SK_JSON_BAD) != (j.fault != NULL)) __builtin_trap();
    j = sk_json_over(bytes, size);
    t = sk_json_next(&j);
    if (sk_json_skip(&j, &t) && j.depth != 0) __builtin_trap();
}

static void check_status(sk_code rc, const sk_status *st, size_t size)
{
    if (rc != st->code) __builtin_trap();
    if (rc != SK_OK && (!st->check || !st->msg[0] || st->where > size)) __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    sk_config_json config;
    sk_weight_map map;
    sk_status st = SK_STATUS_INIT;
    sk_code rc;
    read_all(bytes, size);
    rc = sk_config_json_init(&config, bytes, size, "config.json", &st);
    check_status(rc, &st, size);
    for (uint32_t i = 0; rc == SK_OK && i < config.n_meta; i++) {
        const sk_meta *m = &config.meta[i];
        if (sk_index_find(&config.by_key, m->key.p, m->key.n) != m) __builtin_trap();
        for (uint64_t k = 0; k < m->n_bytes; k++) sink += m->data[k];
    }
    if (rc == SK_OK) sk_config_json_fini(&config);
    st = (sk_status)SK_STATUS_INIT;
    rc = sk_weight_map_init(&map, bytes, size, "index.json", &st);
    check_status(rc, &st, size);
    for (uint32_t i = 0; rc == SK_OK && i < map.n; i++) {
        const sk_mapped *m = &map.items[i];
        if (sk_index_find(&map.by_name, m->name.p, m->name.n) != m) __builtin_trap();
        if (m->file.n < 1 || memchr(m->file.p, '/', (size_t)m->file.n)) __builtin_trap();
    }
    if (rc == SK_OK) sk_weight_map_fini(&map);
    return 0;
}
