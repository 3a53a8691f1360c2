/* The experts of F8_E4M3 weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(F8_E4M3);
