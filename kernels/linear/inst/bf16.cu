/* The products of BF16 weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(BF16);
