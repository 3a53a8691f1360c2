/* The products of IQ1_M weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(IQ1_M);
