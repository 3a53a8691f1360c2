/* sk_k_setup and sk_k_has_edges. Match any device that the objects have code for. Wrong if this
 * file were compiled for other architectures than the kernels: has_edges looks at its own kernel
 * and takes it for all of them. */
#include "kernels/sk_kernels.h"

#include "kernels/common/launch.cuh"
#include "kernels/common/setup.h"

namespace sk
{

__global__ void __launch_bounds__(32) edge_probe()
{
    edge_wait();
    edge_open();
}

} // namespace sk

extern "C" int32_t sk_k_setup(void)
{
    int32_t rc = 0;
#define SK_SETUP(name)                                                                             \
    if (rc == 0) rc = sk_setup_##name();
    SK_SETUPS(SK_SETUP)
#undef SK_SETUP
    return rc;
}

/* The wait is in the code when the virtual architecture had it; a multiprocessor that has it may
 * still run code compiled from older PTX. */
extern "C" int32_t sk_k_has_edges(void)
{
    cudaFuncAttributes attr = {};
    const cudaError_t rc = cudaFuncGetAttributes(&attr, sk::edge_probe);
    if (rc != cudaSuccess) return -static_cast<int32_t>(rc);
    return attr.ptxVersion >= 90 ? 1 : 0;
}
