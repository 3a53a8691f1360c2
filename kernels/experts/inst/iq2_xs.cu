/* The experts of IQ2_XS weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(IQ2_XS);
