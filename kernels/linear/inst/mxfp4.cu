/* The products of MXFP4 weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(MXFP4);
