/* Products of large weights for up to 40 rows, held near the memory: one CTA a multiprocessor walks
 * over its items, a tile of 16 outputs by a part of K each, and every warp has a ring of bulk
 * copies of its own, so that weights are always on their way. The first of them, and the codebook,
 * come before the dependency wait; where two of these CTAs fit on a multiprocessor, the next node
 * fills its rings while this one does the last of its computing.
 *
 * A warp does a whole item, or, where there are too few for the warps, the warps of a CTA share
 * items by slices, which meet in shared memory at the end. With many rows four warps make a team,
 * which takes four neighbouring tiles and multiplies them at once (team.cuh): the activations of so
 * many rows are too much for every warp to read by itself. The sums are those of product.cuh in any
 * case. Not for a short K of plain types. */
#pragma once

#include "kernels/common/bulk.cuh"
#include "kernels/common/divide.h"
#include "kernels/linear/narrow.cuh"
#include "kernels/linear/table.cuh"
#include "kernels/linear/team.cuh"

namespace sk
{

/* Pieces of K, what one bulk copy brings. */
struct PieceCounts {
    int32_t units, n;   // of K
    int32_t of_slice;   // pieces of a slice
    int32_t slices;     // of a part
    int32_t of_part;    // pieces of a part
    int32_t last_units; // of the last piece of K
};

/* Where shared memory has what. */
struct RingOffsets {
    int32_t act_step; // bytes between rows, or between the core matrices of a team's
    int32_t sums, acts, slices;
};

struct RingArgs {
    Segments seg;
    const uint16_t *x; // BF16 [rows, k]
    int64_t x_step;
    const float *factor; // [rows] of a norm, or NULL
    const int32_t *count;
    int32_t row0, rows; // first row of this launch, capacity from there on
    int32_t k;
    int32_t parts;     // of K, each with outputs of its own: y of part p at y + p * part_step
    int64_t part_step; // elements
    int32_t add;       // to y, instead of storing
    int32_t
        open_early; // ahead of the wait (teams), or when a warp has asked for all of its weights
    int32_t depth;  // of a ring, in pieces
    int32_t spread; // warps share tiles
    int32_t warps;  // of a CTA
    int32_t *id;    // argmax
    uint64_t *keys; // [40], then the counter
    // What follows is computed for the launch.
    PieceCounts pieces;
    RingOffsets at;
    int32_t items; // tiles, or fours of them
    // Reciprocals of the CTAs of a part, the warps or teams of a CTA, the slices of a part, the
    // rows
    uint32_t a_cta, a_warp, a_slice, a_row;
};

/* How K is walked. A piece is what one bulk copy brings: 256 elements of 16 rows, or 128 where that
 * is already 4 KB. */
template <typename D> struct Pieces : PieceCounts {
    static constexpr int kElems = D::kUnitBytes >= 64 * D::kBlocks * 16 ? 128 : 256;
    static constexpr int kUnits = kElems / (32 * D::kBlocks);
    static constexpr int kBytes = kUnits * D::kUnitBytes;

    Pieces(int64_t k, int parts)
    {
        const Slices s = slices_of<D>(k);
        units = s.units;
        n = (units + kUnits - 1) / kUnits;
        of_slice = s.per / kUnits;
        slices = s.n / parts;
        of_part = n / parts;
        last_units = units - (n - 1) * kUnits;
    }
};

/* CTAs on a multiprocessor, and their warps at most: as many as registers allow. With more rows
 * there is room in shared memory for one CTA only, and that one can have more of them; so can one
 * that has so much to do that what the next node could do meanwhile does not count. */
template <typename D> constexpr bool kManyRegisters = D::kType == SK_IQ2_XXS;
template <typename D, int N> constexpr int kRingResidents = N < 3 && !kManyRegisters<D> ? 2 : 1;
/* Minima that are numbers of their own are a product more, and scales beside the weight more to
 * keep. */
template <typename D> constexpr bool kMoreInTeams = (D::kMin && !D::kSuper) || kOutside<D>;
template <typename D, int N, int M>
constexpr int kRingWarps = kManyRegisters<D>  ? 8
                           : N == 1           ? 10
                           : N == 3 && M == 4 ? (kMoreInTeams<D> ? 12 : 16)
                           : N == 5           ? (kMoreInTeams<D> ? 8 : 12)
                                              : 8;
template <typename D, int N, int M>
constexpr int kLongWarps = N == 1 ? kRingResidents<D, N> *kRingWarps<D, N, M> : kRingWarps<D, N, M>;
/* What registers have to be there for. */
template <typename D, int N, int M> constexpr int kRingBlocks = N == 1 ? 1 : kRingResidents<D, N>;

/* Shared memory of a CTA, in this order: codebook, counts, barriers, keys, rings, sums of blocks of
 * activations, activations, slices of shared items. N groups of eight rows, teams of M warps. */
template <typename D, int N, int M> struct RingShared : RingOffsets {
    static constexpr int kCols = 8 * N;
    static constexpr int kTable = kSharedTableBytes<D>;
    static constexpr int kCount = 124;   // for every warp, how many rows mean something
    static constexpr int kLast = 4;      // is this the last CTA? See finish_argmax
    static constexpr int kBars = 8 * 88; // of the rings, behind them that of the activations
    static_assert(kLongWarps<D, N, M> * 4 < 88 && kLongWarps<D, N, M> * 4 <= kCount,
                  "too many warps");
    static constexpr int kBest = 8 * kCols;
    static constexpr int kTile = 16 * kCols; // floats of a slice
    static constexpr int kRing = (kTable + kCount + kLast + kBars + kBest + 127) / 128 * 128;
    static constexpr int kSlot =
        (Pieces<D>::kBytes + 127) / 128 * 128 + (Pieces<D>::kBytes % 128 ? 128 : 0);
    static constexpr int kPad = D::kGroup == 32 ? 64 : 32; // so that eight rows hit all banks
    int32_t bytes;

    RingShared(const RingArgs &a, const PieceCounts &p, int shared_tiles)
    {
        const int cols = p.of_part * Pieces<D>::kElems;
        sums = kRing + a.warps * a.depth * kSlot;
        acts = sums + (UnitSums<D>::kThere ? cols / D::kGroup * kCols * 4 : 0);
        if (M > 1) {
            act_step = TeamActs<N>::step_of(a.rows);
            slices = acts + TeamActs<N>::bytes_of(a.rows, cols / 32);
        } else {
            act_step = 2 * cols + kPad;
            slices = acts + a.rows * act_step;
        }
        bytes = slices + shared_tiles * p.slices * kTile * 4;
    }
};

/* Which part of K a CTA has, and its tiles, or its teams' fours of them. */
struct Share {
    int part, first, n;

    __device__ explicit Share(const RingArgs &a)
    {
        const int cta = static_cast<int>(blockIdx.x);
        part = static_cast<int>(blockIdx.y);
        first = uniform(sk_divided(cta * a.items, a.a_cta));
        n = uniform(sk_divided((cta + 1) * a.items, a.a_cta)) - first;
    }
};

/* The way of a warp, or of a team: runs of consecutive pieces of a tile (of four tiles) each. */
struct Way {
    int tile, piece; // where the run begins; the piece counts from the part's first
    int n;           // pieces of the run; 0: the end
};

struct Route {
    int stride;    // tiles, to the next run
    int last, end; // its last tile, and where it ends there

    __device__ int length(const PieceCounts &p, int tile) const
    {
        return tile > last ? 0 : tile == last ? end : p.of_part;
    }

    /* Of number `i` of n. */
    __device__ Way begin(const RingArgs &a, const Share &own, int i, int n)
    {
        const PieceCounts &p = a.pieces;
        Way w;
        if (a.spread) { // whole slices; the last one of a tile may be short
            const int runs = own.n * p.slices;
            const int from = uniform(sk_divided(i * runs, a.a_warp));
            const int to = uniform(sk_divided((i + 1) * runs, a.a_warp));
            const int start = uniform(sk_divided(from, a.a_slice));
            const int stop = uniform(sk_divided(max(to - 1, 0), a.a_slice));
            stride = 1;
            last = to > from ? own.first + stop : -1;
            end = min((to - stop * p.slices) * p.of_slice, p.of_part);
            w.tile = own.first + start;
            w.piece = (from - start * p.slices) * p.of_slice;
        } else {
            stride = n;
            last = own.first + own.n - 1;
            end = p.of_part;
            w.tile = own.first + i;
            w.piece = 0;
        }
        w.n = w.tile > last ? 0 : length(p, w.tile) - w.piece;
        return w;
    }

    __device__ void next(Way &w, const PieceCounts &p) const
    {
        w.tile += stride;
        w.piece = 0;
        w.n = length(p, w.tile);
    }
};

/* Where in its slot a piece begins that lies at `from`: a copy is fastest where both ends lie alike
 * within 128 bytes. */
template <typename D> __device__ inline uint32_t skew(const uint8_t *from)
{
    if (Pieces<D>::kBytes % 128 == 0) return 0;
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from)) & 127u;
}

/* The weights of a tile from a piece on. */
template <typename D>
__device__ inline const uint8_t *weights_at(const Segment &seg, const PieceCounts &p, int tile,
                                            int piece)
{
    const int unit = piece * Pieces<D>::kUnits;
    return seg.w + (static_cast<int64_t>(tile - seg.tile) * p.units + unit) * D::kUnitBytes;
}

/* One warp's ring: lane 0 asks for pieces, all lanes use them in the same order. What is the same
 * in all lanes is computed by all. */
template <typename D, int N, int M> struct Ring {
    static constexpr int kSlot = RingShared<D, N, M>::kSlot;
    uint8_t *slots;
    uint64_t *bars;
    Route route;
    int of_team; // the warp's number in it
    int depth, put, take;
    uint32_t parity;
    Way ahead;           // the run that pieces are asked of, n of it left
    const uint8_t *from; // the next one
    uint32_t last_bytes; // of the run's last piece

    /* The warp's tile; without one of its own it does the last one once more. */
    __device__ int tile_of(const RingArgs &a, const Way &way) const
    {
        if (M == 1) return way.tile;
        return min(way.tile * M + of_team, a.seg.n_tiles - 1);
    }

    /* The weights of the run. */
    __device__ void find(const RingArgs &a, const PieceCounts &p, const Share &own)
    {
        const int piece = own.part * p.of_part + ahead.piece, tile = tile_of(a, ahead);
        from = weights_at<D>(segment_of(a.seg, tile), p, tile, piece);
        last_bytes = (piece + ahead.n == p.n ? p.last_units : Pieces<D>::kUnits) * D::kUnitBytes;
    }

    __device__ void fetch(const RingArgs &a, const PieceCounts &p, const Share &own, bool mine)
    {
        const uint32_t bytes = ahead.n == 1 ? last_bytes : Pieces<D>::kBytes;
        uint8_t *to = slots + put * kSlot;
        if (ahead.n == 0) return;
        barrier_expect(bars + put, bytes, mine);
        bulk_copy_once(to + skew<D>(from), from, bytes, bars + put, mine);
        from += Pieces<D>::kBytes;
        put = put + 1 == depth ? 0 : put + 1;
        if (--ahead.n > 0) return;
        route.next(ahead, p);
        if (ahead.n > 0) find(a, p, own);
    }

    __device__ const uint8_t *wait() const
    {
        barrier_wait(bars + take, parity);
        return slots + take * kSlot;
    }

    /* The piece has been read by all lanes. */
    __device__ void done(const RingArgs &a, const PieceCounts &p, const Share &own, int lane)
    {
        __syncwarp();
        fetch(a, p, own, lane == 0);
        take = take + 1 == depth ? 0 : take + 1;
        parity ^= take == 0;
    }
};

/* ---- activations -------------------------------------------------------------------------------
 */

/* Columns [col, col + cols) of the rows into shared memory, by the first warp; a barrier tells of
 * their arrival. Rows that mean nothing come too: how many mean something would have to be waited
 * for, and a row has no part in others' results. */
__device__ inline void stage_rows(const RingArgs &a, uint8_t *to, int act_step, int col, int cols,
                                  uint64_t *bar)
{
    const int lane = threadIdx.x & 31;
    const uint32_t bytes = static_cast<uint32_t>(cols) * 2;
    barrier_expect(bar, static_cast<uint32_t>(a.rows) * bytes, lane == 0);
    __syncwarp();
    for (int r = lane; r < a.rows; r += 32)
        bulk_copy(to + r * act_step,
                  reinterpret_cast<const uint8_t *>(a.x + (a.row0 + r) * a.x_step + col), bytes,
                  bar);
}

/* Activations in shared memory as a lane sees them. */
template <int N> struct Present {
    const uint8_t *acts;
    float *sums; // [sum][column]
    int at[N];   // bytes, of the lane's rows and elements

    template <int Group> __device__ void load(uint32_t (&v)[4], int n, int block) const
    {
        int row = at[0]; // not by index, which takes memory
#pragma unroll
        for (int i = 1; i < N; i++) row = i == n ? at[i] : row;
        shared_act<Group>(v, reinterpret_cast<const uint16_t *>(acts + row + block * 64), 0);
    }
};

/* Sums of all blocks, for minima in steps of their unit's. */
template <typename D, int N, typename Acts>
__device__ inline void sum_blocks(const Acts &x, int warps, int blocks, int warp, int lane)
{
    constexpr int kAtOnce = 4; // chains of loads and products, which are what takes the time
    for (int first = warp; first < blocks * N; first += kAtOnce * warps) {
        uint32_t v[kAtOnce][4];
        float s[kAtOnce][kStepsOf<D>][2];
#pragma unroll
        for (int i = 0; i < kAtOnce; i++) {
            const int item = min(first + i * warps, blocks * N - 1);
            x.template load<D::kGroup>(v[i], item % N, item / N);
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; i++) step_sums<D>(s[i], v[i]);
#pragma unroll
        for (int i = 0; i < kAtOnce; i++) {
            const int item = first + i * warps;
            float *at = x.sums + item / N * kStepsOf<D> * 8 * N + 8 * (item % N) + 2 * lane;
            if (item >= blocks * N || lane >= 4) continue;
#pragma unroll
            for (int step = 0; step < kStepsOf<D>; step++)
                *reinterpret_cast<float2 *>(at + step * 8 * N) =
                    make_float2(s[i][step][0], s[i][step][1]);
        }
    }
}

/* One unit of weights, of K from elem on, times the columns that stand with it, from block `block`
 * of those present. */
template <typename D, int N, typename Table>
__device__ inline void unit_sums(const uint8_t *unit, int block, const Present<N> &x, int lane,
                                 const Table &table, const Outside<D> &outside, int elem,
                                 Acc<D> (&acc)[N])
{
    const typename D::Frag f = D::load(FromShared{unit}, lane);
#pragma unroll
    for (int b = 0; b < D::kBlocks; b++) {
        Block<D> k = decode_block<D>(f, b, table);
        outside.apply(k, elem + 32 * b);
#pragma unroll
        for (int n = 0; n < N; n++) {
            uint32_t v[4];
            float sums[2];
            x.template load<D::kGroup>(v, n, block + b);
            acc[n].add(k, v);
            if (!D::kMin || D::kSuper) continue;
            block_sums(sums, v);
            acc[n].add_min(k, sums);
        }
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
        UnitSums<D> sums;
        sums.load(x.sums + block * kStepsOf<D> * 8 * N + 8 * n, 8 * N, lane);
        acc[n].end_unit(f, sums, lane & 3);
    }
}

/* Rows of this launch that mean something; the warp has asked for the count. */
__device__ inline int live_of(const RingArgs &a, const int32_t *count)
{
    copy_async_wait<0>();
    __syncwarp();
    return max(min(*count - a.row0, a.rows), 0);
}

/* ---- outputs -----------------------------------------------------------------------------------
 */

/* The sum of output o of the tile, column c; its key for the argmax. */
template <bool Argmax>
__device__ inline uint64_t emit(const RingArgs &a, const Segment &seg, int tile, int part, int o,
                                int c, float sum)
{
    const int out = (tile - seg.tile) * 16 + o;
    if (out >= seg.n) return 0;
    if (a.factor) sum *= a.factor[a.row0 + c];
    const float y = seg.bias ? sum + seg.bias[out] : sum;
    if constexpr (Argmax) return best_key(y, static_cast<uint32_t>(out));
    float *at = seg.y + part * a.part_step + (a.row0 + c) * seg.y_step + out;
    *at = a.add ? *at + y : y;
    return 0;
}

/* A whole tile out of the registers of its warp. */
template <int N, bool Argmax>
__device__ inline void emit_tile(const RingArgs &a, const Segment &seg, int part, int tile,
                                 int lane, int live, const float (&total)[N][4],
                                 uint64_t (&best)[N][2])
{
    const int out = (tile - seg.tile) * 16 + (lane >> 2), first = 2 * (lane & 3);
    const bool there[2] = {out < seg.n, out + 8 < seg.n};
    float bias[2] = {};
    float *y = seg.y + part * a.part_step + (a.row0 + first) * seg.y_step + out;
#pragma unroll
    for (int h = 0; h < 2; h++)
        if (seg.bias && there[h]) bias[h] = seg.bias[out + 8 * h];
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int c = 8 * n + first + j;
            float *at = y + (8 * n + j) * seg.y_step;
            if (c >= live) continue;
            const float factor = a.factor ? a.factor[a.row0 + c] : 1.0f;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float sum = total[n][j + 2 * h] * factor;
                if (seg.bias) sum = sum + bias[h];
                if (!there[h]) continue;
                if constexpr (Argmax)
                    best[n][j] =
                        best_of(best[n][j], best_key(sum, static_cast<uint32_t>(out + 8 * h)));
                else
                    at[8 * h] = a.add ? at[8 * h] + sum : sum;
            }
        }
}

/* Tiles whose slices lie in shared memory. */
template <int N, int M, bool Argmax>
__device__ inline void emit_shared(const RingArgs &a, const float *at, const Share &own, int slices,
                                   int live, uint64_t *best)
{
    constexpr int kCols = 8 * N, kTile = 16 * kCols;
    for (int i = threadIdx.x; i < own.n * M * 16 * live; i += blockDim.x) {
        const int o = i & 15, c = (i >> 4) % live, mine = (i >> 4) / live;
        const int tile = own.first * M + mine;
        if (M > 1 && tile >= a.seg.n_tiles) break;
        const float *from = at + mine * slices * kTile + o * kCols + c;
        float sum = 0;
#pragma unroll 4
        for (int s = 0; s < slices; s++) sum += from[s * kTile];
        const uint64_t key = emit<Argmax>(a, segment_of(a.seg, tile), tile, own.part, o, c, sum);
        if constexpr (Argmax)
            atomicMax(reinterpret_cast<unsigned long long *>(best + c),
                      static_cast<unsigned long long>(key));
    }
}

/* Keys of the lanes, of the CTA, of the launch. */
template <int N>
__device__ inline void finish_keys(const RingArgs &a, int live, int lane,
                                   const uint64_t (&mine)[N][2], uint64_t *best, int *last)
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint64_t key = mine[n][i];
#pragma unroll
            for (int d = 4; d < 32; d <<= 1)
                key = best_of(
                    key, __shfl_xor_sync(0xFFFFFFFFu, static_cast<unsigned long long>(key), d));
            if (lane < 4)
                atomicMax(reinterpret_cast<unsigned long long *>(best + 8 * n + 2 * lane + i),
                          static_cast<unsigned long long>(key));
        }
    __syncthreads();
    for (int c = threadIdx.x; c < live; c += blockDim.x)
        atomicMax(reinterpret_cast<unsigned long long *>(a.keys + c),
                  static_cast<unsigned long long>(best[c]));
    finish_argmax(a.keys, a.id + a.row0, live, last);
}

template <typename D, int N>
__device__ inline void store_slice(float *to, int lane, const Acc<D> (&acc)[N])
{
    constexpr int kCols = 8 * N;
    float *at = to + (lane >> 2) * kCols + 2 * (lane & 3);
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float(&s)[4] = acc[n].slice;
        *reinterpret_cast<float2 *>(at + 8 * n) = make_float2(s[0], s[1]);
        *reinterpret_cast<float2 *>(at + 8 * n + 8 * kCols) = make_float2(s[2], s[3]);
    }
}

/* ---- the kernel --------------------------------------------------------------------------------
 */

/* A codebook in shared memory; most formats have none. */
template <typename D, bool HasTable = (D::kEntries > 0)> struct RingTable : NoTable {
    __device__ RingTable(uint8_t *, int) {}
    __device__ void fill(uint8_t *) const {}
};

template <typename D> struct RingTable<D, true> : SharedTable<D> {
    __device__ RingTable(uint8_t *shared, int lane) : SharedTable<D>(shared, lane) {}
    __device__ void fill(uint8_t *shared) const
    {
        fill_table<D>(shared, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
    }
};

/* K in whole pieces: nothing behind its end may be a NaN. */
__device__ inline void clear_padding(uint8_t *acts, int act_step, int rows, int there)
{
    for (int r = threadIdx.x >> 5; r < rows; r += blockDim.x >> 5)
        for (int i = there + 4 * (threadIdx.x & 31); i < act_step; i += 128)
            *reinterpret_cast<uint32_t *>(acts + r * act_step + i) = 0;
}

/* Which of both ways to hold and multiply activations a kernel takes. */
template <typename D, int N, int M> struct RingActs;

template <typename D, int N> struct RingActs<D, N, 1> {
    using Acts = Present<N>;
    __device__ static Acts stage(const RingArgs &a, uint8_t *memory, int col, int cols, int,
                                 uint64_t *bar, int warp, int lane)
    {
        Acts x = {memory + a.at.acts, reinterpret_cast<float *>(memory + a.at.sums), {}};
        if (warp == 0) stage_rows(a, memory + a.at.acts, a.at.act_step, col, cols, bar);
#pragma unroll
        for (int n = 0; n < N; n++)
            x.at[n] = min(8 * n + (lane >> 2), a.rows - 1) * a.at.act_step +
                      (D::kGroup == 32 ? 16 : 8) * (lane & 3);
        if (!SK_BULK) __syncthreads();
        barrier_wait(bar, 0);
        return x;
    }
    template <typename Table>
    __device__ static void sums(const uint8_t *weights, int units, int block, const Acts &x,
                                int lane, const Table &table, const Outside<D> &outside, int elem,
                                Acc<D> (&acc)[N])
    {
#pragma unroll
        for (int u = 0; u < Pieces<D>::kUnits; u++)
            if (u == 0 || u < units)
                unit_sums<D, N>(weights + u * D::kUnitBytes, block + u * D::kBlocks, x, lane, table,
                                outside, elem + 32 * D::kBlocks * u, acc);
    }
};

template <typename D, int N> struct RingActs<D, N, 4> {
    using Acts = TeamActs<N>;
    __device__ static Acts stage(const RingArgs &a, uint8_t *memory, int col, int cols, int padded,
                                 uint64_t *, int warp, int lane)
    {
        const Acts x(memory + a.at.acts, reinterpret_cast<float *>(memory + a.at.sums),
                     a.at.act_step, lane);
        stage_team<D>(x, a.x + a.row0 * a.x_step + col, a.x_step, a.rows, a.a_row, cols / 32,
                      padded / 32, a.warps, warp, lane);
        __syncthreads();
        return x;
    }
    template <typename Table>
    __device__ static void sums(const uint8_t *weights, int units, int block, const Acts &x,
                                int lane, const Table &table, const Outside<D> &outside, int elem,
                                Acc<D> (&acc)[N])
    {
        constexpr int kUnits = Pieces<D>::kUnits;
        if (kUnits == 1 || units == kUnits) {
            team_sums<D, N, kUnits>(weights, block, x, lane, table, outside, elem, acc);
            return;
        }
        if constexpr (kUnits > 1) {
#pragma unroll 1
            for (int u = 0; u < units; u++)
                team_sums<D, N, 1>(weights + u * D::kUnitBytes, block + u * D::kBlocks, x, lane,
                                   table, outside, elem + 32 * D::kBlocks * u, acc);
        }
    }
};

template <typename D, int N, int M, bool Argmax>
__global__ void __launch_bounds__(32 * kLongWarps<D, N, M>, kRingBlocks<D, N, M>)
    ring(const __grid_constant__ RingArgs a)
{
    using Shared = RingShared<D, N, M>;
    using Acts = RingActs<D, N, M>;
    constexpr int kUnits = Pieces<D>::kUnits;
    constexpr int kBlocks = Pieces<D>::kElems / 32; // of a piece
    extern __shared__ __align__(1024) uint8_t memory[];
    if (M > 1 && a.open_early) edge_open(); // there is no room for it anyhow before this CTA ends
    const int lane = threadIdx.x & 31;
    const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x >> 5), 0); // uniform
    const Share own(a);
    const PieceCounts &p = a.pieces;
    int32_t *count = reinterpret_cast<int32_t *>(memory + Shared::kTable) + warp;
    int32_t *is_last = reinterpret_cast<int32_t *>(memory + Shared::kTable + Shared::kCount);
    uint64_t *bars = reinterpret_cast<uint64_t *>(is_last + Shared::kLast / 4);
    uint64_t *acts_bar = bars + a.warps * a.depth;
    uint64_t *best_of_cta = bars + Shared::kBars / 8;
    Ring<D, N, M> r = {};
    r.slots = memory + Shared::kRing + warp * a.depth * Shared::kSlot;
    r.bars = bars + warp * a.depth;
    r.depth = a.depth;
    r.of_team = warp % M;
    r.ahead = r.route.begin(a, own, warp / M, a.warps / M);
    Way way = r.ahead;
    const int padded = p.of_part * Pieces<D>::kElems, col = own.part * padded;
    const int cols = min(padded, a.k - col);

    if (lane == 0) {
#pragma unroll 1
        for (int i = 0; i < a.depth; i++) barrier_init(r.bars + i);
        if (warp == 0) barrier_init(acts_bar);
        barrier_init_done();
    }
    __syncwarp();
    if (way.n > 0) r.find(a, p, own);
#pragma unroll 1
    for (int i = 0; i < a.depth; i++) r.fetch(a, p, own, lane == 0);
    const RingTable<D> table(memory, lane);
    table.fill(memory);
    if (Argmax)
        for (int c = threadIdx.x; c < 8 * N; c += blockDim.x) best_of_cta[c] = 0;
    if (M == 1) clear_padding(memory + a.at.acts, a.at.act_step, a.rows, 2 * cols);
    __syncthreads();
    edge_wait();
    if (!a.open_early || (M == 1 && r.ahead.n == 0)) edge_open();
    if (lane == 0) copy_async4(count, a.count); // not needed before the end
    copy_async_commit();

    const auto x = Acts::stage(a, memory, col, cols, padded, acts_bar, warp, lane);
    if constexpr (UnitSums<D>::kThere) {
        sum_blocks<D, N>(x, a.warps, (cols + 31) / 32, warp, lane);
        __syncthreads();
    }

    float *slices = reinterpret_cast<float *>(memory + a.at.slices), *slice = slices;
    if (a.spread)
        slice += (((way.tile - own.first) * M + r.of_team) * p.slices + way.piece / p.of_slice) *
                 Shared::kTile;
    uint64_t best[N][2] = {};
    for (; way.n > 0; r.route.next(way, p)) {
        const int before = own.part * p.of_part + way.piece; // pieces of K
        const int tile = r.tile_of(a, way);
        const bool ends = before + way.n == p.n;
        const Segment seg = segment_of(a.seg, tile);
        uint32_t at_piece = skew<D>(weights_at<D>(seg, p, tile, before));
        const Outside<D> outside(seg, tile, lane, a.k);
        int block = way.piece * kBlocks, in_slice = p.of_slice;
        Acc<D> acc[N] = {};
        float total[N][4] = {};
        for (int left = way.n; left > 0; left--) {
            const uint8_t *weights = r.wait() + at_piece;
            const int units = kUnits > 1 && left == 1 && ends ? p.last_units : kUnits;
            Acts::sums(weights, units, block, x, lane, table, outside, col + 32 * block, acc);
            r.done(a, p, own, lane);
            // Sooner, the next node's copies would be in the way of these.
            if (M == 1 && a.open_early && r.ahead.n == 0) edge_open();
            block += kBlocks;
            at_piece = (at_piece + Pieces<D>::kBytes) & 127u;
            if (--in_slice > 0 && left > 1) continue;
            in_slice = p.of_slice;
            if (a.spread) {
                store_slice<D, N>(slice, lane, acc);
                slice += Shared::kTile;
            }
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    total[n][j] += acc[n].slice[j];
                    acc[n].slice[j] = 0;
                }
        }
        slice += (M - 1) * p.slices * Shared::kTile; // those of the others
        if (!a.spread && (M == 1 || way.tile * M + r.of_team == tile))
            emit_tile<N, Argmax>(a, seg, own.part, tile, lane, live_of(a, count), total, best);
    }
    if (a.spread) {
        __syncthreads();
        const int live = live_of(a, count);
        if (live > 0) emit_shared<N, M, Argmax>(a, slices, own, p.slices, live, best_of_cta);
    }
    if constexpr (Argmax) finish_keys<N>(a, live_of(a, count), lane, best, best_of_cta, is_last);
}

} // namespace sk
