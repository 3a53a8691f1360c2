/* Op `argmax`. Matches any shape and stride; rows that are aligned to 16 bytes are read so. Several
 * CTAs share a row, and the last of them writes the index; the maximum of keys does not depend on
 * how a row is cut. Would be wrong if there were more than 65535 rows, or if sk_launch.sync were
 * not zero before the step. */
#include "kernels/sk_kernels.h"

#include "kernels/common/combine.cuh"
#include "kernels/common/rows.cuh"
#include "kernels/common/setup.cuh"

namespace sk
{

constexpr int kBestThreads = 256;
constexpr int kBestQuads = 4; // quads of a thread, all in flight
constexpr uint32_t kBestShare = 4 * kBestQuads * kBestThreads;

struct argmax_views {
    rows<const float> x;
    int32_t *id;
    best_cell *cells; // [P], where a row has several CTAs
    uint32_t n;
    int32_t wide; // rows are whole, aligned quads
};

__device__ inline uint64_t best_of_quad(float4 q, uint32_t i)
{
    return best_of(best_of(best_key(q.x, i), best_key(q.y, i + 1)),
                   best_of(best_key(q.z, i + 2), best_key(q.w, i + 3)));
}

/* Elements begin .. begin + kBestShare - 1; a NaN stands for those that lie past the end, where
 * even of nothing but NaN a lower index wins. */
__device__ inline uint64_t best_wide(const float *x, uint32_t begin, uint32_t n)
{
    const float none = __uint_as_float(0x7fffffffu);
    float4 q[kBestQuads];
    uint64_t best = 0;
#pragma unroll
    for (uint32_t k = 0; k < kBestQuads; k++) {
        const uint32_t i = begin + 4 * (k * kBestThreads + threadIdx.x);
        q[k] =
            i < n ? *reinterpret_cast<const float4 *>(x + i) : make_float4(none, none, none, none);
    }
#pragma unroll
    for (uint32_t k = 0; k < kBestQuads; k++)
        best = best_of(best, best_of_quad(q[k], begin + 4 * (k * kBestThreads + threadIdx.x)));
    return best;
}

__device__ inline uint64_t best_narrow(const float *x, uint32_t begin, uint32_t n)
{
    const uint32_t end = min(begin + static_cast<uint32_t>(kBestShare), n);
    uint64_t best = 0;
#pragma unroll 8
    for (uint32_t i = begin + threadIdx.x; i < end; i += kBestThreads)
        best = best_of(best, best_key(x[i], i));
    return best;
}

/* Grid: CTAs of a row, rows. */
__global__ void __launch_bounds__(kBestThreads) best_of_rows(argmax_views v, pass p)
{
    __shared__ uint64_t room[kBestThreads / 32];
    const int32_t r = blockIdx.y;
    if (r >= wait_rows(p)) return;
    const float *x = v.x[r];
    uint64_t key = 0;
    for (uint32_t at = blockIdx.x * kBestShare; at < v.n; at += gridDim.x * kBestShare)
        key = best_of(key, v.wide ? best_wide(x, at, v.n) : best_narrow(x, at, v.n));
    key = best_of_block(key, room);
    if (threadIdx.x > 0) return;
    if (best_of_blocks(v.cells + r, gridDim.x, &key)) v.id[r] = best_index(key);
}

/* CTAs that share a row: a step of each thread's loads, unless many rows fill the device anyway. */
inline unsigned argmax_parts(int64_t n, int64_t n_rows, int32_t n_sm)
{
    const int64_t most = 4 * static_cast<int64_t>(n_sm) / n_rows;
    const int64_t parts = (n + kBestShare - 1) / kBestShare;
    if (n_rows > kCells || most < 1) return 1;
    return static_cast<unsigned>(parts < most ? parts : most);
}

} // namespace sk

extern "C" int32_t sk_k_argmax(const sk_argmax_args *a, const sk_launch *l)
{
    const int64_t n_rows = a->x.dim[0];
    const sk::argmax_views v = {
        sk::rows_of<const float>(a->x),
        sk::ptr<int32_t>(a->id),
        reinterpret_cast<sk::best_cell *>(l->sync),
        static_cast<uint32_t>(a->x.dim[1]),
        a->x.dim[1] % 4 == 0 && sk::row_aligned(a->x, 16),
    };
    const dim3 grid(sk::argmax_parts(v.n, n_rows, l->n_sm), static_cast<unsigned>(n_rows));
    return sk::launch(l, sk::best_of_rows, grid, dim3(sk::kBestThreads), 0, v,
                      sk::pass_of(l, a->count, n_rows));
}

extern "C" int32_t sk_setup_argmax(void) { return sk::prefer_shared_all(sk::best_of_rows); }
