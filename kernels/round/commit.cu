/* Op `commit`. Matches up to 64 slots; structures at any stride, aligned as their types are.
 * Sixteen lanes a slot: lane i has token i, counters i and 9 + i, and words i and 16 + i of what is
 * emptied. Would be wrong if pending.n or a licence made more than 16 rows kept. */
#include "kernels/sk_kernels.h"

#include "kernels/common/setup.cuh"
#include "kernels/round/commit.cuh"

namespace sk
{

__global__ void __launch_bounds__(kRoundThreads) commit_slots(commit_views v)
{
    edge_wait();
    edge_open();
    commit_pending(v);
}

} // namespace sk

extern "C" int32_t sk_k_commit(const sk_commit_args *a, const sk_launch *l)
{
    const sk::commit_views v = sk::views_of(a);
    return sk::launch(l, sk::commit_slots, dim3(1), sk::round_block(v.n_slots), 0, v);
}

extern "C" int32_t sk_setup_commit(void) { return sk::prefer_shared_all(sk::commit_slots); }
