/* The products of Q8_0 weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(Q8_0);
