/* Four bits that number one of sixteen values. Two neighbours are looked up together, so an entry
 * is a fragment word. See formats.cuh, table.cuh, docs/formats.md. */
#pragma once

#include "kernels/linear/codebooks.cuh"
#include "kernels/linear/formats_simple.cuh"
#include "kernels/linear/table.cuh"

namespace sk
{

/* Of a row's word, byte p is pair p of the lane's eight elements; a block has two such words, of
 * rows g and g + 8. */
template <typename Table>
__host__ __device__ inline void look_up_pairs(const uint32_t *words, const Table &table,
                                              uint32_t (&a)[8])
{
    SK_UNROLL
    for (int i = 0; i < 8; i++)
        a[i] = table.template at<uint32_t>(words + (i & 1), 8 * (i >> 1), 8);
}

/* Nibble i of word `word` of the plane of two blocks: element i of the lane's eight. */
template <int Group> __host__ __device__ inline ElemAt byte_pair_at(int word, int i)
{
    const int lane = word >> 2, c = word & 3;
    return {(lane >> 2) + 8 * (c & 1), c >> 1, elem_in_block<Group>(lane & 3, i), 4 * i};
}

/* The entry of byte i. */
constexpr void pair_entry(const int (&values)[16], int i, uint32_t *to)
{
    to[0] = bf16_pair_of(values[i & 15], values[i >> 4]);
}

struct FormatIQ4_NL : Nibbles {
    static constexpr int kType = SK_IQ4_NL;
    static constexpr int kEntries = 256, kEntryBytes = 4, kPart = 0;
    static constexpr void entry(int i, uint32_t *to) { pair_entry(kValuesIq4, i, to); }
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &table,
                                          uint32_t (&a)[8])
    {
        look_up_pairs(f.q + 2 * b, table, a);
    }
    __host__ __device__ static Field field(int word, int i)
    {
        return word < 128 ? code(byte_pair_at<32>(word, i)) : d_of(word - 128, i);
    }
};

struct FormatIQ4_XS {
    static constexpr int kType = SK_IQ4_XS, kBlocks = 8, kGroup = 32, kTerms = 1, kWarps = 16;
    static constexpr bool kScaled = true, kMin = false, kSuper = true;
    static constexpr int kEntries = 256, kEntryBytes = 4, kPart = 0;
    static constexpr int kUnitBytes = 2176, kRowBytes = 136;
    struct Frag {
        uint32_t q[16];
        uint32_t s[4]; // [2 half + part]: six bits for each of four blocks, then a byte of d
    };
    static constexpr void entry(int i, uint32_t *to) { pair_entry(kValuesIq4, i, to); }
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        load_planes<4>(f.q, unit, 0, 512, lane);
        unpack4(f.s, unit.at16(2048 + 16 * (lane >> 2)));
        return f;
    }
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &table,
                                          uint32_t (&a)[8])
    {
        look_up_pairs(f.q + 2 * b, table, a);
    }
    __host__ __device__ static float scale(const Frag &f, int b, int, int half)
    {
        const uint32_t s = b < 4 ? f.s[2 * half] : f.s[2 * half + 1];
        return small_float((s >> (6 * (b & 3))) & 63u, 32);
    }
    __host__ __device__ static float outer(const Frag &f, int half)
    {
        return half_at(byte_perm(f.s[2 * half], f.s[2 * half + 1], 0x0073), 0);
    }
    __host__ __device__ static int fields(int word) { return word < 512 ? 8 : 9; }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word < 512) {
            const ElemAt n = byte_pair_at<32>(word & 127, i);
            const int b = 2 * (word >> 7) + n.block;
            return {n.row, 8 + 16 * b + n.elem % 16, n.elem < 16 ? 0 : 4, 4, n.at};
        }
        const int s = word - 512, row = (s >> 2) + 8 * ((s >> 1) & 1), part = s & 1;
        if (i == 8) return {row, part, 0, 8, 24};
        if (i >= 4) return {row, 2 + part, 2 * (i - 4), 2, 6 * (i - 4) + 4};
        return {row, 4 + 2 * part + i / 2, 4 * (i & 1), 4, 6 * i};
    }
};

struct FormatMXFP4 {
    static constexpr int kType = SK_MXFP4, kBlocks = 2, kGroup = 32, kTerms = 1, kWarps = 24;
    static constexpr bool kScaled = true, kMin = false, kSuper = false;
    static constexpr int kEntries = 256, kEntryBytes = 4, kPart = 0;
    static constexpr int kUnitBytes = 544, kRowBytes = 34;
    struct Frag {
        uint32_t q[4];
        uint32_t s; // exponents of row g, blocks 0 and 1, and of row g + 8
    };
    static constexpr void entry(int i, uint32_t *to) { pair_entry(kValuesFp4, i, to); }
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        unpack4(f.q, unit.at16(16 * lane));
        f.s = unit.at4(512 + 4 * (lane >> 2));
        return f;
    }
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &table,
                                          uint32_t (&a)[8])
    {
        look_up_pairs(f.q + 2 * b, table, a);
    }
    /* 2^(e - 128): the table has the doubles of what E2M1 means. */
    __host__ __device__ static float scale(const Frag &f, int b, int, int half)
    {
        const uint32_t e = (f.s >> (8 * (2 * half + b))) & 0xFFu;
        return float_of(e < 2 ? 0x200000u << e : (e - 1) << 23);
    }
    __host__ __device__ static int fields(int word) { return word < 128 ? 8 : 4; }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word >= 128) return {(word - 128) + 8 * (i >> 1), 17 * (i & 1), 0, 8, 8 * i};
        const ElemAt n = byte_pair_at<32>(word, i);
        return {n.row, n.block * 17 + 1 + n.elem % 16, n.elem < 16 ? 0 : 4, 4, n.at};
    }
};

struct FormatNVFP4 {
    static constexpr int kType = SK_NVFP4, kBlocks = 2, kGroup = 16, kTerms = 1, kWarps = 24;
    static constexpr bool kScaled = true, kMin = false, kSuper = false;
    static constexpr int kEntries = 256, kEntryBytes = 4, kPart = 0;
    static constexpr int kUnitBytes = 576, kRowBytes = 36;
    struct Frag {
        uint32_t q[4];
        uint2 s; // four scales of rows g and g + 8
    };
    static constexpr void entry(int i, uint32_t *to) { pair_entry(kValuesFp4, i, to); }
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        unpack4(f.q, unit.at16(16 * lane));
        f.s = unit.at8(512 + 8 * (lane >> 2));
        f.s.x = without_nan(f.s.x);
        f.s.y = without_nan(f.s.y);
        return f;
    }
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &table,
                                          uint32_t (&a)[8])
    {
        look_up_pairs(f.q + 2 * b, table, a);
    }
    /* Bytes 0x7f, which are no number, become zero. */
    __host__ __device__ static uint32_t without_nan(uint32_t s)
    {
        const uint32_t other = s ^ 0x7F7F7F7Fu;
        const uint32_t is = ~(((other & 0x7F7F7F7Fu) + 0x7F7F7F7Fu) | other | 0x7F7F7F7Fu);
        return s ^ (is - (is >> 7));
    }
    /* Half of the float of four exponent and three fraction bits: as binary32 those make it smaller
     * by 2^119, subnormal ones too. The top bit does not count. */
    __host__ __device__ static float scale(const Frag &f, int b, int step, int half)
    {
        const uint32_t s = move_bit(half ? f.s.y : f.s.x, 8 * (2 * b + step), 20);
        return float_of(s & 0x07F00000u) * 0x1p119f;
    }
    __host__ __device__ static int fields(int word) { return word < 128 ? 8 : 4; }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word >= 128) {
            const int s = word - 128;
            return {(s >> 1) + 8 * (s & 1), i, 0, 8, 8 * i};
        }
        const ElemAt n = byte_pair_at<16>(word, i);
        const int group = 2 * n.block + (n.elem >> 4);
        return {n.row, 4 + 8 * group + n.elem % 8, n.elem & 8 ? 4 : 0, 4, n.at};
    }
};

} // namespace sk
