/* Decoding of block formats: the one place that knows how codes, scales and minima are packed.
 *
 * A *group* is a run of consecutive elements that share one scale (and one minimum): 32 elements,
 * or 16 where the format has a scale for every 16; plain types use groups of 32 with scale 1.
 * Within a group the value of element j is exactly
 *
 *     scale * code[j] + min          (one rounding, in the final addition; none when min is 0)
 *
 * because scale * code has at most 24 significant bits for every type but Q8_K. Codes are small
 * numbers of at most eight significant bits (integers; eighths for IQ1) and are delivered as float,
 * so that products with BF16 activations are exact.
 * Source: the ggml block layouts as described in docs/formats.md. */
#ifndef SK_QUANT_H
#define SK_QUANT_H

#include "base/dtype.h"

#define SK_GROUP_MAX 32

typedef struct sk_group {
    float code[SK_GROUP_MAX];
    float scale;
    float min; // 0 for types without a minimum
} sk_group;

/* Elements per group: 32 or 16. 0 for types that are not decodable. */
int32_t sk_quant_group_elems(sk_dtype type);

/* True for the types whose min is not always 0 (Q4_1, Q5_1, Q2_K, Q4_K, Q5_K). */
bool sk_quant_has_min(sk_dtype type);

/* Unpacks group number `g` of a row that starts at `row` (any alignment). `n` is the number of
 * elements of that group: sk_quant_group_elems, or fewer at the end of a row of a plain float type.
 * `type` is decodable. */
void sk_quant_group(sk_dtype type, const uint8_t *row, uint64_t g, int32_t n, sk_group *out);

/* Decodes `n` elements of a row to float. n is a multiple of the block size. `type` is decodable.
 */
void sk_quant_row(sk_dtype type, const uint8_t *row, uint64_t n, float *out);

/* Scalar conversions (IEEE binary16, bfloat16 round to nearest even, NaN kept quiet). */
float sk_f16_to_f32(uint16_t h);
static inline float sk_bf16_to_f32(uint16_t h);
static inline uint16_t sk_f32_to_bf16(float x);

#include <string.h>

static inline float sk_bf16_to_f32(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint16_t sk_f32_to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#endif
