/* One and two bits, and digits to the base of three, with one scale for a whole unit: products are
 * summed without a scale. See formats.cuh, docs/formats.md. */
#pragma once

#include "kernels/linear/fragment.cuh"

namespace sk
{

struct FormatQ1_0 {
    static constexpr int kType = SK_Q1_0, kBlocks = 4, kGroup = 32, kTerms = 1, kWarps = 16;
    static constexpr bool kScaled = false, kMin = false, kSuper = true;
    static constexpr int kEntries = 0, kEntryBytes = 0, kPart = 0;
    static constexpr int kUnitBytes = 288, kRowBytes = 18;
    struct Frag {
        uint2 q; // of rows g and g + 8: pair p of block b in bits 15 - n and 31 - n, n = 4 b + p
        uint32_t d;
    };
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        f.q = unit.at8(8 * lane);
        f.d = unit.at4(256 + 4 * (lane >> 2));
        return f;
    }
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &,
                                          uint32_t (&a)[8])
    {
        const uint32_t minus_one = in_register<0xBF80BF80u>();
        SK_UNROLL
        for (int i = 0; i < 8; i++)
            a[i] = signed_pair(minus_one, i & 1 ? f.q.y : f.q.x, 4 * b + (i >> 1));
    }
    __host__ __device__ static float outer(const Frag &f, int half) { return half_at(f.d, half); }
    __host__ __device__ static int fields(int word) { return word < 64 ? 32 : 4; }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word >= 64) return half_pair_field(word - 64, i, 0);
        const int lane = word >> 1, n = (i < 16 ? 15 : 31) - i;
        const int elem = 2 * (n & 3) + (i >> 4);
        return {(lane >> 2) + 8 * (word & 1), 2 + 4 * (n >> 2) + (lane & 3), elem, 1, i};
    }
};

struct FormatQ2_0 {
    static constexpr int kType = SK_Q2_0, kBlocks = 2, kGroup = 32, kTerms = 1, kWarps = 24;
    static constexpr bool kScaled = false, kMin = false, kSuper = true;
    static constexpr int kEntries = 0, kEntryBytes = 0, kPart = 0;
    static constexpr int kUnitBytes = 288, kRowBytes = 18;
    struct Frag {
        uint2 q; // of rows g and g + 8: pair p of block b at bits 2n and 16 + 2n, n = 4 b + p
        uint32_t d;
    };
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        f.q = unit.at8(8 * lane);
        f.d = unit.at4(256 + 4 * (lane >> 2));
        return f;
    }
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &,
                                          uint32_t (&a)[8])
    {
        const uint32_t magic = magic128();
        SK_UNROLL
        for (int i = 0; i < 8; i++) {
            const uint32_t q = (i & 1 ? f.q.y : f.q.x) >> (8 * b + 2 * (i >> 1));
            a[i] = bf16x2_add((q & 0x00030003u) | magic, kMinus129);
        }
    }
    __host__ __device__ static float outer(const Frag &f, int half) { return half_at(f.d, half); }
    __host__ __device__ static int fields(int word) { return word < 64 ? 16 : 4; }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word >= 64) return half_pair_field(word - 64, i, 0);
        const int lane = word >> 1, n = i & 7;
        const int elem = 32 * (n >> 2) + 8 * (lane & 3) + 2 * (n & 3) + (i >> 3);
        return {(lane >> 2) + 8 * (word & 1), 2 + elem / 4, 2 * (elem % 4), 2,
                2 * n + 16 * (i >> 3)};
    }
};

struct FormatTQ2_0 {
    static constexpr int kType = SK_TQ2_0, kBlocks = 8, kGroup = 32, kTerms = 1, kWarps = 16;
    static constexpr bool kScaled = false, kMin = false, kSuper = true;
    static constexpr int kEntries = 0, kEntryBytes = 0, kPart = 0;
    static constexpr int kUnitBytes = 1056, kRowBytes = 66;
    struct Frag {
        uint32_t q[2][4];
        uint32_t d;
    };
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        unpack4(f.q[0], unit.at16(16 * lane));
        unpack4(f.q[1], unit.at16(512 + 16 * lane));
        f.d = unit.at4(1024 + 4 * (lane >> 2));
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
            a[i] = bf16x2_add((q & 0x00030003u) | magic, kMinus129);
        }
    }
    __host__ __device__ static float outer(const Frag &f, int half) { return half_at(f.d, half); }
    __host__ __device__ static int fields(int word) { return word < 256 ? 16 : 4; }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word >= 256) return half_pair_field(word - 256, i, 64);
        const ElemAt n = two_bits_at<32>(word, i);
        return {n.row, 32 * (n.block / 4) + n.elem, 2 * (n.block % 4), 2, n.at};
    }
};

struct FormatTQ1_0 {
    static constexpr int kType = SK_TQ1_0, kBlocks = 8, kGroup = 32, kTerms = 1, kWarps = 16;
    static constexpr bool kScaled = false, kMin = false, kSuper = true;
    static constexpr int kEntries = 0, kEntryBytes = 0, kPart = 0;
    static constexpr int kUnitBytes = 864, kRowBytes = 54;
    struct Frag {
        uint32_t q[4];     // [2 half + j]: bytes of blocks 0 to 4
        uint32_t r[4];     // of blocks 5 and 6
        uint32_t e[4];     // of block 7
        uint32_t power[4]; // that bring this lane's digit to the top: block 5, 6, 7 (j = 0, 1)
        uint32_t d;
    };
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        const int t = lane & 3, u = t >> 1;
        const uint2 last = unit.at8(768 + 8 * (lane >> 2));
        unpack4(f.q, unit.at16(16 * lane));
        unpack4(f.r, unit.at16(512 + 32 * (lane >> 2) + 16 * (t & 1)));
        SK_UNROLL
        for (int i = 0; i < 4; i++) f.e[i] = u ? (i < 2 ? last.x : last.y) : f.r[i];
        f.power[0] = u ? 3 : 1;
        f.power[1] = u ? 27 : 9;
        f.power[2] = u ? (t & 1 ? 9 : 1) : 81;
        f.power[3] = u ? (t & 1 ? 27 : 3) : 81;
        f.d = unit.at4(832 + 4 * (lane >> 2));
        return f;
    }
    /* A byte is a fraction of 256 to the base of three. Two at a time: shifted by digits, then the
     * one above the point. */
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &,
                                          uint32_t (&a)[8])
    {
        constexpr uint32_t kPower[5] = {1, 3, 9, 27, 81};
        const uint32_t magic = magic128(), low_bytes = 0x00FF00FFu;
        const uint32_t(&words)[4] = b < 5 ? f.q : b < 7 ? f.r : f.e;
        SK_UNROLL
        for (int i = 0; i < 8; i++) {
            const int pair = i >> 1, j = pair >> 1;
            const uint32_t power = b < 5 ? kPower[b] : f.power[b < 7 ? b - 5 : 2 + j];
            const uint32_t two = (words[2 * (i & 1) + j] >> (8 * (pair & 1))) & low_bytes;
            const uint32_t digit = (((two * power) & low_bytes) * 3) >> 8;
            a[i] = bf16x2_add((digit & 0x00030003u) | magic, kMinus129);
        }
    }
    __host__ __device__ static float outer(const Frag &f, int half) { return half_at(f.d, half); }
    __host__ __device__ static int fields(int) { return 4; }
    /* Bytes stand in the order 0, 2, 1, 3. */
    __host__ __device__ static Field field(int word, int i)
    {
        const int c = word & 3, byte = 4 * (c & 1) + (i >> 1) + 2 * (i & 1);
        if (word >= 208) return half_pair_field(word - 208, i, 52);
        if (word >= 192) {
            const int s = word - 192;
            return {(s >> 1) + 8 * (s & 1), 48 + (i >> 1) + 2 * (i & 1), 0, 8, 8 * i};
        }
        if (word >= 128) {
            const int two = (word - 128) >> 2;
            return {(two >> 1) + 8 * (c >> 1), 32 + 8 * (two & 1) + byte, 0, 8, 8 * i};
        }
        const int lane = word >> 2;
        return {(lane >> 2) + 8 * (c >> 1), 8 * (lane & 3) + byte, 0, 8, 8 * i};
    }
};

} // namespace sk
