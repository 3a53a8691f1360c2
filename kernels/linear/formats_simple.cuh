/* Formats of blocks of 32 with a scale in front. See formats.cuh, docs/formats.md. */
#pragma once

#include "kernels/linear/fragment.cuh"

namespace sk
{

/* ---- blocks of 32 with a scale in front --------------------------------------------------------
 */

/* Two blocks of nibbles with a binary16 scale each. */
struct Nibbles {
    static constexpr int kBlocks = 2, kGroup = 32, kTerms = 1, kWarps = 24;
    static constexpr bool kScaled = true, kMin = false, kSuper = false;
    static constexpr int kUnitBytes = 576, kRowBytes = 36;
    struct Frag {
        uint32_t q[4];
        uint2 s;
    };
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        unpack4(f.q, unit.at16(16 * lane));
        f.s = unit.at8(512 + 8 * (lane >> 2));
        return f;
    }
    __host__ __device__ static float scale(const Frag &f, int b, int, int half)
    {
        return half_at(half ? f.s.y : f.s.x, b);
    }
    __host__ __device__ static int fields(int word) { return word < 128 ? 8 : 4; }
    __host__ __device__ static Field code(const ElemAt &n)
    {
        return {n.row, n.block * 18 + 2 + n.elem % 16, n.elem < 16 ? 0 : 4, 4, n.at};
    }
    /* Word s of {d of block 0, d of block 1} of row (s >> 1) + 8 (s & 1). */
    __host__ __device__ static Field d_of(int s, int i)
    {
        return {(s >> 1) + 8 * (s & 1), (i >> 1) * 18 + (i & 1), 0, 8, 8 * i};
    }
};

struct FormatQ4_0 : Nibbles {
    static constexpr int kType = SK_Q4_0;
    static constexpr int kEntries = 0, kEntryBytes = 0, kPart = 0;
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &,
                                          uint32_t (&a)[8])
    {
        const uint32_t magic = magic128();
        SK_UNROLL
        for (int i = 0; i < 8; i++)
            a[i] = bf16x2_add(nibble_pair(f.q[2 * b + (i & 1)], i >> 1, magic), kMinus136);
    }
    __host__ __device__ static Field field(int word, int i)
    {
        return word < 128 ? code(nibble_at<32>(word, i)) : d_of(word - 128, i);
    }
};

struct FormatQ4_1 {
    static constexpr int kType = SK_Q4_1, kBlocks = 2, kGroup = 32, kTerms = 1, kWarps = 24;
    static constexpr bool kScaled = true, kMin = true, kSuper = false;
    static constexpr int kEntries = 0, kEntryBytes = 0, kPart = 0;
    static constexpr int kUnitBytes = 640, kRowBytes = 40;
    struct Frag {
        uint32_t q[4];
        uint32_t s[4]; // {d, m} of (row g, block 0), (row g, 1), (row g + 8, 0), (row g + 8, 1)
    };
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        unpack4(f.q, unit.at16(16 * lane));
        unpack4(f.s, unit.at16(512 + 16 * (lane >> 2)));
        return f;
    }
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &,
                                          uint32_t (&a)[8])
    {
        const uint32_t magic = magic128();
        SK_UNROLL
        for (int i = 0; i < 8; i++)
            a[i] = bf16x2_add(nibble_pair(f.q[2 * b + (i & 1)], i >> 1, magic), kMinus128);
    }
    __host__ __device__ static float scale(const Frag &f, int b, int, int half)
    {
        return half_at(f.s[2 * half + b], 0);
    }
    __host__ __device__ static float min(const Frag &f, int b, int, int half)
    {
        return half_at(f.s[2 * half + b], 1);
    }
    __host__ __device__ static int fields(int word) { return word < 128 ? 8 : 4; }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word < 128) {
            const ElemAt n = nibble_at<32>(word, i);
            return {n.row, n.block * 20 + 4 + n.elem % 16, n.elem < 16 ? 0 : 4, 4, n.at};
        }
        const int s = word - 128;
        return {(s >> 2) + 8 * ((s >> 1) & 1), (s & 1) * 20 + i, 0, 8, 8 * i};
    }
};

/* Nibbles and fifth bits of two blocks of two rows. */
__host__ __device__ inline void five_bit_codes(const uint32_t (&q)[4], uint32_t high, int b,
                                               uint32_t minus, uint32_t (&a)[8])
{
    const uint32_t magic = magic128();
    SK_UNROLL
    for (int i = 0; i < 8; i++) {
        const int at = 4 * (2 * b + (i & 1)) + (i >> 1);
        const uint32_t low = nibble_pair(q[2 * b + (i & 1)], i >> 1, magic);
        a[i] = bf16x2_add(low | (move_bit(high, at, 4) & 0x00100010u), minus);
    }
}

/* A block is `bytes` long, and four bytes of fifth bits end where the nibbles begin. */
__host__ __device__ inline Field five_bit_field(int word, int i, int bytes, int nibbles)
{
    if (word < 128) {
        const ElemAt n = nibble_at<32>(word, i);
        return {n.row, n.block * bytes + nibbles + n.elem % 16, n.elem < 16 ? 0 : 4, 4, n.at};
    }
    const int lane = word - 128, n = i & 15, elem = 2 * (n & 3) + (i >> 4);
    return {(lane >> 2) + 8 * ((n >> 2) & 1), (n >> 3) * bytes + nibbles - 4 + (lane & 3), elem, 1,
            i};
}

struct FormatQ5_0 {
    static constexpr int kType = SK_Q5_0, kBlocks = 2, kGroup = 32, kTerms = 1, kWarps = 24;
    static constexpr bool kScaled = true, kMin = false, kSuper = false;
    static constexpr int kEntries = 0, kEntryBytes = 0, kPart = 0;
    static constexpr int kUnitBytes = 704, kRowBytes = 44;
    struct Frag {
        uint32_t q[4];
        uint32_t h; // fifth bits: pair p of a block and row half at bits n and 16 + n
        uint2 s;
    };
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        unpack4(f.q, unit.at16(16 * lane));
        f.h = unit.at4(512 + 4 * lane);
        f.s = unit.at8(640 + 8 * (lane >> 2));
        return f;
    }
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &,
                                          uint32_t (&a)[8])
    {
        five_bit_codes(f.q, f.h, b, kMinus144, a);
    }
    __host__ __device__ static float scale(const Frag &f, int b, int, int half)
    {
        return half_at(half ? f.s.y : f.s.x, b);
    }
    __host__ __device__ static int fields(int word) { return word < 128 ? 8 : word < 160 ? 32 : 4; }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word < 160) return five_bit_field(word, i, 22, 6);
        const int s = word - 160;
        return {(s >> 1) + 8 * (s & 1), (i >> 1) * 22 + (i & 1), 0, 8, 8 * i};
    }
};

struct FormatQ5_1 {
    static constexpr int kType = SK_Q5_1, kBlocks = 2, kGroup = 32, kTerms = 1, kWarps = 24;
    static constexpr bool kScaled = true, kMin = true, kSuper = false;
    static constexpr int kEntries = 0, kEntryBytes = 0, kPart = 0;
    static constexpr int kUnitBytes = 768, kRowBytes = 48;
    struct Frag {
        uint32_t q[4];
        uint32_t h;    // fifth bits: pair p of a block and row half at bits n and 16 + n
        uint32_t s[4]; // {d, m} as in Q4_1
    };
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        unpack4(f.q, unit.at16(16 * lane));
        f.h = unit.at4(512 + 4 * lane);
        unpack4(f.s, unit.at16(640 + 16 * (lane >> 2)));
        return f;
    }
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &,
                                          uint32_t (&a)[8])
    {
        five_bit_codes(f.q, f.h, b, kMinus128, a);
    }
    __host__ __device__ static float scale(const Frag &f, int b, int, int half)
    {
        return half_at(f.s[2 * half + b], 0);
    }
    __host__ __device__ static float min(const Frag &f, int b, int, int half)
    {
        return half_at(f.s[2 * half + b], 1);
    }
    __host__ __device__ static int fields(int word) { return word < 128 ? 8 : word < 160 ? 32 : 4; }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word < 160) return five_bit_field(word, i, 24, 8);
        const int s = word - 160;
        return {(s >> 2) + 8 * ((s >> 1) & 1), (s & 1) * 24 + i, 0, 8, 8 * i};
    }
};

struct FormatQ8_0 {
    static constexpr int kType = SK_Q8_0, kBlocks = 2, kGroup = 32, kTerms = 1, kWarps = 24;
    static constexpr bool kScaled = true, kMin = false, kSuper = false;
    static constexpr int kEntries = 0, kEntryBytes = 0, kPart = 0;
    static constexpr int kUnitBytes = 1088, kRowBytes = 68;
    struct Frag {
        uint32_t q[2][4]; // [block][2 half + j]: elements 4j, 4j + 2, 4j + 1, 4j + 3 as bytes
        uint2 s;
    };
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        unpack4(f.q[0], unit.at16(16 * lane));
        unpack4(f.q[1], unit.at16(512 + 16 * lane));
        f.s = unit.at8(1024 + 8 * (lane >> 2));
        return f;
    }
    /* 128 + the low seven bits, minus 128, or minus 256 where the sign bit is set. */
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &,
                                          uint32_t (&a)[8])
    {
        const uint32_t magic = magic128(), minus = in_register<kMinus128>();
        SK_UNROLL
        for (int i = 0; i < 8; i++) {
            const int pair = i >> 1;
            const uint32_t w = f.q[b][2 * (i & 1) + (pair >> 1)] >> (8 * (pair & 1));
            a[i] = bf16x2_add((w & 0x007F007Fu) | magic, (w & 0x00800080u) | minus);
        }
    }
    __host__ __device__ static float scale(const Frag &f, int b, int, int half)
    {
        return half_at(half ? f.s.y : f.s.x, b);
    }
    __host__ __device__ static int fields(int) { return 4; }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word < 256) return byte_field(word, i, 34, 2);
        const int s = word - 256;
        return {(s >> 1) + 8 * (s & 1), (i >> 1) * 34 + (i & 1), 0, 8, 8 * i};
    }
};

} // namespace sk
