/* All kernels of one weight format behind one table of functions. A format is compiled in a file of
 * its own (inst/), and linear.cu picks the table by the weight's type. */
#pragma once

#include "kernels/common/setup.cuh"
#include "kernels/linear/gather.cuh"
#include "kernels/linear/narrow.cuh"
#include "kernels/linear/pack.cuh"
#include "kernels/linear/ring.cuh"
#include "kernels/linear/spread.cuh"
#include "kernels/linear/stream.cuh"
#include "kernels/linear/wide.cuh"

namespace sk
{

struct Family {
    int32_t dtype;
    int32_t unit;       // elements of K
    int32_t unit_bytes; // of 16 rows, packed
    int32_t row_bytes;  // of one row's unit in the file
    int32_t (*setup)();
    // NULL: all products of up to 40 rows go through the ring
    int32_t (*narrow)(NarrowArgs a, bool norm, bool gated, const sk_launch *l);
    int32_t (*ring)(RingArgs a, const sk_launch *l); // NULL: there is none
    int32_t (*wide)(const WideArgs &a, const sk_launch *l);
    int32_t (*norm_rows)(const NormActArgs &a, const sk_launch *l);
    int32_t (*gather)(const GatherArgs &a, const sk_launch *l);
    int32_t (*pack)(const PackArgs &a, bool unpack, cudaStream_t stream);
};

constexpr size_t kSharedMost = 227 * 1024;

/* CTAs of a launch: one a tile, or as many as the GPU holds at once when there are far more. */
template <typename D> int32_t narrow_grid(int32_t tiles, int32_t n_sm)
{
    const int32_t most = n_sm * 3;
    return tiles < most ? tiles : most;
}

template <typename D, int N, int T, bool Norm>
int32_t launch_narrow(NarrowArgs &a, const sk_launch *l)
{
    const Slices s = slices_of<D>(a.k);
    const int32_t grid = narrow_grid<D>(a.seg.n_tiles, l->n_sm);
    const int warps = s.n < narrow_warps<D, N, T>() ? s.n : narrow_warps<D, N, T>();
    size_t shared;
    a.sets = grid < a.seg.n_tiles ? 2 : 1;
    if (NarrowShared<D, N, T>::bytes(s.n, a.sets) > kSharedMost / 3) a.sets = 1;
    shared = NarrowShared<D, N, T>::bytes(s.n, a.sets);
    return launch(l, narrow<D, N, T, Norm>, dim3(static_cast<unsigned>(grid)),
                  dim3(static_cast<unsigned>(32 * warps)), shared, a);
}

constexpr int kStreamMin = 1024; // tiles from which on outputs are streamed

/* A warp for every unit of K, a CTA for every tile. */
template <typename D, int N, int T, bool Norm, Ending E>
int32_t launch_single(const NarrowArgs &a, const sk_launch *l)
{
    const Slices s = slices_of<D>(a.k);
    return launch(l, single<D, N, T, Norm, E>, dim3(static_cast<unsigned>(a.seg.n_tiles)),
                  dim3(static_cast<unsigned>(32 * s.n)), NarrowShared<D, N, T>::bytes(s.n, 1), a);
}

template <typename D, int N, bool Argmax>
int32_t launch_stream(const NarrowArgs &a, const sk_launch *l)
{
    const Slices s = slices_of<D>(a.k);
    const int32_t steps = (a.seg.n_tiles + kStreamTiles - 1) / kStreamTiles;
    const int32_t most = l->n_sm * stream_residents<D, N>();
    return launch(l, stream<D, N, Argmax>, dim3(static_cast<unsigned>(steps < most ? steps : most)),
                  dim3(static_cast<unsigned>(32 * s.n)), StreamShared<D, N>::bytes(s.n), a);
}

/* Outputs that a CTA has of a tile, as a shift; 0: even the fewest have too many weights. Of up to
 * eight rows there is a CTA for every multiprocessor, if a tile can be shared out so far; of more,
 * whose activations take longer to read than weights, for every second one. */
template <typename D, int N> int32_t spread_bits(const NarrowArgs &a, const Slices &s, int32_t n_sm)
{
    const int32_t most = N == 1 ? n_sm : n_sm / 2;
    const auto fits = [&](int32_t bits) {
        return SpreadShared<D, N>::bytes(a.k, s, bits) <= kSpreadBytes;
    };
    int32_t bits = 3;
    while (bits > 1 && (a.seg.n_tiles * (32 >> bits) <= most || !fits(bits))) bits--;
    return fits(bits) ? bits : 0;
}

template <typename D, int N>
int32_t launch_spread(const NarrowArgs &a, const Slices &s, int32_t bits, const sk_launch *l)
{
    const int32_t halves = 2 * s.n, rounds = (halves + kSpreadWarps<N> - 1) / kSpreadWarps<N>;
    const int32_t warps = (halves + rounds - 1) / rounds;
    return launch(l, spread<D, N>,
                  dim3(static_cast<unsigned>(a.seg.n_tiles), static_cast<unsigned>(16 >> bits)),
                  dim3(static_cast<unsigned>(32 * warps)), SpreadShared<D, N>::bytes(a.k, s, bits),
                  a, s, bits);
}

/* The same sums by the kernel that suits the shape. */
template <typename D, int N>
int32_t run_columns(NarrowArgs &a, bool norm, bool gated, const sk_launch *l)
{
    const Slices s = slices_of<D>(a.k);
    if constexpr (kSpreads<D>) {
        if (!norm && !gated && a.epilogue != Epilogue::kArgmax && a.k > kShortK &&
            sk_slice_pieces(a.k) == 1 && a.seg.n_tiles <= kSpreadTiles)
            if (const int32_t bits = spread_bits<D, N>(a, s, l->n_sm))
                return launch_spread<D, N>(a, s, bits, l);
    }
    if constexpr (D::kBlocks <= 2 && D::kTerms == 1) {
        // K in whole units
        const bool one = s.per == 1 && a.k % (32 * D::kBlocks) == 0;
        const bool add = a.epilogue == Epilogue::kAdd;
        if constexpr (N <= 2) {
            if (one && norm && !gated && a.seg.n == 1 && a.seg.n_tiles >= kStreamMin &&
                s.n <= stream_warps<D, N>())
                return a.epilogue == Epilogue::kArgmax ? launch_stream<D, N, true>(a, l)
                                                       : launch_stream<D, N, false>(a, l);
        }
        if constexpr (N < 5) {
            if (one && gated && s.n <= single_warps<N, 2>())
                return launch_single<D, N, 2, true, Ending::kGlu>(a, l);
        }
        if (one && !gated && a.epilogue != Epilogue::kArgmax && s.n <= single_warps<N, 1>()) {
            if (norm) return launch_single<D, N, 1, true, Ending::kStore>(a, l);
            if (add) return launch_single<D, N, 1, false, Ending::kAdd>(a, l);
            return launch_single<D, N, 1, false, Ending::kStore>(a, l);
        }
    }
    if (gated) return launch_narrow<D, N, 2, true>(a, l);
    return norm ? launch_narrow<D, N, 1, true>(a, l) : launch_narrow<D, N, 1, false>(a, l);
}

template <typename D> int32_t run_narrow(NarrowArgs a, bool norm, bool gated, const sk_launch *l)
{
    if (a.rows <= 8) return run_columns<D, 1>(a, norm, gated, l);
    if (a.rows <= 16) return run_columns<D, 2>(a, norm, gated, l);
    if (a.rows <= 24) return run_columns<D, 3>(a, norm, gated, l);
    return run_columns<D, 5>(a, norm, gated, l);
}

/* Shared memory that lets two CTAs share a multiprocessor, each with its kilobyte for the system.
 */
constexpr size_t kSharedHalf = (228 * 1024) / 2 - 1024;
constexpr int kRingDepth = 3; // pieces on their way for each warp, if there is room
constexpr int kDeepRing = 4;  // where they are short

/* Bytes of shared memory of the deepest ring of at least `least` within the limit, and where what
 * lies in it; 0: none fits. */
template <typename D, int N, int M>
size_t ring_bytes(RingArgs &a, int shared_tiles, int least, size_t limit)
{
    for (a.depth = Pieces<D>::kElems > 128 ? kRingDepth : kDeepRing; a.depth >= least; a.depth--) {
        const RingShared<D, N, M> shared(a, a.pieces, shared_tiles);
        a.at = shared;
        if (static_cast<size_t>(shared.bytes) <= limit) return static_cast<size_t>(shared.bytes);
    }
    return 0;
}

/* CTAs of a part of K: one a multiprocessor, in all. */
inline int32_t ring_ctas(int32_t items, int32_t parts, int32_t n_sm)
{
    const int32_t most = n_sm > parts ? n_sm / parts : 1;
    return items < most ? items : most;
}

/* Warps for so many tiles (fours of them for a team) that each does as a whole: no more than it
 * takes for as few rounds, all of them full. */
inline int32_t full_rounds(int32_t each, int32_t warps, int32_t team)
{
    const int32_t at_once = warps / team, rounds = (each + at_once - 1) / at_once;
    return team * ((each + rounds - 1) / rounds);
}

constexpr int kLongRounds = 4; // of a CTA that is better off alone on its multiprocessor

/* Lays a launch out and returns its bytes of shared memory; 0 when the activations do not fit. */
template <typename D, int N, int M> size_t plan_ring(RingArgs &a, int32_t n_sm)
{
    constexpr int kWarps = kRingWarps<D, N, M>, kLong = kLongWarps<D, N, M>;
    // Pieces of 16-bit types are the ones that want many on their way rather than a second CTA.
    constexpr bool kHalf = kRingResidents<D, N> == 2 && Pieces<D>::kElems > 128;
    const Pieces<D> p(a.k, a.parts);
    const int32_t items = (a.seg.n_tiles + M - 1) / M;
    const int32_t ctas = ring_ctas(items, a.parts, n_sm), each = (items + ctas - 1) / ctas;
    const int32_t teams = kWarps / M;
    size_t bytes = 0;
    a.pieces = p;
    a.items = items;
    a.a_cta = sk_reciprocal(ctas);
    a.a_slice = sk_reciprocal(p.slices);
    a.a_warp = sk_reciprocal(teams);
    a.a_row = sk_reciprocal(a.rows);
    a.spread = p.slices > 1 && (M == 1 ? 2 * each < kWarps
                                       : (each * p.slices + teams - 1) / teams * p.of_slice <
                                             (each + teams - 1) / teams * p.of_part);
    if (a.spread) {
        a.warps = kWarps;
        if (kHalf) bytes = ring_bytes<D, N, M>(a, each * M, 2, kSharedHalf);
        if (!bytes) bytes = ring_bytes<D, N, M>(a, each * M, 1, kSharedMost);
        if (bytes) return bytes;
        a.spread = 0; // sharing tiles takes room
    }
    if (kLong > kWarps && each >= kLongRounds * kLong) {
        a.warps = full_rounds(each, kLong, M);
        bytes = ring_bytes<D, N, M>(a, 0, 2, kSharedMost);
        if (bytes) return bytes;
    }
    a.warps = full_rounds(each, kWarps, M);
    if (kHalf) bytes = ring_bytes<D, N, M>(a, 0, 2, kSharedHalf);
    return bytes ? bytes : ring_bytes<D, N, M>(a, 0, 1, kSharedMost);
}

template <typename D, int N, int M, bool Argmax>
int32_t launch_ring_of(RingArgs &a, const sk_launch *l)
{
    const size_t bytes = plan_ring<D, N, M>(a, l->n_sm);
    const dim3 grid(static_cast<unsigned>(ring_ctas(a.items, a.parts, l->n_sm)),
                    static_cast<unsigned>(a.parts));
    const auto ctas = static_cast<uint64_t>(grid.x);
    // what sk_divided takes
    if (!bytes || ctas * ctas * static_cast<uint64_t>(a.items) >> 32)
        return static_cast<int32_t>(cudaErrorInvalidValue);
    return launch(l, ring<D, N, M, Argmax>, grid, dim3(static_cast<unsigned>(32 * a.warps)), bytes,
                  a);
}

/* From three groups of rows on by teams, but for three where their fours of tiles would leave most
 * of a CTA without work. */
template <typename D, int N> bool takes_teams(const RingArgs &a, int32_t n_sm)
{
    if (N != 3) return N > 3;
    const int32_t items = (a.seg.n_tiles + 3) / 4, ctas = ring_ctas(items, a.parts, n_sm);
    return a.keys || 4 * ((items + ctas - 1) / ctas) > kRingWarps<D, N, 1>;
}

template <typename D, int N> int32_t launch_ring(RingArgs a, const sk_launch *l)
{
    constexpr int kTeam = N < 3 ? 1 : 4;
    if constexpr (N == 3)
        if (!takes_teams<D, N>(a, l->n_sm)) return launch_ring_of<D, N, 1, false>(a, l);
    return a.keys ? launch_ring_of<D, N, kTeam, true>(a, l)
                  : launch_ring_of<D, N, kTeam, false>(a, l);
}

/* Is there room for the activations of so many rows? */
template <typename D, int N> bool ring_fits_of(RingArgs &a, int32_t n_sm)
{
    if constexpr (N == 3)
        if (!takes_teams<D, N>(a, n_sm)) return plan_ring<D, N, 1>(a, n_sm) > 0;
    constexpr int kTeam = N < 3 ? 1 : 4;
    return plan_ring<D, N, kTeam>(a, n_sm) > 0;
}

template <typename D> bool ring_fits(RingArgs a, int32_t rows, int32_t n_sm)
{
    a.rows = rows;
    if (rows <= 8) return ring_fits_of<D, 1>(a, n_sm);
    if (rows <= 16) return ring_fits_of<D, 2>(a, n_sm);
    if (rows <= 24) return ring_fits_of<D, 3>(a, n_sm);
    return ring_fits_of<D, 5>(a, n_sm);
}

/* All rows at once, or as many as there is room for, one launch after the other. */
template <typename D> int32_t run_ring(RingArgs a, const sk_launch *l)
{
    const int32_t end = a.row0 + a.rows;
    int32_t rows = a.rows, e = 0;
    while (rows > 1 && !ring_fits<D>(a, rows, l->n_sm))
        rows = rows > 24 ? 24 : rows > 16 ? 16 : rows > 8 ? 8 : rows / 2;
    for (; !e && a.row0 < end; a.row0 += rows) {
        a.rows = end - a.row0 < rows ? end - a.row0 : rows;
        if (a.rows <= 8)
            e = launch_ring<D, 1>(a, l);
        else if (a.rows <= 16)
            e = launch_ring<D, 2>(a, l);
        else if (a.rows <= 24)
            e = launch_ring<D, 3>(a, l);
        else
            e = launch_ring<D, 5>(a, l);
    }
    return e;
}

template <typename D> int32_t run_wide(const WideArgs &a, const sk_launch *l)
{
    const dim3 grid(static_cast<unsigned>((a.seg.n_tiles + kWideWarps - 1) / kWideWarps),
                    static_cast<unsigned>((a.rows + kWideCols - 1) / kWideCols));
    return launch(l, wide<D>, grid, dim3(32 * kWideWarps), 0, a);
}

template <typename D> int32_t run_norm_rows(const NormActArgs &a, const sk_launch *l)
{
    return launch(l, norm_rows<D>, dim3(static_cast<unsigned>((a.rows + 7) / 8)),
                  dim3(static_cast<unsigned>(32 * slices_of<D>(a.k).n)), 0, a);
}

template <typename D> int32_t run_gather(const GatherArgs &a, const sk_launch *l)
{
    return launch(l, gather<D>, dim3(static_cast<unsigned>(a.rows)), dim3(128), 0, a);
}

template <typename D> int32_t run_pack(const PackArgs &a, bool unpack, cudaStream_t stream)
{
#ifdef __CUDACC__
    const int64_t words = (a.rows + 15) / 16 * a.units * (D::kUnitBytes / 4);
    const unsigned grid = static_cast<unsigned>(words / 256 < 65535 ? words / 256 + 1 : 65535);
    if (unpack)
        pack<D, true><<<grid, 256, 0, stream>>>(a);
    else
        pack<D, false><<<grid, 256, 0, stream>>>(a);
    return static_cast<int32_t>(cudaGetLastError());
#else
    (void)stream;
    emulated::alone([&] { unpack ? pack<D, true>(a) : pack<D, false>(a); });
    return 0;
#endif
}

template <typename D, int N, int T, bool Norm> int32_t setup_column()
{
    const size_t most = NarrowShared<D, N, T>::bytes(kMaxSlices, 2);
    return allow_shared(narrow<D, N, T, Norm>, most < kSharedMost ? most : kSharedMost);
}

template <typename D, int T, bool Norm> int32_t setup_columns()
{
    int32_t e = setup_column<D, 1, T, Norm>();
    if (!e) e = setup_column<D, 2, T, Norm>();
    if (!e) e = setup_column<D, 3, T, Norm>();
    return e ? e : setup_column<D, 5, T, Norm>();
}

template <typename D, int N> int32_t setup_spread()
{
    if constexpr (kSpreads<D>) return allow_shared(spread<D, N>, kSpreadBytes);
    return 0;
}

template <typename D, int N> int32_t setup_short()
{
    if (const int32_t e = setup_spread<D, N>()) return e;
    if constexpr (D::kBlocks <= 2 && D::kTerms == 1) {
        const size_t one = NarrowShared<D, N, 1>::bytes(single_warps<N, 1>(), 1);
        int32_t e = allow_shared(single<D, N, 1, true, Ending::kStore>, one);
        if (!e) e = allow_shared(single<D, N, 1, false, Ending::kAdd>, one);
        if (!e) e = allow_shared(single<D, N, 1, false, Ending::kStore>, one);
        if constexpr (N < 5) {
            if (!e)
                e = allow_shared(single<D, N, 2, true, Ending::kGlu>,
                                 NarrowShared<D, N, 2>::bytes(single_warps<N, 2>(), 1));
        }
        if constexpr (N <= 2) {
            if (!e) e = allow_shared(stream<D, N, true>, StreamShared<D, N>::bytes(12));
            if (!e) e = allow_shared(stream<D, N, false>, StreamShared<D, N>::bytes(12));
        }
        return e;
    }
    return 0;
}

template <typename D> int32_t setup_narrow()
{
    int32_t e = setup_short<D, 1>();
    if (!e) e = setup_short<D, 2>();
    if (!e) e = setup_short<D, 3>();
    if (!e) e = setup_short<D, 5>();
    if (!e) e = setup_columns<D, 1, false>();
    if (!e) e = setup_columns<D, 1, true>();
    return e ? e : setup_columns<D, 2, true>();
}

template <typename D, int N, int M> int32_t setup_ring()
{
    int32_t e = 0;
    if constexpr (N != 3 || M > 1) e = allow_shared(ring<D, N, M, true>, kSharedMost);
    return e ? e : allow_shared(ring<D, N, M, false>, kSharedMost);
}

template <typename D> int32_t setup_rings()
{
    int32_t e = setup_ring<D, 1, 1>();
    if (!e) e = setup_ring<D, 2, 1>();
    if (!e) e = setup_ring<D, 3, 1>();
    if (!e) e = setup_ring<D, 3, 4>();
    return e ? e : setup_ring<D, 5, 4>();
}

/* F32 has no ring: 16 KB a piece. */
template <typename D> constexpr bool kHasRing = D::kType != SK_F32;

template <typename D> constexpr auto narrow_of()
{
    if constexpr (kPlain<D>)
        return run_narrow<D>;
    else
        return nullptr;
}

template <typename D> constexpr auto ring_of()
{
    if constexpr (kHasRing<D>)
        return run_ring<D>;
    else
        return nullptr;
}

template <typename D> int32_t setup()
{
    int32_t e = 0;
    if constexpr (kPlain<D>) e = setup_narrow<D>();
    if constexpr (kHasRing<D>)
        if (!e) e = setup_rings<D>();
    if (!e) e = allow_shared(wide<D>, 0);
    if (!e) e = allow_shared(norm_rows<D>, 0);
    return e ? e : allow_shared(gather<D>, 0);
}

/* The list that the host plans by says the same. */
#define X(name, elems, packed, row, plain, ring)                                                   \
    static_assert(Format##name::kType == SK_##name && 32 * Format##name::kBlocks == (elems) &&     \
                      Format##name::kUnitBytes == (packed) && Format##name::kRowBytes == (row) &&  \
                      kPlain<Format##name> == ((plain) != 0) &&                                    \
                      kHasRing<Format##name> == ((ring) != 0),                                     \
                  #name " of SK_UNITS");
SK_UNITS(X)
#undef X
#define X(...) +1
static_assert(1 SK_SHORT_FORMATS(X) == 0 SK_UNITS(X), "SK_UNITS has all formats"); // F32 and these
#undef X

} // namespace sk

#define SK_LINEAR_FAMILY(name)                                                                     \
    extern const sk::Family sk_family_##name;                                                      \
    const sk::Family sk_family_##name = {                                                          \
        sk::Format##name::kType,                                                                   \
        32 * sk::Format##name::kBlocks,                                                            \
        sk::Format##name::kUnitBytes,                                                              \
        sk::Format##name::kRowBytes,                                                               \
        sk::setup<sk::Format##name>,                                                               \
        sk::narrow_of<sk::Format##name>(),                                                         \
        sk::ring_of<sk::Format##name>(),                                                           \
        sk::run_wide<sk::Format##name>,                                                            \
        sk::run_norm_rows<sk::Format##name>,                                                       \
        sk::run_gather<sk::Format##name>,                                                          \
        sk::run_pack<sk::Format##name>,                                                            \
    }
