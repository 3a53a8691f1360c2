/* The 8-bit floats of safetensors files, as the values they stand for. Exact: every one of them is
 * a binary32. NaN becomes the quiet NaN 0x7fc00000. */
#ifndef SK_FLOAT8_H
#define SK_FLOAT8_H

#include "base/sk_base.h"

/* s eeee mmm, bias 7: +-m 2^-9 for e = 0, else +-(1 + m/8) 2^(e-7); no infinity, only s 1111 111 is
 * NaN. The FN variant, largest value 448. */
float sk_f8_e4m3_to_f32(uint8_t b);

/* s eeeee mm, bias 15: the upper half of a binary16. */
float sk_f8_e5m2_to_f32(uint8_t b);

/* 2^(b-127), no sign; 255 is NaN. */
float sk_f8_e8m0_to_f32(uint8_t b);

#endif
