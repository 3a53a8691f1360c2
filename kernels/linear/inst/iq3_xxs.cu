/* The products of IQ3_XXS weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(IQ3_XXS);
