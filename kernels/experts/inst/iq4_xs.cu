/* The experts of IQ4_XS weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(IQ4_XS);
