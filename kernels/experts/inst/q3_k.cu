/* The experts of Q3_K weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(Q3_K);
