/* See build_hybrid.h. */
#include "plan/build_hybrid.h"

#include <math.h>

static const sk_view absent = SK_VIEW_NONE;

/* Declares `a`, the argument struct of `op`, with all views absent. */
#define ARGS(op, a)                                                                                \
    sk_##op##_args a;                                                                              \
    sk_args_clear(SK_OP_##op, &(a))

static sk_view rows_of(sk_builder *b, const char *name, sk_dtype type, int64_t n)
{
    return sk_b_temp(b, name, type, 2, (int64_t[]){b->n_rows, n});
}

static sk_view like(sk_builder *b, const char *name, sk_dtype type, const sk_view *x)
{
    return sk_b_temp(b, name, type, x->rank, x->dim);
}

sk_view sk_b_columns(sk_view x, int64_t from, int64_t n)
{
    sk_view v = x;
    uint64_t ahead = 0;
    if (!sk_view_present(&x) || x.rank < 2) return absent;
    (void)sk_dtype_row_bytes(x.dtype, (uint64_t)from, &ahead);
    v.off += ahead;
    v.dim[x.rank - 1] = n;
    return v;
}

sk_view sk_b_merge_rows(sk_view x, int32_t n)
{
    sk_view v = x;
    if (!sk_view_present(&x) || x.rank != 2 || x.dim[0] % n) return absent;
    v.dim[0] = x.dim[0] / n;
    v.dim[1] = x.dim[1] * n;
    v.stride[0] = x.stride[0] * n;
    return v;
}

/* ---- rows that are kept ---------------------------------------------------------------------- */

void sk_b_keep_rows(sk_builder *b, sk_view x, int32_t pending)
{
    ARGS(keep_rows, a);
    a.x = x;
    a.rows = b->rows;
    a.count = b->count;
    a.pending = sk_b_buf(b, pending);
    sk_b_step(b, SK_OP_keep_rows, &a);
}

sk_view sk_b_take_rows(sk_builder *b, int32_t pending)
{
    ARGS(take_rows, a);
    a.pending = sk_b_buf(b, pending);
    a.rows = b->rows;
    a.count = b->count;
    a.out = rows_of(b, "kept", SK_F32, a.pending.dim[2]);
    sk_b_step(b, SK_OP_take_rows, &a);
    return a.out;
}

void sk_b_window_commit(sk_builder *b, const sk_window *w, sk_view kept)
{
    ARGS(window_commit, a);
    a.pending = sk_b_buf(b, w->pending);
    a.kept = kept;
    a.window = sk_b_buf(b, w->window);
    sk_b_step(b, SK_OP_window_commit, &a);
}

void sk_b_window_take(sk_builder *b, sk_view x, const sk_window *w, bool settle)
{
    ARGS(window_push, a);
    if (!settle) {
        sk_b_keep_rows(b, x, w->pending);
        return;
    }
    a.x = x;
    a.rows = b->rows;
    a.count = b->count;
    a.window = sk_b_buf(b, w->window);
    sk_b_step(b, SK_OP_window_push, &a);
}

/* ---- recurrence ------------------------------------------------------------------------------ */

sk_view sk_b_conv(sk_builder *b, sk_view x, int32_t taps, int32_t window, int32_t dilation)
{
    ARGS(conv, a);
    a.x = x;
    a.taps = sk_b_buf(b, taps);
    a.window = sk_b_buf(b, window);
    a.rows = b->rows;
    a.count = b->count;
    a.out = like(b, "conv", SK_F32, &x);
    a.dilation = dilation;
    sk_b_step(b, SK_OP_conv, &a);
    return a.out;
}

static void gdn_scan(sk_builder *b, sk_view q, sk_view in, const sk_recurrence *r, sk_view out)
{
    ARGS(gdn_scan, a);
    a.q = q;
    a.in = in;
    a.key = sk_b_buf(b, r->key);
    a.m = sk_b_buf(b, r->m);
    a.rows = b->rows;
    a.count = b->count;
    a.out = out;
    sk_b_step(b, SK_OP_gdn_scan, &a);
}

static void gdn_step(sk_builder *b, sk_view q, sk_view in, const sk_recurrence *r, sk_view out)
{
    ARGS(gdn_step, a);
    a.q = q;
    a.in = in;
    a.key = sk_b_buf(b, r->key);
    a.m = sk_b_buf(b, r->m);
    a.rows = b->rows;
    a.count = b->count;
    a.out = out;
    sk_b_step(b, SK_OP_gdn_step, &a);
    sk_b_keep_rows(b, in, r->pending);
}

sk_view sk_b_gdn(sk_builder *b, sk_view c, sk_view alpha, sk_view beta, const sk_recurrence *r,
                 bool settle)
{
    ARGS(gdn_inputs, a);
    const sk_view m = sk_b_buf(b, r->m);
    sk_view out;
    a.c = c;
    a.a = alpha;
    a.b = beta;
    a.coef = sk_b_buf(b, r->coef);
    a.dt = sk_b_buf(b, r->dt);
    a.count = b->count;
    a.q = sk_b_temp(b, "q", SK_F32, 3, (int64_t[]){b->n_rows, r->key_heads, r->key_dim});
    a.in = rows_of(b, "in", SK_F32,
                   (int64_t)r->key_heads * r->key_dim + m.dim[1] * m.dim[3] + 2 * m.dim[1]);
    sk_b_step(b, SK_OP_gdn_inputs, &a);
    out = sk_b_temp(b, "out", SK_F32, 3, (int64_t[]){b->n_rows, m.dim[1], m.dim[3]});
    if (settle)
        gdn_scan(b, a.q, a.in, r, out);
    else
        gdn_step(b, a.q, a.in, r, out);
    return out;
}

void sk_b_gdn_fold(sk_builder *b, const sk_recurrence *r, sk_view kept)
{
    ARGS(gdn_fold, a);
    a.pending = sk_b_buf(b, r->pending);
    a.kept = kept;
    a.key = sk_b_buf(b, r->key);
    a.m = sk_b_buf(b, r->m);
    sk_b_step(b, SK_OP_gdn_fold, &a);
}

sk_view sk_b_gated_norm(sk_builder *b, sk_view x, sk_view gate, sk_norm norm)
{
    ARGS(gated_norm, a);
    a.x = x;
    a.gate = gate;
    a.gain = sk_b_buf(b, norm.gain);
    a.count = b->count;
    a.out = rows_of(b, "gated", b->act, x.dim[1] * x.dim[2]);
    a.eps = norm.eps;
    sk_b_step(b, SK_OP_gated_norm, &a);
    return a.out;
}

/* ---- streams --------------------------------------------------------------------------------- */

sk_view sk_b_hyper(sk_builder *b, sk_view s, const sk_hyper *h, sk_view *inject)
{
    ARGS(hyper_down, d);
    ARGS(hyper_mix, m);
    const int64_t dim = s.dim[1] / h->n_stream;
    d.s = sk_b_heads(s, h->n_stream);
    d.gain = sk_b_buf(b, h->gain);
    d.count = b->count;
    d.w[0] = sk_b_buf(b, h->down);
    d.w[1] = sk_b_buf(b, h->inject);
    d.low = rows_of(b, "low", b->act, d.w[0].dim[0]);
    d.factor = rows_of(b, "factor", SK_F32, h->n_stream);
    d.eps = h->eps;
    if (h->inject >= 0) d.inject = rows_of(b, "inject", SK_F32, h->n_stream);
    sk_b_step(b, SK_OP_hyper_down, &d);
    m.low = d.low;
    m.w = sk_b_buf(b, h->up);
    m.s = d.s;
    m.factor = d.factor;
    m.gain = d.gain;
    m.count = b->count;
    m.out = rows_of(b, "mix", b->act, dim);
    sk_b_step(b, SK_OP_hyper_mix, &m);
    if (inject) *inject = d.inject;
    return m.out;
}

void sk_b_hyper_inject(sk_builder *b, sk_view s, sk_view x, sk_view inject)
{
    ARGS(hyper_inject, a);
    a.x = x;
    a.inject = inject;
    a.count = b->count;
    a.s = sk_b_heads(s, (int32_t)inject.dim[1]);
    sk_b_step(b, SK_OP_hyper_inject, &a);
}

sk_view sk_b_stream_copy(sk_builder *b, sk_view x, int32_t n_stream)
{
    ARGS(stream_copy, a);
    const sk_view s = rows_of(b, "streams", SK_F32, n_stream * x.dim[1]);
    a.x = x;
    a.count = b->count;
    a.s = sk_b_heads(s, n_stream);
    sk_b_step(b, SK_OP_stream_copy, &a);
    return s;
}

void sk_b_stream_add(sk_builder *b, sk_view s, sk_view x, int32_t n_stream)
{
    ARGS(stream_add, a);
    a.x = x;
    a.count = b->count;
    a.s = sk_b_heads(s, n_stream);
    sk_b_step(b, SK_OP_stream_add, &a);
}

/* ---- hashed embeddings ----------------------------------------------------------------------- */

sk_view sk_b_ngram_rows(sk_builder *b, sk_view ids, const sk_ngrams *n)
{
    ARGS(ngram_rows, a);
    a.ids = ids;
    a.tokens = sk_b_buf(b, n->tokens);
    a.rows = b->rows;
    a.count = b->count;
    a.mult = sk_b_buf(b, n->mult);
    a.size = sk_b_buf(b, n->size);
    a.offset = sk_b_buf(b, n->offset);
    a.out = rows_of(b, "rows", SK_I32, a.size.dim[0]);
    a.eos = n->eos;
    sk_b_step(b, SK_OP_ngram_rows, &a);
    return a.out;
}

sk_view sk_b_gather_heads(sk_builder *b, sk_view rows, const sk_ngrams *n)
{
    ARGS(gather_heads, a);
    a.table = sk_b_buf(b, n->table);
    a.piece = sk_b_buf(b, n->at);
    a.ids = rows;
    a.count = b->count;
    a.out = rows_of(b, "embedding", b->act, rows.dim[1] * a.table.dim[1]);
    a.piece_rows = n->at >= 0 ? n->piece_rows : 0;
    a.scale = 1;
    sk_b_step(b, SK_OP_gather_heads, &a);
    return a.out;
}

sk_view sk_b_ple_gate(sk_builder *b, sk_view key, sk_view value, sk_view s, const sk_ple *p,
                      sk_view *normed)
{
    ARGS(ple_gate, a);
    a.key = key;
    a.value = value;
    a.s = sk_b_heads(s, p->n_stream);
    a.key_gain = sk_b_buf(b, p->key_gain);
    a.query_gain = sk_b_buf(b, p->query_gain);
    a.conv_gain = sk_b_buf(b, p->conv_gain);
    a.count = b->count;
    a.y = like(b, "gated", SK_F32, &key);
    a.normed = like(b, "normed", SK_F32, &key);
    a.eps = p->eps;
    sk_b_step(b, SK_OP_ple_gate, &a);
    *normed = a.normed;
    return a.y;
}

/* ---- block-sparse attention ------------------------------------------------------------------ */

void sk_b_index_append(sk_builder *b, sk_view k, const sk_index *x)
{
    ARGS(index_append, a);
    a.k = k;
    a.gain = sk_b_buf(b, x->k_gain);
    a.freq = sk_b_buf(b, x->freq);
    a.rows = b->rows;
    a.count = b->count;
    a.raw = sk_b_buf(b, x->raw);
    a.pooled = sk_b_buf(b, x->pooled);
    a.eps = x->eps;
    a.ratio = x->ratio;
    sk_b_step(b, SK_OP_index_append, &a);
}

sk_view sk_b_block_topk(sk_builder *b, sk_view q, const sk_index *x)
{
    ARGS(block_topk, a);
    sk_view heads = sk_b_heads(q, x->heads);
    heads = sk_b_rms_norm(b, heads, x->q_gain, x->eps, SK_F32);
    a.q = sk_b_rope(b, heads, x->freq, true);
    a.pooled = sk_b_buf(b, x->pooled);
    a.rows = b->rows;
    a.count = b->count;
    a.out = rows_of(b, "blocks", SK_I32, sk_max_i32(1, x->blocks));
    a.scale = 1 / sqrtf((float)x->dim);
    a.ratio = x->ratio;
    sk_b_step(b, SK_OP_block_topk, &a);
    return a.out;
}

sk_view sk_b_attend_blocks(sk_builder *b, sk_view q, sk_view gate, sk_view blocks,
                           const sk_attention *at, int32_t ratio)
{
    ARGS(attend_blocks, a);
    a.q = q;
    a.gate = gate;
    a.k_cache = sk_b_buf(b, at->k_cache);
    a.v_cache = sk_b_buf(b, at->v_cache);
    a.blocks = blocks;
    a.rows = b->rows;
    a.count = b->count;
    a.out = like(b, "attend", b->act, &q);
    a.scale = at->scale;
    a.ratio = ratio;
    a.split = SK_ATTEND_SPLIT;
    sk_b_step(b, SK_OP_attend_blocks, &a);
    return a.out;
}

/* ---- experts --------------------------------------------------------------------------------- */

sk_view sk_b_route_topk(sk_builder *b, sk_view logits, int32_t n, bool normed, sk_view *weight)
{
    ARGS(route_topk, a);
    a.logits = logits;
    a.count = b->count;
    a.ids = rows_of(b, "experts", SK_I32, n);
    a.weight = rows_of(b, "weight", SK_F32, n);
    a.normed = normed;
    sk_b_step(b, SK_OP_route_topk, &a);
    *weight = a.weight;
    return a.ids;
}

void sk_b_route_force(sk_builder *b, sk_view ids, int32_t table, int32_t stride)
{
    ARGS(route_force, a);
    a.table = sk_b_buf(b, table);
    a.rows = b->rows;
    a.count = b->count;
    a.ids = ids;
    a.stride = stride;
    sk_b_step(b, SK_OP_route_force, &a);
}

sk_view sk_b_experts(sk_builder *b, sk_view x, sk_view ids, sk_view weight, const sk_stack *gate_up,
                     const sk_stack *down)
{
    ARGS(route_list, l);
    ARGS(expert_glu, g);
    ARGS(expert_linear, d);
    ARGS(expert_sum, s);
    const int64_t routes = b->n_rows * ids.dim[1];
    l.ids = ids;
    l.count = b->count;
    l.list = sk_b_temp(b, "list", SK_U8, 2, (int64_t[]){routes, sizeof(sk_route_entry)});
    l.n = sk_b_temp(b, "entries", SK_I32, 1, (int64_t[]){1});
    sk_b_step(b, SK_OP_route_list, &l);
    g.x = x;
    g.list = l.list;
    g.n = l.n;
    for (int32_t i = 0; i < 2; i++) {
        g.w[i] = sk_b_buf(b, gate_up[i].w);
        g.at[i] = sk_b_buf(b, gate_up[i].at);
    }
    g.out = sk_b_temp(b, "hidden", b->act, 2, (int64_t[]){routes, g.w[0].dim[1]});
    sk_b_step(b, SK_OP_expert_glu, &g);
    d.x = g.out;
    d.list = l.list;
    d.n = l.n;
    d.w = sk_b_buf(b, down->w);
    d.at = sk_b_buf(b, down->at);
    d.y = sk_b_temp(b, "down", SK_F32, 2, (int64_t[]){routes, d.w.dim[1]});
    sk_b_step(b, SK_OP_expert_linear, &d);
    s.x = d.y;
    s.weight = weight;
    s.count = b->count;
    s.y = rows_of(b, "sum", SK_F32, d.w.dim[1]);
    sk_b_step(b, SK_OP_expert_sum, &s);
    return s.y;
}

void sk_b_gate_add(sk_builder *b, sk_view y, sk_view x, sk_view gate)
{
    ARGS(gate_add, a);
    a.x = x;
    a.gate = gate;
    a.count = b->count;
    a.y = y;
    sk_b_step(b, SK_OP_gate_add, &a);
}

/* ---- heads ----------------------------------------------------------------------------------- */

sk_view sk_b_linear_argmax(sk_builder *b, sk_view x, const sk_lin *w)
{
    ARGS(linear_argmax, a);
    a.x = x;
    a.count = b->count;
    a.w = sk_b_buf(b, w->w);
    a.bias = sk_b_buf(b, w->bias);
    if (w->scale_n > 0) {
        a.scale = sk_b_buf(b, w->scale);
        a.scale_n = w->scale_n;
        a.scale_k = w->scale_k;
    }
    a.id = sk_b_temp(b, "id", SK_I32, 1, (int64_t[]){b->n_rows});
    sk_b_step(b, SK_OP_linear_argmax, &a);
    return a.id;
}

sk_view sk_b_next_ids(sk_builder *b, int32_t tokens)
{
    ARGS(next_ids, a);
    a.tokens = sk_b_buf(b, tokens);
    a.rows = b->rows;
    a.count = b->count;
    a.ids = sk_b_temp(b, "next", SK_I32, 1, (int64_t[]){b->n_rows});
    sk_b_step(b, SK_OP_next_ids, &a);
    return a.ids;
}

sk_view sk_b_mtp_join(sk_builder *b, sk_view e, sk_view s, int32_t n_stream, sk_norm e_norm,
                      sk_norm norm, bool whole, sk_view *n)
{
    ARGS(mtp_join, a);
    a.e = e;
    a.x = sk_b_heads(s, n_stream);
    a.e_gain = sk_b_buf(b, e_norm.gain);
    a.gain = sk_b_buf(b, norm.gain);
    a.count = b->count;
    a.out = sk_b_temp(b, "join", b->act, 3, (int64_t[]){b->n_rows, n_stream, 2 * e.dim[1]});
    a.n = sk_b_temp(b, "joined", SK_I32, 1, (int64_t[]){1});
    a.eps = norm.eps;
    a.whole = whole;
    sk_b_step(b, SK_OP_mtp_join, &a);
    *n = a.n;
    return a.out;
}
