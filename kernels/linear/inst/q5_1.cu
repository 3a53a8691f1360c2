/* The products of Q5_1 weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(Q5_1);
