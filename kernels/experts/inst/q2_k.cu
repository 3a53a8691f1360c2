/* The experts of Q2_K weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(Q2_K);
