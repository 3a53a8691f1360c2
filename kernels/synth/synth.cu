/* Random weights where they are used (base/synth.h): a thread a block of the type, or an element. A
 * model is made once, at tens of times the rate that its packing takes, so the stores are bytes. */
#include "base/synth.h"
#include "kernels/sk_kernels.h"

#include "kernels/common/launch.cuh"

namespace sk
{

constexpr uint64_t kThreads = 256;
constexpr uint64_t kMost = (UINT64_C(1) << 31) - 1; // CTAs of a grid

__global__ void __launch_bounds__(kThreads)
    synth(const __grid_constant__ sk_synth s, uint64_t first, uint64_t n, uint8_t *out)
{
    const uint64_t at = kThreads * blockIdx.x + threadIdx.x;
    if (at < n) sk_synth_one(&s, first + at, out + at * static_cast<uint64_t>(s.block_bytes));
}

} // namespace sk

extern "C" int32_t sk_k_synth(const struct sk_synth *recipe, uint64_t first, uint64_t n,
                              uint8_t *out, struct CUstream_st *stream)
{
    sk_launch l = {};
    int32_t e = 0;
    l.stream = stream;
    for (uint64_t done = 0; done < n && e == 0;) {
        const uint64_t left = n - done, most = sk::kMost * sk::kThreads;
        const uint64_t now = left < most ? left : most;
        const auto ctas = static_cast<unsigned>((now + sk::kThreads - 1) / sk::kThreads);
        e = sk::launch(&l, sk::synth, dim3(ctas), dim3(sk::kThreads), 0, *recipe, first + done, now,
                       out + done * static_cast<uint64_t>(recipe->block_bytes));
        done += now;
    }
    return e;
}
