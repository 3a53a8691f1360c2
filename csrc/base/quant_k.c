/* Decoding of the K formats: blocks of 256 elements with a scale (and a minimum) for each sub-block
 * of 16 or 32, which are small integers times the block's own. See quant_parts.h. */
#include "base/quant_parts.h"

/* The pair of bits of element j of group i (of 16), out of 64 bytes: a half of 128 elements has 32
 * of them, and each byte holds four elements that are 32 apart. */
static int32_t pair_at(const uint8_t *q, uint32_t i, uint32_t j)
{
    uint32_t r = 16 * (i & 7) + j;
    return q[32 * (i / 8) + r % 32] >> 2 * (r / 32) & 3;
}

static void q2_k_group(const uint8_t *b, uint32_t i, sk_group *out)
{
    out->scale = f16_at(b + 80) * (float)(b[i] & 15);
    out->min = -(f16_at(b + 82) * (float)(b[i] >> 4));
    for (uint32_t j = 0; j < 16; j++) out->code[j] = (float)pair_at(b + 16, i, j);
}

/* The six-bit scale is in two places: four bits in bytes 96..103, two bits in bytes 104..107. A set
 * bit of the mask means that 4 is not taken off. */
static void q3_k_group(const uint8_t *b, uint32_t i, sk_group *out)
{
    int32_t lo = b[96 + i % 8] >> 4 * (i / 8) & 15;
    int32_t hi = b[104 + i % 4] >> 2 * (i / 4) & 3;
    out->scale = f16_at(b + 108) * (float)(lo + 16 * hi - 32);
    for (uint32_t j = 0; j < 16; j++) {
        uint32_t e = 16 * i + j;
        bool high = b[e % 32] >> e / 32 & 1;
        out->code[j] = (float)(pair_at(b + 32, i, j) - (high ? 0 : 4));
    }
}

/* The 6-bit scale and minimum of sub-block i, out of 12 bytes: the first four pairs are whole, the
 * upper two bits of the other four sit on top of the first ones. */
static void k_scale(const uint8_t *s, uint32_t i, uint32_t *scale, uint32_t *min)
{
    if (i < 4) {
        *scale = s[i] & 63u;
        *min = s[i + 4] & 63u;
        return;
    }
    *scale = (s[i + 4] & 15u) | (uint32_t)(s[i - 4] >> 6) << 4;
    *min = (uint32_t)(s[i + 4] >> 4) | (uint32_t)(s[i] >> 6) << 4;
}

/* Q4_K and Q5_K. `high` is NULL for Q4_K; else bit i of high[j] is the fifth bit of element j of
 * sub-block i. */
static void q45_k_group(const uint8_t *b, const uint8_t *q, const uint8_t *high, uint32_t i,
                        sk_group *out)
{
    uint32_t scale;
    uint32_t min;
    q += (size_t)32 * (i / 2);
    k_scale(b + 4, i, &scale, &min);
    out->scale = f16_at(b) * (float)scale;
    out->min = -(f16_at(b + 2) * (float)min);
    for (uint32_t j = 0; j < 32; j++) {
        uint32_t code = (q[j] >> 4 * (i & 1)) & 15u;
        if (high) code |= ((high[j] >> i) & 1u) << 4;
        out->code[j] = (float)code;
    }
}

/* Sub-block i of 16 elements: elements 16i..16i+15 of the block. */
static void q6_k_group(const uint8_t *b, uint32_t i, sk_group *out)
{
    uint32_t half = i / 8;     // which 128 elements
    uint32_t r = 16 * (i & 7); // first element within them
    const uint8_t *lo = b + (size_t)64 * half + r % 64;
    out->scale = f16_at(b + 208) * (float)(int8_t)b[192 + i];
    for (uint32_t j = 0; j < 16; j++) {
        int32_t code = ((lo[j] >> 4 * (r / 64)) & 15) | pair_at(b + 128, i, j) << 4;
        out->code[j] = (float)(code - 32);
    }
}

void sk_quant_group_k(sk_dtype type, const uint8_t *row, uint64_t g, sk_group *out)
{
    switch (type) {
    case SK_Q2_K:
        q2_k_group(row + 84 * (g / 16), (uint32_t)(g % 16), out);
        break;
    case SK_Q3_K:
        q3_k_group(row + 110 * (g / 16), (uint32_t)(g % 16), out);
        break;
    case SK_Q4_K:
        row += 144 * (g / 8);
        q45_k_group(row, row + 16, NULL, (uint32_t)(g % 8), out);
        break;
    case SK_Q5_K:
        row += 176 * (g / 8);
        q45_k_group(row, row + 48, row + 16, (uint32_t)(g % 8), out);
        break;
    case SK_Q6_K:
        q6_k_group(row + 210 * (g / 16), (uint32_t)(g % 16), out);
        break;
    default: { // Q8_K
        uint32_t bits;
        row += 292 * (g / 8);
        bits = u32_at(row);
        memcpy(&out->scale, &bits, sizeof bits);
        row += 4 + 32 * (g % 8);
        for (int32_t j = 0; j < 32; j++) out->code[j] = (float)(int8_t)row[j];
        break;
    }
    }
}
