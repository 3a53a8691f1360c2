/* What the formats of formats.cuh are made of: packed bits of numbers in pairs of BF16, loads, and
 * the order of a lane's elements. Everything that decodes also runs on the host, where
 * tests/c/test_formats.cpp holds it against the definition. */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "kernels/sk_kernels.h"

#ifdef __CUDA_ARCH__
#define SK_UNROLL _Pragma("unroll")
#else // unknown to the host's compiler
#define SK_UNROLL
#endif

namespace sk
{

/* Bits [shift, shift + bits) of file byte `byte` of row `row` (0..15) within the unit stand at `at`
 * of the packed word, those of `flip` inverted. With `parity` it is their parity that stands there:
 * derived, so unpacking leaves it out. */
struct Field {
    int32_t row, byte, shift, bits, at;
    uint32_t flip = 0;
    bool parity = false;
};

/* What packing puts into the word, out of the bytes at p. Only seven bits of a parity cross a byte.
 */
__host__ __device__ inline uint32_t field_packed(const uint8_t *p, const Field &f)
{
    uint32_t v = *p;
    if (f.parity && f.shift + f.bits > 8) v |= static_cast<uint32_t>(p[1]) << 8;
    v = ((v >> f.shift) ^ f.flip) & ((1u << f.bits) - 1u);
    if (!f.parity) return v << f.at;
    v ^= v >> 4;
    return ((0x6996u >> (v & 15u)) & 1u) << f.at;
}

/* What unpacking adds to the byte. */
__host__ __device__ inline uint32_t field_unpacked(uint32_t word, const Field &f)
{
    if (f.parity) return 0;
    return (((word >> f.at) ^ f.flip) & ((1u << f.bits) - 1u)) << f.shift;
}

/* ---- numbers and their bits --------------------------------------------------------------------
 */

__host__ __device__ inline float float_of(uint32_t bits)
{
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
#endif
}

__host__ __device__ inline uint32_t float_bits(float x)
{
#ifdef __CUDA_ARCH__
    return __float_as_uint(x);
#else
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
#endif
}

/* A multiply-add on pairs of BF16. On the host only for results that are BF16 numbers. */
__host__ __device__ inline uint32_t bf16x2_fma(uint32_t a, uint32_t b, uint32_t c)
{
#ifdef __CUDA_ARCH__
    uint32_t d;
    asm("{fma.rn.bf16x2 %0, %1, %2, %3;}" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
#else
    const float low = float_of(a << 16) * float_of(b << 16) + float_of(c << 16);
    const float high =
        float_of(a & 0xFFFF0000u) * float_of(b & 0xFFFF0000u) + float_of(c & 0xFFFF0000u);
    return float_bits(low) >> 16 | (float_bits(high) & 0xFFFF0000u);
#endif
}

/* compute_80 has no packed add of BF16, but the fused multiply-add, as exact here. */
__host__ __device__ inline uint32_t bf16x2_add(uint32_t a, uint32_t b)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    uint32_t d;
    asm("{add.rn.bf16x2 %0, %1, %2;}" : "=r"(d) : "r"(a), "r"(b));
    return d;
#else
    return bf16x2_fma(a, 0x3F803F80u, b);
#endif
}

/* X out of the compiler's sight: LOP3 takes one immediate, so for mask-and-or to be one instruction
 * the other has to come from a register. No kernel is launched with more than one layer of CTAs,
 * which the compiler cannot know; the number of layers lies where the kernel's arguments do, unlike
 * a constant of our own, whose first reading every short kernel would have to wait for. */
template <uint32_t X> __host__ __device__ inline uint32_t in_register()
{
#ifdef __CUDA_ARCH__
    return X - 1u + gridDim.z;
#else
    return X;
#endif
}

constexpr uint32_t kMagic128 = 0x43004300u; // | q: 128 + q, for q < 128
constexpr uint32_t kMinus128 = 0xC300C300u;
constexpr uint32_t kMinus129 = 0xC301C301u;
constexpr uint32_t kMinus132 = 0xC304C304u;
constexpr uint32_t kMinus136 = 0xC308C308u;
constexpr uint32_t kMinus144 = 0xC310C310u;
constexpr uint32_t kMinus160 = 0xC320C320u;

__host__ __device__ inline uint32_t magic128() { return in_register<kMagic128>(); }

/* An integer below 2^23, exactly, and cheaper than by a conversion; less `centre`. */
__host__ __device__ inline float small_float(uint32_t i, int centre = 0)
{
    return float_of(in_register<0x4B000000u>() | i) - (8388608.0f + static_cast<float>(centre));
}

__host__ __device__ inline float half_at(uint32_t word, int high)
{
    const __half h = __ushort_as_half(static_cast<unsigned short>(high ? word >> 16 : word));
    return __half2float(h);
}

/* Bytes of the selector's nibbles: 0..3 out of a, 4..7 out of b; 8 more: eight times the sign of
 * that byte. */
__host__ __device__ inline uint32_t byte_perm(uint32_t a, uint32_t b, uint32_t selector)
{
    uint32_t d = 0;
#ifdef __CUDA_ARCH__
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
#else
    const uint64_t both = a | static_cast<uint64_t>(b) << 32;
    for (int i = 0; i < 4; i++) {
        const uint32_t choice = selector >> (4 * i);
        uint32_t byte = static_cast<uint32_t>(both >> (8 * (choice & 7u))) & 0xFFu;
        if (choice & 8u) byte = byte >> 7 ? 0xFFu : 0;
        d |= byte << (8 * i);
    }
#endif
    return d;
}

/* Bits [pos, pos + bits) of the lane's words, counted through all of them, moved so that they begin
 * at bit `to`; the other bits are anything. One shift where all but the words is constant. */
__host__ __device__ inline uint32_t bits_at(const uint32_t *words, int pos, int bits, int to)
{
    const uint32_t *w = words + (pos >> 5);
    const int first = pos & 31, right = first - to;
    if (first + bits > 32) {
#ifdef __CUDA_ARCH__
        return __funnelshift_r(w[0], w[1], right);
#else
        return static_cast<uint32_t>((w[0] | static_cast<uint64_t>(w[1]) << 32) >> right);
#endif
    }
    return right >= 0 ? w[0] >> right : w[0] << -right;
}

/* Signs of a pair: pair p of a word of signs has them in bits 15 - p and 31 - p. */
__host__ __device__ inline uint32_t signed_pair(uint32_t pair, uint32_t signs, int p)
{
    return pair ^ ((signs << p) & 0x80008000u);
}

/* ---- loads -------------------------------------------------------------------------------------
 */

/* Plain loads: the assembler moves non-coherent ones behind the dependency wait, and being ahead of
 * it is what they are for. */
__device__ inline uint4 load16(const uint8_t *p)
{
#ifdef __CUDA_ARCH__
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
#else
    return *reinterpret_cast<const uint4 *>(p);
#endif
}

__device__ inline uint2 load8(const uint8_t *p)
{
#ifdef __CUDA_ARCH__
    uint2 v;
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
#else
    return *reinterpret_cast<const uint2 *>(p);
#endif
}

__device__ inline uint32_t load4(const uint8_t *p)
{
#ifdef __CUDA_ARCH__
    uint32_t v;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
#else
    return *reinterpret_cast<const uint32_t *>(p);
#endif
}

/* Where a packed unit is read from: a format's load() takes either. */
struct FromGlobal {
    const uint8_t *p;
    __device__ uint4 at16(int i) const { return load16(p + i); }
    __device__ uint2 at8(int i) const { return load8(p + i); }
    __device__ uint32_t at4(int i) const { return load4(p + i); }
};

/* Loads that the compiler may place where they are used; on the host, from memory. */
struct FromShared {
    const uint8_t *p;
    __host__ __device__ uint4 at16(int i) const { return *reinterpret_cast<const uint4 *>(p + i); }
    __host__ __device__ uint2 at8(int i) const { return *reinterpret_cast<const uint2 *>(p + i); }
    __host__ __device__ uint32_t at4(int i) const
    {
        return *reinterpret_cast<const uint32_t *>(p + i);
    }
};

/* Formats without a codebook take no table (table.cuh). */
struct NoTable {
    __host__ __device__ explicit NoTable(int = 0) {}
};

__host__ __device__ inline void unpack4(uint32_t (&to)[4], uint4 v)
{
    to[0] = v.x;
    to[1] = v.y;
    to[2] = v.z;
    to[3] = v.w;
}

/* Planes of 16 bytes a reader, one behind the other, into words[0 ..). */
template <int Planes, typename From>
__host__ __device__ inline void load_planes(uint32_t *words, From unit, int first, int stride,
                                            int reader)
{
    SK_UNROLL
    for (int p = 0; p < Planes; p++) {
        const uint4 v = unit.at16(first + stride * p + 16 * reader);
        words[4 * p] = v.x;
        words[4 * p + 1] = v.y;
        words[4 * p + 2] = v.z;
        words[4 * p + 3] = v.w;
    }
}

/* ---- order -------------------------------------------------------------------------------------
 */

/* The nibble word of a row: pair i (elements 2i and 2i + 1 of the lane's eight) at bits 4i, 16 +
 * 4i. */
__host__ __device__ inline uint32_t nibble_pair(uint32_t word, int i, uint32_t magic)
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
struct ElemAt {
    int row, block, elem, at;
};

template <int Group> __host__ __device__ inline ElemAt nibble_at(int word, int i)
{
    const int lane = word >> 2, c = word & 3;
    const int j = 2 * (i & 3) + (i >> 2);
    return {(lane >> 2) + 8 * (c & 1), c >> 1, elem_in_block<Group>(lane & 3, j),
            4 * (i & 3) + 16 * (i >> 2)};
}

/* Two bits of each element of a unit of eight blocks, 256 words. Word c of plane b >> 2 of a lane:
 * row half c >> 1, blocks 2 (c & 1) and on of the plane; pair p of block b at bits 2n and 16 + 2n,
 * n = 4 (b & 1) + p. */
template <int Group> __host__ __device__ inline ElemAt two_bits_at(int word, int i)
{
    const int lane = (word & 127) >> 2, c = word & 3;
    const int block = 4 * (word >> 7) + 2 * (c & 1) + ((i & 7) >> 2);
    return {(lane >> 2) + 8 * (c >> 1), block,
            elem_in_block<Group>(lane & 3, 2 * (i & 3) + (i >> 3)), 2 * (i & 7) + 16 * (i >> 3)};
}

/* The word of block b in it. */
__host__ __device__ inline uint32_t two_bits_word(const uint32_t (&q)[2][4], int b, int half)
{
    return q[b >> 2][2 * half + ((b >> 1) & 1)];
}

/* x shifted so that its bit `from` comes to be bit `to`. */
__host__ __device__ inline uint32_t move_bit(uint32_t x, int from, int to)
{
    return from >= to ? x >> (from - to) : x << (to - from);
}

/* Two planes of bytes, one a block of `bytes` bytes whose elements begin at `first`. Word 2 half +
 * j of a lane has its elements 4j, 4j + 2, 4j + 1, 4j + 3. */
__host__ __device__ inline Field byte_field(int word, int i, int bytes, int first)
{
    const int lane = (word & 127) >> 2, c = word & 3;
    const int elem = 8 * (lane & 3) + 4 * (c & 1) + (i >> 1) + 2 * (i & 1);
    return {(lane >> 2) + 8 * (c >> 1), (word >> 7) * bytes + first + elem, 0, 8, 8 * i};
}

/* Field i of four of a word that holds two bytes of row g and two of row g + 8, at `byte` of the
 * rows: one binary16 of each. */
__host__ __device__ inline Field half_pair_field(int g, int i, int byte)
{
    return {g + 8 * (i >> 1), byte + (i & 1), 0, 8, 8 * i};
}

} // namespace sk
