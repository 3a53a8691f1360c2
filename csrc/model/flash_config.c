/* Hyper-parameters of flash_next: those that the dense family has not. Nothing about a released
 * model is assumed; what this recipe does not compute is refused by name. */
#include "model/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static sk_code refuse(sk_keys *k, const char *key, const char *expected, const char *found)
{
    return SK_FAIL(k->st, SK_UNSUPPORTED, "%s: %s: expected %s, found %s", sk_ckpt_path(k->ck), key,
                   expected, found);
}

static sk_code bad_value(sk_keys *k, const char *key, const char *expected, int64_t found)
{
    return SK_FAIL_CHECK(k->st, SK_FORMAT, "BAD_HPARAM", 0, "%s: %s: expected %s, found %lld",
                         sk_ckpt_path(k->ck), key, expected, (long long)found);
}

/* ---- which layers do what -------------------------------------------------------------------- */

/* config.json: a list of names. */
static sk_code read_layer_types(sk_keys *k, sk_config *c)
{
    const char *key = sk_keys_hf(k, "layer_types");
    const sk_meta *list = sk_ckpt_find_meta(k->ck, key);
    uint64_t at = 0;
    if (!list || list->type != SK_META_ARRAY || list->elem_type != SK_META_STRING ||
        list->n != (uint64_t)c->n_layer)
        return SK_FAIL_CHECK(k->st, SK_FORMAT, "BAD_HPARAM", 0,
                             "%s: %s: expected a list of %d texts, found another value",
                             sk_ckpt_path(k->ck), key, (int)c->n_layer);
    for (int32_t i = 0; i < c->n_layer; i++) {
        sk_str said = sk_meta_next_str(list, &at);
        char found[48];
        if (sk_str_is(said, "full_attention") || sk_str_is(said, "qwen_sparse_attention"))
            c->hybrid.sparse[i] = 1;
        else if (!sk_str_is(said, "linear_attention")) {
            (void)snprintf(found, sizeof found, "%.*s", (int)sk_min_size(said.n, 40), said.p);
            return refuse(k, key, "linear_attention, full_attention or qwen_sparse_attention",
                          found);
        }
    }
    return SK_OK;
}

/* GGUF: every so many layers, or a flag for each. */
static sk_code read_recurrent(sk_keys *k, sk_config *c)
{
    static const char recurrent[] = "attention.recurrent_layers";
    const sk_meta *list = sk_ckpt_find_meta(k->ck, sk_keys_name(k, recurrent));
    int32_t every;
    if (!list) {
        SK_TRY(sk_keys_dim(k, "full_attention_interval", SK_MAX_LAYERS, 0, &every));
        for (int32_t i = 0; i < c->n_layer; i++) c->hybrid.sparse[i] = (i + 1) % every == 0;
        return SK_OK;
    }
    // For the model's own blocks, or for those that draft too. Numbers are as good as flags.
    if (list->type != SK_META_ARRAY || list->elem_type == SK_META_STRING ||
        list->elem_type == SK_META_F32 || list->elem_type == SK_META_F64 ||
        (list->n != (uint64_t)c->n_layer &&
         list->n != (uint64_t)c->n_layer + (uint64_t)c->hybrid.n_draft_layer))
        return SK_FAIL_CHECK(k->st, SK_FORMAT, "BAD_HPARAM", 0,
                             "%s: %s: expected a flag for each of %d layers, found another value",
                             sk_ckpt_path(k->ck), sk_keys_name(k, recurrent), (int)c->n_layer);
    for (int32_t i = 0; i < c->n_layer; i++) {
        const uint64_t each = list->n_bytes / list->n;
        uint8_t any = 0;
        for (uint64_t j = 0; j < each; j++) any |= list->data[(uint64_t)i * each + j];
        c->hybrid.sparse[i] = any == 0;
    }
    return SK_OK;
}

/* ---- block-sparse attention ------------------------------------------------------------------ */

/* GGUF: one number a block, 0 for those that have no index. Blocks behind the model's own, which
 * draft, may have 0 too. */
static sk_code read_ratios(sk_keys *k, sk_config *c, int32_t n_block)
{
    static const char key[] = "attention.compress_ratios";
    uint64_t ratio[SK_MAX_LAYERS] = {0};
    bool found = false;
    SK_TRY(sk_meta_find_u64s(k->ck, sk_keys_name(k, key), INT32_MAX, ratio, (size_t)n_block, &found,
                             k->st));
    if (!found)
        return SK_FAIL_CHECK(k->st, SK_FORMAT, "MISSING_KEY", 0,
                             "%s: %s: expected in the file, found none", sk_ckpt_path(k->ck),
                             sk_keys_name(k, key));
    for (int32_t i = 0; i < c->n_layer; i++) {
        if (!c->hybrid.sparse[i]) continue;
        if (ratio[i] == 0)
            return refuse(k, sk_keys_name(k, key), "a ratio above 0 for layers with attention",
                          "0 (dense attention)");
        if (c->hybrid.ratio && ratio[i] != (uint64_t)c->hybrid.ratio)
            return refuse(k, sk_keys_name(k, key), "one ratio for all layers", "several");
        c->hybrid.ratio = (int32_t)ratio[i];
    }
    return SK_OK;
}

static sk_code read_index(sk_keys *k, sk_config *c, int32_t n_block)
{
    sk_hybrid *h = &c->hybrid;
    int32_t budget;
    uint64_t kv = 1;
    bool found = false;
    SK_TRY(sk_keys_dim(k, "attention.indexer.head_count", 1024, 0, &h->index_heads));
    SK_TRY(sk_keys_dim(k, "attention.indexer.key_length", 65536, 0, &h->index_dim));
    SK_TRY(sk_keys_dim(k, "attention.indexer.top_k", SK_MAX_CTX, 0, &budget));
    if (k->hf) {
        SK_TRY(sk_meta_find_u64(k->ck, sk_keys_hf(k, "indexer_kv_heads"), UINT64_MAX, &kv, &found,
                                k->st));
        if (kv != 1) return refuse(k, sk_keys_hf(k, "indexer_kv_heads"), "1", "another number");
        SK_TRY(sk_meta_need_u64(k->ck, sk_keys_hf(k, "indexer_compress_ratio"), SK_MAX_CTX, &kv,
                                k->st));
        h->ratio = (int32_t)kv;
    } else {
        SK_TRY(read_ratios(k, c, n_block));
    }
    if (h->ratio < 1) {
        // No layer has attention: one block of everything, that nothing reads.
        if (k->hf)
            return bad_value(k, sk_keys_hf(k, "indexer_compress_ratio"), "at least 1", h->ratio);
        h->ratio = 1;
    }
    if (budget % h->ratio) {
        char expected[64];
        (void)snprintf(expected, sizeof expected, "a multiple of the ratio %d", (int)h->ratio);
        return sk_keys_bad(k, "attention.indexer.top_k", expected, budget);
    }
    h->blocks = budget / h->ratio;
    if (c->n_rot > h->index_dim)
        return sk_keys_bad(k, "attention.indexer.key_length",
                           "at least as many as the rotated dimensions of a head", h->index_dim);
    return SK_OK;
}

/* ---- recurrence, experts --------------------------------------------------------------------- */

static sk_code read_recurrence(sk_keys *k, sk_config *c)
{
    sk_hybrid *h = &c->hybrid;
    uint64_t inner = 0;
    SK_TRY(sk_keys_dim(k, "ssm.conv_kernel", 64, 0, &h->taps));
    SK_TRY(sk_keys_dim(k, "ssm.state_size", 65536, 0, &h->key_dim));
    SK_TRY(sk_keys_dim(k, "ssm.group_count", 65536, 0, &h->key_heads));
    SK_TRY(sk_keys_dim(k, "ssm.time_step_rank", 65536, 0, &h->value_heads));
    if (h->taps < 2) return sk_keys_bad(k, "ssm.conv_kernel", "at least 2", h->taps);
    if (h->value_heads % h->key_heads)
        return sk_keys_bad(k, "ssm.time_step_rank", "a multiple of the heads of keys",
                           h->value_heads);
    if (k->hf) {
        SK_TRY(
            sk_meta_need_u64(k->ck, sk_keys_hf(k, "linear_value_head_dim"), 65536, &inner, k->st));
        inner *= (uint64_t)h->value_heads;
    } else {
        SK_TRY(
            sk_meta_need_u64(k->ck, sk_keys_name(k, "ssm.inner_size"), SK_MAX_DIM, &inner, k->st));
    }
    if (inner < 1 || inner > SK_MAX_DIM || inner % (uint64_t)h->value_heads)
        return bad_value(
            k, k->hf ? sk_keys_hf(k, "linear_value_head_dim") : sk_keys_name(k, "ssm.inner_size"),
            "a total width above 0 of at most 2^20, a multiple of the heads of values",
            (int64_t)inner);
    h->value_dim = (int32_t)(inner / (uint64_t)h->value_heads);
    if ((int64_t)h->key_heads * h->key_dim > SK_MAX_DIM)
        return sk_keys_bad(k, "ssm.group_count", "a total width of keys of at most 2^20",
                           h->key_heads);
    return SK_OK;
}

static sk_code read_experts(sk_keys *k, sk_config *c, int32_t n_block)
{
    static const char each[] = "expert_feed_forward_length";
    sk_hybrid *h = &c->hybrid;
    const char *count;
    uint64_t x = 0, ffn[SK_MAX_LAYERS] = {0};
    bool found = false;
    count = k->hf ? sk_keys_hf(k, "num_experts") : sk_keys_name(k, "expert_count");
    SK_TRY(sk_meta_need_u64(k->ck, count, 65536, &x, k->st));
    h->n_expert = (int32_t)x;
    if (h->n_expert < 1) return bad_value(k, count, "at least 1", h->n_expert);
    SK_TRY(sk_keys_dim(k, "expert_used_count", (uint64_t)h->n_expert, 0, &h->n_used));
    SK_TRY(sk_meta_find_u64s(k->ck, sk_keys_name(k, each), SK_MAX_DIM, ffn, (size_t)n_block, &found,
                             k->st));
    for (int32_t i = 0; i < n_block; i++)
        if (!found || ffn[i] < 1 || ffn[i] != ffn[0])
            return sk_keys_bad(k, each, "one number above 0", found ? (double)ffn[i] : 0);
    h->ffn_expert = c->ffn = (int32_t)ffn[0];
    SK_TRY(sk_keys_dim(k, "expert_shared_feed_forward_length", SK_MAX_DIM, 0, &h->ffn_shared));
    h->norm_topk = true;
    return sk_meta_find_bool(
        k->ck, k->hf ? sk_keys_hf(k, "norm_topk_prob") : sk_keys_name(k, "expert_weights_norm"),
        &h->norm_topk, &found, k->st);
}

/* ---- hashed embedding ------------------------------------------------------------------------ */

/* The one layer that has it, from 0; config.json counts from 1. */
static sk_code read_ple_layer(sk_keys *k, sk_config *c)
{
    const char *key = k->hf ? sk_keys_hf(k, "ple_layer_ids") : sk_keys_name(k, "ple.layers");
    const sk_meta *list = sk_ckpt_find_meta(k->ck, key);
    uint64_t layer = 0;
    bool found = false;
    c->hybrid.ple_layer = -1;
    if (!list || list->n == 0) return SK_OK;
    if (list->n != 1) return refuse(k, key, "one layer", "several");
    SK_TRY(sk_meta_find_u64s(k->ck, key, SK_MAX_LAYERS, &layer, 1, &found, k->st));
    if (k->hf && layer == 0) return bad_value(k, key, "layers from 1 on", 0);
    if (k->hf) layer--;
    if (layer >= (uint64_t)c->n_layer)
        return bad_value(k, key, "a layer of the model", (int64_t)layer + (k->hf != NULL));
    if (c->hybrid.sparse[layer])
        return refuse(k, key, "a layer with a recurrence", "one with attention");
    c->hybrid.ple_layer = (int32_t)layer;
    return SK_OK;
}

/* The first of a list: what the model was trained with. */
static sk_code read_hf_eos(sk_keys *k, uint64_t *eos)
{
    const char *key = sk_keys_hf(k, "eos_token_id");
    const sk_meta *m = sk_ckpt_find_meta(k->ck, key);
    uint64_t all[32];
    bool found = false;
    if (!m || m->type != SK_META_ARRAY) return sk_meta_need_u64(k->ck, key, INT32_MAX, eos, k->st);
    if (m->n < 1 || m->n > SK_COUNT(all)) return bad_value(k, key, "1 .. 32 ids", (int64_t)m->n);
    SK_TRY(sk_meta_find_u64s(k->ck, key, INT32_MAX, all, (size_t)m->n, &found, k->st));
    *eos = all[0];
    return SK_OK;
}

static sk_code read_ple(sk_keys *k, sk_config *c)
{
    sk_hybrid *h = &c->hybrid;
    uint64_t eos = 0, width = 0;
    int32_t heads;
    SK_TRY(read_ple_layer(k, c));
    if (h->ple_layer < 0) return SK_OK;
    SK_TRY(sk_keys_dim(k, "ple.ngram_size", 16, 0, &h->ngram));
    SK_TRY(sk_keys_dim(k, "ple.heads_per_ngram", 1024, 0, &h->heads_per_ngram));
    SK_TRY(sk_keys_dim(k, "ple.conv_kernel", 64, 0, &h->ple_taps));
    if (h->ngram < 2) return sk_keys_bad(k, "ple.ngram_size", "at least 2", h->ngram);
    if (h->ple_taps < 2) return sk_keys_bad(k, "ple.conv_kernel", "at least 2", h->ple_taps);
    heads = (h->ngram - 1) * h->heads_per_ngram;
    if (k->hf) {
        SK_TRY(sk_meta_need_u64(k->ck, sk_keys_hf(k, "ple_embed_dim"), SK_MAX_DIM, &width, k->st));
        if (width < 1 || width % (uint64_t)heads)
            return bad_value(k, sk_keys_hf(k, "ple_embed_dim"), "a multiple of the hash heads",
                             (int64_t)width);
        h->ple_dim = (int32_t)(width / (uint64_t)heads);
        SK_TRY(read_hf_eos(k, &eos));
    } else {
        SK_TRY(sk_keys_dim(k, "embedding_length_per_layer_input", 65536, 0, &h->ple_dim));
        SK_TRY(
            sk_meta_need_u64(k->ck, sk_keys_name(k, "ple.eos_token_id"), INT32_MAX, &eos, k->st));
    }
    if ((int64_t)heads * h->ple_dim > SK_MAX_DIM)
        return sk_keys_bad(k, "ple.heads_per_ngram", "a total width of at most 2^20",
                           h->heads_per_ngram);
    h->ple_eos = (int32_t)eos;
    return SK_OK;
}

/* ---- all ------------------------------------------------------------------------------------- */

static sk_code want_text(sk_keys *k, const char *member, const char *expected)
{
    sk_str said;
    bool found;
    char text[48];
    SK_TRY(sk_meta_find_str(k->ck, sk_keys_hf(k, member), &said, &found, k->st));
    if (!found || sk_str_is(said, expected)) return SK_OK;
    (void)snprintf(text, sizeof text, "%.*s", (int)sk_min_size(said.n, 40), said.p);
    return refuse(k, sk_keys_hf(k, member), expected, text);
}

/* What config.json may say and this recipe does not compute. */
static sk_code read_hf(sk_keys *k, sk_config *c)
{
    static const char *const rotary[] = {"rope_parameters.rope_type", "rope_parameters.type",
                                         "rope_scaling.rope_type", "rope_scaling.type"};
    double part = 1, base = 0;
    bool on = false, found;
    SK_TRY(want_text(k, "hidden_act", "silu"));
    SK_TRY(want_text(k, "output_gate_type", "sigmoid"));
    for (size_t i = 0; i < SK_COUNT(rotary); i++) SK_TRY(want_text(k, rotary[i], "default"));
    SK_TRY(sk_meta_find_bool(k->ck, sk_keys_hf(k, "attention_bias"), &on, &found, k->st));
    if (on) return refuse(k, sk_keys_hf(k, "attention_bias"), "false", "true");
    SK_TRY(sk_meta_find_bool(k->ck, sk_keys_hf(k, "tie_word_embeddings"), &c->tied, &found, k->st));
    // Older configurations have both outside.
    SK_TRY(sk_meta_find_f64(k->ck, sk_keys_hf(k, "partial_rotary_factor"), &part, &found, k->st));
    SK_TRY(sk_meta_find_f64(k->ck, sk_keys_hf(k, "rope_parameters.partial_rotary_factor"), &part,
                            &found, k->st));
    SK_TRY(
        sk_meta_find_f64(k->ck, sk_keys_hf(k, "rope_parameters.rope_theta"), &base, &found, k->st));
    if (found) c->rope_base = (float)base;
    if (!(part > 0) || part > 1 || !isfinite(c->rope_base) || c->rope_base <= 0)
        return SK_FAIL_CHECK(k->st, SK_FORMAT, "BAD_HPARAM", 0,
                             "%s: rope_parameters: expected a base above 0 and a part of a head in "
                             "(0, 1], found %.9g and %.9g",
                             sk_ckpt_path(k->ck), (double)c->rope_base, part);
    c->n_rot = (int32_t)(c->head_dim * part);
    if (c->n_rot >= 2 && c->n_rot % 2 == 0) return SK_OK;
    return bad_value(k, sk_keys_hf(k, "rope_parameters.partial_rotary_factor"),
                     "an even number of rotated dimensions above 0", c->n_rot);
}

sk_code sk_config_read_hybrid(sk_keys *k, sk_config *c)
{
    sk_hybrid *h = &c->hybrid;
    uint64_t draft = 0;
    bool found = false;
    const int32_t n_block = c->n_layer;
    if (k->hf) SK_TRY(read_hf(k, c));
    if (c->n_rot < 2 || c->n_rot % 2)
        return sk_keys_bad(k, "rope.dimension_count", "an even number above 0", c->n_rot);
    SK_TRY(sk_meta_find_u64(k->ck, sk_keys_name(k, "nextn_predict_layers"), SK_MAX_LAYERS, &draft,
                            &found, k->st));
    if (draft > 1) return refuse(k, sk_keys_name(k, "nextn_predict_layers"), "at most 1", "more");
    h->n_draft_layer = (int32_t)draft;
    // GGUF counts the drafting block with the others.
    if (!k->hf) c->n_layer -= h->n_draft_layer;
    if (c->n_layer < 1)
        return sk_keys_bad(k, "block_count", "more blocks than those that draft", n_block);
    SK_TRY(k->hf ? read_layer_types(k, c) : read_recurrent(k, c));
    SK_TRY(sk_keys_dim(k, "hyper_connection.count", 16, 0, &h->n_stream));
    SK_TRY(sk_keys_dim(k, "hyper_connection.low_rank", SK_MAX_DIM, 0, &h->low_rank));
    if ((int64_t)h->n_stream * c->dim > SK_MAX_DIM)
        return sk_keys_bad(k, "hyper_connection.count", "a total width of at most 2^20",
                           h->n_stream);
    c->width = h->n_stream * c->dim;
    SK_TRY(read_index(k, c, k->hf ? c->n_layer : n_block));
    SK_TRY(read_recurrence(k, c));
    SK_TRY(read_experts(k, c, k->hf ? c->n_layer : n_block));
    SK_TRY(read_ple(k, c));
    return SK_OK;
}
