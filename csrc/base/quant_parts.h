/* What the files of quant.h share: reading fields of a block byte by byte (any alignment, either
 * byte order), and one decoder for each family of block formats. Private to quant*.c. */
#ifndef SK_QUANT_PARTS_H
#define SK_QUANT_PARTS_H

#include "base/quant.h"

static inline uint16_t u16_at(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

static inline uint32_t u32_at(const uint8_t *p)
{
    return u16_at(p) | (uint32_t)u16_at(p + 2) << 16;
}

static inline uint64_t u64_at(const uint8_t *p)
{
    return u32_at(p) | (uint64_t)u32_at(p + 4) << 32;
}

static inline float f16_at(const uint8_t *p) { return sk_f16_to_f32(u16_at(p)); }

/* Half-byte i of the bytes at p, the low one of a byte first. */
static inline uint32_t nibble_at(const uint8_t *p, uint32_t i)
{
    return (uint32_t)(p[i / 2] >> 4 * (i & 1)) & 15u;
}

/* Each unpacks group g of the row of blocks of one of the family's types. out->min is 0 on entry.
 *
 * simple: Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 IQ4_NL MXFP4 NVFP4 Q1_0 Q2_0 TQ1_0 TQ2_0
 * k:      Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K
 * iq:     IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_XS */
void sk_quant_group_simple(sk_dtype type, const uint8_t *row, uint64_t g, sk_group *out);
void sk_quant_group_k(sk_dtype type, const uint8_t *row, uint64_t g, sk_group *out);
void sk_quant_group_iq(sk_dtype type, const uint8_t *row, uint64_t g, sk_group *out);

#endif
