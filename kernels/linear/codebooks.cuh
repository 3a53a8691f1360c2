/* Number tables of the codebook formats for the kernels, written by tools/gen_codebooks.py and not
 * by hand. table.cuh makes entries out of them when it is compiled. */
#pragma once

#include <stdint.h>

#include "base/codebook_numbers.h"

namespace sk
{
constexpr uint16_t kGridIq2xxs[256] = {SK_IQ2XXS_GRID};
constexpr int kValuesIq2xxs[3] = {SK_IQ2XXS_VALUES};
constexpr uint16_t kGridIq2xs[512] = {SK_IQ2XS_GRID};
constexpr uint16_t kGridIq2s[1024] = {SK_IQ2S_GRID};
constexpr uint16_t kGridIq3xxs[256] = {SK_IQ3XXS_GRID};
constexpr int kValuesIq3xxs[8] = {SK_IQ3XXS_VALUES};
constexpr uint16_t kGridIq3s[512] = {SK_IQ3S_GRID};
constexpr int kValuesIq3s[8] = {SK_IQ3S_VALUES};
constexpr uint16_t kGridIq1s[2048] = {SK_IQ1S_GRID};
constexpr int kValuesIq1s[3] = {SK_IQ1S_VALUES};
constexpr int kValuesIq4[16] = {SK_IQ4_VALUES};
constexpr int kValuesFp4[16] = {SK_FP4_VALUES};
} // namespace sk
