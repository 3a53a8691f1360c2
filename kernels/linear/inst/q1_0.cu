/* The products of Q1_0 weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(Q1_0);
