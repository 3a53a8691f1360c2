/* Vector decoders of the codebook formats; see fast_decode.h. A grid entry is spread by shifts: its
 * two- or four-bit fields go to a lane each and choose there among the values of the grid, which
 * are a register. So the tables of base/codebooks.h are used as they are, packed. */
#ifndef SK_CPU_FAST_IQ_H
#define SK_CPU_FAST_IQ_H

#include "base/codebooks.h"
#include "op/cpu/fast_lanes.h"

#if SK_HAVE_AVX2

SK_INLINE __m256 sk_fast_twice(const float *four)
{
    __m128 x = _mm_loadu_ps(four);
    return _mm256_set_m128(x, x);
}

/* Eight components of the entry at p; four bytes can be read there. */
SK_INLINE __m256 sk_fast_octet(const uint16_t *p, __m256 values)
{
    uint32_t entry = sk_fast_u32((const uint8_t *)(const void *)p);
    return _mm256_permutevar_ps(values, sk_fast_fields(entry, 2));
}

/* Eight components of two entries. */
SK_INLINE __m256 sk_fast_quartets(uint32_t lo, uint32_t hi, __m256 values)
{
    return _mm256_permutevar8x32_ps(values, sk_fast_fields(lo | hi << 16, 4));
}

/* The four sign bytes that the lower 28 bits of w stand for. */
SK_INLINE __m256i sk_fast_signs28(uint32_t w)
{
    uint32_t s = sk_iq_signs[w & 127] | (uint32_t)sk_iq_signs[w >> 7 & 127] << 8 |
                 (uint32_t)sk_iq_signs[w >> 14 & 127] << 16 |
                 (uint32_t)sk_iq_signs[w >> 21 & 127] << 24;
    return _mm256_set1_epi32((int32_t)s);
}

/* ---- scales ---------------------------------------------------------------------------------- */

/* Eight scales d * (0.5 + n) * step. */
SK_INLINE void sk_fast_half_steps(float *scale, float d, __m256i n, float step)
{
    __m256 s = _mm256_add_ps(_mm256_cvtepi32_ps(n), _mm256_set1_ps(0.5f));
    s = _mm256_mul_ps(_mm256_mul_ps(_mm256_set1_ps(d), s), _mm256_set1_ps(step));
    _mm256_storeu_ps(scale, s);
}

/* Eight scales d * (1 + 2n). */
SK_INLINE void sk_fast_odd_steps(float *scale, float d, __m256i n)
{
    __m256i odd = _mm256_add_epi32(_mm256_add_epi32(n, n), _mm256_set1_epi32(1));
    sk_fast_put_scales(scale, d, odd);
}

/* 16 half-bytes, for IQ2_XS and IQ2_S. */
SK_INLINE void sk_fast_iq2_scales(const uint8_t *b, const uint8_t *nibbles, float *scale)
{
    SK_UNROLL
    for (int v = 0; v < 2; v++) {
        __m256i n = sk_fast_low(sk_fast_fields(sk_fast_u32(nibbles + 4 * v), 4));
        sk_fast_half_steps(scale + 8 * v, sk_fast_f16(b), n, 0.25f);
    }
}

/* Four words hold four times three bits each, and above them a quarter of d. */
SK_INLINE void sk_fast_iq1_m_scales(const uint8_t *b, float *scale)
{
    const __m256i by = _mm256_setr_epi32(0, 3, 6, 9, 16, 19, 22, 25);
    uint32_t lo = sk_fast_u32(b + 48);
    uint32_t hi = sk_fast_u32(b + 52);
    uint32_t d = (lo >> 12 & 0xf) | (lo >> 24 & 0xf0) | (hi >> 4 & 0xf00) | (hi >> 16 & 0xf000);
    SK_UNROLL
    for (int v = 0; v < 2; v++) {
        __m256i word = _mm256_set1_epi32((int32_t)(v ? hi : lo));
        __m256i n = _mm256_and_si256(_mm256_srlv_epi32(word, by), _mm256_set1_epi32(7));
        sk_fast_odd_steps(scale + 8 * v, _cvtsh_ss((uint16_t)d), n);
    }
}

SK_INLINE void sk_fast_iq4_xs_scales(const uint8_t *b, float *scale)
{
    __m256i lo = sk_fast_low(sk_fast_fields(sk_fast_u32(b + 4), 4));
    __m256i hi = _mm256_and_si256(sk_fast_fields(sk_fast_u16(b + 2), 2), _mm256_set1_epi32(3));
    __m256i s = _mm256_or_si256(lo, _mm256_slli_epi32(hi, 4));
    sk_fast_put_scales(scale, sk_fast_f16(b), _mm256_sub_epi32(s, _mm256_set1_epi32(32)));
}

SK_INLINE void sk_fast_iq_scales(sk_dtype type, const uint8_t *b, float *scale)
{
    float d = sk_fast_f16(b); // not so in IQ1_M
    switch (type) {
    case SK_IQ1_S: {
        __m256i h = _mm256_cvtepu16_epi32(sk_fast_load16(b + 34));
        h = _mm256_and_si256(_mm256_srli_epi32(h, 12), _mm256_set1_epi32(7));
        sk_fast_odd_steps(scale, d, h);
        break;
    }
    case SK_IQ1_M:
        sk_fast_iq1_m_scales(b, scale);
        break;
    case SK_IQ2_XXS: { // the upper words of eight pairs
        const __m256i every_other = _mm256_setr_epi32(1, 3, 5, 7, 1, 3, 5, 7);
        __m256i lo = _mm256_loadu_si256((const __m256i *)(const void *)(b + 2));
        __m256i hi = _mm256_loadu_si256((const __m256i *)(const void *)(b + 34));
        __m256i w = _mm256_blend_epi32(_mm256_permutevar8x32_epi32(lo, every_other),
                                       _mm256_permutevar8x32_epi32(hi, every_other), 0xf0);
        sk_fast_half_steps(scale, d, _mm256_srli_epi32(w, 28), 0.25f);
        break;
    }
    case SK_IQ2_XS:
        sk_fast_iq2_scales(b, b + 66, scale);
        break;
    case SK_IQ2_S:
        sk_fast_iq2_scales(b, b + 74, scale);
        break;
    case SK_IQ3_XXS: {
        __m256i w = _mm256_loadu_si256((const __m256i *)(const void *)(b + 66));
        sk_fast_half_steps(scale, d, _mm256_srli_epi32(w, 28), 0.5f);
        break;
    }
    case SK_IQ3_S:
        sk_fast_odd_steps(scale, d, sk_fast_low(sk_fast_fields(sk_fast_u32(b + 106), 4)));
        break;
    default:
        sk_fast_iq4_xs_scales(b, scale);
        break;
    }
}

/* ---- codes ----------------------------------------------------------------------------------- */

/* -1, 0, 1 plus or (minus) less an eighth. */
SK_INLINE __m256 sk_fast_iq1_values(uint32_t minus)
{
    static const float values[2][4] = {{-0.875f, 0.125f, 1.125f, 0}, {-1.125f, -0.125f, 0.875f, 0}};
    return sk_fast_twice(values[minus]);
}

SK_INLINE void sk_fast_iq1_s(const uint8_t *b, int64_t i, __m256 *out)
{
    const uint8_t *q = b + 2 + 4 * i;
    uint32_t h = sk_fast_u16(b + 34 + 2 * i);
    __m256 values = sk_fast_iq1_values(h >> 15);
    SK_UNROLL
    for (int l = 0; l < 4; l++)
        out[l] = sk_fast_octet(&sk_iq1s_grid[q[l] | (h >> 3 * l & 7u) << 8], values);
}

SK_INLINE void sk_fast_iq1_m(const uint8_t *b, int64_t i, __m256 *out)
{
    uint32_t high = b[32 + i];
    SK_UNROLL
    for (int l = 0; l < 2; l++) {
        uint32_t at = b[2 * i + l] | (high >> 4 * l & 7u) << 8;
        out[l] = sk_fast_octet(&sk_iq1s_grid[at], sk_fast_iq1_values(high >> (4 * l + 3) & 1u));
    }
}

SK_INLINE void sk_fast_iq2_xxs(const uint8_t *b, int64_t i, __m256 *out)
{
    const uint8_t *q = b + 2 + 8 * i;
    __m256i signs = sk_fast_signs28(sk_fast_u32(q + 4));
    SK_UNROLL
    for (int l = 0; l < 4; l++)
        out[l] = sk_fast_negate(sk_fast_octet(&sk_iq2xxs_grid[q[l]], sk_fast_twice(sk_iq2_values)),
                                signs, l);
}

SK_INLINE void sk_fast_iq2_xs(const uint8_t *b, int64_t i, __m256 *out)
{
    SK_UNROLL
    for (int l = 0; l < 2; l++) {
        uint32_t v = sk_fast_u16(b + 2 + 4 * i + 2 * l);
        __m256i signs = _mm256_set1_epi32(sk_iq_signs[v >> 9]);
        out[l] = sk_fast_negate(
            sk_fast_octet(&sk_iq2xs_grid[v & 511], sk_fast_twice(sk_iq2_values)), signs, 0);
    }
}

SK_INLINE void sk_fast_iq2_s(const uint8_t *b, int64_t i, __m256 *out)
{
    __m256i signs = _mm256_set1_epi32((int32_t)sk_fast_u16(b + 34 + 2 * i));
    uint32_t high = (uint32_t)(b[66 + i / 2] >> 4 * (i % 2));
    SK_UNROLL
    for (int l = 0; l < 2; l++) {
        uint32_t at = b[2 + 2 * i + l] | (high >> 2 * l & 3u) << 8;
        out[l] = sk_fast_negate(sk_fast_octet(&sk_iq2s_grid[at], sk_fast_twice(sk_iq2_values)),
                                signs, l);
    }
}

SK_INLINE void sk_fast_iq3_xxs(const uint8_t *b, int64_t i, __m256 *out)
{
    const uint8_t *q = b + 2 + 8 * i;
    __m256i signs = sk_fast_signs28(sk_fast_u32(b + 66 + 4 * i));
    __m256 values = _mm256_loadu_ps(sk_iq3xxs_values);
    SK_UNROLL
    for (int l = 0; l < 4; l++)
        out[l] = sk_fast_negate(
            sk_fast_quartets(sk_iq3xxs_grid[q[2 * l]], sk_iq3xxs_grid[q[2 * l + 1]], values), signs,
            l);
}

SK_INLINE void sk_fast_iq3_s(const uint8_t *b, int64_t i, __m256 *out)
{
    const uint8_t *q = b + 2 + 8 * i;
    __m256i signs = _mm256_set1_epi32((int32_t)sk_fast_u32(b + 74 + 4 * i));
    uint32_t high = (uint32_t)b[66 + i] << 8; // bit 8 + k is the ninth of index k
    __m256 values = _mm256_loadu_ps(sk_iq3s_values);
    SK_UNROLL
    for (int l = 0; l < 4; l++) {
        uint32_t lo = q[2 * l] | (high >> 2 * l & 256u);
        uint32_t hi = q[2 * l + 1] | (high >> (2 * l + 1) & 256u);
        out[l] =
            sk_fast_negate(sk_fast_quartets(sk_iq3s_grid[lo], sk_iq3s_grid[hi], values), signs, l);
    }
}

SK_INLINE void sk_fast_iq_codes(sk_dtype type, const uint8_t *b, int64_t i, __m256 *out)
{
    switch (type) {
    case SK_IQ1_S:
        sk_fast_iq1_s(b, i, out);
        break;
    case SK_IQ1_M:
        sk_fast_iq1_m(b, i, out);
        break;
    case SK_IQ2_XXS:
        sk_fast_iq2_xxs(b, i, out);
        break;
    case SK_IQ2_XS:
        sk_fast_iq2_xs(b, i, out);
        break;
    case SK_IQ2_S:
        sk_fast_iq2_s(b, i, out);
        break;
    case SK_IQ3_XXS:
        sk_fast_iq3_xxs(b, i, out);
        break;
    case SK_IQ3_S:
        sk_fast_iq3_s(b, i, out);
        break;
    default:
        sk_fast_look_up(b + 8 + 16 * i, sk_iq4_values, out);
        break;
    }
}
#endif

#endif
