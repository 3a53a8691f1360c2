/* The blocks of the highest scores. Scores have the definition's bits: eight sums of a product, by
 * the element's number mod 8, and their tree. Four lanes have a block, two of the sums each;
 * queries come from shared memory. Scores go through the step's scratch to the CTA that chooses:
 * the order-preserving keys' K-th largest by four counts of eight bits each, then all blocks above
 * it and the first of those that equal it, in order. */
#pragma once

#include "kernels/common/keys.cuh"
#include "kernels/sparse/divisor.cuh"
#include "kernels/sparse/pool.cuh"
#include "kernels/sparse/sizes.h"

namespace sk
{

constexpr int32_t kScoreThreads = 128;
constexpr int32_t kLaneBlocks = 2;                                // of four lanes
constexpr int32_t kScoreBlocks = kScoreThreads / 4 * kLaneBlocks; // of a CTA
constexpr int32_t kScoreHeads = 4;                                // at a time
constexpr int32_t kScoreGroups = 16; // of eight elements, whose loads are in flight at a time
constexpr int32_t kBins = 256;
constexpr int32_t kScoreShared = 48 * 1024;

struct topk_views {
    heads<const __nv_bfloat16> q;
    slot_rows<const __nv_bfloat16> pooled;
    rows<const sk_row> at;
    rows<int32_t> out;
    float *score; // [rows of a launch, n_max]
    int32_t n_max;
    int32_t n_heads, n; // n elements of a head
    int32_t k;
    divisor ratio;
    int32_t first; // row of the launch's first CTA
    float scale;
    int32_t wide; // keys may be read two elements at a time
};

/* Blocks that are complete at a position. */
__device__ inline int32_t whole_blocks(int32_t pos, const divisor &ratio)
{
    return static_cast<int32_t>(divided(static_cast<uint32_t>(pos) + 1, ratio));
}

/* A lane's two elements of each group of eight, as they are stored. */
struct lane_keys {
    uint32_t x[kLaneBlocks][kScoreGroups];
};

/* Of the groups from element `from` on; zero behind the end, and where a block is not there. */
__device__ inline lane_keys load_keys(const topk_views &v, int32_t slot, int32_t block, int32_t n,
                                      int32_t from)
{
    const int32_t i = from + static_cast<int32_t>(threadIdx.x) % 4 * 2;
    lane_keys keys;
#pragma unroll
    for (int u = 0; u < kLaneBlocks; u++) {
        const int32_t b = block + u * 8;
        const __nv_bfloat16 *k = v.pooled.at(slot, b < n ? b : 0) + i;
        const int32_t end = b < n ? v.n - i : 0;
#pragma unroll
        for (int g = 0; g < kScoreGroups; g++) {
            uint32_t x = 0;
            if (v.wide) {
                if (8 * g < end) x = *reinterpret_cast<const uint32_t *>(k + 8 * g);
            } else {
                if (8 * g < end) x = __bfloat16_as_ushort(k[8 * g]);
                if (8 * g + 1 < end)
                    x |= static_cast<uint32_t>(__bfloat16_as_ushort(k[8 * g + 1])) << 16;
            }
            keys.x[u][g] = x;
        }
    }
    return keys;
}

/* The queries to shared memory, in F32, [heads, pitch], with zeros behind the end. A warp has a
 * head; four loads of a lane are in flight. */
__device__ inline void stage_queries(const topk_views &v, int32_t r, float *q, int32_t pitch)
{
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    for (int32_t h = static_cast<int32_t>(threadIdx.x) / 32; h < v.n_heads;
         h += kScoreThreads / 32) {
        const __nv_bfloat16 *from = v.q.at(r, h);
#pragma unroll 1
        for (int32_t i = lane; i < pitch; i += 128) {
            float x[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                x[j] = i + 32 * j < v.n ? from_bf16(from[i + 32 * j]) : 0.0f;
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (i + 32 * j < pitch) q[h * pitch + i + 32 * j] = x[j];
        }
    }
}

/* Two sums of each block and head, over the groups from `from` on. Zeros behind the end of both
 * change nothing. `q` is of the first head; heads that are not there repeat the last one. */
__device__ inline void add_groups(float (&acc)[kLaneBlocks][kScoreHeads][2], const topk_views &v,
                                  const lane_keys &keys, const float *const (&q)[kScoreHeads],
                                  int32_t from)
{
    const int32_t i = from + static_cast<int32_t>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int g = 0; g < kScoreGroups; g++) {
        if (from + 8 * g >= v.n) break;
#pragma unroll
        for (int h = 0; h < kScoreHeads; h++) {
            const float2 y = *reinterpret_cast<const float2 *>(q[h] + i + 8 * g);
#pragma unroll
            for (int u = 0; u < kLaneBlocks; u++) {
                const uint32_t x = keys.x[u][g];
                acc[u][h][0] = fmaf(y.x, __uint_as_float(x << 16), acc[u][h][0]);
                acc[u][h][1] = fmaf(y.y, __uint_as_float(x & 0xffff0000u), acc[u][h][1]);
            }
        }
    }
}

/* The tree over eight sums that four lanes have, ((0+4)+(2+6)) + ((1+5)+(3+7)); in all of them. */
__device__ inline float tree_of_lanes(const float (&own)[2])
{
    float even = own[0], odd = own[1];
    even = __fadd_rn(even, __shfl_xor_sync(0xffffffffu, even, 2));
    odd = __fadd_rn(odd, __shfl_xor_sync(0xffffffffu, odd, 2));
    even = __fadd_rn(even, __shfl_xor_sync(0xffffffffu, even, 1));
    odd = __fadd_rn(odd, __shfl_xor_sync(0xffffffffu, odd, 1));
    return __fadd_rn(even, odd);
}

/* Grid: tiles of blocks, rows. Shared memory for the row's queries in F32. */
__global__ void __launch_bounds__(kScoreThreads) score_blocks(topk_views v, pass p)
{
    extern __shared__ __align__(16) float q[];
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    const int32_t r = v.first + static_cast<int32_t>(blockIdx.y);
    const int32_t tile = static_cast<int32_t>(blockIdx.x) * kScoreBlocks;
    const int32_t b = tile + static_cast<int32_t>(threadIdx.x) / 32 * 8 * kLaneBlocks + lane / 4;
    const int32_t pitch = (v.n + 7) / 8 * 8;
    const live_row row = wait_row(v.at, p, r);
    const int32_t whole = whole_blocks(row.pos, v.ratio), n = min(whole, v.n_max);
    if (!row.live || whole <= v.k || tile >= n) return;
    lane_keys keys = load_keys(v, row.slot, b, n, 0);
    stage_queries(v, r, q, pitch);
    __syncthreads();
    float sum[kLaneBlocks] = {};
#pragma unroll 1
    for (int32_t h0 = 0; h0 < v.n_heads; h0 += kScoreHeads) {
        float acc[kLaneBlocks][kScoreHeads][2] = {};
        const float *of[kScoreHeads];
#pragma unroll
        for (int h = 0; h < kScoreHeads; h++) of[h] = q + min(h0 + h, v.n_heads - 1) * pitch;
#pragma unroll 1
        for (int32_t from = 0; from < v.n; from += 8 * kScoreGroups) {
            const int32_t next = from + 8 * kScoreGroups;
            add_groups(acc, v, keys, of, from);
            if (v.n > 8 * kScoreGroups) keys = load_keys(v, row.slot, b, n, next < v.n ? next : 0);
        }
#pragma unroll
        for (int h = 0; h < kScoreHeads; h++)
#pragma unroll
            for (int u = 0; u < kLaneBlocks; u++) {
                const float dot = tree_of_lanes(acc[u][h]);
                if (h0 + h < v.n_heads)
                    sum[u] = __fadd_rn(sum[u], dot < 0 ? 0.0f : dot); // NaN stays
            }
    }
    float *score = v.score + static_cast<int64_t>(blockIdx.y) * v.n_max;
#pragma unroll
    for (int u = 0; u < kLaneBlocks; u++)
        if (lane % 4 == u && b + 8 * u < n) score[b + 8 * u] = __fmul_rn(v.scale, sum[u]);
}

/* ---- choosing -------------------------------------------------------------------------------- */

/* A warp has a stretch of neighbouring blocks, a lane of it every 32nd. kKeys: as many of a lane,
 * which stay in registers; 0: as many as there are, read anew each time. */
template <int kKeys> constexpr int32_t kChooseThreads = kKeys > 0 ? 512 : 1024;

struct choose_shared {
    uint32_t bin[4 * kBins];       // of each digit
    uint32_t above[32], equal[32]; // of a warp's stretch
};

template <int kKeys> struct block_keys {
    uint32_t key[kKeys > 0 ? kKeys : 1];
    const float *score;
    int32_t first, each, n; // lane's first block; keys of a lane; blocks in all

    __device__ int32_t block(int32_t j) const { return first + 32 * j; }
    __device__ bool there(int32_t j) const { return block(j) < n; }
    __device__ uint32_t of(int32_t j) const
    {
        if (kKeys > 0) return key[j];
        return there(j) ? best_order(score[block(j)]) : 0u;
    }
};

/* f(j) for each key of a lane. */
template <int kKeys, typename F> __device__ inline void each_key(const block_keys<kKeys> &keys, F f)
{
    if constexpr (kKeys > 0) {
#pragma unroll
        for (int j = 0; j < kKeys; j++) f(j);
    } else {
        for (int32_t j = 0; j < keys.each; j++) f(j);
    }
}

/* What is known of the key that is looked for. The same in every thread. */
struct wanted_key {
    uint32_t prefix;
    uint32_t left; // how many of those that begin like this are chosen
};

/* Counts the digits of those keys that begin like the one looked for. Lanes of a warp with the same
 * digit add once: scores tie a lot. */
template <int kKeys>
__device__ inline void count_digits(uint32_t *bin, const block_keys<kKeys> &keys,
                                    const wanted_key &wanted, int32_t shift)
{
    each_key(keys, [&](int32_t j) {
        const uint32_t key = keys.of(j);
        const bool in = keys.there(j) && (shift == 24 || key >> (shift + 8) == wanted.prefix);
        const uint32_t digit = in ? key >> shift & (kBins - 1) : kBins;
        const uint32_t same = __match_any_sync(0xffffffffu, digit);
        if (in && threadIdx.x % 32 == static_cast<uint32_t>(__ffs(same) - 1))
            atomicAdd(bin + digit, static_cast<uint32_t>(__popc(same)));
    });
}

/* The digit in which the `left`-th largest lies. Every warp finds it for itself, which is sooner
 * than to wait for one; a lane has eight bins. */
__device__ inline void find_digit(const uint32_t *bin, wanted_key &wanted)
{
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    const uint4 low = *reinterpret_cast<const uint4 *>(bin + lane * 8);
    const uint4 high = *reinterpret_cast<const uint4 *>(bin + lane * 8 + 4);
    const uint32_t own[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const uint32_t sum =
        ((own[0] + own[1]) + (own[2] + own[3])) + ((own[4] + own[5]) + (own[6] + own[7]));
    uint32_t up = sum; // of this lane and those with larger digits
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        const uint32_t x = __shfl_down_sync(0xffffffffu, up, by);
        if (lane + by < 32) up += x;
    }
    const bool mine = up >= wanted.left && up - sum < wanted.left;
    uint32_t above = up - sum, digit = 0, before = 0;
#pragma unroll
    for (int j = 7; j >= 0; j--) {
        if (above < wanted.left) {
            digit = static_cast<uint32_t>(lane * 8 + j);
            before = above;
        }
        above += own[j];
    }
    const int32_t from = __ffs(__ballot_sync(0xffffffffu, mine)) - 1;
    wanted.prefix = wanted.prefix << 8 | __shfl_sync(0xffffffffu, digit, from);
    wanted.left -= __shfl_sync(0xffffffffu, before, from);
}

/* Writes the blocks above the key that was found, and the first that equal it, in order. */
template <int kKeys>
__device__ inline void write_chosen(choose_shared &m, const block_keys<kKeys> &keys,
                                    const wanted_key &wanted, int32_t *out)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t before = (1u << lane) - 1;
    uint32_t above = 0, equal = 0;
    each_key(keys, [&](int32_t j) {
        const uint32_t key = keys.of(j);
        const bool there = keys.there(j);
        above += __popc(__ballot_sync(0xffffffffu, there && key > wanted.prefix));
        equal += __popc(__ballot_sync(0xffffffffu, there && key == wanted.prefix));
    });
    if (lane == 0) {
        m.above[warp] = above;
        m.equal[warp] = equal;
    }
    __syncthreads();
    above = static_cast<uint32_t>(
        __reduce_add_sync(0xffffffffu, lane < warp ? static_cast<int>(m.above[lane]) : 0));
    equal = static_cast<uint32_t>(
        __reduce_add_sync(0xffffffffu, lane < warp ? static_cast<int>(m.equal[lane]) : 0));
    each_key(keys, [&](int32_t j) {
        const uint32_t key = keys.of(j);
        const bool there = keys.there(j);
        const uint32_t more = __ballot_sync(0xffffffffu, there && key > wanted.prefix);
        const uint32_t same = __ballot_sync(0xffffffffu, there && key == wanted.prefix);
        const uint32_t n_above = above + static_cast<uint32_t>(__popc(more & before));
        const uint32_t n_equal = equal + static_cast<uint32_t>(__popc(same & before));
        const bool chosen = more >> lane & 1 || (same >> lane & 1 && n_equal < wanted.left);
        if (chosen) out[n_above + min(n_equal, wanted.left)] = keys.block(j);
        above += static_cast<uint32_t>(__popc(more));
        equal += static_cast<uint32_t>(__popc(same));
    });
}

/* Grid: rows. */
template <int kKeys>
__global__ void __launch_bounds__(kChooseThreads<kKeys>) choose_blocks(topk_views v, pass p)
{
    constexpr int32_t kThreads = kChooseThreads<kKeys>;
    __shared__ __align__(16) choose_shared m;
    const int32_t thread = static_cast<int32_t>(threadIdx.x);
    const int32_t r = v.first + static_cast<int32_t>(blockIdx.x);
#pragma unroll 1
    for (int32_t i = thread; i < 4 * kBins; i += kThreads) m.bin[i] = 0;
    const live_row row = wait_row(v.at, p, r);
    block_keys<kKeys> keys;
    keys.score = v.score + static_cast<int64_t>(blockIdx.x) * v.n_max;
    float score[kKeys > 0 ? kKeys : 1];
    if (kKeys > 0) { // on their way with the row; those behind its last one are nobody's
        keys.first = thread / 32 * 32 * kKeys + thread % 32;
#pragma unroll
        for (int j = 0; j < kKeys; j++)
            score[j] = keys.block(j) < v.n_max ? keys.score[keys.block(j)] : 0.0f;
    }
    __syncthreads();
    if (!row.live) return;
    int32_t *out = v.out[r];
    const int32_t n = min(whole_blocks(row.pos, v.ratio), v.n_max);
    if (n <= v.k) {
        for (int32_t i = thread; i < v.k; i += kThreads) out[i] = i < n ? i : -1;
        return;
    }
    keys.n = n;
    if (kKeys > 0) {
#pragma unroll
        for (int j = 0; j < kKeys; j++) keys.key[j] = best_order(score[j]);
    } else {
        keys.each = (n + kThreads - 1) / kThreads;
        keys.first = thread / 32 * 32 * keys.each + thread % 32;
    }
    wanted_key wanted = {0, static_cast<uint32_t>(v.k)};
#pragma unroll 1
    for (int32_t i = 0; i < 4; i++) {
        count_digits(m.bin + i * kBins, keys, wanted, 24 - 8 * i);
        __syncthreads();
        find_digit(m.bin + i * kBins, wanted);
    }
    write_chosen(m, keys, wanted, out);
}

/* ---- launching ------------------------------------------------------------------------------- */

inline int64_t topk_shared(const sk_block_topk_args *a)
{
    return a->q.dim[1] * ((a->q.dim[2] + 7) / 8 * 8) * 4;
}

template <int kKeys>
int32_t launch_choose(const sk_launch *l, const topk_views &v, const pass &p, unsigned rows)
{
    return launch(l, choose_blocks<kKeys>, dim3(rows), dim3(kChooseThreads<kKeys>), 0, v, p);
}

inline int32_t launch_block_topk(const sk_block_topk_args *a, const sk_launch *l)
{
    const int64_t rows = a->q.dim[0], step = sk_scored_rows(a, l->ctx_bound);
    const pass p = pass_of(l, a->count, rows);
    topk_views v = {
        heads_of<const __nv_bfloat16>(a->q),
        slot_rows_of<const __nv_bfloat16>(a->pooled),
        rows_of<const sk_row>(a->rows),
        rows_of<int32_t>(a->out),
        reinterpret_cast<float *>(l->work),
        static_cast<int32_t>(sk_blocks_max(a, l->ctx_bound)),
        static_cast<int32_t>(a->q.dim[1]),
        static_cast<int32_t>(a->q.dim[2]),
        static_cast<int32_t>(a->out.dim[1]),
        divisor_of(a->ratio),
        0,
        a->scale,
        row_aligned(a->pooled, 4) && a->q.dim[2] % 2 == 0,
    };
    const auto tiles = static_cast<unsigned>((v.n_max + kScoreBlocks - 1) / kScoreBlocks);
    int32_t rc = 0;
    if (topk_shared(a) > kScoreShared) return static_cast<int32_t>(cudaErrorInvalidValue);
    for (int64_t row = 0; row < rows && rc == 0; row += step) {
        const auto n = static_cast<unsigned>(rows - row < step ? rows - row : step);
        v.first = static_cast<int32_t>(row);
        if (v.n_max > v.k)
            rc = launch(l, score_blocks, dim3(tiles, n), dim3(kScoreThreads),
                        static_cast<size_t>(topk_shared(a)), v, p);
        if (rc != 0) return rc;
        if (v.n_max <= v.k)
            rc = launch_choose<0>(l, v, p, n);
        else if (v.n_max <= 2 * kChooseThreads<2>)
            rc = launch_choose<2>(l, v, p, n);
        else if (v.n_max <= 4 * kChooseThreads<4>)
            rc = launch_choose<4>(l, v, p, n);
        else if (v.n_max <= 16 * kChooseThreads<16>)
            rc = launch_choose<16>(l, v, p, n);
        else
            rc = launch_choose<0>(l, v, p, n);
    }
    return rc;
}

} // namespace sk
