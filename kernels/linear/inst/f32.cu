/* The products of F32 weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(F32);
