/* The experts of Q5_0 weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(Q5_0);
