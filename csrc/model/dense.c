/* Recipes of the dense decoder family: `llama`, `qwen2`, `qwen3`, `gemma3`.
 *
 *     x = E[token] * embedding scale
 *     per layer:  x += post( Wo attend(rope(Wq h), rope(Wk h), Wv h) )   h = rms(x) * attn_norm
 *                 x += post( Wdown (act(Wgate h) * (Wup h)) )            h = rms(x) * ffn_norm
 *     logits = Wout (rms(x) * output_norm)
 *
 * What differs is a row of the table below: which rotary pairs, whether queries and keys are normed
 * per head before the rotation, whether `post` is a norm (gemma3) or nothing, the activation, the
 * embedding scale, and which layers see a sliding window (with a rotary base of their own).
 *
 * GGUF files of `llama` store the rows of Wq and Wk permuted so that the rotated pairs are (2i,
 * 2i+1); the others, and all Hugging Face folders, keep the pairs (i, i + n/2). Norm weights of
 * gemma3 GGUF files already hold 1 + w. */
#include "model/model.h"

#include "base/mem.h"
#include "base/quant.h"
#include "model/weights.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct traits {
    bool neox;       // pairs (i, i+n/2), else (2i, 2i+1)
    bool qk_norm;    // per-head RMS norm of q and k before the rotation
    bool post_norm;  // RMS norm of what attention and feed-forward add to the stream
    bool gelu;       // tanh-approximated GELU, else SiLU
    bool embd_scale; // embeddings times sqrt(dim)
    bool sliding;    // all layers but every p-th see a window only
} traits;

typedef struct layer {
    int32_t attn_norm, ffn_norm; // F32 [dim]
    int32_t post_attn, post_ffn; // F32 [dim], -1 where there is none
    int32_t q_norm, k_norm;      // F32 [hd], -1 where there is none
    int32_t freq;                // F32 [n_rot/2]
    int32_t window;              // positions that a row sees; 0: all
    sk_lin qkv[3];               // [n_head*hd, dim], [n_kv*hd, dim] twice
    sk_lin out;                  // [dim, n_head*hd]
    sk_lin gate_up[2];           // [ffn, dim] each
    sk_lin down;                 // [dim, ffn]
    int32_t k_cache, v_cache;    // act [slots, ctx, n_kv, hd]
} layer;

typedef struct dense {
    traits is;
    int32_t embd;        // [vocab, dim]
    int32_t output_norm; // F32 [dim]
    sk_lin output;       // [vocab, dim]; the embedding when tied
    layer *layers;
} dense;

/* ---- weights ------------------------------------------------------------------------------- */

/* The rule "llama3": long waves are stretched by the factor, short ones not at all, those between
 * by something between. */
static float llama3_factor(const sk_config *c, int64_t i)
{
    const double base = (double)c->rope_base, full = (double)c->llama3_factor;
    const double low = (double)c->llama3_low, high = (double)c->llama3_high;
    const double wave = 6.283185307179586 * pow(base, 2.0 * (double)i / c->n_rot);
    double between;
    if (wave < c->llama3_ctx / high) return 1;
    if (wave > c->llama3_ctx / low) return (float)full;
    between = (c->llama3_ctx / wave - low) / (high - low);
    return (float)(1 / ((1 - between) / full + between));
}

/* Factors of the file on the rotary frequencies, 1 where it has none. */
static sk_code read_factors(sk_binder *b, const sk_config *c, int64_t n, float *factor)
{
    const sk_tensor *t = sk_ckpt_find_tensor(b->ck, "rope_freqs.weight");
    for (int64_t i = 0; i < n; i++) factor[i] = c->llama3_factor > 0 ? llama3_factor(c, i) : 1;
    if (!sk_binder_skip(b, "rope_freqs.weight")) return SK_OK;
    if (t->type != SK_F32 || t->n_elems != (uint64_t)n)
        return SK_FAIL_CHECK(
            b->st, SK_FORMAT, "BAD_SHAPE", t->file_off,
            "%s: tensor rope_freqs.weight: expected [%lld] F32, found %llu elements "
            "%s",
            sk_ckpt_path(b->ck), (long long)n, (unsigned long long)t->n_elems,
            sk_dtype_name(t->type));
    SK_TRY(sk_binder_read(b, t));
    sk_quant_row(SK_F32, t->data, (uint64_t)n, factor);
    for (int64_t i = 0; i < n; i++)
        if (!(factor[i] > 0) || !isfinite(factor[i]))
            return SK_FAIL_CHECK(
                b->st, SK_FORMAT, "BAD_DATA", t->file_off,
                "%s: tensor rope_freqs.weight: expected finite factors above 0, found "
                "%.9g at %lld",
                sk_ckpt_path(b->ck), (double)factor[i], (long long)i);
    return SK_OK;
}

/* Radians per position of each rotated pair: base^(-2i/n) * scale / factor. */
static sk_code add_freq(sk_binder *b, const sk_config *c, const char *name, float base, float scale,
                        const float *factor, int32_t *out)
{
    const int64_t n = c->n_rot / 2;
    float *freq = NULL;
    char full[SK_NAME_MAX];
    sk_code rc;
    SK_TRY(sk_mem_new((void **)&freq, (size_t)n, sizeof *freq, "rotary frequencies", b->st));
    for (int64_t i = 0; i < n; i++) {
        double f = pow((double)base, -2.0 * (double)i / c->n_rot) * (double)scale;
        freq[i] = (float)(f / (factor ? (double)factor[i] : 1.0));
    }
    (void)snprintf(full, sizeof full, "%.15s%.40s", b->prefix, name);
    rc = sk_space_add_const(b->space, full, SK_F32, 1, &n, freq, out, b->st);
    sk_mem_free(freq);
    return rc;
}

/* Which layers slide, and the rotary tables of both kinds. */
static sk_code bind_positions(dense *w, sk_binder *b, const sk_config *c)
{
    int32_t global = -1, local = -1;
    float *factor = NULL;
    sk_code rc;
    SK_TRY(sk_mem_new((void **)&factor, (size_t)c->n_rot / 2, sizeof *factor, "rotary factors",
                      b->st));
    rc = read_factors(b, c, c->n_rot / 2, factor);
    if (rc == SK_OK) rc = add_freq(b, c, "rope_freq", c->rope_base, c->rope_scale, factor, &global);
    if (rc == SK_OK && w->is.sliding)
        rc = add_freq(b, c, "rope_freq_local", c->rope_base_local, 1, NULL, &local);
    sk_mem_free(factor);
    SK_TRY(rc);
    for (int32_t i = 0; i < c->n_layer; i++) {
        bool slides = w->is.sliding && i % c->window_pattern < c->window_pattern - 1;
        w->layers[i].freq = slides ? local : global;
        w->layers[i].window = slides ? c->window : 0;
    }
    return SK_OK;
}

static sk_code bind_norm(sk_binder *b, bool wanted, int64_t n, int32_t *out, int i,
                         const char *part)
{
    *out = -1;
    return wanted ? sk_bind_vector(b, n, out, "blk.%d.%s.weight", i, part) : SK_OK;
}

/* Weight, scales and optional bias. */
static sk_code bind_linear(sk_binder *b, int64_t n_out, int64_t n_in, sk_lin *out, int i,
                           const char *part)
{
    return sk_bind_lin(b, n_out, n_in, out, "blk.%d.%s", i, part);
}

/* What attention_bias of config.json promises. */
static sk_code need_biases(const layer *l, sk_binder *b, int i)
{
    for (int j = 0; j < 3; j++)
        if (l->qkv[j].bias < 0)
            return SK_FAIL_CHECK(b->st, SK_FORMAT, "MISSING_TENSOR", 0,
                                 "%s: layer %d: expected biases of q_proj, k_proj and v_proj, as "
                                 "attention_bias is true, found none",
                                 sk_ckpt_path(b->ck), i);
    return SK_OK;
}

static sk_code bind_layer(const traits *is, layer *l, sk_binder *b, const sk_config *c, int i)
{
    const int64_t q = (int64_t)c->n_head * c->head_dim, kv = (int64_t)c->n_kv * c->head_dim;
    SK_TRY(bind_norm(b, true, c->dim, &l->attn_norm, i, "attn_norm"));
    SK_TRY(bind_linear(b, q, c->dim, &l->qkv[0], i, "attn_q"));
    SK_TRY(bind_linear(b, kv, c->dim, &l->qkv[1], i, "attn_k"));
    SK_TRY(bind_linear(b, kv, c->dim, &l->qkv[2], i, "attn_v"));
    if (c->attn_bias) SK_TRY(need_biases(l, b, i));
    SK_TRY(bind_norm(b, is->qk_norm, c->head_dim, &l->q_norm, i, "attn_q_norm"));
    SK_TRY(bind_norm(b, is->qk_norm, c->head_dim, &l->k_norm, i, "attn_k_norm"));
    SK_TRY(bind_linear(b, c->dim, q, &l->out, i, "attn_output"));
    SK_TRY(bind_norm(b, is->post_norm, c->dim, &l->post_attn, i, "post_attention_norm"));
    SK_TRY(bind_norm(b, true, c->dim, &l->ffn_norm, i, "ffn_norm"));
    SK_TRY(bind_linear(b, c->ffn, c->dim, &l->gate_up[0], i, "ffn_gate"));
    SK_TRY(bind_linear(b, c->ffn, c->dim, &l->gate_up[1], i, "ffn_up"));
    SK_TRY(bind_linear(b, c->dim, c->ffn, &l->down, i, "ffn_down"));
    return bind_norm(b, is->post_norm, c->dim, &l->post_ffn, i, "post_ffw_norm");
}

static sk_code bind_all(dense *w, sk_binder *b, const sk_config *c)
{
    SK_TRY(sk_bind_matrix(b, c->vocab, c->dim, &w->embd, "token_embd.weight"));
    SK_TRY(sk_bind_vector(b, c->dim, &w->output_norm, "output_norm.weight"));
    w->output = (sk_lin){.w = w->embd, .bias = -1};
    if (c->tied)
        (void)sk_binder_skip(b, "output.weight"); // a copy of the embedding, if it is there
    else if (c->hf || sk_binder_has(b, "output.weight"))
        SK_TRY(sk_bind_lin(b, c->vocab, c->dim, &w->output, "output"));
    else
        SK_TRY(sk_bind_vector_opt(b, c->vocab, &w->output.bias, "output.bias"));
    SK_TRY(bind_positions(w, b, c));
    for (int i = 0; i < c->n_layer; i++) SK_TRY(bind_layer(&w->is, &w->layers[i], b, c, i));
    return sk_binder_done(b);
}

/* ---- state --------------------------------------------------------------------------------- */

static sk_code add_state(dense *w, const sk_config *c, sk_space *space, const char *prefix,
                         const sk_state_size *size, sk_status *st)
{
    const int64_t dim[4] = {size->slots, size->ctx, c->n_kv, c->head_dim};
    char name[SK_NAME_MAX];
    for (int i = 0; i < c->n_layer; i++) {
        layer *l = &w->layers[i];
        (void)snprintf(name, sizeof name, "%.15sblk.%d.k_cache", prefix, i);
        SK_TRY(sk_space_add(space, name, SK_ROLE_STATE, size->act, 4, dim, &l->k_cache, st));
        (void)snprintf(name, sizeof name, "%.15sblk.%d.v_cache", prefix, i);
        SK_TRY(sk_space_add(space, name, SK_ROLE_STATE, size->act, 4, dim, &l->v_cache, st));
        sk_space_keep(space, l->k_cache, SK_KEEP_ROWS, 0);
        sk_space_keep(space, l->v_cache, SK_KEEP_ROWS, 0);
    }
    return SK_OK;
}

/* ---- opening ------------------------------------------------------------------------------- */

static sk_code refuse_experts(const sk_config *c, const sk_ckpt *ck, sk_status *st)
{
    uint64_t experts = 0;
    char key[64];
    bool found = false;
    (void)snprintf(key, sizeof key, "%s.expert_count", c->arch);
    SK_TRY(sk_meta_find_u64(ck, key, UINT64_MAX, &experts, &found, st));
    if (!experts) return SK_OK;
    return SK_FAIL(st, SK_UNSUPPORTED, "%s: %s: expected 0, found %llu", sk_ckpt_path(ck), key,
                   (unsigned long long)experts);
}

static sk_code open_with(traits is, sk_model *m, const sk_ckpt *ck, sk_space *space,
                         const char *prefix, const sk_state_size *size, sk_status *st)
{
    const sk_config *c = &m->config;
    sk_binder binder;
    dense *w = NULL;
    sk_code rc;
    SK_TRY(refuse_experts(c, ck, st));
    SK_TRY(sk_mem_new((void **)&w, 1, sizeof *w, "weights", st));
    m->self = w; // sk_model_close frees it from here on
    w->is = is;
    w->is.neox |= c->hf != NULL;
    SK_TRY(sk_mem_new((void **)&w->layers, (size_t)c->n_layer, sizeof *w->layers, "layers", st));
    SK_TRY(sk_binder_init(&binder, ck, space, prefix, st));
    rc = bind_all(w, &binder, c);
    sk_binder_fini(&binder);
    SK_TRY(rc);
    return add_state(w, c, space, prefix, size, st);
}

static void close_dense(sk_model *m)
{
    dense *w = m->self;
    sk_mem_free(w->layers);
    sk_mem_free(w);
}

/* ---- steps --------------------------------------------------------------------------------- */

static sk_norm norm_of(const sk_config *c, int32_t gain) { return (sk_norm){gain, c->rms_eps}; }

/* x += w y, or x += rms(w y) * post. */
static void add_to_stream(const sk_config *c, sk_builder *b, sk_view x, sk_view y, const sk_lin *w,
                          int32_t post)
{
    if (post < 0) {
        sk_b_linear_add(b, x, y, w);
        return;
    }
    sk_b_linear(b, y, w, 1, &y);
    sk_b_norm_add(b, x, y, norm_of(c, post));
}

/* Keys and values of the rows into the caches: all of a layer that the prefill needs of the last.
 */
static void append_only(const dense *w, const layer *l, const sk_config *c, sk_builder *b,
                        sk_view x)
{
    sk_view kv[2], k;
    sk_b_norm_linear(b, x, norm_of(c, l->attn_norm), l->qkv + 1, 2, kv);
    k = sk_b_heads(kv[0], c->n_kv);
    if (l->k_norm >= 0) k = sk_b_rms_norm(b, k, l->k_norm, c->rms_eps, SK_F32);
    k = sk_b_rope(b, k, l->freq, w->is.neox);
    sk_b_kv_append(b, k, sk_b_heads(kv[1], c->n_kv), l->k_cache, l->v_cache);
}

static void attention(const dense *w, const layer *l, const sk_config *c, sk_builder *b, sk_view x)
{
    const sk_attention at = {.q_norm = l->q_norm,
                             .k_norm = l->k_norm,
                             .freq = l->freq,
                             .k_cache = l->k_cache,
                             .v_cache = l->v_cache,
                             .eps = c->rms_eps,
                             .scale = c->attn_scale,
                             .window = l->window,
                             .neox = w->is.neox};
    sk_view qkv[3], o;
    sk_b_norm_linear(b, x, norm_of(c, l->attn_norm), l->qkv, 3, qkv);
    o = sk_b_rope_attend(b, sk_b_heads(qkv[0], c->n_head), sk_b_heads(qkv[1], c->n_kv),
                         sk_b_heads(qkv[2], c->n_kv), &at);
    add_to_stream(c, b, x, sk_b_flat(o), &l->out, l->post_attn);
}

static void feed_forward(const dense *w, const layer *l, const sk_config *c, sk_builder *b,
                         sk_view x)
{
    sk_view h = sk_b_norm_glu(b, x, norm_of(c, l->ffn_norm), l->gate_up, w->is.gelu);
    add_to_stream(c, b, x, h, &l->down, l->post_ffn);
}

static sk_view trunk(const sk_model *m, sk_builder *b, const sk_trunk *t)
{
    const dense *w = m->self;
    const sk_config *c = &m->config;
    sk_view x;
    sk_b_at(b, "embd");
    x = sk_b_gather_rows(b, w->embd, t->ids, w->is.embd_scale ? sqrtf((float)c->dim) : 1);
    for (int i = 0; i < c->n_layer; i++) {
        const layer *l = &w->layers[i];
        const bool last = i + 1 == c->n_layer;
        sk_b_at(b, "blk.%d.attn", i);
        if (t->cache_only && last) {
            append_only(w, l, c, b, x);
            return (sk_view)SK_VIEW_NONE;
        }
        attention(w, l, c, b, x);
        sk_b_at(b, "blk.%d.ffn", i);
        feed_forward(w, l, c, b, x);
        if (t->layer && t->layer[i]) t->out[i] = sk_b_copy_rows(b, x);
    }
    return x;
}

static sk_view head(const sk_model *m, sk_builder *b, sk_view x)
{
    const dense *w = m->self;
    sk_view logits;
    sk_b_at(b, "head");
    sk_b_norm_linear(b, x, norm_of(&m->config, w->output_norm), &w->output, 1, &logits);
    return logits;
}

static sk_view head_argmax(const sk_model *m, sk_builder *b, sk_view x)
{
    const dense *w = m->self;
    sk_b_at(b, "head");
    return sk_b_norm_argmax(b, x, norm_of(&m->config, w->output_norm), &w->output);
}

/* ---- the family ---------------------------------------------------------------------------- */

/* llama.cpp's converter and Hugging Face's `llama` agree that the whole head is rotated. */
static sk_code whole_head_rotates(const sk_config *c, const sk_ckpt *ck, sk_status *st)
{
    if (c->n_rot == c->head_dim) return SK_OK;
    return SK_FAIL_CHECK(st, SK_FORMAT, "BAD_HPARAM", 0,
                         "%s: %s.rope.dimension_count: expected the head width %d, found %d",
                         sk_ckpt_path(ck), c->arch, (int)c->head_dim, (int)c->n_rot);
}

/* Declares the recipe `name` with the given traits. */
#define RECIPE(name, ...)                                                                          \
    static sk_code open_##name(sk_model *m, const sk_ckpt *ck, sk_space *space,                    \
                               const char *prefix, const sk_state_size *size, sk_status *st)       \
    {                                                                                              \
        SK_TRY(whole_head_rotates(&m->config, ck, st));                                            \
        return open_with((traits){__VA_ARGS__}, m, ck, space, prefix, size, st);                   \
    }                                                                                              \
    const sk_arch sk_arch_##name = {#name, open_##name, close_dense, trunk, head, head_argmax, NULL}

RECIPE(llama, .neox = false);
RECIPE(qwen2, .neox = true);
RECIPE(qwen3, .neox = true, .qk_norm = true);
RECIPE(gemma3, .neox = true, .qk_norm = true, .post_norm = true, .gelu = true, .embd_scale = true,
       .sliding = true);
