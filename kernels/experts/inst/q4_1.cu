/* The experts of Q4_1 weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(Q4_1);
