/* Products with very many outputs and a short K, as a vocabulary's: a warp keeps its unit of the
 * activations in registers while two tiles at a time stream past. Ends in the outputs themselves
 * or in the best of them. Same sums in the same order as narrow.cuh. */
#pragma once

#include "kernels/linear/single.cuh"

namespace sk
{

constexpr int kStreamTiles = 2;

/* CTAs on a multiprocessor. */
template <typename D, int N> constexpr int stream_residents()
{
    return N == 1 && D::kUnitBytes < 2048 ? 3 : 1;
}

/* Warps of a CTA at most: units of K. */
template <typename D, int N> constexpr int stream_warps()
{
    return stream_residents<D, N>() == 3 ? 10 : 12;
}

template <typename D, int N> struct StreamShared {
    static constexpr int kCols = 8 * N;
    static constexpr int kTile = 16 * kCols;
    static size_t bytes(int slices)
    {
        return sizeof(float) * slices * (2 * kStreamTiles * kTile + kCols) +
               sizeof(uint64_t) * kCols;
    }
};

/* A warp's unit of a tile; behind the last tile that one again. */
template <typename D>
__device__ inline typename D::Frag load_tile(const NarrowArgs &a, int tile, int units, int warp,
                                             int lane)
{
    const int64_t at = static_cast<int64_t>(min(tile, a.seg.n_tiles - 1)) * units + warp;
    return D::load(FromGlobal{a.seg.of[0].w + at * D::kUnitBytes}, lane);
}

/* Outputs of two tiles; best[c] is kept by one thread, lane 0 of its half warp. */
template <int N, bool Argmax>
__device__ inline void finish_tiles(const NarrowArgs &a, int tile, int live, const float *part,
                                    const float *squares, uint64_t *best)
{
    constexpr int kCols = 8 * N, kSlice = kStreamTiles * 16 * kCols;
    const int slices = blockDim.x >> 5, o = threadIdx.x & 15, n = live + (live & 1);
    const Segment &seg = a.seg.of[0];
    for (int c = threadIdx.x >> 4; c < n; c += blockDim.x >> 4) {
        const float factor = rsqrtf(fmaf(add_twelve(0, squares + c, kCols, slices), a.part, a.eps));
        uint64_t key = 0;
#pragma unroll
        for (int i = 0; i < kStreamTiles; i++) {
            const int out = (tile + i) * 16 + o;
            float sum = 0;
            for (int w = 0; w < slices; w++) sum += part[w * kSlice + (i * 16 + o) * kCols + c];
            if (out >= seg.n || c >= live) continue;
            sum *= factor;
            if (seg.bias) sum = sum + seg.bias[out];
            if constexpr (Argmax)
                key = best_of(key, best_key(sum, static_cast<uint32_t>(out)));
            else
                seg.y[(a.row0 + c) * seg.y_step + out] = sum;
        }
        if constexpr (Argmax) {
            key = best_of_16(key);
            if (o == 0 && c < live) best[c] = best_of(best[c], key);
        }
    }
}

template <typename D, int N>
__device__ inline void store_tile(float *part, int lane, int i, const Acc<D> (&acc)[N])
{
    constexpr int kCols = 8 * N;
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int n = 0; n < N; n++) {
        float *at = part + (i * 16 + g) * kCols + 8 * n + 2 * t;
        *reinterpret_cast<float2 *>(at) = make_float2(acc[n].slice[0], acc[n].slice[1]);
        *reinterpret_cast<float2 *>(at + 8 * kCols) = make_float2(acc[n].slice[2], acc[n].slice[3]);
    }
}

/* The activations of the warp's unit, rounded, and the sums of its blocks. */
template <typename D, int N> struct Kept {
    uint32_t x[D::kBlocks][N][4];
    float sums[D::kBlocks][N][2]; // of blocks, for minima
};

template <typename D, int N>
__device__ inline void keep_columns(Kept<D, N> &k, const NarrowArgs &a, int first, int lane,
                                    int groups, int last_row, float (&squares)[N])
{
    Columns<N, true> c[D::kBlocks];
#pragma unroll
    for (int b = 0; b < D::kBlocks; b++)
        load_columns<D, N, true>(c[b], a, 32 * (first + b), lane, groups, last_row);
#pragma unroll
    for (int b = 0; b < D::kBlocks; b++) {
        round_columns<N, true>(k.x[b], c[b], groups, squares);
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (D::kMin && n < groups) block_sums(k.sums[b][n], k.x[b][n]);
        }
    }
}

template <typename D, int N, bool Argmax>
__global__ void __launch_bounds__(32 * stream_warps<D, N>(), stream_residents<D, N>())
    stream(const NarrowArgs a)
{
    using Shared = StreamShared<D, N>;
    extern __shared__ float shared[];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, units = blockDim.x >> 5;
    const int first = warp * D::kBlocks, step = gridDim.x * kStreamTiles;
    float *squares_of = shared + 2 * units * kStreamTiles * Shared::kTile;
    uint64_t *best = reinterpret_cast<uint64_t *>(squares_of + units * Shared::kCols);
    typename D::Frag f[kStreamTiles];
    Kept<D, N> kept;
    float squares[N] = {};
    int live = a.rows_ready ? live_rows(a.count, a.row0 + a.rows) - a.row0 : 0, set = 0;
#pragma unroll
    for (int i = 0; i < kStreamTiles; i++)
        f[i] = load_tile<D>(a, blockIdx.x * kStreamTiles + i, units, warp, lane);
    for (int c = threadIdx.x; c < Shared::kCols; c += blockDim.x) best[c] = 0;
    edge_wait();
    edge_open();
    if (!a.rows_ready) live = live_rows(a.count, a.row0 + a.rows) - a.row0;
    live = max(live, 0);
    const int groups = (live + 7) / 8;
    keep_columns<D, N>(kept, a, first, lane, groups, max(live - 1, 0), squares);
    store_squares<N>(squares_of + warp * Shared::kCols, lane, squares);

    for (int tile = blockIdx.x * kStreamTiles; tile < a.seg.n_tiles && live > 0; tile += step) {
        float *part = shared + set * units * kStreamTiles * Shared::kTile;
#pragma unroll
        for (int i = 0; i < kStreamTiles; i++) {
            Acc<D> acc[N] = {};
            Block<D> k[D::kBlocks];
#pragma unroll
            for (int b = 0; b < D::kBlocks; b++) k[b] = decode_block<D>(f[i], b, NoTable());
            // On its way during all that follows.
            if (tile + step < a.seg.n_tiles)
                f[i] = load_tile<D>(a, tile + step + i, units, warp, lane);
#pragma unroll
            for (int b = 0; b < D::kBlocks; b++)
#pragma unroll
                for (int n = 0; n < N; n++) {
                    if (n >= groups) continue;
                    acc[n].add(k[b], kept.x[b][n]);
                    if (D::kMin) acc[n].add_min(k[b], kept.sums[b][n]);
                }
            store_tile<D, N>(part + warp * kStreamTiles * Shared::kTile, lane, i, acc);
        }
        __syncthreads();
        finish_tiles<N, Argmax>(a, tile, live, part, squares_of, best);
        set ^= 1;
    }
    if constexpr (Argmax) {
        for (int c = threadIdx.x >> 4; c < live; c += blockDim.x >> 4)
            if ((threadIdx.x & 15) == 0)
                atomicMax(reinterpret_cast<unsigned long long *>(a.keys + c),
                          static_cast<unsigned long long>(best[c]));
        finish_argmax(a.keys, a.id + a.row0, live, reinterpret_cast<int *>(shared));
    }
}

} // namespace sk
