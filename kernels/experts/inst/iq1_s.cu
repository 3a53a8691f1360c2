/* The experts of IQ1_S weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(IQ1_S);
