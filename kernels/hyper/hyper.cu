/* Ops `hyper_down` and `hyper_mix` in mode BF16, with activations BF16 and streams in F32. Match
 * any weight that products have, any number of streams, any stride of streams and rows. The
 * products are launches of linear and linear_parts in between: a stream whose columns are whole
 * slices of the sum over K is left as a part; where they are not, every stream is a row of its own
 * with zeros elsewhere, S times the rows; w[1] in F32 of up to eight rows takes no launch. Would be
 * wrong if P * S reached 2^31. */
#include "kernels/sk_kernels.h"

#include "kernels/common/setup.cuh"
#include "kernels/hyper/enter.cuh"
#include "kernels/hyper/fused.h"
#include "kernels/hyper/sizes.h"
#include "kernels/hyper/steps.cuh"

namespace sk
{

/* What lies in the step's scratch. */
struct down_scratch {
    int32_t *live;
    uint8_t *all, *one, *parts, *other;
};

static down_scratch down_scratch_of(const sk_hyper_down_args *a, uint8_t *work)
{
    const sk_hyper_scratch at = sk_hyper_scratch_of(a);
    down_scratch s = {};
    s.live = reinterpret_cast<int32_t *>(work);
    s.all = at.has_all ? work + at.all : nullptr;
    s.one = at.has_one ? work + at.one : nullptr;
    s.parts = work + at.parts;
    s.other = work + at.other;
    return s;
}

static sk_view dense_view(int32_t dtype, int32_t size, int32_t rank, int64_t d0, int64_t d1,
                          int64_t d2, uint8_t *p)
{
    sk_view v = {};
    v.p = p;
    v.dtype = dtype;
    v.rank = rank;
    v.dim[0] = d0;
    v.dim[1] = d1;
    v.dim[2] = d2;
    for (int64_t d = rank, step = size; d-- > 0; step *= v.dim[d]) v.stride[d] = step;
    return v;
}

/* Products between the kernels: what the first has written may not be read ahead of the wait, and
 * the scratch is taken. */
static sk_launch inner_launch(const sk_launch *l, bool counted_here)
{
    sk_launch in = *l;
    in.work = nullptr;
    in.work_bytes = 0;
    in.open_early = 0;
    if (counted_here) in.rows_ready = 0;
    return in;
}

/* The arguments of a product with no weight yet. */
template <typename Args> static Args no_weights()
{
    Args p = {};
    for (int i = 0; i < SK_LINEAR_SEGS; i++) p.w[i].buf = p.y[i].buf = -1;
    return p;
}

static int32_t whole_product(const sk_view &x, const sk_view &count, const sk_view &w,
                             const sk_view &y, const sk_launch *l)
{
    auto p = no_weights<sk_linear_args>();
    for (int i = 0; i < SK_LINEAR_SEGS; i++) p.bias[i].buf = p.scale[i].buf = -1;
    p.x = x;
    p.count = count;
    p.w[0] = w;
    p.y[0] = y;
    return sk_k_linear(&p, l);
}

/* All products that are left in parts, by one launch where types agree. Where the sums lie goes to
 * `of`. */
static int32_t part_products(const sk_hyper_down_args *a, const down_scratch &s, down_parts *of,
                             const sk_launch *l)
{
    const int64_t rows = a->s.dim[0], n = a->s.dim[1];
    const sk_launch in = inner_launch(l, false);
    auto p = no_weights<sk_linear_parts_args>();
    int64_t width = 0, at = 0;
    int32_t segments = 0;
    for (int32_t j = 0; j < 2; j++)
        if (sk_hyper_product_of(a, j) == SK_HYPER_PARTS) width += a->w[j].dim[0];
    if (width == 0) return 0;
    p.x = dense_view(SK_BF16, 2, 2, rows, n * a->s.dim[2], 0, s.all);
    p.count = a->count;
    for (int32_t j = 0; j < 2; j++) {
        if (sk_hyper_product_of(a, j) != SK_HYPER_PARTS) continue;
        sk_view y = dense_view(SK_F32, 4, 3, n, rows, width, s.parts + 4 * at);
        y.dim[2] = a->w[j].dim[0];
        of[j] = {reinterpret_cast<float *>(y.p), width, rows * width};
        p.w[segments] = a->w[j];
        p.y[segments++] = y;
        at += a->w[j].dim[0];
    }
    return sk_k_linear_parts(&p, &in);
}

/* Those that are not. */
static int32_t row_products(const sk_hyper_down_args *a, const down_scratch &s, down_parts *of,
                            const sk_launch *l)
{
    const int64_t rows = a->s.dim[0] * a->s.dim[1];
    const sk_view x = dense_view(SK_BF16, 2, 2, rows, a->s.dim[1] * a->s.dim[2], 0, s.one);
    const sk_view live = dense_view(SK_I32, 4, 1, 1, 0, 0, reinterpret_cast<uint8_t *>(s.live));
    const sk_launch in = inner_launch(l, true);
    uint8_t *at = s.other;
    int32_t rc = 0;
    for (int32_t j = 0; j < 2 && rc == 0; j++) {
        const sk_hyper_product p = sk_hyper_product_of(a, j);
        if (p != SK_HYPER_ROWS && p != SK_HYPER_OWN) continue;
        const int64_t n = a->w[j].dim[0];
        const sk_view y = dense_view(SK_F32, 4, 2, rows, n, 0, at);
        of[j] = {reinterpret_cast<float *>(at), a->s.dim[1] * n, n};
        at += rows * n * 4;
        if (p == SK_HYPER_ROWS) rc = whole_product(x, live, a->w[j], y, &in);
    }
    return rc;
}

/* The F32 product of the first kernel is the last of `other`. */
static down_views down_views_of(const sk_hyper_down_args *a, const down_scratch &s)
{
    const int64_t rows = a->s.dim[0], n = a->s.dim[1], dim = a->s.dim[2];
    const bool own = sk_hyper_product_of(a, 1) == SK_HYPER_OWN;
    const bool before = own && sk_hyper_product_of(a, 0) == SK_HYPER_ROWS;
    return {
        heads_of<float>(a->s),
        {},
        {},
        ptr<const float>(a->gain),
        own ? a->w[1].p : nullptr,
        reinterpret_cast<__nv_bfloat16 *>(s.all),
        reinterpret_cast<__nv_bfloat16 *>(s.one),
        rows_of<float>(a->factor),
        reinterpret_cast<float *>(s.other) + (before ? rows * n * a->w[0].dim[0] : 0),
        s.live,
        static_cast<int32_t>(n),
        static_cast<int32_t>(dim),
        a->eps,
        dim % 4 == 0 && row_aligned(a->s, 16) && row_aligned(a->gain, 16),
    };
}

static int32_t sum_of_streams(const sk_hyper_down_args *a, const down_parts *of, const sk_launch *l)
{
    const bool injects = sk_view_present(&a->w[1]);
    const down_sums v = {
        rows_of<const float>(a->factor),
        of[0],
        of[1],
        rows_of<__nv_bfloat16>(a->low),
        rows_of<float>(a->inject),
        static_cast<int32_t>(a->s.dim[1]),
        static_cast<int32_t>(a->w[0].dim[0]),
        injects ? static_cast<int32_t>(a->w[1].dim[0]) : 0,
    };
    const int32_t parts = (v.n_low + v.n_inject + kDownThreads - 1) / kDownThreads;
    return launch(l, sum_streams,
                  dim3(static_cast<unsigned>(parts), static_cast<unsigned>(a->s.dim[0])),
                  dim3(kDownThreads), 0, v, pass_of(l, a->count, a->s.dim[0]));
}

/* The kernel ahead of the products. */
static int32_t enter(const down_views &v, int64_t rows, const pass &p, const sk_launch *l)
{
    const dim3 grid(static_cast<unsigned>(v.n_streams), static_cast<unsigned>(rows));
    const dim3 block(stream_threads(v.n));
    const bool few = !v.own || v.n_streams <= 4;
    if (v.x.p)
        return few ? launch(l, enter_streams<true, 4>, grid, block, 0, v, p)
                   : launch(l, enter_streams<true, kOwnOutputs>, grid, block, 0, v, p);
    return few ? launch(l, enter_streams<false, 4>, grid, block, 0, v, p)
               : launch(l, enter_streams<false, kOwnOutputs>, grid, block, 0, v, p);
}

/* `before`: a hyper_inject of the same rows that is done with it, or NULL. */
static int32_t down(const sk_hyper_inject_args *before, const sk_hyper_down_args *a,
                    const sk_launch *l)
{
    const int64_t rows = a->s.dim[0];
    const down_scratch s = down_scratch_of(a, l->work);
    down_views v = down_views_of(a, s);
    down_parts of[2] = {};
    int32_t rc;
    if (before) {
        v.x = rows_of<const float>(before->x);
        v.by = rows_of<const float>(before->inject);
        v.wide = v.wide && row_aligned(before->x, 16);
    }
    rc = enter(v, rows, pass_of(l, a->count, rows), l);
    if (rc == 0) rc = part_products(a, s, of, l);
    if (rc == 0) rc = row_products(a, s, of, l);
    return rc ? rc : sum_of_streams(a, of, l);
}

/* Do two views of F32 have bytes in common? */
static bool meet(const sk_view &a, const sk_view &b)
{
    const auto end = [](const sk_view &v) {
        const uint8_t *last = v.p;
        for (int32_t i = 0; i < v.rank; i++) last += (v.dim[i] - 1) * v.stride[i];
        return last + sizeof(float);
    };
    return a.p < end(b) && b.p < end(a);
}

/* Does the first put something into what the second takes, row by row? The factors, which come out
 * while other CTAs still read, may lie where the plan had no use any more for what the first reads:
 * then each has its own launch. */
static bool go_together(const sk_hyper_inject_args *inject, const sk_hyper_down_args *down)
{
    const sk_view &s = inject->s, &t = down->s;
    return s.p == t.p && s.dim[0] == t.dim[0] && s.dim[1] == t.dim[1] && s.dim[2] == t.dim[2] &&
           s.stride[0] == t.stride[0] && s.stride[1] == t.stride[1] &&
           inject->count.p == down->count.p && !meet(down->factor, inject->x) &&
           !meet(down->factor, inject->inject);
}

} // namespace sk

extern "C" int32_t sk_k_hyper_down(const sk_hyper_down_args *a, const sk_launch *l)
{
    return sk::down(nullptr, a, l);
}

extern "C" int32_t sk_k_inject_down(const sk_hyper_inject_args *inject,
                                    const sk_hyper_down_args *down, const sk_launch *l)
{
    sk_launch then = *l;
    int32_t rc;
    if (l->fused && sk::go_together(inject, down)) return sk::down(inject, down, l);
    if (down->count.p != inject->count.p) then.rows_ready = 0; // said of the first
    rc = sk_k_hyper_inject(inject, l);
    return rc ? rc : sk::down(nullptr, down, &then);
}

extern "C" int32_t sk_k_hyper_mix(const sk_hyper_mix_args *a, const sk_launch *l)
{
    const int32_t fused = l->fused ? sk::hyper_mix_fused(a, l) : sk::kNotFused;
    if (fused != sk::kNotFused) return fused;
    const int64_t rows = a->s.dim[0], dim = a->s.dim[2];
    const sk_view z = sk::dense_view(SK_F32, 4, 2, rows, a->w.dim[0], 0, l->work);
    const sk_launch in = sk::inner_launch(l, false);
    const sk::mix_views v = {
        sk::ptr<const float>(z),
        sk::heads_of<const float>(a->s),
        sk::rows_of<const float>(a->factor),
        sk::ptr<const float>(a->gain),
        sk::rows_of<__nv_bfloat16>(a->out),
        static_cast<int32_t>(a->s.dim[1]),
        static_cast<int32_t>(dim),
        dim % 4 == 0 && sk::row_aligned(a->s, 16) && sk::row_aligned(a->gain, 16) &&
            sk::row_aligned(a->out, 8),
    };
    const auto parts = static_cast<unsigned>((dim + sk::kMixCols - 1) / sk::kMixCols);
    const int32_t rc = sk::whole_product(a->low, a->count, a->w, z, &in);
    if (rc != 0) return rc;
    return sk::launch(l, sk::mix_streams, dim3(parts, static_cast<unsigned>(rows)),
                      dim3(sk::kMixThreads), 0, v, sk::pass_of(l, a->count, rows));
}

extern "C" int32_t sk_setup_hyper(void)
{
    const int32_t e = sk::prefer_shared_all(sk::enter_streams<false, 4>, sk::enter_streams<true, 4>,
                                            sk::enter_streams<false, sk::kOwnOutputs>,
                                            sk::enter_streams<true, sk::kOwnOutputs>,
                                            sk::sum_streams, sk::mix_streams);
    return e ? e : sk::setup_hyper_fused();
}
