/* Recipe `llama` (Llama 2 and 3, SmolLM2, ...): pre-norm attention with grouped key/value heads and
 * rotary positions over neighbouring pairs, SwiGLU feed-forward, untied or tied head.
 *
 *     x = E[token]
 *     per layer:  x += Wo attend(rope(Wq h), rope(Wk h), Wv h)   with h = rms(x) * attn_norm
 *                 x += Wdown (silu(Wgate h) * (Wup h))           with h = rms(x) * ffn_norm
 *     logits = Wout (rms(x) * output_norm)
 *
 * GGUF files of this architecture store the rows of Wq and Wk permuted so that the rotated pairs
 * are (2i, 2i+1). */
#include "model/model.h"

#include "base/mem.h"
#include "base/quant.h"
#include "model/weights.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct layer {
    int32_t attn_norm, ffn_norm; // F32 [dim]
    sk_lin qkv[3];               // [n_head*hd, dim], [n_kv*hd, dim] twice
    sk_lin out;                  // [dim, n_head*hd]
    sk_lin gate_up[2];           // [ffn, dim] each
    sk_lin down;                 // [dim, ffn]
    int32_t k_cache, v_cache;    // act [slots, ctx, n_kv, hd]
} layer;

typedef struct llama {
    int32_t embd;        // [vocab, dim]
    int32_t output_norm; // F32 [dim]
    sk_lin output;       // [vocab, dim]; the embedding when tied
    int32_t freq;        // F32 [n_rot/2]
    layer *layers;
} llama;

/* Radians per position of each rotated pair, divided by the file's own factors when it has them. */
static sk_code bind_freq(llama *w, sk_binder *b, const sk_config *c)
{
    const int64_t n = c->n_rot / 2;
    const sk_tensor *factors = sk_ckpt_find_tensor(b->ck, "rope_freqs.weight");
    float *freq = NULL, *factor;
    char name[SK_NAME_MAX];
    sk_code rc = SK_OK;
    SK_TRY(sk_mem_new((void **)&freq, (size_t)n * 2, sizeof *freq, "rotary frequencies", b->st));
    factor = freq + n;
    for (int64_t i = 0; i < n; i++) factor[i] = 1;
    if (factors) {
        (void)sk_binder_skip(b, "rope_freqs.weight");
        if (factors->type != SK_F32 || factors->n_elems != (uint64_t)n)
            rc = SK_FAIL_CHECK(
                b->st, SK_FORMAT, "BAD_SHAPE", factors->file_off,
                "%s: tensor rope_freqs.weight: expected [%lld] F32, found %llu elements %s",
                sk_ckpt_path(b->ck), (long long)n, (unsigned long long)factors->n_elems,
                sk_dtype_name(factors->type));
        else
            sk_quant_row(SK_F32, factors->data, (uint64_t)n, factor);
    }
    for (int64_t i = 0; rc == SK_OK && i < n; i++) {
        double f = pow((double)c->rope_base, -2.0 * (double)i / c->n_rot) * (double)c->rope_scale;
        if (!(factor[i] > 0) || !isfinite(factor[i]))
            rc = SK_FAIL_CHECK(
                b->st, SK_FORMAT, "BAD_DATA", factors ? factors->file_off : 0,
                "%s: tensor rope_freqs.weight: expected finite factors above 0, found "
                "%.9g at %lld",
                sk_ckpt_path(b->ck), (double)factor[i], (long long)i);
        freq[i] = (float)(f / (double)factor[i]);
    }
    (void)snprintf(name, sizeof name, "%.15srope_freq", b->prefix);
    if (rc == SK_OK) rc = sk_space_add_const(b->space, name, SK_F32, 1, &n, freq, &w->freq, b->st);
    sk_mem_free(freq);
    return rc;
}

static sk_code bind_layer(layer *l, sk_binder *b, const sk_config *c, int i)
{
    const int64_t q = (int64_t)c->n_head * c->head_dim, kv = (int64_t)c->n_kv * c->head_dim;
    SK_TRY(sk_bind_vector(b, c->dim, &l->attn_norm, "blk.%d.attn_norm.weight", i));
    SK_TRY(sk_bind_matrix(b, q, c->dim, &l->qkv[0].w, "blk.%d.attn_q.weight", i));
    SK_TRY(sk_bind_matrix(b, kv, c->dim, &l->qkv[1].w, "blk.%d.attn_k.weight", i));
    SK_TRY(sk_bind_matrix(b, kv, c->dim, &l->qkv[2].w, "blk.%d.attn_v.weight", i));
    SK_TRY(sk_bind_vector_opt(b, q, &l->qkv[0].bias, "blk.%d.attn_q.bias", i));
    SK_TRY(sk_bind_vector_opt(b, kv, &l->qkv[1].bias, "blk.%d.attn_k.bias", i));
    SK_TRY(sk_bind_vector_opt(b, kv, &l->qkv[2].bias, "blk.%d.attn_v.bias", i));
    SK_TRY(sk_bind_matrix(b, c->dim, q, &l->out.w, "blk.%d.attn_output.weight", i));
    SK_TRY(sk_bind_vector_opt(b, c->dim, &l->out.bias, "blk.%d.attn_output.bias", i));
    SK_TRY(sk_bind_vector(b, c->dim, &l->ffn_norm, "blk.%d.ffn_norm.weight", i));
    SK_TRY(sk_bind_matrix(b, c->ffn, c->dim, &l->gate_up[0].w, "blk.%d.ffn_gate.weight", i));
    SK_TRY(sk_bind_matrix(b, c->ffn, c->dim, &l->gate_up[1].w, "blk.%d.ffn_up.weight", i));
    SK_TRY(sk_bind_vector_opt(b, c->ffn, &l->gate_up[0].bias, "blk.%d.ffn_gate.bias", i));
    SK_TRY(sk_bind_vector_opt(b, c->ffn, &l->gate_up[1].bias, "blk.%d.ffn_up.bias", i));
    SK_TRY(sk_bind_matrix(b, c->dim, c->ffn, &l->down.w, "blk.%d.ffn_down.weight", i));
    return sk_bind_vector_opt(b, c->dim, &l->down.bias, "blk.%d.ffn_down.bias", i);
}

static sk_code bind_all(llama *w, sk_binder *b, const sk_config *c)
{
    SK_TRY(sk_bind_matrix(b, c->vocab, c->dim, &w->embd, "token_embd.weight"));
    SK_TRY(sk_bind_vector(b, c->dim, &w->output_norm, "output_norm.weight"));
    w->output = (sk_lin){w->embd, -1};
    if (sk_binder_has(b, "output.weight"))
        SK_TRY(sk_bind_matrix(b, c->vocab, c->dim, &w->output.w, "output.weight"));
    SK_TRY(bind_freq(w, b, c));
    for (int i = 0; i < c->n_layer; i++) SK_TRY(bind_layer(&w->layers[i], b, c, i));
    return sk_binder_done(b);
}

static sk_code add_state(llama *w, const sk_config *c, sk_space *space, const char *prefix,
                         int32_t n_slots, int32_t ctx, sk_dtype act, sk_status *st)
{
    const int64_t dim[4] = {n_slots, ctx, c->n_kv, c->head_dim};
    char name[SK_NAME_MAX];
    for (int i = 0; i < c->n_layer; i++) {
        layer *l = &w->layers[i];
        (void)snprintf(name, sizeof name, "%.15sblk.%d.k_cache", prefix, i);
        SK_TRY(sk_space_add(space, name, SK_ROLE_STATE, act, 4, dim, &l->k_cache, st));
        (void)snprintf(name, sizeof name, "%.15sblk.%d.v_cache", prefix, i);
        SK_TRY(sk_space_add(space, name, SK_ROLE_STATE, act, 4, dim, &l->v_cache, st));
        sk_space_keep(space, l->k_cache, SK_KEEP_ROWS, 0);
        sk_space_keep(space, l->v_cache, SK_KEEP_ROWS, 0);
    }
    return SK_OK;
}

static sk_code llama_check(const sk_config *c, const sk_ckpt *ck, sk_status *st)
{
    uint64_t experts = 0;
    bool found = false;
    SK_TRY(sk_meta_find_u64(ck, "llama.expert_count", UINT64_MAX, &experts, &found, st));
    if (experts)
        return SK_FAIL(st, SK_UNSUPPORTED, "%s: llama.expert_count: expected 0, found %llu",
                       sk_ckpt_path(ck), (unsigned long long)experts);
    if (c->n_rot != c->head_dim)
        return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_HPARAM", 0,
                             "%s: llama.rope.dimension_count: expected the head width %d, found %d",
                             sk_ckpt_path(ck), (int)c->head_dim, (int)c->n_rot);
    return SK_OK;
}

static sk_code llama_open(sk_model *m, const sk_ckpt *ck, sk_space *space, const char *prefix,
                          int32_t n_slots, int32_t ctx, sk_dtype act, sk_status *st)
{
    const sk_config *c = &m->config;
    sk_binder binder;
    llama *w = NULL;
    sk_code rc;
    SK_TRY(llama_check(c, ck, st));
    SK_TRY(sk_mem_new((void **)&w, 1, sizeof *w, "llama weights", st));
    m->self = w; // sk_model_close frees it from here on
    SK_TRY(
        sk_mem_new((void **)&w->layers, (size_t)c->n_layer, sizeof *w->layers, "llama layers", st));
    SK_TRY(sk_binder_init(&binder, ck, space, prefix, st));
    rc = bind_all(w, &binder, c);
    sk_binder_fini(&binder);
    SK_TRY(rc);
    return add_state(w, c, space, prefix, n_slots, ctx, act, st);
}

static void llama_close(sk_model *m)
{
    llama *w = m->self;
    sk_mem_free(w->layers);
    sk_mem_free(w);
}

static void attention(const layer *l, const sk_config *c, int32_t freq, sk_builder *b, sk_view x,
                      bool cache_only)
{
    sk_view h = sk_b_rms_norm(b, x, l->attn_norm, c->rms_eps);
    sk_view qkv[3], q, k, v, o;
    if (cache_only) {
        sk_b_linear(b, h, l->qkv + 1, 2, qkv + 1);
    } else {
        sk_b_linear(b, h, l->qkv, 3, qkv);
    }
    k = sk_b_rope(b, sk_b_heads(qkv[1], c->n_kv), freq, false);
    v = sk_b_heads(qkv[2], c->n_kv);
    sk_b_kv_append(b, k, v, l->k_cache, l->v_cache);
    if (cache_only) return;
    q = sk_b_rope(b, sk_b_heads(qkv[0], c->n_head), freq, false);
    o = sk_b_attend(b, q, l->k_cache, l->v_cache, c->attn_scale, 0);
    sk_b_linear(b, sk_b_flat(o), &l->out, 1, &o);
    sk_b_add(b, x, o);
}

static void feed_forward(const layer *l, const sk_config *c, sk_builder *b, sk_view x)
{
    sk_view h = sk_b_rms_norm(b, x, l->ffn_norm, c->rms_eps);
    sk_view gate_up[2], y;
    sk_b_linear(b, h, l->gate_up, 2, gate_up);
    sk_b_linear(b, sk_b_silu_mul(b, gate_up[0], gate_up[1]), &l->down, 1, &y);
    sk_b_add(b, x, y);
}

static sk_view llama_trunk(const sk_model *m, sk_builder *b, sk_view ids, bool cache_only,
                           const sk_trunk_taps *taps)
{
    const llama *w = m->self;
    const sk_config *c = &m->config;
    sk_view x;
    sk_b_at(b, "embd");
    x = sk_b_gather_rows(b, w->embd, ids, 1);
    for (int i = 0; i < c->n_layer; i++) {
        const layer *l = &w->layers[i];
        bool last = i + 1 == c->n_layer;
        sk_b_at(b, "blk.%d.attn", i);
        attention(l, c, w->freq, b, x, cache_only && last);
        if (cache_only && last) return (sk_view)SK_VIEW_NONE;
        sk_b_at(b, "blk.%d.ffn", i);
        feed_forward(l, c, b, x);
        if (taps && taps->layer && taps->layer[i]) taps->out[i] = sk_b_copy_rows(b, x);
    }
    return x;
}

static sk_view llama_head(const sk_model *m, sk_builder *b, sk_view x)
{
    const llama *w = m->self;
    sk_view logits;
    sk_b_at(b, "head");
    sk_b_linear(b, sk_b_rms_norm(b, x, w->output_norm, m->config.rms_eps), &w->output, 1, &logits);
    return logits;
}

const sk_arch sk_arch_llama = {"llama", llama_open, llama_close, llama_trunk, llama_head};
