/* The experts of IQ3_XXS weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(IQ3_XXS);
