/* The experts of IQ2_XXS weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(IQ2_XXS);
