/* Products for more than 40 rows, as in prefill: the same arithmetic in the same order as
 * narrow.cuh, so a prompt's rows get the bits that the decode path would give them. A CTA does 8
 * tiles of 16 outputs for 64 rows of the batch; a warp decodes its tile's weights once for all of
 * them, and walks the slices of K one after the other. Activations go through shared memory two
 * blocks at a time. */
#pragma once

#include "kernels/common/bulk.cuh"
#include "kernels/linear/narrow.cuh"

namespace sk
{

constexpr int kWideWarps = 8;
constexpr int kWideCols = 64;
constexpr int kWideStep =
    96; // elements between columns: wide loads of 8 columns hit all banks once

struct WideArgs {
    Segments seg;
    const uint16_t *x;
    int64_t x_step;
    const float *factor; // [rows] of the norm, or NULL
    const int32_t *count;
    int32_t rows;
    int32_t k;
    int32_t add;
};

/* Blocks [block, block + n) of 64 rows from `row` on; rows past the last one repeat it. */
__device__ inline void stage_columns(uint16_t *to, const WideArgs &a, int block, int n, int row,
                                     int last)
{
    for (int i = threadIdx.x; i < kWideCols * 4 * n; i += blockDim.x) {
        const int c = i / (4 * n), piece = i % (4 * n);
        const int k = block * 32 + piece * 8;
        if (k < a.k)
            copy_async16(to + c * kWideStep + piece * 8,
                         a.x + static_cast<int64_t>(min(row + c, last)) * a.x_step + k);
    }
    copy_async_commit();
}

template <typename D>
__device__ inline void wide_store(const WideArgs &a, int tile, int row, int live, int lane,
                                  const float (&sum)[8][4])
{
    const Segment seg = segment_of(a.seg, tile);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = row + 8 * n + 2 * (lane & 3) + (i & 1);
            const int out = (tile - seg.tile) * 16 + (lane >> 2) + 8 * (i >> 1);
            if (r >= live || out >= seg.n) continue;
            float y = a.factor ? sum[n][i] * a.factor[r] : sum[n][i] * 1.0f;
            if (seg.bias) y = y + seg.bias[out];
            float *at = seg.y + r * seg.y_step + out;
            *at = a.add ? *at + y : y;
        }
}

template <typename D> __global__ void __launch_bounds__(32 * kWideWarps, 1) wide(const WideArgs a)
{
    constexpr int kStage = D::kBlocks < 2 ? D::kBlocks : 2;
    __shared__ __align__(16) uint16_t columns[2][kWideCols * kWideStep];
    const Slices s = slices_of<D>(a.k);
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int tile = blockIdx.x * kWideWarps + warp, row = blockIdx.y * kWideCols;
    const int n_blocks = s.units * D::kBlocks;
    const TableOf<D> table(lane);
    float total[8][4] = {};
    Acc<D> acc[8] = {};
    UnitSums<D> unit_sums[8] = {};
    const int own = tile < a.seg.n_tiles ? tile : 0; // a warp without a tile does the first one
    const Outside<D> outside(segment_of(a.seg, own), own, lane, a.k);
    typename D::Frag f[1];
    int at = 0;
    edge_wait();
    edge_open();
    const int live = live_rows(a.count, a.rows);
    if (row >= live) return;

    stage_columns(columns[0], a, 0, kStage, row, live - 1);
    for (int u = 0; u < s.units; u++) {
        load_frags<D, 1>(f, a.seg, own, u, s.units, lane);
#pragma unroll
        for (int b = 0; b < D::kBlocks; b += kStage, at += kStage) {
            const uint16_t *now = columns[(at / kStage) & 1];
            if (at + kStage < n_blocks)
                stage_columns(columns[(at / kStage + 1) & 1], a, at + kStage, kStage, row,
                              live - 1);
            else
                copy_async_commit();
            copy_async_wait<1>();
            __syncthreads();
#pragma unroll
            for (int i = 0; i < kStage; i++) {
                if ((at + i) * 32 >= a.k) break;
                Block<D> k = decode_block<D>(f[0], b + i, table);
                outside.apply(k, (at + i) * 32);
#pragma unroll
                for (int n = 0; n < 8; n++) {
                    uint32_t x[4];
                    float sums[2];
                    shared_act<D::kGroup>(x, now + (8 * n + (lane >> 2)) * kWideStep + 32 * i,
                                          lane & 3);
                    acc[n].add(k, x);
                    unit_sums[n].keep(b + i, x, lane);
                    if (!D::kMin || D::kSuper) continue;
                    block_sums(sums, x);
                    acc[n].add_min(k, sums);
                }
            }
            __syncthreads();
        }
#pragma unroll
        for (int n = 0; n < 8; n++) acc[n].end_unit(f[0], unit_sums[n], lane & 3);
        if ((u + 1) % s.per == 0 || u + 1 == s.units) {
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    total[n][i] += acc[n].slice[i];
                    acc[n].slice[i] = 0;
                }
        }
    }
    if (tile < a.seg.n_tiles) wide_store<D>(a, tile, row, live, lane, total);
}

/* What a folded norm leaves to the wide product: BF16(x * gain) and the factor of each row, by the
 * sums that the narrow kernel forms. A CTA does 8 rows, a warp a slice of K. */
struct NormActArgs {
    const float *x;
    int64_t x_step;
    const float *gain;
    const int32_t *count;
    int32_t rows, k;
    float part; // 1 / k
    float eps;
    uint16_t *act; // [rows, k]
    float *factor; // [rows]
};

template <typename D>
__global__ void __launch_bounds__(32 * kMaxSlices, 1) norm_rows(const NormActArgs a)
{
    __shared__ float squares_of[32 * 8];
    const Slices s = slices_of<D>(a.k);
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3;
    const int first = warp * s.per * D::kBlocks;
    const int end = min(min(warp * s.per + s.per, s.units) * D::kBlocks, a.k / 32);
    float squares = 0;
    edge_wait();
    edge_open();
    const int live = live_rows(a.count, a.rows);
    const int mine = blockIdx.x * 8 + (lane >> 2), row = min(mine, max(live - 1, 0));
    if (static_cast<int>(blockIdx.x) * 8 >= live) return;
    for (int b = first; b < end; b++) {
        float x[8], gain[8];
        uint32_t act[4];
        load_f32<D::kGroup>(gain, a.gain + 32 * b, t);
        load_f32<D::kGroup>(x, a.x + row * a.x_step + 32 * b, t);
        norm_act(act, x, gain, &squares);
        if (mine >= live) continue;
        uint16_t *to = a.act + static_cast<int64_t>(mine) * a.k + 32 * b;
        if constexpr (D::kGroup == 32) {
            *reinterpret_cast<uint4 *>(to + 8 * t) = make_uint4(act[0], act[1], act[2], act[3]);
        } else {
            *reinterpret_cast<uint2 *>(to + 4 * t) = make_uint2(act[0], act[1]);
            *reinterpret_cast<uint2 *>(to + 16 + 4 * t) = make_uint2(act[2], act[3]);
        }
    }
    squares = quad_sum(squares);
    if (t == 0) squares_of[warp * 8 + (lane >> 2)] = squares;
    __syncthreads();
    if (threadIdx.x < 8 && static_cast<int>(blockIdx.x * 8 + threadIdx.x) < live)
        a.factor[blockIdx.x * 8 + threadIdx.x] =
            norm_factor(squares_of + threadIdx.x, s.n, 8, a.part, a.eps);
}

} // namespace sk
