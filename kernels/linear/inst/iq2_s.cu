/* The products of IQ2_S weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(IQ2_S);
