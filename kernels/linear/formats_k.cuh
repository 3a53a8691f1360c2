/* The K formats: units of one block of 256. See formats.cuh, docs/formats.md. */
#pragma once

#include "kernels/linear/fragment.cuh"

namespace sk
{

/* ---- super-blocks of 256 -----------------------------------------------------------------------
 */

/* The sixteen bytes in front of a super-block of Q4_K and Q5_K, per row: {d, dmin}; the six bits of
 * the scales 0..3, then 4..7, in the low ends of two words; the six bits of the minima in ascending
 * order, 32 of them in the last word and eight in the upper ends of each of the two. */
__host__ __device__ inline Field k_scale_bit(int row, int j, int bit, int at)
{
    if (j < 4) return {row, 4 + j, bit, 1, at};
    return bit < 4 ? Field{row, 8 + j, bit, 1, at} : Field{row, j, bit + 2, 1, at};
}

__host__ __device__ inline Field k_min_bit(int row, int j, int bit, int at)
{
    if (j < 4) return {row, 8 + j, bit, 1, at};
    return bit < 4 ? Field{row, 8 + j, 4 + bit, 1, at} : Field{row, 4 + j, bit + 2, 1, at};
}

__host__ __device__ inline int k_head_fields(int word) { return (word & 3) == 0 ? 4 : 32; }

/* Field i of word `word` of the heads of sixteen rows. */
__host__ __device__ inline Field k_head_field(int word, int i)
{
    const int row = (word >> 3) + 8 * ((word >> 2) & 1), part = word & 3;
    if (part == 0) return {row, i, 0, 8, 8 * i};
    if (part < 3 && i < 24) return k_scale_bit(row, 4 * (part - 1) + i / 6, i % 6, i);
    const int bit = part == 3 ? i : 8 * part + i;
    return k_min_bit(row, bit / 6, bit % 6, i);
}

__host__ __device__ inline float k_scale(const uint32_t (&head)[4], int j)
{
    return small_float((head[1 + (j >> 2)] >> (6 * (j & 3))) & 63u);
}

/* The minima from number 2t on. */
__host__ __device__ inline uint32_t k_minima(const uint32_t (&head)[4], int t)
{
    const uint64_t high = byte_perm(head[1], head[2], 0x7373);
    return static_cast<uint32_t>((high << 32 | head[3]) >> (12 * t));
}

__host__ __device__ inline float k_min(const uint32_t (&head)[4], int j)
{
    return small_float((k_minima(head, j >> 1) >> (6 * (j & 1))) & 63u);
}

/* Two minima as BF16. */
__host__ __device__ inline uint32_t k_min_pair(const uint32_t (&head)[4], int t)
{
    const uint32_t two = k_minima(head, t);
    return bf16x2_add((two & 63u) | ((two & 0xFC0u) << 10) | kMagic128, kMinus128);
}

/* The two bits of an element of Q2_K and Q3_K, whose pairs begin at byte `first`. */
__host__ __device__ inline Field k_two_bits(const ElemAt &n, int first)
{
    return {n.row, first + 32 * (n.block / 4) + n.elem, 2 * (n.block % 4), 2, n.at};
}

struct FormatQ2_K {
    static constexpr int kType = SK_Q2_K, kBlocks = 8, kGroup = 16, kTerms = 1, kWarps = 16;
    static constexpr bool kScaled = true, kMin = true, kSuper = true;
    static constexpr int kEntries = 0, kEntryBytes = 0, kPart = 0;
    static constexpr int kUnitBytes = 1344, kRowBytes = 84;
    struct Frag {
        uint32_t q[2][4];
        uint32_t s[2][4]; // of rows g and g + 8: [step] scales, [2 + step] minima, of all blocks
        uint2 d;          // {d, dmin} of both
    };
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        const int scales = 1024 + 32 * (lane >> 2);
        unpack4(f.q[0], unit.at16(16 * lane));
        unpack4(f.q[1], unit.at16(512 + 16 * lane));
        unpack4(f.s[0], unit.at16(scales));
        unpack4(f.s[1], unit.at16(scales + 16));
        f.d = unit.at8(1280 + 8 * (lane >> 2));
        return f;
    }
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &,
                                          uint32_t (&a)[8])
    {
        const uint32_t magic = magic128();
        SK_UNROLL
        for (int i = 0; i < 8; i++) {
            const int at = 8 * (b & 1) + 2 * (i >> 1);
            const uint32_t q = two_bits_word(f.q, b, i & 1) >> at;
            a[i] = bf16x2_add((q & 0x00030003u) | magic, kMinus128);
        }
    }
    __host__ __device__ static float scale(const Frag &f, int b, int step, int half)
    {
        return small_float((f.s[half][step] >> (4 * b)) & 15u);
    }
    __host__ __device__ static float min(const Frag &f, int b, int step, int half)
    {
        return small_float((f.s[half][2 + step] >> (4 * b)) & 15u);
    }
    /* Two minima of block b as BF16. */
    __host__ __device__ static uint32_t min_pair(const uint32_t (&s)[4], int b)
    {
        const uint32_t two = ((s[2] >> (4 * b)) & 15u) | ((s[3] >> (4 * b)) & 15u) << 16;
        return bf16x2_add(two | kMagic128, kMinus128);
    }
    __host__ __device__ static void min_frag(const Frag &f, int t, uint32_t (&a)[4])
    {
        a[0] = min_pair(f.s[0], t);
        a[1] = min_pair(f.s[1], t);
        a[2] = min_pair(f.s[0], t + 4);
        a[3] = min_pair(f.s[1], t + 4);
    }
    __host__ __device__ static float outer(const Frag &f, int half)
    {
        return half_at(half ? f.d.y : f.d.x, 0);
    }
    __host__ __device__ static float outer_min(const Frag &f, int half)
    {
        return -half_at(half ? f.d.y : f.d.x, 1);
    }
    __host__ __device__ static int fields(int word) { return word < 256 ? 16 : word < 320 ? 8 : 4; }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word < 256) {
            const ElemAt n = two_bits_at<16>(word, i);
            return k_two_bits(n, 16);
        }
        if (word < 320) {
            const int s = word - 256;
            return {(s >> 3) + 8 * ((s >> 2) & 1), 2 * i + (s & 1), 4 * ((s >> 1) & 1), 4, 4 * i};
        }
        const int s = word - 320;
        return {(s >> 1) + 8 * (s & 1), 80 + i, 0, 8, 8 * i};
    }
};

struct FormatQ3_K {
    static constexpr int kType = SK_Q3_K, kBlocks = 8, kGroup = 16, kTerms = 1, kWarps = 16;
    static constexpr bool kScaled = true, kMin = false, kSuper = true;
    static constexpr int kEntries = 0, kEntryBytes = 0, kPart = 0;
    static constexpr int kUnitBytes = 1760, kRowBytes = 110;
    struct Frag {
        uint32_t q[2][4];
        uint32_t h[4]; // [2 half + b / 4]: third bits
        uint32_t s[4]; // [2 half + step]: four bits of scale for each block
        uint2 t;       // two more, step 1 in the upper half
        uint32_t d;
    };
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        unpack4(f.q[0], unit.at16(16 * lane));
        unpack4(f.q[1], unit.at16(512 + 16 * lane));
        unpack4(f.h, unit.at16(1024 + 16 * lane));
        unpack4(f.s, unit.at16(1536 + 16 * (lane >> 2)));
        f.t = unit.at8(1664 + 8 * (lane >> 2));
        f.d = unit.at4(1728 + 4 * (lane >> 2));
        return f;
    }
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &,
                                          uint32_t (&a)[8])
    {
        const uint32_t magic = magic128();
        SK_UNROLL
        for (int i = 0; i < 8; i++) {
            const int at = 4 * (b & 3) + (i >> 1);
            const uint32_t low = two_bits_word(f.q, b, i & 1) >> (8 * (b & 1) + 2 * (i >> 1));
            const uint32_t high = move_bit(f.h[2 * (i & 1) + (b >> 2)], at, 2);
            a[i] = bf16x2_add(((low & 0x00030003u) | magic) | (high & 0x00040004u), kMinus132);
        }
    }
    __host__ __device__ static float scale(const Frag &f, int b, int step, int half)
    {
        const uint32_t low = (f.s[2 * half + step] >> (4 * b)) & 15u;
        const uint32_t high = ((half ? f.t.y : f.t.x) >> (16 * step + 2 * b)) & 3u;
        return small_float(low | high << 4, 32);
    }
    __host__ __device__ static float outer(const Frag &f, int half) { return half_at(f.d, half); }
    __host__ __device__ static int fields(int word)
    {
        return word < 256 ? 16 : word < 384 ? 32 : word < 416 ? 8 : word < 432 ? 16 : 4;
    }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word < 256) return k_two_bits(two_bits_at<16>(word, i), 32);
        if (word < 384) {
            const int lane = (word - 256) >> 2, c = word & 3;
            const int elem = elem_in_block<16>(lane & 3, 2 * (i & 3) + (i >> 4));
            return {(lane >> 2) + 8 * (c >> 1), elem, 4 * (c & 1) + ((i & 15) >> 2), 1, i};
        }
        if (word < 416) {
            const int s = word - 384;
            return {(s >> 2) + 8 * ((s >> 1) & 1), 96 + 2 * (i & 3) + (s & 1), i & 4, 4, 4 * i};
        }
        if (word < 432) {
            const int s = word - 416, group = 2 * (i & 7) + (i >> 3);
            return {(s >> 1) + 8 * (s & 1), 104 + group % 4, 2 * (group / 4), 2, 2 * i};
        }
        return half_pair_field(word - 432, i, 108);
    }
};

/* Element of a super-block -> (byte of its 128 nibble bytes, shift). */
__host__ __device__ inline Field k_nibble(int row, int first, int elem, int at)
{
    return {row, first + 32 * (elem / 64) + elem % 32, elem % 64 < 32 ? 0 : 4, 4, at};
}

/* What comes out of the heads s[2][4] of a lane's two rows. */
struct KHeads {
    static constexpr int kBlocks = 8, kGroup = 32, kTerms = 1, kWarps = 16;
    static constexpr bool kScaled = true, kMin = true, kSuper = true;
    static constexpr int kEntries = 0, kEntryBytes = 0, kPart = 0;
    template <typename Frag>
    __host__ __device__ static float scale(const Frag &f, int b, int, int half)
    {
        return k_scale(f.s[half], b);
    }
    template <typename Frag>
    __host__ __device__ static float min(const Frag &f, int b, int, int half)
    {
        return k_min(f.s[half], b);
    }
    template <typename Frag>
    __host__ __device__ static void min_frag(const Frag &f, int t, uint32_t (&a)[2])
    {
        a[0] = k_min_pair(f.s[0], t);
        a[1] = k_min_pair(f.s[1], t);
    }
    template <typename Frag> __host__ __device__ static float outer(const Frag &f, int half)
    {
        return half_at(f.s[half][0], 0);
    }
    template <typename Frag> __host__ __device__ static float outer_min(const Frag &f, int half)
    {
        return -half_at(f.s[half][0], 1);
    }
};

struct FormatQ4_K : KHeads {
    static constexpr int kType = SK_Q4_K;
    static constexpr int kUnitBytes = 2304, kRowBytes = 144;
    struct Frag {
        uint32_t q[4][4];
        uint32_t s[2][4]; // of rows g and g + 8: {d, dmin}, 12 bytes of scales
    };
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        SK_UNROLL
        for (int p = 0; p < 4; p++) unpack4(f.q[p], unit.at16(512 * p + 16 * lane));
        unpack4(f.s[0], unit.at16(2048 + 32 * (lane >> 2)));
        unpack4(f.s[1], unit.at16(2048 + 32 * (lane >> 2) + 16));
        return f;
    }
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &,
                                          uint32_t (&a)[8])
    {
        const uint32_t magic = magic128();
        SK_UNROLL
        for (int i = 0; i < 8; i++)
            a[i] = bf16x2_add(nibble_pair(f.q[b >> 1][2 * (b & 1) + (i & 1)], i >> 1, magic),
                              kMinus128);
    }
    __host__ __device__ static int fields(int word) { return word < 512 ? 8 : k_head_fields(word); }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word < 512) {
            const ElemAt n = nibble_at<32>(word & 127, i);
            return k_nibble(n.row, 16, 32 * (2 * (word >> 7) + n.block) + n.elem, n.at);
        }
        return k_head_field(word - 512, i);
    }
};

struct FormatQ5_K : KHeads {
    static constexpr int kType = SK_Q5_K;
    static constexpr int kUnitBytes = 2816, kRowBytes = 176;
    struct Frag {
        uint32_t q[4][4];
        uint32_t h[4]; // [2 half + part]: high bits of blocks 4 part .. 4 part + 3
        uint32_t s[2][4];
    };
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        SK_UNROLL
        for (int p = 0; p < 4; p++) unpack4(f.q[p], unit.at16(512 * p + 16 * lane));
        unpack4(f.h, unit.at16(2048 + 16 * lane));
        unpack4(f.s[0], unit.at16(2560 + 32 * (lane >> 2)));
        unpack4(f.s[1], unit.at16(2560 + 32 * (lane >> 2) + 16));
        return f;
    }
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &,
                                          uint32_t (&a)[8])
    {
        const uint32_t magic = magic128();
        SK_UNROLL
        for (int i = 0; i < 8; i++) {
            const int at = 4 * (b & 3) + (i >> 1);
            const uint32_t high = f.h[2 * (i & 1) + (b >> 2)];
            const uint32_t bit = (at < 4 ? high << (4 - at) : high >> (at - 4)) & 0x00100010u;
            const uint32_t low = nibble_pair(f.q[b >> 1][2 * (b & 1) + (i & 1)], i >> 1, magic);
            a[i] = bf16x2_add(low | bit, kMinus128);
        }
    }
    __host__ __device__ static int fields(int word)
    {
        return word < 512 ? 8 : word < 640 ? 32 : k_head_fields(word - 640);
    }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word < 512) {
            const ElemAt n = nibble_at<32>(word & 127, i);
            return k_nibble(n.row, 48, 32 * (2 * (word >> 7) + n.block) + n.elem, n.at);
        }
        if (word < 640) {
            const int lane = (word - 512) >> 2, c = word & 3;
            const int block = 4 * (c & 1) + ((i & 15) >> 2);
            const int elem = 8 * (lane & 3) + 2 * (i & 3) + (i >> 4);
            return {(lane >> 2) + 8 * (c >> 1), 16 + elem, block, 1, i};
        }
        return k_head_field(word - 640, i);
    }
};

/* Three words a block: of the eight pairs of a lane six lie whole in them, two each at bits 0 and 6
 * (and 16 above), two are split over the bits in between. */
struct FormatQ6_K {
    static constexpr int kType = SK_Q6_K, kBlocks = 8, kGroup = 16, kTerms = 1, kWarps = 16;
    static constexpr bool kScaled = true, kMin = false, kSuper = true;
    static constexpr int kEntries = 0, kEntryBytes = 0, kPart = 0;
    static constexpr int kUnitBytes = 3360, kRowBytes = 210;
    struct Frag {
        uint32_t q[6][4]; // word 3 block + i is q[word / 4][word % 4]
        uint32_t s[2][4]; // sixteen signed scales of rows g and g + 8, sign bits inverted
        uint32_t d;       // of both rows
    };
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        const int scales = 3072 + 32 * (lane >> 2);
        SK_UNROLL
        for (int p = 0; p < 6; p++) unpack4(f.q[p], unit.at16(512 * p + 16 * lane));
        unpack4(f.s[0], unit.at16(scales));
        unpack4(f.s[1], unit.at16(scales + 16));
        f.d = unit.at4(3328 + 4 * (lane >> 2));
        return f;
    }
    __host__ __device__ static uint32_t word(const Frag &f, int at) { return f.q[at >> 2][at & 3]; }
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &,
                                          uint32_t (&a)[8])
    {
        const uint32_t magic = magic128(), last = word(f, 3 * b + 2);
        SK_UNROLL
        for (int n = 0; n < 8; n++) { // row half n / 4, pair n % 4
            uint32_t v;
            if (n < 6) {
                v = ((word(f, 3 * b + n / 2) >> (6 * (n & 1))) & 0x003F003Fu) | magic;
            } else {
                v = ((word(f, 3 * b + n - 6) >> 12) & 0x000F000Fu) | magic;
                v |= (last >> (n == 6 ? 8 : 10)) & 0x00300030u;
            }
            a[2 * (n & 3) + (n >> 2)] = bf16x2_add(v, kMinus160);
        }
    }
    __host__ __device__ static float scale(const Frag &f, int b, int step, int half)
    {
        const uint32_t(&w)[4] = f.s[half]; // chosen without an index, as b may be known late
        const uint32_t four = b < 4 ? (b < 2 ? w[0] : w[1]) : (b < 6 ? w[2] : w[3]);
        const uint32_t s = byte_perm(four, 0x4B000000u, 0x7650u | (2 * (b & 1) + step));
        return float_of(s) - 8388736.0f;
    }
    __host__ __device__ static float outer(const Frag &f, int half) { return half_at(f.d, half); }
    __host__ __device__ static int fields(int word)
    {
        if (word >= 768) return 4;
        return (4 * (word >> 7) + (word & 3)) % 3 < 2 ? 10 : 12;
    }
    /* Low or high bits of element e of pair n. */
    __host__ __device__ static Field code(int lane, int b, int n, int e, bool high, int at)
    {
        const int elem = 32 * b + elem_in_block<16>(lane & 3, 2 * (n & 3) + e), in = elem % 128;
        const int row = (lane >> 2) + 8 * (n >> 2);
        if (high) return {row, 128 + 32 * (elem / 128) + in % 32, 2 * (in / 32), 2, at};
        return {row, 64 * (elem / 128) + in % 32 + 32 * ((in / 32) & 1), in < 64 ? 0 : 4, 4, at};
    }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word < 768) {
            const int lane = (word & 127) >> 2, at = 4 * (word >> 7) + (word & 3);
            const int b = at / 3, third = at % 3, e = i & 1;
            if (i < 8) { // whole pairs: 4 bits, then 2
                const int n = 2 * third + ((i >> 1) & 1);
                return code(lane, b, n, e, i >= 4, 6 * (n & 1) + 16 * e + (i >= 4 ? 4 : 0));
            }
            if (third < 2) return code(lane, b, 6 + third, e, false, 12 + 16 * e);
            return code(lane, b, 6 + ((i - 8) >> 1), e, true, 12 + 2 * ((i - 8) >> 1) + 16 * e);
        }
        if (word < 832) {
            const int s = word - 768;
            return {(s >> 3) + 8 * ((s >> 2) & 1), 192 + 4 * (s & 3) + i, 0, 8, 8 * i, 0x80u};
        }
        return {(word - 832) + 8 * (i >> 1), 208 + (i & 1), 0, 8, 8 * i};
    }
};

} // namespace sk
