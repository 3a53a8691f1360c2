/* The experts of Q5_1 weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(Q5_1);
