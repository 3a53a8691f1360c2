/* The products of F16 weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(F16);
