/* The products of Q6_K weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(Q6_K);
