/* Recipe `flash_next` (Qwen3.8-Flash-Next: qwen4_exp, GGUF qwen4exp).
 *
 *     S = S copies of E[token]
 *     per layer:  S += n-gram embedding                                  (one layer)
 *                 x, g = hyper(S);  S += g * block(x)    block: recurrence, or sparse attention
 *                 x, g = hyper(S);  S += g * (experts(x) + sigmoid(w x) * shared(x))
 *     logits = Wout hyper(S)
 *
 * There is no norm of a block's input and no last norm beside those inside the hyper-connections.
 * States of a layer are caches by position, or a window and a matrix that a verify pass leaves
 * alone: what its rows would do to them waits as pending rows for the next commit. */
#include "model/flash.h"

#include "base/mem.h"

#include <stdio.h>

/* ---- parts of a layer ------------------------------------------------------------------------ */

static sk_norm norm_of(const sk_config *c, int32_t gain) { return (sk_norm){gain, c->rms_eps}; }

/* x act [P, H]; F32 [P, H], or absent with `cache_only`. */
static sk_view recurrence(const sk_flash_gdn *g, const sk_config *c, sk_builder *b, sk_view x,
                          bool settle, bool cache_only)
{
    sk_view y[4], u, o;
    sk_b_linear(b, x, g->in, 4, y);
    u = sk_b_conv(b, y[0], g->taps, g->rows.window, 1);
    sk_b_window_take(b, y[0], &g->rows, settle);
    o = sk_b_gdn(b, u, y[3], y[2], &g->state, settle);
    if (cache_only) return (sk_view)SK_VIEW_NONE;
    o = sk_b_gated_norm(b, o, y[1], norm_of(c, g->norm));
    sk_b_linear(b, o, &g->out, 1, &o);
    return o;
}

/* Keys, values and index keys of the rows into their caches. */
static void append(const sk_flash_sparse *s, const sk_config *c, sk_builder *b, sk_view k,
                   sk_view v, sk_view index_k)
{
    sk_view heads = sk_b_rms_norm(b, sk_b_heads(k, c->n_kv), s->k_norm, c->rms_eps, SK_F32);
    sk_b_kv_append(b, sk_b_rope(b, heads, s->index.freq, true), sk_b_heads(v, c->n_kv), s->k_cache,
                   s->v_cache);
    sk_b_index_append(b, index_k, &s->index);
}

/* The index's query and key, F32 [P, Hi*D] and [P, D]. */
static sk_view index_of(const sk_flash_sparse *s, sk_builder *b, sk_view x, sk_view *key)
{
    const int64_t q = (int64_t)s->index.heads * s->index.dim;
    sk_view y[2];
    sk_b_linear(b, x, s->index_in, s->n_index_in, y);
    if (s->n_index_in == 2) {
        *key = y[1];
        return y[0];
    }
    *key = sk_b_columns(y[0], q, s->index.dim);
    return sk_b_columns(y[0], 0, q);
}

static sk_view attention(const sk_flash_sparse *s, const sk_config *c, sk_builder *b, sk_view x,
                         bool cache_only)
{
    const sk_attention at = {.k_cache = s->k_cache, .v_cache = s->v_cache, .scale = c->attn_scale};
    sk_view y[3], q, both, index_q, index_k, blocks, o;
    if (cache_only) {
        sk_b_linear(b, x, s->qkv + 1, 2, y + 1);
        (void)index_of(s, b, x, &index_k);
        append(s, c, b, y[1], y[2], index_k);
        return (sk_view)SK_VIEW_NONE;
    }
    sk_b_linear(b, x, s->qkv, 3, y);
    index_q = index_of(s, b, x, &index_k);
    append(s, c, b, y[1], y[2], index_k);
    blocks = sk_b_block_topk(b, index_q, &s->index);
    both = sk_b_heads(y[0], c->n_head); // query and gate of each head
    q = sk_b_columns(both, 0, c->head_dim);
    q = sk_b_rms_norm(b, q, s->q_norm, c->rms_eps, SK_F32);
    q = sk_b_rope(b, q, s->index.freq, true);
    o = sk_b_attend_blocks(b, q, sk_b_columns(both, c->head_dim, c->head_dim), blocks, &at,
                           s->index.ratio);
    o = sk_b_flat(o);
    sk_b_linear(b, o, &s->out, 1, &o);
    return o;
}

static sk_view mixture(const sk_flash_moe *m, const sk_config *c, sk_builder *b, sk_view x)
{
    const sk_hybrid *h = &c->hybrid;
    sk_view in[2], glu[2], weight, ids, y, shared;
    const int32_t beside = sk_b_fork(b);
    sk_b_linear(b, x, m->glu, 2, glu);
    shared = sk_b_silu_mul(b, glu[0], glu[1]);
    sk_b_linear(b, shared, &m->down, 1, &shared);
    sk_b_main(b);
    sk_b_linear(b, x, m->in, 2, in);
    ids = sk_b_route_topk(b, in[0], h->n_used, h->norm_topk, &weight);
    if (m->forced >= 0) sk_b_route_force(b, ids, m->forced, SK_FORCED_STRIDE);
    y = sk_b_experts(b, x, ids, weight, m->gate_up, &m->expert_down);
    sk_b_join(b, beside);
    sk_b_gate_add(b, y, shared, in[1]);
    return y;
}

void sk_flash_layer_steps(const sk_flash_layer *l, const sk_config *c, sk_builder *b, sk_view s,
                          const char *at, bool settle, bool cache_only)
{
    sk_view x, y, inject;
    sk_b_at(b, "%s.%s", at, l->is_sparse ? "attn" : "gdn");
    x = sk_b_hyper(b, s, &l->attn, &inject);
    y = l->is_sparse ? attention(&l->sparse, c, b, x, cache_only)
                     : recurrence(&l->gdn, c, b, x, settle, cache_only);
    if (cache_only) return;
    sk_b_hyper_inject(b, s, y, inject);
    sk_b_at(b, "%s.moe", at);
    x = sk_b_hyper(b, s, &l->ffn, &inject);
    sk_b_hyper_inject(b, s, mixture(&l->moe, c, b, x), inject);
}

/* ---- trunk ----------------------------------------------------------------------------------- */

/* Rows of the table by the tokens, act [P, heads * row]. */
static sk_view gather(const sk_flash_ple *p, const sk_config *c, sk_builder *b, const sk_trunk *t)
{
    sk_ngrams grams = p->grams;
    sk_view rows;
    sk_b_at(b, "blk.%d.ple", (int)c->hybrid.ple_layer);
    grams.tokens = t->tokens;
    rows = sk_b_ngram_rows(b, t->ids, &grams);
    if (t->ple_rows) *t->ple_rows = rows;
    return sk_b_gather_heads(b, rows, &grams);
}

static void add_ngrams(const sk_flash_ple *p, const sk_config *c, sk_builder *b, sk_view s,
                       sk_view grams, const sk_trunk *t)
{
    sk_view y[2], gated, normed, z;
    sk_b_at(b, "blk.%d.ple", (int)c->hybrid.ple_layer);
    sk_b_linear(b, grams, p->in, 2, y);
    gated = sk_b_ple_gate(b, y[0], y[1], s, &p->gate, &normed);
    z = sk_b_conv(b, normed, p->taps, p->rows.window, p->dilation);
    sk_b_window_take(b, normed, &p->rows, t->settle);
    sk_b_add(b, s, gated);
    sk_b_add(b, s, z);
}

static sk_view trunk(const sk_model *m, sk_builder *b, const sk_trunk *t)
{
    const sk_flash *w = m->self;
    const sk_config *c = &m->config;
    const bool beside = t->gather_beside && c->hybrid.ple_layer >= 0;
    sk_view s, grams = SK_VIEW_NONE;
    int32_t branch = 0;
    if (beside) {
        branch = sk_b_fork(b);
        grams = gather(&w->ple, c, b, t);
        sk_b_main(b);
    }
    sk_b_at(b, "embd");
    s = sk_b_stream_copy(b, sk_b_gather_rows(b, w->embd, t->ids, 1), c->hybrid.n_stream);
    for (int i = 0; i < c->n_layer; i++) {
        const bool last = t->cache_only && i + 1 == c->n_layer;
        char at[16];
        (void)snprintf(at, sizeof at, "blk.%d", i);
        if (i == c->hybrid.ple_layer) {
            if (beside)
                sk_b_join(b, branch);
            else
                grams = gather(&w->ple, c, b, t);
            add_ngrams(&w->ple, c, b, s, grams, t);
        }
        sk_flash_layer_steps(&w->layers[i], c, b, s, at, t->settle, last);
        if (last) return (sk_view)SK_VIEW_NONE;
        if (t->layer && t->layer[i]) t->out[i] = sk_b_copy_rows(b, s);
    }
    return s;
}

static void commit(const sk_model *m, sk_builder *b, sk_view kept)
{
    const sk_flash *w = m->self;
    const sk_config *c = &m->config;
    for (int i = 0; i < c->n_layer; i++) {
        const sk_flash_layer *l = &w->layers[i];
        if (i == c->hybrid.ple_layer) {
            sk_b_at(b, "blk.%d.ple", i);
            sk_b_window_commit(b, &w->ple.rows, kept);
        }
        if (l->is_sparse) continue; // caches by position hold what was kept already
        sk_b_at(b, "blk.%d.gdn", i);
        sk_b_window_commit(b, &l->gdn.rows, kept);
        sk_b_gdn_fold(b, &l->gdn.state, kept);
    }
}

static sk_view head(const sk_model *m, sk_builder *b, sk_view s)
{
    const sk_flash *w = m->self;
    sk_view logits;
    sk_b_at(b, "head");
    sk_b_linear(b, sk_b_hyper(b, s, &w->mixer, NULL), &w->output, 1, &logits);
    return logits;
}

static sk_view head_argmax(const sk_model *m, sk_builder *b, sk_view s)
{
    const sk_flash *w = m->self;
    sk_b_at(b, "head");
    return sk_b_linear_argmax(b, sk_b_hyper(b, s, &w->mixer, NULL), &w->output);
}

/* ---- forced routes --------------------------------------------------------------------------- */

sk_code sk_flash_force(sk_flash_layer *l, const sk_config *c, const sk_forced *f, sk_space *space,
                       const char *prefix, int i, sk_status *st)
{
    return sk_forced_bind(f, space, prefix, i, c->hybrid.n_expert, c->hybrid.n_used, &l->moe.forced,
                          st);
}

static sk_code force(sk_model *m, const sk_forced *f, sk_space *space, const char *prefix,
                     sk_status *st)
{
    sk_flash *w = m->self;
    for (int i = 0; i < m->config.n_layer; i++)
        SK_TRY(sk_flash_force(&w->layers[i], &m->config, f, space, prefix, i, st));
    return SK_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Tensors that belong to no text, and those of a draft head, which are bound by themselves. */
static void skip_others(sk_binder *b, const sk_config *c)
{
    if (!b->hf) {
        char block[24];
        (void)snprintf(block, sizeof block, "blk.%d.", (int)c->n_layer);
        if (c->hybrid.n_draft_layer || sk_binder_has(b, "%snextn.enorm.weight", block))
            sk_binder_skip_all(b, block);
        return;
    }
    sk_binder_skip_all(b, "mtp.");
    sk_binder_skip_all(b, "model.visual.");
    sk_binder_skip_all(b, "visual.");
}

static sk_code add_states(sk_flash *w, const sk_config *c, sk_space *space, const char *prefix,
                          const sk_state_size *size, sk_status *st)
{
    for (int i = 0; i < c->n_layer; i++) {
        SK_TRY(sk_flash_add_state(&w->layers[i], space, prefix, c, size, i, st));
        if (i == c->hybrid.ple_layer)
            SK_TRY(sk_flash_add_ple_state(&w->ple, space, prefix, c, size, st));
    }
    return SK_OK;
}

static sk_code open_flash(sk_model *m, const sk_ckpt *ck, sk_space *space, const char *prefix,
                          const sk_state_size *size, sk_status *st)
{
    const sk_config *c = &m->config;
    sk_binder binder;
    sk_flash *w = NULL;
    sk_code rc;
    SK_TRY(sk_mem_new((void **)&w, 1, sizeof *w, "weights", st));
    m->self = w; // sk_model_close frees it from here on
    SK_TRY(sk_mem_new((void **)&w->layers, (size_t)c->n_layer, sizeof *w->layers, "layers", st));
    SK_TRY(sk_binder_init(&binder, ck, space, prefix, st));
    rc = sk_flash_bind(w, &binder, c);
    if (rc == SK_OK) {
        skip_others(&binder, c);
        rc = sk_binder_done(&binder);
    }
    sk_binder_fini(&binder);
    SK_TRY(rc);
    return add_states(w, c, space, prefix, size, st);
}

static void close_flash(sk_model *m)
{
    sk_flash *w = m->self;
    sk_mem_free(w->layers);
    sk_mem_free(w);
}

const sk_arch sk_arch_flash_next = {"qwen4exp", open_flash,  close_flash, trunk,
                                    head,       head_argmax, commit,      force};
