/* The products of Q5_K weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(Q5_K);
