/* The products of NVFP4 weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(NVFP4);
