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
    case SK_OP_keep_rows:
    case SK_OP_take_rows:
    case SK_OP_window_commit:
    case SK_OP_window_push:
    case SK_OP_conv:
    case SK_OP_gdn_inputs:
    case SK_OP_gdn_step:
    case SK_OP_gdn_scan:
    case SK_OP_gdn_fold:
    case SK_OP_gated_norm:
        return sk_recurrent_bytes(op, args, n_threads);
    case SK_OP_stream_copy:
    case SK_OP_stream_add:
    case SK_OP_hyper_down:
    case SK_OP_hyper_mix:
    case SK_OP_hyper_inject:
    case SK_OP_ngram_rows:
    case SK_OP_gather_heads:
    case SK_OP_ple_gate:
    case SK_OP_draft_rows:
    case SK_OP_draft_put:
    case SK_OP_commit_rows:
    case SK_OP_next_ids:
    case SK_OP_mtp_join:
        return sk_streams_bytes(op, args, n_threads);
    case SK_OP_index_append:
    case SK_OP_block_topk:
    case SK_OP_attend_blocks:
        return sk_sparse_bytes(op, args, n_threads);
    default:
        return sk_fused_bytes(op, args, n_threads);
    }
}
