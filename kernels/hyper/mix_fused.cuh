/* hyper_mix in one launch, for up to 40 rows: a CTA has 16 columns of the result, and for each
 * stream the tile of the product that gates them. */
#pragma once

#include "kernels/hyper/tile.cuh"

namespace sk
{

struct fused_mix {
    mix_views v; // without z
    rows<const uint16_t> low;
    const uint8_t *w; // packed
    int32_t k;        // columns of it
};

/* In shared memory: weights [S][units of K], gates [S][16][columns], streams [S][columns][16],
 * gains [S][16], factors [columns][S]. */
template <typename D, int N> struct FusedMixRoom {
    static constexpr int32_t kCols = 8 * N;
    static constexpr int32_t kOfStream = 4 * (2 * 16 * kCols + 16 + kCols);

    __host__ __device__ static int32_t weight_bytes(int32_t k)
    {
        return (k + 32 * D::kBlocks - 1) / (32 * D::kBlocks) * D::kUnitBytes;
    }
    __host__ __device__ static int64_t bytes(int32_t streams, int32_t k)
    {
        return static_cast<int64_t>(streams) * (weight_bytes(k) + kOfStream);
    }
};

/* Tiles of all streams and their gains: constants. */
template <typename D, int N>
__device__ inline void ask_weights(const fused_mix &a, uint8_t *weights, float *gains)
{
    const int32_t of_stream = FusedMixRoom<D, N>::weight_bytes(a.k), tiles = a.v.n / 16;
    const int32_t tile = static_cast<int32_t>(blockIdx.x), t = static_cast<int32_t>(threadIdx.x);
    for (int32_t i = t / 32; i < a.v.n_streams; i += kFusedWarps)
        copy_by_warp(weights + i * of_stream,
                     a.w + (static_cast<int64_t>(i) * tiles + tile) * of_stream, of_stream);
    for (int32_t i = t; i < 4 * a.v.n_streams; i += 32 * kFusedWarps)
        copy_async16(reinterpret_cast<uint16_t *>(gains + 4 * i),
                     reinterpret_cast<const uint16_t *>(
                         a.v.gain + static_cast<int64_t>(i / 4) * a.v.n + 16 * tile + 4 * (i % 4)));
    copy_async_commit();
}

/* The CTA's columns of all streams of all rows, and the factors. */
template <int Cols>
__device__ inline void ask_streams(const mix_views &v, int32_t live, float *streams, float *factors)
{
    const int32_t tile = static_cast<int32_t>(blockIdx.x), n = v.n_streams * live;
    for (int32_t k = static_cast<int32_t>(threadIdx.x); k < 4 * n; k += 32 * kFusedWarps) {
        const int32_t i = k / 4 % v.n_streams, r = k / 4 / v.n_streams;
        copy_async16(reinterpret_cast<uint16_t *>(streams + (i * Cols + r) * 16 + 4 * (k % 4)),
                     reinterpret_cast<const uint16_t *>(v.s.at(r, i) + 16 * tile + 4 * (k % 4)));
    }
    copy_async_commit();
    for (int32_t k = static_cast<int32_t>(threadIdx.x); k < n; k += 32 * kFusedWarps)
        factors[k] = v.factor[k / v.n_streams][k % v.n_streams];
}

template <int N>
__device__ inline void store_sums(float *to, const float (&sums)[N][4]) // [16][8 N]
{
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    float *at = to + (lane >> 2) * (8 * N) + 2 * (lane & 3);
#pragma unroll
    for (int32_t n = 0; n < N; n++)
#pragma unroll
        for (int32_t i = 0; i < 4; i++) at[64 * N * (i >> 1) + 8 * n + (i & 1)] = sums[n][i];
}

/* Grid: tiles of 16 columns. */
template <typename D, int N>
__global__ void __launch_bounds__(32 * kFusedWarps, 1) mix_fused(const fused_mix a, pass p)
{
    extern __shared__ __align__(16) uint8_t bytes[];
    using Room = FusedMixRoom<D, N>;
    constexpr int32_t kCols = Room::kCols;
    const int32_t streams = a.v.n_streams, of_stream = Room::weight_bytes(a.k);
    const Slices s = slices_of<D>(a.k);
    float *gates = reinterpret_cast<float *>(bytes + streams * of_stream);
    float *rows_of_streams = gates + streams * 16 * kCols;
    float *gains = rows_of_streams + streams * 16 * kCols, *factors = gains + streams * 16;
    ask_weights<D, N>(a, bytes, gains);
    const int32_t live = wait_rows(p), groups = (live + 7) / 8;
    ask_streams<kCols>(a.v, live, rows_of_streams, factors);
    copy_async_wait<1>();
    __syncwarp();
    for (int32_t i = static_cast<int32_t>(threadIdx.x) / 32; i < streams && live > 0;
         i += kFusedWarps) {
        float sums[N][4] = {};
        tile_sums<D, N>(sums, bytes + i * of_stream, s.units, s.per, a.k, groups,
                        GlobalActs{a.low, live - 1});
        store_sums<N>(gates + i * 16 * kCols, sums);
    }
    copy_async_wait<0>();
    __syncthreads();
    for (int32_t k = static_cast<int32_t>(threadIdx.x); k < 16 * live; k += 32 * kFusedWarps) {
        const int32_t o = k % 16, c = k / 16;
        float sum = 0;
        for (int32_t i = 0; i < streams; i++)
            sum = mixed(sum, gates[(i * 16 + o) * kCols + c],
                        rows_of_streams[(i * kCols + c) * 16 + o], factors[c * streams + i],
                        gains[i * 16 + o]);
        put(a.v.out[c] + 16 * static_cast<int32_t>(blockIdx.x) + o,
            __fdiv_rn(sum, static_cast<float>(streams)));
    }
}

} // namespace sk
