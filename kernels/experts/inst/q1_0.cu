/* The experts of Q1_0 weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(Q1_0);
