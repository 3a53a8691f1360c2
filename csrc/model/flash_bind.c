/* Weights and states of flash_next (flash.h), from GGUF files and Hugging Face folders.
 *
 * Norm gains of folders get the 1 that is added to them (weights.c), but for the recurrence's. A
 * GGUF file has the coefficients of the decay ready, a folder their logarithm. A folder keeps the
 * heads of values grouped by their key head, a GGUF file has them tiled: nothing is moved, the map
 * of heads says which is whose. */
#include "model/flash.h"

#include "base/mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- parts ----------------------------------------------------------------------------------- */

sk_code sk_flash_bind_hyper(sk_hyper *h, sk_binder *b, const sk_config *c, bool injects,
                            const char *fmt, ...)
{
    const int64_t rank = c->hybrid.low_rank, streams = c->hybrid.n_stream;
    char name[48];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    *h = (sk_hyper){.inject = -1, .n_stream = c->hybrid.n_stream, .eps = c->rms_eps};
    SK_TRY(sk_bind_vector(b, c->width, &h->gain, "%s_norm.weight", name));
    SK_TRY(sk_bind_matrix(b, rank, c->width, &h->down, "%s_down.weight", name));
    SK_TRY(sk_bind_matrix(b, c->width, rank, &h->up, "%s_up.weight", name));
    if (!injects) return SK_OK;
    return sk_bind_matrix(b, streams, c->width, &h->inject, "%s_inject.weight", name);
}

/* Weights of a convolution, [channels, taps]. */
static sk_code bind_taps(sk_binder *b, int64_t channels, int64_t taps, int32_t *out, int i,
                         const char *part)
{
    const int64_t dim[2] = {channels, taps};
    char name[SK_NAME_MAX];
    float *values = NULL;
    sk_code rc;
    (void)snprintf(name, sizeof name, "blk.%d.%s.weight", i, part);
    SK_TRY(sk_bind_values(b, channels, taps, &values, "%s", name));
    rc = sk_bind_const(b, name, SK_F32, 2, dim, values, out);
    sk_mem_free(values);
    return rc;
}

/* -exp(A_log), which a GGUF file has as it is. */
static sk_code bind_coef(sk_binder *b, int64_t n, int32_t *out, int i)
{
    char name[SK_NAME_MAX];
    float *values = NULL;
    sk_code rc = SK_OK;
    (void)snprintf(name, sizeof name, "blk.%d.ssm_a", i);
    SK_TRY(sk_bind_values(b, n, 1, &values, "%s", name));
    for (int64_t j = 0; j < n; j++) {
        if (b->hf) values[j] = (float)-exp((double)values[j]);
        if ((!(values[j] < 0) || !isfinite(values[j])) && rc == SK_OK)
            rc = SK_FAIL_CHECK(b->st, SK_FORMAT, "BAD_DATA", 0,
                               "%s: tensor %s: expected finite decays below 0, found %.9g at %lld",
                               sk_ckpt_path(b->ck), name, (double)values[j], (long long)j);
    }
    if (rc == SK_OK) rc = sk_bind_const(b, name, SK_F32, 1, &n, values, out);
    sk_mem_free(values);
    return rc;
}

static sk_code bind_gdn(sk_flash_gdn *g, sk_binder *b, const sk_config *c, const sk_flash *w, int i)
{
    const sk_hybrid *h = &c->hybrid;
    const int64_t keys = (int64_t)h->key_heads * h->key_dim;
    const int64_t values = (int64_t)h->value_heads * h->value_dim;
    const int64_t channels = 2 * keys + values;
    SK_TRY(sk_bind_lin(b, channels, c->dim, &g->in[0], "blk.%d.attn_qkv", i));
    SK_TRY(sk_bind_lin(b, values, c->dim, &g->in[1], "blk.%d.attn_gate", i));
    SK_TRY(sk_bind_lin(b, h->value_heads, c->dim, &g->in[2], "blk.%d.ssm_beta", i));
    SK_TRY(sk_bind_lin(b, h->value_heads, c->dim, &g->in[3], "blk.%d.ssm_alpha", i));
    SK_TRY(bind_taps(b, channels, h->taps, &g->taps, i, "ssm_conv1d"));
    SK_TRY(bind_coef(b, h->value_heads, &g->state.coef, i));
    SK_TRY(sk_bind_vector(b, h->value_heads, &g->state.dt, "blk.%d.ssm_dt.bias", i));
    SK_TRY(sk_bind_vector(b, h->value_dim, &g->norm, "blk.%d.ssm_norm.weight", i));
    g->state.key = w->key_map;
    g->state.key_heads = h->key_heads;
    g->state.key_dim = h->key_dim;
    return sk_bind_lin(b, c->dim, values, &g->out, "blk.%d.ssm_out", i);
}

static sk_code bind_sparse(sk_flash_sparse *s, sk_binder *b, const sk_config *c, const sk_flash *w,
                           int i)
{
    const sk_hybrid *h = &c->hybrid;
    const int64_t q = (int64_t)c->n_head * c->head_dim, kv = (int64_t)c->n_kv * c->head_dim;
    const int64_t iq = (int64_t)h->index_heads * h->index_dim;
    SK_TRY(sk_bind_lin(b, 2 * q, c->dim, &s->qkv[0], "blk.%d.attn_q", i));
    SK_TRY(sk_bind_lin(b, kv, c->dim, &s->qkv[1], "blk.%d.attn_k", i));
    SK_TRY(sk_bind_lin(b, kv, c->dim, &s->qkv[2], "blk.%d.attn_v", i));
    SK_TRY(sk_bind_vector(b, c->head_dim, &s->q_norm, "blk.%d.attn_q_norm.weight", i));
    SK_TRY(sk_bind_vector(b, c->head_dim, &s->k_norm, "blk.%d.attn_k_norm.weight", i));
    SK_TRY(sk_bind_lin(b, c->dim, q, &s->out, "blk.%d.attn_output", i));
    s->n_index_in = b->hf ? 1 : 2;
    if (b->hf) {
        SK_TRY(sk_bind_lin(b, iq + h->index_dim, c->dim, &s->index_in[0], "blk.%d.indexer.qk_proj",
                           i));
    } else {
        SK_TRY(sk_bind_lin(b, iq, c->dim, &s->index_in[0], "blk.%d.indexer.q_proj", i));
        SK_TRY(sk_bind_lin(b, h->index_dim, c->dim, &s->index_in[1], "blk.%d.indexer.k_proj", i));
    }
    s->index = (sk_index){.freq = w->freq,
                          .heads = h->index_heads,
                          .dim = h->index_dim,
                          .ratio = h->ratio,
                          .blocks = h->blocks,
                          .eps = c->rms_eps};
    SK_TRY(sk_bind_vector(b, h->index_dim, &s->index.q_gain, "blk.%d.indexer.q_norm.weight", i));
    return sk_bind_vector(b, h->index_dim, &s->index.k_gain, "blk.%d.indexer.k_norm.weight", i);
}

/* ---- experts --------------------------------------------------------------------------------- */

typedef struct expert_name {
    int block;
    const char *part;
} expert_name;

static void name_expert(char out[SK_NAME_MAX], void *ctx, int64_t i)
{
    const expert_name *e = ctx;
    (void)snprintf(out, SK_NAME_MAX, "blk.%d.expert.%lld.%s.weight", e->block, (long long)i,
                   e->part);
}

/* One of gate, up and down: in a tensor with its neighbour, in one of its own, or one by one. */
static sk_code bind_stack(sk_binder *b, const sk_stack_shape *shape, sk_stack *out, int i,
                          const char *part)
{
    expert_name each = {i, part};
    char joined[SK_NAME_MAX], own[SK_NAME_MAX], first[SK_NAME_MAX];
    sk_stack_shape s = *shape;
    (void)snprintf(joined, sizeof joined, "blk.%d.ffn_gate_up_exps.weight", i);
    (void)snprintf(own, sizeof own, "blk.%d.ffn_%s_exps.weight", i, part);
    name_expert(first, &each, 0);
    if (s.whole && sk_binder_has(b, "%s", joined))
        return sk_bind_joined(b, &s, joined, own, &out->w, &out->at);
    s.whole = s.from = 0;
    if (b->hf && sk_binder_has(b, "%s", first))
        return sk_bind_each(b, &s, name_expert, &each, own, &out->w, &out->at);
    // Of a folder without either, the joined one is what is missed.
    return sk_bind_joined(b, &s, b->hf && shape->whole ? joined : own, own, &out->w, &out->at);
}

static sk_code bind_moe(sk_flash_moe *m, sk_binder *b, const sk_config *c, int i)
{
    const sk_hybrid *h = &c->hybrid;
    const int64_t n = h->n_expert, ffn = h->ffn_expert;
    const sk_stack_shape gate = {n, ffn, c->dim, 2 * ffn, 0}, up = {n, ffn, c->dim, 2 * ffn, ffn};
    const sk_stack_shape down = {n, c->dim, ffn, 0, 0};
    m->forced = -1;
    SK_TRY(sk_bind_lin(b, n, c->dim, &m->in[0], "blk.%d.ffn_gate_inp", i));
    SK_TRY(sk_bind_lin(b, 1, c->dim, &m->in[1], "blk.%d.ffn_gate_inp_shexp", i));
    SK_TRY(sk_bind_lin(b, h->ffn_shared, c->dim, &m->glu[0], "blk.%d.ffn_gate_shexp", i));
    SK_TRY(sk_bind_lin(b, h->ffn_shared, c->dim, &m->glu[1], "blk.%d.ffn_up_shexp", i));
    SK_TRY(sk_bind_lin(b, c->dim, h->ffn_shared, &m->down, "blk.%d.ffn_down_shexp", i));
    SK_TRY(bind_stack(b, &gate, &m->gate_up[0], i, "gate"));
    SK_TRY(bind_stack(b, &up, &m->gate_up[1], i, "up"));
    return bind_stack(b, &down, &m->expert_down, i, "down");
}

sk_code sk_flash_bind_layer(sk_flash_layer *l, sk_binder *b, const sk_config *c, const sk_flash *w,
                            int i, bool is_sparse)
{
    l->is_sparse = is_sparse;
    SK_TRY(sk_flash_bind_hyper(&l->attn, b, c, true, "blk.%d.hc_attn", i));
    SK_TRY(sk_flash_bind_hyper(&l->ffn, b, c, true, "blk.%d.hc_ffn", i));
    SK_TRY(is_sparse ? bind_sparse(&l->sparse, b, c, w, i) : bind_gdn(&l->gdn, b, c, w, i));
    return bind_moe(&l->moe, b, c, i);
}

/* ---- hashed embedding ------------------------------------------------------------------------ */

/* Constants of the hash: tensors I64 of a folder, arrays of a GGUF file. Exact integers. */
static sk_code read_hash(sk_binder *b, const sk_config *c, const char *tensor, const char *key,
                         int64_t n, int64_t *out)
{
    char name[SK_NAME_MAX], real[SK_TENSOR_NAME_MAX], full[96];
    const sk_tensor *t;
    uint64_t values[SK_HASH_MAX];
    bool found = false;
    if (!b->hf) {
        (void)snprintf(full, sizeof full, "%s.%s", c->arch, key);
        SK_TRY(sk_meta_find_u64s(b->ck, full, INT64_MAX, values, (size_t)n, &found, b->st));
        for (int64_t i = 0; found && i < n; i++) out[i] = (int64_t)values[i];
        if (found) return SK_OK;
        return SK_FAIL_CHECK(b->st, SK_FORMAT, "MISSING_KEY", 0,
                             "%s: %s: expected in the file, found none", sk_ckpt_path(b->ck), full);
    }
    (void)snprintf(name, sizeof name, "blk.%d.%s", (int)c->hybrid.ple_layer, tensor);
    t = sk_binder_find(b, name, real);
    if (!t)
        return SK_FAIL_CHECK(b->st, SK_FORMAT, "MISSING_TENSOR", 0,
                             "%s: tensor %s: expected in the file, found none", sk_ckpt_path(b->ck),
                             real);
    SK_TRY(sk_binder_read(b, t));
    if (t->type != SK_I64 || t->n_elems != (uint64_t)n) {
        (void)snprintf(full, sizeof full, "%lld", (long long)n);
        return t->type == SK_I64 ? sk_binder_bad_shape(b, real, full, t)
                                 : SK_FAIL_CHECK(b->st, SK_FORMAT, "BAD_TYPE", t->file_off,
                                                 "%s: tensor %s: expected I64, found %s",
                                                 sk_ckpt_path(b->ck), real, sk_dtype_name(t->type));
    }
    memcpy(out, t->data, (size_t)n * sizeof *out);
    return SK_OK;
}

static sk_code bad_hash(const sk_binder *b, const char *what, const char *expected, int64_t found)
{
    return SK_FAIL_CHECK(b->st, SK_FORMAT, "BAD_DATA", 0, "%s: %s: expected %s, found %lld",
                         sk_ckpt_path(b->ck), what, expected, (long long)found);
}

/* Products of 64 bits do not overflow, and every row is one of the table. */
static sk_code check_hash(const sk_binder *b, const sk_config *c, int64_t n, const int64_t *mult,
                          int64_t heads, const int64_t *size, const int64_t *offset, int64_t rows)
{
    for (int64_t i = 0; i < n; i++)
        if (mult[i] < 1 || mult[i] > INT64_MAX / c->vocab)
            return bad_hash(b, "multipliers of n-grams",
                            "numbers above 0 whose products with a token fit 63 bits", mult[i]);
    for (int64_t i = 0; i < heads; i++)
        if (size[i] < 1 || offset[i] < 0 || size[i] > rows || offset[i] > rows - size[i])
            return bad_hash(b, "rows of n-grams", "ranges within the table", offset[i]);
    return SK_OK;
}

static sk_code bind_hash(sk_ngrams *g, sk_binder *b, const sk_config *c, int64_t rows)
{
    const sk_hybrid *h = &c->hybrid;
    const int64_t n = h->ngram, heads = (n - 1) * h->heads_per_ngram;
    int64_t mult[SK_HASH_MAX] = {0}, size[SK_HASH_MAX] = {0}, offset[SK_HASH_MAX] = {0};
    if (heads > SK_HASH_MAX)
        return SK_FAIL(b->st, SK_UNSUPPORTED,
                       "%s: heads of n-grams: expected at most %d, found "
                       "%lld",
                       sk_ckpt_path(b->ck), SK_HASH_MAX, (long long)heads);
    SK_TRY(read_hash(b, c, "ple_multipliers", "ple.layer_multipliers", n, mult));
    SK_TRY(read_hash(b, c, "ple_sizes", "ple.head_vocab_sizes", heads, size));
    SK_TRY(read_hash(b, c, "ple_offsets", "ple.head_offsets", heads, offset));
    SK_TRY(check_hash(b, c, n, mult, heads, size, offset, rows));
    SK_TRY(sk_bind_const(b, "ple.mult", SK_I64, 1, &n, mult, &g->mult));
    SK_TRY(sk_bind_const(b, "ple.size", SK_I64, 1, &heads, size, &g->size));
    return sk_bind_const(b, "ple.offset", SK_I64, 1, &heads, offset, &g->offset);
}

/* Is there a shard that is not bound yet? `real` is the name of one. */
static bool has_more_shards(const sk_binder *b, const char *real)
{
    static const char end[] = ".weight";
    const size_t n = (size_t)(strstr(real, "shard_") - real) + 6;
    for (size_t i = 0; i < sk_ckpt_n_tensors(b->ck); i++) {
        const sk_str s = sk_ckpt_tensor(b->ck, i)->name;
        if (!b->used[i] && s.n > n + sizeof end && memcmp(s.p, real, n) == 0 &&
            memcmp(s.p + s.n - (sizeof end - 1), end, sizeof end - 1) == 0)
            return true;
    }
    return false;
}

/* The table of a folder: shards by number, of equal rows but for the last. */
static sk_code bind_shards(sk_ngrams *g, sk_binder *b, const sk_config *c, int64_t *rows)
{
    const int i = c->hybrid.ple_layer;
    char name[SK_NAME_MAX], real[SK_TENSOR_NAME_MAX], expected[64];
    const uint8_t **pieces = NULL;
    const sk_tensor *t, *first = NULL;
    size_t n = 0, cap = 0;
    sk_code rc = SK_OK;
    *rows = 0;
    for (;; n++) {
        (void)snprintf(name, sizeof name, "blk.%d.ple_shard.%zu.weight", i, n);
        t = sk_binder_find(b, name, real);
        if (!t && n > 0 && !has_more_shards(b, real)) break;
        if (!t)
            rc = SK_FAIL_CHECK(b->st, SK_FORMAT, "MISSING_TENSOR", 0,
                               "%s: tensor %s: expected in the file, found none",
                               sk_ckpt_path(b->ck), real);
        if (rc != SK_OK) break;
        sk_binder_take(b, t);
        if (!first) first = t;
        (void)snprintf(expected, sizeof expected, "rows, %d", (int)c->hybrid.ple_dim);
        // All shards before this one must have been as long as the first.
        if (t->n_dims != 2 || t->dim[1] != (uint64_t)c->hybrid.ple_dim || t->dim[0] < 1 ||
            t->dim[0] > first->dim[0] || (uint64_t)*rows != n * first->dim[0])
            rc = sk_binder_bad_shape(b, real, expected, t);
        else if (t->type != first->type || !sk_dtype_is_weight(t->type))
            rc = SK_FAIL_CHECK(b->st, SK_UNSUPPORTED, "BAD_TYPE", t->file_off,
                               "%s: tensor %s: expected one type of weights for all shards, found "
                               "%s",
                               sk_ckpt_path(b->ck), real, sk_dtype_name(t->type));
        if (rc == SK_OK)
            rc = sk_mem_grow((void **)&pieces, n, &cap, sizeof *pieces, "shards", b->st);
        if (rc != SK_OK) break;
        pieces[n] = t->data;
        *rows += (int64_t)t->dim[0];
    }
    if (rc == SK_OK) {
        const int64_t dim[2] = {*rows, c->hybrid.ple_dim};
        char buf[SK_NAME_MAX];
        sk_binder_buffer(b, "per_layer_token_embd.weight", buf);
        g->piece_rows = (int32_t)first->dim[0]; // of a table that is not refused for its rows
        rc = sk_space_add_pieces(b->space, buf, first->type, 2, dim, (int64_t)first->dim[0], pieces,
                                 &g->table, &g->at, b->st);
    }
    sk_mem_free(pieces);
    return rc;
}

static sk_code bind_table(sk_ngrams *g, sk_binder *b, const sk_config *c, int64_t *rows)
{
    static const char name[] = "per_layer_token_embd.weight";
    const sk_tensor *t = sk_ckpt_find_tensor(b->ck, name);
    g->at = -1;
    if (b->hf) return bind_shards(g, b, c, rows);
    *rows = t && t->n_dims == 2 ? (int64_t)t->dim[0] : 1;
    return sk_bind_matrix(b, *rows, c->hybrid.ple_dim, &g->table, "%s", name);
}

static sk_code bind_ple(sk_flash_ple *p, sk_binder *b, const sk_config *c)
{
    const sk_hybrid *h = &c->hybrid;
    const int i = h->ple_layer;
    const int64_t width = (int64_t)(h->ngram - 1) * h->heads_per_ngram * h->ple_dim;
    int64_t rows = 0;
    SK_TRY(sk_bind_lin(b, c->width, width, &p->in[0], "blk.%d.ple_key", i));
    SK_TRY(sk_bind_lin(b, c->dim, width, &p->in[1], "blk.%d.ple_value", i));
    SK_TRY(bind_taps(b, c->width, h->ple_taps, &p->taps, i, "ple_conv1d"));
    p->gate = (sk_ple){.n_stream = h->n_stream, .eps = c->rms_eps};
    SK_TRY(sk_bind_vector(b, c->width, &p->gate.key_gain, "blk.%d.ple_norm_key.weight", i));
    SK_TRY(sk_bind_vector(b, c->width, &p->gate.query_gain, "blk.%d.ple_norm_query.weight", i));
    SK_TRY(sk_bind_vector(b, c->width, &p->gate.conv_gain, "blk.%d.ple_norm_conv.weight", i));
    p->grams.eos = h->ple_eos;
    p->dilation = h->ngram;
    SK_TRY(bind_table(&p->grams, b, c, &rows));
    b->space->bufs[p->grams.table].as_is = true; // rows are gathered, nothing is multiplied
    b->space->bufs[p->grams.table].sparse = true;
    if (rows > INT32_MAX)
        return SK_FAIL(b->st, SK_UNSUPPORTED,
                       "%s: table of n-grams: expected at most 2147483647 rows, found %lld",
                       sk_ckpt_path(b->ck), (long long)rows);
    return bind_hash(&p->grams, b, c, rows);
}

/* ---- all ------------------------------------------------------------------------------------- */

/* Radians per position of each rotated pair, of attention and of its index alike. */
static sk_code add_freq(sk_flash *w, sk_binder *b, const sk_config *c)
{
    const int64_t n = c->n_rot / 2;
    float *freq = NULL;
    sk_code rc;
    SK_TRY(sk_mem_new((void **)&freq, (size_t)n, sizeof *freq, "rotary frequencies", b->st));
    for (int64_t i = 0; i < n; i++)
        freq[i] =
            (float)(pow((double)c->rope_base, -2.0 * (double)i / c->n_rot) * (double)c->rope_scale);
    rc = sk_bind_const(b, "rope_freq", SK_F32, 1, &n, freq, &w->freq);
    sk_mem_free(freq);
    return rc;
}

static sk_code add_key_map(sk_flash *w, sk_binder *b, const sk_config *c)
{
    const int32_t heads = c->hybrid.value_heads, keys = c->hybrid.key_heads;
    const int64_t n = heads;
    int32_t *map = NULL;
    sk_code rc;
    SK_TRY(sk_mem_new((void **)&map, (size_t)n, sizeof *map, "map of heads", b->st));
    for (int32_t i = 0; i < heads; i++) map[i] = b->hf ? i / (heads / keys) : i % keys;
    rc = sk_bind_const(b, "key_map", SK_I32, 1, &n, map, &w->key_map);
    sk_mem_free(map);
    return rc;
}

sk_code sk_flash_bind(sk_flash *w, sk_binder *b, const sk_config *c)
{
    SK_TRY(sk_bind_matrix(b, c->vocab, c->dim, &w->embd, "token_embd.weight"));
    w->output = (sk_lin){.w = w->embd, .bias = -1, .scale = -1};
    if (c->tied)
        (void)sk_binder_skip(b, "output.weight");
    else if (b->hf || sk_binder_has(b, "output.weight"))
        SK_TRY(sk_bind_lin(b, c->vocab, c->dim, &w->output, "output"));
    SK_TRY(sk_flash_bind_hyper(&w->mixer, b, c, false, "output_hc"));
    SK_TRY(add_freq(w, b, c));
    SK_TRY(add_key_map(w, b, c));
    for (int i = 0; i < c->n_layer; i++)
        SK_TRY(sk_flash_bind_layer(&w->layers[i], b, c, w, i, c->hybrid.sparse[i] != 0));
    return c->hybrid.ple_layer >= 0 ? bind_ple(&w->ple, b, c) : SK_OK;
}

/* ---- states ---------------------------------------------------------------------------------- */

sk_code sk_flash_add_buffer(sk_space *space, const char *prefix, int i, const char *name,
                            sk_role role, sk_dtype type, int32_t rank, const int64_t *dim,
                            sk_keep keep, int32_t *out, sk_status *st)
{
    char full[SK_NAME_MAX];
    (void)snprintf(full, sizeof full, "%.15sblk.%d.%.30s", prefix, i, name);
    SK_TRY(sk_space_add(space, full, role, type, rank, dim, out, st));
    if (keep != SK_KEEP_NONE) sk_space_keep(space, *out, keep, 0);
    return SK_OK;
}

static sk_code add_window(sk_space *space, const char *prefix, int i, const char *name,
                          const sk_state_size *size, int64_t rows, int64_t columns, sk_window *out,
                          sk_status *st)
{
    const int64_t window[3] = {size->slots, rows, columns};
    const int64_t pending[3] = {size->slots, size->width, columns};
    char kept[32];
    (void)snprintf(kept, sizeof kept, "%.20s.pending", name);
    SK_TRY(sk_flash_add_buffer(space, prefix, i, name, SK_ROLE_STATE, size->act, 3, window,
                               SK_KEEP_ALL, &out->window, st));
    return sk_flash_add_buffer(space, prefix, i, kept, SK_ROLE_PENDING, size->act, 3, pending,
                               SK_KEEP_NONE, &out->pending, st);
}

static sk_code add_gdn_state(sk_flash_gdn *g, sk_space *space, const char *prefix,
                             const sk_config *c, const sk_state_size *size, int i, sk_status *st)
{
    const sk_hybrid *h = &c->hybrid;
    const int64_t keys = (int64_t)h->key_heads * h->key_dim;
    const int64_t values = (int64_t)h->value_heads * h->value_dim;
    const int64_t m[4] = {size->slots, h->value_heads, h->key_dim, h->value_dim};
    const int64_t in[3] = {size->slots, size->width, keys + values + 2 * h->value_heads};
    SK_TRY(
        add_window(space, prefix, i, "conv", size, h->taps - 1, 2 * keys + values, &g->rows, st));
    SK_TRY(sk_flash_add_buffer(space, prefix, i, "matrix", SK_ROLE_STATE, SK_F32, 4, m, SK_KEEP_ALL,
                               &g->state.m, st));
    return sk_flash_add_buffer(space, prefix, i, "matrix.pending", SK_ROLE_PENDING, SK_F32, 3, in,
                               SK_KEEP_NONE, &g->state.pending, st);
}

static sk_code add_sparse_state(sk_flash_sparse *s, sk_space *space, const char *prefix,
                                const sk_config *c, const sk_state_size *size, int i, sk_status *st)
{
    const int64_t ctx = size->ctx, ratio = c->hybrid.ratio, width = c->hybrid.index_dim;
    const int64_t kv[4] = {size->slots, ctx, c->n_kv, c->head_dim};
    const int64_t raw[3] = {size->slots, ctx, width};
    const int64_t pooled[3] = {size->slots, (ctx + ratio - 1) / ratio, width};
    SK_TRY(sk_flash_add_buffer(space, prefix, i, "k_cache", SK_ROLE_STATE, size->act, 4, kv,
                               SK_KEEP_ROWS, &s->k_cache, st));
    SK_TRY(sk_flash_add_buffer(space, prefix, i, "v_cache", SK_ROLE_STATE, size->act, 4, kv,
                               SK_KEEP_ROWS, &s->v_cache, st));
    SK_TRY(sk_flash_add_buffer(space, prefix, i, "index_keys", SK_ROLE_STATE, size->act, 3, raw,
                               SK_KEEP_ROWS, &s->index.raw, st));
    SK_TRY(sk_flash_add_buffer(space, prefix, i, "block_keys", SK_ROLE_STATE, size->act, 3, pooled,
                               SK_KEEP_ROWS, &s->index.pooled, st));
    sk_space_keep_blocks(space, s->index.pooled, c->hybrid.ratio);
    return SK_OK;
}

sk_code sk_flash_add_state(sk_flash_layer *l, sk_space *space, const char *prefix,
                           const sk_config *c, const sk_state_size *size, int i, sk_status *st)
{
    return l->is_sparse ? add_sparse_state(&l->sparse, space, prefix, c, size, i, st)
                        : add_gdn_state(&l->gdn, space, prefix, c, size, i, st);
}

sk_code sk_flash_add_ple_state(sk_flash_ple *p, sk_space *space, const char *prefix,
                               const sk_config *c, const sk_state_size *size, sk_status *st)
{
    const sk_hybrid *h = &c->hybrid;
    return add_window(space, prefix, h->ple_layer, "ple_conv", size,
                      (int64_t)(h->ple_taps - 1) * h->ngram, c->width, &p->rows, st);
}
