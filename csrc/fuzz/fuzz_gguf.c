/* libFuzzer target: any bytes as a GGUF file, lenient and strict. Whatever opens is used as callers
 * use it: all metadata walked, typed access to every key, every tensor found by its name, its bytes
 * touched and its first row decoded. */
#include "base/quant.h"
#include "ckpt/ckpt.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#define ROW_MAX  1024
#define NAME_MAX 64

static volatile uint64_t sink; // keeps reads that nobody else needs

static void use_meta(const sk_ckpt *ck, const sk_meta *m)
{
    char key[NAME_MAX + 1];
    sk_status st = SK_STATUS_INIT;
    uint64_t u[2];
    double d[2];
    bool b;
    bool found;
    sk_str s;
    uint64_t at = 0;
    if (m->elem_type == SK_META_STRING)
        for (uint64_t i = 0; i < m->n; i++) {
            s = sk_meta_next_str(m, &at);
            if (s.n) sink += (uint8_t)s.p[0] + (uint8_t)s.p[s.n - 1];
        }
    if (m->n_bytes) sink += m->data[0] + m->data[m->n_bytes - 1];
    if (m->key.n > NAME_MAX) return;
    memcpy(key, m->key.p, (size_t)m->key.n);
    key[m->key.n] = 0;
    if (sk_ckpt_find_meta(ck, key) != m) __builtin_trap();
    sink += (uint64_t)sk_meta_need_u64(ck, key, 1000, u, &st);
    sink += (uint64_t)sk_meta_need_f64(ck, key, d, &st);
    sink += (uint64_t)sk_meta_find_bool(ck, key, &b, &found, &st);
    sink += (uint64_t)sk_meta_need_str(ck, key, &s, &st);
    sink += (uint64_t)sk_meta_find_u64s(ck, key, UINT64_MAX, u, 2, &found, &st);
    sink += (uint64_t)sk_meta_find_f64s(ck, key, d, 2, &found, &st);
}

static void use_tensor(const sk_ckpt *ck, const sk_tensor *t)
{
    static float row[ROW_MAX];
    char name[NAME_MAX];
    uint64_t n = t->n_dims ? t->dim[t->n_dims - 1] : 1;
    memcpy(name, t->name.p, (size_t)t->name.n);
    name[t->name.n] = 0;
    if (sk_ckpt_find_tensor(ck, name) != t) __builtin_trap();
    sink += t->data[0] + t->data[t->n_bytes - 1];
    if (!sk_dtype_decodable(t->type) || n > ROW_MAX) return;
    sk_quant_row(t->type, t->data, n, row);
    sk_quant_row(t->type, t->data + (t->n_elems / n - 1) * (t->n_bytes / (t->n_elems / n)), n, row);
}

static void open_bytes(const uint8_t *bytes, size_t size, bool strict)
{
    sk_status st = SK_STATUS_INIT;
    sk_ckpt *ck = NULL;
    sk_code rc = sk_ckpt_open_bytes(&ck, bytes, size, "fuzz", strict, &st);
    if (rc != st.code || (rc == SK_OK) != (ck != NULL)) __builtin_trap();
    if (rc != SK_OK && (!st.check || !st.msg[0] || st.where > size)) __builtin_trap();
    if (rc != SK_OK) return;
    for (size_t i = 0; i < sk_ckpt_n_meta(ck); i++) use_meta(ck, sk_ckpt_meta(ck, i));
    for (size_t i = 0; i < sk_ckpt_n_tensors(ck); i++) use_tensor(ck, sk_ckpt_tensor(ck, i));
    sk_ckpt_close(ck);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    open_bytes(bytes, size, false);
    open_bytes(bytes, size, true);
    return 0;
}
