/* Launchers of the floor harness. Any size that is a multiple of 16, any SM; the grids are of one
 * wave, so a range must not be longer than 2^63 bytes. */
#include "kernels/floor/floor.h"

#include "kernels/floor/floor.cuh"

namespace
{

sk_launch plain(const sk_f_launch *l)
{
    sk_launch out = {};
    out.stream = l->stream;
    out.n_sm = l->n_sm;
    out.edge = l->edge;
    return out;
}

template <int THREADS, int PER_SM, int N>
int32_t read_as(const uint8_t *p, uint64_t bytes, uint32_t *sink, const sk_f_launch *l)
{
    const sk_launch to = plain(l);
    const dim3 grid(static_cast<unsigned>(l->n_sm) * PER_SM);
    return sk::launch(&to, sk::floor_read<THREADS, PER_SM, N>, grid, dim3(THREADS), 0,
                      reinterpret_cast<const uint4 *>(p), static_cast<int64_t>(bytes / 16), sink);
}

} // namespace

extern "C" int32_t sk_f_has_edges(void)
{
    cudaFuncAttributes a = {};
    const cudaError_t e = cudaFuncGetAttributes(&a, sk::floor_empty);
    if (e != cudaSuccess) return -static_cast<int32_t>(e);
    return a.ptxVersion >= 90 ? 1 : 0; // what __CUDA_ARCH__ was
}

extern "C" int32_t sk_f_random(uint8_t *p, uint64_t bytes, uint64_t seed, const sk_f_launch *l)
{
    const sk_launch to = plain(l);
    return sk::launch(&to, sk::floor_random, dim3(static_cast<unsigned>(l->n_sm) * 8),
                      dim3(sk::kFloorThreads), 0, reinterpret_cast<ulonglong2 *>(p),
                      static_cast<int64_t>(bytes / 16), seed);
}

extern "C" int32_t sk_f_read(const uint8_t *p, uint64_t bytes, int32_t shape, uint32_t *sink,
                             const sk_f_launch *l)
{
    typedef int32_t (*reader)(const uint8_t *, uint64_t, uint32_t *, const sk_f_launch *);
#define X(threads, per_sm, loads) read_as<threads, per_sm, loads>,
    static const reader readers[] = {SK_F_SHAPES(X)};
#undef X
    const int32_t n = static_cast<int32_t>(sizeof readers / sizeof readers[0]);
    if (shape < 0 || shape >= n) return static_cast<int32_t>(cudaErrorInvalidValue);
    return readers[shape](p, bytes, sink, l);
}

extern "C" int32_t sk_f_empty(uint32_t never, uint32_t *sink, const sk_f_launch *l)
{
    const sk_launch to = plain(l);
    return sk::launch(&to, sk::floor_empty, dim3(static_cast<unsigned>(l->n_sm)),
                      dim3(sk::kFloorThreads), 0, never, sink);
}

extern "C" int32_t sk_f_barrier(uint32_t *count, int32_t n, int32_t per_sm, const sk_f_launch *l)
{
    // Cooperative: all blocks run at the same time, or the launch is refused.
    cudaLaunchAttribute together[1] = {};
    cudaLaunchConfig_t cfg = {};
    together[0].id = cudaLaunchAttributeCooperative;
    together[0].val.cooperative = 1;
    cfg.gridDim = dim3(static_cast<unsigned>(l->n_sm) * static_cast<unsigned>(per_sm));
    cfg.blockDim = dim3(sk::kFloorThreads);
    cfg.stream = l->stream;
    cfg.attrs = together;
    cfg.numAttrs = 1;
    return static_cast<int32_t>(cudaLaunchKernelEx(&cfg, sk::floor_barrier, count, n));
}
