/* The products of IQ4_NL weights. */
#include "kernels/linear/family.cuh"

SK_LINEAR_FAMILY(IQ4_NL);
