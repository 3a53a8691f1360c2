/* The products of Q4_0 weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(Q4_0);
