/* The blocks of the highest scores. Scores have the definition's bits: eight sums of a product, by
 * the element's number mod 8, and their tree. A thread has a block, so that queries come from
 * shared memory, the same for the whole warp. They go through the step's scratch to the CTA that
 * chooses: the order-preserving keys' K-th largest by four counts of eight bits each, then all
 * blocks above it and the first of those that equal it, in order. */
#pragma once

#include "kernels/common/keys.cuh"
#include "kernels/sparse/pool.cuh"
#include "kernels/sparse/sizes.h"

namespace sk
{

constexpr int32_t kScoreThreads = 128;
constexpr int32_t kChooseThreads = 1024;
constexpr int32_t kChooseWarps = kChooseThreads / 32;
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
    int32_t ratio;
    int32_t first; // row of the launch's first CTA
    float scale;
    int32_t wide; // keys may be read 16 bytes at a time
};

/* Blocks that are complete at a position. */
__device__ inline int32_t whole_blocks(int32_t pos, int32_t ratio)
{
    return static_cast<int32_t>((static_cast<int64_t>(pos) + 1) / ratio);
}

__device__ inline float tree8(const float (&a)[8])
{
    return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
}

/* Eight neighbouring elements of a key, from i on; i is a multiple of 8. Zero past the end. */
__device__ inline void load_eight(float (&x)[8], const __nv_bfloat16 *k, int32_t i, int32_t n,
                                  bool wide)
{
    if (wide && i + 8 <= n) {
        const uint4 w = *reinterpret_cast<const uint4 *>(k + i);
        const uint32_t word[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            x[2 * j] = __uint_as_float(word[j] << 16);
            x[2 * j + 1] = __uint_as_float(word[j] & 0xffff0000u);
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++) x[j] = i + j < n ? from_bf16(k[i + j]) : 0.0f;
}

/* Products of one key with kHeads queries from shared memory, [kHeads, pitch]. Zeros behind the end
 * of both change nothing. */
template <int kHeads>
__device__ inline float add_heads(float sum, const topk_views &v, const __nv_bfloat16 *k,
                                  const float *q, int32_t pitch)
{
    float acc[kHeads][8] = {};
    for (int32_t i = 0; i < v.n; i += 8) {
        float x[8];
        load_eight(x, k, i, v.n, v.wide);
#pragma unroll
        for (int h = 0; h < kHeads; h++)
#pragma unroll
            for (int j = 0; j < 8; j++) acc[h][j] = fmaf(q[h * pitch + i + j], x[j], acc[h][j]);
    }
#pragma unroll
    for (int h = 0; h < kHeads; h++) {
        const float dot = tree8(acc[h]);
        sum = __fadd_rn(sum, dot < 0 ? 0.0f : dot); // NaN stays
    }
    return sum;
}

/* Grid: tiles of blocks, rows. Shared memory for the row's queries in F32. */
__global__ void __launch_bounds__(kScoreThreads) score_blocks(topk_views v, pass p)
{
    extern __shared__ __align__(16) float q[];
    const int32_t r = v.first + static_cast<int32_t>(blockIdx.y);
    const int32_t b = static_cast<int32_t>(blockIdx.x * kScoreThreads + threadIdx.x);
    const int32_t pitch = (v.n + 7) / 8 * 8;
    if (r >= wait_rows(p)) return;
    const sk_row row = *v.at[r];
    const int32_t n = whole_blocks(row.pos, v.ratio);
    if (n <= v.k || static_cast<int32_t>(blockIdx.x) * kScoreThreads >= n) return;
    for (int32_t h = 0; h < v.n_heads; h++)
        for (int32_t i = threadIdx.x; i < pitch; i += kScoreThreads)
            q[h * pitch + i] = i < v.n ? from_bf16(v.q.at(r, h)[i]) : 0.0f;
    __syncthreads();
    if (b >= n || b >= v.n_max) return;
    const __nv_bfloat16 *k = v.pooled.at(row.slot, b);
    float sum = 0;
    int32_t h = 0;
    for (; h + 4 <= v.n_heads; h += 4) sum = add_heads<4>(sum, v, k, q + h * pitch, pitch);
    for (; h < v.n_heads; h++) sum = add_heads<1>(sum, v, k, q + h * pitch, pitch);
    v.score[static_cast<int64_t>(blockIdx.y) * v.n_max + b] = __fmul_rn(v.scale, sum);
}

/* ---- choosing -------------------------------------------------------------------------------- */

struct choose_shared {
    uint32_t bin[kBins];
    uint32_t above[kChooseWarps], equal[kChooseWarps];
    uint32_t prefix, left; // of the key that is looked for; how many of its equals are chosen
};

/* Counts the digits of those keys that begin like the one looked for. Lanes of a warp with the same
 * digit add once: scores tie a lot. */
__device__ inline void count_digits(choose_shared &m, const float *score, int32_t n, int32_t shift)
{
    const uint32_t begin = m.prefix;
    for (int32_t at = 0; at < n; at += kChooseThreads) {
        const int32_t i = at + static_cast<int32_t>(threadIdx.x);
        const uint32_t key = i < n ? best_order(score[i]) : 0u;
        const bool in = i < n && (shift == 24 || key >> (shift + 8) == begin);
        const uint32_t digit = in ? key >> shift & (kBins - 1) : kBins;
        const uint32_t same = __match_any_sync(0xffffffffu, digit);
        if (in && (threadIdx.x % 32) == static_cast<uint32_t>(__ffs(same) - 1))
            atomicAdd(&m.bin[digit], static_cast<uint32_t>(__popc(same)));
    }
}

/* The digit in which the `left`-th largest lies. By one warp; a lane has eight bins. */
__device__ inline void find_digit(choose_shared &m, int32_t lane)
{
    uint32_t own[kBins / 32], sum = 0, up = 0;
    const uint32_t left = m.left, prefix = m.prefix;
#pragma unroll
    for (int j = 0; j < kBins / 32; j++) sum += own[j] = m.bin[lane * (kBins / 32) + j];
    up = sum; // of this lane and those with larger digits
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        const uint32_t x = __shfl_down_sync(0xffffffffu, up, by);
        if (lane + by < 32) up += x;
    }
    __syncwarp();
    if (up < left || up - sum >= left) return; // one lane goes on
    uint32_t above = up - sum;
    bool found = false;
#pragma unroll
    for (int j = kBins / 32 - 1; j >= 0; j--) {
        if (!found && above + own[j] >= left) {
            m.prefix = prefix << 8 | static_cast<uint32_t>(lane * (kBins / 32) + j);
            m.left = left - above;
            found = true;
        }
        above += own[j];
    }
}

/* Keys of the warp's own stretch: how many lie above the one that was found, how many equal it. */
__device__ inline void count_stretch(choose_shared &m, const float *score, int32_t from, int32_t to)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, last = m.prefix;
    uint32_t above = 0, equal = 0;
    for (int32_t at = from; at < to; at += 32) {
        const int32_t i = at + static_cast<int32_t>(lane);
        const uint32_t key = i < to ? best_order(score[i]) : 0u;
        above += static_cast<uint32_t>(__popc(__ballot_sync(0xffffffffu, i < to && key > last)));
        equal += static_cast<uint32_t>(__popc(__ballot_sync(0xffffffffu, i < to && key == last)));
    }
    if (lane > 0) return;
    m.above[warp] = above;
    m.equal[warp] = equal;
}

/* Writes those of the stretch, behind those of the warps before. */
__device__ inline void write_stretch(const choose_shared &m, const float *score, int32_t from,
                                     int32_t to, int32_t *out)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, last = m.prefix;
    const uint32_t before = (1u << lane) - 1, left = m.left;
    uint32_t above = 0, equal = 0;
    for (uint32_t w = 0; w < warp; w++) {
        above += m.above[w];
        equal += m.equal[w];
    }
    for (int32_t at = from; at < to; at += 32) {
        const int32_t i = at + static_cast<int32_t>(lane);
        const uint32_t key = i < to ? best_order(score[i]) : 0u;
        const uint32_t more = __ballot_sync(0xffffffffu, i < to && key > last);
        const uint32_t same = __ballot_sync(0xffffffffu, i < to && key == last);
        const uint32_t n_above = above + static_cast<uint32_t>(__popc(more & before));
        const uint32_t n_equal = equal + static_cast<uint32_t>(__popc(same & before));
        const bool chosen = more >> lane & 1 || (same >> lane & 1 && n_equal < left);
        if (chosen) out[n_above + min(n_equal, left)] = i;
        above += static_cast<uint32_t>(__popc(more));
        equal += static_cast<uint32_t>(__popc(same));
    }
}

/* Grid: rows. */
__global__ void __launch_bounds__(kChooseThreads) choose_blocks(topk_views v, pass p)
{
    __shared__ choose_shared m;
    const int32_t thread = static_cast<int32_t>(threadIdx.x), warp = thread / 32;
    const int32_t r = v.first + static_cast<int32_t>(blockIdx.x);
    if (r >= wait_rows(p)) return;
    int32_t *out = v.out[r];
    const int32_t n = min(whole_blocks(v.at[r]->pos, v.ratio), v.n_max);
    if (n <= v.k) {
        for (int32_t i = thread; i < v.k; i += kChooseThreads) out[i] = i < n ? i : -1;
        return;
    }
    const float *score = v.score + static_cast<int64_t>(blockIdx.x) * v.n_max;
    if (thread == 0) {
        m.prefix = 0;
        m.left = static_cast<uint32_t>(v.k);
    }
    for (int32_t shift = 24; shift >= 0; shift -= 8) {
        if (thread < kBins) m.bin[thread] = 0;
        __syncthreads();
        count_digits(m, score, n, shift);
        __syncthreads();
        if (warp == 0) find_digit(m, thread);
        __syncthreads();
    }
    const int32_t each = (n + kChooseThreads - 1) / kChooseThreads * 32; // of a warp
    const int32_t from = min(warp * each, n), to = min(from + each, n);
    count_stretch(m, score, from, to);
    __syncthreads();
    write_stretch(m, score, from, to, out);
}

/* ---- launching ------------------------------------------------------------------------------- */

inline int64_t topk_shared(const sk_block_topk_args *a)
{
    return a->q.dim[1] * ((a->q.dim[2] + 7) / 8 * 8) * 4;
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
        a->ratio,
        0,
        a->scale,
        row_aligned(a->pooled, 16),
    };
    const auto tiles = static_cast<unsigned>((v.n_max + kScoreThreads - 1) / kScoreThreads);
    int32_t rc = 0;
    if (topk_shared(a) > kScoreShared) return static_cast<int32_t>(cudaErrorInvalidValue);
    for (int64_t row = 0; row < rows && rc == 0; row += step) {
        const auto n = static_cast<unsigned>(rows - row < step ? rows - row : step);
        v.first = static_cast<int32_t>(row);
        if (v.n_max > v.k)
            rc = launch(l, score_blocks, dim3(tiles, n), dim3(kScoreThreads),
                        static_cast<size_t>(topk_shared(a)), v, p);
        if (rc == 0) rc = launch(l, choose_blocks, dim3(n), dim3(kChooseThreads), 0, v, p);
    }
    return rc;
}

} // namespace sk
