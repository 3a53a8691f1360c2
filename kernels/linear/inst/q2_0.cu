/* The products of Q2_0 weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(Q2_0);
