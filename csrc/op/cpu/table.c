/* The definition as a table, and the scratch that steps want. */
#include "op/cpu/fast.h"

const sk_cpu_fn sk_cpu_ops[SK_OP_COUNT] = {
#define SK_OP(name, fields) [SK_OP_##name] = sk_cpu_##name,
#include "op/ops.def"
};

uint64_t sk_cpu_work_bytes(enum sk_op op, const void *args, int32_t n_threads)
{
    switch (op) {
    case SK_OP_attend:
        return sk_attend_scratch_bytes(args) * (uint64_t)n_threads;
    case SK_OP_linear:
        return sk_fast_linear_bytes(args, n_threads);
    case SK_OP_expert_glu:
    case SK_OP_expert_linear:
        return sk_experts_bytes(op, args, n_threads);
    default:
        return sk_fused_bytes(op, args, n_threads);
    }
}
