/* Of the second half of a hyper-connection: a warp with the packed weights of one tile of 16
 * outputs in shared memory, which it asks for ahead of the dependency wait, and their products with
 * up to 40 rows in the order of linear (product.cuh), so that a row has the bits that linear
 * gives it. Formats whose scales are no steps of a unit's. */
#pragma once

#include "kernels/common/bulk.cuh"
#include "kernels/hyper/mix.cuh"
#include "kernels/hyper/sizes.h"
#include "kernels/linear/product.cuh"

namespace sk
{

constexpr int32_t kFusedRows = SK_HYPER_FUSED_ROWS;
constexpr int32_t kFusedWarps = 4;

/* `bytes`, a multiple of 16, by one warp. */
__device__ inline void copy_by_warp(uint8_t *shared, const uint8_t *global, int32_t bytes)
{
    for (int32_t i = 16 * (static_cast<int32_t>(threadIdx.x) % 32); i < bytes; i += 512)
        copy_async16(reinterpret_cast<uint16_t *>(shared + i),
                     reinterpret_cast<const uint16_t *>(global + i));
}

/* Activations of a block, for the warp's product: of the column that the lane has in each group. */
struct GlobalActs {
    rows<const uint16_t> x;
    int32_t last; // row
    template <int Group>
    __device__ void load(uint32_t (&to)[4], int32_t row, int32_t k, int t) const
    {
        load_act<Group>(to, x[min(row, last)] + k, t);
    }
};

/* Sums of `units` units that begin with a slice, of which `per` are one: slices ascending, from
 * zero. A row of activations has k elements from the first unit on. */
template <typename D, int N, typename Acts>
__device__ inline void tile_sums(float (&total)[N][4], const uint8_t *weights, int32_t units,
                                 int32_t per, int32_t k, int32_t groups, const Acts &acts)
{
    static_assert(!D::kSuper && !D::kMin, "sums of units");
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    const NoTable no_table;
    Acc<D> acc[N] = {};
    for (int32_t u = 0; u < units; u++) {
        const typename D::Frag f =
            D::load(FromShared{weights + u * static_cast<int32_t>(D::kUnitBytes)}, lane);
#pragma unroll
        for (int32_t b = 0; b < D::kBlocks; b++) {
            const int32_t at = 32 * (u * D::kBlocks + b);
            if (at >= k) continue; // of a half-filled last unit
            const Block<D> block = decode_block<D>(f, b, no_table);
#pragma unroll
            for (int32_t n = 0; n < N; n++) {
                uint32_t x[4];
                if (n >= groups) continue;
                acts.template load<D::kGroup>(x, 8 * n + (lane >> 2), at, lane & 3);
                acc[n].add(block, x);
            }
        }
        if ((u + 1) % per && u + 1 < units) continue;
#pragma unroll
        for (int32_t n = 0; n < N; n++)
#pragma unroll
            for (int32_t i = 0; i < 4; i++) {
                total[n][i] += acc[n].slice[i];
                acc[n].slice[i] = 0;
            }
    }
}

} // namespace sk
