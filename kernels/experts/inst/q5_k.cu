/* The experts of Q5_K weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(Q5_K);
