/* The products of IQ2_XXS weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(IQ2_XXS);
