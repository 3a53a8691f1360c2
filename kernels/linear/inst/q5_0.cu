/* The products of Q5_0 weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(Q5_0);
