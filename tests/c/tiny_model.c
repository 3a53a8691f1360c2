/* See tiny_model.h. */
#include "tests/c/tiny_model.h"

#include "ckpt/ckpt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bytes {
    uint8_t p[1 << 16];
    size_t n;
} bytes;

static void put(bytes *b, const void *p, size_t n)
{
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

static void put_u32(bytes *b, uint32_t x) { put(b, &x, sizeof x); }
static void put_u64(bytes *b, uint64_t x) { put(b, &x, sizeof x); }

static void put_str(bytes *b, const char *s)
{
    put_u64(b, strlen(s));
    put(b, s, strlen(s));
}

static void put_key_u32(bytes *b, const char *key, uint32_t x)
{
    put_str(b, key);
    put_u32(b, SK_META_U32);
    put_u32(b, x);
}

typedef struct entry {
    char name[48];
    uint32_t n_out, n_in; // n_out 0: a vector
} entry;

static size_t entries(entry out[64])
{
    static const struct {
        const char *part;
        uint32_t n_out, n_in;
    } parts[] = {{"attn_norm", 0, DIM},    {"attn_q", DIM, DIM},      {"attn_k", DIM / 2, DIM},
                 {"attn_v", DIM / 2, DIM}, {"attn_output", DIM, DIM}, {"ffn_norm", 0, DIM},
                 {"ffn_gate", FFN, DIM},   {"ffn_up", FFN, DIM},      {"ffn_down", DIM, FFN}};
    size_t n = 0;
    out[n++] = (entry){"token_embd.weight", VOCAB, DIM};
    out[n++] = (entry){"output_norm.weight", 0, DIM};
    for (int l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < SK_COUNT(parts); i++) {
            (void)snprintf(out[n].name, sizeof out[n].name, "blk.%d.%s.weight", l, parts[i].part);
            out[n].n_out = parts[i].n_out;
            out[n++].n_in = parts[i].n_in;
        }
    return n;
}

bool sk_test_model(char path[64])
{
    static bytes b;
    entry e[64];
    size_t n = entries(e), at = 0;
    uint32_t seed = 7;
    FILE *f;
    int fd;
    b.n = 0;
    put(&b, "GGUF", 4);
    put_u32(&b, 3);
    put_u64(&b, n);
    put_u64(&b, 8);
    put_str(&b, "general.architecture");
    put_u32(&b, SK_META_STRING);
    put_str(&b, "llama");
    put_key_u32(&b, "llama.block_count", LAYERS);
    put_key_u32(&b, "llama.context_length", CTX);
    put_key_u32(&b, "llama.embedding_length", DIM);
    put_key_u32(&b, "llama.feed_forward_length", FFN);
    put_key_u32(&b, "llama.attention.head_count", HEADS);
    put_key_u32(&b, "llama.attention.head_count_kv", 1);
    put_str(&b, "llama.attention.layer_norm_rms_epsilon");
    put_u32(&b, SK_META_F32);
    put(&b, &(float){1e-5f}, 4);
    for (size_t i = 0; i < n; i++) {
        put_str(&b, e[i].name);
        put_u32(&b, e[i].n_out ? 2 : 1);
        put_u64(&b, e[i].n_in);
        if (e[i].n_out) put_u64(&b, e[i].n_out);
        put_u32(&b, SK_F32);
        put_u64(&b, at);
        at += (e[i].n_out ? e[i].n_out : 1) * e[i].n_in * 4; // multiples of 32 by their shapes
    }
    while (b.n % 32) b.p[b.n++] = 0;
    for (size_t i = 0; i < at / 4; i++) {
        seed = seed * 1664525u + 1013904223u;
        put(&b, &(float){(float)(seed >> 8) / (float)(1 << 23) - 1.0f}, 4);
    }
    (void)snprintf(path, 64, "/tmp/stoker-test-XXXXXX");
    fd = mkstemp(path);
    f = fd < 0 ? NULL : fdopen(fd, "wb");
    if (!f) return false;
    at = fwrite(b.p, 1, b.n, f);
    return fclose(f) == 0 && at == b.n;
}
