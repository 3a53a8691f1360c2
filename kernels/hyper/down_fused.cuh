/* hyper_down in one launch, for up to 40 rows, with w[1] absent or in F32. The first CTAs have a
 * stream of a row each: its factor, and its part of w[1]. Each of the others has four tiles of w[0]
 * and one slice of K, which lies within a stream: it rounds the streams' elements to what the
 * products take, and leaves sums of the slice in scratch. Whoever comes last to four tiles, all
 * slices and factors being there, adds the slices up and sums over the streams. */
#pragma once

#include "kernels/hyper/tile.cuh"

namespace sk
{

constexpr int32_t kFusedTiles = kFusedWarps; // of a CTA, one a warp
constexpr int32_t kFusedPad = 8;             // elements behind a row of activations

struct fused_down {
    down_views v;     // `own`, or NULL; `part`
    const uint8_t *w; // packed [R, S*D]
    float *sums;      // [slices][rows][16 * tiles]
    rows<__nv_bfloat16> low;
    rows<float> inject;
    uint32_t *arrived; // [groups of tiles] zero, and zero again at the end
    int32_t n_low, n_inject, k;
    int32_t capacity; // rows
    int32_t team;     // threads that rms_norm has for a stream
};

struct DownShape {
    int32_t tiles, groups, slices, of_stream, elems; // slices of a stream, elements of a slice
};

template <typename D> __host__ __device__ inline DownShape down_shape(const fused_down &a)
{
    const Slices s = slices_of<D>(a.k);
    const int32_t tiles = (a.n_low + 15) / 16;
    return {tiles, (tiles + kFusedTiles - 1) / kFusedTiles, s.n, s.n / a.v.n_streams,
            s.per * 32 * D::kBlocks};
}

/* In shared memory: weights [4 tiles][units of a slice], activations [columns][a slice]. */
template <typename D, int N> struct FusedDownRoom {
    __host__ __device__ static int32_t weight_bytes(int32_t elems)
    {
        return elems / (32 * D::kBlocks) * D::kUnitBytes;
    }
    __host__ __device__ static int64_t bytes(int32_t elems)
    {
        return static_cast<int64_t>(kFusedTiles) * weight_bytes(elems) +
               2 * 8 * N * (elems + kFusedPad);
    }
};

/* What it has in shared memory beside that, by itself. */
struct DownOwn {
    double squares[32]; // by warp of scale_streams
    float own[kOwnOutputs][32];
    uint32_t last;
};

/* ---- a stream of a row ----------------------------------------------------------------------- */

/* What lane `t.lane` of scale_streams adds up for w[1]. */
__device__ inline void own_lane(float (&acc)[kOwnOutputs], const down_views &v, const float *s,
                                const float *gain, int32_t first, const team &t)
{
    for (int32_t k = 4 * t.lane; k < v.n; k += 4 * t.size) {
        const float4 x = load_quad(s, k, v.n, v.wide), g = load_quad(gain, k, v.n, v.wide);
        add_own(acc, v, first + k,
                make_float4(bf16_rounded(__fmul_rn(x.x, g.x)), bf16_rounded(__fmul_rn(x.y, g.y)),
                            bf16_rounded(__fmul_rn(x.z, g.z)), bf16_rounded(__fmul_rn(x.w, g.w))));
    }
}

/* The trees of scale_streams, whose warps this CTA's take turns to be. */
__device__ inline void stream_of_row(const fused_down &a, int32_t r, int32_t i, DownOwn *room)
{
    const down_views &v = a.v;
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32, warps = a.team / 32;
    const float *s = v.s.at(r, i), *gain = v.gain + static_cast<int64_t>(i) * v.n;
    for (int32_t w = warp; w < warps; w += kFusedWarps) {
        const team t = {32 * w + lane, a.team};
        const double squares = warp_sum(lane_squares(s, v.n, t, v.wide));
        float acc[kOwnOutputs] = {};
        if (v.own) own_lane(acc, v, s, gain, i * v.n, t);
        if (lane == 0) room->squares[w] = squares;
#pragma unroll
        for (int32_t o = 0; o < kOwnOutputs; o++) {
            if (!v.own || o >= v.n_streams) break;
            const float sum = tree_sum(acc[o]);
            if (lane == 0) room->own[o][w] = sum;
        }
    }
    __syncthreads();
    const double squares = warp_sum(lane < warps ? room->squares[lane] : 0.0);
    if (threadIdx.x == 0) v.factor[r][i] = norm_factor(squares, v.n, v.eps);
    for (int32_t o = warp; o < v.n_streams && v.own; o += kFusedWarps) {
        const float sum = tree_sum(lane < warps ? room->own[o][lane] : 0.0f);
        if (lane == 0) v.part[(static_cast<int64_t>(r) * v.n_streams + i) * v.n_streams + o] = sum;
    }
}

/* ---- a slice of four tiles ------------------------------------------------------------------- */

template <typename D, int N>
__device__ inline void ask_slice(const fused_down &a, const DownShape &s, int32_t group,
                                 int32_t slice, uint8_t *weights)
{
    const int32_t bytes = FusedDownRoom<D, N>::weight_bytes(s.elems);
    const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32;
    const int32_t tile = min(kFusedTiles * group + warp, s.tiles - 1);
    copy_by_warp(weights + warp * bytes,
                 a.w + (static_cast<int64_t>(tile) * s.slices + slice) * bytes, bytes);
    copy_async_commit();
}

/* BF16(s * gain) of all rows. */
__device__ inline void round_slice(const fused_down &a, const DownShape &s, int32_t slice,
                                   int32_t live, uint16_t *to)
{
    const int32_t i = slice / s.of_stream, first = slice % s.of_stream * s.elems;
    const int32_t quads = s.elems / 4;
    const float *gain = a.v.gain + static_cast<int64_t>(i) * a.v.n;
    for (int32_t k = static_cast<int32_t>(threadIdx.x); k < live * quads; k += 32 * kFusedWarps) {
        const int32_t r = k / quads, q = 4 * (k % quads);
        const float4 x = load_quad(a.v.s.at(r, i), first + q, a.v.n, true);
        const float4 g = load_quad(gain, first + q, a.v.n, true);
        *reinterpret_cast<uint2 *>(to + r * (s.elems + kFusedPad) + q) =
            make_uint2(bf16_pair(__fmul_rn(x.x, g.x), __fmul_rn(x.y, g.y)),
                       bf16_pair(__fmul_rn(x.z, g.z), __fmul_rn(x.w, g.w)));
    }
}

template <typename D, int N>
__device__ inline void slice_of_tiles(const fused_down &a, const DownShape &s, int32_t group,
                                      int32_t slice, int32_t live, uint8_t *weights)
{
    const int32_t bytes = FusedDownRoom<D, N>::weight_bytes(s.elems);
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32;
    const int32_t tile = kFusedTiles * group + warp, units = s.elems / (32 * D::kBlocks);
    uint16_t *acts = reinterpret_cast<uint16_t *>(weights + kFusedTiles * bytes);
    float sums[N][4] = {};
    round_slice(a, s, slice, live, acts);
    copy_async_wait<0>();
    __syncthreads();
    if (tile >= s.tiles) return;
    tile_sums<D, N>(sums, weights + warp * bytes, units, units, s.elems, (live + 7) / 8,
                    SharedActs{acts, s.elems + kFusedPad, live - 1});
#pragma unroll
    for (int32_t n = 0; n < N; n++)
#pragma unroll
        for (int32_t e = 0; e < 4; e++) {
            const int32_t r = 8 * n + 2 * (lane & 3) + (e & 1);
            const int32_t o = 16 * tile + (lane >> 2) + 8 * (e >> 1);
            if (r < live) a.sums[(slice * a.capacity + r) * (16 * s.tiles) + o] = sums[n][e];
        }
}

/* ---- the end --------------------------------------------------------------------------------- */

/* n_i (W a)_i of all streams over S, as sum_streams has it; part(i) is the one of stream i. */
template <typename Part>
__device__ inline float over_streams(const fused_down &a, int32_t r, const Part &part)
{
    const float *n = a.v.factor[r];
    float sum = 0;
    for (int32_t i = 0; i < a.v.n_streams; i++) sum = fmaf(n[i], part(i), sum);
    return __fdiv_rn(sum, static_cast<float>(a.v.n_streams));
}

__device__ inline void finish_group(const fused_down &a, const DownShape &s, int32_t group,
                                    int32_t live)
{
    const int32_t width = 16 * kFusedTiles, padded = 16 * s.tiles;
    for (int32_t k = static_cast<int32_t>(threadIdx.x); k < width * live; k += 32 * kFusedWarps) {
        const int32_t r = k / width, o = width * group + k % width;
        if (o >= a.n_low) continue;
        const float y = over_streams(a, r, [&](int32_t i) {
            const float *at = a.sums + (i * s.of_stream * a.capacity + r) * padded + o;
            float sum = 0;
#pragma unroll 8
            for (int32_t j = 0; j < s.of_stream; j++) sum += at[j * a.capacity * padded];
            return sum;
        });
        put(a.low[r] + o, __fdiv_rn(y, __fadd_rn(1.0f, expf(-y))));
    }
    if (group > 0) return;
    for (int32_t k = static_cast<int32_t>(threadIdx.x); k < a.n_inject * live;
         k += 32 * kFusedWarps) {
        const int32_t r = k / a.n_inject, o = k % a.n_inject, n = a.v.n_streams;
        const float y =
            over_streams(a, r, [&](int32_t i) { return a.v.part[(r * n + i) * n + o]; });
        a.inject[r][o] = __fdiv_rn(2.0f, __fadd_rn(1.0f, expf(-y)));
    }
}

/* Counts the CTA in at groups [from, to), behind all that its threads have written. Returns those,
 * a bit each, to which it comes last of `all`: what the others have written is there. */
__device__ inline uint32_t arrive(uint32_t *arrived, int32_t from, int32_t to, uint32_t all,
                                  uint32_t *last)
{
    const int32_t group = from + static_cast<int32_t>(threadIdx.x);
    if (threadIdx.x == 0) *last = 0;
    __threadfence();
    __syncthreads();
    if (group < to && atomicAdd(arrived + group, 1u) + 1 == all) {
        arrived[group] = 0;
        atomicOr(last, 1u << group);
    }
    __syncthreads();
    __threadfence();
    return *last;
}

/* Grid: rows x streams, then slices x groups of tiles. */
template <typename D, int N>
__global__ void __launch_bounds__(32 * kFusedWarps, 1) down_fused(const fused_down a, pass p)
{
    extern __shared__ __align__(16) uint8_t bytes[];
    __shared__ DownOwn room;
    const DownShape s = down_shape<D>(a);
    const int32_t norms = a.capacity * a.v.n_streams, at = static_cast<int32_t>(blockIdx.x) - norms;
    const int32_t group = at / s.slices, slice = at % s.slices;
    if (at >= 0) ask_slice<D, N>(a, s, group, slice, bytes);
    const int32_t live = wait_rows(p);
    const int32_t r = static_cast<int32_t>(blockIdx.x) / a.v.n_streams;
    if (live == 0 || (at < 0 && r >= live)) {
        copy_async_wait<0>();
        return;
    }
    if (at < 0)
        stream_of_row(a, r, static_cast<int32_t>(blockIdx.x) % a.v.n_streams, &room);
    else
        slice_of_tiles<D, N>(a, s, group, slice, live, bytes);
    const uint32_t ends =
        arrive(a.arrived, at < 0 ? 0 : group, at < 0 ? s.groups : group + 1,
               static_cast<uint32_t>(s.slices + live * a.v.n_streams), &room.last);
    for (int32_t g = 0; g < s.groups; g++)
        if (ends >> g & 1) finish_group(a, s, g, live);
}

} // namespace sk
