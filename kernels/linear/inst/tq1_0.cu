/* The products of TQ1_0 weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(TQ1_0);
