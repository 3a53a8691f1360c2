/* The experts of TQ2_0 weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(TQ2_0);
