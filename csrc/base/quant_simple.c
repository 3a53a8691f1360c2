/* Decoding of blocks that are one scale and a run of codes: the legacy formats, the four-bit floats
 * and the one- and two-bit formats. See quant_parts.h. */
#include "base/quant_parts.h"

#include "base/codebooks.h"

/* 16 bytes hold 32 codes: elements 0..15 in the low halves, 16..31 in the high ones. Bit j of
 * `high` is the fifth bit of element j. */
static void split_halves(const uint8_t *q, uint32_t high, int32_t centre, float *code)
{
    for (int32_t j = 0; j < 16; j++) {
        int32_t lo = (q[j] & 15) | (int32_t)((high >> j) & 1u) << 4;
        int32_t hi = (q[j] >> 4) | (int32_t)((high >> (j + 16)) & 1u) << 4;
        code[j] = (float)(lo - centre);
        code[j + 16] = (float)(hi - centre);
    }
}

/* The same with a table of values, for 2n elements in n bytes. */
static void look_up(const uint8_t *q, int32_t n, const int8_t *values, float *code)
{
    for (int32_t j = 0; j < n; j++) {
        code[j] = (float)values[q[j] & 15];
        code[j + n] = (float)values[q[j] >> 4];
    }
}

/* Half of 2^(e - 127): the table of values holds the doubles of what E2M1 means. */
static float half_e8m0(uint32_t e)
{
    uint32_t bits = e < 2 ? 0x200000u << e : (e - 1) << 23;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Half of an unsigned float of four exponent and three fraction bits. The code 0x7f is no number
 * and counts as zero; the top bit does not count. (0xff is a number, as it is for ggml.) */
static float half_ue4m3(uint32_t x)
{
    uint32_t bits = ((x & 127u) << 20) + (119u << 23); // for exponents other than 0
    float y;
    if (x == 0x7f) return 0;
    if ((x & 0x78u) == 0) return (float)(x & 7u) * 0x1p-10f;
    memcpy(&y, &bits, sizeof y);
    return y;
}

/* Group i of a block of 256 in base 3: a byte holds five digits as a fraction of 256, the highest
 * one first. Eight stretches of 32 elements: the n-th digits of bytes 0..31, then of bytes 32..47
 * two digits at a time, and the last 16 elements are four digits of bytes 48..51. */
static void tq1_0_codes(const uint8_t *b, uint32_t i, float *code)
{
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    for (uint32_t j = 0; j < 32; j++) {
        uint32_t e = 32 * i + j;
        uint32_t byte = b[j];
        uint32_t digit = i;
        if (e >= 240) {
            byte = b[48 + e % 4];
            digit = (e - 240) / 4;
        } else if (e >= 160) {
            byte = b[32 + e % 16];
            digit = (e - 160) / 16;
        }
        // cppcheck-suppress arrayIndexOutOfBoundsCond ; e < 256, so digit is at most 4
        code[j] = (float)((int32_t)((byte * power[digit] & 255u) * 3 >> 8) - 1);
    }
}

void sk_quant_group_simple(sk_dtype type, const uint8_t *row, uint64_t g, sk_group *out)
{
    const uint8_t *b;
    switch (type) {
    case SK_Q4_0:
        b = row + 18 * g;
        out->scale = f16_at(b);
        split_halves(b + 2, 0, 8, out->code);
        break;
    case SK_Q4_1:
        b = row + 20 * g;
        out->scale = f16_at(b);
        out->min = f16_at(b + 2);
        split_halves(b + 4, 0, 0, out->code);
        break;
    case SK_Q5_0:
        b = row + 22 * g;
        out->scale = f16_at(b);
        split_halves(b + 6, u32_at(b + 2), 16, out->code);
        break;
    case SK_Q5_1:
        b = row + 24 * g;
        out->scale = f16_at(b);
        out->min = f16_at(b + 2);
        split_halves(b + 8, u32_at(b + 4), 0, out->code);
        break;
    case SK_Q8_0:
        b = row + 34 * g;
        out->scale = f16_at(b);
        for (int32_t j = 0; j < 32; j++) out->code[j] = (float)(int8_t)b[2 + j];
        break;
    case SK_IQ4_NL:
        b = row + 18 * g;
        out->scale = f16_at(b);
        look_up(b + 2, 16, sk_iq4_values, out->code);
        break;
    case SK_MXFP4:
        b = row + 17 * g;
        out->scale = half_e8m0(b[0]);
        look_up(b + 1, 16, sk_fp4_values, out->code);
        break;
    case SK_NVFP4: // groups of 16, four in a block, each with its own halves
        b = row + 36 * (g / 4);
        out->scale = half_ue4m3(b[g % 4]);
        look_up(b + 4 + 8 * (g % 4), 8, sk_fp4_values, out->code);
        break;
    case SK_Q1_0:
        b = row + 18 * (g / 4);
        out->scale = f16_at(b);
        b += 2 + 4 * (g % 4);
        for (int32_t j = 0; j < 32; j++) out->code[j] = b[j / 8] >> j % 8 & 1 ? 1.0f : -1.0f;
        break;
    case SK_Q2_0:
        b = row + 18 * (g / 2);
        out->scale = f16_at(b);
        b += 2 + 8 * (g % 2);
        for (int32_t j = 0; j < 32; j++) out->code[j] = (float)((b[j / 4] >> 2 * (j % 4) & 3) - 1);
        break;
    case SK_TQ1_0:
        b = row + 54 * (g / 8);
        out->scale = f16_at(b + 52);
        tq1_0_codes(b, (uint32_t)(g % 8), out->code);
        break;
    default: // TQ2_0
        b = row + 66 * (g / 8);
        out->scale = f16_at(b + 64);
        b += 32 * (g % 8 / 4);
        for (int32_t j = 0; j < 32; j++) out->code[j] = (float)((b[j] >> 2 * (g % 4) & 3) - 1);
        break;
    }
}
