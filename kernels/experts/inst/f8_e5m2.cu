/* The experts of F8_E5M2 weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(F8_E5M2);
