/* The products of F8_E4M3 weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(F8_E4M3);
