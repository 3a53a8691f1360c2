/* The products of Q4_K weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(Q4_K);
