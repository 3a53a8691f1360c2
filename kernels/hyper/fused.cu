/* Ops `hyper_down` and `hyper_mix` in one launch each, for F16, BF16 and Q8_0. Match up to 40 rows
 * aligned to 16 bytes, streams of whole tiles of 16 columns; of hyper_down also streams that are
 * whole slices of the sum over K, up to 32 groups of 64 outputs, and w[1] absent or one that the
 * kernel multiplies by itself. The rest is not refused but left to hyper.cu, with the same bits. */
#include "kernels/hyper/fused.h"

#include "kernels/common/setup.cuh"
#include "kernels/hyper/down_fused.cuh"
#include "kernels/hyper/mix_fused.cuh"
#include "kernels/hyper/sizes.h"

namespace sk
{

constexpr size_t kFusedShared = 227 * 1024;
constexpr size_t kDownShared = kFusedShared - (sizeof(DownOwn) + 15) / 16 * 16;

/* Calls f<Format, groups of eight rows>. */
template <typename D, template <typename, int> typename F, typename... Args>
static int32_t by_rows(int64_t rows, const Args &...args)
{
    if (rows <= 8) return F<D, 1>::run(args...);
    if (rows <= 16) return F<D, 2>::run(args...);
    if (rows <= 24) return F<D, 3>::run(args...);
    return F<D, 5>::run(args...);
}

template <template <typename, int> typename F, typename... Args>
static int32_t by_format(int32_t dtype, int64_t rows, const Args &...args)
{
    switch (dtype) {
    case SK_F16:
        return by_rows<FormatF16, F>(rows, args...);
    case SK_BF16:
        return by_rows<FormatBF16, F>(rows, args...);
    case SK_Q8_0:
        return by_rows<FormatQ8_0, F>(rows, args...);
    default:
        return kNotFused;
    }
}

template <typename D, int N> struct RunMix {
    static int32_t run(const fused_mix &a, const pass &p, const sk_launch *l)
    {
        const int64_t bytes = FusedMixRoom<D, N>::bytes(a.v.n_streams, a.k);
        if (bytes > static_cast<int64_t>(kFusedShared)) return kNotFused;
        return launch(l, mix_fused<D, N>, dim3(static_cast<unsigned>(a.v.n / 16)),
                      dim3(32 * kFusedWarps), static_cast<size_t>(bytes), a, p);
    }
};

int32_t hyper_mix_fused(const sk_hyper_mix_args *a, const sk_launch *l)
{
    const int64_t rows = a->s.dim[0], dim = a->s.dim[2];
    if (rows > kFusedRows || dim % 16 || a->w.dim[1] % 32 || !row_aligned(a->s, 16) ||
        !row_aligned(a->gain, 16) || !row_aligned(a->low, 16))
        return kNotFused;
    fused_mix m = {};
    m.v.s = heads_of<const float>(a->s);
    m.v.factor = rows_of<const float>(a->factor);
    m.v.gain = ptr<const float>(a->gain);
    m.v.out = rows_of<__nv_bfloat16>(a->out);
    m.v.n_streams = static_cast<int32_t>(a->s.dim[1]);
    m.v.n = static_cast<int32_t>(dim);
    m.v.wide = 1;
    m.low = rows_of<const uint16_t>(a->low);
    m.w = a->w.p;
    m.k = static_cast<int32_t>(a->w.dim[1]);
    return by_format<RunMix>(a->w.dtype, rows, m, pass_of(l, a->count, rows), l);
}

template <typename D, int N> struct RunDown {
    static int32_t run(const fused_down &a, const pass &p, const sk_launch *l)
    {
        const DownShape s = down_shape<D>(a);
        const int64_t bytes = FusedDownRoom<D, N>::bytes(s.elems);
        const int32_t ctas = a.capacity * a.v.n_streams + s.slices * s.groups;
        if (bytes > static_cast<int64_t>(kDownShared)) return kNotFused;
        return launch(l, down_fused<D, N>, dim3(static_cast<unsigned>(ctas)),
                      dim3(32 * kFusedWarps), static_cast<size_t>(bytes), a, p);
    }
};

int32_t hyper_down_fused(const sk_hyper_down_args *a, const sk_launch *l)
{
    const int64_t rows = a->s.dim[0];
    const sk_hyper_scratch at = sk_hyper_scratch_of(a);
    if (!at.has_slices || !row_aligned(a->s, 16) || !row_aligned(a->gain, 16)) return kNotFused;
    fused_down d = {};
    d.v.s = heads_of<const float>(a->s);
    d.v.gain = ptr<const float>(a->gain);
    d.v.factor = rows_of<float>(a->factor);
    d.v.n_streams = static_cast<int32_t>(a->s.dim[1]);
    d.v.n = static_cast<int32_t>(a->s.dim[2]);
    d.v.eps = a->eps;
    d.v.wide = 1;
    d.low = rows_of<__nv_bfloat16>(a->low);
    if (sk_view_present(&a->w[1])) {
        d.v.own = a->w[1].p;
        d.v.part = reinterpret_cast<float *>(l->work + at.other);
        d.inject = rows_of<float>(a->inject);
        d.n_inject = static_cast<int32_t>(a->w[1].dim[0]);
    }
    d.w = a->w[0].p;
    d.sums = reinterpret_cast<float *>(l->work + at.slices);
    d.arrived = l->sync;
    d.n_low = static_cast<int32_t>(a->w[0].dim[0]);
    d.k = static_cast<int32_t>(a->w[0].dim[1]);
    d.capacity = static_cast<int32_t>(rows);
    d.team = static_cast<int32_t>(stream_threads(a->s.dim[2]));
    return by_format<RunDown>(a->w[0].dtype, rows, d, pass_of(l, a->count, rows), l);
}

template <typename D, int N> struct RunSetup {
    static int32_t run()
    {
        const int32_t e = allow_shared(mix_fused<D, N>, kFusedShared);
        return e ? e : allow_shared(down_fused<D, N>, kDownShared);
    }
};

int32_t setup_hyper_fused()
{
    int32_t e = 0;
    for (const int32_t dtype : {SK_F16, SK_BF16, SK_Q8_0})
        for (const int32_t rows : {8, 16, 24, 40})
            if (!e) e = by_format<RunSetup>(dtype, rows);
    return e;
}

} // namespace sk
