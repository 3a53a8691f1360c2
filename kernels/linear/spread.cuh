/* Products of up to 40 rows with few outputs of a long K, of numbers without scales: a router, the
 * gates of heads. There a CTA a tile leaves most of the GPU idle, and a slice a warp is a chain of
 * trips to memory. So a tile is shared out: a CTA has eight, four or two of its outputs, which are
 * rows of the fragments and know nothing of each other, and all of K. Its warps have half a slice
 * each: all of their weights are asked for ahead of the dependency wait, behind which they only
 * multiply. Same sums in the same order as narrow.cuh: a slice is the sum of its first half, and
 * then its other blocks, which are left one by one. No CTA waits for another one. */
#pragma once

#include "kernels/common/bulk.cuh"
#include "kernels/linear/single.cuh"

namespace sk
{

template <typename D>
constexpr bool kSpreads = D::kType == SK_F32 || D::kType == SK_F16 || D::kType == SK_BF16;

/* Warps of a CTA at most, as registers allow it. */
template <int N> constexpr int kSpreadWarps = N == 5 ? 12 : 20;

constexpr int kSpreadTiles = 66;                  // at most: two CTAs a tile run at the same time
constexpr size_t kSpreadBytes = 160 * 1024;       // of shared memory, at most
constexpr int kSpreadHalf = kSliceElems / 32 / 2; // blocks of half a slice

/* Blocks whose activations are under way. */
template <int N> constexpr int kSpreadAhead = N == 1 ? 4 : 2;

/* What a CTA with 2^bits outputs has in shared memory: weights [blocks][planes][outputs][4 quads],
 * then the sums [slices][1 + kSpreadHalf][outputs][columns]. */
template <typename D, int N> struct SpreadShared {
    static constexpr int kCols = 8 * N;
    static constexpr int kBlockBytes = D::kUnitBytes / D::kBlocks; // of a tile, as it is packed
    static constexpr int kPlanes = kBlockBytes / 1024;             // of eight of its rows
    __host__ __device__ static int weight_bytes(int k, int bits)
    {
        return (k / 32 * kPlanes * 64) << bits;
    }
    static size_t bytes(int k, const Slices &s, int bits)
    {
        const int sums = s.n * (1 + kSpreadHalf) * kCols;
        return static_cast<size_t>(weight_bytes(k, bits)) + sizeof(float) * (sums << bits);
    }
};

/* The lane's part of the weights: one output, and of each block the eight elements that it has of
 * a fragment. What a lane asks for only that lane reads. */
template <typename D, int N> struct SpreadWeights {
    using Shared = SpreadShared<D, N>;
    const uint8_t *from; // block 0
    uint8_t *to;
    int step; // in shared memory, from plane to plane
    bool mine;

    __device__ SpreadWeights(const Segment &seg, int tile, int row, int units, int bits,
                             uint8_t *shared)
    {
        const int lane = threadIdx.x & 31;
        const int64_t unit = static_cast<int64_t>(tile - seg.tile) * units;
        row += lane >> 2;
        mine = lane < 4 << bits;
        from = seg.w + unit * D::kUnitBytes + 512 * Shared::kPlanes * (row >> 3) +
               16 * (4 * (row & 7) + (lane & 3));
        to = shared + 16 * lane;
        step = 64 << bits;
    }

    __device__ void ask(int first, int end) const
    {
        const uint8_t *p = from + static_cast<int64_t>(first) * Shared::kBlockBytes;
        uint8_t *place = to + first * Shared::kPlanes * step;
        if (!mine) return;
#pragma unroll 1 // short rather than fast: the code comes from memory too
        for (int b = first; b < end; b++, p += Shared::kBlockBytes)
#pragma unroll
            for (int i = 0; i < Shared::kPlanes; i++, place += step)
                copy_async16(reinterpret_cast<uint16_t *>(place),
                             reinterpret_cast<const uint16_t *>(p + 512 * i));
    }

    /* Rows of the fragment beyond the CTA's outputs are zero, and all where there is no block. */
    __device__ Block<D> block(int b, bool there) const
    {
        typename D::Frag f = {};
        const uint8_t *at = to + b * Shared::kPlanes * step;
#pragma unroll
        for (int i = 0; i < Shared::kPlanes; i++, at += step)
            if (mine && there) unpack4(f.q[i], FromShared{at}.at16(0));
        return decode_block<D>(f, 0, NoTable());
    }
};

/* Activations of the lane's columns, whose places are worked out ahead of the wait; columns beyond
 * the capacity repeat its last row and are not used. */
template <typename D, int N> struct SpreadActs {
    using Regs = uint32_t[N][4]; // of a block
    const uint16_t *row[N];
    int t;

    __device__ explicit SpreadActs(const NarrowArgs &a)
    {
        const int lane = threadIdx.x & 31;
        t = lane & 3;
#pragma unroll
        for (int n = 0; n < N; n++) {
            const int r = a.row0 + min(8 * n + (lane >> 2), a.rows - 1);
            row[n] = static_cast<const uint16_t *>(a.x) + r * a.x_step;
            asm volatile("" : "+l"(row[n]));
        }
    }

    /* Of block b, if there is one ahead of `end`. */
    __device__ void load(Regs &x, int b, int end, int groups) const
    {
#pragma unroll
        for (int n = 0; n < N; n++)
            if (n < groups && b < end) load_act<D::kGroup>(x[n], row[n] + 32 * b, t);
    }
};

/* Columns 2t and 2t + 1 of the lane's output. */
__device__ inline void store_sums(float *to, const float (&sums)[4])
{
    *reinterpret_cast<float2 *>(to) = make_float2(sums[0], sums[1]);
}

/* Products of block b, if there is one ahead of `end`: added up, and left at `to` if `one`. Those
 * of all columns at the same time, as each is a chain. */
template <typename D, int N>
__device__ inline void spread_block(Acc<D> (&acc)[N], float *to, bool one,
                                    const SpreadWeights<D, N> &w,
                                    const typename SpreadActs<D, N>::Regs &x, int b, int end)
{
    const Block<D> k = w.block(b, b < end);
    float p[N][4] = {};
#pragma unroll
    for (int part = 0; part < 2 * D::kTerms; part++)
#pragma unroll
        for (int n = 0; n < N; n++)
            mma(p[n], k.a[part / 2] + 4 * (part & 1), x[n] + 2 * (part & 1));
#pragma unroll
    for (int n = 0; n < N; n++) {
        if (b >= end) continue;
        acc[n].take(k, 0, p[n]);
        if (one && w.mine) store_sums(to + 8 * n, p[n]);
    }
}

/* All slices in ascending order, each out of the sum of its first half and the blocks that follow.
 * Of `blocks` blocks; loads of four slices go out at once. */
__device__ inline float add_halves(const float *at, int step, int blocks)
{
    float sum = 0;
#pragma unroll 1
    for (int b = 0; b < blocks; b += 8 * kSpreadHalf) {
        float v[4][1 + kSpreadHalf];
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j <= kSpreadHalf; j++, at += step) {
                const int first = b + 2 * kSpreadHalf * i + (j ? kSpreadHalf - 1 + j : 0);
                v[i][j] = first < blocks ? *at : 0.0f; // which adds nothing
            }
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int j = 1; j <= kSpreadHalf; j++) v[i][0] += v[i][j];
            sum += v[i][0];
        }
    }
    return sum;
}

/* Grid: tiles x shares of 2^bits outputs. */
template <typename D, int N>
__global__ void __launch_bounds__(32 * kSpreadWarps<N>, 1)
    spread(const NarrowArgs a, const Slices s, const int32_t bits)
{
    using Shared = SpreadShared<D, N>;
    constexpr int kAhead = kSpreadAhead<N>, kCols = Shared::kCols;
    extern __shared__ __align__(16) uint8_t bytes[];
    if (a.open_early) edge_open();
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n_warps = blockDim.x >> 5;
    const int blocks = a.k / 32, plane = kCols << bits;
    const int tile = blockIdx.x, row = static_cast<int>(blockIdx.y) << bits;
    const Segment seg = segment_of(a.seg, tile);
    const bool idle = (tile - seg.tile) * 16 + row >= seg.n, add = a.epilogue == Epilogue::kAdd;
    const SpreadWeights<D, N> w(seg, tile, row, s.units, bits, bytes);
    const SpreadActs<D, N> acts(a);
    float *sums = reinterpret_cast<float *>(bytes + Shared::weight_bytes(a.k, bits));
    Output y;
    int live = 0;
    float old = 0;

    for (int i = warp; i < 2 * s.n && !idle; i += n_warps)
        w.ask(i * kSpreadHalf, min((i + 1) * kSpreadHalf, blocks));
    copy_async_commit();
    y.o = static_cast<int>(threadIdx.x) & ((1 << bits) - 1);
    y.c = static_cast<int>(threadIdx.x) >> bits;
    y.at = (tile - seg.tile) * 16 + row + y.o;
    y.there = y.at < seg.n;
    const float bias = seg.bias && y.there ? seg.bias[y.at] : 0.0f;
    if (a.rows_ready) live = live_rows(a.count, a.row0 + a.rows) - a.row0;
    edge_wait();
    if (!a.open_early) edge_open();
    if (!a.rows_ready) live = live_rows(a.count, a.row0 + a.rows) - a.row0;
    if (live <= 0 || idle) {
        copy_async_wait<0>();
        return;
    }
    const int groups = N == 1 ? 1 : (live + 7) / 8;
    typename SpreadActs<D, N>::Regs x[kAhead] = {};
    for (int i = warp; i < 2 * s.n; i += n_warps) {
        const int first = i * kSpreadHalf, end = min(first + kSpreadHalf, blocks);
        const bool second = i & 1; // half of its slice
        float *own = sums + (i / 2 * (1 + kSpreadHalf) + second) * plane + (lane >> 2) * kCols +
                     2 * (lane & 3);
        Acc<D> acc[N] = {};
#pragma unroll
        for (int j = 0; j < kAhead; j++) acts.load(x[j], first + j, end, groups);
        if (i == warp) {
            if (add && y.there && y.c < live) // needed at the end
                old = seg.y[(a.row0 + y.c) * seg.y_step + y.at];
            copy_async_wait<0>();
        }
#pragma unroll 1
        for (int b = 0; b < kSpreadHalf; b += kAhead)
#pragma unroll
            for (int j = 0; j < kAhead; j++) {
                spread_block<D, N>(acc, own + (b + j) * plane, second, w, x[j], first + b + j, end);
                if (kAhead < kSpreadHalf) acts.load(x[j], first + b + j + kAhead, end, groups);
            }
#pragma unroll
        for (int n = 0; n < N; n++)
            if (!second && w.mine) store_sums(own + 8 * n, acc[n].slice);
    }
    __syncthreads();
    const int columns = static_cast<int>(blockDim.x) >> bits;
    for (int c = y.c; y.there && c < live; c += columns) {
        float *to = seg.y + (a.row0 + c) * seg.y_step + y.at;
        const float sum = add_halves(sums + y.o * kCols + c, plane, blocks);
        const float v = seg.bias ? sum + bias : sum;
        if (add && c != y.c) old = *to;
        *to = add ? old + v : v;
    }
}

} // namespace sk
