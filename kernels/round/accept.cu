/* Op `accept`. Matches up to 64 slots, 15 proposals and 32 stop ids; structures at any stride,
 * aligned as their types are. Sixteen lanes a slot, lane i has proposal i and the target's choice
 * in row i. Would be wrong if a slot had more than 16 rows. */
#include "kernels/sk_kernels.h"

#include "kernels/common/setup.cuh"
#include "kernels/round/accept.cuh"

namespace sk
{

__global__ void __launch_bounds__(kRoundThreads) accept_chain(accept_views v)
{
    edge_wait();
    edge_open();
    accept_drafts(v);
}

} // namespace sk

extern "C" int32_t sk_k_accept(const sk_accept_args *a, const sk_launch *l)
{
    const sk::accept_views v = sk::views_of(a);
    return sk::launch(l, sk::accept_chain, dim3(1), sk::round_block(v.n_slots), 0, v);
}

extern "C" int32_t sk_setup_accept(void) { return sk::prefer_shared_all(sk::accept_chain); }
