/* Plain numbers. See formats.cuh, docs/formats.md. */
#pragma once

#include "kernels/linear/fragment.cuh"

namespace sk
{

/* ---- plain numbers -----------------------------------------------------------------------------
 */

/* Word c of plane p: row half p & 1, block p >> 1, elements 2c and 2c + 1 of the lane's eight. */
__host__ __device__ inline Field half_field(int word, int i)
{
    const int plane = word >> 7, lane = (word & 127) >> 2, c = word & 3;
    const int elem = 32 * (plane >> 1) + 8 * (lane & 3) + 2 * c + (i >> 1);
    return {(lane >> 2) + 8 * (plane & 1), 2 * elem + (i & 1), 0, 8, 8 * i};
}

struct FormatBF16 {
    static constexpr int kType = SK_BF16, kBlocks = 2, kGroup = 32, kTerms = 1, kWarps = 16;
    static constexpr bool kScaled = false, kMin = false, kSuper = false;
    static constexpr int kEntries = 0, kEntryBytes = 0, kPart = 0;
    static constexpr int kUnitBytes = 2048, kRowBytes = 128;
    struct Frag {
        uint32_t q[4][4]; // [2 block + half]
    };
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        SK_UNROLL
        for (int p = 0; p < 4; p++) unpack4(f.q[p], unit.at16(512 * p + 16 * lane));
        return f;
    }
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &,
                                          uint32_t (&a)[8])
    {
        SK_UNROLL
        for (int i = 0; i < 8; i++) a[i] = f.q[2 * b + (i & 1)][i >> 1];
    }
    __host__ __device__ static int fields(int) { return 4; }
    __host__ __device__ static Field field(int word, int i) { return half_field(word, i); }
};

/* The low half of each word's bits is what BF16 cannot hold: x = high + low exactly. */
__host__ __device__ inline uint32_t high_pair(float x, float y)
{
    return byte_perm(float_bits(x), float_bits(y), 0x7632);
}

__host__ __device__ inline float high_part(float x)
{
    return float_of(float_bits(x) & 0xFFFF0000u);
}

/* Term `term` of the exact sum of BF16 numbers that x is: 0 is the smallest of `n`. */
__host__ __device__ inline float term_of(float x, int n, int term)
{
    for (int i = n - 1; i > term; i--) x = x - high_part(x);
    return x;
}

/* The same of at most three, for codes(), in which the compiler would keep the loop. */
__host__ __device__ inline float decoded_term(float x, int n, int term)
{
    if (term < n - 1) x = x - high_part(x);
    if (term < n - 2) x = x - high_part(x);
    return x;
}

struct FormatF16 {
    static constexpr int kType = SK_F16, kBlocks = 2, kGroup = 32, kTerms = 2, kWarps = 16;
    static constexpr bool kScaled = false, kMin = false, kSuper = false;
    static constexpr int kEntries = 0, kEntryBytes = 0, kPart = 0;
    static constexpr int kUnitBytes = 2048, kRowBytes = 128;
    struct Frag {
        uint32_t q[4][4];
    };
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        SK_UNROLL
        for (int p = 0; p < 4; p++) unpack4(f.q[p], unit.at16(512 * p + 16 * lane));
        return f;
    }
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int term, const Table &,
                                          uint32_t (&a)[8])
    {
        SK_UNROLL
        for (int i = 0; i < 8; i++) {
            const uint32_t w = f.q[2 * b + (i & 1)][i >> 1];
            a[i] = high_pair(decoded_term(half_at(w, 0), 2, term),
                             decoded_term(half_at(w, 1), 2, term));
        }
    }
    __host__ __device__ static int fields(int) { return 4; }
    __host__ __device__ static Field field(int word, int i) { return half_field(word, i); }
};

struct FormatF32 {
    static constexpr int kType = SK_F32, kBlocks = 1, kGroup = 32, kTerms = 3, kWarps = 16;
    static constexpr bool kScaled = false, kMin = false, kSuper = false;
    static constexpr int kEntries = 0, kEntryBytes = 0, kPart = 0;
    static constexpr int kUnitBytes = 2048, kRowBytes = 128;
    struct Frag {
        uint32_t q[4][4]; // [2 half + j]: elements 4j .. 4j + 3
    };
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        SK_UNROLL
        for (int p = 0; p < 4; p++) unpack4(f.q[p], unit.at16(512 * p + 16 * lane));
        return f;
    }
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int, int term, const Table &,
                                          uint32_t (&a)[8])
    {
        SK_UNROLL
        for (int i = 0; i < 8; i++) {
            const int pair = i >> 1;
            const uint32_t(&w)[4] = f.q[2 * (i & 1) + (pair >> 1)];
            a[i] = high_pair(decoded_term(float_of(w[2 * (pair & 1)]), 3, term),
                             decoded_term(float_of(w[2 * (pair & 1) + 1]), 3, term));
        }
    }
    __host__ __device__ static int fields(int) { return 4; }
    __host__ __device__ static Field field(int word, int i)
    {
        const int plane = word >> 7, lane = (word & 127) >> 2, c = word & 3;
        const int elem = 8 * (lane & 3) + 4 * (plane & 1) + c;
        return {(lane >> 2) + 8 * (plane >> 1), 4 * elem + i, 0, 8, 8 * i};
    }
};

/* Two blocks of a byte an element, without scales. */
struct Bytes {
    static constexpr int kBlocks = 2, kGroup = 32, kTerms = 1, kWarps = 16;
    static constexpr bool kScaled = false, kMin = false, kSuper = false;
    static constexpr int kEntries = 0, kEntryBytes = 0, kPart = 0;
    static constexpr int kUnitBytes = 1024, kRowBytes = 64;
    struct Frag {
        uint32_t q[2][4]; // as in Q8_0
    };
    template <typename From> __host__ __device__ static Frag load(From unit, int lane)
    {
        Frag f;
        unpack4(f.q[0], unit.at16(16 * lane));
        unpack4(f.q[1], unit.at16(512 + 16 * lane));
        return f;
    }
    __host__ __device__ static int fields(int) { return 4; }
    __host__ __device__ static Field field(int word, int i) { return byte_field(word, i, 32, 0); }
};

struct FormatF8_E4M3 : Bytes {
    static constexpr int kType = SK_F8_E4M3;
    /* As BF16 the bits make a number smaller by 2^120, subnormal ones too; the code 127 is none. */
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &,
                                          uint32_t (&a)[8])
    {
        SK_UNROLL
        for (int i = 0; i < 8; i++) {
            const int pair = i >> 1;
            const uint32_t w = f.q[b][2 * (i & 1) + (pair >> 1)];
            const uint32_t sign = (pair & 1 ? w : w << 8) & 0x80008000u;
            const uint32_t x = ((pair & 1 ? w >> 4 : w << 4) & 0x07F007F0u) | sign;
            a[i] = bf16x2_fma(x, 0x7B807B80u, 0x80008000u);
        }
        uint32_t any = 0; // top bits of the bytes that are no number
        SK_UNROLL
        for (int i = 0; i < 4; i++) any |= (f.q[b][i] & 0x7F7F7F7Fu) + 0x01010101u;
        if (any & 0x80808080u) set_nan(f.q[b], a);
    }
    /* Rare, so that it need not be fast. */
    __host__ __device__ static void set_nan(const uint32_t (&q)[4], uint32_t (&a)[8])
    {
        SK_UNROLL
        for (int i = 0; i < 8; i++) {
            const uint32_t n = (q[2 * (i & 1) + (i >> 2)] & 0x7F7F7F7Fu) + 0x01010101u;
            a[i] |= (((i & 2 ? n : n << 8) & 0x80008000u) >> 15) * 0x7FFFu;
        }
    }
};

struct FormatF8_E5M2 : Bytes {
    static constexpr int kType = SK_F8_E5M2;
    /* The upper half of a binary16. */
    template <typename Table>
    __host__ __device__ static void codes(const Frag &f, int b, int, const Table &,
                                          uint32_t (&a)[8])
    {
        SK_UNROLL
        for (int i = 0; i < 8; i++) {
            const int pair = i >> 1;
            const uint32_t w = f.q[b][2 * (i & 1) + (pair >> 1)];
            const uint32_t x = (pair & 1 ? w : w << 8) & 0xFF00FF00u;
            a[i] = high_pair(half_at(x, 0), half_at(x, 1));
        }
    }
};

} // namespace sk
