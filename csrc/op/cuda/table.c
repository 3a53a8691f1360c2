/* The table of launchers. See cuda.h. */
#include "op/cuda/cuda.h"

/* One wrapper an op gives all launchers the same type. */
#define SK_OP(name, fields)                                                                        \
    static int32_t run_##name(const void *args, const sk_launch *l) { return sk_k_##name(args, l); }
#include "op/ops.def"

const sk_cuda_fn sk_cuda_ops[SK_OP_COUNT] = {
#define SK_OP(name, fields) [SK_OP_##name] = run_##name,
#include "op/ops.def"
};
