/* Grouped products of a mixture's experts: one persistent kernel that walks a work list. Every
 * expert is read once for up to four of its routes, its weights come through a ring in shared
 * memory, a codebook lies there in front of it. The gated form takes the gate's and the up's tile
 * of the same outputs for a task, the plain one two neighbouring tiles. Matches K in multiples of
 * 32, BF16 rows aligned to 16 bytes, dense packed experts one after the other. Wrong results if the
 * list has entries of no or of more than four routes. */
#pragma once

#include "kernels/common/gates.cuh"
#include "kernels/common/setup.cuh"
#include "kernels/experts/ring.cuh"
#include "kernels/experts/schedule.h"
#include "kernels/experts/sums.cuh"
#include "kernels/linear/table.cuh"

namespace sk
{

struct ExpertArgs {
    const uint8_t *w[2];  // gate and up; or one weight, twice
    int64_t expert_bytes; // of one packed matrix
    const uint16_t *x;    // BF16
    int64_t x_step;
    int32_t per; // routes that share a row of x
    const sk_route_entry *list;
    int64_t list_step; // bytes
    const int32_t *n;
    int32_t capacity; // entries
    int32_t k, n_out;
    int32_t tiles, stripes; // of an expert: tiles of 16 outputs, tasks
    void *out;              // BF16 where gated, else F32
    int64_t out_step;
    int32_t gelu;
    int32_t list_ready; // the list may be read before the wait
};

/* What a format's look-ups need in shared memory, at its beginning. */
template <typename D, bool HasTable = (D::kEntries > 0)> struct ExpertTable {
    using Type = NoTable;
    static constexpr int kBytes = 0;
    __device__ static void fill(uint8_t *, int, int) {}
    __device__ static Type at(const uint8_t *, int) { return Type(); }
};
template <typename D> struct ExpertTable<D, true> {
    using Type = SharedTable<D>;
    static constexpr int kBytes = kSharedTableBytes<D>;
    __device__ static void fill(uint8_t *shared, int tid, int n) { fill_table<D>(shared, tid, n); }
    __device__ static Type at(const uint8_t *shared, int lane)
    {
        Type table(shared, lane);
        asm volatile("" : "+r"(table.mine)); // a register, not a mask that every look-up applies
        return table;
    }
};

constexpr int kExpertWarps = 16; // most

/* Sixteen warps have 128 registers each, which a few formats do not get by with. */
template <typename D>
constexpr int kWarpsOf =
    D::kType == SK_IQ2_XXS                                                ? 8
    : D::kType == SK_IQ2_XS || D::kType == SK_Q2_K || D::kType == SK_Q3_K ? 12
                                                                          : kExpertWarps;
constexpr int kHandedFloats = 16; // a lane's sums of both tiles, in the widest form
constexpr int kSharedOfAll = 227 * 1024;

/* Where the weights of a warp's steps to come are. It lies in shared memory: registers are for the
 * products. */
struct Cursor {
    const uint8_t *tile[2];
    int32_t piece, step, end, entry, expert;
};

/* What a warp does, how far it has asked for weights, and whether its sums of a head are there. */
struct WarpState {
    Cursor next;
    sk_share share;
    int32_t doing; // piece
    volatile int32_t handed;
};

/* Shared memory: the table, a block for each warp (ring, sums handed over, state, barriers of the
 * ring), then what the CTA has in common. */
template <typename D> struct ExpertShared {
    static constexpr int kTable = ExpertTable<D>::kBytes;
    static constexpr int kStepBytes = 2 * StepOf<D>::kTileBytes;
    static constexpr int kSums = 4 * 32 * kHandedFloats;
    static constexpr int kOwn = kSums + 128; // of a warp, beside its ring
    static constexpr int kCommon = 128;
    static constexpr int kFit =
        ((kSharedOfAll - kTable - kCommon) / kWarpsOf<D> / 128 * 128 - kOwn) / kStepBytes;
    static constexpr int kDepth = kFit < 1 ? 1 : kFit > 3 ? 3 : kFit;
    static constexpr int kRing = kDepth * kStepBytes;
    static constexpr int kWarp = (kRing + kOwn + 127) / 128 * 128;
    static constexpr int kBytes(int warps) { return kTable + warps * kWarp + kCommon; }
    static_assert(kFit >= 1 && kBytes(kWarpsOf<D>) <= kSharedOfAll, "a ring for every warp");
    static_assert(sizeof(WarpState) + 8 * kDepth <= 128, "state and barriers");

    __device__ static uint8_t *block(uint8_t *shared, int warp)
    {
        return shared + kTable + warp * kWarp;
    }
    __device__ static float *sums(uint8_t *block)
    {
        return reinterpret_cast<float *>(block + kRing);
    }
    __device__ static WarpState *state(uint8_t *block)
    {
        return reinterpret_cast<WarpState *>(block + kRing + kSums);
    }
    __device__ static uint64_t *barriers(uint8_t *block)
    {
        return reinterpret_cast<uint64_t *>(block + kRing + kOwn) - kDepth;
    }
    /* Costs that each warp has counted, then the CTA's tasks {begin, end}. */
    __device__ static int32_t *common(uint8_t *shared, int warps)
    {
        return reinterpret_cast<int32_t *>(block(shared, warps));
    }
};

__device__ inline const sk_route_entry *entry_of(const ExpertArgs &a, int32_t e)
{
    return reinterpret_cast<const sk_route_entry *>(reinterpret_cast<const uint8_t *>(a.list) +
                                                    e * a.list_step);
}

/* Routes of an entry; asked for at once, whether or not the list has so many. */
__device__ inline int32_t routes_of(const ExpertArgs &a, int32_t e)
{
    return static_cast<int32_t>(load4(reinterpret_cast<const uint8_t *>(&entry_of(a, e)->n)));
}

__device__ inline int32_t up_to_lane(int32_t x, int lane)
{
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        const int32_t other = __shfl_up_sync(0xFFFFFFFFu, x, by);
        if (lane >= by) x += other;
    }
    return x;
}

/* The CTA's tasks, by all of its threads: entries in as many runs as there are threads, the costs
 * of the runs added up, and in the runs where the CTA's costs begin and end a look at each entry.
 */
__device__ inline void find_tasks(const ExpertArgs &a, int32_t *costs, int32_t *tasks)
{
    const int tid = static_cast<int>(threadIdx.x), lane = tid & 31, warp = tid >> 5;
    const int threads = static_cast<int>(blockDim.x);
    const int each = (a.capacity + threads - 1) / threads;
    const int first = min(tid * each, a.capacity), end = min(first + each, a.capacity);
    const int32_t listed = static_cast<int32_t>(load4(reinterpret_cast<const uint8_t *>(a.n)));
    int32_t cost = 0;
    for (int e = first; e < end; e++) {
        const int32_t routes = routes_of(a, e);
        cost += e < listed ? sk_task_cost(routes) : 0;
    }
    const int32_t n = min(listed, a.capacity), through = up_to_lane(cost, lane);
    if (lane == 31) costs[warp] = through;
    __syncthreads();
    int32_t before = through - cost, all = 0;
    for (int w = 0; w < threads / 32; w++) {
        if (w < warp) before += costs[w];
        all += costs[w];
    }
    for (int edge = 0; edge < 2; edge++) {
        const int64_t whole = static_cast<int64_t>(all) * a.stripes;
        const int64_t at = sk_cost_before(whole, static_cast<int32_t>(blockIdx.x) + edge,
                                          static_cast<int32_t>(gridDim.x));
        int64_t front = static_cast<int64_t>(before) * a.stripes;
        if (at >= whole) {
            if (tid == 0) tasks[edge] = n * a.stripes;
        } else if (at >= front && at < front + static_cast<int64_t>(cost) * a.stripes) {
            for (int e = first; e < n; e++) {
                const int32_t one = sk_task_cost(routes_of(a, e));
                const int64_t behind = front + static_cast<int64_t>(one) * a.stripes;
                if (at < behind) {
                    tasks[edge] = sk_task_at(at, front, e * a.stripes, one);
                    break;
                }
                front = behind;
            }
        }
    }
    __syncthreads();
}

template <typename D> __device__ inline int units_of(const ExpertArgs &a)
{
    return (a.k + 32 * D::kBlocks - 1) / (32 * D::kBlocks);
}

/* Puts the cursor on the next piece; false when there is none. */
template <typename D, bool Glu>
__device__ inline bool next_piece(const ExpertArgs &a, const sk_share &share, Cursor &c)
{
    if (c.piece + 1 >= sk_share_pieces(&share)) return false;
    const sk_piece p = sk_share_piece(&share, ++c.piece);
    const int e = p.task / a.stripes, stripe = p.task - e * a.stripes;
    if (e != c.entry) c.expert = entry_of(a, e)->expert;
    c.entry = e;
    c.step = p.first;
    c.end = p.end;
    const int64_t tile_bytes = static_cast<int64_t>(units_of<D>(a)) * D::kUnitBytes;
    const int64_t at =
        c.expert * a.expert_bytes + static_cast<int64_t>(c.step) * StepOf<D>::kTileBytes;
    const int t0 = Glu ? stripe : 2 * stripe, t1 = Glu ? stripe : min(t0 + 1, a.tiles - 1);
    c.tile[0] = a.w[0] + at + t0 * tile_bytes;
    c.tile[1] = a.w[1] + at + t1 * tile_bytes;
    return true;
}

/* Asks for the weights of the step at the cursor, into slot i, and moves the cursor on. Half: only
 * those of one tile; the second one moves the cursor. */
enum class Part { kBoth, kFirst, kSecond };

template <typename D, bool Glu, Part P, typename Ring>
__device__ inline void fetch_step(const ExpertArgs &a, WarpState *state, const Ring &ring, int i,
                                  int lane)
{
    if (Ring::kOneLane && lane != 0) return;
    Cursor c = state->next;
    const bool there =
        c.step < c.end || (P != Part::kSecond && next_piece<D, Glu>(a, state->share, c));
    const int units = min(StepOf<D>::kUnits, units_of<D>(a) - c.step * StepOf<D>::kUnits);
    if (there && P != Part::kSecond) ring.expect(i, units * D::kUnitBytes);
    if (there && P != Part::kSecond) ring.fetch(i, 0, c.tile[0], units * D::kUnitBytes, lane);
    if (there && P != Part::kFirst) ring.fetch(i, 1, c.tile[1], units * D::kUnitBytes, lane);
    ring.asked();
    if (!Ring::kOneLane) __syncwarp();
    if (!there || lane != 0) return;
    if (P != Part::kFirst) {
        c.step++;
        c.tile[0] += StepOf<D>::kTileBytes;
        c.tile[1] += StepOf<D>::kTileBytes;
    }
    state->next = c;
}

/* Output row `o` of the stripe's first tile, and of its second, for one route. */
template <bool Glu>
__device__ inline void put_output(const ExpertArgs &a, int stripe, int o, int32_t route,
                                  float first, float second)
{
    if (Glu) {
        const int at = 16 * stripe + o;
        uint16_t *row = static_cast<uint16_t *>(a.out) + route * a.out_step;
        const float gate = a.gelu ? gelu_tanh(first) : silu(first);
        if (at < a.n_out) reinterpret_cast<__nv_bfloat16 *>(row)[at] = to_bf16(gate * second);
    } else {
        const int at = 32 * stripe + o;
        float *row = static_cast<float *>(a.out) + route * a.out_step;
        if (at < a.n_out) row[at] = first;
        if (at + 16 < a.n_out) row[at + 16] = second;
    }
}

/* The results of a task, each by one lane. */
template <typename D, int Routes, bool Glu>
__device__ inline void put_task(const ExpertArgs &a, const sk_route_entry *entry, int stripe,
                                const TileSums<D, Routes> (&sums)[2], int lane)
{
    const int g = lane >> 2, t = lane & 3;
    if constexpr (Routes == 1) {
        const float s[2][2] = {{sums[0].total(0, 0), sums[1].total(0, 0)},
                               {sums[0].total(1, 0), sums[1].total(1, 0)}};
        if (t < 2)
            put_output<Glu>(a, stripe, g + 8 * t, entry->route[0], t ? s[1][0] : s[0][0],
                            t ? s[1][1] : s[0][1]);
    } else {
        /* Lane t: with two routes half t mod 2 of route t / 2; with four half t / 2 of its two. */
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float s[2][2] = {{sums[0].total(0, j), sums[1].total(0, j)},
                                   {sums[0].total(1, j), sums[1].total(1, j)}};
            const int half = Routes == 2 ? t & 1 : t >> 1;
            const int column = Routes == 2 ? j : 2 * (t & 1) + j;
            const bool mine = Routes == 2 ? (t >> 1) == j : column < entry->n;
            if (mine)
                put_output<Glu>(a, stripe, g + 8 * half, entry->route[column],
                                half ? s[1][0] : s[0][0], half ? s[1][1] : s[0][1]);
        }
    }
}

template <typename D, bool Glu> struct Worker {
    using Step = StepOf<D>;
    using Shared = ExpertShared<D>;
    using Table = typename ExpertTable<D>::Type;

    const ExpertArgs &a;
    const Table &table;
    uint8_t *block; // of the warp
    using Slots = StepRing<Shared::kDepth, Step::kTileBytes>;
    Slots &ring;
    int lane;

    template <int Routes> __device__ void run(const sk_piece &p, const sk_route_entry *entry)
    {
        using F = Form<D, Routes>;
        const int g = lane >> 2, t = lane & 3;
        const int32_t route = entry->route[F::route(g, entry->n)];
        const uint16_t *x = a.x + route / a.per * a.x_step + 32 * F::block(g);
        const int blocks = a.k / 32 - F::block(g);
        TileSums<D, Routes> sums[2];
        if (p.first > 0)
            take(sums);
        else
#pragma unroll
            for (int i = 0; i < F::kEach; i++) sums[0].a[i] = sums[1].a[i] = 0;
#pragma unroll 1
        for (int s = p.first; s < p.end; s++) {
            const int units = min(Step::kUnits, units_of<D>(a) - s * Step::kUnits);
            Acts<D, Routes> acts(x + s * (32 * Step::kBlocks), blocks - s * Step::kBlocks, t);
            step(sums, units, acts);
        }
        finish(sums, p.end);
    }

    /* A slot is free when all lanes have read it. Where the ring has but one, each half is asked
     * for as soon as its tile is in registers. */
    template <int Routes>
    __device__ void step(TileSums<D, Routes> (&sums)[2], int units, Acts<D, Routes> &acts)
    {
        constexpr bool kEarly = Shared::kDepth == 1 && Slots::kOneLane;
        const uint8_t *slot = ring.wait();
        WarpState *state = Shared::state(block);
        if constexpr (kEarly) {
            tile_step<D, Routes, true>(sums[0], slot, units, acts, table, lane, [&] {
                fetch_step<D, Glu, Part::kFirst>(a, state, ring, 0, lane);
            });
            tile_step<D, Routes, true>(
                sums[1], slot + Step::kTileBytes, units, acts, table, lane,
                [&] { fetch_step<D, Glu, Part::kSecond>(a, state, ring, ring.release(), lane); });
        } else {
            const auto nothing = [] {};
            tile_step<D, Routes, false>(sums[0], slot, units, acts, table, lane, nothing);
            tile_step<D, Routes, false>(sums[1], slot + Step::kTileBytes, units, acts, table, lane,
                                        nothing);
            const int free = ring.release();
            fetch_step<D, Glu, Part::kBoth>(a, state, ring, free, lane);
        }
    }

    __device__ void piece(const sk_piece &p)
    {
        const sk_route_entry *entry = entry_of(a, p.task / a.stripes);
        const int32_t n = entry->n;
        if (n == 1)
            run<1>(p, entry);
        else if (n == 2)
            run<2>(p, entry);
        else
            run<4>(p, entry);
    }

  private:
    /* The piece is worked out again: the loop needs the registers. */
    template <int Routes> __device__ void finish(const TileSums<D, Routes> (&sums)[2], int32_t end)
    {
        const WarpState *state = Shared::state(block);
        if (end < state->share.steps) {
            hand(sums);
            return;
        }
        const int32_t task = sk_share_piece(&state->share, state->doing).task;
        const int e = task / a.stripes;
        put_task<D, Routes, Glu>(a, entry_of(a, e), task - e * a.stripes, sums, lane);
    }
    template <int Routes> __device__ void hand(const TileSums<D, Routes> (&sums)[2])
    {
        constexpr int kEach = Form<D, Routes>::kEach;
        float *to = Shared::sums(block) + lane;
#pragma unroll
        for (int u = 0; u < 2; u++)
#pragma unroll
            for (int i = 0; i < kEach; i++) to[32 * (u * kEach + i)] = sums[u].a[i];
        __threadfence_block();
        __syncwarp();
        if (lane == 0) Shared::state(block)->handed = 1;
    }
    template <int Routes> __device__ void take(TileSums<D, Routes> (&sums)[2])
    {
        constexpr int kEach = Form<D, Routes>::kEach;
        uint8_t *before = block - Shared::kWarp;
        const volatile float *from = Shared::sums(before) + lane;
        while (Shared::state(before)->handed == 0) {
        }
        __threadfence_block();
#pragma unroll
        for (int u = 0; u < 2; u++)
#pragma unroll
            for (int i = 0; i < kEach; i++) sums[u].a[i] = from[32 * (u * kEach + i)];
    }
};

template <typename D, bool Glu>
__global__ void __launch_bounds__(32 * kWarpsOf<D>, 1) experts(const ExpertArgs a)
{
    using Shared = ExpertShared<D>;
    extern __shared__ __align__(1024) uint8_t bytes[];
    const int warp = static_cast<int>(threadIdx.x >> 5), lane = static_cast<int>(threadIdx.x & 31);
    const int warps = static_cast<int>(blockDim.x >> 5);
    uint8_t *block = Shared::block(bytes, warp);
    WarpState *state = Shared::state(block);
    int32_t *costs = Shared::common(bytes, warps), *tasks = costs + kExpertWarps;
    typename Worker<D, Glu>::Slots ring;

    ring.open(block, Shared::barriers(block), lane);
    if (lane == 0) state->handed = state->doing = 0;
    ExpertTable<D>::fill(bytes, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
    if (!a.list_ready) edge_wait();
    find_tasks(a, costs, tasks);
    if (lane == 0) {
        const int steps = (units_of<D>(a) + StepOf<D>::kUnits - 1) / StepOf<D>::kUnits;
        state->share = sk_share_of(tasks[0], tasks[1], steps, warp, warps);
        state->next = {};
        state->next.piece = state->next.entry = -1;
    }
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < Shared::kDepth; i++) {
        fetch_step<D, Glu, Part::kBoth>(a, state, ring, i, lane);
        __syncwarp();
    }
    if (a.list_ready) edge_wait();
    edge_open();

    const auto table = ExpertTable<D>::at(bytes, lane);
    Worker<D, Glu> worker = {a, table, block, ring, lane};
#pragma unroll 1
    while (state->doing < sk_share_pieces(&state->share)) {
        worker.piece(sk_share_piece(&state->share, state->doing));
        __syncwarp();
        if (lane == 0) state->doing++;
        __syncwarp();
    }
}

/* ---- launching ---------------------------------------------------------------------------------
 */

struct ExpertFamily {
    int32_t dtype;
    int32_t unit;       // elements of K
    int32_t unit_bytes; // of 16 rows, packed
    int32_t (*setup)();
    int32_t (*glu)(const ExpertArgs &a, const sk_launch *l);
    int32_t (*linear)(const ExpertArgs &a, const sk_launch *l);
};

/* Dynamic shared memory that a CTA may have here; 0 when the runtime does not say. */
inline int32_t shared_there()
{
    int device = 0, most = 0;
    if (cudaGetDevice(&device) != cudaSuccess) return 0;
    if (cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) !=
        cudaSuccess)
        return 0;
    return most;
}

/* One CTA a multiprocessor, of as many warps as its memory has rings for. */
template <typename D, bool Glu> int32_t launch_experts(const ExpertArgs &a, const sk_launch *l)
{
    const int32_t there = shared_there();
    int warps = kWarpsOf<D>;
    while (warps > 1 && ExpertShared<D>::kBytes(warps) > there) warps /= 2;
    return launch(l, experts<D, Glu>, dim3(static_cast<unsigned>(l->n_sm)),
                  dim3(static_cast<unsigned>(32 * warps)),
                  static_cast<size_t>(ExpertShared<D>::kBytes(warps)), a);
}

template <typename D, bool Glu> int32_t setup_experts_of()
{
    const int32_t there = shared_there(), most = ExpertShared<D>::kBytes(kWarpsOf<D>);
    const auto e = cudaFuncSetAttribute(
        experts<D, Glu>, cudaFuncAttributeMaxDynamicSharedMemorySize, there < most ? there : most);
    if (e != cudaSuccess) return static_cast<int32_t>(e);
    return prefer_shared(experts<D, Glu>);
}

template <typename D> int32_t setup_experts()
{
    const int32_t e = setup_experts_of<D, true>();
    return e ? e : setup_experts_of<D, false>();
}

} // namespace sk

#define SK_EXPERT_FAMILY(name)                                                                     \
    extern const sk::ExpertFamily sk_experts_##name;                                               \
    const sk::ExpertFamily sk_experts_##name = {                                                   \
        sk::Format##name::kType,                                                                   \
        32 * sk::Format##name::kBlocks,                                                            \
        sk::Format##name::kUnitBytes,                                                              \
        sk::setup_experts<sk::Format##name>,                                                       \
        sk::launch_experts<sk::Format##name, true>,                                                \
        sk::launch_experts<sk::Format##name, false>,                                               \
    }
