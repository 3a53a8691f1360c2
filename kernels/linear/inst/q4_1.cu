/* The products of Q4_1 weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(Q4_1);
