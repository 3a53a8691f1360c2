/* The experts of NVFP4 weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(NVFP4);
