/* Ops linear, norm_linear, norm_glu, linear_add, norm_argmax, gather_rows, and the packing of
 * weights: which kernels a step takes. Matches K in multiples of 32, activations BF16 (F32 where a
 * norm is folded in) with rows aligned to 16 bytes, packed weights without scales of their own;
 * sk_k_check refuses the rest. Up to 40 rows take the narrow kernels, more of them the wide ones;
 * both give a row the same bits. A step whose segments differ in type takes one launch a type. */
#include "kernels/common/setup.h"
#include "kernels/linear/family.cuh"

#define SK_FAMILIES(X) X(F32) X(F16) X(BF16) X(Q4_0) X(Q4_1) X(Q8_0) X(Q4_K) X(Q5_K) X(Q6_K)

#define X(name) extern const sk::Family sk_family_##name;
SK_FAMILIES(X)
#undef X

namespace
{

constexpr int32_t kInvalid = 1; // cudaErrorInvalidValue

const sk::Family *family_of(int32_t dtype)
{
    static const sk::Family *const families[] = {
#define X(name) &sk_family_##name,
        SK_FAMILIES(X)
#undef X
    };
    for (const sk::Family *f : families)
        if (f->dtype == dtype) return f;
    return nullptr;
}

int32_t tiles_of(int64_t n) { return static_cast<int32_t>((n + 15) / 16); }

/* The input of a product, and what follows from it. */
struct Input {
    const sk_view *x;
    const sk_view *gain; // NULL: no norm
    const sk_view *count;
    float eps;
};

uint64_t aligned(uint64_t n) { return (n + 255) & ~static_cast<uint64_t>(255); }

/* Scratch of a wide product with a norm: BF16 [rows, k], then F32 [rows]; hidden rows behind. */
struct Scratch {
    uint16_t *act;
    float *factor;
    float *hidden[2];
    uint64_t bytes;
};

Scratch scratch_of(uint8_t *work, int64_t rows, int64_t k, int64_t n, int32_t n_hidden)
{
    Scratch s = {};
    uint64_t at = 0;
    s.act = reinterpret_cast<uint16_t *>(work);
    at += aligned(static_cast<uint64_t>(rows) * static_cast<uint64_t>(k) * 2);
    s.factor = reinterpret_cast<float *>(work + at);
    at += aligned(static_cast<uint64_t>(rows) * 4);
    for (int i = 0; i < n_hidden; i++) {
        s.hidden[i] = reinterpret_cast<float *>(work + at);
        at += aligned(static_cast<uint64_t>(rows) * static_cast<uint64_t>(n) * 4);
    }
    s.bytes = at;
    return s;
}

void add_segment(sk::Segments *s, const sk_view *w, const sk_view *bias, float *y, int64_t y_step)
{
    sk::Segment *seg = &s->of[s->n];
    seg->w = w->p;
    seg->bias = sk_view_present(bias) ? sk::ptr<const float>(*bias) : nullptr;
    seg->y = y;
    seg->y_step = y_step;
    seg->n = static_cast<int32_t>(w->dim[0]);
    seg->tile = s->n_tiles;
    s->n++;
    s->n_tiles += tiles_of(w->dim[0]);
}

sk::NarrowArgs narrow_args(const Input &in, const sk_launch *l)
{
    sk::NarrowArgs a = {};
    const size_t elem = in.gain ? 4 : 2;
    a.x = in.x->p;
    a.x_step = in.x->stride[0] / static_cast<int64_t>(elem);
    a.gain = in.gain ? sk::ptr<const float>(*in.gain) : nullptr;
    a.count = sk::ptr<const int32_t>(*in.count);
    a.rows = static_cast<int32_t>(in.x->dim[0]);
    a.k = static_cast<int32_t>(in.x->dim[1]);
    a.part = 1.0f / static_cast<float>(a.k);
    a.eps = in.eps;
    a.rows_ready = l->rows_ready;
    a.open_early = l->open_early;
    return a;
}

/* More than 40 rows by the narrow kernels, 40 at a time. */
int32_t narrow_in_turns(const sk::Family *f, sk::NarrowArgs a, bool norm, bool gated,
                        const sk_launch *l)
{
    const int32_t rows = a.rows;
    int32_t e = 0;
    for (a.row0 = 0; !e && a.row0 < rows; a.row0 += sk::kNarrowRows) {
        a.rows = rows - a.row0 < sk::kNarrowRows ? rows - a.row0 : sk::kNarrowRows;
        e = f->narrow(a, norm, gated, l);
    }
    return e;
}

int32_t wide_product(const sk::Family *f, const Input &in, const sk::Segments &seg, bool add,
                     const Scratch &work, const sk_launch *l)
{
    sk::WideArgs w = {};
    w.seg = seg;
    w.count = sk::ptr<const int32_t>(*in.count);
    w.rows = static_cast<int32_t>(in.x->dim[0]);
    w.k = static_cast<int32_t>(in.x->dim[1]);
    w.add = add;
    if (in.gain) {
        sk::NormActArgs n = {};
        int32_t e;
        n.x = sk::ptr<const float>(*in.x);
        n.x_step = sk::step_of<float>(*in.x, 0);
        n.gain = sk::ptr<const float>(*in.gain);
        n.count = w.count;
        n.rows = w.rows;
        n.k = w.k;
        n.part = 1.0f / static_cast<float>(n.k);
        n.eps = in.eps;
        n.act = work.act;
        n.factor = work.factor;
        e = f->norm_rows(n, l);
        if (e) return e;
        w.x = work.act;
        w.x_step = w.k;
        w.factor = work.factor;
    } else {
        w.x = sk::ptr<const uint16_t>(*in.x);
        w.x_step = sk::step_of<uint16_t>(*in.x, 0);
    }
    return f->wide(w, l);
}

int32_t product(const Input &in, int32_t dtype, const sk::Segments &seg, bool add,
                const sk_launch *l)
{
    const sk::Family *f = family_of(dtype);
    sk::NarrowArgs a = narrow_args(in, l);
    if (!f || a.k % 32) return kInvalid;
    if (a.rows > sk::kNarrowRows)
        return wide_product(f, in, seg, add, scratch_of(l->work, a.rows, a.k, 0, 0), l);
    a.seg = seg;
    a.epilogue = add ? sk::Epilogue::kAdd : sk::Epilogue::kStore;
    return f->narrow(a, in.gain != nullptr, false, l);
}

/* Segments by runs of one type: a launch each. */
int32_t products(const Input &in, const sk_view *w, const sk_view *bias, const sk_view *y,
                 const sk_launch *l)
{
    int32_t e = 0;
    for (int i = 0; !e && i < SK_LINEAR_SEGS && sk_view_present(&w[i]);) {
        sk::Segments seg = {};
        const int32_t dtype = w[i].dtype;
        for (; i < SK_LINEAR_SEGS && sk_view_present(&w[i]) && w[i].dtype == dtype; i++)
            add_segment(&seg, &w[i], &bias[i], sk::ptr<float>(y[i]), sk::step_of<float>(y[i], 0));
        e = product(in, dtype, seg, false, l);
    }
    return e;
}

/* Gate and up of different types, or too many rows for one launch: two products, then the gate. */
int32_t glu_in_parts(const Input &in, const sk_norm_glu_args *a, const sk_launch *l)
{
    const Scratch s = scratch_of(l->work, a->x.dim[0], a->x.dim[1], a->w[0].dim[0], 2);
    const int64_t dim[2] = {a->x.dim[0], a->w[0].dim[0]};
    sk_view y[2] = {};
    int32_t e = 0;
    for (int i = 0; !e && i < 2; i++) {
        sk::Segments seg = {};
        y[i].p = reinterpret_cast<uint8_t *>(s.hidden[i]);
        y[i].dtype = SK_F32;
        y[i].rank = 2;
        y[i].dim[0] = dim[0];
        y[i].dim[1] = dim[1];
        y[i].stride[0] = dim[1] * 4;
        add_segment(&seg, &a->w[i], &a->bias[i], s.hidden[i], dim[1]);
        e = product(in, a->w[i].dtype, seg, false, l);
    }
    if (e) return e;
    if (a->gelu) {
        const sk_gelu_mul_args g = {y[0], y[1], a->count, a->out};
        return sk_k_gelu_mul(&g, l);
    }
    const sk_silu_mul_args g = {y[0], y[1], a->count, a->out};
    return sk_k_silu_mul(&g, l);
}

} // namespace

extern "C" int32_t sk_k_linear(const sk_linear_args *a, const sk_launch *l)
{
    const Input in = {&a->x, nullptr, &a->count, 0};
    return products(in, a->w, a->bias, a->y, l);
}

extern "C" int32_t sk_k_norm_linear(const sk_norm_linear_args *a, const sk_launch *l)
{
    const Input in = {&a->x, &a->gain, &a->count, a->eps};
    return products(in, a->w, a->bias, a->y, l);
}

extern "C" int32_t sk_k_linear_add(const sk_linear_add_args *a, const sk_launch *l)
{
    const Input in = {&a->x, nullptr, &a->count, 0};
    sk::Segments seg = {};
    add_segment(&seg, &a->w, &a->bias, sk::ptr<float>(a->y), sk::step_of<float>(a->y, 0));
    return product(in, a->w.dtype, seg, true, l);
}

extern "C" int32_t sk_k_norm_glu(const sk_norm_glu_args *a, const sk_launch *l)
{
    const Input in = {&a->x, &a->gain, &a->count, a->eps};
    const sk::Family *f = family_of(a->w[0].dtype);
    sk::NarrowArgs n = narrow_args(in, l);
    if (!f || n.k % 32) return kInvalid;
    if (a->w[1].dtype != a->w[0].dtype || n.rows > sk::kNarrowRows) return glu_in_parts(in, a, l);
    add_segment(&n.seg, &a->w[0], &a->bias[0], nullptr, 0);
    n.seg.n_tiles = 0; // gate and up are walked side by side
    add_segment(&n.seg, &a->w[1], &a->bias[1], nullptr, 0);
    n.seg.of[1].tile = 0;
    n.hidden = sk::ptr<uint16_t>(a->out);
    n.hidden_step = sk::step_of<uint16_t>(a->out, 0);
    n.gelu = a->gelu;
    return f->narrow(n, true, true, l);
}

extern "C" int32_t sk_k_norm_argmax(const sk_norm_argmax_args *a, const sk_launch *l)
{
    const Input in = {&a->x, &a->gain, &a->count, a->eps};
    const sk::Family *f = family_of(a->w.dtype);
    sk::NarrowArgs n = narrow_args(in, l);
    if (!f || n.k % 32) return kInvalid;
    add_segment(&n.seg, &a->w, &a->bias, nullptr, 0);
    n.epilogue = sk::Epilogue::kArgmax;
    n.id = sk::ptr<int32_t>(a->id);
    n.keys = reinterpret_cast<uint64_t *>(l->sync);
    return narrow_in_turns(f, n, true, false, l);
}

extern "C" int32_t sk_k_gather_rows(const sk_gather_rows_args *a, const sk_launch *l)
{
    const sk::Family *f = family_of(a->table.dtype);
    sk::GatherArgs g = {};
    g.table = a->table.p;
    g.ids = sk::ptr<const int32_t>(a->ids);
    g.count = sk::ptr<const int32_t>(a->count);
    g.out = sk::ptr<float>(a->out);
    g.out_step = sk::step_of<float>(a->out, 0);
    g.rows = static_cast<int32_t>(a->ids.dim[0]);
    g.k = static_cast<int32_t>(a->table.dim[1]);
    g.scale = a->scale;
    return f && g.k % 32 == 0 ? f->gather(g, l) : kInvalid;
}

extern "C" uint64_t sk_k_linear_work(int64_t rows, int64_t k, int64_t n_out, int32_t n_hidden)
{
    return scratch_of(nullptr, rows, k, n_out, n_hidden).bytes;
}

extern "C" int32_t sk_setup_linear(void)
{
    int32_t e = 0;
#define X(name)                                                                                    \
    if (!e) e = sk_family_##name.setup();
    SK_FAMILIES(X)
#undef X
    return e;
}

/* ---- packing -----------------------------------------------------------------------------------
 */

namespace
{

int32_t pack_rows(int32_t dtype, uint8_t *raw, uint8_t *packed, int64_t row, int64_t rows,
                  int64_t n, int64_t k, bool unpack, cudaStream_t stream)
{
    const sk::Family *f = family_of(dtype);
    sk::PackArgs a = {};
    if (!f || row % 16 || k % 32) return kInvalid;
    a.raw = raw;
    a.packed = packed;
    a.row = row;
    a.rows = rows;
    a.n = n;
    a.units = static_cast<int32_t>((k + f->unit - 1) / f->unit);
    a.row_bytes = k * (f->unit_bytes / 16) / f->unit;
    return f->pack(a, unpack, stream);
}

} // namespace

extern "C" int32_t sk_k_packs(int32_t dtype) { return family_of(dtype) != nullptr; }

extern "C" uint64_t sk_k_packed_bytes(int32_t dtype, int64_t n, int64_t k)
{
    const sk::Family *f = family_of(dtype);
    if (!f) return 0;
    return static_cast<uint64_t>(tiles_of(n)) * static_cast<uint64_t>((k + f->unit - 1) / f->unit) *
           static_cast<uint64_t>(f->unit_bytes);
}

extern "C" int32_t sk_k_pack(int32_t dtype, const uint8_t *raw, uint8_t *packed, int64_t row,
                             int64_t rows, int64_t n, int64_t k, struct CUstream_st *stream)
{
    return pack_rows(dtype, const_cast<uint8_t *>(raw), packed, row, rows, n, k, false, stream);
}

extern "C" int32_t sk_k_unpack(int32_t dtype, const uint8_t *packed, uint8_t *raw, int64_t row,
                               int64_t rows, int64_t n, int64_t k, struct CUstream_st *stream)
{
    return pack_rows(dtype, raw, const_cast<uint8_t *>(packed), row, rows, n, k, true, stream);
}
