/* Decoding of two weight rows at once into 512-bit registers: lanes 0 .. 7 belong to the one row,
 * lanes 8 .. 15 to the other, so each half is what fast_decode.h has in a register of its own. Same
 * codes, to the bit. `type` is a constant at every call. */
#ifndef SK_CPU_FAST_AVX512_H
#define SK_CPU_FAST_AVX512_H

#include "op/cpu/fast_decode.h"

#if SK_HAVE_AVX2

#define SK_INLINE512 static inline SK_ALWAYS_INLINE SK_AVX512

/* Types with a decoder of pairs; the others are decoded row by row. */
#define SK_PAIR_TYPES(X)                                                                           \
    X(F32)                                                                                         \
    X(F16)                                                                                         \
    X(BF16)                                                                                        \
    X(Q4_0)                                                                                        \
    X(Q4_1)                                                                                        \
    X(Q5_0)                                                                                        \
    X(Q5_1)                                                                                        \
    X(Q8_0)                                                                                        \
    X(Q4_K)                                                                                        \
    X(Q5_K)                                                                                        \
    X(Q6_K)                                                                                        \
    X(IQ4_NL)                                                                                      \
    X(IQ4_XS)                                                                                      \
    X(MXFP4)

static inline bool sk_pair_has(sk_dtype type)
{
    switch (type) {
#define X(name) case SK_##name:
        SK_PAIR_TYPES(X)
#undef X
        return true;
    default:
        return false;
    }
}

/* One number for each row. */
SK_INLINE512 __m512 sk_pair_floats(const float *a, const float *b)
{
    return _mm512_mask_broadcastss_ps(_mm512_set1_ps(*a), 0xff00, _mm_load_ss(b));
}

SK_INLINE512 __m512i sk_pair_words(uint32_t a, uint32_t b)
{
    return _mm512_mask_set1_epi32(_mm512_set1_epi32((int32_t)a), 0xff00, (int32_t)b);
}

/* 16 bytes of each row, twice: a a b b. Broadcasts from memory leave the shuffle unit alone. */
SK_INLINE512 __m512i sk_pair_bytes(const uint8_t *a, const uint8_t *b)
{
    return _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(sk_fast_load16(a)), 0xff00,
                                       sk_fast_load16(b));
}

/* Bytes 8 * half .. of what sk_pair_bytes gives, one a lane, zero above. */
SK_INLINE512 __m512i sk_pair_spread(__m512i bytes, int half)
{
    const __m512i at = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7);
    __m512i from = _mm512_add_epi32(at, _mm512_set1_epi32(8 * half));
    return _mm512_shuffle_epi8(bytes,
                               _mm512_or_si512(from, _mm512_set1_epi32((int32_t)0x80808000u)));
}

/* 16 values as floats. */
SK_INLINE512 __m512 sk_pair_table(const int8_t *values)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sk_fast_load16((const uint8_t *)values)));
}

SK_INLINE512 __m512 sk_pair_count_from(int32_t first)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_cvtepi32_ps(_mm512_add_epi32(lane, _mm512_set1_epi32(first)));
}

/* 16 bytes of half-bytes a row through a table: the low halves, then the high ones. A permutation
 * looks at the lower four bits of a lane only, so nothing is masked. */
SK_INLINE512 void sk_pair_look_up(const uint8_t *a, const uint8_t *b, __m512 table, __m512 *out)
{
    __m512i bytes = sk_pair_bytes(a, b);
    __m512i lo = sk_pair_spread(bytes, 0);
    __m512i hi = sk_pair_spread(bytes, 1);
    out[0] = _mm512_permutexvar_ps(lo, table);
    out[1] = _mm512_permutexvar_ps(hi, table);
    out[2] = _mm512_permutexvar_ps(_mm512_srli_epi32(lo, 4), table);
    out[3] = _mm512_permutexvar_ps(_mm512_srli_epi32(hi, 4), table);
}

/* Adds 16 where the fifth bit of element 8v + lane is set in the row's word. */
SK_INLINE512 void sk_pair_fifth_bits(const uint8_t *a, const uint8_t *b, __m512 *out)
{
    const __m512i bit = _mm512_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128);
    __m512i words = sk_pair_words(sk_fast_u32(a), sk_fast_u32(b));
    SK_UNROLL
    for (int v = 0; v < 4; v++) {
        __mmask16 set = _mm512_test_epi32_mask(words, _mm512_slli_epi32(bit, (unsigned)(8 * v)));
        out[v] = _mm512_mask_add_ps(out[v], set, out[v], _mm512_set1_ps(16));
    }
}

SK_INLINE512 void sk_pair_q8_0(const uint8_t *a, const uint8_t *b, __m512 *out)
{
    SK_UNROLL
    for (int v = 0; v < 4; v++) {
        __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)(a + 8 * v));
        bytes =
            _mm_unpacklo_epi64(bytes, _mm_loadl_epi64((const __m128i *)(const void *)(b + 8 * v)));
        out[v] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
    }
}

/* Group i of Q4_K, or of Q5_K with its fifth bits 16 bytes after the scales. */
SK_INLINE512 void sk_pair_k_codes(const uint8_t *a, const uint8_t *b, int64_t q, bool fifth,
                                  int64_t i, __m512 *out)
{
    SK_UNROLL
    for (int half = 0; half < 2; half++) {
        int64_t at = q + 32 * (i / 2) + 16 * half;
        __m512i bytes = sk_pair_bytes(a + at, b + at);
        __m512i high = _mm512_setzero_si512();
        if (fifth) high = sk_pair_bytes(a + 16 + 16 * half, b + 16 + 16 * half);
        SK_UNROLL
        for (int v = 0; v < 2; v++) {
            __m512i lanes = sk_pair_spread(bytes, v);
            if (i % 2) lanes = _mm512_srli_epi32(lanes, 4);
            out[2 * half + v] = _mm512_permutexvar_ps(lanes, sk_pair_count_from(0));
            if (fifth) {
                __mmask16 set =
                    _mm512_test_epi32_mask(sk_pair_spread(high, v), _mm512_set1_epi32(1 << (int)i));
                out[2 * half + v] = _mm512_mask_add_ps(out[2 * half + v], set, out[2 * half + v],
                                                       _mm512_set1_ps(16));
            }
        }
    }
}

/* Group i of Q6_K: the lower bits and the upper ones are joined as bytes. */
SK_INLINE512 void sk_pair_q6_k(const uint8_t *a, const uint8_t *b, int64_t i, __m512 *out)
{
    int64_t r = 16 * (i & 7);
    int k = (int)(r / 32);
    int64_t lo_at = 64 * (i / 8) + r % 64;
    int64_t hi_at = 128 + 32 * (i / 8) + r % 32;
    __m512i lo = sk_pair_bytes(a + lo_at, b + lo_at);
    __m512i hi = sk_pair_bytes(a + hi_at, b + hi_at);
    if (r >= 64) lo = _mm512_srli_epi32(lo, 4);
    hi = k < 2 ? _mm512_slli_epi32(hi, (unsigned)(4 - 2 * k))
               : _mm512_srli_epi32(hi, (unsigned)(2 * k - 4));
    lo = _mm512_and_si512(lo, _mm512_set1_epi8(15));
    hi = _mm512_and_si512(hi, _mm512_set1_epi8(48));
    lo = _mm512_or_si512(lo, hi);
    SK_UNROLL
    for (int v = 0; v < 2; v++)
        out[v] = _mm512_cvtepi32_ps(_mm512_sub_epi32(sk_pair_spread(lo, v), _mm512_set1_epi32(32)));
}

SK_INLINE512 void sk_pair_plain(sk_dtype type, const uint8_t *a, const uint8_t *b, __m512 *out)
{
    SK_UNROLL
    for (int v = 0; v < 4; v++) {
        if (type == SK_F32) {
            __m256 lo = _mm256_loadu_ps((const float *)(const void *)(a + 32 * v));
            __m256 hi = _mm256_loadu_ps((const float *)(const void *)(b + 32 * v));
            out[v] = _mm512_insertf32x8(_mm512_castps256_ps512(lo), hi, 1);
        } else {
            __m256i x = _mm256_castsi128_si256(sk_fast_load16(a + 16 * v));
            x = _mm256_inserti128_si256(x, sk_fast_load16(b + 16 * v), 1);
            out[v] = type == SK_F16
                         ? _mm512_cvtph_ps(x)
                         : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
        }
    }
}

/* Codes of group i of the blocks at a and b: two or four vectors. */
SK_INLINE512 void sk_pair_codes(sk_dtype type, const uint8_t *a, const uint8_t *b, int64_t i,
                                __m512 *out)
{
    switch (type) {
    case SK_Q4_0:
        sk_pair_look_up(a + 2, b + 2, sk_pair_count_from(-8), out);
        break;
    case SK_Q4_1:
        sk_pair_look_up(a + 4, b + 4, sk_pair_count_from(0), out);
        break;
    case SK_Q5_0:
        sk_pair_look_up(a + 6, b + 6, sk_pair_count_from(-16), out);
        sk_pair_fifth_bits(a + 2, b + 2, out);
        break;
    case SK_Q5_1:
        sk_pair_look_up(a + 8, b + 8, sk_pair_count_from(0), out);
        sk_pair_fifth_bits(a + 4, b + 4, out);
        break;
    case SK_Q8_0:
        sk_pair_q8_0(a + 2, b + 2, out);
        break;
    case SK_Q4_K:
        sk_pair_k_codes(a, b, 16, false, i, out);
        break;
    case SK_Q5_K:
        sk_pair_k_codes(a, b, 48, true, i, out);
        break;
    case SK_Q6_K:
        sk_pair_q6_k(a, b, i, out);
        break;
    case SK_IQ4_NL:
        sk_pair_look_up(a + 2, b + 2, sk_pair_table(sk_iq4_values), out);
        break;
    case SK_IQ4_XS:
        sk_pair_look_up(a + 8 + 16 * i, b + 8 + 16 * i, sk_pair_table(sk_iq4_values), out);
        break;
    case SK_MXFP4:
        sk_pair_look_up(a + 1, b + 1, sk_pair_table(sk_fp4_values), out);
        break;
    default:
        sk_pair_plain(type, a, b, out);
        break;
    }
}

/* Four sums: sk_tree8 of each half of two registers. */
SK_INLINE512 __m128 sk_pair_trees(__m512 ab, __m512 cd)
{
    const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    __m512 s =
        _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0x4e));
    s = _mm512_add_ps(s, _mm512_movehdup_ps(s));
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, s));
}
#endif

#endif
