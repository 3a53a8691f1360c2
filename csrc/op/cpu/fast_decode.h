/* Decoding of weight groups into vector registers, for AVX2. Same codes, scales and minima as
 * sk_quant_group, to the bit. `type` is a constant at every call, so each switch disappears.
 *
 * A *block* here is the unit that carries its scales together: one group for types with blocks of
 * 32 (and for plain types, whose block is a group of 32 elements), 256 elements otherwise. */
#ifndef SK_CPU_FAST_DECODE_H
#define SK_CPU_FAST_DECODE_H

#include "op/cpu/fast.h"

#if SK_HAVE_AVX2
#include <immintrin.h>
#include <string.h>

#define SK_BLOCK_GROUPS_MAX 16

/* Types that have a vector decoder. */
static inline bool sk_fast_has(sk_dtype type)
{
    switch (type) {
    case SK_F32:
    case SK_F16:
    case SK_BF16:
    case SK_Q4_0:
    case SK_Q4_1:
    case SK_Q5_0:
    case SK_Q5_1:
    case SK_Q8_0:
    case SK_Q4_K:
    case SK_Q5_K:
    case SK_Q6_K:
        return true;
    default:
        return false;
    }
}

SK_INLINE int64_t sk_fast_group_vectors(sk_dtype type) { return type == SK_Q6_K ? 2 : 4; }

SK_INLINE int64_t sk_fast_block_groups(sk_dtype type)
{
    return type == SK_Q6_K ? 16 : type == SK_Q4_K || type == SK_Q5_K ? 8 : 1;
}

SK_INLINE bool sk_fast_has_min(sk_dtype type)
{
    return type == SK_Q4_1 || type == SK_Q5_1 || type == SK_Q4_K || type == SK_Q5_K;
}

SK_INLINE int64_t sk_fast_block_bytes(sk_dtype type)
{
    switch (type) {
    case SK_F32:
        return 128;
    case SK_F16:
    case SK_BF16:
        return 64;
    case SK_Q4_0:
        return 18;
    case SK_Q4_1:
        return 20;
    case SK_Q5_0:
        return 22;
    case SK_Q5_1:
        return 24;
    case SK_Q8_0:
        return 34;
    case SK_Q4_K:
        return 144;
    case SK_Q5_K:
        return 176;
    default:
        return 210; // Q6_K
    }
}

/* sk_tree8 of eight lanes. */
SK_INLINE float sk_fast_tree8(__m256 acc)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(acc), _mm256_extractf128_ps(acc, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

SK_INLINE float sk_fast_f16(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return _cvtsh_ss(h);
}

SK_INLINE uint32_t sk_fast_u32(const uint8_t *p)
{
    uint32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

SK_INLINE __m128i sk_fast_load16(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

/* Four bytes a lane to eight floats. */
SK_INLINE __m256 sk_fast_bytes8(__m128i bytes)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}

/* 12 bytes of six-bit scales and minima: eight scales, then eight minima, a byte each. The words
 * hold what k_scale of quant.c takes apart one by one. */
SK_INLINE void sk_fast_k_scales(const uint8_t *b, float *scale, float *min)
{
    uint32_t w0 = sk_fast_u32(b + 4);
    uint32_t w1 = sk_fast_u32(b + 8);
    uint32_t w2 = sk_fast_u32(b + 12);
    uint32_t s_lo = w0 & 0x3f3f3f3fu;
    uint32_t m_lo = w1 & 0x3f3f3f3fu;
    uint32_t s_hi = (w2 & 0x0f0f0f0fu) | ((w0 >> 6) & 0x03030303u) << 4;
    uint32_t m_hi = ((w2 >> 4) & 0x0f0f0f0fu) | ((w1 >> 6) & 0x03030303u) << 4;
    __m128i s = _mm_cvtsi64_si128((int64_t)((uint64_t)s_hi << 32 | s_lo));
    __m128i m = _mm_cvtsi64_si128((int64_t)((uint64_t)m_hi << 32 | m_lo));
    __m256 d = _mm256_set1_ps(sk_fast_f16(b));
    __m256 d_min = _mm256_set1_ps(sk_fast_f16(b + 2));
    __m256 minus = _mm256_set1_ps(-0.0f);
    _mm256_storeu_ps(scale, _mm256_mul_ps(d, sk_fast_bytes8(s)));
    _mm256_storeu_ps(min, _mm256_xor_ps(minus, _mm256_mul_ps(d_min, sk_fast_bytes8(m))));
}

/* Scales and minima of the groups of the block at b, for types whose block has several groups. */
SK_INLINE void sk_fast_scales(sk_dtype type, const uint8_t *b, float *scale, float *min)
{
    if (type == SK_Q4_K || type == SK_Q5_K) {
        sk_fast_k_scales(b, scale, min);
    } else if (type == SK_Q6_K) {
        __m128i s = sk_fast_load16(b + 192);
        __m256 d = _mm256_set1_ps(sk_fast_f16(b + 208));
        _mm256_storeu_ps(scale, _mm256_mul_ps(d, sk_fast_bytes8(s)));
        _mm256_storeu_ps(scale + 8, _mm256_mul_ps(d, sk_fast_bytes8(_mm_srli_si128(s, 8))));
    }
}

/* Scale of the only group of the block at b in every lane, and its minimum. Two halves are
 * converted at once; where the second one is no minimum, it is not looked at. */
SK_INLINE __m256 sk_fast_scale(sk_dtype type, const uint8_t *b, float *min)
{
    __m256 pairs;
    if (type == SK_F32 || type == SK_F16 || type == SK_BF16) return _mm256_set1_ps(1);
    pairs = _mm256_cvtph_ps(_mm_set1_epi32((int32_t)sk_fast_u32(b)));
    *min = _mm_cvtss_f32(_mm_movehdup_ps(_mm256_castps256_ps128(pairs)));
    return _mm256_moveldup_ps(pairs);
}

/* Eight bytes, one a lane. From memory, because shuffles are what decoding runs out of. */
SK_INLINE __m256i sk_fast_lanes8(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

SK_INLINE __m256i sk_fast_low(__m256i lanes)
{
    return _mm256_and_si256(lanes, _mm256_set1_epi32(15));
}

SK_INLINE __m256i sk_fast_high(__m256i lanes) { return _mm256_srli_epi32(lanes, 4); }

/* 16 bytes: elements 0..15 in the low halves, 16..31 in the high ones. */
SK_INLINE void sk_fast_halves(const uint8_t *q, __m256i *code)
{
    __m256i a = sk_fast_lanes8(q);
    __m256i b = sk_fast_lanes8(q + 8);
    code[0] = sk_fast_low(a);
    code[1] = sk_fast_low(b);
    code[2] = sk_fast_high(a);
    code[3] = sk_fast_high(b);
}

/* Ors the fifth bit of element j, bit j of the word at p, into the codes. */
SK_INLINE void sk_fast_fifth_bits(const uint8_t *p, __m256i *code)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i bit = _mm256_set1_epi32(16);
    __m256i word = _mm256_set1_epi32((int32_t)sk_fast_u32(p));
    __m256i up = _mm256_slli_epi32(word, 4); // bits 0 .. 27 can be shifted down from here
    SK_UNROLL
    for (int v = 0; v < 3; v++) {
        __m256i by = _mm256_add_epi32(lane, _mm256_set1_epi32(8 * v));
        code[v] = _mm256_or_si256(code[v], _mm256_and_si256(_mm256_srlv_epi32(up, by), bit));
    }
    code[3] = _mm256_or_si256(
        code[3], _mm256_and_si256(
                     _mm256_srlv_epi32(word, _mm256_add_epi32(lane, _mm256_set1_epi32(20))), bit));
}

/* n vectors of codes less `centre` as floats. */
SK_INLINE void sk_fast_floats(const __m256i *code, int n, int32_t centre, __m256 *out)
{
    SK_UNROLL
    for (int v = 0; v < n; v++)
        out[v] = _mm256_cvtepi32_ps(centre ? _mm256_sub_epi32(code[v], _mm256_set1_epi32(centre))
                                           : code[v]);
}

/* 32 codes of sub-block i of a block of Q4_K, or of Q5_K, whose fifth bits are bit i of `fifth`. */
SK_INLINE void sk_fast_k_codes(const uint8_t *q, const uint8_t *fifth, int64_t i, __m256i *code)
{
    q += 32 * (i / 2);
    SK_UNROLL
    for (int v = 0; v < 4; v++) {
        __m256i lanes = sk_fast_lanes8(q + 8 * v);
        code[v] = i % 2 ? sk_fast_high(lanes) : sk_fast_low(lanes);
        if (fifth) {
            lanes = sk_fast_lanes8(fifth + 8 * v);
            lanes = i < 4 ? _mm256_slli_epi32(lanes, (int)(4 - i))
                          : _mm256_srli_epi32(lanes, (int)(i - 4));
            code[v] = _mm256_or_si256(code[v], _mm256_and_si256(lanes, _mm256_set1_epi32(16)));
        }
    }
}

/* 16 codes (not yet centred) of group i of a block of Q6_K, as q6_k_group of quant.c. */
SK_INLINE void sk_fast_q6_k(const uint8_t *b, int64_t i, __m256i *code)
{
    int64_t r = 16 * (i & 7);
    int k = (int)(r / 32); // the pair of bits in the upper bytes
    SK_UNROLL
    for (int v = 0; v < 2; v++) {
        __m256i lo = sk_fast_lanes8(b + 64 * (i / 8) + r % 64 + 8 * v);
        __m256i hi = sk_fast_lanes8(b + 128 + 32 * (i / 8) + r % 32 + 8 * v);
        lo = r < 64 ? sk_fast_low(lo) : sk_fast_high(lo);
        hi = k < 2 ? _mm256_slli_epi32(hi, 4 - 2 * k) : _mm256_srli_epi32(hi, 2 * k - 4);
        code[v] = _mm256_or_si256(lo, _mm256_and_si256(hi, _mm256_set1_epi32(48)));
    }
}

/* Codes of group i of the block at b: sk_fast_group_vectors(type) vectors. */
SK_INLINE void sk_fast_codes(sk_dtype type, const uint8_t *b, int64_t i, __m256 *out)
{
    __m256i code[4];
    switch (type) {
    case SK_F32:
        SK_UNROLL
        for (int v = 0; v < 4; v++)
            out[v] = _mm256_loadu_ps((const float *)(const void *)(b + 32 * v));
        break;
    case SK_F16:
        SK_UNROLL
        for (int v = 0; v < 4; v++) out[v] = _mm256_cvtph_ps(sk_fast_load16(b + 16 * v));
        break;
    case SK_BF16:
        SK_UNROLL
        for (int v = 0; v < 4; v++)
            out[v] = _mm256_castsi256_ps(
                _mm256_slli_epi32(_mm256_cvtepu16_epi32(sk_fast_load16(b + 16 * v)), 16));
        break;
    case SK_Q4_0:
        sk_fast_halves(b + 2, code);
        sk_fast_floats(code, 4, 8, out);
        break;
    case SK_Q4_1:
        sk_fast_halves(b + 4, code);
        sk_fast_floats(code, 4, 0, out);
        break;
    case SK_Q5_0:
        sk_fast_halves(b + 6, code);
        sk_fast_fifth_bits(b + 2, code);
        sk_fast_floats(code, 4, 16, out);
        break;
    case SK_Q5_1:
        sk_fast_halves(b + 8, code);
        sk_fast_fifth_bits(b + 4, code);
        sk_fast_floats(code, 4, 0, out);
        break;
    case SK_Q8_0:
        SK_UNROLL
        for (int v = 0; v < 4; v++)
            out[v] =
                sk_fast_bytes8(_mm_loadl_epi64((const __m128i *)(const void *)(b + 2 + 8 * v)));
        break;
    case SK_Q4_K:
        sk_fast_k_codes(b + 16, NULL, i, code);
        sk_fast_floats(code, 4, 0, out);
        break;
    case SK_Q5_K:
        sk_fast_k_codes(b + 48, b + 16, i, code);
        sk_fast_floats(code, 4, 0, out);
        break;
    default:
        sk_fast_q6_k(b, i, code);
        sk_fast_floats(code, 2, 32, out);
        break;
    }
}
#endif

#endif
