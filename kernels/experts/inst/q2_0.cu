/* The experts of Q2_0 weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(Q2_0);
