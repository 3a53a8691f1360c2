/* The experts of TQ1_0 weights. */
#include "kernels/experts/experts.cuh"

SK_EXPERT_FAMILY(TQ1_0);
