/* The experts of Q4_K weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(Q4_K);
