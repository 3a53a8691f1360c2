/* Decoding of the codebook formats: blocks of 256 elements whose codes are entries of a grid, eight
 * or four components each, with signs (IQ2, IQ3) or an offset (IQ1) beside them; and IQ4_XS, whose
 * codes are numbers of a table of 16 values. See quant_parts.h, docs/formats.md. */
#include "base/quant_parts.h"

#include "base/codebooks.h"

/* Eight components of an entry of two-bit fields, bit k of `signs` negates component k. */
static void octet(uint32_t entry, const float *values, uint32_t signs, float *code)
{
    for (int32_t k = 0; k < 8; k++) {
        float x = values[entry >> 2 * k & 3u];
        code[k] = signs >> k & 1u ? -x : x;
    }
}

/* The same for two entries of four-bit fields. */
static void two_quartets(uint32_t lo, uint32_t hi, const float *values, uint32_t signs, float *code)
{
    uint32_t entry = lo | hi << 16;
    for (int32_t k = 0; k < 8; k++) {
        float x = values[entry >> 4 * k & 7u];
        code[k] = signs >> k & 1u ? -x : x;
    }
}

/* A scale of IQ2: steps of a quarter of d, from half a step. */
static float iq2_scale(const uint8_t *b, uint32_t n)
{
    return f16_at(b) * (0.5f + (float)n) * 0.25f;
}

/* Group i (of 32): four index bytes, then a word of four times seven signs and a scale. */
static void iq2_xxs_group(const uint8_t *b, uint32_t i, sk_group *out)
{
    const uint8_t *q = b + 2 + (size_t)8 * i;
    uint32_t w = u32_at(q + 4);
    out->scale = iq2_scale(b, w >> 28);
    for (uint32_t l = 0; l < 4; l++)
        octet(sk_iq2xxs_grid[q[l]], sk_iq2_values, sk_iq_signs[w >> 7 * l & 127u],
              out->code + 8 * l);
}

/* Group i (of 16): two words of a nine-bit index and seven signs. */
static void iq2_xs_group(const uint8_t *b, uint32_t i, sk_group *out)
{
    out->scale = iq2_scale(b, nibble_at(b + 66, i));
    for (uint32_t l = 0; l < 2; l++) {
        uint32_t v = u16_at(b + 2 + 4 * i + 2 * l);
        octet(sk_iq2xs_grid[v & 511u], sk_iq2_values, sk_iq_signs[v >> 9], out->code + 8 * l);
    }
}

/* Group i (of 16): two ten-bit indices, and eight signs for each. */
static void iq2_s_group(const uint8_t *b, uint32_t i, sk_group *out)
{
    out->scale = iq2_scale(b, nibble_at(b + 74, i));
    for (uint32_t l = 0; l < 2; l++) {
        uint32_t g = 2 * i + l; // which eight elements
        uint32_t high = b[66 + g / 4] >> 2 * (g % 4) & 3u;
        octet(sk_iq2s_grid[b[2 + g] | high << 8], sk_iq2_values, b[34 + g], out->code + 8 * l);
    }
}

/* Group i (of 32): eight index bytes, and a word as in IQ2_XXS. */
static void iq3_xxs_group(const uint8_t *b, uint32_t i, sk_group *out)
{
    const uint8_t *q = b + 2 + (size_t)8 * i;
    uint32_t w = u32_at(b + 66 + (size_t)4 * i);
    out->scale = f16_at(b) * (0.5f + (float)(w >> 28)) * 0.5f;
    for (uint32_t l = 0; l < 4; l++)
        two_quartets(sk_iq3xxs_grid[q[2 * l]], sk_iq3xxs_grid[q[2 * l + 1]], sk_iq3xxs_values,
                     sk_iq_signs[w >> 7 * l & 127u], out->code + 8 * l);
}

/* Group i (of 32): eight nine-bit indices, and eight signs for each two. */
static void iq3_s_group(const uint8_t *b, uint32_t i, sk_group *out)
{
    const uint8_t *q = b + 2 + (size_t)8 * i;
    uint32_t high = b[66 + i];
    out->scale = f16_at(b) * (float)(1 + 2 * nibble_at(b + 106, i));
    for (uint32_t l = 0; l < 4; l++) {
        uint32_t lo_at = q[2 * l] | (high >> 2 * l & 1u) << 8;
        uint32_t hi_at = q[2 * l + 1] | (high >> (2 * l + 1) & 1u) << 8;
        two_quartets(sk_iq3s_grid[lo_at], sk_iq3s_grid[hi_at], sk_iq3s_values,
                     b[74 + (size_t)4 * i + l], out->code + 8 * l);
    }
}

/* Eight codes -1, 0, 1 of IQ1, moved by an eighth up or (minus) down: exact, so there is no
 * minimum. */
static void iq1_octet(uint32_t at, bool minus, float *code)
{
    float by = minus ? -0.125f : 0.125f;
    const float values[4] = {-1 + by, by, 1 + by, 0};
    octet(sk_iq1s_grid[at], values, 0, code);
}

/* Group i (of 32): four eleven-bit indices, one scale and one offset. */
static void iq1_s_group(const uint8_t *b, uint32_t i, sk_group *out)
{
    uint32_t h = u16_at(b + 34 + (size_t)2 * i);
    out->scale = f16_at(b) * (float)(2 * (h >> 12 & 7u) + 1);
    for (uint32_t l = 0; l < 4; l++)
        iq1_octet(b[2 + 4 * i + l] | (h >> 3 * l & 7u) << 8, h >> 15, out->code + 8 * l);
}

/* Group i (of 16): two eleven-bit indices, each with its offset. The block's own scale is spread
 * over the top four bits of four words. */
static void iq1_m_group(const uint8_t *b, uint32_t i, sk_group *out)
{
    uint64_t s = u64_at(b + 48);
    uint64_t d = (s >> 12 & 0xf) | (s >> 24 & 0xf0) | (s >> 36 & 0xf00) | (s >> 48 & 0xf000);
    uint32_t step = (uint32_t)(s >> (16 * (i / 4) + 3 * (i % 4))) & 7u;
    out->scale = sk_f16_to_f32((uint16_t)d) * (float)(2 * step + 1);
    for (uint32_t l = 0; l < 2; l++) {
        uint32_t high = nibble_at(b + 32, 2 * i + l);
        iq1_octet(b[2 * i + l] | (high & 7u) << 8, high >> 3, out->code + 8 * l);
    }
}

static void iq4_xs_group(const uint8_t *b, uint32_t i, sk_group *out)
{
    const uint8_t *q = b + 8 + (size_t)16 * i;
    uint32_t high = (uint32_t)u16_at(b + 2) >> 2 * i & 3u;
    out->scale = f16_at(b) * (float)((int32_t)(nibble_at(b + 4, i) | high << 4) - 32);
    for (int32_t j = 0; j < 16; j++) {
        out->code[j] = (float)sk_iq4_values[q[j] & 15];
        out->code[j + 16] = (float)sk_iq4_values[q[j] >> 4];
    }
}

void sk_quant_group_iq(sk_dtype type, const uint8_t *row, uint64_t g, sk_group *out)
{
    switch (type) {
    case SK_IQ1_S:
        iq1_s_group(row + 50 * (g / 8), (uint32_t)(g % 8), out);
        break;
    case SK_IQ1_M:
        iq1_m_group(row + 56 * (g / 16), (uint32_t)(g % 16), out);
        break;
    case SK_IQ2_XXS:
        iq2_xxs_group(row + 66 * (g / 8), (uint32_t)(g % 8), out);
        break;
    case SK_IQ2_XS:
        iq2_xs_group(row + 74 * (g / 16), (uint32_t)(g % 16), out);
        break;
    case SK_IQ2_S:
        iq2_s_group(row + 82 * (g / 16), (uint32_t)(g % 16), out);
        break;
    case SK_IQ3_XXS:
        iq3_xxs_group(row + 98 * (g / 8), (uint32_t)(g % 8), out);
        break;
    case SK_IQ3_S:
        iq3_s_group(row + 110 * (g / 8), (uint32_t)(g % 8), out);
        break;
    default:
        iq4_xs_group(row + 136 * (g / 8), (uint32_t)(g % 8), out);
        break;
    }
}
