/* The products of Q2_K weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(Q2_K);
