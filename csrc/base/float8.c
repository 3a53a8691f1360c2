/* See float8.h. */
#include "base/float8.h"

#include "base/quant.h"

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

float sk_f8_e4m3_to_f32(uint8_t b)
{
    const uint32_t sign = (uint32_t)(b & 0x80u) << 24;
    const uint32_t rest = b & 0x7fu;
    if (rest == 0x7f) return from_bits(0x7fc00000u);
    if (rest < 8) { // zero or subnormal: a small integer times 2^-9
        float x = (float)rest * 0x1p-9f;
        return sign ? -x : x;
    }
    return from_bits(sign | ((rest << 20) + (120u << 23))); // exponent e - 7 + 127
}

float sk_f8_e5m2_to_f32(uint8_t b)
{
    if ((b & 0x7fu) > 0x7cu) return from_bits(0x7fc00000u);
    return sk_f16_to_f32((uint16_t)(b << 8));
}

float sk_f8_e8m0_to_f32(uint8_t b)
{
    if (b == 255) return from_bits(0x7fc00000u);
    return from_bits(b ? (uint32_t)b << 23 : 0x00400000u); // 2^-127 is subnormal
}
