/* The arithmetic of a step: 4 or 8 blocks of K for a tile of 16 outputs and the 1, 2 or up to 4
 * routes of an entry. The eight columns of the matrix unit are for rows of a batch; with so few,
 * blocks of one row stand in them side by side, so that one set of activations serves many blocks
 * of weights: with one route column n has block n/2 + 4 (n mod 2), with two block n/2 of row n mod
 * 2 (of four blocks at a time), with four block n/4 of row n mod 4 (of two). Of a product with the
 * codes of block b only the columns of b are looked at.
 *
 * In every form an output's sum is the same:
 *
 *   block b: p = the products of its codes (of each 16 where a scale covers 16), from zero
 *            a[b mod 4] = fma(scale, p, a[b mod 4]);  then fma(min, sum of activations, a[b mod 4])
 *            with scale and min of the block as they are in full, b in ascending order
 *   output:  (a[0] + a[1]) + (a[2] + a[3])
 *
 * Where a scale covers half a block and lanes have whole octets (kHalved), a column is of one half
 * of a block: the elements of the other half are zeros there, so that one product serves both
 * halves. With one route column n has half n / 2 mod 2 of block n / 4 + 2 (n mod 2) (of four
 * blocks), with two the same of block n / 4 of row n mod 2, with four of one block of row 2 (n / 4)
 * + n mod 2. An output's sum:
 *
 *   half h of block b: p as above, a[2 (b mod 2) + h] = fma(scale, p, a[2 (b mod 2) + h]) */
#pragma once

#include "kernels/linear/formats_grid.cuh"
#include "kernels/linear/product.cuh"

namespace sk
{

/* How a format's units make up steps. */
template <typename D> struct StepOf {
    static constexpr int kUnits = D::kBlocks >= 4 ? 1 : 4 / D::kBlocks;
    static constexpr int kBlocks = kUnits * D::kBlocks;
    static constexpr int kTileBytes = kUnits * D::kUnitBytes;
    static_assert(kBlocks == 4 || kBlocks == 8, "four classes of blocks");
};

/* Form of an entry with so many routes. */
template <typename D, int Routes> struct Form {
    static constexpr int kBlocks = StepOf<D>::kBlocks;
    static constexpr int kSetBlocks = kHalved<D>    ? 4 / Routes
                                      : Routes == 1 ? kBlocks
                                      : Routes == 2 ? 4
                                                    : 2;
    static constexpr int kSets = kBlocks / kSetBlocks;
    static constexpr int kEach = Routes == 1 ? 2 : Routes == 2 ? 4 : 8; // sums of a lane and tile
    /* Column g: its route, its block within a set, and whether lane t of it has elements there. */
    __device__ static int route(int g, int n)
    {
        if (Routes == 1) return 0;
        if (Routes == 2) return g & 1;
        return min(kHalved<D> ? 2 * (g >> 2) + (g & 1) : g & 3, n - 1);
    }
    __device__ static int block(int g)
    {
        if (kHalved<D>) return Routes == 1 ? (g >> 2) + 2 * (g & 1) : Routes == 2 ? g >> 2 : 0;
        if (Routes == 1) return (g >> 1) + (kBlocks == 8 ? 4 * (g & 1) : 0);
        return Routes == 2 ? g >> 1 : g >> 2;
    }
    __device__ static bool has(int g, int t) { return !kHalved<D> || t >> 1 == ((g >> 1) & 1); }
    /* Of four routes lane t puts one half of two: its first one, its half. */
    __device__ static int first_of_two(int t) { return kHalved<D> ? t & 2 : 2 * (t & 1); }
    __device__ static int half_of_two(int t) { return kHalved<D> ? t & 1 : t >> 1; }
};

/* Activations of a step: all sets at once, for both tiles; or, where that and a large fragment
 * would be too much for the registers, each set when it is needed. */
template <typename D, int Routes> struct Acts {
    static constexpr bool kAtOnce = Routes < 4 || sizeof(typename D::Frag) <= 76;
    static constexpr int kSets = kAtOnce ? Form<D, Routes>::kSets : 1;
    uint32_t of[kSets][4];
    float sums[D::kMin ? kSets : 1][kStepsOf<D>][2];
    const uint16_t *row;
    int left;

    /* `first` is where the lane's elements of the column's first block begin; `there` blocks of it
     * are there. */
    __device__ Acts(const uint16_t *first, int there) : row(first), left(there)
    {
        if constexpr (kAtOnce) {
#pragma unroll
            for (int i = 0; i < kSets; i++) load(i, i);
        }
    }
    /* Has the set of block `at` of the step; blocks come in ascending order. Returns its place. */
    __device__ int need(int at)
    {
        constexpr int kEach = Form<D, Routes>::kSetBlocks;
        if (kAtOnce) return at / kEach;
        if (at % kEach == 0) load(0, at / kEach);
        return 0;
    }

  private:
    __device__ void load(int place, int set)
    {
        const int at = set * Form<D, Routes>::kSetBlocks;
#pragma unroll
        for (int c = 0; c < 4; c++) of[place][c] = 0;
        if (at < left) load_act<D::kGroup>(of[place], row + 32 * at, 0);
        if constexpr (D::kMin) {
            const uint32_t ones[4] = {0x3F803F80u, 0x3F803F80u, 0x3F803F80u, 0x3F803F80u};
#pragma unroll
            for (int step = 0; step < kStepsOf<D>; step++) {
                float p[4] = {};
                mma(p, ones, of[place] + 2 * step);
                if (D::kGroup == 32) mma(p, ones, of[place] + 2);
                sums[place][step][0] = p[0];
                sums[place][step][1] = p[1];
            }
        }
    }
};

/* In units of eight blocks scale() and min() take any block number, also one that differs by lane,
 * for a shift. */
template <typename D> constexpr bool kAnyBlock = D::kBlocks == 8 && D::kScaled;

/* Factors of one block: of rows g and g + 8. */
struct Pair {
    float row, row8;
};

/* Products are scaled: by block, by unit, or by both. */
template <typename D> constexpr bool kAnyScale = D::kScaled || D::kSuper;

/* The scale of a block in full, exactly. */
template <typename D> __device__ inline Pair full_scale(const typename D::Frag &f, int b, int step)
{
    Pair s = {1, 1};
    if constexpr (D::kScaled) s = {D::scale(f, b, step, 0), D::scale(f, b, step, 1)};
    if constexpr (D::kSuper) {
        s.row = D::outer(f, 0) * s.row;
        s.row8 = D::outer(f, 1) * s.row8;
    }
    return s;
}

template <typename D> __device__ inline Pair full_min(const typename D::Frag &f, int b, int step)
{
    Pair m = {D::min(f, b, step, 0), D::min(f, b, step, 1)};
    if constexpr (D::kSuper) {
        m.row = D::outer_min(f, 0) * m.row;
        m.row8 = D::outer_min(f, 1) * m.row8;
    }
    return m;
}

/* Factors of a unit's blocks as the lane needs them: of those that it has columns of where the
 * format can say, and where they are few at once; else of each block when it comes. */
template <typename D, int Routes> struct Factors {
    static constexpr bool kOwn = kAnyBlock<D> && Routes < 4;
    Pair scales[kOwn ? 2 : 1][kStepsOf<D>];
    Pair minima[kOwn && D::kMin ? 2 : 1][kStepsOf<D>];
    int t;

    __device__ Factors(const typename D::Frag &f, int quad) : t(quad)
    {
        if constexpr (kOwn) {
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int step = 0; step < kStepsOf<D>; step++) {
                    scales[i][step] = full_scale<D>(f, 4 * i + t, step);
                    if constexpr (D::kMin) minima[i][step] = full_min<D>(f, 4 * i + t, step);
                }
        }
    }
    __device__ Pair scale(const typename D::Frag &f, int b, int step) const
    {
        if constexpr (kOwn)
            return scales[b >> 2][step];
        else
            return full_scale<D>(f, kAnyBlock<D> ? (b & ~1) + (t >> 1) : b, step);
    }
    __device__ Pair min(const typename D::Frag &f, int b, int step) const
    {
        if constexpr (kOwn)
            return minima[b >> 2][step];
        else
            return full_min<D>(f, kAnyBlock<D> ? (b & ~1) + (t >> 1) : b, step);
    }
};

/* Where lanes have whole octets: of the unit's sixteens that the lane has columns of. Four bits n
 * are the binary16 number n 2^-24; so two come out of a word without a shift for each. */
template <int Routes> struct Factors<FormatIQ2_S_Octets, Routes> {
    using D = FormatIQ2_S_Octets;
    static constexpr int kParities = Routes < 4 ? 1 : 2; // of blocks
    uint32_t steps[2][kParities][2]; // [row half][parity]: blocks 0 and 4 and on, 2 and 6 and on
    float outer[2];

    __device__ Factors(const D::Frag &f, int t)
    {
        const int late = Routes < 4 ? 4 * (t >> 1) : 0;
        const uint32_t words[2] = {f.s.x >> late, f.s.y >> late};
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int i = 0; i < 2 * kParities; i++) {
                const int parity = i / 2, late = 4 * parity + 8 * (i & 1);
                steps[half][parity][i & 1] = (words[half] >> late) & 0x000F000Fu;
            }
            outer[half] = half_at(f.d, half) * 0x1p22f; // outer() times 2^24
        }
    }
    __device__ Pair scale(const D::Frag &, int b, int) const
    {
        return {outer[0] * step(b, 0), outer[1] * step(b, 1)};
    }

  private:
    __device__ float step(int b, int half) const // n + 1/2, times 2^-24
    {
        return half_at(steps[half][b % kParities][(b >> 1) & 1], b >> 2) + 0x1p-25f;
    }
};

/* to += by p where `on`: one instruction, no branch. */
__device__ inline void fma_if(bool on, float &to, float by, float p)
{
#ifdef __CUDA_ARCH__
    asm("{.reg .pred q;\n"
        "setp.ne.u32 q, %3, 0;\n"
        "@q fma.rn.f32 %0, %1, %2, %0;}"
        : "+f"(to)
        : "f"(by), "f"(p), "r"(static_cast<uint32_t>(on)));
#else
    if (on) to = fmaf(by, p, to);
#endif
}

__device__ inline void add_if(bool on, float &to, float p)
{
#ifdef __CUDA_ARCH__
    asm("{.reg .pred q;\n"
        "setp.ne.u32 q, %2, 0;\n"
        "@q add.rn.f32 %0, %0, %1;}"
        : "+f"(to)
        : "f"(p), "r"(static_cast<uint32_t>(on)));
#else
    if (on) to += p;
#endif
}

/* A lane's sums of one tile. With one route: rows g, g + 8 of class t. With two: [half][route] of
 * class t. With four: [class / 2][half][route of the lane's two], class t / 2 + 2 times the first,
 * routes 2 (t mod 2) and the next; where kHalved, class t mod 2 + 2 times the first, routes
 * 2 (t / 2) and the next. */
template <typename D, int Routes> struct TileSums {
    static constexpr int kEach = Form<D, Routes>::kEach;
    float a[kEach];

    /* Adds scale p, or min sum, or p of block `at` of the step where the lane has its columns. */
    template <bool Scaled> __device__ void add(int at, int t, Pair by, const float (&p)[4])
    {
        if constexpr (Routes == 1) {
            const bool on = kHalved<D> ? t >> 1 == (at & 1) : t == (at & 3);
            const bool late = kHalved<D> ? at & 2 : at >= 4;
            put<Scaled>(on, a[0], by.row, late ? p[1] : p[0]);
            put<Scaled>(on, a[1], by.row8, late ? p[3] : p[2]);
        } else {
            const int first = Routes == 2 ? 0 : 4 * ((kHalved<D> ? at : at >> 1) & 1);
            const bool on = kHalved<D>    ? Routes == 4 || t >> 1 == (at & 1)
                            : Routes == 2 ? t == (at & 3)
                                          : (at & 1 ? t >= 2 : t < 2);
            put<Scaled>(on, a[first], by.row, p[0]);
            put<Scaled>(on, a[first + 1], by.row, p[1]);
            put<Scaled>(on, a[first + 2], by.row8, p[2]);
            put<Scaled>(on, a[first + 3], by.row8, p[3]);
        }
    }

    /* Output of half h and the lane's route j. */
    __device__ float total(int h, int j) const
    {
        if constexpr (Routes == 1) {
            return quad_sum(a[h]);
        } else if constexpr (Routes == 2) {
            return quad_sum(a[2 * h + j]);
        } else {
            const float early = a[2 * h + j], late = a[4 + 2 * h + j];
            constexpr int kBy = kHalved<D> ? 1 : 2;
            const float low = early + __shfl_xor_sync(0xFFFFFFFFu, early, kBy);
            return low + (late + __shfl_xor_sync(0xFFFFFFFFu, late, kBy));
        }
    }

  private:
    template <bool Scaled> __device__ static void put(bool on, float &to, float by, float p)
    {
        if (Scaled)
            fma_if(on, to, by, p);
        else
            add_if(on, to, p);
    }
};

/* A block of a tile: block b of unit u in the step. */
template <typename D, int Routes, typename Table>
__device__ inline void add_block(TileSums<D, Routes> &sums, const typename D::Frag &f,
                                 const Factors<D, Routes> &factors, int u, int b,
                                 Acts<D, Routes> &x, const Table &table, int t)
{
    const int at = u * D::kBlocks + b;
    const int set = x.need(at);
    uint32_t a[D::kTerms][8];
#pragma unroll
    for (int term = 0; term < D::kTerms; term++) D::codes(f, b, term, table, a[term]);
#pragma unroll
    for (int step = 0; step < kStepsOf<D>; step++) {
        float p[4] = {};
#pragma unroll
        for (int term = 0; term < D::kTerms; term++) {
            mma(p, a[term] + 4 * step, x.of[set] + 2 * step);
            if (D::kGroup == 32) mma(p, a[term] + 4, x.of[set] + 2);
        }
        if constexpr (kAnyScale<D>)
            sums.template add<true>(at, t, factors.scale(f, b, step), p);
        else
            sums.template add<false>(at, t, Pair(), p);
        if constexpr (D::kMin) {
            const float(&s)[2] = x.sums[set][step];
            const float both[4] = {s[0], s[1], s[0], s[1]};
            sums.template add<true>(at, t, factors.min(f, b, step), both);
        }
    }
}

#ifdef __CUDA_ARCH__
/* Loads by address in shared memory: uniform register, register of the lane and constant are added
 * up by the load itself. */
struct FromSharedAddress {
    uint32_t tile;
    __device__ uint4 at16(int i) const
    {
        uint4 v;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(tile + static_cast<uint32_t>(i))
                     : "memory");
        return v;
    }
    __device__ uint2 at8(int i) const
    {
        uint2 v;
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                     : "=r"(v.x), "=r"(v.y)
                     : "r"(tile + static_cast<uint32_t>(i))
                     : "memory");
        return v;
    }
    __device__ uint32_t at4(int i) const
    {
        uint32_t v;
        asm volatile("ld.shared.u32 %0, [%1];"
                     : "=r"(v)
                     : "r"(tile + static_cast<uint32_t>(i))
                     : "memory");
        return v;
    }
};

#else
struct FromSharedAddress {
    uint32_t tile;
    template <typename T> __device__ T at(int i) const
    {
        return *static_cast<const T *>(__cvta_shared_to_generic(tile + static_cast<uint32_t>(i)));
    }
    __device__ uint4 at16(int i) const { return at<uint4>(i); }
    __device__ uint2 at8(int i) const { return at<uint2>(i); }
    __device__ uint32_t at4(int i) const { return at<uint32_t>(i); }
};
#endif

/* Both tiles of a step are read before the first is used, where there are registers for that; and
 * a slot is given back before its last tile is used, where a tile is not too much for them. */
template <typename D> constexpr int kFragBytes = StepOf<D>::kUnits * sizeof(typename D::Frag);
template <typename D, int Routes>
constexpr bool kBothFirst = Routes == 1 && kFragBytes<D> <= (D::kGroup == 32 ? 80 : 60);
template <typename D> constexpr bool kBackFirst = kFragBytes<D> <= 96;

/* Unit u of a tile at `tile` in shared memory. Of those of a step only `units` are there; the
 * others become zeros, which add nothing. */
template <typename D>
__device__ inline typename D::Frag read_unit(uint32_t tile, int u, int units, int lane)
{
    typename D::Frag f = {};
    const FromSharedAddress unit = {tile + static_cast<uint32_t>(u * D::kUnitBytes)};
    if (u == 0 || u < units) f = D::load(unit, lane);
    return f;
}

template <typename D> struct Fragments {
    typename D::Frag unit[StepOf<D>::kUnits];

    __device__ void read(uint32_t tile, int units, int lane)
    {
#pragma unroll
        for (int u = 0; u < StepOf<D>::kUnits; u++) unit[u] = read_unit<D>(tile, u, units, lane);
    }
};

template <typename D, int Routes, typename Table>
__device__ inline void add_unit(TileSums<D, Routes> &sums, const typename D::Frag &f, int u,
                                Acts<D, Routes> &x, const Table &table, int lane)
{
    const int t = lane & 3;
    const Factors<D, Routes> factors(f, t);
#pragma unroll
    for (int b = 0; b < D::kBlocks; b++) add_block<D, Routes>(sums, f, factors, u, b, x, table, t);
}

template <typename D, int Routes, typename Table>
__device__ inline void add_tile(TileSums<D, Routes> &sums, const Fragments<D> &f,
                                Acts<D, Routes> &x, const Table &table, int lane)
{
#pragma unroll
    for (int u = 0; u < StepOf<D>::kUnits; u++)
        add_unit<D, Routes>(sums, f.unit[u], u, x, table, lane);
}

/* The same with one unit of the tile in registers at a time. */
template <typename D, int Routes, typename Table>
__device__ inline void add_tile(TileSums<D, Routes> &sums, uint32_t tile, int units,
                                Acts<D, Routes> &x, const Table &table, int lane)
{
#pragma unroll
    for (int u = 0; u < StepOf<D>::kUnits; u++)
        add_unit<D, Routes>(sums, read_unit<D>(tile, u, units, lane), u, x, table, lane);
}

} // namespace sk
