/* See config.h. Key names and defaults: the GGUF conventions of llama.cpp's converters. */
#include "model/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct keys {
    const sk_ckpt *ck;
    const char *arch;
    sk_status *st;
    char name[128];
} keys;

static const char *key(keys *k, const char *rest)
{
    (void)snprintf(k->name, sizeof k->name, "%s.%s", k->arch, rest);
    return k->name;
}

static sk_code bad(keys *k, const char *rest, const char *expected, double found)
{
    return SK_FAIL_CHECK(k->st, SK_FORMAT, "BAD_HPARAM", 0, "%s: %s: expected %s, found %.9g",
                         sk_ckpt_path(k->ck), key(k, rest), expected, found);
}

/* An integer in [1, max]; `fallback` > 0 stands in for an absent key. */
static sk_code read_dim(keys *k, const char *rest, uint64_t max, int32_t fallback, int32_t *out)
{
    uint64_t x = 0;
    bool found = false;
    char expected[48];
    if (fallback > 0)
        SK_TRY(sk_meta_find_u64(k->ck, key(k, rest), UINT64_MAX, &x, &found, k->st));
    else {
        SK_TRY(sk_meta_need_u64(k->ck, key(k, rest), UINT64_MAX, &x, k->st));
        found = true;
    }
    if (!found) {
        *out = fallback;
        return SK_OK;
    }
    (void)snprintf(expected, sizeof expected, "1 .. %llu", (unsigned long long)max);
    if (x < 1 || x > max) return bad(k, rest, expected, (double)x);
    *out = (int32_t)x;
    return SK_OK;
}

/* A finite number > 0; `fallback` > 0 stands in for an absent key. */
static sk_code read_positive(keys *k, const char *rest, double fallback, float *out)
{
    double x = fallback;
    bool found = false;
    if (fallback > 0)
        SK_TRY(sk_meta_find_f64(k->ck, key(k, rest), &x, &found, k->st));
    else
        SK_TRY(sk_meta_need_f64(k->ck, key(k, rest), &x, k->st));
    if (!isfinite(x) || x <= 0 || !isfinite((float)x) || (float)x <= 0)
        return bad(k, rest, "a finite number above 0", x);
    *out = (float)x;
    return SK_OK;
}

static bool same(sk_str s, const char *text)
{
    return s.n == strlen(text) && memcmp(s.p, text, s.n) == 0;
}

static sk_code read_rope_scaling(keys *k, float *scale)
{
    sk_str type = {NULL, 0};
    float factor = 1;
    bool found = false;
    *scale = 1;
    SK_TRY(sk_meta_find_str(k->ck, key(k, "rope.scaling.type"), &type, &found, k->st));
    if (found && same(type, "none")) return SK_OK;
    if (found && !same(type, "linear"))
        return SK_FAIL(k->st, SK_UNSUPPORTED, "%s: %s: expected none or linear, found %.*s",
                       sk_ckpt_path(k->ck), key(k, "rope.scaling.type"),
                       (int)sk_min_size(type.n, 40), type.p);
    SK_TRY(read_positive(k, "rope.scaling.factor", 1, &factor));
    *scale = 1 / factor;
    return SK_OK;
}

sk_code sk_config_arch(const sk_ckpt *ck, char out[32], sk_status *st)
{
    sk_str arch;
    SK_TRY(sk_meta_need_str(ck, "general.architecture", &arch, st));
    if (arch.n == 0 || arch.n >= 32 || memchr(arch.p, 0, arch.n))
        return SK_FAIL_CHECK(
            st, SK_FORMAT, "BAD_HPARAM", 0,
            "%s: general.architecture: expected a name of 1 .. 31 bytes, found %llu",
            sk_ckpt_path(ck), (unsigned long long)arch.n);
    memcpy(out, arch.p, arch.n);
    out[arch.n] = 0;
    return SK_OK;
}

/* Gemma 3: windows, the rotary base of the layers that slide, and the attention scale of the 27B
 * model, for which files carry no key and everybody goes by its 62 layers. */
static sk_code read_gemma3(keys *k, sk_config *c)
{
    const char *capped = key(k, "final_logit_softcapping");
    double cap = 0;
    bool found = false;
    SK_TRY(sk_meta_find_f64(k->ck, capped, &cap, &found, k->st));
    if (found && cap != 0)
        return SK_FAIL(k->st, SK_UNSUPPORTED, "%s: %s: expected 0, found %.9g", sk_ckpt_path(k->ck),
                       capped, cap);
    SK_TRY(read_dim(k, "attention.sliding_window", SK_MAX_CTX, 0, &c->window));
    SK_TRY(read_dim(k, "attention.sliding_window_pattern", SK_MAX_LAYERS, 6, &c->window_pattern));
    SK_TRY(read_positive(k, "rope.freq_base_swa", 10000, &c->rope_base_local));
    if (c->n_layer == 62) c->attn_scale = (float)(1 / sqrt((double)c->dim / c->n_head));
    return SK_OK;
}

/* The vocabulary is the number of rows of the embedding; the token list and the key must agree. */
static sk_code read_vocab(keys *k, sk_config *c)
{
    const sk_tensor *t = sk_ckpt_find_tensor(k->ck, "token_embd.weight");
    const sk_meta *tokens = sk_ckpt_find_meta(k->ck, "tokenizer.ggml.tokens");
    const char *path = sk_ckpt_path(k->ck);
    uint64_t said = 0;
    bool found = false;
    if (!t)
        return SK_FAIL_CHECK(k->st, SK_FORMAT, "MISSING_TENSOR", 0,
                             "%s: tensor token_embd.weight: expected in the file, found none",
                             path);
    if (t->n_dims != 2 || t->dim[1] != (uint64_t)c->dim || t->dim[0] > SK_MAX_VOCAB)
        return SK_FAIL_CHECK(k->st, SK_FORMAT, "BAD_SHAPE", 0,
                             "%s: tensor token_embd.weight: expected [vocabulary, %d], found "
                             "[%llu,%llu] of %d dimensions",
                             path, (int)c->dim, (unsigned long long)t->dim[0],
                             (unsigned long long)t->dim[1], (int)t->n_dims);
    c->vocab = (int32_t)t->dim[0];
    if (tokens && (tokens->type != SK_META_ARRAY || tokens->n > t->dim[0]))
        return SK_FAIL_CHECK(k->st, SK_FORMAT, "BAD_HPARAM", 0,
                             "%s: tokenizer.ggml.tokens: expected at most %d tokens, found %llu",
                             path, (int)c->vocab, (unsigned long long)tokens->n);
    SK_TRY(sk_meta_find_u64(k->ck, key(k, "vocab_size"), UINT64_MAX, &said, &found, k->st));
    if (found && said != t->dim[0] && !(tokens && said == tokens->n)) {
        char expected[32];
        (void)snprintf(expected, sizeof expected, "%d", (int)c->vocab);
        return bad(k, "vocab_size", expected, (double)said);
    }
    return SK_OK;
}

sk_code sk_config_read(const sk_ckpt *ck, sk_config *out, sk_status *st)
{
    sk_config c = {.arch = ""};
    keys k = {.ck = ck, .arch = c.arch, .st = st};
    float eps;
    SK_TRY(sk_config_arch(ck, c.arch, st));
    SK_TRY(read_dim(&k, "block_count", SK_MAX_LAYERS, 0, &c.n_layer));
    SK_TRY(read_dim(&k, "context_length", SK_MAX_CTX, 0, &c.ctx_train));
    SK_TRY(read_dim(&k, "embedding_length", SK_MAX_DIM, 0, &c.dim));
    SK_TRY(read_dim(&k, "feed_forward_length", SK_MAX_DIM, 0, &c.ffn));
    SK_TRY(read_dim(&k, "attention.head_count", SK_MAX_DIM, 0, &c.n_head));
    SK_TRY(read_dim(&k, "attention.head_count_kv", SK_MAX_DIM, c.n_head, &c.n_kv));
    if (c.n_head % c.n_kv)
        return bad(&k, "attention.head_count_kv", "a divisor of attention.head_count", c.n_kv);
    if (c.dim % c.n_head && !sk_ckpt_find_meta(ck, key(&k, "attention.key_length")))
        return bad(&k, "attention.head_count", "a divisor of embedding_length", c.n_head);
    SK_TRY(
        read_dim(&k, "attention.key_length", 65536, sk_max_i32(1, c.dim / c.n_head), &c.head_dim));
    {
        int32_t value_length;
        SK_TRY(read_dim(&k, "attention.value_length", 65536, c.head_dim, &value_length));
        if (value_length != c.head_dim)
            return bad(&k, "attention.value_length", "attention.key_length", value_length);
    }
    if (c.head_dim % 2) return bad(&k, "attention.key_length", "an even number", c.head_dim);
    if ((int64_t)c.n_head * c.head_dim > SK_MAX_DIM)
        return bad(&k, "attention.head_count", "a total head width of at most 1048576", c.n_head);
    SK_TRY(read_dim(&k, "rope.dimension_count", (uint64_t)c.head_dim, c.head_dim, &c.n_rot));
    if (c.n_rot % 2) return bad(&k, "rope.dimension_count", "an even number", c.n_rot);
    SK_TRY(read_positive(&k, "attention.layer_norm_rms_epsilon", 0, &eps));
    c.rms_eps = eps;
    SK_TRY(read_positive(&k, "rope.freq_base", 10000, &c.rope_base));
    SK_TRY(read_rope_scaling(&k, &c.rope_scale));
    SK_TRY(read_positive(&k, "attention.scale", 1 / sqrt((double)c.head_dim), &c.attn_scale));
    if (strcmp(c.arch, "gemma3") == 0) SK_TRY(read_gemma3(&k, &c));
    SK_TRY(read_vocab(&k, &c));
    *out = c;
    return SK_OK;
}
