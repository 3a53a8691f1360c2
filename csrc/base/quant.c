/* See quant.h. Every product that forms a scale or a value is exact in binary32 (but for Q8_K), so
 * the order of multiplication is free. The blocks are taken apart in quant_simple.c, quant_k.c and
 * quant_iq.c; their layouts are described in docs/formats.md. */
#include "base/quant.h"

#include "base/float8.h"
#include "base/quant_parts.h"

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
    case SK_U8:
    case SK_BOOL:
        for (uint64_t i = 0; i < n; i++) out[i] = (float)p[i];
        break;
    case SK_U16:
        for (uint64_t i = 0; i < n; i++) out[i] = (float)u16_at(p + 2 * i);
        break;
    case SK_U32:
        for (uint64_t i = 0; i < n; i++) out[i] = (float)u32_at(p + 4 * i);
        break;
    case SK_U64:
        for (uint64_t i = 0; i < n; i++) out[i] = (float)u64_at(p + 8 * i);
        break;
    case SK_F8_E4M3:
        for (uint64_t i = 0; i < n; i++) out[i] = sk_f8_e4m3_to_f32(p[i]);
        break;
    case SK_F8_E5M2:
        for (uint64_t i = 0; i < n; i++) out[i] = sk_f8_e5m2_to_f32(p[i]);
        break;
    case SK_F8_E8M0:
        for (uint64_t i = 0; i < n; i++) out[i] = sk_f8_e8m0_to_f32(p[i]);
        break;
    default: // not decodable: excluded by the contract
        for (uint64_t i = 0; i < n; i++) out[i] = 0;
        break;
    }
}

/* ---- the interface --------------------------------------------------------------------------- */

int32_t sk_quant_group_elems(sk_dtype type)
{
    switch (type) {
    case SK_Q2_K:
    case SK_Q3_K:
    case SK_Q6_K:
    case SK_IQ1_M:
    case SK_IQ2_XS:
    case SK_IQ2_S:
    case SK_NVFP4:
        return 16;
    default:
        return sk_dtype_decodable(type) ? SK_GROUP_MAX : 0;
    }
}

bool sk_quant_has_min(sk_dtype type)
{
    switch (type) {
    case SK_Q4_1:
    case SK_Q5_1:
    case SK_Q2_K:
    case SK_Q4_K:
    case SK_Q5_K:
        return true;
    default:
        return false;
    }
}

void sk_quant_group(sk_dtype type, const uint8_t *row, uint64_t g, int32_t n, sk_group *out)
{
    out->min = 0;
    switch (type) {
    case SK_Q4_0:
    case SK_Q4_1:
    case SK_Q5_0:
    case SK_Q5_1:
    case SK_Q8_0:
    case SK_IQ4_NL:
    case SK_MXFP4:
    case SK_NVFP4:
    case SK_Q1_0:
    case SK_Q2_0:
    case SK_TQ1_0:
    case SK_TQ2_0:
        sk_quant_group_simple(type, row, g, out);
        break;
    case SK_Q2_K:
    case SK_Q3_K:
    case SK_Q4_K:
    case SK_Q5_K:
    case SK_Q6_K:
    case SK_Q8_K:
        sk_quant_group_k(type, row, g, out);
        break;
    case SK_IQ1_S:
    case SK_IQ1_M:
    case SK_IQ2_XXS:
    case SK_IQ2_XS:
    case SK_IQ2_S:
    case SK_IQ3_XXS:
    case SK_IQ3_S:
    case SK_IQ4_XS:
        sk_quant_group_iq(type, row, g, out);
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
