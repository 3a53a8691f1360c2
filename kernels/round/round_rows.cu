/* Op `round_rows`. Matches up to 64 slots and 16 rows a slot, any capacity; structures at any
 * stride, aligned as their types are. Sixteen lanes a slot, lane i has row i; one warp places the
 * slots. Would be wrong if the width were above 16. */
#include "kernels/sk_kernels.h"

#include "kernels/common/setup.cuh"
#include "kernels/round/round_rows.cuh"

namespace sk
{

__global__ void __launch_bounds__(kRoundThreads) build_rows(table_views v)
{
    edge_wait();
    edge_open();
    fill_rows(v);
}

} // namespace sk

extern "C" int32_t sk_k_round_rows(const sk_round_rows_args *a, const sk_launch *l)
{
    const sk::table_views v = sk::views_of(a);
    return sk::launch(l, sk::build_rows, dim3(1), sk::round_block(v.n_slots), 0, v);
}

extern "C" int32_t sk_setup_round_rows(void) { return sk::prefer_shared_all(sk::build_rows); }
