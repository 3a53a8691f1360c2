/* The products of TQ2_0 weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(TQ2_0);
