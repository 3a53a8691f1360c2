/* Decoding of weight groups into vector registers, for AVX2. Same codes, scales and minima as
 * sk_quant_group, to the bit. `type` is a constant at every call, so each switch disappears.
 *
 * A *block* here is the unit that carries its scales together: one group for types with blocks of
 * 32 (and for plain types, whose block is a group of 32 elements), 256 elements otherwise. */
#ifndef SK_CPU_FAST_DECODE_H
#define SK_CPU_FAST_DECODE_H

#include "op/cpu/fast_iq.h"
#include "op/cpu/fast_lanes.h"

#if SK_HAVE_AVX2

#define SK_BLOCK_GROUPS_MAX 16

/* Types that have a vector decoder: all but the integers, F64 and what is no weight. */
#define SK_FAST_TYPES(X)                                                                           \
    X(F32)                                                                                         \
    X(F16)                                                                                         \
    X(BF16)                                                                                        \
    X(Q4_0)                                                                                        \
    X(Q4_1)                                                                                        \
    X(Q5_0)                                                                                        \
    X(Q5_1)                                                                                        \
    X(Q8_0)                                                                                        \
    X(Q2_K)                                                                                        \
    X(Q3_K)                                                                                        \
    X(Q4_K)                                                                                        \
    X(Q5_K)                                                                                        \
    X(Q6_K)                                                                                        \
    X(IQ1_S)                                                                                       \
    X(IQ1_M)                                                                                       \
    X(IQ2_XXS)                                                                                     \
    X(IQ2_XS)                                                                                      \
    X(IQ2_S)                                                                                       \
    X(IQ3_XXS)                                                                                     \
    X(IQ3_S)                                                                                       \
    X(IQ4_NL)                                                                                      \
    X(IQ4_XS)                                                                                      \
    X(TQ1_0)                                                                                       \
    X(TQ2_0)                                                                                       \
    X(MXFP4)                                                                                       \
    X(NVFP4)                                                                                       \
    X(Q1_0)                                                                                        \
    X(Q2_0)

static inline bool sk_fast_has(sk_dtype type)
{
    switch (type) {
#define X(name) case SK_##name:
        SK_FAST_TYPES(X)
#undef X
        return true;
    default:
        return false;
    }
}

SK_INLINE int64_t sk_fast_group_vectors(sk_dtype type)
{
    switch (type) {
    case SK_Q2_K:
    case SK_Q3_K:
    case SK_Q6_K:
    case SK_IQ1_M:
    case SK_IQ2_XS:
    case SK_IQ2_S:
    case SK_NVFP4:
        return 2;
    default:
        return 4;
    }
}

SK_INLINE bool sk_fast_has_min(sk_dtype type)
{
    return type == SK_Q4_1 || type == SK_Q5_1 || type == SK_Q2_K || type == SK_Q4_K ||
           type == SK_Q5_K;
}

SK_INLINE int64_t sk_fast_block_bytes(sk_dtype type)
{
    switch (type) {
#define X(name, id, elems, bytes)                                                                  \
    case SK_##name:                                                                                \
        return (elems) == 1 ? SK_GROUP_MAX * (bytes) : (bytes);
        SK_DTYPES(X)
#undef X
    default:
        return 0;
    }
}

SK_INLINE int64_t sk_fast_block_groups(sk_dtype type)
{
    switch (type) {
#define X(name, id, elems, bytes)                                                                  \
    case SK_##name:                                                                                \
        return (elems) == 1 ? 1 : (elems) / (8 * sk_fast_group_vectors(type));
        SK_DTYPES(X)
#undef X
    default:
        return 1;
    }
}

/* 12 bytes of six-bit scales and minima: eight scales, then eight minima, a byte each. The words
 * hold what k_scale of quant_k.c takes apart one by one. */
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

SK_INLINE void sk_fast_q2_k_scales(const uint8_t *b, float *scale, float *min)
{
    __m256 minus = _mm256_set1_ps(-0.0f);
    SK_UNROLL
    for (int v = 0; v < 16; v += 8) {
        __m256i lanes = sk_fast_lanes8(b + v);
        sk_fast_put_scales(scale + v, sk_fast_f16(b + 80), sk_fast_low(lanes));
        sk_fast_put_scales(min + v, sk_fast_f16(b + 82), sk_fast_high(lanes));
        _mm256_storeu_ps(min + v, _mm256_xor_ps(minus, _mm256_loadu_ps(min + v)));
    }
}

/* Four bits out of eight bytes, and two bits out of four bytes, that change lane by lane. */
SK_INLINE void sk_fast_q3_k_scales(const uint8_t *b, float *scale)
{
    const __m256i by = _mm256_setr_epi32(0, 8, 16, 24, 2, 10, 18, 26);
    __m256i lanes = sk_fast_lanes8(b + 96);
    __m256i pairs = _mm256_srlv_epi32(_mm256_set1_epi32((int32_t)sk_fast_u32(b + 104)), by);
    SK_UNROLL
    for (int v = 0; v < 2; v++) {
        __m256i hi =
            _mm256_and_si256(v ? _mm256_srli_epi32(pairs, 4) : pairs, _mm256_set1_epi32(3));
        __m256i s =
            _mm256_or_si256(v ? sk_fast_high(lanes) : sk_fast_low(lanes), _mm256_slli_epi32(hi, 4));
        sk_fast_put_scales(scale + 8 * v, sk_fast_f16(b + 108),
                           _mm256_sub_epi32(s, _mm256_set1_epi32(32)));
    }
}

/* Four bytes as half_ue4m3 of quant_simple.c. */
SK_INLINE void sk_fast_nvfp4_scales(const uint8_t *b, float *scale)
{
    __m128i x = _mm_cvtepu8_epi32(_mm_cvtsi32_si128((int32_t)sk_fast_u32(b)));
    __m128i seven = _mm_and_si128(x, _mm_set1_epi32(127));
    __m128i bits = _mm_add_epi32(_mm_slli_epi32(seven, 20), _mm_set1_epi32(119 << 23));
    __m128 small = _mm_mul_ps(_mm_cvtepi32_ps(seven), _mm_set1_ps(0x1p-10f));
    __m128i is_small = _mm_cmplt_epi32(seven, _mm_set1_epi32(8));
    __m128i is_none = _mm_cmpeq_epi32(x, _mm_set1_epi32(127));
    __m128 y = _mm_blendv_ps(_mm_castsi128_ps(bits), small, _mm_castsi128_ps(is_small));
    _mm_storeu_ps(scale, _mm_andnot_ps(_mm_castsi128_ps(is_none), y));
}

/* Scales and minima of the groups of the block at b, for types whose block has several groups. */
SK_INLINE void sk_fast_scales(sk_dtype type, const uint8_t *b, float *scale, float *min)
{
    switch (type) {
    case SK_Q2_K:
        sk_fast_q2_k_scales(b, scale, min);
        break;
    case SK_Q3_K:
        sk_fast_q3_k_scales(b, scale);
        break;
    case SK_Q4_K:
    case SK_Q5_K:
        sk_fast_k_scales(b, scale, min);
        break;
    case SK_Q6_K: {
        __m128i s = sk_fast_load16(b + 192);
        __m256 d = _mm256_set1_ps(sk_fast_f16(b + 208));
        _mm256_storeu_ps(scale, _mm256_mul_ps(d, sk_fast_bytes8(s)));
        _mm256_storeu_ps(scale + 8, _mm256_mul_ps(d, sk_fast_bytes8(_mm_srli_si128(s, 8))));
        break;
    }
    case SK_TQ1_0:
        _mm256_storeu_ps(scale, _mm256_set1_ps(sk_fast_f16(b + 52)));
        break;
    case SK_TQ2_0:
        _mm256_storeu_ps(scale, _mm256_set1_ps(sk_fast_f16(b + 64)));
        break;
    case SK_NVFP4:
        sk_fast_nvfp4_scales(b, scale);
        break;
    case SK_Q1_0:
        _mm_storeu_ps(scale, _mm_set1_ps(sk_fast_f16(b)));
        break;
    case SK_Q2_0:
        scale[0] = scale[1] = sk_fast_f16(b);
        break;
    default:
        sk_fast_iq_scales(type, b, scale);
        break;
    }
}

/* Scale of the only group of the block at b in every lane, and its minimum. Two halves are
 * converted at once; where the second one is no minimum, it is not looked at. */
SK_INLINE __m256 sk_fast_scale(sk_dtype type, const uint8_t *b, float *min)
{
    __m128 pair;
    if (type == SK_F32 || type == SK_F16 || type == SK_BF16) return _mm256_set1_ps(1);
    if (type == SK_MXFP4) { // half_e8m0 of quant_simple.c
        uint32_t bits = b[0] < 2 ? 0x200000u << b[0] : (b[0] - 1u) << 23;
        return _mm256_castsi256_ps(_mm256_set1_epi32((int32_t)bits));
    }
    pair = _mm_cvtph_ps(_mm_cvtsi32_si128((int32_t)sk_fast_u32(b)));
    *min = _mm_cvtss_f32(_mm_movehdup_ps(pair));
    return _mm256_broadcastss_ps(pair);
}

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

/* 16 codes (not yet centred) of group i of a block of Q6_K, as q6_k_group of quant_k.c. */
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

/* 16 codes (not yet centred) of group i of a block of Q3_K: pairs of bits, and 4 for a set bit of
 * the mask. */
SK_INLINE void sk_fast_q3_k(const uint8_t *b, int64_t i, __m256i *code)
{
    SK_UNROLL
    for (int v = 0; v < 2; v++) {
        __m256i pairs = sk_fast_lanes8(b + 32 + 32 * (i / 8) + 16 * (i % 2) + 8 * v);
        __m256i mask = sk_fast_lanes8(b + 16 * (i % 2) + 8 * v);
        pairs = _mm256_and_si256(sk_fast_down(pairs, 2 * (i % 8 / 2)), _mm256_set1_epi32(3));
        mask = sk_fast_down(_mm256_slli_epi32(mask, 2), i / 2);
        code[v] = _mm256_or_si256(pairs, _mm256_and_si256(mask, _mm256_set1_epi32(4)));
    }
}

/* Eight base-3 digits (not yet centred) of bytes already multiplied to have them on top. */
SK_INLINE __m256i sk_fast_digits(__m256i bytes, __m256i power)
{
    __m256i x = _mm256_and_si256(_mm256_mullo_epi16(bytes, power), _mm256_set1_epi32(255));
    return _mm256_srli_epi32(_mm256_add_epi32(x, _mm256_slli_epi32(x, 1)), 8);
}

/* Group i of a block of TQ1_0, as tq1_0_codes of quant_simple.c. */
SK_INLINE void sk_fast_tq1_0(const uint8_t *b, int64_t i, __m256i *code)
{
    static const int32_t power[6] = {1, 3, 9, 27, 81, 0};
    SK_UNROLL
    for (int v = 0; v < 4; v++) {
        int64_t half = 2 * (i - 5) + v / 2; // 16 elements of the upper part, from 160 on
        if (i < 5) {
            code[v] = sk_fast_digits(sk_fast_lanes8(b + 8 * v), _mm256_set1_epi32(power[i]));
        } else if (half < 5) {
            code[v] = sk_fast_digits(sk_fast_lanes8(b + 32 + 8 * (v % 2)),
                                     _mm256_set1_epi32(power[half]));
        } else {
            __m128i four = _mm_set1_epi32((int32_t)sk_fast_u32(b + 48));
            __m256i by = v % 2 ? _mm256_setr_epi32(9, 9, 9, 9, 27, 27, 27, 27)
                               : _mm256_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3);
            code[v] = sk_fast_digits(_mm256_cvtepu8_epi32(four), by);
        }
    }
}

/* 32 bits to -1 and 1. */
SK_INLINE void sk_fast_q1_0(const uint8_t *q, __m256 *out)
{
    __m256i minus = _mm256_set1_epi32((int32_t)~sk_fast_u32(q));
    SK_UNROLL
    for (int v = 0; v < 4; v++) out[v] = sk_fast_negate(_mm256_set1_ps(1), minus, v);
}

/* n vectors of pairs of bits that are `by` bits up in each byte. */
SK_INLINE void sk_fast_pairs(const uint8_t *q, int n, int64_t by, __m256i *code)
{
    SK_UNROLL
    for (int v = 0; v < n; v++)
        code[v] =
            _mm256_and_si256(sk_fast_down(sk_fast_lanes8(q + 8 * v), by), _mm256_set1_epi32(3));
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
    case SK_Q6_K:
        sk_fast_q6_k(b, i, code);
        sk_fast_floats(code, 2, 32, out);
        break;
    case SK_Q2_K:
        sk_fast_pairs(b + 16 + 32 * (i / 8) + 16 * (i % 2), 2, 2 * (i % 8 / 2), code);
        sk_fast_floats(code, 2, 0, out);
        break;
    case SK_Q3_K:
        sk_fast_q3_k(b, i, code);
        sk_fast_floats(code, 2, 4, out);
        break;
    case SK_TQ1_0:
        sk_fast_tq1_0(b, i, code);
        sk_fast_floats(code, 4, 1, out);
        break;
    case SK_TQ2_0:
        sk_fast_pairs(b + 32 * (i / 4), 4, 2 * (i % 4), code);
        sk_fast_floats(code, 4, 1, out);
        break;
    case SK_Q1_0:
        sk_fast_q1_0(b + 2 + 4 * i, out);
        break;
    case SK_Q2_0: {
        __m256i one = _mm256_set1_epi32(1);
        SK_UNROLL
        for (int v = 0; v < 4; v++) {
            __m256i pairs = sk_fast_fields(sk_fast_u16(b + 2 + 8 * i + 2 * v), 2);
            pairs = _mm256_and_si256(pairs, _mm256_set1_epi32(3));
            out[v] = _mm256_cvtepi32_ps(_mm256_sub_epi32(pairs, one));
        }
        break;
    }
    case SK_IQ4_NL:
        sk_fast_look_up(b + 2, sk_iq4_values, out);
        break;
    case SK_MXFP4:
        sk_fast_look_up(b + 1, sk_fp4_values, out);
        break;
    case SK_NVFP4:
        sk_fast_look_up8(b + 4 + 8 * i, sk_fp4_values, out);
        break;
    default:
        sk_fast_iq_codes(type, b, i, out);
        break;
    }
}
#endif

#endif
