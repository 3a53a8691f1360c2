/* The products of IQ2_XS weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(IQ2_XS);
