/* Written by tools/gen_codebooks.py; see codebooks.h. */
#include "base/codebooks.h"

#include "base/codebook_numbers.h"

const uint16_t sk_iq2xxs_grid[257] = {SK_IQ2XXS_GRID, 0};
const uint16_t sk_iq2xs_grid[513] = {SK_IQ2XS_GRID, 0};
const uint16_t sk_iq2s_grid[1025] = {SK_IQ2S_GRID, 0};
const uint16_t sk_iq3xxs_grid[257] = {SK_IQ3XXS_GRID, 0};
const uint16_t sk_iq3s_grid[513] = {SK_IQ3S_GRID, 0};
const uint16_t sk_iq1s_grid[2049] = {SK_IQ1S_GRID, 0};
const float sk_iq2_values[4] = {SK_IQ2XXS_VALUES, 0};
const float sk_iq3xxs_values[8] = {SK_IQ3XXS_VALUES};
const float sk_iq3s_values[8] = {SK_IQ3S_VALUES};
const uint8_t sk_iq_signs[128] = {SK_IQ_SIGNS};
const int8_t sk_iq4_values[16] = {SK_IQ4_VALUES};
const int8_t sk_fp4_values[16] = {SK_FP4_VALUES};
