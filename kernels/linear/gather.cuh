/* Single rows out of a packed table: out = scale * value, value = code * scale of its block + min.
 */
#pragma once

#include "kernels/linear/product.cuh"

namespace sk
{

struct GatherArgs {
    const uint8_t *table;
    const int32_t *ids;
    const int32_t *count;
    float *out;
    int64_t out_step;
    int32_t rows, k;
    float scale;
};

__device__ inline float pair_at(uint32_t word, int high)
{
    return __uint_as_float(high ? word & 0xFFFF0000u : word << 16);
}

/* Scale and minimum of a group as the definition has them: those of the unit are in them. */
template <typename D>
__device__ inline float whole_scale(const typename D::Frag &f, int b, int step, int half)
{
    float s = 1;
    if constexpr (D::kScaled) s = half ? D::scale(f, b, step, 1) : D::scale(f, b, step, 0);
    if constexpr (D::kSuper)
        return (half ? D::outer(f, 1) : D::outer(f, 0)) * s;
    else
        return s;
}

template <typename D>
__device__ inline float whole_min(const typename D::Frag &f, int b, int step, int half)
{
    const float m = half ? D::min(f, b, step, 1) : D::min(f, b, step, 0);
    if constexpr (D::kSuper)
        return (half ? D::outer_min(f, 1) : D::outer_min(f, 0)) * m;
    else
        return m;
}

/* Element j of the lane's eight, of row half `half`. Terms of one number add up exactly. */
template <typename D>
__device__ inline void decode_eight(const typename D::Frag &f, int b, int half,
                                    const TableOf<D> &table, float (&out)[8])
{
#pragma unroll
    for (int term = 0; term < D::kTerms; term++) {
        uint32_t a[8];
        D::codes(f, b, term, table, a);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const uint32_t low = a[2 * (j >> 1)], high = a[2 * (j >> 1) + 1];
            const float part = pair_at(half ? high : low, j & 1);
            out[j] = term == 0 ? part : out[j] + part; // a single term keeps the sign of its zero
        }
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int step = D::kGroup == 32 ? 0 : j >> 2;
        if constexpr (D::kScaled || D::kSuper) out[j] = out[j] * whole_scale<D>(f, b, step, half);
        if constexpr (D::kMin) out[j] = out[j] + whole_min<D>(f, b, step, half);
    }
}

/* One CTA a row, four lanes a unit. */
template <typename D> __global__ void __launch_bounds__(128) gather(const GatherArgs a)
{
    const int units = (a.k + 32 * D::kBlocks - 1) / (32 * D::kBlocks), t = threadIdx.x & 3;
    edge_wait();
    edge_open();
    if (static_cast<int>(blockIdx.x) >= live_rows(a.count, a.rows)) return;
    const int id = a.ids[blockIdx.x], lane = 4 * (id & 7) + t, half = (id >> 3) & 1;
    const TableOf<D> table(lane);
    const uint8_t *tile = a.table + static_cast<int64_t>(id >> 4) * units * D::kUnitBytes;
    for (int u = threadIdx.x >> 2; u < units; u += blockDim.x >> 2) {
        const typename D::Frag f =
            D::load(FromGlobal{tile + static_cast<int64_t>(u) * D::kUnitBytes}, lane);
#pragma unroll
        for (int b = 0; b < D::kBlocks; b++) {
            const int at = (u * D::kBlocks + b) * 32;
            float v[8];
            if (at >= a.k) break;
            decode_eight<D>(f, b, half, table, v);
            float *out = a.out + blockIdx.x * a.out_step + at;
#pragma unroll
            for (int j = 0; j < 8; j++) out[elem_in_block<D::kGroup>(t, j)] = a.scale * v[j];
        }
    }
}

} // namespace sk
