/* Products of large weights for up to 40 rows, held near the memory: one CTA a multiprocessor walks
 * over its items, a tile of 16 outputs by a part of K each, and every warp has a ring of bulk
 * copies of its own, so that weights are always on their way. The first of them, and the codebook,
 * come before the dependency wait; where two of these CTAs fit on a multiprocessor, the next node
 * fills its rings while this one computes.
 *
 * A warp does a whole item, or, where there are too few for the warps, the warps of a CTA share
 * items by slices, which meet in shared memory at the end. The sums are those of product.cuh in any
 * case. Not for a short K of plain types. */
#pragma once

#include "kernels/common/bulk.cuh"
#include "kernels/linear/narrow.cuh"
#include "kernels/linear/table.cuh"

namespace sk
{

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
    int32_t rows_ready, open_early;
    int32_t depth;  // of a ring, in pieces
    int32_t spread; // warps share tiles
    int32_t warps;  // of a CTA
    int32_t *id;    // argmax
    uint64_t *keys; // [40], then the counter
};

/* How K is walked. A piece is what one bulk copy brings: 256 elements of 16 rows, or 128 where that
 * is already 4 KB. */
template <typename D> struct Pieces {
    static constexpr int kElems = D::kUnitBytes >= 64 * D::kBlocks * 16 ? 128 : 256;
    static constexpr int kUnits = kElems / (32 * D::kBlocks);
    static constexpr int kBytes = kUnits * D::kUnitBytes;

    int units, n;   // of K
    int of_slice;   // pieces of a slice
    int slices;     // of a part
    int of_part;    // pieces of a part
    int last_units; // of the last piece of K

    __host__ __device__ Pieces(int64_t k, int parts)
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
 * there is room in shared memory for one CTA only, and that one can have more of them. */
template <typename D> constexpr bool kManyRegisters = D::kType == SK_IQ2_XXS;
template <typename D, int N> constexpr int kRingResidents = N < 3 && !kManyRegisters<D> ? 2 : 1;
template <typename D, int N>
constexpr int kRingWarps = kManyRegisters<D> ? 8
                           : N == 1          ? 10
                           : N == 3          ? 16
                                             : 8;

/* Shared memory of a CTA, in this order: codebook, barriers, keys, rings, sums of blocks of
 * activations, activations, slices of shared items. */
template <typename D, int N> struct RingShared {
    static constexpr int kCols = 8 * N;
    static constexpr int kTable = kSharedTableBytes<D>;
    static constexpr int kBars = 8 * 80; // of the rings, behind them that of the activations
    static_assert(kRingWarps<D, N> * 4 < 80, "too many barriers");
    static constexpr int kBest = 8 * kCols;
    static constexpr int kTile = 16 * kCols; // floats of a slice
    static constexpr int kRing = (kTable + kBars + kBest + 127) / 128 * 128;
    static constexpr int kSlot =
        (Pieces<D>::kBytes + 127) / 128 * 128 + (Pieces<D>::kBytes % 128 ? 128 : 0);
    static constexpr int kPad = D::kGroup == 32 ? 64 : 32; // so that eight rows hit all banks

    int act_step; // bytes between rows
    int sums, acts, slices, bytes;

    __host__ __device__ RingShared(const RingArgs &a, const Pieces<D> &p, int shared_items)
    {
        const int cols = p.of_part * Pieces<D>::kElems;
        act_step = 2 * cols + kPad;
        sums = kRing + a.warps * a.depth * kSlot;
        acts = sums + (UnitSums<D>::kThere ? cols / D::kGroup * kCols * 4 : 0);
        slices = acts + a.rows * act_step;
        bytes = slices + shared_items * p.slices * kTile * 4;
    }
};

/* Which part of K a CTA has, and its tiles: the CTAs of a part are neighbours. */
struct Share {
    int part, first, n;

    __device__ explicit Share(const RingArgs &a)
    {
        const unsigned of_part = gridDim.x / a.parts, tiles = a.seg.n_tiles;
        const unsigned cta = blockIdx.x % of_part;
        part = static_cast<int>(blockIdx.x / of_part);
        first = static_cast<int>(cta * tiles / of_part);
        n = static_cast<int>((cta + 1) * tiles / of_part) - first;
    }
};

/* A warp's way: runs of consecutive pieces of a tile each. */
struct Way {
    int tile, piece; // where the run begins; the piece counts from the part's first
    int n;           // pieces of the run; 0: the end
    int left;        // pieces behind it
};

template <typename D> struct Route {
    int stride; // tiles, to the next run

    __device__ Way begin(const RingArgs &a, const Pieces<D> &p, const Share &own, int warp)
    {
        Way w;
        if (a.spread) { // whole slices; the last one of a tile may be short
            const int runs = own.n * p.slices;
            const int from = warp * runs / a.warps, to = (warp + 1) * runs / a.warps;
            const int start = from / p.slices, end = to / p.slices;
            const int last = end * p.of_part + (to - end * p.slices) * p.of_slice;
            stride = 1;
            w.tile = own.first + start;
            w.piece = (from - start * p.slices) * p.of_slice;
            w.left = last - start * p.of_part - w.piece;
        } else {
            stride = a.warps;
            w.tile = own.first + warp;
            w.piece = 0;
            w.left = (own.n - warp + stride - 1) / stride * p.of_part;
        }
        w.n = min(p.of_part - w.piece, w.left);
        w.left -= w.n;
        return w;
    }

    __device__ void next(Way &w, const Pieces<D> &p) const
    {
        w.tile += stride;
        w.piece = 0;
        w.n = min(p.of_part, w.left);
        w.left -= w.n;
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
__device__ inline const uint8_t *weights_at(const Segment &seg, const Pieces<D> &p, int tile,
                                            int piece)
{
    const int unit = piece * Pieces<D>::kUnits;
    return seg.w + (static_cast<int64_t>(tile - seg.tile) * p.units + unit) * D::kUnitBytes;
}

/* One warp's ring: lane 0 asks for pieces, all lanes use them in the same order. What is the same
 * in all lanes is computed by all. */
template <typename D, int N> struct Ring {
    static constexpr int kSlot = RingShared<D, N>::kSlot;
    uint8_t *slots;
    uint64_t *bars;
    Route<D> route;
    int depth, put, take;
    uint32_t parity;
    Way ahead;           // the run that pieces are asked of, n of it left
    const uint8_t *from; // the next one
    uint32_t last_bytes; // of the run's last piece

    /* The weights of the run. */
    __device__ void find(const RingArgs &a, const Pieces<D> &p, const Share &own)
    {
        const int piece = own.part * p.of_part + ahead.piece;
        from = weights_at<D>(segment_of(a.seg, ahead.tile), p, ahead.tile, piece);
        last_bytes = (piece + ahead.n == p.n ? p.last_units : Pieces<D>::kUnits) * D::kUnitBytes;
    }

    __device__ void fetch(const RingArgs &a, const Pieces<D> &p, const Share &own, bool mine)
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
    __device__ void done(const RingArgs &a, const Pieces<D> &p, const Share &own, int lane)
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
 * their arrival. */
__device__ inline void stage_rows(const RingArgs &a, uint8_t *to, int act_step, int col, int cols,
                                  int live, uint64_t *bar)
{
    const int lane = threadIdx.x & 31;
    const uint32_t bytes = static_cast<uint32_t>(cols) * 2;
    barrier_expect(bar, static_cast<uint32_t>(live) * bytes, lane == 0);
    __syncwarp();
    for (int r = lane; r < live; r += 32)
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
        shared_act<Group>(v, reinterpret_cast<const uint16_t *>(acts + at[n] + block * 64), 0);
    }
};

/* Sums of all blocks, for minima in steps of their unit's. */
template <typename D, int N>
__device__ inline void sum_blocks(const Present<N> &x, int warps, int blocks, int warp, int lane)
{
    for (int b = warp; b < blocks; b += warps)
#pragma unroll
        for (int n = 0; n < N; n++) {
            uint32_t v[4];
            float s[kStepsOf<D>][2];
            x.template load<D::kGroup>(v, n, b);
            step_sums<D>(s, v);
#pragma unroll
            for (int step = 0; step < kStepsOf<D>; step++)
                if (lane < 4)
                    *reinterpret_cast<float2 *>(x.sums + (b * kStepsOf<D> + step) * 8 * N + 8 * n +
                                                2 * lane) = make_float2(s[step][0], s[step][1]);
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
template <int N, bool Argmax>
__device__ inline void emit_shared(const RingArgs &a, const float *at, const Share &own, int slices,
                                   int live, uint64_t *best)
{
    constexpr int kCols = 8 * N, kTile = 16 * kCols;
    for (int i = threadIdx.x; i < own.n * 16 * live; i += blockDim.x) {
        const int o = i & 15, c = (i >> 4) % live, mine = (i >> 4) / live, tile = own.first + mine;
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

template <typename D, int N, bool Argmax>
__global__ void __launch_bounds__(32 * kRingWarps<D, N>, kRingResidents<D, N>)
    ring(const __grid_constant__ RingArgs a)
{
    using Shared = RingShared<D, N>;
    constexpr int kUnits = Pieces<D>::kUnits;
    constexpr int kBlocks = Pieces<D>::kElems / 32; // of a piece
    extern __shared__ __align__(1024) uint8_t memory[];
    if (a.open_early) edge_open();
    const int lane = threadIdx.x & 31;
    const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x >> 5), 0); // uniform
    const Share own(a);
    const Pieces<D> p(a.k, a.parts);
    const Shared at(a, p, 0);
    uint64_t *bars = reinterpret_cast<uint64_t *>(memory + Shared::kTable);
    uint64_t *acts_bar = bars + a.warps * a.depth;
    uint64_t *best_of_cta = bars + Shared::kBars / 8;
    Ring<D, N> r = {};
    r.slots = memory + Shared::kRing + warp * a.depth * Shared::kSlot;
    r.bars = bars + warp * a.depth;
    r.depth = a.depth;
    r.ahead = r.route.begin(a, p, own, warp);
    Way way = r.ahead;
    const int col = own.part * p.of_part * Pieces<D>::kElems;
    const int cols = min(p.of_part * Pieces<D>::kElems, a.k - col);
    int live;

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
    clear_padding(memory + at.acts, at.act_step, a.rows, 2 * cols);
    live = a.rows_ready ? live_rows(a.count, a.row0 + a.rows) - a.row0 : 0;
    __syncthreads();
    edge_wait();
    if (!a.open_early) edge_open();
    if (!a.rows_ready) live = live_rows(a.count, a.row0 + a.rows) - a.row0;
    live = max(live, 0);

    if (warp == 0) stage_rows(a, memory + at.acts, at.act_step, col, cols, max(live, 1), acts_bar);
    Present<N> x = {memory + at.acts, reinterpret_cast<float *>(memory + at.sums), {}};
#pragma unroll
    for (int n = 0; n < N; n++)
        x.at[n] = min(8 * n + (lane >> 2), max(live - 1, 0)) * at.act_step +
                  (D::kGroup == 32 ? 16 : 8) * (lane & 3);
    if (!SK_BULK) __syncthreads();
    barrier_wait(acts_bar, 0);
    if constexpr (UnitSums<D>::kThere) {
        sum_blocks<D, N>(x, a.warps, (cols + 31) / 32, warp, lane);
        __syncthreads();
    }

    float *slices = reinterpret_cast<float *>(memory + at.slices), *slice = slices;
    if (a.spread)
        slice += ((way.tile - own.first) * p.slices + way.piece / p.of_slice) * Shared::kTile;
    uint64_t best[N][2] = {};
    for (; way.n > 0; r.route.next(way, p)) {
        const int before = own.part * p.of_part + way.piece; // pieces of K
        const bool ends = before + way.n == p.n;
        const Segment seg = segment_of(a.seg, way.tile);
        uint32_t at_piece = skew<D>(weights_at<D>(seg, p, way.tile, before));
        const Outside<D> outside(seg, way.tile, lane, a.k);
        int block = way.piece * kBlocks, in_slice = p.of_slice;
        Acc<D> acc[N] = {};
        float total[N][4] = {};
        for (int left = way.n; left > 0; left--) {
            const uint8_t *weights = r.wait() + at_piece;
            const int units = kUnits > 1 && left == 1 && ends ? p.last_units : kUnits;
#pragma unroll
            for (int u = 0; u < kUnits; u++)
                if (u == 0 || u < units)
                    unit_sums<D, N>(weights + u * D::kUnitBytes, block + u * D::kBlocks, x, lane,
                                    table, outside, col + 32 * (block + u * D::kBlocks), acc);
            r.done(a, p, own, lane);
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
        if (!a.spread) emit_tile<N, Argmax>(a, seg, own.part, way.tile, lane, live, total, best);
    }
    if (a.spread) {
        __syncthreads();
        if (live > 0) emit_shared<N, Argmax>(a, slices, own, p.slices, live, best_of_cta);
    }
    if constexpr (Argmax)
        finish_keys<N>(a, live, lane, best, best_of_cta, reinterpret_cast<int *>(bars));
}

} // namespace sk
