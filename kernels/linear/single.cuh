/* The shortest way through a product of up to 40 rows: a warp has one unit of K for one or two
 * tiles of 16 outputs, and nothing to loop over. For layers whose time is the chain of nodes and
 * not their bytes: all that does not depend on the activations, weights decoded included, is ahead
 * of the dependency wait, and behind it are one trip to memory, eight MMAs and one exchange. Same
 * sums in the same order as narrow.cuh. */
#pragma once

#include "kernels/linear/narrow.cuh"

#include <type_traits>

namespace sk
{

enum class Ending { kStore, kAdd, kGlu };

template <int N, int T> constexpr int single_warps() { return N == 1 && T == 1 ? 24 : 12; }

/* Where this thread's output is; threads beyond the last column have none. */
struct Output {
    int32_t o, c; // of 16, column
    int32_t at;   // number of the output
    bool there;
};

template <int T> __device__ inline Output own_output(const Segment &seg, int tile)
{
    Output y;
    y.o = threadIdx.x & 15;
    y.c = threadIdx.x >> 4;
    y.at = (tile - seg.tile) * 16 + y.o;
    y.there = y.at < seg.n;
    return y;
}

/* Twelve of what the slices left, loaded at once; those that do not exist add nothing. */
__device__ inline float add_twelve(float sum, const float *at, int step, int n)
{
    float v[12];
#pragma unroll
    for (int i = 0; i < 12; i++) v[i] = i < n ? at[i * step] : 0.0f;
#pragma unroll
    for (int i = 0; i < 12; i++) sum += v[i];
    return sum;
}

__device__ inline float add_slices(const float *at, int step, int n)
{
    const float sum = add_twelve(0, at, step, n);
    return n > 12 ? add_twelve(sum, at + 12 * step, step, n - 12) : sum;
}

template <int N, int T>
__device__ inline float slice_sum(const float *part, int slices, int tile, int o, int c)
{
    constexpr int kCols = 8 * N;
    return add_slices(part + (tile * 16 + o) * kCols + c, T * 16 * kCols, slices);
}

template <int N, int T, bool Norm, Ending E>
__device__ inline void finish_single(const NarrowArgs &a, const Segment &seg, Output y, int live,
                                     const float *part, const float *squares, float bias, float old)
{
    const int slices = blockDim.x >> 5;
    for (; y.c < live; y.c += blockDim.x >> 4) {
        const float factor = Norm ? norm_factor(squares + y.c, slices, 8 * N, a.part, a.eps) : 1.0f;
        const float sum = slice_sum<N, T>(part, slices, 0, y.o, y.c) * factor;
        if (!y.there) continue;
        if constexpr (E == Ending::kGlu) {
            const float up = slice_sum<N, T>(part, slices, T - 1, y.o, y.c) * factor;
            const float *b = a.seg.of[1].bias;
            const float g = a.seg.of[0].bias ? sum + bias : sum, u = b ? up + b[y.at] : up;
            a.hidden[(a.row0 + y.c) * a.hidden_step + y.at] =
                bf16_bits((a.gelu ? gelu_tanh(g) : silu(g)) * u);
        } else {
            float *to = seg.y + (a.row0 + y.c) * seg.y_step + y.at;
            const float v = seg.bias ? sum + bias : sum;
            if (E == Ending::kAdd && y.c != static_cast<int>(threadIdx.x >> 4)) old = *to;
            *to = E == Ending::kAdd ? old + v : v;
        }
    }
}

/* Where a lane's activations are: worked out ahead of the wait. Columns beyond the capacity repeat
 * its last row and are not used. */
template <typename D, int N, bool Norm> struct Source {
    using Elem = typename std::conditional<Norm, float, uint16_t>::type;
    const Elem *row[N];
    int at[D::kBlocks];
    int t;

    __device__ Source(const NarrowArgs &a, int block, int lane)
    {
        t = lane & 3;
#pragma unroll
        for (int n = 0; n < N; n++) {
            const int r = a.row0 + min(8 * n + (lane >> 2), a.rows - 1);
            row[n] = static_cast<const Elem *>(a.x) + r * a.x_step;
            asm volatile("" : "+l"(row[n]));
        }
#pragma unroll
        for (int b = 0; b < D::kBlocks; b++) at[b] = 32 * (block + b);
    }

    __device__ void load_gain(float (&gain)[D::kBlocks][8], const float *from) const
    {
#pragma unroll
        for (int b = 0; b < D::kBlocks; b++) load_f32<D::kGroup>(gain[b], from + at[b], t);
    }

    __device__ void load(float (&x)[D::kBlocks][N][8], uint32_t (&act)[D::kBlocks][N][4],
                         int groups) const
    {
#pragma unroll
        for (int b = 0; b < D::kBlocks; b++)
#pragma unroll
            for (int n = 0; n < N; n++) {
                if (N > 1 && n >= groups) continue;
                if constexpr (Norm)
                    load_f32<D::kGroup>(x[b][n], row[n] + at[b], t);
                else
                    load_act<D::kGroup>(act[b][n], row[n] + at[b], t);
            }
    }
};

template <typename D, int N, int T, bool Norm, Ending E>
__global__ void __launch_bounds__(32 * single_warps<N, T>(), 1) single(const NarrowArgs a)
{
    using Shared = NarrowShared<D, N, T>;
    extern __shared__ float shared[];
    if (a.open_early) edge_open();
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, tile = blockIdx.x;
    const int units = blockDim.x >> 5;
    const Segment seg = T == 2 ? a.seg.of[0] : segment_of(a.seg, tile);
    const Output y = own_output<T>(seg, tile);
    const float bias = seg.bias && y.there ? seg.bias[y.at] : 0.0f;
    float *part = shared + warp * Shared::kTile, *squares_of = shared + units * Shared::kTile;
    Block<D> k[T][D::kBlocks];
    Source<D, N, Norm> from(a, warp * D::kBlocks, lane);
    float gain[D::kBlocks][8];
    int live = a.rows_ready ? live_rows(a.count, a.row0 + a.rows) - a.row0 : 0;
    typename D::Frag f[T];
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < T; i++) {
        const Segment &s = T == 2 ? a.seg.of[i] : seg;
        const int64_t at = static_cast<int64_t>(tile - s.tile) * units + warp;
        f[i] = D::load(FromGlobal{s.w + at * D::kUnitBytes}, lane);
    }
    if constexpr (Norm) from.load_gain(gain, a.gain);
#pragma unroll
    for (int i = 0; i < T; i++)
#pragma unroll
        for (int b = 0; b < D::kBlocks; b++) {
            k[i][b] = decode_block<D>(f[i], b, NoTable());
            bits |= bits_of<D>(k[i][b]);
        }
    if (bits == 1) shared[0] = 0; // never, and overwritten before it is read
    edge_wait();
    if (!a.open_early) edge_open();
    float x[D::kBlocks][N][8], squares[N] = {};
    Acc<D> acc[T][N] = {};
    uint32_t act[D::kBlocks][N][4];
    float old = 0;
    if (!a.rows_ready) live = live_rows(a.count, a.row0 + a.rows) - a.row0;
    const int groups = N == 1 ? 1 : (live + 7) / 8;
    from.load(x, act, groups);
    if (E == Ending::kAdd && y.there && y.c < live) old = seg.y[(a.row0 + y.c) * seg.y_step + y.at];
    if (live <= 0) return;
#pragma unroll
    for (int b = 0; b < D::kBlocks; b++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            float sums[2];
            if (N > 1 && n >= groups) continue;
            if constexpr (Norm) norm_act(act[b][n], x[b][n], gain[b], &squares[n]);
            if (D::kMin) block_sums(sums, act[b][n]);
#pragma unroll
            for (int i = 0; i < T; i++) {
                acc[i][n].add(k[i][b], act[b][n]);
                if (D::kMin) acc[i][n].add_min(k[i][b], sums);
            }
        }
    }
    store_parts<D, N, T>(part, lane, acc);
    if constexpr (Norm) store_squares<N>(squares_of + warp * Shared::kCols, lane, squares);
    __syncthreads();
    finish_single<N, T, Norm, E>(a, seg, y, live, shared, squares_of, bias, old);
}

} // namespace sk
