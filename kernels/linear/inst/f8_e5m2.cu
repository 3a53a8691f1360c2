/* The products of F8_E5M2 weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(F8_E5M2);
