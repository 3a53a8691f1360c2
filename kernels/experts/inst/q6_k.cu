/* The experts of Q6_K weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(Q6_K);
