/* See mtp.h. */
#include "model/mtp.h"

#include "base/mem.h"
#include "model/flash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sk_mtp {
    const sk_model *target;
    sk_mtp_options options;
    int32_t block;        // its number
    bool joined;          // one matrix for embedding and hidden row
    sk_lin in[2];         // [H, 2H], or [H, H] for the embedding and for the hidden row
    int32_t e_norm, norm; // F32 [H], [S*H]
    sk_flash_layer layer;
    sk_hyper mixer;
    sk_window hidden; // state F32 [B, 1, S*H], pending [B, W, S*H]
    int32_t n_slots;
};

#define ARGS(op, a)                                                                                \
    sk_##op##_args a;                                                                              \
    sk_args_clear(SK_OP_##op, &(a))

/* ---- weights --------------------------------------------------------------------------------- */

/* The block that has tensors of a draft head; -1: none. */
static int32_t find_block(const sk_ckpt *ck)
{
    for (size_t i = 0; i < sk_ckpt_n_tensors(ck); i++) {
        const sk_str name = sk_ckpt_tensor(ck, i)->name;
        char text[SK_NAME_MAX];
        char *rest;
        long block;
        if (name.n >= sizeof text || name.n < 4 || memcmp(name.p, "blk.", 4) != 0) continue;
        memcpy(text, name.p, (size_t)name.n);
        text[name.n] = 0;
        block = strtol(text + 4, &rest, 10);
        if (strncmp(rest, ".nextn.", 7) == 0 && block >= 0 && block < SK_MAX_LAYERS)
            return (int32_t)block;
    }
    return -1;
}

/* What a draft file is made of. Files of two kinds in one are refused: which of two mixers would
 * count is anybody's guess. */
typedef struct flavour {
    bool joined;       // nextn.eh_proj, else nextn.fc_embd and fc_hidden
    const char *mixer; // name of the mixer's tensors ahead of _norm, _down, _up
    char text[48];
} flavour;

static bool has(const sk_binder *b, int32_t block, const char *part)
{
    return sk_binder_has(b, "blk.%d.nextn.%s.weight", (int)block, part);
}

static sk_code mixed(const sk_binder *b, const char *one, const char *other)
{
    return SK_FAIL_CHECK(b->st, SK_FORMAT, "BAD_DRAFT", 0,
                         "%s: draft head: expected tensors of one kind, found %s and %s",
                         sk_ckpt_path(b->ck), one, other);
}

static sk_code find_flavour(const sk_mtp *m, const sk_binder *b, flavour *out)
{
    const int32_t n = m->block;
    const bool eh = has(b, n, "eh_proj"), fc = has(b, n, "fc_embd") || has(b, n, "fc_hidden");
    const bool head = has(b, n, "hc_head_down"), own = has(b, n, "hc_down");
    const bool output = m->options.own_file && !b->hf && sk_binder_has(b, "output_hc_down.weight");
    if (eh && fc) return mixed(b, "eh_proj", "fc_embd or fc_hidden");
    if (head && own) return mixed(b, "hc_head_down", "hc_down");
    if (output && (head || own)) return mixed(b, "output_hc_down", "a mixer of its own");
    if (fc && head) return mixed(b, "fc_embd or fc_hidden", "hc_head_down");
    if (fc && output) return mixed(b, "fc_embd or fc_hidden", "output_hc_down");
    if (eh && own) return mixed(b, "eh_proj", "hc_down");
    out->joined = !fc && !b->hf;
    out->mixer = out->text;
    (void)snprintf(out->text, sizeof out->text, "blk.%d.nextn.%s", (int)n,
                   out->joined ? "hc_head" : "hc");
    if (output) (void)snprintf(out->text, sizeof out->text, "output_hc");
    return SK_OK;
}

/* The gain of a GGUF file's mixer, which some have as a matrix of a row for each stream. */
static sk_code read_gain(const sk_mtp *m, sk_binder *b, const char *name, float **out)
{
    const sk_config *c = &m->target->config;
    char real[SK_TENSOR_NAME_MAX];
    const sk_tensor *t = sk_binder_find(b, name, real);
    const bool by_stream = t && t->n_dims == 2 && t->dim[0] > 1;
    return sk_bind_values(b, by_stream ? c->hybrid.n_stream : c->width, by_stream ? c->dim : 1, out,
                          "%s", name);
}

/* Some files have the gain twice: where the two differ, it is not known which one counts. */
static sk_code check_copy(const sk_mtp *m, sk_binder *b, const float *gain)
{
    char name[SK_NAME_MAX], real[SK_TENSOR_NAME_MAX];
    float *copy = NULL;
    bool same;
    (void)snprintf(name, sizeof name, "blk.%d.nextn.shared_head_norm.weight", (int)m->block);
    if (!sk_binder_find(b, name, real)) return SK_OK;
    SK_TRY(read_gain(m, b, name, &copy));
    same = memcmp(gain, copy, (size_t)m->target->config.width * sizeof *copy) == 0;
    sk_mem_free(copy);
    if (same) return SK_OK;
    return SK_FAIL_CHECK(b->st, SK_FORMAT, "BAD_DRAFT", 0,
                         "%s: tensor %s: expected a copy of the mixer's norm, found other values",
                         sk_ckpt_path(b->ck), real);
}

static sk_code bind_gain(sk_mtp *m, sk_binder *b, const char *name)
{
    const int64_t width = m->target->config.width;
    float *gain = NULL;
    sk_code rc;
    if (b->hf) return sk_bind_vector(b, width, &m->mixer.gain, "%s", name);
    SK_TRY(read_gain(m, b, name, &gain));
    rc = check_copy(m, b, gain);
    if (rc == SK_OK) rc = sk_bind_const(b, name, SK_F32, 1, &width, gain, &m->mixer.gain);
    sk_mem_free(gain);
    return rc;
}

static sk_code bind_mixer(sk_mtp *m, sk_binder *b, const flavour *f)
{
    const sk_config *c = &m->target->config;
    const int64_t rank = c->hybrid.low_rank, width = c->width;
    char name[SK_NAME_MAX];
    m->mixer = (sk_hyper){.inject = -1, .n_stream = c->hybrid.n_stream, .eps = c->rms_eps};
    (void)snprintf(name, sizeof name, "%s_norm.weight", f->mixer);
    SK_TRY(bind_gain(m, b, name));
    SK_TRY(sk_bind_matrix(b, rank, width, &m->mixer.down, "%s_down.weight", f->mixer));
    return sk_bind_matrix(b, width, rank, &m->mixer.up, "%s_up.weight", f->mixer);
}

static sk_code bind_head(sk_mtp *m, sk_binder *b)
{
    const sk_config *c = &m->target->config;
    const int n = m->block;
    flavour f;
    SK_TRY(find_flavour(m, b, &f));
    m->joined = f.joined;
    SK_TRY(sk_bind_vector(b, c->dim, &m->e_norm, "blk.%d.nextn.enorm.weight", n));
    SK_TRY(sk_bind_vector(b, c->width, &m->norm, "blk.%d.nextn.hnorm.weight", n));
    if (f.joined) {
        SK_TRY(sk_bind_lin(b, c->dim, 2 * (int64_t)c->dim, &m->in[0], "blk.%d.nextn.eh_proj", n));
    } else {
        SK_TRY(sk_bind_lin(b, c->dim, c->dim, &m->in[0], "blk.%d.nextn.fc_embd", n));
        SK_TRY(sk_bind_lin(b, c->dim, c->dim, &m->in[1], "blk.%d.nextn.fc_hidden", n));
    }
    SK_TRY(bind_mixer(m, b, &f));
    return sk_flash_bind_layer(&m->layer, b, c, m->target->self, n, true);
}

/* A matrix that the target has, too, and which is not read: but it is of the same vocabulary. */
static sk_code pass_over(const sk_mtp *m, sk_binder *b, const char *name)
{
    const sk_config *c = &m->target->config;
    char real[SK_TENSOR_NAME_MAX], expected[48];
    const sk_tensor *t = sk_binder_find(b, name, real);
    if (!t) return SK_OK;
    sk_binder_mark(b, t);
    if (t->n_dims == 2 && t->dim[0] == (uint64_t)c->vocab && t->dim[1] == (uint64_t)c->dim)
        return SK_OK;
    (void)snprintf(expected, sizeof expected, "%d,%d", (int)c->vocab, (int)c->dim);
    return sk_binder_bad_shape(b, real, expected, t);
}

/* Embedding and output may be there again. */
static sk_code nothing_left(sk_mtp *m, sk_binder *b)
{
    char name[SK_NAME_MAX];
    SK_TRY(pass_over(m, b, "token_embd.weight"));
    SK_TRY(pass_over(m, b, "output.weight"));
    (void)snprintf(name, sizeof name, "blk.%d.nextn.embed_tokens.weight", (int)m->block);
    SK_TRY(pass_over(m, b, name));
    (void)snprintf(name, sizeof name, "blk.%d.nextn.shared_head_head.weight", (int)m->block);
    SK_TRY(pass_over(m, b, name));
    if (!m->options.own_file) {
        // The target's, which it has bound itself.
        for (size_t i = 0; i < sk_ckpt_n_tensors(b->ck); i++) {
            const sk_tensor *t = sk_ckpt_tensor(b->ck, i);
            char block[24];
            const int at = snprintf(block, sizeof block, "blk.%d.", (int)m->block);
            const bool ours =
                b->hf ? t->name.n > 4 && memcmp(t->name.p, "mtp.", 4) == 0
                      : t->name.n > (uint64_t)at && memcmp(t->name.p, block, (size_t)at) == 0;
            if (!ours) b->used[i] = 1;
        }
    }
    return sk_binder_done(b);
}

static sk_code bind_all(sk_mtp *m, const sk_ckpt *ck, sk_space *space, sk_status *st)
{
    sk_binder b;
    sk_code rc;
    SK_TRY(sk_binder_init(&b, ck, space, "drafter.", st));
    m->block = b.hf ? m->target->config.n_layer : find_block(ck);
    b.draft = m->block;
    if (m->block < 0)
        rc = SK_FAIL_CHECK(st, SK_FORMAT, "MISSING_TENSOR", 0,
                           "%s: draft head: expected tensors blk.%d.nextn.*, found none",
                           sk_ckpt_path(ck), (int)m->target->config.n_layer);
    else
        rc = bind_head(m, &b);
    if (rc == SK_OK) rc = nothing_left(m, &b);
    sk_binder_fini(&b);
    return rc;
}

/* ---- opening --------------------------------------------------------------------------------- */

static sk_code add_states(sk_mtp *m, sk_space *space, const sk_state_size *size, sk_status *st)
{
    const sk_config *c = &m->target->config;
    const int64_t hidden[3] = {size->slots, 1, c->width};
    const int64_t pending[3] = {size->slots, size->width, c->width};
    // Rows that are drafted at the end of the context stand behind it.
    sk_state_size longer = *size;
    longer.ctx += m->options.n_draft;
    SK_TRY(sk_flash_add_state(&m->layer, space, "drafter.", c, &longer, m->block, st));
    SK_TRY(sk_flash_add_buffer(space, "drafter.", m->block, "hidden", SK_ROLE_STATE, SK_F32, 3,
                               hidden, SK_KEEP_ALL, &m->hidden.window, st));
    return sk_flash_add_buffer(space, "drafter.", m->block, "hidden.pending", SK_ROLE_PENDING,
                               SK_F32, 3, pending, SK_KEEP_NONE, &m->hidden.pending, st);
}

sk_code sk_mtp_open(sk_mtp **out, const sk_model *target, const sk_ckpt *ck, sk_space *space,
                    const sk_state_size *size, const sk_mtp_options *options, sk_status *st)
{
    sk_mtp *m = NULL;
    sk_code rc;
    if (target->arch != &sk_arch_flash_next)
        return SK_FAIL(st, SK_UNSUPPORTED,
                       "drafter mtp: expected a model with a draft head, found "
                       "%s",
                       target->config.arch);
    SK_TRY(sk_mem_new((void **)&m, 1, sizeof *m, "draft head", st));
    m->target = target;
    m->options = *options;
    m->n_slots = size->slots;
    rc = bind_all(m, ck, space, st);
    if (rc == SK_OK) rc = add_states(m, space, size, st);
    if (rc != SK_OK) {
        sk_mtp_close(m);
        return rc;
    }
    *out = m;
    return SK_OK;
}

sk_code sk_mtp_force(sk_mtp *m, const sk_forced *f, sk_space *space, sk_status *st)
{
    return sk_flash_force(&m->layer, &m->target->config, f, space, "drafter.", m->block, st);
}

void sk_mtp_close(sk_mtp *m) { sk_mem_free(m); }

/* ---- steps ----------------------------------------------------------------------------------- */

/* The head's streams for hidden rows s and the tokens after them. */
static sk_view streams_of(const sk_mtp *m, sk_builder *b, sk_view s, sk_view ids)
{
    const sk_flash *w = m->target->self;
    const sk_config *c = &m->target->config;
    const int32_t n_stream = c->hybrid.n_stream;
    const sk_norm e_norm = {m->e_norm, c->rms_eps}, norm = {m->norm, c->rms_eps};
    const sk_view count = b->count;
    const int32_t n_rows = b->n_rows;
    sk_view e, join, rows, n, y, f;
    e = sk_b_gather_rows(b, w->embd, ids, 1);
    join = sk_b_mtp_join(b, e, s, n_stream, e_norm, norm, !m->options.per_stream, &n);
    if (!sk_view_present(&join)) return join;
    // Every stream is a row of the projection.
    rows = join;
    rows.rank = 2;
    rows.dim[0] = join.dim[0] * join.dim[1];
    rows.dim[1] = join.dim[2];
    rows.stride[0] = join.stride[1];
    b->count = n;
    b->n_rows = n_rows * n_stream;
    sk_b_linear(b, m->joined ? rows : sk_b_columns(rows, c->dim, c->dim),
                m->joined ? &m->in[0] : &m->in[1], 1, &y);
    b->count = count;
    b->n_rows = n_rows;
    y = sk_b_merge_rows(y, n_stream);
    if (m->joined) return y;
    // The embedding's half is the same for all of them.
    rows.dim[0] = n_rows;
    rows.stride[0] = join.stride[0];
    sk_b_linear(b, sk_b_columns(rows, 0, c->dim), &m->in[0], 1, &f);
    sk_b_stream_add(b, y, f, n_stream);
    return y;
}

static void layer(const sk_mtp *m, sk_builder *b, sk_view y, const char *at, bool cache_only)
{
    sk_flash_layer_steps(&m->layer, &m->target->config, b, y, at, true, cache_only);
}

void sk_mtp_commit(const sk_mtp *m, sk_builder *b, const sk_round_bufs *rb, int32_t n_rows)
{
    ARGS(commit_rows, a);
    const sk_view rows = b->rows, count = b->count, kept = sk_b_buf(b, rb->kept);
    const int32_t n = b->n_rows;
    sk_view s;
    sk_b_at(b, "mtp.rows");
    b->n_rows = n_rows;
    a.slots = sk_b_buf(b, rb->slots);
    a.kept = kept;
    a.rows = sk_b_temp(b, "table", SK_I32, 2, (int64_t[]){n_rows, 3});
    a.count = sk_b_temp(b, "count", SK_I32, 1, (int64_t[]){1});
    sk_b_step(b, SK_OP_commit_rows, &a);
    b->rows = a.rows;
    b->count = a.count;
    sk_b_at(b, "mtp.in");
    s = sk_b_take_rows(b, m->hidden.pending);
    layer(m, b, streams_of(m, b, s, sk_b_next_ids(b, rb->tokens)), "mtp", true);
    sk_b_window_commit(b, &m->hidden, kept);
    b->rows = rows;
    b->count = count;
    b->n_rows = n;
}

void sk_mtp_keep(const sk_mtp *m, sk_builder *b, sk_view s)
{
    sk_b_at(b, "mtp");
    sk_b_keep_rows(b, s, m->hidden.pending);
}

static sk_view choose(const sk_mtp *m, sk_builder *b, sk_view g, const char *at, sk_view *logits)
{
    const sk_flash *w = m->target->self;
    sk_view h;
    sk_b_at(b, "%s.head", at);
    h = sk_b_hyper(b, g, &m->mixer, NULL);
    if (!logits) return sk_b_linear_argmax(b, h, &w->output);
    sk_b_linear(b, h, &w->output, 1, logits);
    return *logits;
}

void sk_mtp_settle(const sk_mtp *m, sk_builder *b, sk_view s, int32_t tokens, sk_view *logits)
{
    sk_view g;
    sk_b_at(b, "mtp.in");
    g = streams_of(m, b, s, sk_b_next_ids(b, tokens));
    layer(m, b, g, "mtp", logits == NULL);
    if (logits) (void)choose(m, b, g, "mtp", logits);
    sk_b_at(b, "mtp");
    sk_b_window_take(b, s, &m->hidden, true);
}

/* The table of draft step i; returns the tokens of its rows. */
static sk_view draft_rows(const sk_mtp *m, sk_builder *b, const sk_round_bufs *rb, int32_t i,
                          sk_view chosen)
{
    ARGS(draft_rows, a);
    sk_b_at(b, "mtp.%d.rows", (int)i);
    a.slots = sk_b_buf(b, rb->slots);
    if (i > 0) a.chosen = chosen;
    a.rows = sk_b_temp(b, "table", SK_I32, 2, (int64_t[]){m->n_slots, 3});
    a.ids = sk_b_temp(b, "ids", SK_I32, 1, (int64_t[]){m->n_slots});
    a.count = sk_b_temp(b, "count", SK_I32, 1, (int64_t[]){1});
    a.step = i;
    sk_b_step(b, SK_OP_draft_rows, &a);
    b->rows = a.rows;
    b->count = a.count;
    return a.ids;
}

static void draft_put(sk_builder *b, const sk_round_vals *v, int32_t i, sk_view chosen)
{
    ARGS(draft_put, a);
    a.rows = b->rows;
    a.count = b->count;
    a.chosen = chosen;
    a.drafts = v->drafts;
    a.n_draft = v->n_draft;
    a.step = i;
    sk_b_step(b, SK_OP_draft_put, &a);
}

/* The first step's hidden row is the target's own. */
static sk_view hidden_rows(const sk_mtp *m, sk_builder *b)
{
    return sk_b_take_rows(b, m->hidden.window);
}

void sk_mtp_draft(const sk_mtp *m, sk_builder *b, const sk_round_bufs *rb, const sk_round_vals *v)
{
    const sk_view rows = b->rows, count = b->count;
    const int32_t n = b->n_rows;
    sk_view g = SK_VIEW_NONE, ids, chosen = SK_VIEW_NONE;
    b->n_rows = m->n_slots;
    for (int32_t i = 0; i < m->options.n_draft; i++) {
        char at[16];
        (void)snprintf(at, sizeof at, "mtp.%d", (int)i);
        ids = draft_rows(m, b, rb, i, chosen);
        sk_b_at(b, "mtp.%d.in", (int)i);
        g = streams_of(m, b, i == 0 ? hidden_rows(m, b) : g, ids);
        layer(m, b, g, at, false);
        chosen = choose(m, b, g, at, NULL);
        draft_put(b, v, i, chosen);
    }
    b->rows = rows;
    b->count = count;
    b->n_rows = n;
}
