/* Codes -1, 0 and 1 of a grid of eight components, moved by an eighth: IQ1. See formats.cuh,
 * table.cuh, docs/formats.md.
 *
 * The grid is too large for entries in BF16. One has two bits a component, and two entries share a
 * row of the table: the lowest bit of an index, which is kept apart from the others, says which. A
 * number is 16 + q out of the bits q = code + 1, less 17 -+ 1/8. */
#pragma once

#include "kernels/linear/formats_grid.cuh"

namespace sk
{

constexpr uint32_t kMagic16 = 0x41804180u; // | q << 3: 16 + q, for q < 16

/* What is taken off 16 + q: 17.125 where the offset is negative, else 16.875. */
__host__ __device__ inline uint32_t minus_17(bool negative)
{
    return negative ? 0xC189C189u : 0xC187C187u;
}

/* The pair of two-bit numbers at bits `at` and 16 + `at` of x. */
__host__ __device__ inline uint32_t pair_of_three(uint32_t x, int at, uint32_t magic,
                                                  uint32_t minus)
{
    return bf16x2_add((move_bit(x, at, 3) & 0x00180018u) | magic, minus);
}

struct FormatIQ1_S {
    static constexpr int kType = SK_IQ1_S, kBlocks = 8, kGroup = 32, kTerms = 1, kWarps = 16;
    static constexpr bool kScaled = true, kMin = false, kSuper = true;
    static constexpr int kEntries = 1024, kEntryBytes = 4, kPart = 0;
    static constexpr int kUnitBytes = 800, kRowBytes = 50;
    struct Frag {
        uint32_t q[5]; // indices without their lowest bits
        uint32_t low;  // those
        uint2 s;       // a scale of three bits and the offset for each block
        uint32_t d;
    };
    /* Even components in the low byte, odd ones in the high byte, of each of two. */
    static constexpr void entry(int i, uint32_t *to)
    {
        to[0] = 0;
        for (int k = 0; k < 8; k++)
            for (int e = 0; e < 2; e++)
                to[0] |= (kGridIq1s[2 * i + e] >> (2 * k) & 3u) << (16 * e + 8 * (k & 1) + (k & 6));
    }
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        load_planes<1>(f.q, unit, 0, 0, lane);
        f.q[4] = unit.at4(512 + 4 * lane);
        f.low = unit.at4(640 + 4 * (lane >> 1)) >> (16 * (lane & 1));
        f.s = unit.at8(704 + 8 * (lane >> 2));
        f.d = unit.at4(768 + 4 * (lane >> 2));
        return f;
    }
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &table,
                                          uint32_t (&a)[8])
    {
        const uint32_t magic = in_register<kMagic16>();
        SK_UNROLL
        for (int half = 0; half < 2; half++) {
            const int k = 2 * b + half;
            const uint32_t second = move_bit(f.low, k, 1) & 2u;
            const uint32_t e = table.template at<uint16_t>(f.q, 10 * k, 10, second);
            const uint32_t x = byte_perm(e, 0, 0x4140);
            const uint32_t minus = minus_17(((half ? f.s.y : f.s.x) >> (4 * b)) & 8u);
            SK_UNROLL
            for (int p = 0; p < 4; p++) a[2 * p + half] = pair_of_three(x, 2 * p, magic, minus);
        }
    }
    __host__ __device__ static float scale(const Frag &f, int b, int, int half)
    {
        return half_step(((half ? f.s.y : f.s.x) >> (4 * b)) & 7u);
    }
    __host__ __device__ static float outer(const Frag &f, int half)
    {
        return half_at(f.d, half) * 2.0f;
    }
    __host__ __device__ static int fields(int word) { return word < 176 ? 32 : word < 192 ? 8 : 4; }
    /* Bit `bit` of the index of block k >> 1, row half k & 1, of the lane. */
    __host__ __device__ static Field index_field(int lane, int k, int bit, int at)
    {
        const int row = (lane >> 2) + 8 * (k & 1), b = k >> 1, high = 3 * (lane & 3) + bit - 8;
        if (bit < 8) return {row, 2 + 4 * b + (lane & 3), bit, 1, at};
        return {row, 34 + 2 * b + high / 8, high % 8, 1, at};
    }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word >= 192) return half_pair_field(word - 192, i, 0);
        if (word >= 176) {
            const int s = word - 176;
            return {(s >> 1) + 8 * (s & 1), 35 + 2 * i, 4, 4, 4 * i};
        }
        if (word >= 160) return index_field(2 * (word - 160) + (i >> 4), i & 15, 0, i);
        const int lane = word < 128 ? word >> 2 : word - 128;
        const int n = 32 * (word < 128 ? word & 3 : 4) + i;
        return index_field(lane, n / 10, n % 10 + 1, i);
    }
};

struct FormatIQ1_M {
    static constexpr int kType = SK_IQ1_M, kBlocks = 8, kGroup = 16, kTerms = 1, kWarps = 16;
    static constexpr bool kScaled = true, kMin = false, kSuper = true;
    static constexpr int kEntries = 1024, kEntryBytes = 4, kPart = 1;
    static constexpr int kUnitBytes = 896, kRowBytes = 56;
    struct Frag {
        uint32_t q[12]; // ten bits of index, its lowest bit, the offset; of two lanes
        uint32_t s[4];  // [2 half + b / 4]: eight times three bits, and a byte of d
    };
    /* A byte for each four components: even ones in the low half, odd ones in the high half. */
    static constexpr void entry(int i, uint32_t *to)
    {
        to[0] = 0;
        for (int k = 0; k < 8; k++)
            for (int e = 0; e < 2; e++)
                to[0] |= (kGridIq1s[2 * i + e] >> (2 * k) & 3u)
                         << (16 * e + 8 * (k >> 2) + 4 * (k & 1) + (k & 2));
    }
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        load_planes<3>(f.q, unit, 0, 256, lane >> 1);
        unpack4(f.s, unit.at16(768 + 16 * (lane >> 2)));
        return f;
    }
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &table,
                                          uint32_t (&a)[8])
    {
        const uint32_t magic = in_register<kMagic16>();
        SK_UNROLL
        for (int k = 0; k < 4; k++) { // row half, step
            const int half = k >> 1, step = k & 1, at = 12 * (4 * b + k);
            const uint32_t second = bits_at(f.q, at + 10, 1, 1) & 2u;
            const uint32_t e = table.template at<uint8_t>(f.q, at, 10, second);
            const uint32_t x = e * 0x1001u; // the high half to bit 16
            const uint32_t minus = minus_17(bits_at(f.q, at + 11, 1, 0) & 1u);
            a[4 * step + half] = pair_of_three(x, 0, magic, minus);
            a[4 * step + 2 + half] = pair_of_three(x, 2, magic, minus);
        }
    }
    __host__ __device__ static float scale(const Frag &f, int b, int step, int half)
    {
        const uint32_t s = b < 4 ? f.s[2 * half] : f.s[2 * half + 1];
        return half_step((s >> (6 * (b & 3) + 3 * step)) & 7u);
    }
    __host__ __device__ static float outer(const Frag &f, int half)
    {
        return half_at(byte_perm(f.s[2 * half], f.s[2 * half + 1], 0x0073), 0) * 2.0f;
    }
    __host__ __device__ static int fields(int word) { return word < 192 ? 32 : 26; }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word >= 192) { // of four words of 16 bits: three bits four times, then four bits of d
            const int s = word - 192, row = (s >> 2) + 8 * ((s >> 1) & 1);
            const int group = 8 * (s & 1) + i / 3,
                      from = 16 * (group / 4) + 3 * (group % 4) + i % 3;
            if (i < 24) return {row, 48 + from / 8, from % 8, 1, i};
            return {row, 49 + 4 * (s & 1) + 2 * (i - 24), 4, 4, 4 * i - 72};
        }
        const int two = (word & 63) >> 2, n = 32 * (4 * (word >> 6) + (word & 3)) + i;
        const int k = n / 12, row = (two >> 1) + 8 * ((k >> 1) & 1);
        const int octet = 4 * (k >> 2) + 2 * (k & 1) + (two & 1);
        const int bit = n % 12 < 10 ? n % 12 + 1 : n % 12 == 10 ? 0 : 11;
        if (bit < 8) return {row, octet, bit, 1, i};
        return {row, 32 + octet / 2, 4 * (octet & 1) + bit - 8, 1, i};
    }
};

} // namespace sk
