/* Op `publish`. Matches up to 64 slots and a ring in mapped host memory or in device memory,
 * aligned to 8 bytes.
 *
 * The record is put together in shared memory and goes out as consecutive words, the entries of
 * slots that exist only: the rest of the ring is zero from the start and never written. Then one
 * fence, then the two sequence numbers, in either order: a host that has read both with acquire
 * order sees the whole record, as both come after the fence. Would be wrong if the host took one of
 * them for enough to start reusing the entry, or if anyone else wrote the ring. */
#include "kernels/sk_kernels.h"

#include "kernels/common/setup.cuh"
#include "kernels/round/publish.cuh"

namespace sk
{

__global__ void __launch_bounds__(kRoundThreads) publish_round(publish_views v)
{
    edge_wait();
    edge_open();
    publish_record(v);
}

} // namespace sk

extern "C" int32_t sk_k_publish(const sk_publish_args *a, const sk_launch *l)
{
    const sk::publish_views v = sk::views_of(a);
    return sk::launch(l, sk::publish_round, dim3(1), sk::round_block(v.n_slots), 0, v);
}

extern "C" int32_t sk_setup_publish(void) { return sk::prefer_shared_all(sk::publish_round); }
