/* See quant.h. Blocks are read byte by byte (any alignment, either byte order); every product that
 * forms a scale or a value is exact in binary32, so the order of multiplication is free. The
 * layouts are described in docs/formats.md. */
#include "base/quant.h"

static uint16_t u16_at(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

static uint32_t u32_at(const uint8_t *p) { return u16_at(p) | (uint32_t)u16_at(p + 2) << 16; }

static uint64_t u64_at(const uint8_t *p) { return u32_at(p) | (uint64_t)u32_at(p + 4) << 32; }

static float f16_at(const uint8_t *p) { return sk_f16_to_f32(u16_at(p)); }

float sk_f16_to_f32(uint16_t h)
{
    uint32_t sign = (h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 31u;
    uint32_t fraction = h & 0x3ffu;
    uint32_t bits;
    float x;
    if (exponent == 0) { // zero or subnormal: a small integer times 2^-24
        x = (float)fraction * 0x1p-24f;
        return sign ? -x : x;
    }
    if (exponent == 31)
        bits = 0x7f800000u | fraction << 13 | (fraction ? 0x400000u : 0); // NaN made quiet
    else
        bits = (exponent + 112) << 23 | fraction << 13;
    bits |= sign;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- plain types: every element stands alone ------------------------------------------------- */

static void plain(sk_dtype type, const uint8_t *p, uint64_t n, float *out)
{
    switch (type) {
    case SK_F32:
        for (uint64_t i = 0; i < n; i++) {
            uint32_t bits = u32_at(p + 4 * i);
            memcpy(&out[i], &bits, sizeof bits);
        }
        break;
    case SK_F16:
        for (uint64_t i = 0; i < n; i++) out[i] = f16_at(p + 2 * i);
        break;
    case SK_BF16:
        for (uint64_t i = 0; i < n; i++) out[i] = sk_bf16_to_f32(u16_at(p + 2 * i));
        break;
    case SK_F64:
        for (uint64_t i = 0; i < n; i++) {
            uint64_t bits = u64_at(p + 8 * i);
            double x;
            memcpy(&x, &bits, sizeof x);
            out[i] = (float)x;
        }
        break;
    case SK_I8:
        for (uint64_t i = 0; i < n; i++) out[i] = (float)(int8_t)p[i];
        break;
    case SK_I16:
        for (uint64_t i = 0; i < n; i++) out[i] = (float)(int16_t)u16_at(p + 2 * i);
        break;
    case SK_I32:
        for (uint64_t i = 0; i < n; i++) out[i] = (float)(int32_t)u32_at(p + 4 * i);
        break;
    case SK_I64:
        for (uint64_t i = 0; i < n; i++) out[i] = (float)(int64_t)u64_at(p + 8 * i);
        break;
    default: // not decodable: excluded by the contract
        for (uint64_t i = 0; i < n; i++) out[i] = 0;
        break;
    }
}

/* ---- blocks of 32 ---------------------------------------------------------------------------- */

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

/* ---- blocks of 256 with 8 sub-blocks of 32 (Q4_K, Q5_K) -------------------------------------- */

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

/* `high` is NULL for Q4_K; else bit i of high[j] is the fifth bit of element j of sub-block i. */
static void k_group(const uint8_t *b, const uint8_t *q, const uint8_t *high, uint32_t i,
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
    const uint8_t *hi = b + 128 + (size_t)32 * half + r % 32;
    out->scale = f16_at(b + 208) * (float)(int8_t)b[192 + i];
    for (uint32_t j = 0; j < 16; j++) {
        int32_t code = ((lo[j] >> 4 * (r / 64)) & 15) | ((hi[j] >> 2 * (r / 32)) & 3) << 4;
        out->code[j] = (float)(code - 32);
    }
}

/* ---- the interface --------------------------------------------------------------------------- */

int32_t sk_quant_group_elems(sk_dtype type)
{
    if (!sk_dtype_decodable(type)) return 0;
    return type == SK_Q6_K ? 16 : SK_GROUP_MAX;
}

bool sk_quant_has_min(sk_dtype type)
{
    return type == SK_Q4_1 || type == SK_Q5_1 || type == SK_Q4_K || type == SK_Q5_K;
}

void sk_quant_group(sk_dtype type, const uint8_t *row, uint64_t g, int32_t n, sk_group *out)
{
    const uint8_t *b;
    out->min = 0;
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
        plain(SK_I8, b + 2, 32, out->code);
        break;
    case SK_Q4_K:
        b = row + 144 * (g / 8);
        k_group(b, b + 16, NULL, (uint32_t)(g % 8), out);
        break;
    case SK_Q5_K:
        b = row + 176 * (g / 8);
        k_group(b, b + 48, b + 16, (uint32_t)(g % 8), out);
        break;
    case SK_Q6_K:
        q6_k_group(row + 210 * (g / 16), (uint32_t)(g % 16), out);
        break;
    default: {
        const sk_dtype_info *info = sk_dtype_find(type);
        uint64_t bytes = info ? (uint64_t)info->block_bytes : 0;
        out->scale = 1;
        plain(type, row + SK_GROUP_MAX * bytes * g, (uint64_t)n, out->code);
        break;
    }
    }
}

static bool is_plain(sk_dtype type)
{
    const sk_dtype_info *info = sk_dtype_find(type);
    return !info || info->block_elems == 1;
}

void sk_quant_row(sk_dtype type, const uint8_t *row, uint64_t n, float *out)
{
    int32_t elems = sk_quant_group_elems(type);
    bool has_min = sk_quant_has_min(type);
    sk_group group;
    if (is_plain(type) || elems == 0) {
        plain(type, row, n, out);
        return;
    }
    for (uint64_t g = 0; g < n / (uint64_t)elems; g++) {
        float *y = out + g * (uint64_t)elems;
        sk_quant_group(type, row, g, elems, &group);
        if (has_min) {
            for (int32_t j = 0; j < elems; j++) y[j] = group.scale * group.code[j] + group.min;
        } else { // adding a zero would turn -0 into +0
            for (int32_t j = 0; j < elems; j++) y[j] = group.scale * group.code[j];
        }
    }
}
