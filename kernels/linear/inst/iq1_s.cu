/* The products of IQ1_S weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(IQ1_S);
