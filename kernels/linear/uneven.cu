/* The kernel of uneven.cuh for F32, F16 and BF16. Matches any K and any row stride, activations
 * BF16. Wrong if there were more than 524,280 rows, the most that a grid has. */
#include "kernels/linear/uneven.cuh"

#include "kernels/common/setup.cuh"

namespace sk
{

template <typename D> int32_t run_uneven(const UnevenArgs &a, const sk_launch *l)
{
    const dim3 grid(static_cast<unsigned>((a.seg.n_tiles + kUnevenWarps - 1) / kUnevenWarps),
                    static_cast<unsigned>((a.rows + 7) / 8));
    return launch(l, uneven<D>, grid, dim3(32 * kUnevenWarps), 0, a);
}

int32_t launch_uneven(int32_t dtype, const UnevenArgs &a, const sk_launch *l)
{
    switch (dtype) {
    case SK_F32:
        return run_uneven<FormatF32>(a, l);
    case SK_F16:
        return run_uneven<FormatF16>(a, l);
    case SK_BF16:
        return run_uneven<FormatBF16>(a, l);
    default:
        return static_cast<int32_t>(cudaErrorInvalidValue);
    }
}

int32_t setup_uneven()
{
    return prefer_shared_all(uneven<FormatF32>, uneven<FormatF16>, uneven<FormatBF16>);
}

} // namespace sk
