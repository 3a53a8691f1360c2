/* See once.h. */
#include "graph/once.h"

#include "base/layout.h"
#include "base/mem.h"
#include "op/cuda/cuda.h"

#include <string.h>

#define VIEWS_MAX 32 // no op has more

typedef struct shadow {
    uint8_t *host;
    uint64_t bytes;  // of the span, on the host
    uint64_t at;     // in the device block
    uint64_t packed; // bytes on the device of a packed weight, 0: as on the host
    sk_view view;    // of the packed weight
    sk_pieces pieces;
    bool written;
} shadow;

typedef struct once {
    const sk_once *o;
    shadow shadows[VIEWS_MAX];
    size_t n;
    uint64_t work_at, sync_at;
    sk_layout layout;
    uint8_t *block;
} once;

/* Rows along the last dimension, in all. */
static uint64_t rows_of(const sk_view *v)
{
    uint64_t n = 1;
    for (int32_t i = 0; i < v->rank - 1; i++) n *= (uint64_t)v->dim[i];
    return n;
}

sk_code sk_once_packed(enum sk_op op, const sk_field *f, const sk_view *v, uint64_t *bytes,
                       sk_status *st)
{
    uint64_t row_bytes, span;
    *bytes = 0;
    if (!sk_cuda_takes_packed(op, f)) return SK_OK;
    if (!sk_view_span(v, &span) ||
        !sk_dtype_row_bytes(v->dtype, (uint64_t)v->dim[v->rank - 1], &row_bytes))
        return SK_FAIL(st, SK_INVALID, "%s: %s: size outside the allowed range", sk_ops[op].name,
                       f->name);
    if (span != rows_of(v) * row_bytes)
        return SK_FAIL(st, SK_UNSUPPORTED, "%s on CUDA: %s: expected dense rows, found a stride",
                       sk_ops[op].name, f->name);
    *bytes = sk_cuda_packed_bytes(v->dtype, v->rank, v->dim);
    return SK_OK;
}

static sk_pieces pieces_at(const sk_view *at, int64_t rows)
{
    return (sk_pieces){sk_view_present(at) ? (const int64_t *)(const void *)at->p : NULL, rows};
}

sk_pieces sk_once_pieces(enum sk_op op, const sk_field *f, const void *args)
{
    if (op == SK_OP_expert_linear && strcmp(f->name, "w") == 0) {
        const sk_expert_linear_args *a = args;
        return pieces_at(&a->at, a->w.dim[1]);
    }
    if (op == SK_OP_expert_glu && f->name[0] == 'w') {
        const sk_expert_glu_args *a = args;
        const int32_t i = strcmp(f->name, "w[1]") == 0;
        return pieces_at(&a->at[i], a->w[i].dim[1]);
    }
    if (op == SK_OP_gather_heads && strcmp(f->name, "table") == 0) {
        const sk_gather_heads_args *a = args;
        return pieces_at(&a->piece, a->piece_rows);
    }
    return (sk_pieces){0};
}

/* Arguments that share their first byte, as an input and an output may, share their copy. */
static sk_code add_shadow(once *c, enum sk_op op, const sk_field *f, const void *args, size_t *at,
                          sk_status *st)
{
    const sk_view *v = sk_field_view_const(args, f);
    shadow s = {.host = v->p,
                .written = (f->mode & SK_WRITE) != 0,
                .view = *v,
                .pieces = sk_once_pieces(op, f, args)};
    if (!sk_view_span(v, &s.bytes))
        return SK_FAIL(st, SK_INVALID, "%s: %s: size outside the allowed range", sk_ops[op].name,
                       f->name);
    SK_TRY(sk_once_packed(op, f, v, &s.packed, st));
    for (size_t i = 0; i < c->n; i++)
        if (c->shadows[i].host == s.host && !s.packed && !c->shadows[i].packed) {
            *at = i;
            c->shadows[i].written |= s.written;
            if (s.bytes > c->shadows[i].bytes) {
                c->shadows[i].bytes = s.bytes;
                c->shadows[i].at = sk_layout_add(&c->layout, s.bytes);
            }
            return SK_OK;
        }
    s.at = sk_layout_add(&c->layout, s.packed ? s.packed : s.bytes);
    *at = c->n;
    c->shadows[c->n++] = s;
    return SK_OK;
}

/* Where each view will be; its offset in the block goes to `off` of the copied arguments. */
static sk_code plan_views(once *c, enum sk_op op, const void *args, size_t *which, sk_status *st)
{
    size_t i = 0;
    for (const sk_field *f = sk_ops[op].fields; f->kind != SK_FIELD_END; f++, i++) {
        if (f->kind != SK_FIELD_VIEW || !sk_view_present(sk_field_view_const(args, f))) continue;
        SK_TRY(add_shadow(c, op, f, args, &which[i], st));
    }
    if (c->layout.bad) return SK_FAIL(st, SK_NOMEM, "sizes exceed the address space");
    return SK_OK;
}

static void bind_views(const once *c, enum sk_op op, void *args, const size_t *which)
{
    size_t i = 0;
    for (const sk_field *f = sk_ops[op].fields; f->kind != SK_FIELD_END; f++, i++) {
        sk_view *v;
        if (f->kind != SK_FIELD_VIEW) continue;
        v = sk_field_view(args, f);
        if (sk_view_present(v)) v->p = c->block + c->shadows[which[i]].at;
    }
}

/* The matrices of a weight, one after the other, from file order into their places, or back. */
static sk_code pack_all(sk_dev *dev, const sk_view *v, uint8_t *raw, uint8_t *packed, bool back,
                        sk_status *st)
{
    const int64_t n = v->dim[v->rank - 2], k = v->dim[v->rank - 1];
    const int64_t matrices = v->rank == 3 ? v->dim[0] : 1;
    const uint64_t step = sk_k_packed_bytes(v->dtype, n, k);
    uint64_t row_bytes = 0;
    (void)sk_dtype_row_bytes(v->dtype, (uint64_t)k, &row_bytes);
    for (int64_t i = 0; i < matrices; i++) {
        uint8_t *from = raw + (uint64_t)(i * n) * row_bytes;
        uint8_t *to = packed + (uint64_t)i * step;
        struct CUstream_st *s = sk_dev_stream(dev);
        const int32_t e = back ? sk_k_unpack(v->dtype, to, from, 0, n, n, k, s)
                               : sk_k_pack(v->dtype, from, to, 0, n, n, k, s);
        SK_TRY(sk_dev_check(e, back ? "unpacking a weight" : "packing a weight", -1, st));
    }
    return SK_OK;
}

/* The bytes of a view, those of a weight in pieces in the order of its rows. */
static sk_code write_whole(sk_dev *dev, const sk_view *v, const sk_pieces *pieces, uint64_t bytes,
                           uint8_t *raw, sk_status *st)
{
    uint64_t row_bytes = 0, each;
    if (!pieces->at) return sk_dev_write(dev, raw, v->p, bytes, st);
    (void)sk_dtype_row_bytes(v->dtype, (uint64_t)v->dim[v->rank - 1], &row_bytes);
    each = (uint64_t)pieces->rows * row_bytes;
    for (uint64_t i = 0, from = 0; from < bytes; i++, from += each)
        SK_TRY(sk_dev_write(dev, raw + from, v->p + pieces->at[i],
                            bytes - from < each ? bytes - from : each, st));
    return SK_OK;
}

sk_code sk_once_pack(sk_dev *dev, const sk_view *v, const sk_pieces *pieces, uint8_t *packed,
                     sk_status *st)
{
    uint8_t *raw = NULL;
    uint64_t bytes;
    sk_code rc;
    if (!sk_view_span(v, &bytes)) return SK_FAIL(st, SK_INVALID, "packing: size out of range");
    SK_TRY(sk_dev_alloc(dev, bytes, "a weight in file order", &raw, st));
    rc = write_whole(dev, v, pieces, bytes, raw, st);
    if (rc == SK_OK) rc = pack_all(dev, v, raw, packed, false, st);
    if (rc == SK_OK) rc = sk_dev_sync(dev, st);
    sk_dev_free(dev, raw);
    return rc;
}

static sk_code copy_views(const once *c, bool back, sk_status *st)
{
    for (size_t i = 0; i < c->n; i++) {
        const shadow *s = &c->shadows[i];
        if (back && s->written)
            SK_TRY(sk_dev_read(c->o->dev, s->host, c->block + s->at, s->bytes, st));
        else if (!back && s->packed)
            SK_TRY(sk_once_pack(c->o->dev, &s->view, &s->pieces, c->block + s->at, st));
        else if (!back)
            SK_TRY(write_whole(c->o->dev, &s->view, &s->pieces, s->bytes, c->block + s->at, st));
    }
    return SK_OK;
}

static sk_code check_sync(const once *c, enum sk_op op, sk_status *st)
{
    uint32_t left[SK_SYNC_WORDS];
    SK_TRY(sk_dev_read(c->o->dev, left, c->block + c->sync_at, sizeof left, st));
    for (size_t i = 0; i < SK_SYNC_WORDS; i++)
        if (left[i])
            return SK_FAIL(st, SK_MISMATCH,
                           "%s on CUDA: counter %zu: expected 0 afterwards, found %u",
                           sk_ops[op].name, i, left[i]);
    return SK_OK;
}

static sk_code run(const once *c, enum sk_op op, void *args, uint64_t work_bytes, int32_t ctx_bound,
                   sk_status *st)
{
    sk_dev *dev = c->o->dev;
    const sk_launch l = {.stream = sk_dev_stream(dev),
                         .work = c->block + c->work_at,
                         .work_bytes = work_bytes,
                         .sync = (uint32_t *)(void *)(c->block + c->sync_at),
                         .ctx_bound = ctx_bound,
                         .n_sm = sk_dev_about(dev)->n_sm,
                         .rows_ready = 1,
                         .state_ready = 1,
                         .fused = c->o->fused};
    SK_TRY(copy_views(c, false, st));
    SK_TRY(
        sk_dev_fill(dev, l.work, 0xff, work_bytes, st)); // NaN: an op may expect nothing in there
    SK_TRY(sk_dev_check(sk_cuda_ops[op](args, &l), sk_ops[op].name, -1, st));
    SK_TRY(sk_dev_sync(dev, st));
    SK_TRY(copy_views(c, true, st));
    return check_sync(c, op, st);
}

int32_t sk_once_bound(enum sk_op op, const void *args)
{
    if (op == SK_OP_attend) return (int32_t)((const sk_attend_args *)args)->k_cache.dim[1];
    if (op == SK_OP_rope_attend)
        return (int32_t)((const sk_rope_attend_args *)args)->k_cache.dim[1];
    if (op == SK_OP_attend_blocks)
        return (int32_t)((const sk_attend_blocks_args *)args)->k_cache.dim[1];
    if (op == SK_OP_block_topk) { // as many positions as there are blocks for
        const sk_block_topk_args *a = args;
        const int64_t most = (a->pooled.dim[1] + 1) * a->ratio - 1;
        return most < INT32_MAX ? (int32_t)most : INT32_MAX;
    }
    return 0;
}

static sk_code run_copy(const sk_once *o, enum sk_op op, void *args, sk_status *st)
{
    const int32_t bound = o->ctx_bound ? o->ctx_bound : sk_once_bound(op, args);
    const uint64_t work_bytes = sk_cuda_work_bytes(op, args, bound);
    size_t which[VIEWS_MAX] = {0};
    once c = {.o = o};
    sk_code rc;
    SK_TRY(plan_views(&c, op, args, which, st));
    c.work_at = sk_layout_add(&c.layout, work_bytes);
    c.sync_at = sk_layout_add(&c.layout, SK_SYNC_WORDS * sizeof(uint32_t));
    SK_TRY(sk_dev_alloc(o->dev, c.layout.used, "an op's arguments", &c.block, st));
    bind_views(&c, op, args, which);
    rc = run(&c, op, args, work_bytes, bound, st);
    sk_dev_free(o->dev, c.block);
    return rc;
}

sk_code sk_once_run(const sk_once *o, enum sk_op op, const void *args, sk_status *st)
{
    void *copy = NULL;
    sk_code rc;
    SK_TRY(sk_cuda_check(op, args, st));
    SK_TRY(sk_dev_check(sk_k_setup(), "preparing the kernels", -1, st));
    SK_TRY(sk_mem_new_aligned(&copy, SK_ARGS_MAX, "arguments of an op", st));
    memcpy(copy, args, sk_ops[op].args_bytes);
    rc = run_copy(o, op, copy, st);
    sk_mem_free(copy);
    return rc;
}

static sk_code pack_and_back(sk_dev *dev, const sk_view *w, const uint8_t *raw, uint64_t bytes,
                             uint8_t *const at[3], uint8_t *out, double us[2], sk_status *st)
{
    SK_TRY(sk_dev_write(dev, at[1], raw, bytes, st));
    SK_TRY(sk_dev_mark(dev, 0, st));
    SK_TRY(pack_all(dev, w, at[1], at[0], false, st));
    SK_TRY(sk_dev_mark(dev, 1, st));
    SK_TRY(pack_all(dev, w, at[2], at[0], true, st));
    SK_TRY(sk_dev_mark(dev, 2, st));
    SK_TRY(sk_dev_read(dev, out, at[2], bytes, st));
    SK_TRY(sk_dev_elapsed(dev, 0, 1, us, st));
    return sk_dev_elapsed(dev, 1, 2, us + 1, st);
}

sk_code sk_once_repack(sk_dev *dev, const sk_view *w, const uint8_t *raw, uint8_t *out,
                       double us[2], sk_status *st)
{
    const int64_t k = w->dim[w->rank - 1];
    uint64_t bytes = 0, off[3];
    uint8_t *block = NULL;
    sk_layout l = {0};
    sk_code rc;
    if (!sk_k_packs(w->dtype) || !sk_view_span(w, &bytes) || (k % 32 && !sk_k_has_uneven(w->dtype)))
        return SK_FAIL(st, SK_UNSUPPORTED, "packing: no kernel for %s with %lld columns",
                       sk_dtype_name(w->dtype), (long long)k);
    off[0] = sk_layout_add(&l, sk_cuda_packed_bytes(w->dtype, w->rank, w->dim));
    off[1] = sk_layout_add(&l, bytes);
    off[2] = sk_layout_add(&l, bytes + 4); // unpacking works on whole words
    SK_TRY(sk_dev_alloc(dev, l.used, "a weight packed and unpacked", &block, st));
    rc = pack_and_back(dev, w, raw, bytes,
                       (uint8_t *[]){block + off[0], block + off[1], block + off[2]}, out, us, st);
    sk_dev_free(dev, block);
    return rc;
}

sk_code sk_once_synth(sk_dev *dev, const sk_synth *recipe, uint64_t first, uint64_t bytes,
                      uint8_t *out, sk_status *st)
{
    uint8_t *block = NULL;
    sk_code rc;
    SK_TRY(sk_dev_alloc(dev, bytes, "a weight that is made", &block, st));
    rc = sk_dev_check(
        sk_k_synth(recipe, first, bytes / (uint64_t)recipe->block_bytes, block, sk_dev_stream(dev)),
        "making a weight", -1, st);
    if (rc == SK_OK) rc = sk_dev_read(dev, out, block, bytes, st);
    sk_dev_free(dev, block);
    return rc;
}
