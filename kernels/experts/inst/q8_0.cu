/* The experts of Q8_0 weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(Q8_0);
