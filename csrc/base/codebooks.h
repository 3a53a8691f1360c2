/* Number tables of the codebook formats: facts of the file format, written by
 * tools/gen_codebooks.py and not by hand.
 *
 * A grid entry is a vector of eight or four components. It is packed into 16 bits, component k in
 * bits 2k, 2k+1 (eight components) or 4k .. 4k+2 (four): the number of a value in the table of the
 * same family. Behind the last entry there is a zero, so that four bytes can be read anywhere. */
#ifndef SK_CODEBOOKS_H
#define SK_CODEBOOKS_H

#include "base/sk_base.h"

/* IQ2_XXS */
extern const uint16_t sk_iq2xxs_grid[257];
/* IQ2_XS */
extern const uint16_t sk_iq2xs_grid[513];
/* IQ2_S */
extern const uint16_t sk_iq2s_grid[1025];
/* IQ3_XXS */
extern const uint16_t sk_iq3xxs_grid[257];
/* IQ3_S */
extern const uint16_t sk_iq3s_grid[513];
/* IQ1_S and IQ1_M */
extern const uint16_t sk_iq1s_grid[2049];
/* values of the IQ2 grids; the fourth does not occur */
extern const float sk_iq2_values[4];
/* values of the grid of IQ3_XXS */
extern const float sk_iq3xxs_values[8];
/* values of the grid of IQ3_S */
extern const float sk_iq3s_values[8];
/* signs of IQ2_XXS, IQ2_XS, IQ3_XXS: bit k is set when component k is negative */
extern const uint8_t sk_iq_signs[128];
/* IQ4_NL and IQ4_XS */
extern const int8_t sk_iq4_values[16];
/* MXFP4 and NVFP4: twice the value of E2M1 */
extern const int8_t sk_fp4_values[16];

#endif
