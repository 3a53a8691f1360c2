/* The experts of IQ3_S weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(IQ3_S);
