/* The experts of F16 weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(F16);
