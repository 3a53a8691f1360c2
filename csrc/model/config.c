/* See config.h. Key names and defaults: the GGUF conventions of llama.cpp's converters, and those
 * of Hugging Face's configuration classes. */
#include "model/config.h"

#include "model/keys.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static sk_code refuse_scaling(sk_keys *k, const char *name, sk_str type, const char *known)
{
    return SK_FAIL(k->st, SK_UNSUPPORTED, "%s: %s: expected %s, found %.*s", sk_ckpt_path(k->ck),
                   name, known, (int)sk_min_size(type.n, 40), type.p);
}

static sk_code read_rope_scaling(sk_keys *k, float *scale)
{
    sk_str type = {NULL, 0};
    float factor = 1;
    bool found = false;
    *scale = 1;
    SK_TRY(sk_meta_find_str(k->ck, sk_keys_name(k, "rope.scaling.type"), &type, &found, k->st));
    if (found && sk_str_is(type, "none")) return SK_OK;
    if (found && !sk_str_is(type, "linear"))
        return refuse_scaling(k, sk_keys_name(k, "rope.scaling.type"), type, "none or linear");
    SK_TRY(sk_keys_positive(k, "rope.scaling.factor", 1, &factor));
    *scale = 1 / factor;
    return SK_OK;
}

/* ---- config.json ----------------------------------------------------------------------------- */

/* `member` of rope_parameters (newer files) or rope_scaling; absent when neither has it. */
static const char *rope_key(sk_keys *k, const char *member)
{
    (void)snprintf(k->name, sizeof k->name, "rope_parameters.%s", member);
    if (sk_ckpt_find_meta(k->ck, k->name)) return k->name;
    (void)snprintf(k->name, sizeof k->name, "rope_scaling.%s", member);
    return k->name;
}

static sk_code need_rope(sk_keys *k, const char *member, float *out)
{
    double x = 0;
    SK_TRY(sk_meta_need_f64(k->ck, rope_key(k, member), &x, k->st));
    if (!(x > 0) || !isfinite((float)x) || (float)x <= 0)
        return SK_FAIL_CHECK(k->st, SK_FORMAT, "BAD_HPARAM", 0,
                             "%s: %s: expected a finite number above 0, found %.9g",
                             sk_ckpt_path(k->ck), rope_key(k, member), x);
    *out = (float)x;
    return SK_OK;
}

static sk_code read_hf_rope(sk_keys *k, sk_config *c)
{
    sk_str type = {NULL, 0};
    bool found = false;
    float factor = 1;
    uint64_t ctx = 0;
    double whole = 1;
    if (sk_ckpt_find_meta(k->ck, rope_key(k, "rope_theta")))
        SK_TRY(need_rope(k, "rope_theta", &c->rope_base));
    SK_TRY(sk_meta_find_f64(k->ck, "partial_rotary_factor", &whole, &found, k->st));
    if (whole != 1)
        return SK_FAIL(k->st, SK_UNSUPPORTED, "%s: partial_rotary_factor: expected 1, found %.9g",
                       sk_ckpt_path(k->ck), whole);
    c->rope_scale = 1;
    SK_TRY(sk_meta_find_str(k->ck, rope_key(k, "rope_type"), &type, &found, k->st));
    if (!found) SK_TRY(sk_meta_find_str(k->ck, rope_key(k, "type"), &type, &found, k->st));
    if (!found || sk_str_is(type, "default") || sk_str_is(type, "none")) return SK_OK;
    if (sk_str_is(type, "linear")) {
        SK_TRY(need_rope(k, "factor", &factor));
        c->rope_scale = 1 / factor;
        return SK_OK;
    }
    if (!sk_str_is(type, "llama3"))
        return refuse_scaling(k, "rope_scaling.rope_type", type, "default, linear or llama3");
    SK_TRY(need_rope(k, "factor", &c->llama3_factor));
    SK_TRY(need_rope(k, "low_freq_factor", &c->llama3_low));
    SK_TRY(need_rope(k, "high_freq_factor", &c->llama3_high));
    SK_TRY(sk_meta_need_u64(k->ck, rope_key(k, "original_max_position_embeddings"), SK_MAX_CTX,
                            &ctx, k->st));
    if (ctx < 1 || c->llama3_high <= c->llama3_low)
        return SK_FAIL_CHECK(k->st, SK_FORMAT, "BAD_HPARAM", 0,
                             "%s: rope_scaling: expected a context above 0 and high_freq_factor "
                             "above low_freq_factor, found %llu, %.9g and %.9g",
                             sk_ckpt_path(k->ck), (unsigned long long)ctx, (double)c->llama3_high,
                             (double)c->llama3_low);
    c->llama3_ctx = (int32_t)ctx;
    return SK_OK;
}

static sk_code refuse_flag(sk_keys *k, const char *name)
{
    bool on = false;
    bool found;
    SK_TRY(sk_meta_find_bool(k->ck, name, &on, &found, k->st));
    if (!on) return SK_OK;
    return SK_FAIL(k->st, SK_UNSUPPORTED, "%s: %s: expected false, found true", sk_ckpt_path(k->ck),
                   name);
}

static sk_code refuse_cap(sk_keys *k, const char *name)
{
    double cap = 0;
    bool found;
    SK_TRY(sk_meta_find_f64(k->ck, name, &cap, &found, k->st));
    if (cap == 0) return SK_OK;
    return SK_FAIL(k->st, SK_UNSUPPORTED, "%s: %s: expected 0, found %.9g", sk_ckpt_path(k->ck),
                   name, cap);
}

/* What GGUF files of the same architecture need not say. */
static sk_code read_hf(sk_keys *k, sk_config *c)
{
    static const char *const act_keys[] = {"hidden_act", "hidden_activation"};
    double scalar = 0;
    bool found;
    c->tied = c->hf->tied;
    SK_TRY(sk_meta_find_bool(k->ck, "tie_word_embeddings", &c->tied, &found, k->st));
    SK_TRY(sk_meta_find_bool(k->ck, "attention_bias", &c->attn_bias, &found, k->st));
    for (size_t i = 0; i < SK_COUNT(act_keys); i++) {
        sk_str act;
        SK_TRY(sk_meta_find_str(k->ck, act_keys[i], &act, &found, k->st));
        if (found && !sk_str_is(act, c->hf->act))
            return SK_FAIL(k->st, SK_UNSUPPORTED, "%s: %s: expected %s, found %.*s",
                           sk_ckpt_path(k->ck), act_keys[i], c->hf->act,
                           (int)sk_min_size(act.n, 40), act.p);
    }
    SK_TRY(refuse_flag(k, "use_sliding_window"));
    SK_TRY(refuse_cap(k, "attn_logit_softcapping"));
    SK_TRY(refuse_cap(k, "num_local_experts"));
    SK_TRY(sk_meta_find_f64(k->ck, "query_pre_attn_scalar", &scalar, &found, k->st));
    if (found && !(scalar > 0))
        return SK_FAIL_CHECK(k->st, SK_FORMAT, "BAD_HPARAM", 0,
                             "%s: query_pre_attn_scalar: expected a number above 0, found %.9g",
                             sk_ckpt_path(k->ck), scalar);
    if (found) c->attn_scale = (float)(1 / sqrt(scalar));
    return read_hf_rope(k, c);
}

static sk_code read_model_type(const sk_ckpt *ck, char out[32], const sk_hf_arch **hf,
                               sk_status *st)
{
    sk_str type;
    SK_TRY(sk_meta_need_str(ck, "model_type", &type, st));
    *hf = sk_hf_arch_find(type.p, (size_t)type.n);
    if (!*hf)
        return SK_FAIL(st, SK_UNSUPPORTED,
                       "%s: model_type: expected one of llama, qwen2, qwen3, gemma3_text, "
                       "qwen4_exp, qwen4_exp_text, found %.*s",
                       sk_ckpt_path(ck), (int)sk_min_size(type.n, 40), type.p);
    (void)snprintf(out, 32, "%s", (*hf)->arch);
    return SK_OK;
}

/* ---- all ------------------------------------------------------------------------------------- */

sk_code sk_config_arch(const sk_ckpt *ck, char out[32], const sk_hf_arch **hf, sk_status *st)
{
    sk_str arch;
    *hf = NULL;
    if (sk_ckpt_format(ck) != SK_FORMAT_GGUF) return read_model_type(ck, out, hf, st);
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

/* Hugging Face configurations say which layers slide in up to three ways: a pattern under one of
 * two names, and a list. They have to agree; a list that no pattern makes is refused. */
static sk_code read_hf_windows(sk_keys *k, sk_config *c)
{
    const sk_meta *list = sk_ckpt_find_meta(k->ck, "layer_types");
    uint64_t pattern = 0, at = 0;
    bool found = false;
    SK_TRY(
        sk_meta_find_u64(k->ck, "_sliding_window_pattern", SK_MAX_LAYERS, &pattern, &found, k->st));
    if (found && pattern > 0) c->window_pattern = (int32_t)pattern;
    if (!list) return SK_OK;
    if (list->type != SK_META_ARRAY || list->elem_type != SK_META_STRING ||
        list->n != (uint64_t)c->n_layer)
        return SK_FAIL_CHECK(k->st, SK_FORMAT, "BAD_HPARAM", 0,
                             "%s: layer_types: expected a list of %d texts, found another value",
                             sk_ckpt_path(k->ck), (int)c->n_layer);
    for (int32_t i = 0; i < c->n_layer; i++) {
        bool slides = i % c->window_pattern < c->window_pattern - 1;
        const char *want = slides ? "sliding_attention" : "full_attention";
        sk_str said = sk_meta_next_str(list, &at);
        if (!sk_str_is(said, want))
            return SK_FAIL(
                k->st, SK_UNSUPPORTED,
                "%s: layer_types: expected %s for layer %d by a pattern of %d, found %.*s",
                sk_ckpt_path(k->ck), want, (int)i, (int)c->window_pattern,
                (int)sk_min_size(said.n, 40), said.p);
    }
    return SK_OK;
}

/* Gemma 3: windows, the rotary base of the layers that slide, and the attention scale of the 27B
 * model, for which files carry no key and everybody goes by its 62 layers. */
static sk_code read_gemma3(sk_keys *k, sk_config *c)
{
    const char *capped = sk_keys_name(k, "final_logit_softcapping");
    double cap = 0;
    bool found = false;
    SK_TRY(sk_meta_find_f64(k->ck, capped, &cap, &found, k->st));
    if (found && cap != 0)
        return SK_FAIL(k->st, SK_UNSUPPORTED, "%s: %s: expected 0, found %.9g", sk_ckpt_path(k->ck),
                       capped, cap);
    SK_TRY(sk_keys_dim(k, "attention.sliding_window", SK_MAX_CTX, 0, &c->window));
    SK_TRY(
        sk_keys_dim(k, "attention.sliding_window_pattern", SK_MAX_LAYERS, 6, &c->window_pattern));
    if (c->hf) SK_TRY(read_hf_windows(k, c));
    SK_TRY(sk_keys_positive(k, "rope.freq_base_swa", 10000, &c->rope_base_local));
    if (c->n_layer == 62 && !c->hf) c->attn_scale = (float)(1 / sqrt((double)c->dim / c->n_head));
    return SK_OK;
}

/* The vocabulary is the number of rows of the embedding; the token list and the key must agree. */
static sk_code read_vocab(sk_keys *k, sk_config *c)
{
    static const char part[] = "model.language_model.embed_tokens.weight"; // of a larger model
    const bool nested = k->hf && sk_ckpt_find_tensor(k->ck, part);
    const char *name = nested ? part : k->hf ? "model.embed_tokens.weight" : "token_embd.weight";
    const sk_tensor *t = sk_ckpt_find_tensor(k->ck, name);
    const sk_meta *tokens = sk_ckpt_find_meta(k->ck, "tokenizer.ggml.tokens");
    const char *path = sk_ckpt_path(k->ck);
    uint64_t said = 0;
    bool found = false;
    if (!t)
        return SK_FAIL_CHECK(k->st, SK_FORMAT, "MISSING_TENSOR", 0,
                             "%s: tensor %s: expected in the file, found none", path, name);
    if (t->n_dims != 2 || t->dim[1] != (uint64_t)c->dim || t->dim[0] < 1 ||
        t->dim[0] > SK_MAX_VOCAB)
        return SK_FAIL_CHECK(k->st, SK_FORMAT, "BAD_SHAPE", 0,
                             "%s: tensor %s: expected [vocabulary, %d], found "
                             "[%llu,%llu] of %d dimensions",
                             path, name, (int)c->dim, (unsigned long long)t->dim[0],
                             (unsigned long long)t->dim[1], (int)t->n_dims);
    c->vocab = (int32_t)t->dim[0];
    if (tokens && (tokens->type != SK_META_ARRAY || tokens->n > t->dim[0]))
        return SK_FAIL_CHECK(k->st, SK_FORMAT, "BAD_HPARAM", 0,
                             "%s: tokenizer.ggml.tokens: expected at most %d tokens, found %llu",
                             path, (int)c->vocab, (unsigned long long)tokens->n);
    SK_TRY(
        sk_meta_find_u64(k->ck, sk_keys_name(k, "vocab_size"), UINT64_MAX, &said, &found, k->st));
    if (found && said != t->dim[0] && !(tokens && said == tokens->n)) {
        char expected[32];
        (void)snprintf(expected, sizeof expected, "%d", (int)c->vocab);
        return sk_keys_bad(k, "vocab_size", expected, (double)said);
    }
    return SK_OK;
}

sk_code sk_config_read(const sk_ckpt *ck, sk_config *out, sk_status *st)
{
    sk_config c = {.arch = ""};
    sk_keys k = {.ck = ck, .arch = c.arch, .within = "", .st = st};
    bool hybrid;
    float eps;
    SK_TRY(sk_config_arch(ck, c.arch, &c.hf, st));
    k.hf = c.hf;
    hybrid = strcmp(c.arch, "qwen4exp") == 0;
    // Of a model with more than text, the text model's part is a member of its own.
    if (hybrid && c.hf && sk_ckpt_find_meta(ck, "text_config.hidden_size"))
        k.within = "text_config.";
    SK_TRY(sk_keys_dim(&k, "block_count", SK_MAX_LAYERS, 0, &c.n_layer));
    SK_TRY(sk_keys_dim(&k, "context_length", SK_MAX_CTX, 0, &c.ctx_train));
    SK_TRY(sk_keys_dim(&k, "embedding_length", SK_MAX_DIM, 0, &c.dim));
    if (!hybrid) SK_TRY(sk_keys_dim(&k, "feed_forward_length", SK_MAX_DIM, 0, &c.ffn));
    SK_TRY(sk_keys_dim(&k, "attention.head_count", SK_MAX_DIM, 0, &c.n_head));
    SK_TRY(sk_keys_dim(&k, "attention.head_count_kv", SK_MAX_DIM, c.n_head, &c.n_kv));
    if (c.n_head % c.n_kv)
        return sk_keys_bad(&k, "attention.head_count_kv", "a divisor of attention.head_count",
                           c.n_kv);
    if (c.dim % c.n_head && !(c.hf && c.hf->head_dim) &&
        !sk_ckpt_find_meta(ck, sk_keys_name(&k, "attention.key_length")))
        return sk_keys_bad(&k, "attention.head_count", "a divisor of embedding_length", c.n_head);
    c.head_dim = c.hf && c.hf->head_dim ? c.hf->head_dim : sk_max_i32(1, c.dim / c.n_head);
    SK_TRY(sk_keys_dim(&k, "attention.key_length", 65536, c.head_dim, &c.head_dim));
    {
        int32_t value_length;
        SK_TRY(sk_keys_dim(&k, "attention.value_length", 65536, c.head_dim, &value_length));
        if (value_length != c.head_dim)
            return sk_keys_bad(&k, "attention.value_length", "attention.key_length", value_length);
    }
    if (c.head_dim % 2)
        return sk_keys_bad(&k, "attention.key_length", "an even number", c.head_dim);
    if ((int64_t)c.n_head * c.head_dim > SK_MAX_DIM)
        return sk_keys_bad(&k, "attention.head_count", "a total head width of at most 1048576",
                           c.n_head);
    SK_TRY(sk_keys_dim(&k, "rope.dimension_count", (uint64_t)c.head_dim, c.head_dim, &c.n_rot));
    if (c.n_rot % 2) return sk_keys_bad(&k, "rope.dimension_count", "an even number", c.n_rot);
    SK_TRY(sk_keys_positive(&k, "attention.layer_norm_rms_epsilon", 0, &eps));
    c.rms_eps = eps;
    SK_TRY(sk_keys_positive(&k, "rope.freq_base", 10000, &c.rope_base));
    SK_TRY(read_rope_scaling(&k, &c.rope_scale));
    SK_TRY(sk_keys_positive(&k, "attention.scale", 1 / sqrt((double)c.head_dim), &c.attn_scale));
    if (strcmp(c.arch, "gemma3") == 0) SK_TRY(read_gemma3(&k, &c));
    c.width = c.dim;
    if (hybrid)
        SK_TRY(sk_config_read_hybrid(&k, &c));
    else if (c.hf)
        SK_TRY(read_hf(&k, &c));
    SK_TRY(read_vocab(&k, &c));
    if (hybrid && c.hybrid.ple_layer >= 0 && c.hybrid.ple_eos >= c.vocab)
        return sk_keys_bad(&k, "ple.eos_token_id", "a token of the vocabulary", c.hybrid.ple_eos);
    *out = c;
    return SK_OK;
}
