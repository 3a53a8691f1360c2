/* The products of IQ3_S weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(IQ3_S);
