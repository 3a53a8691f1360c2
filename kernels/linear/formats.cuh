/* Weight formats as the products see them: how 16 rows x one unit of K lie packed, and how a lane
 * gets its MMA fragments, scales and minima out of its share. One struct a format; nothing else
 * knows a layout.
 *
 * Lane = 4 g + t (g 0..7, t 0..3) owns rows g and g + 8 of a tile. Of a block of 32 elements it
 * owns k = 8t .. 8t+7, or, where a scale covers 16 elements (Group 16), k = 4t .. 4t+3 of each
 * half. Which element of the block stands where in the MMA's own k order does not matter as long as
 * weights and activations agree, and this order makes both of them one wide load. A block takes two
 * m16n8k16 steps.
 *
 * codes() gives the block's integers exactly as BF16, four words a step: (row g, first pair),
 * (row g + 8, first pair), (row g, second pair), (row g + 8, second pair). 128 + q is what the bit
 * pattern 0x4300 | q means for q < 128, so one OR and one packed subtraction make integers of bits.
 *
 * field(word, i) says which bits of the file stand in a packed word; packing gathers by it and
 * unpacking scatters by it, so no bit can be lost unseen. A unit packed has exactly the bytes that
 * it has in the file. Layouts of the files: docs/formats.md. */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "kernels/sk_kernels.h"

namespace sk
{

/* Bits [shift, shift + bits) of file byte `byte` of row `row` (0..15) within the unit stand at `at`
 * of the packed word. */
struct Field {
    int32_t row, byte, shift, bits, at;
};

__device__ inline uint32_t bf16x2_add(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("{add.rn.bf16x2 %0, %1, %2;}" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

/* The magic number out of the compiler's sight: LOP3 takes one immediate, so it has to come from a
 * register for mask-and-or to be one instruction. No GPU has 2^20 multiprocessors. */
__device__ inline uint32_t magic128()
{
    uint32_t m;
    asm("{.reg .u32 t; mov.u32 t, %%smid; shr.u32 t, t, 20; or.b32 %0, t, 0x43004300;}" : "=r"(m));
    return m;
}

constexpr uint32_t kMinus128 = 0xC300C300u;
constexpr uint32_t kMinus136 = 0xC308C308u;
constexpr uint32_t kMinus160 = 0xC320C320u;

__device__ inline uint32_t bf16x2_add_f32(uint32_t a, uint32_t b)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    return bf16x2_add(a, b);
#else // compute_80 has no packed add of BF16, but the fused multiply-add, as exact here
    uint32_t d;
    asm("{fma.rn.bf16x2 %0, %1, %2, %3;}" : "=r"(d) : "r"(a), "r"(0x3F803F80u), "r"(b));
    return d;
#endif
}

__device__ inline float half_at(uint32_t word, int high)
{
    const __half h = __ushort_as_half(static_cast<unsigned short>(high ? word >> 16 : word));
    return __half2float(h);
}

/* Loads of weights. Plain ones: the assembler moves non-coherent loads behind the dependency wait,
 * and being ahead of it is what they are for. */
__device__ inline uint4 load16(const uint8_t *p)
{
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

__device__ inline uint2 load8(const uint8_t *p)
{
    uint2 v;
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}

__device__ inline uint32_t load4(const uint8_t *p)
{
    uint32_t v;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}

__device__ inline void unpack4(uint32_t (&to)[4], uint4 v)
{
    to[0] = v.x;
    to[1] = v.y;
    to[2] = v.z;
    to[3] = v.w;
}

/* The nibble word of a row: pair i (elements 2i and 2i + 1 of the lane's eight) at bits 4i, 16 +
 * 4i. */
__device__ inline uint32_t nibble_pair(uint32_t word, int i, uint32_t magic)
{
    return ((word >> (4 * i)) & 0x000F000Fu) | magic;
}

/* Element of the lane's eight -> its place in the block. */
template <int Group> __host__ __device__ constexpr int elem_in_block(int t, int j)
{
    return Group == 32 ? 8 * t + j : 16 * (j >> 2) + 4 * t + (j & 3);
}

/* Word `c` of lane `lane` in a plane of two blocks of nibbles: block c >> 1, row half c & 1; field
 * i is element 2 (i & 3) + (i >> 2) of the lane's eight. */
struct NibbleAt {
    int row, block, elem, at;
};

template <int Group> __host__ __device__ inline NibbleAt nibble_at(int word, int i)
{
    const int lane = word >> 2, c = word & 3;
    const int j = 2 * (i & 3) + (i >> 2);
    return {(lane >> 2) + 8 * (c & 1), c >> 1, elem_in_block<Group>(lane & 3, j),
            4 * (i & 3) + 16 * (i >> 2)};
}

/* ---- blocks of 32 with a scale in front --------------------------------------------------------
 */

struct FormatQ4_0 {
    static constexpr int kType = SK_Q4_0, kBlocks = 2, kGroup = 32, kTerms = 1, kWarps = 24;
    static constexpr bool kScaled = true, kMin = false;
    static constexpr int kUnitBytes = 576, kRowBytes = 36;
    struct Frag {
        uint32_t q[4];
        uint2 s;
    };
    __device__ static Frag load(const uint8_t *unit, int lane)
    {
        Frag f;
        unpack4(f.q, load16(unit + 16 * lane));
        f.s = load8(unit + 512 + 8 * (lane >> 2));
        return f;
    }
    __device__ static void codes(const Frag &f, int b, int, uint32_t (&a)[8])
    {
        const uint32_t magic = magic128();
#pragma unroll
        for (int i = 0; i < 8; i++)
            a[i] = bf16x2_add_f32(nibble_pair(f.q[2 * b + (i & 1)], i >> 1, magic), kMinus136);
    }
    __device__ static float scale(const Frag &f, int b, int, int half)
    {
        return half_at(half ? f.s.y : f.s.x, b);
    }
    __device__ static float min(const Frag &, int, int) { return 0; }
    __host__ __device__ static int fields(int word) { return word < 128 ? 8 : 4; }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word < 128) {
            const NibbleAt n = nibble_at<32>(word, i);
            return {n.row, n.block * 18 + 2 + n.elem % 16, n.elem < 16 ? 0 : 4, 4, n.at};
        }
        const int s = word - 128; // {d of block 0, d of block 1} of row (s >> 1) + 8 (s & 1)
        return {(s >> 1) + 8 * (s & 1), (i >> 1) * 18 + (i & 1), 0, 8, 8 * i};
    }
};

struct FormatQ4_1 {
    static constexpr int kType = SK_Q4_1, kBlocks = 2, kGroup = 32, kTerms = 1, kWarps = 24;
    static constexpr bool kScaled = true, kMin = true;
    static constexpr int kUnitBytes = 640, kRowBytes = 40;
    struct Frag {
        uint32_t q[4];
        uint32_t s[4]; // {d, m} of (row g, block 0), (row g, 1), (row g + 8, 0), (row g + 8, 1)
    };
    __device__ static Frag load(const uint8_t *unit, int lane)
    {
        Frag f;
        unpack4(f.q, load16(unit + 16 * lane));
        unpack4(f.s, load16(unit + 512 + 16 * (lane >> 2)));
        return f;
    }
    __device__ static void codes(const Frag &f, int b, int, uint32_t (&a)[8])
    {
        const uint32_t magic = magic128();
#pragma unroll
        for (int i = 0; i < 8; i++)
            a[i] = bf16x2_add_f32(nibble_pair(f.q[2 * b + (i & 1)], i >> 1, magic), kMinus128);
    }
    __device__ static float scale(const Frag &f, int b, int, int half)
    {
        return half_at(f.s[2 * half + b], 0);
    }
    __device__ static float min(const Frag &f, int b, int half)
    {
        return half_at(f.s[2 * half + b], 1);
    }
    __host__ __device__ static int fields(int word) { return word < 128 ? 8 : 4; }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word < 128) {
            const NibbleAt n = nibble_at<32>(word, i);
            return {n.row, n.block * 20 + 4 + n.elem % 16, n.elem < 16 ? 0 : 4, 4, n.at};
        }
        const int s = word - 128;
        return {(s >> 2) + 8 * ((s >> 1) & 1), (s & 1) * 20 + i, 0, 8, 8 * i};
    }
};

struct FormatQ8_0 {
    static constexpr int kType = SK_Q8_0, kBlocks = 2, kGroup = 32, kTerms = 1, kWarps = 24;
    static constexpr bool kScaled = true, kMin = false;
    static constexpr int kUnitBytes = 1088, kRowBytes = 68;
    struct Frag {
        uint32_t q[2][4]; // [block][2 half + j]: elements 4j, 4j + 2, 4j + 1, 4j + 3 as bytes
        uint2 s;
    };
    __device__ static Frag load(const uint8_t *unit, int lane)
    {
        Frag f;
        unpack4(f.q[0], load16(unit + 16 * lane));
        unpack4(f.q[1], load16(unit + 512 + 16 * lane));
        f.s = load8(unit + 1024 + 8 * (lane >> 2));
        return f;
    }
    /* 128 + the low seven bits, minus 128, or minus 256 where the sign bit is set. */
    __device__ static void codes(const Frag &f, int b, int, uint32_t (&a)[8])
    {
        const uint32_t magic = magic128();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int pair = i >> 1;
            const uint32_t w = f.q[b][2 * (i & 1) + (pair >> 1)] >> (8 * (pair & 1));
            a[i] = bf16x2_add_f32((w & 0x007F007Fu) | magic, (w & 0x00800080u) | kMinus128);
        }
    }
    __device__ static float scale(const Frag &f, int b, int, int half)
    {
        return half_at(half ? f.s.y : f.s.x, b);
    }
    __device__ static float min(const Frag &, int, int) { return 0; }
    __host__ __device__ static int fields(int) { return 4; }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word < 256) {
            const int lane = (word & 127) >> 2, c = word & 3;
            const int elem = 8 * (lane & 3) + 4 * (c & 1) + (i >> 1) + 2 * (i & 1);
            return {(lane >> 2) + 8 * (c >> 1), (word >> 7) * 34 + 2 + elem, 0, 8, 8 * i};
        }
        const int s = word - 256;
        return {(s >> 1) + 8 * (s & 1), (i >> 1) * 34 + (i & 1), 0, 8, 8 * i};
    }
};

/* ---- super-blocks of 256 -----------------------------------------------------------------------
 */

/* Scale and minimum of block j of Q4_K and Q5_K: 6 bits each in the 12 bytes of three words. */
__device__ inline uint32_t byte_of(const uint32_t (&w)[4], int byte)
{
    return (w[byte >> 2] >> (8 * (byte & 3))) & 0xFFu;
}

__device__ inline uint32_t k_scale(const uint32_t (&w)[4], int j)
{
    if (j < 4) return byte_of(w, 4 + j) & 63u;
    return (byte_of(w, 8 + j) & 15u) | ((byte_of(w, j) >> 6) << 4);
}

__device__ inline uint32_t k_min(const uint32_t (&w)[4], int j)
{
    if (j < 4) return byte_of(w, 8 + j) & 63u;
    return (byte_of(w, 8 + j) >> 4) | ((byte_of(w, 4 + j) >> 6) << 4);
}

/* Element of a super-block -> (byte of its 128 nibble bytes, shift). */
__host__ __device__ inline Field k_nibble(int row, int first, int elem, int at)
{
    return {row, first + 32 * (elem / 64) + elem % 32, elem % 64 < 32 ? 0 : 4, 4, at};
}

struct FormatQ4_K {
    static constexpr int kType = SK_Q4_K, kBlocks = 8, kGroup = 32, kTerms = 1, kWarps = 16;
    static constexpr bool kScaled = true, kMin = true;
    static constexpr int kUnitBytes = 2304, kRowBytes = 144;
    struct Frag {
        uint32_t q[4][4];
        uint32_t s[2][4]; // of rows g and g + 8: {d, dmin}, 12 bytes of scales
    };
    __device__ static Frag load(const uint8_t *unit, int lane)
    {
        Frag f;
#pragma unroll
        for (int p = 0; p < 4; p++) unpack4(f.q[p], load16(unit + 512 * p + 16 * lane));
        unpack4(f.s[0], load16(unit + 2048 + 32 * (lane >> 2)));
        unpack4(f.s[1], load16(unit + 2048 + 32 * (lane >> 2) + 16));
        return f;
    }
    __device__ static void codes(const Frag &f, int b, int, uint32_t (&a)[8])
    {
        const uint32_t magic = magic128();
#pragma unroll
        for (int i = 0; i < 8; i++)
            a[i] = bf16x2_add_f32(nibble_pair(f.q[b >> 1][2 * (b & 1) + (i & 1)], i >> 1, magic),
                                  kMinus128);
    }
    __device__ static float scale(const Frag &f, int b, int, int half)
    {
        return half_at(f.s[half][0], 0) * static_cast<float>(k_scale(f.s[half], b));
    }
    __device__ static float min(const Frag &f, int b, int half)
    {
        return -(half_at(f.s[half][0], 1) * static_cast<float>(k_min(f.s[half], b)));
    }
    __host__ __device__ static int fields(int word) { return word < 512 ? 8 : 4; }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word < 512) {
            const NibbleAt n = nibble_at<32>(word & 127, i);
            return k_nibble(n.row, 16, 32 * (2 * (word >> 7) + n.block) + n.elem, n.at);
        }
        const int s = word - 512;
        return {(s >> 3) + 8 * ((s >> 2) & 1), 4 * (s & 3) + i, 0, 8, 8 * i};
    }
};

struct FormatQ5_K {
    static constexpr int kType = SK_Q5_K, kBlocks = 8, kGroup = 32, kTerms = 1, kWarps = 16;
    static constexpr bool kScaled = true, kMin = true;
    static constexpr int kUnitBytes = 2816, kRowBytes = 176;
    struct Frag {
        uint32_t q[4][4];
        uint32_t h[4]; // [2 half + part]: high bits of blocks 4 part .. 4 part + 3
        uint32_t s[2][4];
    };
    __device__ static Frag load(const uint8_t *unit, int lane)
    {
        Frag f;
#pragma unroll
        for (int p = 0; p < 4; p++) unpack4(f.q[p], load16(unit + 512 * p + 16 * lane));
        unpack4(f.h, load16(unit + 2048 + 16 * lane));
        unpack4(f.s[0], load16(unit + 2560 + 32 * (lane >> 2)));
        unpack4(f.s[1], load16(unit + 2560 + 32 * (lane >> 2) + 16));
        return f;
    }
    __device__ static void codes(const Frag &f, int b, int, uint32_t (&a)[8])
    {
        const uint32_t magic = magic128();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int at = 4 * (b & 3) + (i >> 1);
            const uint32_t high = f.h[2 * (i & 1) + (b >> 2)];
            const uint32_t bit = (at < 4 ? high << (4 - at) : high >> (at - 4)) & 0x00100010u;
            const uint32_t low = nibble_pair(f.q[b >> 1][2 * (b & 1) + (i & 1)], i >> 1, magic);
            a[i] = bf16x2_add_f32(low | bit, kMinus128);
        }
    }
    __device__ static float scale(const Frag &f, int b, int, int half)
    {
        return half_at(f.s[half][0], 0) * static_cast<float>(k_scale(f.s[half], b));
    }
    __device__ static float min(const Frag &f, int b, int half)
    {
        return -(half_at(f.s[half][0], 1) * static_cast<float>(k_min(f.s[half], b)));
    }
    __host__ __device__ static int fields(int word) { return word < 512 ? 8 : word < 640 ? 32 : 4; }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word < 512) {
            const NibbleAt n = nibble_at<32>(word & 127, i);
            return k_nibble(n.row, 48, 32 * (2 * (word >> 7) + n.block) + n.elem, n.at);
        }
        if (word < 640) {
            const int lane = (word - 512) >> 2, c = word & 3;
            const int block = 4 * (c & 1) + ((i & 15) >> 2);
            const int elem = 8 * (lane & 3) + 2 * (i & 3) + (i >> 4);
            return {(lane >> 2) + 8 * (c >> 1), 16 + elem, block, 1, i};
        }
        const int s = word - 640;
        return {(s >> 3) + 8 * ((s >> 2) & 1), 4 * (s & 3) + i, 0, 8, 8 * i};
    }
};

struct FormatQ6_K {
    static constexpr int kType = SK_Q6_K, kBlocks = 8, kGroup = 16, kTerms = 1, kWarps = 16;
    static constexpr bool kScaled = true, kMin = false;
    static constexpr int kUnitBytes = 3360, kRowBytes = 210;
    struct Frag {
        uint32_t q[4][4];
        uint32_t h[2][4]; // [block / 4][2 half + (block / 2) % 2]
        uint32_t s[2][4]; // sixteen signed scales of rows g and g + 8
        uint32_t d;       // of both rows
    };
    __device__ static Frag load(const uint8_t *unit, int lane)
    {
        Frag f;
        const uint8_t *scales = unit + 3072 + 32 * (lane >> 2);
#pragma unroll
        for (int p = 0; p < 4; p++) unpack4(f.q[p], load16(unit + 512 * p + 16 * lane));
#pragma unroll
        for (int p = 0; p < 2; p++) unpack4(f.h[p], load16(unit + 2048 + 512 * p + 16 * lane));
        unpack4(f.s[0], load16(scales));
        unpack4(f.s[1], load16(scales + 16));
        f.d = load4(unit + 3328 + 4 * (lane >> 2));
        return f;
    }
    __device__ static void codes(const Frag &f, int b, int, uint32_t (&a)[8])
    {
        const uint32_t magic = magic128();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int at = 8 * (b & 1) + 2 * (i >> 1);
            const uint32_t high = f.h[b >> 2][2 * (i & 1) + ((b >> 1) & 1)];
            const uint32_t bits = (at < 4 ? high << (4 - at) : high >> (at - 4)) & 0x00300030u;
            const uint32_t low = nibble_pair(f.q[b >> 1][2 * (b & 1) + (i & 1)], i >> 1, magic);
            a[i] = bf16x2_add_f32(low | bits, kMinus160);
        }
    }
    __device__ static float scale(const Frag &f, int b, int step, int half)
    {
        const int at = 2 * b + step;
        const int32_t s = static_cast<int32_t>(f.s[half][at >> 2] << (24 - 8 * (at & 3))) >> 24;
        return half_at(f.d, half) * static_cast<float>(s);
    }
    __device__ static float min(const Frag &, int, int) { return 0; }
    __host__ __device__ static int fields(int word) { return word < 512 ? 8 : word < 768 ? 16 : 4; }
    __host__ __device__ static Field field(int word, int i)
    {
        if (word < 512) {
            const NibbleAt n = nibble_at<16>(word & 127, i);
            const int elem = 32 * (2 * (word >> 7) + n.block) + n.elem, in = elem % 128;
            return {n.row, 64 * (elem / 128) + in % 32 + 32 * ((in / 32) & 1), in < 64 ? 0 : 4, 4,
                    n.at};
        }
        if (word < 768) {
            const int lane = ((word - 512) & 127) >> 2, c = word & 3;
            const int block = 4 * ((word - 512) >> 7) + 2 * (c & 1) + ((i & 7) >> 2);
            const int j = 2 * (i & 3) + (i >> 3);
            const int elem = 32 * block + elem_in_block<16>(lane & 3, j), in = elem % 128;
            return {(lane >> 2) + 8 * (c >> 1), 128 + 32 * (elem / 128) + in % 32, 2 * (in / 32), 2,
                    2 * (i & 7) + 16 * (i >> 3)};
        }
        if (word < 832) {
            const int s = word - 768;
            return {(s >> 3) + 8 * ((s >> 2) & 1), 192 + 4 * (s & 3) + i, 0, 8, 8 * i};
        }
        return {(word - 832) + 8 * (i >> 1), 208 + (i & 1), 0, 8, 8 * i};
    }
};

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
    static constexpr bool kScaled = false, kMin = false;
    static constexpr int kUnitBytes = 2048, kRowBytes = 128;
    struct Frag {
        uint32_t q[4][4]; // [2 block + half]
    };
    __device__ static Frag load(const uint8_t *unit, int lane)
    {
        Frag f;
#pragma unroll
        for (int p = 0; p < 4; p++) unpack4(f.q[p], load16(unit + 512 * p + 16 * lane));
        return f;
    }
    __device__ static void codes(const Frag &f, int b, int, uint32_t (&a)[8])
    {
#pragma unroll
        for (int i = 0; i < 8; i++) a[i] = f.q[2 * b + (i & 1)][i >> 1];
    }
    __device__ static float scale(const Frag &, int, int, int) { return 1; }
    __device__ static float min(const Frag &, int, int) { return 0; }
    __host__ __device__ static int fields(int) { return 4; }
    __host__ __device__ static Field field(int word, int i) { return half_field(word, i); }
};

/* The low half of each word's bits is what BF16 cannot hold: x = high + low exactly. */
__device__ inline uint32_t high_pair(float x, float y)
{
    return __byte_perm(__float_as_uint(x), __float_as_uint(y), 0x7632);
}

__device__ inline float high_part(float x)
{
    return __uint_as_float(__float_as_uint(x) & 0xFFFF0000u);
}

/* Term `term` of the exact sum of BF16 numbers that x is: 0 is the smallest of `n`. */
__device__ inline float term_of(float x, int n, int term)
{
    for (int i = n - 1; i > term; i--) x = x - high_part(x);
    return x;
}

struct FormatF16 {
    static constexpr int kType = SK_F16, kBlocks = 2, kGroup = 32, kTerms = 2, kWarps = 16;
    static constexpr bool kScaled = false, kMin = false;
    static constexpr int kUnitBytes = 2048, kRowBytes = 128;
    struct Frag {
        uint32_t q[4][4];
    };
    __device__ static Frag load(const uint8_t *unit, int lane)
    {
        Frag f;
#pragma unroll
        for (int p = 0; p < 4; p++) unpack4(f.q[p], load16(unit + 512 * p + 16 * lane));
        return f;
    }
    __device__ static void codes(const Frag &f, int b, int term, uint32_t (&a)[8])
    {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t w = f.q[2 * b + (i & 1)][i >> 1];
            a[i] = high_pair(term_of(half_at(w, 0), 2, term), term_of(half_at(w, 1), 2, term));
        }
    }
    __device__ static float scale(const Frag &, int, int, int) { return 1; }
    __device__ static float min(const Frag &, int, int) { return 0; }
    __host__ __device__ static int fields(int) { return 4; }
    __host__ __device__ static Field field(int word, int i) { return half_field(word, i); }
};

struct FormatF32 {
    static constexpr int kType = SK_F32, kBlocks = 1, kGroup = 32, kTerms = 3, kWarps = 16;
    static constexpr bool kScaled = false, kMin = false;
    static constexpr int kUnitBytes = 2048, kRowBytes = 128;
    struct Frag {
        uint32_t q[4][4]; // [2 half + j]: elements 4j .. 4j + 3
    };
    __device__ static Frag load(const uint8_t *unit, int lane)
    {
        Frag f;
#pragma unroll
        for (int p = 0; p < 4; p++) unpack4(f.q[p], load16(unit + 512 * p + 16 * lane));
        return f;
    }
    __device__ static void codes(const Frag &f, int, int term, uint32_t (&a)[8])
    {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int pair = i >> 1;
            const uint32_t(&w)[4] = f.q[2 * (i & 1) + (pair >> 1)];
            a[i] = high_pair(term_of(__uint_as_float(w[2 * (pair & 1)]), 3, term),
                             term_of(__uint_as_float(w[2 * (pair & 1) + 1]), 3, term));
        }
    }
    __device__ static float scale(const Frag &, int, int, int) { return 1; }
    __device__ static float min(const Frag &, int, int) { return 0; }
    __host__ __device__ static int fields(int) { return 4; }
    __host__ __device__ static Field field(int word, int i)
    {
        const int plane = word >> 7, lane = (word & 127) >> 2, c = word & 3;
        const int elem = 8 * (lane & 3) + 4 * (plane & 1) + c;
        return {(lane >> 2) + 8 * (plane >> 1), 4 * elem + i, 0, 8, 8 * i};
    }
};

} // namespace sk
