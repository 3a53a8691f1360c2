/* Codes that are entries of a grid, four or eight components each, with signs beside them: IQ3 and
 * IQ2. See formats.cuh, table.cuh, docs/formats.md.
 *
 * Indices are a stream of bits through the words of a reader, without gaps, but for the ninth bits
 * of IQ3_S. Where a scale covers 16 elements, a lane owns four of each, which is half an entry of
 * eight; two lanes look the same entry up and read a half each. They share the words of indices, so
 * that nothing is stored twice.
 *
 * Signs are eight bits of a lane for a row and block; one word has those of two blocks of both
 * rows, pair p of sixteen in bits 15 - p and 31 - p. Where the eighth sign is the parity of the
 * others, it is stored (IQ3_XXS) or comes out of a table of signs behind the grid (IQ2_XXS,
 * IQ2_XS). */
#pragma once

#include "kernels/linear/codebooks.cuh"
#include "kernels/linear/table.cuh"

namespace sk
{

/* Where bit i of a word of signs belongs: of two blocks, row half, element of the lane's eight. */
struct SignAt {
    int block, half, j;
};

__host__ __device__ inline SignAt sign_at(int i)
{
    const int p = (i < 16 ? 15 : 31) - i;
    return {p >> 3, (p >> 2) & 1, 2 * (p & 3) + (i >> 4)};
}

/* n + 1/2: the steps of these formats, exactly. */
__host__ __device__ inline float half_step(uint32_t n)
{
    return float_of(in_register<0x4B000000u>() | n) - 8388607.5f;
}

/* Scale of block b out of a word that has four bits for each. */
__host__ __device__ inline float nibble_step(uint32_t word, int b)
{
    return half_step((word >> (4 * b)) & 15u);
}

template <int N> constexpr void quartet_entry(uint32_t packed, const int (&v)[N], uint32_t *to)
{
    for (int p = 0; p < 2; p++)
        to[p] = bf16_pair_of(v[packed >> (8 * p) & 7u], v[packed >> (8 * p + 4) & 7u]);
}

constexpr void octet_entry(uint32_t packed, uint32_t *to)
{
    for (int p = 0; p < 4; p++)
        to[p] = bf16_pair_of(kValuesIq2xxs[packed >> (4 * p) & 3u],
                             kValuesIq2xxs[packed >> (4 * p + 2) & 3u]);
}

/* Masks of eight signs, the last one the parity of the seven given. */
constexpr void signs_entry(uint32_t seven, uint32_t *to)
{
    uint32_t parity = 0;
    for (int j = 0; j < 7; j++) parity ^= seven >> j & 1u;
    const uint32_t eight = seven | parity << 7;
    for (int p = 0; p < 4; p++)
        to[p] = (eight >> (2 * p) & 1u) << 15 | (eight >> (2 * p + 1) & 1u) << 31;
}

/* IQ3: entry k of the lane's four in block b, with the signs of the word `signs`. */
__host__ __device__ inline void quartet_codes(uint2 entry, int k, uint32_t signs, int b,
                                              uint32_t (&a)[8])
{
    const int half = k >> 1, j = k & 1, p = 8 * (b & 1) + 2 * k; // row half, entry
    a[4 * j + half] = signed_pair(entry.x, signs, p);
    a[4 * j + 2 + half] = signed_pair(entry.y, signs, p + 1);
}

struct FormatIQ3_S {
    static constexpr int kType = SK_IQ3_S, kBlocks = 8, kGroup = 32, kTerms = 1, kWarps = 16;
    static constexpr bool kScaled = true, kMin = false, kSuper = true;
    static constexpr int kEntries = 512, kEntryBytes = 8, kPart = 0;
    static constexpr int kUnitBytes = 1760, kRowBytes = 110;
    struct Frag {
        uint32_t q[13]; // eight words of indices' bytes, one of their ninth bits, four of signs
        uint2 s;
        uint32_t d;
    };
    static constexpr void entry(int i, uint32_t *to)
    {
        quartet_entry(kGridIq3s[i], kValuesIq3s, to);
    }
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        load_planes<3>(f.q, unit, 0, 512, lane);
        f.q[12] = unit.at4(1536 + 4 * lane);
        f.s = unit.at8(1664 + 8 * (lane >> 2));
        f.d = unit.at4(1728 + 4 * (lane >> 2));
        return f;
    }
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &table,
                                          uint32_t (&a)[8])
    {
        const uint32_t ninth = table.ninths(f.q[8], b);
        SK_UNROLL
        for (int k = 0; k < 4; k++)
            quartet_codes(table.template at_byte<uint2>(f.q[b], k, ninth), k, f.q[9 + (b >> 1)], b,
                          a);
    }
    __host__ __device__ static float scale(const Frag &f, int b, int, int half)
    {
        return nibble_step(half ? f.s.y : f.s.x, b);
    }
    __host__ __device__ static float outer(const Frag &f, int half)
    {
        return half_at(f.d, half) * 2.0f;
    }
    __host__ __device__ static int fields(int word)
    {
        return word < 256 ? 4 : word < 416 ? 32 : word < 432 ? 8 : 4;
    }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word >= 432) return half_pair_field(word - 432, i, 0);
        if (word >= 416) {
            const int s = word - 416;
            return {(s >> 1) + 8 * (s & 1), 106 + i / 2, 4 * (i & 1), 4, 4 * i};
        }
        const int lane = word < 384 ? (word & 127) >> 2 : word - 384, t = lane & 3;
        const int c = word < 384 ? 4 * (word >> 7) + (word & 3) : 12;
        if (c < 8) return {(lane >> 2) + 8 * (i >> 1), 2 + 8 * c + 2 * t + (i & 1), 0, 8, 8 * i};
        if (c == 8) {
            const int k = i >> 3, b = 7 - (i & 7);
            return {(lane >> 2) + 8 * (k >> 1), 66 + b, 2 * t + (k & 1), 1, i};
        }
        const SignAt s = sign_at(i);
        return {(lane >> 2) + 8 * s.half, 74 + 4 * (2 * (c - 9) + s.block) + t, s.j, 1, i};
    }
};

/* Four bytes longer in 98 than the file: with the eighth signs. */
struct FormatIQ3_XXS {
    static constexpr int kType = SK_IQ3_XXS, kBlocks = 8, kGroup = 32, kTerms = 1, kWarps = 16;
    static constexpr bool kScaled = true, kMin = false, kSuper = true;
    static constexpr int kEntries = 256, kEntryBytes = 8, kPart = 0;
    static constexpr int kUnitBytes = 1632, kRowBytes = 98;
    struct Frag {
        uint32_t q[12]; // eight words of indices, four of signs
        uint2 s;
        uint32_t d;
    };
    static constexpr void entry(int i, uint32_t *to)
    {
        quartet_entry(kGridIq3xxs[i], kValuesIq3xxs, to);
    }
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        load_planes<3>(f.q, unit, 0, 512, lane);
        f.s = unit.at8(1536 + 8 * (lane >> 2));
        f.d = unit.at4(1600 + 4 * (lane >> 2));
        return f;
    }
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &table,
                                          uint32_t (&a)[8])
    {
        SK_UNROLL
        for (int k = 0; k < 4; k++)
            quartet_codes(table.template at<uint2>(f.q, 8 * (4 * b + k), 8), k, f.q[8 + (b >> 1)],
                          b, a);
    }
    __host__ __device__ static float scale(const Frag &f, int b, int, int half)
    {
        return nibble_step(half ? f.s.y : f.s.x, b);
    }
    __host__ __device__ static float outer(const Frag &f, int half)
    {
        return half_at(f.d, half) * 0.5f;
    }
    __host__ __device__ static int fields(int word)
    {
        return word < 256 ? 4 : word < 384 ? 32 : word < 400 ? 8 : 4;
    }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word >= 400) return half_pair_field(word - 400, i, 0);
        if (word >= 384) {
            const int s = word - 384;
            return {(s >> 1) + 8 * (s & 1), 69 + 4 * i, 4, 4, 4 * i};
        }
        const int lane = (word & 127) >> 2, t = lane & 3, c = word & 3;
        if (word < 256) {
            const int b = 4 * (word >> 7) + c;
            return {(lane >> 2) + 8 * (i >> 1), 2 + 8 * b + 2 * t + (i & 1), 0, 8, 8 * i};
        }
        const SignAt s = sign_at(i);
        const int row = (lane >> 2) + 8 * s.half, word_at = 66 + 4 * (2 * c + s.block);
        if (s.j == 7) return {row, word_at + 7 * t / 8, 7 * t % 8, 7, i, 0, true};
        return {row, word_at + (7 * t + s.j) / 8, (7 * t + s.j) % 8, 1, i};
    }
};

/* Scales of 16 elements: word 2 half + step has four bits for each block. */
template <int Byte> __host__ __device__ inline Field step_nibble_field(int s, int i)
{
    return {(s >> 2) + 8 * ((s >> 1) & 1), Byte + i, 4 * (s & 1), 4, 4 * i};
}

/* A unit of IQ2_S. Octet o of the four of a block, of rows g and g + 8, is a reader's that wants
 * whole ones; of `linear` lane t wants half t mod 2 of octets t / 2 and t / 2 + 2. Octets 0 and 1
 * lie together, and octets 2 and 3 so much further on that no banks of shared memory meet. */
struct OctetsIQ2_S {
    static constexpr int kSigns = 256, kScales = 512, kApart = 576; // to octets 2 and 3
    static constexpr int kLast = 1152, kD = 1280;                   // last words of the indices, d
    __host__ __device__ static int fields(int word)
    {
        if (word >= kD / 4) return 4;
        return word < kLast / 4 && word % (kApart / 4) >= kScales / 4 ? 8 : 32;
    }
    /* Bit n of the indices of an octet: of block b and row half h, number 2b + h of ten bits. */
    __host__ __device__ static Field index_field(int g, int o, int n, int at)
    {
        const int k = n / 10, bit = n % 10, row = g + 8 * (k & 1), b = k >> 1;
        if (bit >= 8) return {row, 66 + b, 2 * o + bit - 8, 1, at};
        return {row, 2 + 4 * b + o, bit, 1, at};
    }
    /* Signs of half an octet are two words, each of four blocks: pair i of block b and row half h
     * is number 4 (b mod 4) + 2h + i. */
    __host__ __device__ static Field sign_field(int g, int o, int word, int i)
    {
        const int p = (i < 16 ? 15 : 31) - i, b = 4 * (word & 1) + (p >> 2);
        const int j = 4 * (word >> 1) + 2 * (p & 1) + (i >> 4);
        return {g + 8 * ((p >> 1) & 1), 34 + 4 * b + o, j, 1, i};
    }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word >= kD / 4) return half_pair_field(word - kD / 4, i, 0);
        if (word >= kLast / 4) {
            const int w = word - kLast / 4;
            return index_field(w >> 2, ((w >> 1) & 1) + 2 * (w & 1), 128 + i, i);
        }
        const int late = word >= kApart / 4, at = 4 * word - kApart * late;
        if (at >= kScales) { // word 2 g + half
            const int w = (at - kScales) / 4;
            return {(w >> 1) + 8 * (w & 1), 74 + i, 4 * late, 4, 4 * i};
        }
        const int g = (at & 255) >> 5, o = 2 * late + ((at >> 4) & 1), c = (at >> 2) & 3;
        return at < kSigns ? index_field(g, o, 32 * c + i, i) : sign_field(g, o, c, i);
    }
};

struct FormatIQ2_S : OctetsIQ2_S {
    static constexpr int kType = SK_IQ2_S, kBlocks = 8, kGroup = 16, kTerms = 1, kWarps = 16;
    static constexpr bool kScaled = true, kMin = false, kSuper = true;
    static constexpr int kEntries = 1024, kEntryBytes = 16, kPart = 8;
    static constexpr int kUnitBytes = 1312, kRowBytes = 82;
    struct Frag {
        uint32_t q[10]; // indices, five words for each step
        uint32_t n[4];  // signs, [2 step + block / 4]
        uint32_t s[4];  // [2 step + half]
        uint32_t d;
    };
    static constexpr void entry(int i, uint32_t *to) { octet_entry(kGridIq2s[i], to); }
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        const uint2 last = unit.at8(kLast + 8 * (lane >> 1));
        SK_UNROLL
        for (int step = 0; step < 2; step++) {
            const int from = kApart * step;
            load_planes<1>(f.q + 5 * step, unit, from, 0, lane >> 1);
            f.q[5 * step + 4] = step ? last.y : last.x;
            const uint2 n = unit.at8(from + kSigns + 8 * lane);
            f.n[2 * step] = n.x;
            f.n[2 * step + 1] = n.y;
            const uint2 s = unit.at8(from + kScales + 8 * (lane >> 2));
            f.s[2 * step] = s.x;
            f.s[2 * step + 1] = s.y;
        }
        f.d = unit.at4(kD + 4 * (lane >> 2));
        return f;
    }
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &table,
                                          uint32_t (&a)[8])
    {
        SK_UNROLL
        for (int k = 0; k < 4; k++) {
            const int half = k >> 1, step = k & 1, p = 4 * (b & 3) + 2 * half;
            const uint2 e = table.template at<uint2>(f.q + 5 * step, 10 * (2 * b + half), 10);
            a[4 * step + half] = signed_pair(e.x, f.n[2 * step + (b >> 2)], p);
            a[4 * step + 2 + half] = signed_pair(e.y, f.n[2 * step + (b >> 2)], p + 1);
        }
    }
    __host__ __device__ static float scale(const Frag &f, int b, int step, int half)
    {
        return nibble_step(f.s[2 * step + half], b);
    }
    __host__ __device__ static float outer(const Frag &f, int half)
    {
        return half_at(f.d, half) * 0.25f;
    }
};

/* The same unit for a reader that has whole octets: lane t number t of each block, and the scales
 * of the sixteen t mod 2. A look-up is a whole entry. */
struct FormatIQ2_S_Octets : FormatIQ2_S {
    static constexpr int kGroup = 32, kPart = 0;
    struct Frag {
        uint32_t q[5];
        uint32_t n[4]; // [2 (pair / 2) + block / 4]
        uint2 s;
        uint32_t d;
    };
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        const int g = lane >> 2, t = lane & 3;
        const int octet = 32 * g + 16 * (t & 1) + kApart * (t >> 1);
        load_planes<1>(f.q, unit, octet, 0, 0);
        f.q[4] = unit.at4(kLast + 16 * g + 8 * (t & 1) + 4 * (t >> 1));
        unpack4(f.n, unit.at16(kSigns + octet));
        f.s = unit.at8(kScales + kApart * (t & 1) + 8 * g);
        f.d = unit.at4(kD + 4 * g);
        return f;
    }
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &table,
                                          uint32_t (&a)[8])
    {
        SK_UNROLL
        for (int half = 0; half < 2; half++) {
            const uint4 e = table.template at<uint4>(f.q, 10 * (2 * b + half), 10);
            const uint32_t early = f.n[b >> 2], late = f.n[2 + (b >> 2)];
            const int p = 4 * (b & 3) + 2 * half;
            a[half] = signed_pair(e.x, early, p);
            a[2 + half] = signed_pair(e.y, early, p + 1);
            a[4 + half] = signed_pair(e.z, late, p);
            a[6 + half] = signed_pair(e.w, late, p + 1);
        }
    }
    /* Of the lane's sixteen. */
    __host__ __device__ static float scale(const Frag &f, int b, int, int half)
    {
        return nibble_step(half ? f.s.y : f.s.x, b);
    }
    __host__ __device__ static float outer(const Frag &f, int half)
    {
        return half_at(f.d, half) * 0.25f;
    }
};

/* Lanes have whole octets while scales cover two of them. */
template <typename D> constexpr bool kHalved = false;
template <> constexpr bool kHalved<FormatIQ2_S_Octets> = true;

struct FormatIQ2_XS {
    static constexpr int kType = SK_IQ2_XS, kBlocks = 8, kGroup = 16, kTerms = 1, kWarps = 16;
    static constexpr bool kScaled = true, kMin = false, kSuper = true;
    static constexpr int kEntries = 640, kEntryBytes = 16, kPart = 8;
    static constexpr int kUnitBytes = 1184, kRowBytes = 74;
    static constexpr int kSigns = 512; // first entry of the signs
    struct Frag {
        uint32_t q[16]; // nine bits of index and seven signs each, of two lanes
        uint32_t s[4];
        uint32_t d;
    };
    static constexpr void entry(int i, uint32_t *to)
    {
        if (i < kSigns)
            octet_entry(kGridIq2xs[i], to);
        else
            signs_entry(static_cast<uint32_t>(i - kSigns), to);
    }
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        load_planes<4>(f.q, unit, 0, 256, lane >> 1);
        unpack4(f.s, unit.at16(1024 + 16 * (lane >> 2)));
        f.d = unit.at4(1152 + 4 * (lane >> 2));
        return f;
    }
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &table,
                                          uint32_t (&a)[8])
    {
        SK_UNROLL
        for (int k = 0; k < 4; k++) { // row half, step
            const int half = k >> 1, step = k & 1, at = 16 * (4 * b + k);
            const uint2 e = table.template at<uint2>(f.q, at, 9);
            const uint2 n = table.template at<uint2, kSigns>(f.q, at + 9, 7);
            a[4 * step + half] = e.x ^ n.x;
            a[4 * step + 2 + half] = e.y ^ n.y;
        }
    }
    __host__ __device__ static float scale(const Frag &f, int b, int step, int half)
    {
        return nibble_step(f.s[2 * half + step], b);
    }
    __host__ __device__ static float outer(const Frag &f, int half)
    {
        return half_at(f.d, half) * 0.25f;
    }
    __host__ __device__ static int fields(int word) { return word < 256 ? 4 : word < 288 ? 8 : 4; }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word >= 288) return half_pair_field(word - 288, i, 0);
        if (word >= 256) return step_nibble_field<66>(word - 256, i);
        const int two = (word & 63) >> 2, k = 2 * (4 * (word >> 6) + (word & 3)) + (i >> 1);
        const int octet = 4 * (k >> 2) + 2 * (k & 1) + (two & 1);
        return {(two >> 1) + 8 * ((k >> 1) & 1), 2 + 2 * octet + (i & 1), 0, 8, 8 * i};
    }
};

struct FormatIQ2_XXS {
    static constexpr int kType = SK_IQ2_XXS, kBlocks = 8, kGroup = 32, kTerms = 1, kWarps = 16;
    static constexpr bool kScaled = true, kMin = false, kSuper = true;
    static constexpr int kEntries = 384, kEntryBytes = 16, kPart = 0;
    static constexpr int kUnitBytes = 1056, kRowBytes = 66;
    static constexpr int kSigns = 256; // first entry of the signs
    struct Frag {
        uint32_t q[4];
        uint32_t n[4]; // seven signs each; the upper half of the last word is anything
        uint2 s;
        uint32_t d;
    };
    static constexpr void entry(int i, uint32_t *to)
    {
        if (i < kSigns)
            octet_entry(kGridIq2xxs[i], to);
        else
            signs_entry(static_cast<uint32_t>(i - kSigns), to);
    }
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        const uint2 n = unit.at8(512 + 8 * lane);
        unpack4(f.q, unit.at16(16 * lane));
        f.n[0] = n.x;
        f.n[1] = n.y;
        f.n[2] = unit.at4(768 + 4 * lane);
        f.n[3] = unit.at4(896 + 4 * (lane >> 1)) >> (16 * (lane & 1));
        f.s = unit.at8(960 + 8 * (lane >> 2));
        f.d = unit.at4(1024 + 4 * (lane >> 2));
        return f;
    }
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &table,
                                          uint32_t (&a)[8])
    {
        SK_UNROLL
        for (int half = 0; half < 2; half++) {
            const int k = 2 * b + half;
            const uint4 e = table.template at<uint4>(f.q, 8 * k, 8);
            const uint4 n = table.template at<uint4, kSigns>(f.n, 7 * k, 7);
            a[half] = e.x ^ n.x;
            a[2 + half] = e.y ^ n.y;
            a[4 + half] = e.z ^ n.z;
            a[6 + half] = e.w ^ n.w;
        }
    }
    __host__ __device__ static float scale(const Frag &f, int b, int, int half)
    {
        return nibble_step(half ? f.s.y : f.s.x, b);
    }
    __host__ __device__ static float outer(const Frag &f, int half)
    {
        return half_at(f.d, half) * 0.25f;
    }
    __host__ __device__ static int fields(int word)
    {
        return word < 128 ? 4 : word < 240 ? 32 : word < 256 ? 8 : 4;
    }
    /* Bit n of a lane's signs. */
    __host__ __device__ static Field sign_field(int lane, int n, int at)
    {
        const int k = n / 7, bit = 7 * (lane & 3) + n % 7;
        return {(lane >> 2) + 8 * (k & 1), 6 + 8 * (k >> 1) + bit / 8, bit % 8, 1, at};
    }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word >= 256) return half_pair_field(word - 256, i, 0);
        if (word >= 240) {
            const int s = word - 240;
            return {(s >> 1) + 8 * (s & 1), 9 + 8 * i, 4, 4, 4 * i};
        }
        if (word >= 224) return sign_field(2 * (word - 224) + (i >> 4), 96 + (i & 15), i);
        if (word >= 192) return sign_field(word - 192, 64 + i, i);
        if (word >= 128) return sign_field((word - 128) >> 1, 32 * (word & 1) + i, i);
        const int lane = word >> 2, b = 2 * (word & 3) + (i >> 1);
        return {(lane >> 2) + 8 * (i & 1), 2 + 8 * b + (lane & 3), 0, 8, 8 * i};
    }
};

} // namespace sk
