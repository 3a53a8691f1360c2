/* The experts of IQ2_S weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(IQ2_S);
