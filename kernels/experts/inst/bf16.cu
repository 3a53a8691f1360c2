/* The experts of BF16 weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(BF16);
