/* Products for up to 40 rows: one CTA walks over tiles of 16 outputs, one warp a slice of K. The
 * weights of the first unit are in registers before the dependency wait; after it come one load of
 * the activations, the MMAs, one exchange through shared memory, and the epilogue. */
#pragma once

#include "kernels/common/gates.cuh"
#include "kernels/common/keys.cuh"
#include "kernels/linear/product.cuh"

namespace sk
{

enum class Epilogue : int32_t { kStore, kAdd, kArgmax };

struct Segment {
    const uint8_t *w;
    const float *bias; // NULL: none
    float *y;
    int64_t y_step;
    int32_t n;          // outputs
    int32_t tile;       // its first tile
    const float *scale; // beside the weight: of output o and element k, or NULL:
    int64_t scale_step; // scale[o / scale_n * scale_step + (k >> scale_shift)]
    int32_t scale_n, scale_shift;
};

struct Segments {
    Segment of[SK_LINEAR_SEGS]; // of the gated form: gate and up
    int32_t n;
    int32_t n_tiles;
};

struct NarrowArgs {
    Segments seg;
    const void *x; // BF16, or F32 with a norm
    int64_t x_step;
    const float *gain;
    const int32_t *count;
    int32_t row0; // first row of the pass that this launch does
    int32_t rows; // capacity from row0 on
    int32_t k;
    float part; // 1 / k
    float eps;
    Epilogue epilogue;
    int32_t rows_ready;
    int32_t open_early; // as in sk_launch
    int32_t sets;       // of partial sums in shared memory
    uint16_t *hidden;   // gated: BF16 [rows, n]
    int64_t hidden_step;
    int32_t gelu;
    int32_t *id;    // argmax
    uint64_t *keys; // [40], then the counter
};

constexpr int kNarrowRows = 40;

/* Warps of a CTA at most: as many as a format has slices while registers allow it. With fewer warps
 * than slices a warp does several, one after the other, which changes no sum. */
template <typename D, int N, int T> constexpr int narrow_warps()
{
    if (D::kBlocks > 2 || N > 2) return 8; // a unit's share is most of the registers of a lane
    return N == 1 && T == 1 ? D::kWarps : 12;
}

template <typename D, int N, int T> struct NarrowShared {
    static constexpr int kCols = 8 * N;
    static constexpr int kTile = T * 16 * kCols; // floats of one slice
    /* Partial sums (two sets, so that a loop over tiles takes one barrier each), squares, keys. */
    static size_t bytes(int slices, int sets)
    {
        return sizeof(float) * slices * (sets * kTile + kCols) + sizeof(uint64_t) * kCols;
    }
};

/* The segment that a tile belongs to; its number is never an index, which would put the arguments
 * into local memory. */
__device__ inline Segment segment_of(const Segments &s, int tile)
{
    Segment found = s.of[0];
#pragma unroll
    for (int i = 1; i < SK_LINEAR_SEGS; i++)
        if (i < s.n && tile >= s.of[i].tile) found = s.of[i];
    return found;
}

/* Scales beside the weights of a tile, for the lane's two rows. */
template <typename D> struct Outside {
    const float *row[2];
    int shift, last;

    __device__ Outside(const Segment &seg, int tile, int lane, int k)
    {
        shift = seg.scale_shift;
        last = (k - 1) >> shift;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int o = min((tile - seg.tile) * 16 + (lane >> 2) + 8 * h, seg.n - 1);
            row[h] = nullptr;
            if (kOutside<D> && seg.scale) row[h] = seg.scale + o / seg.scale_n * seg.scale_step;
        }
    }

    /* Into the scales of a block, from element k on. */
    __device__ void apply(Block<D> &b, int k) const
    {
        if constexpr (kOutside<D>) {
            if (!row[0]) return;
#pragma unroll
            for (int step = 0; step < kStepsOf<D>; step++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    b.scale[step][h] *= row[h][min((k + 16 * step) >> shift, last)];
        }
    }
};

/* One thread, one output: o of 16, column c. Returns its key for the argmax. */
template <typename D, int N, int T>
__device__ inline uint64_t finish_output(const NarrowArgs &a, int tile, int o, int c,
                                         const float *part, int slices, float factor, float old)
{
    using Shared = NarrowShared<D, N, T>;
    float sum[T];
#pragma unroll
    for (int i = 0; i < T; i++) {
        sum[i] = 0;
#pragma unroll 8
        for (int w = 0; w < slices; w++)
            sum[i] += part[w * Shared::kTile + (i * 16 + o) * Shared::kCols + c];
        sum[i] *= factor;
    }
    const Segment seg = T == 2 ? a.seg.of[0] : segment_of(a.seg, tile);
    const int out = (tile - seg.tile) * 16 + o;
    if (out >= seg.n) return 0;
    if constexpr (T == 2) {
        const float gate = a.seg.of[0].bias ? sum[0] + a.seg.of[0].bias[out] : sum[0];
        const float up = a.seg.of[1].bias ? sum[1] + a.seg.of[1].bias[out] : sum[1];
        const float h = (a.gelu ? gelu_tanh(gate) : silu(gate)) * up;
        a.hidden[(a.row0 + c) * a.hidden_step + out] = bf16_bits(h);
    } else {
        const float y = seg.bias ? sum[0] + seg.bias[out] : sum[0];
        if (a.epilogue == Epilogue::kArgmax) return best_key(y, static_cast<uint32_t>(out));
        float *at = seg.y + (a.row0 + c) * seg.y_step + out;
        *at = a.epilogue == Epilogue::kAdd ? old + y : y;
    }
    return 0;
}

/* The best of sixteen neighbouring lanes. */
__device__ inline uint64_t best_of_16(uint64_t key)
{
#pragma unroll
    for (int d = 8; d > 0; d >>= 1)
        key = best_of(key, __shfl_xor_sync(0xFFFFFFFFu, static_cast<unsigned long long>(key), d));
    return key;
}

/* What the sum of output o, column c is added to. */
__device__ inline float old_value(const NarrowArgs &a, int tile, int o, int c, int live)
{
    const Segment seg = segment_of(a.seg, tile);
    const int out = (tile - seg.tile) * 16 + o;
    if (a.epilogue != Epilogue::kAdd || c >= live || out >= seg.n) return 0;
    return seg.y[(a.row0 + c) * seg.y_step + out];
}

/* Outputs of one tile; `best` keeps the largest key of each column so far, always by one thread. */
template <typename D, int N, int T, bool Norm>
__device__ inline void finish_tile(const NarrowArgs &a, int tile, int live, const float *part,
                                   const float *squares, int slices, float old, uint64_t *best)
{
    for (int i = threadIdx.x; i < 16 * (live + (live & 1)); i += blockDim.x) {
        const int o = i & 15, c = i >> 4;
        uint64_t key = 0;
        if (c < live) {
            const float factor =
                Norm ? norm_factor(squares + c, slices, 8 * N, a.part, a.eps) : 1.0f;
            if (T == 1 && i != static_cast<int>(threadIdx.x)) old = old_value(a, tile, o, c, live);
            key = finish_output<D, N, T>(a, tile, o, c, part, slices, factor, old);
        }
        if (T == 2 || a.epilogue != Epilogue::kArgmax) continue;
        key = best_of_16(key);
        if (o == 0 && key > best[c]) best[c] = key;
    }
}

/* The last CTA turns the keys into ids and leaves them as it found them. `last` is shared memory in
 * which no barrier object was ever initialised: when a time slice ends in between, one that is
 * still valid comes back as the hardware knows it and not as it was written over. Seen on an H200
 * shared by ten processes: several CTAs of a launch then took themselves for the last. */
__device__ inline void finish_argmax(uint64_t *keys, int32_t *id, int live, int *last)
{
    uint32_t *counter = reinterpret_cast<uint32_t *>(keys + kNarrowRows);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *last = atomicAdd(counter, 1u) == gridDim.x - 1;
    __syncthreads();
    if (!*last) return;
    __threadfence();
    if (threadIdx.x == 0) *counter = 0;
    for (int c = threadIdx.x; c < live; c += blockDim.x)
        id[c] = static_cast<int32_t>(
            best_index(atomicExch(reinterpret_cast<unsigned long long *>(keys + c), 0ull)));
}

template <typename D, int T>
__device__ inline void load_frags(typename D::Frag (&f)[T], const Segments &s, int tile, int unit,
                                  int units, int lane)
{
#pragma unroll
    for (int i = 0; i < T; i++) {
        const Segment seg = T == 2 ? s.of[i] : segment_of(s, tile);
        const int64_t at = static_cast<int64_t>(tile - seg.tile) * units + unit;
        f[i] = D::load(FromGlobal{seg.w + at * D::kUnitBytes}, lane);
    }
}

/* What a lane needs of the activations of one block, as it is in memory: all loads of a stage go
 * out before the first of them is used. */
template <int N, bool Norm> struct Columns {
    uint32_t act[N][4]; // without a norm
    float x[Norm ? N : 1][8];
    float gain[8];
};

template <typename D, int N, bool Norm>
__device__ inline void load_columns(Columns<N, Norm> &c, const NarrowArgs &a, int at, int lane,
                                    int groups, int last_row)
{
    const int g = lane >> 2, t = lane & 3;
    if constexpr (Norm) load_f32<D::kGroup>(c.gain, a.gain + at, t);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int64_t row = a.row0 + min(8 * i + g, last_row);
        if (i >= groups) continue;
        if constexpr (Norm)
            load_f32<D::kGroup>(c.x[i], static_cast<const float *>(a.x) + row * a.x_step + at, t);
        else
            load_act<D::kGroup>(c.act[i], static_cast<const uint16_t *>(a.x) + row * a.x_step + at,
                                t);
    }
}

template <int N, bool Norm>
__device__ inline void round_columns(uint32_t (&x)[N][4], const Columns<N, Norm> &c, int groups,
                                     float (&squares)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (i >= groups) continue;
        if constexpr (Norm) {
            norm_act(x[i], c.x[i], c.gain, &squares[i]);
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++) x[i][j] = c.act[i][j];
        }
    }
}

/* One unit of one or two tiles, two blocks a stage. */
template <typename D, int N, int T, bool Norm>
__device__ inline void unit_product(const typename D::Frag (&f)[T], const NarrowArgs &a, int unit,
                                    int lane, int groups, int last_row, float (&squares)[N],
                                    Acc<D> (&acc)[T][N])
{
    constexpr int kStage = D::kBlocks < 2 || N == 5 ? 1 : 2;
    const NoTable no_table;
    const int first = unit * D::kBlocks, blocks = a.k / 32;
#pragma unroll
    for (int b = 0; b < D::kBlocks; b += kStage) {
        Columns<N, Norm> c[kStage];
#pragma unroll
        for (int i = 0; i < kStage; i++) // a half-filled last unit reads its first block twice
            load_columns<D, N, Norm>(c[i], a, 32 * min(first + b + i, blocks - 1), lane, groups,
                                     last_row);
#pragma unroll
        for (int i = 0; i < kStage; i++) {
            uint32_t x[N][4];
            float sums[N][2];
            if (first + b + i >= blocks) continue;
            round_columns<N, Norm>(x, c[i], groups, squares);
#pragma unroll
            for (int n = 0; n < N; n++)
                if (D::kMin && n < groups) block_sums(sums[n], x[n]);
#pragma unroll
            for (int j = 0; j < T; j++) {
                const Block<D> k = decode_block<D>(f[j], b + i, no_table);
#pragma unroll
                for (int n = 0; n < N; n++) {
                    if (n >= groups) continue;
                    acc[j][n].add(k, x[n]);
                    if (D::kMin) acc[j][n].add_min(k, sums[n]);
                }
            }
        }
    }
}

template <typename D, int N, int T>
__device__ inline void store_parts(float *part, int lane, const Acc<D> (&acc)[T][N])
{
    constexpr int kCols = NarrowShared<D, N, T>::kCols;
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int i = 0; i < T; i++)
#pragma unroll
        for (int n = 0; n < N; n++) {
            float *at = part + (i * 16 + g) * kCols + 8 * n + 2 * t;
            *reinterpret_cast<float2 *>(at) = make_float2(acc[i][n].slice[0], acc[i][n].slice[1]);
            *reinterpret_cast<float2 *>(at + 8 * kCols) =
                make_float2(acc[i][n].slice[2], acc[i][n].slice[3]);
        }
}

/* What a warp does after unit u of a slice: the next unit, slice or tile. */
struct Next {
    bool there;
    int tile, unit;
};

__device__ inline Next next_of(const Slices &s, int tile, int slice, int u, int end, int n_warps,
                               int warp, int n_tiles)
{
    const int further = tile + static_cast<int>(gridDim.x);
    if (u + 1 < end) return {true, tile, u + 1};
    if (slice + n_warps < s.n) return {true, tile, (slice + n_warps) * s.per};
    return {further < n_tiles, further, warp * s.per};
}

template <int N>
__device__ inline void store_squares(float *to, int lane, const float (&squares)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float q = quad_sum(squares[i]);
        if ((lane & 3) == 0) to[8 * i + (lane >> 2)] = q;
    }
}

template <typename D, int N, int T, bool Norm>
__global__ void __launch_bounds__(32 * narrow_warps<D, N, T>(), 1) narrow(const NarrowArgs a)
{
    using Shared = NarrowShared<D, N, T>;
    constexpr bool kAhead = D::kBlocks <= 2 || (T == 1 && N < 5); // registers for the next unit
    extern __shared__ float shared[];
    if (a.open_early) edge_open();
    const Slices s = slices_of<D>(a.k);
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n_warps = blockDim.x >> 5;
    float *squares_of = shared + a.sets * s.n * Shared::kTile;
    uint64_t *best = reinterpret_cast<uint64_t *>(squares_of + s.n * Shared::kCols);
    typename D::Frag f[T];
    int live, set = 0;

    load_frags<D, T>(f, a.seg, blockIdx.x, warp * s.per, s.units, lane);
    live = a.rows_ready ? live_rows(a.count, a.row0 + a.rows) - a.row0 : 0;
    for (int c = threadIdx.x; c < Shared::kCols; c += blockDim.x) best[c] = 0;
    edge_wait();
    if (!a.open_early) edge_open();
    if (!a.rows_ready) live = live_rows(a.count, a.row0 + a.rows) - a.row0;
    live = max(live, 0);
    const int groups = (live + 7) / 8, last_row = max(live - 1, 0);

    for (int tile = blockIdx.x; tile < a.seg.n_tiles && live > 0; tile += gridDim.x) {
        float *part = shared + set * s.n * Shared::kTile;
        // Asked for now, needed at the end.
        const float old = T == 1 ? old_value(a, tile, threadIdx.x & 15, threadIdx.x >> 4, live) : 0;
        for (int slice = warp; slice < s.n; slice += n_warps) {
            const int first = slice * s.per, end = min(first + s.per, s.units);
            Acc<D> acc[T][N] = {};
            float squares[N] = {};
            for (int u = first; u < end; u++) {
                const Next next = next_of(s, tile, slice, u, end, n_warps, warp, a.seg.n_tiles);
                if constexpr (kAhead) {
                    typename D::Frag now[T];
#pragma unroll
                    for (int i = 0; i < T; i++) now[i] = f[i];
                    if (next.there) load_frags<D, T>(f, a.seg, next.tile, next.unit, s.units, lane);
                    unit_product<D, N, T, Norm>(now, a, u, lane, groups, last_row, squares, acc);
                } else {
                    unit_product<D, N, T, Norm>(f, a, u, lane, groups, last_row, squares, acc);
                    if (next.there) load_frags<D, T>(f, a.seg, next.tile, next.unit, s.units, lane);
                }
            }
            store_parts<D, N, T>(part + slice * Shared::kTile, lane, acc);
            if constexpr (Norm) // the same numbers for every tile
                store_squares<N>(squares_of + slice * Shared::kCols, lane, squares);
        }
        __syncthreads();
        finish_tile<D, N, T, Norm>(a, tile, live, part, squares_of, s.n, old, best);
        if (a.sets == 1)
            __syncthreads();
        else
            set ^= 1;
    }
    if (T == 1 && a.epilogue == Epilogue::kArgmax) {
        for (int i = threadIdx.x; i < 16 * live; i += blockDim.x)
            if ((i & 15) == 0)
                atomicMax(reinterpret_cast<unsigned long long *>(a.keys + (i >> 4)),
                          static_cast<unsigned long long>(best[i >> 4]));
        finish_argmax(a.keys, a.id + a.row0, live, reinterpret_cast<int *>(shared));
    }
}

} // namespace sk
