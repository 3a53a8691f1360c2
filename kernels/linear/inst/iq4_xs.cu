/* The products of IQ4_XS weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(IQ4_XS);
