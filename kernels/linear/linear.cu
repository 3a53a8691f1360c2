/* Ops linear, norm_linear, norm_glu, linear_add, linear_parts, norm_argmax, linear_argmax,
 * gather_rows, and the packing of weights: which kernels a step takes. Matches K in multiples of
 * 32, any K of plain weights in linear and linear_add (uneven.cuh), activations BF16 (F32 where a
 * norm is folded in) with rows aligned to 16 bytes, packed weights, with scales beside them for the
 * types that come with such; sk_cuda_check refuses the rest. Up to 40 rows take the narrow kernels
 * where the weights are small and the ring where they are large, with few outputs and a long K in
 * two launches (split.h), more rows the wide ones; all give a row the same bits. A step whose
 * segments differ in type takes one launch a type. Parts of K are the ring's, with any number of
 * rows. */
#include "kernels/common/setup.cuh"
#include "kernels/common/setup.h"
#include "kernels/linear/family.cuh"
#include "kernels/linear/split.cuh"
#include "kernels/linear/split.h"
#include "kernels/linear/uneven.cuh"

#define X(name) extern const sk::Family sk_family_##name;
SK_FORMATS(X)
#undef X

namespace
{

constexpr int32_t kInvalid = 1; // cudaErrorInvalidValue

const sk::Family *family_of(int32_t dtype)
{
    static const sk::Family *const families[] = {
#define X(name) &sk_family_##name,
        SK_FORMATS(X)
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

/* Scratch of a wide product with a norm; hidden rows behind. */
struct Scratch {
    uint16_t *act;
    float *factor;
    float *hidden[2];
};

Scratch scratch_of(uint8_t *work, int64_t rows, int64_t k, int64_t n, int32_t n_hidden)
{
    const sk_linear_scratch at = sk_linear_scratch_of(rows, k, n, n_hidden);
    Scratch s = {};
    if (!work) return s;
    s.act = reinterpret_cast<uint16_t *>(work);
    s.factor = reinterpret_cast<float *>(work + at.factor);
    for (int i = 0; i < n_hidden; i++) s.hidden[i] = reinterpret_cast<float *>(work + at.hidden[i]);
    return s;
}

/* A weight as a step has it. */
struct Weight {
    const sk_view *w, *bias, *scale;
    int32_t scale_n, scale_k;
};

/* Elements of K to a scale as a shift: sk_k_check has seen to it that there is one. */
int32_t shift_of(int32_t scale_k, int64_t k)
{
    int32_t shift = 0;
    if (scale_k >= k) return 31;
    while (1 << shift < scale_k) shift++;
    return shift;
}

void add_segment(sk::Segments *s, const Weight &of, float *y, int64_t y_step)
{
    const sk_view *w = of.w, *bias = of.bias;
    sk::Segment *seg = &s->of[s->n];
    seg->w = w->p;
    seg->bias = bias && sk_view_present(bias) ? sk::ptr<const float>(*bias) : nullptr;
    seg->y = y;
    seg->y_step = y_step;
    seg->n = static_cast<int32_t>(w->dim[0]);
    seg->tile = s->n_tiles;
    if (sk_view_present(of.scale)) {
        seg->scale = sk::ptr<const float>(*of.scale);
        seg->scale_step = sk::step_of<float>(*of.scale, 0);
        seg->scale_n = of.scale_n;
        seg->scale_shift = shift_of(of.scale_k, w->dim[1]);
    }
    s->n++;
    s->n_tiles += tiles_of(w->dim[0]);
}

/* Weight i of a step with several, and that of a step with one. */
template <typename Args> Weight weight_of(const Args *a, int i)
{
    return {&a->w[i], &a->bias[i], &a->scale[i], a->scale_n[i], a->scale_k[i]};
}

template <typename Args> Weight weight_of(const Args *a)
{
    return {&a->w, &a->bias, &a->scale, a->scale_n, a->scale_k};
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

/* BF16 activations, and what a norm in front of the product leaves of itself. */
struct Acts {
    const uint16_t *x;
    int64_t x_step;
    const float *factor; // NULL: no norm
};

/* A norm that the product does not do itself takes a launch of its own. */
int32_t acts_of(const sk::Family *f, const Input &in, const Scratch &work, Acts *acts,
                const sk_launch *l)
{
    sk::NormActArgs n = {};
    if (!in.gain) {
        *acts = {sk::ptr<const uint16_t>(*in.x), sk::step_of<uint16_t>(*in.x, 0), nullptr};
        return 0;
    }
    n.x = sk::ptr<const float>(*in.x);
    n.x_step = sk::step_of<float>(*in.x, 0);
    n.gain = sk::ptr<const float>(*in.gain);
    n.count = sk::ptr<const int32_t>(*in.count);
    n.rows = static_cast<int32_t>(in.x->dim[0]);
    n.k = static_cast<int32_t>(in.x->dim[1]);
    n.part = 1.0f / static_cast<float>(n.k);
    n.eps = in.eps;
    n.act = work.act;
    n.factor = work.factor;
    *acts = {work.act, n.k, work.factor};
    return f->norm_rows(n, l);
}

int32_t wide_product(const sk::Family *f, const Input &in, const sk::Segments &seg, bool add,
                     const Scratch &work, const sk_launch *l)
{
    sk::WideArgs w = {};
    Acts acts;
    const int32_t e = acts_of(f, in, work, &acts, l);
    if (e) return e;
    w.seg = seg;
    w.count = sk::ptr<const int32_t>(*in.count);
    w.rows = static_cast<int32_t>(in.x->dim[0]);
    w.k = static_cast<int32_t>(in.x->dim[1]);
    w.add = add;
    w.x = acts.x;
    w.x_step = acts.x_step;
    w.factor = acts.factor;
    return f->wide(w, l);
}

/* A large product lets the next node fill its rings while it computes; to a short one that node's
 * copies would only be in the way of its own. */
constexpr int64_t kOpenEarlyFrom = 18 << 20;

int64_t bytes_of(const sk::Family *f, const sk::Segments &seg, int64_t k)
{
    return static_cast<int64_t>(seg.n_tiles) * ((k + f->unit - 1) / f->unit) * f->unit_bytes;
}

/* More than 40 rows 40 at a time. */
int32_t ring_in_turns(const sk::Family *f, sk::RingArgs r, const sk_launch *l)
{
    const int32_t end = r.rows;
    int32_t e = 0;
    for (r.row0 = 0; !e && r.row0 < end; r.row0 += sk::kNarrowRows) {
        r.rows = end - r.row0 < sk::kNarrowRows ? end - r.row0 : sk::kNarrowRows;
        e = f->ring(r, l);
    }
    return e;
}

/* What a product by the ring has of its own, whatever becomes of the sums. */
sk::RingArgs ring_args(const sk::Family *f, const sk::NarrowArgs &a, const Acts &acts)
{
    sk::RingArgs r = {};
    r.seg = a.seg;
    r.x = acts.x;
    r.x_step = acts.x_step;
    r.factor = acts.factor;
    r.count = a.count;
    r.rows = a.rows;
    r.k = a.k;
    r.open_early = a.open_early && bytes_of(f, a.seg, a.k) >= kOpenEarlyFrom;
    return r;
}

int32_t ring_product(const sk::Family *f, const Input &in, const sk::NarrowArgs &a,
                     const Scratch &work, const sk_launch *l)
{
    Acts acts;
    const int32_t e = acts_of(f, in, work, &acts, l);
    if (e) return e;
    sk::RingArgs r = ring_args(f, a, acts);
    r.parts = 1;
    r.add = a.epilogue == sk::Epilogue::kAdd;
    r.id = a.id;
    r.keys = a.keys;
    return ring_in_turns(f, r, l);
}

/* One weight whose slices are left apart, in two launches; 0 where it is not one of those. */
int64_t slices_apart(const Input &in, const sk::Family *f, const sk::Segments &seg,
                     const sk_launch *l)
{
    const int64_t rows = in.x->dim[0], n = seg.of[0].n, k = in.x->dim[1];
    if (!f->ring || in.gain || seg.n != 1 || seg.of[0].scale) return 0;
    if (!l->work || sk_split_bytes(f->dtype, rows, n, k) > l->work_bytes) return 0;
    return sk_split_slices(f->dtype, rows, n, k);
}

int32_t apart(const Input &in, const sk::Family *f, const sk::NarrowArgs &a, int64_t slices,
              const sk_launch *l)
{
    const sk::Segment &seg = a.seg.of[0];
    sk::RingArgs r = ring_args(f, a, {static_cast<const uint16_t *>(a.x), a.x_step, nullptr});
    sk::SliceArgs s = {};
    sk_launch then = *l;
    r.parts = static_cast<int32_t>(slices);
    r.part_step = static_cast<int64_t>(a.rows) * seg.n;
    r.seg.of[0].y = reinterpret_cast<float *>(l->work);
    r.seg.of[0].y_step = seg.n;
    r.seg.of[0].bias = nullptr;
    s.sums = r.seg.of[0].y;
    s.bias = seg.bias;
    s.y = seg.y;
    s.y_step = seg.y_step;
    s.slice_step = r.part_step;
    s.n = seg.n;
    s.slices = r.parts;
    s.add = a.epilogue == sk::Epilogue::kAdd;
    s.wide = seg.n % 4 == 0 && seg.y_step % 4 == 0 &&
             (reinterpret_cast<uintptr_t>(seg.y) | reinterpret_cast<uintptr_t>(seg.bias)) % 16 == 0;
    then.open_early = 0;
    const int32_t e = f->ring(r, l);
    if (e) return e;
    return sk::launch(
        &then, sk::sum_slices,
        dim3(static_cast<unsigned>((seg.n + 4 * sk::kSliceThreads - 1) / (4 * sk::kSliceThreads)),
             static_cast<unsigned>(a.rows)),
        dim3(sk::kSliceThreads), 0, s, sk::pass_of(l, *in.count, a.rows));
}

/* From how many tiles x pieces of K on weights are large: a few for every warp of the GPU. */
constexpr int64_t kRingFrom = 2048;

bool takes_ring(const sk::Family *f, const sk::NarrowArgs &a)
{
    if (!f->ring || !f->narrow) return f->ring;
    return a.k > sk::kShortK &&
           static_cast<int64_t>(a.seg.n_tiles) * a.k >= kRingFrom * sk::kSliceElems;
}

/* Rows that are no whole number of blocks. */
int32_t uneven_product(const Input &in, int32_t dtype, const sk::Segments &seg, bool add,
                       const sk_launch *l)
{
    sk::UnevenArgs a = {};
    if (in.gain) return kInvalid;
    a.seg = seg;
    a.x = sk::ptr<const uint16_t>(*in.x);
    a.x_step = sk::step_of<uint16_t>(*in.x, 0);
    a.count = sk::ptr<const int32_t>(*in.count);
    a.rows = static_cast<int32_t>(in.x->dim[0]);
    a.k = static_cast<int32_t>(in.x->dim[1]);
    a.add = add;
    return sk::launch_uneven(dtype, a, l);
}

int32_t product(const Input &in, int32_t dtype, const sk::Segments &seg, bool add,
                const sk_launch *l)
{
    if (in.x->dim[1] % 32) return uneven_product(in, dtype, seg, add, l);
    const sk::Family *f = family_of(dtype);
    sk::NarrowArgs a = narrow_args(in, l);
    const Scratch work = scratch_of(l->work, a.rows, a.k, 0, 0);
    if (!f) return kInvalid;
    if (a.rows > sk::kNarrowRows) return wide_product(f, in, seg, add, work, l);
    a.seg = seg;
    a.epilogue = add ? sk::Epilogue::kAdd : sk::Epilogue::kStore;
    if (const int64_t slices = slices_apart(in, f, seg, l)) return apart(in, f, a, slices, l);
    if (takes_ring(f, a)) return ring_product(f, in, a, work, l);
    return f->narrow(a, in.gain != nullptr, false, l);
}

/* Segments by runs of one type: a launch each. */
template <typename Args> int32_t products(const Input &in, const Args *a, const sk_launch *l)
{
    const sk_view *w = a->w, *y = a->y;
    int32_t e = 0;
    for (int i = 0; !e && i < SK_LINEAR_SEGS && sk_view_present(&w[i]);) {
        sk::Segments seg = {};
        const int32_t dtype = w[i].dtype;
        for (; i < SK_LINEAR_SEGS && sk_view_present(&w[i]) && w[i].dtype == dtype; i++)
            add_segment(&seg, weight_of(a, i), sk::ptr<float>(y[i]), sk::step_of<float>(y[i], 0));
        e = product(in, dtype, seg, false, l);
    }
    return e;
}

/* Gate and up of different types, too many rows for one launch, or large weights: two products,
 * then the gate. */
int32_t glu_in_parts(const Input &in, const sk_norm_glu_args *a, const sk_launch *l)
{
    const Scratch s = scratch_of(l->work, a->x.dim[0], a->x.dim[1], a->w[0].dim[0], 2);
    const int64_t dim[2] = {a->x.dim[0], a->w[0].dim[0]};
    sk::Segments seg = {};
    sk_view y[2] = {};
    int32_t e = 0;
    for (int i = 0; !e && i < 2; i++) {
        y[i].p = reinterpret_cast<uint8_t *>(s.hidden[i]);
        y[i].dtype = SK_F32;
        y[i].rank = 2;
        y[i].dim[0] = dim[0];
        y[i].dim[1] = dim[1];
        y[i].stride[0] = dim[1] * 4;
        add_segment(&seg, weight_of(a, i), s.hidden[i], dim[1]);
        if (i == 0 && a->w[1].dtype == a->w[0].dtype) continue;
        e = product(in, a->w[i].dtype, seg, false, l);
        seg = {};
    }
    if (e) return e;
    if (a->gelu) {
        const sk_gelu_mul_args g = {y[0], y[1], a->count, a->out};
        return sk_k_gelu_mul(&g, l);
    }
    const sk_silu_mul_args g = {y[0], y[1], a->count, a->out};
    return sk_k_silu_mul(&g, l);
}

/* The output with the largest sum, of each row. */
template <typename Args> int32_t best_output(const Input &in, const Args *a, const sk_launch *l)
{
    const sk::Family *f = family_of(a->w.dtype);
    sk::NarrowArgs n = narrow_args(in, l);
    if (!f || n.k % 32) return kInvalid;
    add_segment(&n.seg, weight_of(a), nullptr, 0);
    n.epilogue = sk::Epilogue::kArgmax;
    n.id = sk::ptr<int32_t>(a->id);
    n.keys = reinterpret_cast<uint64_t *>(l->sync);
    if (takes_ring(f, n)) return ring_product(f, in, n, scratch_of(l->work, n.rows, n.k, 0, 0), l);
    return narrow_in_turns(f, n, in.gain != nullptr, false, l);
}

} // namespace

extern "C" int32_t sk_k_linear(const sk_linear_args *a, const sk_launch *l)
{
    const Input in = {&a->x, nullptr, &a->count, 0};
    return products(in, a, l);
}

extern "C" int32_t sk_k_norm_linear(const sk_norm_linear_args *a, const sk_launch *l)
{
    const Input in = {&a->x, &a->gain, &a->count, a->eps};
    return products(in, a, l);
}

extern "C" int32_t sk_k_linear_add(const sk_linear_add_args *a, const sk_launch *l)
{
    const Input in = {&a->x, nullptr, &a->count, 0};
    sk::Segments seg = {};
    add_segment(&seg, weight_of(a), sk::ptr<float>(a->y), sk::step_of<float>(a->y, 0));
    return product(in, a->w.dtype, seg, true, l);
}

extern "C" int32_t sk_k_linear_parts(const sk_linear_parts_args *a, const sk_launch *l)
{
    const sk_view none = {};
    sk::RingArgs r = {};
    int32_t e = 0;
    r.x = sk::ptr<const uint16_t>(a->x);
    r.x_step = sk::step_of<uint16_t>(a->x, 0);
    r.count = sk::ptr<const int32_t>(a->count);
    r.rows = static_cast<int32_t>(a->x.dim[0]);
    r.k = static_cast<int32_t>(a->x.dim[1]);
    r.parts = static_cast<int32_t>(a->y[0].dim[0]);
    for (int i = 0; !e && i < SK_LINEAR_SEGS && sk_view_present(&a->w[i]);) {
        const int32_t dtype = a->w[i].dtype;
        const sk::Family *f = family_of(dtype);
        const int64_t unit = sk_part_unit(dtype, r.k);
        if (!unit || r.k % (unit * r.parts)) return kInvalid;
        r.seg = {};
        r.part_step = sk::step_of<float>(a->y[i], 0);
        for (; i < SK_LINEAR_SEGS && sk_view_present(&a->w[i]) && a->w[i].dtype == dtype &&
               sk::step_of<float>(a->y[i], 0) == r.part_step;
             i++)
            add_segment(&r.seg, {&a->w[i], &none, &none, 0, 0}, sk::ptr<float>(a->y[i]),
                        sk::step_of<float>(a->y[i], 1));
        r.open_early = l->open_early && bytes_of(f, r.seg, r.k) >= kOpenEarlyFrom;
        e = ring_in_turns(f, r, l);
    }
    return e;
}

extern "C" int32_t sk_k_norm_glu(const sk_norm_glu_args *a, const sk_launch *l)
{
    const Input in = {&a->x, &a->gain, &a->count, a->eps};
    const sk::Family *f = family_of(a->w[0].dtype);
    sk::NarrowArgs n = narrow_args(in, l);
    if (!f || n.k % 32) return kInvalid;
    add_segment(&n.seg, weight_of(a, 0), nullptr, 0);
    if (a->w[1].dtype != a->w[0].dtype || n.rows > sk::kNarrowRows || takes_ring(f, n))
        return glu_in_parts(in, a, l);
    n.seg.n_tiles = 0; // gate and up are walked side by side
    add_segment(&n.seg, weight_of(a, 1), nullptr, 0);
    n.seg.of[1].tile = 0;
    n.hidden = sk::ptr<uint16_t>(a->out);
    n.hidden_step = sk::step_of<uint16_t>(a->out, 0);
    n.gelu = a->gelu;
    return f->narrow(n, true, true, l);
}

extern "C" int32_t sk_k_norm_argmax(const sk_norm_argmax_args *a, const sk_launch *l)
{
    const Input in = {&a->x, &a->gain, &a->count, a->eps};
    return best_output(in, a, l);
}

extern "C" int32_t sk_k_linear_argmax(const sk_linear_argmax_args *a, const sk_launch *l)
{
    const Input in = {&a->x, nullptr, &a->count, 0};
    return best_output(in, a, l);
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

extern "C" int32_t sk_setup_linear(void)
{
    int32_t e = 0;
#define X(name)                                                                                    \
    if (!e) e = sk_family_##name.setup();
    SK_FORMATS(X)
#undef X
    if (!e) e = sk::prefer_shared(sk::sum_slices);
    return e ? e : sk::setup_uneven();
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
    if (!f || row % 16 || (k % 32 && !sk_has_uneven(dtype))) return kInvalid;
    a.raw = raw;
    a.packed = packed;
    a.row = row;
    a.rows = rows;
    a.n = n;
    a.units = static_cast<int32_t>((k + f->unit - 1) / f->unit);
    a.row_bytes = k * f->row_bytes / f->unit;
    return f->pack(a, unpack, stream);
}

} // namespace

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
