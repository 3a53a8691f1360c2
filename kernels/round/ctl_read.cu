/* Op `ctl_read`. Matches a ring in device memory or in mapped host memory, aligned to 8 bytes, of
 * any number of entries.
 *
 * The host has written the whole entry before it submits the round, and leaves it alone until the
 * round is published; so all words come in one trip, and the two sequence numbers only tell whether
 * it is this round's. Would be wrong if the host wrote an entry while its round may be running. */
#include "kernels/sk_kernels.h"

#include "kernels/common/setup.cuh"
#include "kernels/round/ctl_read.cuh"

namespace sk
{

__global__ void __launch_bounds__(kCtlThreads) control_kernel(control_views v)
{
    edge_wait();
    edge_open();
    read_control(v);
}

} // namespace sk

extern "C" int32_t sk_k_ctl_read(const sk_ctl_read_args *a, const sk_launch *l)
{
    return sk::launch(l, sk::control_kernel, dim3(1), dim3(sk::kCtlThreads), 0, sk::views_of(a));
}

extern "C" int32_t sk_setup_ctl_read(void) { return sk::prefer_shared_all(sk::control_kernel); }
