/* The experts of MXFP4 weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(MXFP4);
