/* Products of plain weights whose rows are no whole number of blocks of 32, as those of small
 * models: off the path of everything that is large. A warp has a tile of 16 outputs and eight rows
 * of the batch and walks K in the order of product.cuh; the last block is filled up with zeros,
 * those of the weights by packing, those of the activations here. */
#pragma once

#include "kernels/linear/narrow.cuh"

namespace sk
{

struct UnevenArgs {
    Segments seg;
    const uint16_t *x; // BF16
    int64_t x_step;
    const int32_t *count;
    int32_t rows, k;
    int32_t add; // to y, instead of storing
};

constexpr int kUnevenWarps = 4;

/* load_act of a row that may end within the block; x is at element `at`. */
__device__ inline void load_act_of(uint32_t (&to)[4], const uint16_t *x, int at, int k, int t)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int j = 8 * t + 2 * i;
        const uint32_t low = at + j < k ? x[j] : 0, high = at + j + 1 < k ? x[j + 1] : 0;
        to[i] = low | high << 16;
    }
}

template <typename D>
__device__ inline void uneven_store(const UnevenArgs &a, int tile, int row, int live, int lane,
                                    const float (&sum)[4])
{
    const Segment seg = segment_of(a.seg, tile);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int r = row + 2 * (lane & 3) + (i & 1);
        const int out = (tile - seg.tile) * 16 + (lane >> 2) + 8 * (i >> 1);
        if (r >= live || out >= seg.n) continue;
        const float y = seg.bias ? sum[i] + seg.bias[out] : sum[i];
        float *at = seg.y + r * seg.y_step + out;
        *at = a.add ? *at + y : y;
    }
}

/* Grid: fours of tiles, groups of eight rows. */
template <typename D>
__global__ void __launch_bounds__(32 * kUnevenWarps) uneven(const UnevenArgs a)
{
    static_assert(!D::kMin && !D::kSuper && D::kGroup == 32 && !kOutside<D>, "plain numbers");
    const Slices s = slices_of<D>(a.k);
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int tile = blockIdx.x * kUnevenWarps + warp, row = blockIdx.y * 8;
    float total[4] = {};
    Acc<D> acc = {};
    edge_wait();
    edge_open();
    const int live = live_rows(a.count, a.rows);
    if (row >= live || tile >= a.seg.n_tiles) return;
    const uint16_t *x = a.x + min(row + (lane >> 2), live - 1) * a.x_step;
    for (int u = 0; u < s.units; u++) {
        typename D::Frag f[1];
        load_frags<D, 1>(f, a.seg, tile, u, s.units, lane);
#pragma unroll
        for (int b = 0; b < D::kBlocks; b++) {
            const int at = (u * D::kBlocks + b) * 32;
            uint32_t act[4];
            if (at >= a.k) break;
            load_act_of(act, x + at, at, a.k, lane & 3);
            acc.add(decode_block<D>(f[0], b, NoTable()), act);
        }
        if ((u + 1) % s.per != 0 && u + 1 < s.units) continue;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            total[i] += acc.slice[i];
            acc.slice[i] = 0;
        }
    }
    uneven_store<D>(a, tile, row, live, lane, total);
}

/* For types that sk_has_uneven. */
int32_t launch_uneven(int32_t dtype, const UnevenArgs &a, const sk_launch *l);
int32_t setup_uneven();

} // namespace sk
