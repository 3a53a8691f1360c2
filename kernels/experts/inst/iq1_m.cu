/* The experts of IQ1_M weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(IQ1_M);
