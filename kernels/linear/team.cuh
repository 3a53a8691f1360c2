/* Four warps that multiply together, each a tile of 16 outputs: what they decode stays in their
 * registers, and the tensor cores read the activations by themselves, once for all four and all
 * rows (wgmma.cuh). With three groups of rows and more it is reading these that would take longest:
 * four wavefronts of shared memory a block, group and warp. The order of the sums is that of
 * product.cuh. Elsewhere than on sm_90a the warps multiply each for itself, out of the same places.
 */
#pragma once

#include "kernels/common/divide.h"
#include "kernels/common/wgmma.cuh"
#include "kernels/linear/narrow.cuh"

namespace sk
{

/* Activations in shared memory as core matrices: of eight rows and eight elements of K each, word t
 * of row g is lane 4g + t's. A lane's words of a block, as load_act has them, are of four of these,
 * one below the other for all rows; rows of the last group that are not there are what follows.
 * Between blocks there are sixteen bytes, so that eight of them can be written at once. */
template <int N> struct TeamActs {
    uint8_t *acts;
    float *sums; // [sum][column]
    int step;    // bytes, to the next four words of a block
    int mine;    // bytes, of the lane's word
    uint32_t matrices;

    __host__ __device__ static constexpr int step_of(int rows) { return 16 * rows; }
    /* With what a product would read of the last sixteen elements if all rows were there, and its
     * two columns of matrices lay next to each other: so memcheck sees it. */
    __host__ __device__ static constexpr int bytes_of(int rows, int blocks)
    {
        return blocks * (4 * step_of(rows) + 16) + 2 * step_of(8 * N - rows);
    }

    __device__ TeamActs(uint8_t *at, float *sums_at, int step_at, int lane)
        : acts(at), sums(sums_at), step(step_at), mine(4 * lane),
          matrices(core_matrices(at, static_cast<uint32_t>(step_at)))
    {
    }
    __device__ uint8_t *word(int block, int i) const
    {
        return acts + block * (4 * step + 16) + i * step;
    }
    template <int Group> __device__ void load(uint32_t (&v)[4], int n, int block) const
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = *reinterpret_cast<const uint32_t *>(word(block, i) + 128 * n + mine);
    }
    /* The sixteen elements that one product takes: the first half of a block, the second; the first
     * of the next block from the second on, and from the first. */
    __device__ uint32_t half_at(int block) const
    {
        return matrices + static_cast<uint32_t>(block * ((step >> 2) + 1));
    }
    __device__ uint32_t second(uint32_t half) const
    {
        return half + static_cast<uint32_t>(step >> 3);
    }
    __device__ uint32_t behind(uint32_t second) const
    {
        return second + static_cast<uint32_t>((step >> 3) + 1);
    }
    __device__ uint32_t next(uint32_t half) const
    {
        return half + static_cast<uint32_t>((step >> 2) + 1);
    }
};

/* Blocks of the rows from x on into shared memory, `there` of them and zeros up to `all`, by all
 * warps of the CTA: a warp reads eight blocks of a row at once. Rows that mean nothing come too, as
 * in stage_rows. */
template <typename D, int N>
__device__ inline void stage_team(const TeamActs<N> &to, const uint16_t *x, int64_t x_step,
                                  int rows, uint32_t a_row, int there, int all, int warps, int warp,
                                  int lane)
{
    constexpr int kAtOnce = 8; // loads of a lane under way
    const int items = (all + 7) / 8 * rows, t = lane & 3;
    // The lane reads eight elements in a row; who multiplies them has four out of each half.
    constexpr bool kHalves = D::kGroup == 16;
    for (int first = warp; first < items; first += warps * kAtOnce) {
        uint32_t v[kAtOnce][4] = {};
#pragma unroll
        for (int i = 0; i < kAtOnce; i++) {
            const int item = first + i * warps, run = sk_divided(item, a_row),
                      row = item - run * rows;
            const int block = 8 * run + (lane >> 2);
            if (item < items && block < there) load_act<32>(v[i], x + row * x_step + 32 * block, t);
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; i++) {
            const int item = first + i * warps, run = sk_divided(item, a_row),
                      row = item - run * rows;
            const int block = 8 * run + (lane >> 2);
            if (item >= items || block >= all) continue;
#pragma unroll
            for (int w = 0; w < 4; w++) {
                const int which = kHalves ? (t & 2) + (w & 1) : w;
                const int of = kHalves ? 2 * (t & 1) + (w >> 1) : t;
                *reinterpret_cast<uint32_t *>(to.word(block, which) + 16 * row + 4 * of) = v[i][w];
            }
        }
    }
    cores_written();
}

/* The products of a block, or of the sixteen elements that have a scale of their own, for all rows.
 */
template <typename D, int N> struct TeamProduct {
    static constexpr bool kOwnMin = D::kMin && !D::kSuper;
    float of[N][4];
    float sums[kOwnMin ? N : 1][4]; // of the block's activations

#if SK_WGMMA
    /* `half`: where their activations begin. */
    __device__ void begin(const Block<D> &k, int step, const TeamActs<N> &x, int, uint32_t half)
    {
        products_begin();
#pragma unroll
        for (int term = 0; term < D::kTerms; term++) {
            const uint32_t *a = k.a[term] + 4 * step;
            if (term == 0)
                products_add<true>(of, a, half);
            else
                products_add<false>(of, a, half);
            if (D::kGroup == 32) products_add<false>(of, a + 4, x.second(half));
        }
        if constexpr (kOwnMin) {
            const uint32_t ones[4] = {0x3F803F80u, 0x3F803F80u, 0x3F803F80u, 0x3F803F80u};
            products_add<true>(sums, ones, half);
            products_add<false>(sums, ones, x.second(half));
        }
        products_go();
    }
    template <int Going> __device__ static void end() { products_end<Going>(); }
#else
    __device__ void begin(const Block<D> &k, int step, const TeamActs<N> &x, int block, uint32_t)
    {
#pragma unroll
        for (int n = 0; n < N; n++) {
            uint32_t v[4];
            float two[2];
            x.template load<D::kGroup>(v, n, block);
            block_products<D>(of[n], k, step, v);
            if constexpr (!kOwnMin) continue;
            block_sums(two, v);
            sums[n][0] = two[0];
            sums[n][1] = two[1];
        }
    }
    template <int Going> __device__ static void end() {}
#endif

    __device__ void add_to(Acc<D> (&acc)[N], const Block<D> &k, int step) const
    {
#pragma unroll
        for (int n = 0; n < N; n++) {
            acc[n].take(k, step, of[n]);
            if constexpr (kOwnMin) acc[n].add_min(k, {sums[n][0], sums[n][1]});
        }
    }
};

/* Units of weights one after the other, of K from elem on, from block `block` of the activations
 * on. While a product is on its way the one before it is added up and a block for the one after it
 * decoded. */
template <typename D, int N, int Units, typename Table>
__device__ inline void team_sums(const uint8_t *weights, int block, const TeamActs<N> &x, int lane,
                                 const Table &table, const Outside<D> &outside, int elem,
                                 Acc<D> (&acc)[N])
{
    constexpr int kSteps = kStepsOf<D>, kBlocks = D::kBlocks * Units, kAll = kSteps * kBlocks;
    typename D::Frag f[2]; // of units in turn: one ends when the next has begun
    Block<D> k[2];
    TeamProduct<D, N> p[2];
    uint32_t half = x.half_at(block);
    const auto decode = [&](int b) {
        const int u = b / D::kBlocks;
        if (b % D::kBlocks == 0) f[u & 1] = D::load(FromShared{weights + u * D::kUnitBytes}, lane);
        k[b & 1] = decode_block<D>(f[u & 1], b % D::kBlocks, table);
        outside.apply(k[b & 1], elem + 32 * b);
    };
    decode(0);
    if (kBlocks > 1) decode(1);
    p[0].begin(k[0], 0, x, block, half);
#pragma unroll
    for (int i = 0; i < kAll; i++) {
        const int b = i / kSteps, step = i % kSteps, next = i + 1, next_b = next / kSteps;
        if (next < kAll) {
            half = next % kSteps ? x.second(half) : kSteps > 1 ? x.behind(half) : x.next(half);
            p[next & 1].begin(k[next_b & 1], next % kSteps, x, block + next_b, half);
            p[i & 1].template end<1>();
        } else {
            p[i & 1].template end<0>();
        }
        p[i & 1].add_to(acc, k[b & 1], step);
        if (step < kSteps - 1) continue;
        if (b + 2 < kBlocks && (b + 1) % D::kBlocks) decode(b + 2);
        if ((b + 1) % D::kBlocks) continue;
#pragma unroll
        for (int n = 0; n < N; n++) {
            UnitSums<D> sums;
            sums.load(x.sums + (block + b + 1 - D::kBlocks) * kSteps * 8 * N + 8 * n, 8 * N, lane);
            acc[n].end_unit(f[(b / D::kBlocks) & 1], sums, lane & 3);
        }
        if (b + 2 < kBlocks) decode(b + 2); // it may be of the unit after the next one
    }
}

} // namespace sk
