/* The experts of Q4_0 weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(Q4_0);
