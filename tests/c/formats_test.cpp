/* The packed formats of the CUDA products against the definition of csrc/base, on the host and
 * without a GPU: every bit of the file stands in exactly one place of a packed unit, unpacking is
 * the inverse of packing, and what each lane decodes is bit for bit what sk_quant_group says of the
 * elements that the lane owns. A program of its own, as it needs a C++ compiler and CUDA's headers;
 * `make test-c` builds it where they are. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "kernels/linear/formats.cuh"
#include "tests/c/check.h"

extern "C" {
#include "base/quant.h"
}

namespace
{

constexpr int kUnits = 2;    // of a tile
constexpr int kRounds = 200; // tiles of a format

bool same(float a, float b)
{
    return (isnan(a) && isnan(b)) || sk::float_bits(a) == sk::float_bits(b);
}

/* Sums of several terms: zeros lose their sign, infinities become NaN, and what lies below the
 * smallest BF16 is lost. */
bool near(float sum, float is) { return isinf(is) || fabsf(sum - is) < 0x1p-133f; }

template <typename D> constexpr sk_dtype kDtype = static_cast<sk_dtype>(D::kType);

template <typename D> struct Tile {
    static constexpr int kRow = kUnits * D::kRowBytes, kWords = D::kUnitBytes / 4;
    std::vector<uint8_t> raw = std::vector<uint8_t>(16 * kRow + 8);
    alignas(16) uint32_t packed[kUnits][kWords];

    void fill(int round)
    {
        for (auto &byte : raw) byte = static_cast<uint8_t>(next_random());
        if (round < 2) memset(raw.data(), round ? 0xFF : 0, raw.size());
    }
    uint8_t *byte_of(int unit, const sk::Field &f)
    {
        return raw.data() + f.row * kRow + unit * D::kRowBytes + f.byte;
    }
    void pack()
    {
        for (int u = 0; u < kUnits; u++)
            for (int w = 0; w < kWords; w++) {
                packed[u][w] = 0;
                for (int i = 0; i < D::fields(w); i++) {
                    const sk::Field f = D::field(w, i);
                    packed[u][w] |= sk::field_packed(byte_of(u, f), f);
                }
            }
    }
    void unpack()
    {
        for (auto &byte : raw) byte = 0;
        for (int u = 0; u < kUnits; u++)
            for (int w = 0; w < kWords; w++)
                for (int i = 0; i < D::fields(w); i++) {
                    const sk::Field f = D::field(w, i);
                    *byte_of(u, f) =
                        static_cast<uint8_t>(*byte_of(u, f) | sk::field_unpacked(packed[u][w], f));
                }
    }
};

/* Every file bit once, every packed bit at most once. */
template <typename D> void check_cover(const char *name)
{
    std::vector<int> seen(16 * D::kRowBytes * 8);
    for (int w = 0; w < D::kUnitBytes / 4; w++) {
        uint32_t used = 0;
        for (int i = 0; i < D::fields(w); i++) {
            const sk::Field f = D::field(w, i);
            const int width = f.parity ? 1 : f.bits;
            const uint32_t mask = ((1u << width) - 1u) << f.at;
            CHECK(f.row >= 0 && f.row < 16 && f.byte >= 0 && f.byte < D::kRowBytes, "%s", name);
            CHECK(f.at >= 0 && f.at + width <= 32 && !(used & mask), "%s word %d", name, w);
            CHECK(f.parity || f.shift + f.bits <= 8, "%s word %d", name, w);
            used |= mask;
            for (int b = 0; b < f.bits && !f.parity; b++)
                seen[static_cast<size_t>((f.row * D::kRowBytes + f.byte) * 8 + f.shift + b)]++;
        }
    }
    for (size_t i = 0; i < seen.size(); i++)
        CHECK(seen[i] == 1, "%s bit %zu of byte %zu of row %zu: %d times", name, i % 8,
              i / 8 % D::kRowBytes, i / 8 / D::kRowBytes, seen[i]);
    CHECK(D::kUnitBytes % 16 == 0 && D::kUnitBytes <= 16 * D::kRowBytes * 105 / 100, "%s", name);
}

/* Scale and minimum with those of the unit. */
template <typename D> float scale_of(const typename D::Frag &f, int b, int step, int half)
{
    float s = 1;
    if constexpr (D::kScaled) s = D::scale(f, b, step, half);
    if constexpr (D::kSuper) s = D::outer(f, half) * s;
    return s;
}

template <typename D> float min_of(const typename D::Frag &f, int b, int step, int half)
{
    float m = 0;
    if constexpr (D::kMin) {
        m = D::min(f, b, step, half);
        if constexpr (D::kSuper) m = D::outer_min(f, half) * m;
    }
    return m;
}

template <typename D, typename Table>
void check_lane(const char *name, const Tile<D> &tile, int unit, int lane, const Table &table)
{
    constexpr int kPer = 32 / D::kGroup;
    const typename D::Frag f =
        D::load(sk::FromShared{reinterpret_cast<const uint8_t *>(tile.packed[unit])}, lane);
    for (int b = 0; b < D::kBlocks; b++) {
        uint32_t a[D::kTerms][8];
        for (int term = 0; term < D::kTerms; term++) D::codes(f, b, term, table, a[term]);
        for (int half = 0; half < 2; half++)
            for (int j = 0; j < 8; j++) {
                const int elem = sk::elem_in_block<D::kGroup>(lane & 3, j);
                const int step = D::kGroup == 32 ? 0 : j >> 2, group = elem / D::kGroup;
                float code = 0;
                sk_group want;
                sk_quant_group(kDtype<D>,
                               tile.raw.data() + ((lane >> 2) + 8 * half) * Tile<D>::kRow,
                               static_cast<uint64_t>((unit * D::kBlocks + b) * kPer + group),
                               D::kGroup, &want);
                for (int term = 0; term < D::kTerms; term++) {
                    const uint32_t w = a[term][2 * (j >> 1) + half];
                    const float part = sk::float_of(j & 1 ? w & 0xFFFF0000u : w << 16);
                    code = term ? code + part : part;
                }
                const float is = want.code[elem % D::kGroup];
                const bool equal = same(code, is) || (D::kTerms > 1 && near(code, is));
                CHECK(equal, "%s lane %d block %d half %d element %d: code %g, is %g", name, lane,
                      b, half, j, code, is);
                CHECK(group == step || D::kGroup == 32, "%s", name);
                CHECK(same(scale_of<D>(f, b, step, half), want.scale),
                      "%s lane %d block %d half %d step %d: scale %g, is %g", name, lane, b, half,
                      step, scale_of<D>(f, b, step, half), want.scale);
                CHECK(!D::kMin || same(min_of<D>(f, b, step, half), want.min),
                      "%s lane %d block %d half %d step %d: min %g, is %g", name, lane, b, half,
                      step, min_of<D>(f, b, step, half), want.min);
            }
    }
}

/* Minima in steps as an MMA fragment: of this lane's rows, groups 2t, 2t + 1, and 8 more behind. */
template <typename D> void check_minima(const char *name, const Tile<D> &tile, int unit, int lane)
{
    constexpr int kGroups = 256 / D::kGroup, kWords = kGroups / 4;
    const typename D::Frag f =
        D::load(sk::FromShared{reinterpret_cast<const uint8_t *>(tile.packed[unit])}, lane);
    uint32_t a[kWords];
    D::min_frag(f, lane & 3, a);
    for (int i = 0; i < 2 * kWords; i++) {
        const int half = (i >> 1) & 1, group = 2 * (lane & 3) + (i & 1) + 8 * (i >> 2);
        const uint32_t w = a[i >> 1];
        const float step = sk::float_of(i & 1 ? w & 0xFFFF0000u : w << 16);
        sk_group want;
        sk_quant_group(kDtype<D>, tile.raw.data() + ((lane >> 2) + 8 * half) * Tile<D>::kRow,
                       static_cast<uint64_t>(unit * kGroups + group), D::kGroup, &want);
        CHECK(same(D::outer_min(f, half) * step, want.min), "%s lane %d group %d", name, lane,
              group);
    }
}

/* Readers of whole octets: codes of octet t, scales of sixteen t mod 2. */
void check_octets(const Tile<sk::FormatIQ2_S> &tile, int unit, int lane,
                  const sk::SharedTable<sk::FormatIQ2_S_Octets> &table)
{
    using D = sk::FormatIQ2_S_Octets;
    const int t = lane & 3;
    const D::Frag f =
        D::load(sk::FromShared{reinterpret_cast<const uint8_t *>(tile.packed[unit])}, lane);
    for (int b = 0; b < D::kBlocks; b++) {
        uint32_t a[8];
        D::codes(f, b, 0, table, a);
        for (int half = 0; half < 2; half++) {
            const uint8_t *row = tile.raw.data() + ((lane >> 2) + 8 * half) * tile.kRow;
            const uint64_t first = static_cast<uint64_t>((unit * D::kBlocks + b) * 2);
            sk_group want;
            sk_quant_group(SK_IQ2_S, row, first + static_cast<uint64_t>(t & 1), 16, &want);
            CHECK(same(scale_of<D>(f, b, 0, half), want.scale), "lane %d block %d", lane, b);
            sk_quant_group(SK_IQ2_S, row, first + static_cast<uint64_t>(t >> 1), 16, &want);
            for (int j = 0; j < 8; j++) {
                const uint32_t w = a[2 * (j >> 1) + half];
                const float code = sk::float_of(j & 1 ? w & 0xFFFF0000u : w << 16);
                CHECK(same(code, want.code[8 * (t & 1) + j]), "lane %d block %d element %d", lane,
                      b, j);
            }
        }
    }
}

template <typename D> void check_values(const char *name)
{
    std::vector<uint4> shared(D::kEntries * sk::kTableRow / 16 + 1);
    std::vector<uint4> apart(D::kEntries * sk::kByteTableRow / 16 + 1);
    uint8_t *const rows = reinterpret_cast<uint8_t *>(shared.data());
    uint8_t *const byte_rows = reinterpret_cast<uint8_t *>(apart.data());
    static Tile<D> tile;
    for (int tid = 0; tid < 96; tid++) {
        if constexpr (D::kEntries > 0) sk::fill_table<D>(rows, tid, 96);
        if constexpr (sk::kIndexIsByte<D>) sk::fill_table<D, sk::kByteTableRow>(byte_rows, tid, 96);
    }
    for (int round = 0; round < kRounds; round++) {
        tile.fill(round);
        tile.pack();
        const std::vector<uint8_t> kept = tile.raw;
        tile.unpack();
        CHECK(memcmp(kept.data(), tile.raw.data(), 16 * Tile<D>::kRow) == 0, "%s", name);
        tile.raw = kept;
        for (int unit = 0; unit < kUnits; unit++)
            for (int lane = 0; lane < 32; lane++) {
                check_lane<D>(name, tile, unit, lane, sk::TableOf<D>(lane));
                if constexpr (D::kMin && D::kSuper) check_minima<D>(name, tile, unit, lane);
                if constexpr (D::kEntries > 0)
                    check_lane<D>(name, tile, unit, lane, sk::SharedTable<D>(rows, lane));
                if constexpr (D::kType == SK_IQ2_S)
                    check_octets(tile, unit, lane,
                                 sk::SharedTable<sk::FormatIQ2_S_Octets>(rows, lane));
                if constexpr (sk::kIndexIsByte<D>)
                    check_lane<D>(name, tile, unit, lane,
                                  sk::SharedTable<D, sk::kByteTableRow>(byte_rows, lane));
            }
    }
}

template <typename D> void check_format(const char *name)
{
    const int before = failures;
    check_cover<D>(name);
    check_values<D>(name);
    CHECK(sk_quant_group_elems(kDtype<D>) == D::kGroup, "%s", name);
    CHECK(sk_quant_has_min(kDtype<D>) == D::kMin, "%s", name);
    if (failures > before) printf("%s failed\n", name);
}

} // namespace

int main()
{
    int n = 0;
#define X(name) check_format<sk::Format##name>(#name), n++;
    SK_FORMATS(X)
#undef X
    printf("packed formats: %d of them, %d checks failed\n", n, failures);
    return failures != 0;
}
