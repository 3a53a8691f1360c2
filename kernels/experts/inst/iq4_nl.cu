/* The experts of IQ4_NL weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(IQ4_NL);
