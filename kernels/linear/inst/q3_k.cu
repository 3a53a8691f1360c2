/* The products of Q3_K weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(Q3_K);
