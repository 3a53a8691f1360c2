/* Op `hyper_mix` in one launch, for F16, BF16 and Q8_0. Matches up to 40 rows aligned to 16 bytes,
 * streams of whole tiles of 16 columns. The rest is not refused but left to hyper.cu, with the same
 * bits. */
#include "kernels/hyper/fused.h"

#include "kernels/common/setup.cuh"
#include "kernels/hyper/mix_fused.cuh"
#include "kernels/hyper/sizes.h"

namespace sk
{

constexpr size_t kFusedShared = 227 * 1024;

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

template <typename D, int N> struct RunSetup {
    static int32_t run() { return allow_shared(mix_fused<D, N>, kFusedShared); }
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
