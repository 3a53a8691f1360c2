/* Moving bytes and fields of bits into eight lanes of AVX2: what the vector decoders share. */
#ifndef SK_CPU_FAST_LANES_H
#define SK_CPU_FAST_LANES_H

#include "op/cpu/exp.h"
#include "op/cpu/fast.h"

#if SK_HAVE_AVX2
#include <immintrin.h>
#include <string.h>

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

SK_INLINE uint32_t sk_fast_u16(const uint8_t *p)
{
    uint16_t x;
    memcpy(&x, p, sizeof x);
    return x;
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

/* Lanes shifted down by a number that is the same for all: in a register or in the instruction. */
SK_INLINE __m256i sk_fast_down(__m256i lanes, int64_t by)
{
    return _mm256_srl_epi32(lanes, _mm_cvtsi64_si128(by));
}

/* Field number i of a word, `bits` wide, in lane i: the lanes hold higher fields as well. */
SK_INLINE __m256i sk_fast_fields(uint32_t word, int bits)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i by = bits == 4   ? _mm256_slli_epi32(lane, 2)
                 : bits == 2 ? _mm256_slli_epi32(lane, 1)
                             : lane;
    return _mm256_srlv_epi32(_mm256_set1_epi32((int32_t)word), by);
}

/* n vectors of codes less `centre` as floats. */
SK_INLINE void sk_fast_floats(const __m256i *code, int n, int32_t centre, __m256 *out)
{
    SK_UNROLL
    for (int v = 0; v < n; v++)
        out[v] = _mm256_cvtepi32_ps(centre ? _mm256_sub_epi32(code[v], _mm256_set1_epi32(centre))
                                           : code[v]);
}

/* Eight scales: d times the integers. */
SK_INLINE void sk_fast_put_scales(float *scale, float d, __m256i times)
{
    _mm256_storeu_ps(scale, _mm256_mul_ps(_mm256_set1_ps(d), _mm256_cvtepi32_ps(times)));
}

/* Bit 8v + k of `signs`, which is in all lanes, negates lane k of vector v of a group. */
SK_INLINE __m256 sk_fast_negate(__m256 x, __m256i signs, int v)
{
    const __m256i last = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
    __m256i top = _mm256_sllv_epi32(signs, _mm256_sub_epi32(last, _mm256_set1_epi32(8 * v)));
    return _mm256_xor_ps(x, _mm256_and_ps(_mm256_castsi256_ps(top), _mm256_set1_ps(-0.0f)));
}

/* sk_exp of eight lanes. */
SK_INLINE __m256 sk_fast_exp(__m256 x)
{
    static const float term[] = SK_EXP_TERMS;
    const __m256 magic = _mm256_set1_ps(SK_EXP_MAGIC);
    __m256 p = _mm256_set1_ps(term[0]);
    __m256 n, r;
    __m256i k, half;
    x = _mm256_min_ps(_mm256_set1_ps(SK_EXP_MAX), _mm256_max_ps(_mm256_set1_ps(SK_EXP_MIN), x));
    n = _mm256_sub_ps(_mm256_fmadd_ps(x, _mm256_set1_ps(SK_EXP_LOG2E), magic), magic);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-SK_EXP_LN2_A), x); // NaN where x is: min and max keep it
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-SK_EXP_LN2_B), r);
    SK_UNROLL
    for (int i = 1; i < 8; i++) p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(term[i]));
    k = _mm256_cvtps_epi32(n);
    half = _mm256_srai_epi32(k, 1);
    k = _mm256_sub_epi32(k, half);
    half = _mm256_slli_epi32(_mm256_add_epi32(half, _mm256_set1_epi32(127)), 23);
    k = _mm256_slli_epi32(_mm256_add_epi32(k, _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(half)), _mm256_castsi256_ps(k));
}

/* sk_f32_to_bf16 of eight lanes. */
SK_INLINE __m128i sk_fast_to_bf16(__m256 x)
{
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256 is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    up = _mm256_blendv_epi8(up, quiet, _mm256_castps_si256(is_nan));
    up = _mm256_srli_epi32(up, 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(up), _mm256_extracti128_si256(up, 1));
}

/* 16 bytes of half-bytes through a table of 16 values: the low halves, then the high ones. */
SK_INLINE void sk_fast_look_up(const uint8_t *q, const int8_t *values, __m256 *out)
{
    const __m128i low = _mm_set1_epi8(15);
    __m128i table = sk_fast_load16((const uint8_t *)values);
    __m128i bytes = sk_fast_load16(q);
    __m128i a = _mm_shuffle_epi8(table, _mm_and_si128(bytes, low));
    __m128i b = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(bytes, 4), low));
    out[0] = sk_fast_bytes8(a);
    out[1] = sk_fast_bytes8(_mm_srli_si128(a, 8));
    out[2] = sk_fast_bytes8(b);
    out[3] = sk_fast_bytes8(_mm_srli_si128(b, 8));
}

/* The same for eight bytes. */
SK_INLINE void sk_fast_look_up8(const uint8_t *q, const int8_t *values, __m256 *out)
{
    const __m128i low = _mm_set1_epi8(15);
    __m128i table = sk_fast_load16((const uint8_t *)values);
    __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)q);
    out[0] = sk_fast_bytes8(_mm_shuffle_epi8(table, _mm_and_si128(bytes, low)));
    bytes = _mm_srli_epi16(bytes, 4);
    out[1] = sk_fast_bytes8(_mm_shuffle_epi8(table, _mm_and_si128(bytes, low)));
}
#endif

#endif
