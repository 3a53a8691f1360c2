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
#include "kernels/experts/sums.cuh"
#include "kernels/experts/tasks.cuh"
#include "kernels/linear/table.cuh"

#include <stddef.h>

namespace sk
{

/* What a format's look-ups need in shared memory, at its beginning. */
template <typename D, bool HasTable = (D::kEntries > 0)> struct ExpertTable {
    using Type = NoTable;
    static constexpr int kBytes = 0;
    __device__ static void fill(uint8_t *, int, int) {}
    __device__ static Type at(const uint8_t *, int) { return Type(); }
};
template <typename D> struct ExpertTable<D, true> {
    static constexpr int kRow = kIndexIsByte<D> ? kByteTableRow : kTableRow;
    using Type = SharedTable<D, kRow>;
    static constexpr int kBytes = kSharedTableBytes<D, kRow>;
    __device__ static void fill(uint8_t *shared, int tid, int n)
    {
        fill_table<D, kRow>(shared, tid, n);
    }
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

/* A piece of a warp's work, as its products need it. */
struct Piece {
    int32_t stripe, n; // n: routes
    int32_t route[SK_ENTRY_ROUTES];
    int32_t first, end; // steps
};
static_assert(sizeof(Piece) == 32 && offsetof(Piece, route) == offsetof(sk_route_entry, route),
              "pieces are copies of entries");
constexpr int kPiecesAhead = 4; // the one in work and those whose weights are asked for

/* What a warp has to do, and whether its sums of a head are there. It lies in shared memory:
 * registers are for the products. */
struct WarpState {
    Piece pieces[kPiecesAhead];
    sk_share share;
    volatile int32_t handed;
};

/* Shared memory: the table, a block for each warp (ring, sums handed over, state, barriers of the
 * ring), then what the CTA has in common. Sums handed over go into the free halves of the table's
 * rows where it has such. */
template <typename D> struct ExpertShared {
    static constexpr int kTable = ExpertTable<D>::kBytes;
    static constexpr int kTileBytes = StepOf<D>::kTileBytes;
    static constexpr int kSumsOfWarp = 4 * 32 * kHandedFloats;
    static constexpr bool kInTable =
        kTable == kSharedTableBytes<D, kByteTableRow> && kTable >= 2 * kExpertWarps * kSumsOfWarp;
    static constexpr int kSums = kInTable ? 0 : kSumsOfWarp;
    static constexpr int kOwnState = 192, kOwn = kSums + kOwnState; // beside a warp's ring
    static constexpr int kCommon = 128;
    static constexpr int kFit =
        ((kSharedOfAll - kTable - kCommon) / kWarpsOf<D> / 128 * 128 - kOwn) / kTileBytes;
    // a slot has both tiles of a step, or one where not even two steps fit
    static constexpr int kSlotTiles = kFit >= 4 ? 2 : 1;
    static constexpr int kDepth = kFit / kSlotTiles > 3 ? 3 : kFit / kSlotTiles;
    static constexpr int kRing = kDepth * kSlotTiles * kTileBytes;
    static constexpr int kWarp = (kRing + kOwn + 127) / 128 * 128;
    static constexpr int kBytes(int warps) { return kTable + warps * kWarp + kCommon; }
    static_assert(kFit >= 2 && kBytes(kWarpsOf<D>) <= kSharedOfAll, "a ring for every warp");
    static_assert(sizeof(WarpState) + 8 * kDepth <= kOwnState, "state and barriers");
    static_assert(kDepth < kPiecesAhead, "pieces");

    __device__ static uint8_t *block(uint8_t *shared, int warp)
    {
        return shared + kTable + warp * kWarp;
    }
    /* Number i of lane 0's sums; those of the other lanes are behind it. */
    __device__ static float *sums(uint8_t *shared, int warp, int i)
    {
        uint8_t *at = kInTable ? shared + (kHandedFloats * warp + i) * kByteTableRow + kTableRow
                               : block(shared, warp) + kRing + 128 * i;
        return reinterpret_cast<float *>(at);
    }
    __device__ static WarpState *state(uint8_t *shared, int warp)
    {
        return reinterpret_cast<WarpState *>(block(shared, warp) + kRing + kSums);
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

/* In a register: the loop has no time to read it anew, and what comes out of a shuffle cannot be.
 */
__device__ inline int lane_number()
{
    const int lane = static_cast<int>(threadIdx.x & 31);
#ifdef __CUDA_ARCH__
    int kept;
    asm volatile("shfl.sync.idx.b32 %0, %1, %1, 31, 0xFFFFFFFF;" : "=r"(kept) : "r"(lane));
    return kept;
#else
    return lane;
#endif
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
__device__ inline void put_task(const ExpertArgs &a, const Piece &piece,
                                const TileSums<D, Routes> (&sums)[2], int lane)
{
    const int g = lane >> 2, t = lane & 3, stripe = piece.stripe;
    if constexpr (Routes == 1) {
        const float s[2][2] = {{sums[0].total(0, 0), sums[1].total(0, 0)},
                               {sums[0].total(1, 0), sums[1].total(1, 0)}};
        if (t < 2)
            put_output<Glu>(a, stripe, g + 8 * t, piece.route[0], t ? s[1][0] : s[0][0],
                            t ? s[1][1] : s[0][1]);
    } else {
        // lane t: with two routes half t mod 2 of route t / 2; with four a half of its two
        using F = Form<D, Routes>;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float s[2][2] = {{sums[0].total(0, j), sums[1].total(0, j)},
                                   {sums[0].total(1, j), sums[1].total(1, j)}};
            const int half = Routes == 2 ? t & 1 : F::half_of_two(t);
            const int column = Routes == 2 ? j : F::first_of_two(t) + j;
            const bool mine = Routes == 2 ? (t >> 1) == j : column < piece.n;
            if (mine)
                put_output<Glu>(a, stripe, g + 8 * half, piece.route[column],
                                half ? s[1][0] : s[0][0], half ? s[1][1] : s[0][1]);
        }
    }
}

/* Where the weights of a warp's next step are; the same in all lanes. `second`: there is a second
 * tile, else the first one stands in for it. */
struct Cursor {
    const uint8_t *tile;
    int32_t piece, step, end;
    bool second;
};

template <typename D, bool Glu> struct Worker {
    using Step = StepOf<D>;
    using Shared = ExpertShared<D>;
    using Table = typename ExpertTable<D>::Type;
    static constexpr int kSlotTiles = Shared::kSlotTiles, kDepth = Shared::kDepth;
    using Slots = StepRing<kDepth, kSlotTiles, Step::kTileBytes>;

    const ExpertArgs &a;
    uint8_t *shared;
    int warp, lane;
    Slots ring;
    Cursor next;

    /* Takes over what the warp has to do, and asks for its first weights. */
    __device__ void open(const Tasks &tasks, int warps)
    {
        WarpState *state = Shared::state(shared, warp);
        // even lanes: where the warp begins, odd ones: where it ends
        const sk_place p = sk_place_of(tasks.begin, tasks.end, a.steps, warp + (lane & 1), warps);
        const sk_place to = {__shfl_xor_sync(0xFFFFFFFFu, p.task, 1),
                             __shfl_xor_sync(0xFFFFFFFFu, p.step, 1)};
        if (lane == 0) {
            state->share = sk_share_between(p, to, a.steps);
            state->handed = 0;
        }
        __syncwarp();
        next = {};
        next.piece = -1;
        if constexpr (kSlotTiles == 2) {
#pragma unroll 1
            for (int i = 0; i < kDepth; i++) ask<0>(i);
        } else {
            ask<0>(0);
            ask<1>(1);
            if constexpr (kDepth > 2) ask<0>(2);
        }
    }

    __device__ void work(const Table &table)
    {
        const int32_t pieces = uniform(sk_share_pieces(&Shared::state(shared, warp)->share));
#pragma unroll 1
        for (int32_t i = 0; i < pieces; i++) {
            const Piece &p = piece(i);
            const int32_t n = uniform(p.n);
            if (n == 1)
                run<1>(p, table);
            else if (n == 2)
                run<2>(p, table);
            else
                run<4>(p, table);
        }
    }

  private:
    __device__ Piece &piece(int32_t i) const
    {
        return Shared::state(shared, warp)->pieces[static_cast<uint32_t>(i) % kPiecesAhead];
    }

    /* Units of a step that are there. */
    __device__ int units_in(int32_t step) const
    {
        return Step::kUnits == 1 ? 1 : min(Step::kUnits, a.units - step * Step::kUnits);
    }

    /* Puts the cursor on the next piece, and leaves what its products need; false when there is
     * none. */
    __device__ bool next_piece()
    {
        const sk_share &share = Shared::state(shared, warp)->share;
        if (next.piece + 1 >= uniform(sk_share_pieces(&share))) return false;
        const sk_piece p = sk_share_piece(&share, ++next.piece);
        const int32_t task = uniform(p.task);
        const int32_t e = sk_quotient(task, &a.of_stripes), stripe = task - e * a.stripes;
        const int tile = Glu ? stripe : 2 * stripe;
        const int32_t word = entry_word(a, e, lane & 7); // of eight
        next.step = uniform(p.first);
        next.end = uniform(p.end);
        if (lane >= 1 && lane < 6) reinterpret_cast<int32_t *>(&piece(next.piece))[lane] = word;
        if (lane == 0) {
            piece(next.piece).stripe = stripe;
            piece(next.piece).first = p.first;
            piece(next.piece).end = p.end;
        }
        __syncwarp();
        next.tile =
            uniform(a.w + uniform(lane == 0 ? word : 0) * a.expert_bytes + tile * a.tile_bytes +
                    static_cast<int64_t>(next.step) * Step::kTileBytes);
        next.second = Glu || tile + 1 < a.tiles;
        return true;
    }

    /* Asks for the weights at the cursor, into slot i, and moves the cursor on: a step's, or those
     * of its tile Tile only. */
    template <int Tile> __device__ void ask(int i)
    {
        if (next.step < next.end || (Tile == 0 && next_piece())) {
            const int bytes = units_in(next.step) * D::kUnitBytes;
            const uint8_t *second = next.tile + (Glu || next.second ? a.apart : 0);
            if constexpr (kSlotTiles == 2)
                ring.fetch_two(i, next.tile, second, bytes, lane);
            else
                ring.fetch_one(i, Tile == 0 ? next.tile : second, bytes, lane);
            if (Tile + kSlotTiles == 2) {
                next.tile += Step::kTileBytes;
                next.step++;
            }
        }
        ring.asked();
    }

    template <int Routes> __device__ void run(const Piece &p, const Table &table)
    {
        using F = Form<D, Routes>;
        const int g = lane >> 2, t = lane & 3;
        const int32_t from = uniform(p.first), end = uniform(p.end);
        const int32_t route = p.route[F::route(g, p.n)];
        const int first = Step::kBlocks * from + F::block(g); // block
        const int64_t row = Glu ? sk_quotient(route, &a.per) : route;
        const uint16_t *x = a.x + row * a.x_step + 32 * first + (D::kGroup == 32 ? 8 : 4) * t;
        int blocks = F::has(g, t) ? a.k / 32 - first : 0;
        TileSums<D, Routes> sums[2];
        if (from > 0)
            take(sums);
        else
#pragma unroll
            for (int i = 0; i < F::kEach; i++) sums[0].a[i] = sums[1].a[i] = 0;
#pragma unroll 1
        for (int s = from; s < end; s++) {
            Acts<D, Routes> acts(x, blocks);
            step(sums, units_in(s), acts, table);
            x += 32 * Step::kBlocks;
            blocks -= Step::kBlocks;
        }
        if (end < a.steps)
            hand(sums);
        else
            put_task<D, Routes, Glu>(a, p, sums, lane);
    }

    /* A slot is asked for again as soon as all of its weights are in registers. */
    template <int Routes>
    __device__ void step(TileSums<D, Routes> (&sums)[2], int units, Acts<D, Routes> &acts,
                         const Table &table)
    {
        constexpr int kNext = kDepth % 2; // tile that takes the place of a slot's only one
        const uint32_t first = ring.wait();
        if constexpr (!kBackFirst<D>) {
            add_tile<D, Routes>(sums[0], first, units, acts, table, lane);
            if (kSlotTiles == 1) ask<kNext>(ring.release());
            const uint32_t second = kSlotTiles == 1 ? ring.wait() : first + Step::kTileBytes;
            add_tile<D, Routes>(sums[1], second, units, acts, table, lane);
            ask<kSlotTiles == 1 ? 1 - kNext : 0>(ring.release());
        } else if constexpr (kSlotTiles == 1) {
            Fragments<D> f;
            f.read(first, units, lane);
            ask<kNext>(ring.release());
            add_tile<D, Routes>(sums[0], f, acts, table, lane);
            f.read(ring.wait(), units, lane);
            ask<1 - kNext>(ring.release());
            add_tile<D, Routes>(sums[1], f, acts, table, lane);
        } else {
            Fragments<D> f, f1;
            f.read(first, units, lane);
            if (!kBothFirst<D, Routes>) add_tile<D, Routes>(sums[0], f, acts, table, lane);
            f1.read(first + Step::kTileBytes, units, lane);
            ask<0>(ring.release());
            if (kBothFirst<D, Routes>) add_tile<D, Routes>(sums[0], f, acts, table, lane);
            add_tile<D, Routes>(sums[1], f1, acts, table, lane);
        }
    }

    template <int Routes> __device__ void hand(const TileSums<D, Routes> (&sums)[2])
    {
        constexpr int kEach = Form<D, Routes>::kEach;
#pragma unroll
        for (int u = 0; u < 2; u++)
#pragma unroll
            for (int i = 0; i < kEach; i++)
                Shared::sums(shared, warp, u * kEach + i)[lane] = sums[u].a[i];
        __threadfence_block();
        __syncwarp();
        if (lane == 0) Shared::state(shared, warp)->handed = 1;
    }
    template <int Routes> __device__ void take(TileSums<D, Routes> (&sums)[2])
    {
        constexpr int kEach = Form<D, Routes>::kEach;
        while (Shared::state(shared, warp - 1)->handed == 0) spin();
        __threadfence_block();
#pragma unroll
        for (int u = 0; u < 2; u++)
#pragma unroll
            for (int i = 0; i < kEach; i++) {
                const volatile float *from = Shared::sums(shared, warp - 1, u * kEach + i);
                sums[u].a[i] = from[lane];
            }
    }
};

template <typename D, bool Glu>
__global__ void __launch_bounds__(32 * kWarpsOf<D>, 1) experts(const ExpertArgs a)
{
    using Shared = ExpertShared<D>;
    extern __shared__ __align__(1024) uint8_t bytes[];
    const int warp = uniform(static_cast<int>(threadIdx.x >> 5));
    const int lane = lane_number(), warps = static_cast<int>(blockDim.x >> 5);
    const bool is_short = a.capacity <= kShortList;
    uint8_t *block = Shared::block(bytes, warp);
    Worker<D, Glu> worker = {a, bytes, warp, lane, {}, {}};
    ShortList list = {};

    // the list is under way while the table is filled
    if (a.list_ready && is_short) list.read(a, lane);
    worker.ring.open(block, Shared::barriers(block), lane);
    ExpertTable<D>::fill(bytes, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
    if (!a.list_ready) {
        edge_wait();
        edge_open();
        if (is_short) list.read(a, lane);
    }
    int32_t *costs = Shared::common(bytes, warps);
    worker.open(is_short ? list.find(a, lane) : find_tasks(a, costs, costs + kExpertWarps), warps);
    __syncthreads(); // the table is there, and nobody has handed anything over
    edge_wait();     // at once where it has waited
    edge_open();
    worker.work(ExpertTable<D>::at(bytes, lane));
}

/* ---- launching ---------------------------------------------------------------------------------
 */

/* How experts read a format. */
template <typename D> struct ExpertReader {
    using Type = D;
};
template <> struct ExpertReader<FormatIQ2_S> {
    using Type = FormatIQ2_S_Octets;
};

struct ExpertFamily {
    int32_t dtype;
    int32_t unit;       // elements of K
    int32_t unit_bytes; // of 16 rows, packed
    int32_t (*setup)();
    int32_t (*glu)(ExpertArgs a, const sk_launch *l);
    int32_t (*linear)(ExpertArgs a, const sk_launch *l);
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
template <typename D, bool Glu> int32_t launch_experts(ExpertArgs a, const sk_launch *l)
{
    const int32_t there = shared_there();
    int warps = kWarpsOf<D>;
    while (warps > 1 && ExpertShared<D>::kBytes(warps) > there) warps /= 2;
    a.steps = (a.units + StepOf<D>::kUnits - 1) / StepOf<D>::kUnits;
    return launch(l, experts<D, Glu>, dim3(static_cast<unsigned>(l->n_sm)),
                  dim3(static_cast<unsigned>(32 * warps)),
                  static_cast<size_t>(ExpertShared<D>::kBytes(warps)), a);
}

template <typename D, bool Glu> int32_t setup_experts_of()
{
    const int32_t there = shared_there(), most = ExpertShared<D>::kBytes(kWarpsOf<D>);
    return allow_shared(experts<D, Glu>, static_cast<size_t>(there < most ? there : most));
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
        sk::setup_experts<sk::ExpertReader<sk::Format##name>::Type>,                               \
        sk::launch_experts<sk::ExpertReader<sk::Format##name>::Type, true>,                        \
        sk::launch_experts<sk::ExpertReader<sk::Format##name>::Type, false>,                       \
    }
