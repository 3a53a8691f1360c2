/* Groups of steps that share launches. See cuda.h. */
#include "op/cuda/cuda.h"

static bool begins_with(const enum sk_op *ops, int32_t n, const enum sk_op *group, int32_t n_group)
{
    if (n < n_group) return false;
    for (int32_t i = 0; i < n_group; i++)
        if (ops[i] != group[i]) return false;
    return true;
}

int32_t sk_cuda_group_find(const enum sk_op *ops, int32_t n)
{
    static const enum sk_op none[] = {SK_OP_ctl_read, SK_OP_commit, SK_OP_draft_none,
                                      SK_OP_round_rows};
    static const enum sk_op planted[] = {SK_OP_ctl_read, SK_OP_commit, SK_OP_draft_planted,
                                         SK_OP_round_rows};
    static const enum sk_op end[] = {SK_OP_accept, SK_OP_publish};
    static const enum sk_op hyper[] = {SK_OP_hyper_inject, SK_OP_hyper_down};
    if (begins_with(ops, n, none, SK_COUNT(none))) return SK_COUNT(none);
    if (begins_with(ops, n, planted, SK_COUNT(planted))) return SK_COUNT(planted);
    if (begins_with(ops, n, end, SK_COUNT(end))) return SK_COUNT(end);
    if (begins_with(ops, n, hyper, SK_COUNT(hyper))) return SK_COUNT(hyper);
    return 1;
}

int32_t sk_cuda_group_run(const enum sk_op *ops, const void *const *args, int32_t n,
                          const sk_launch *l)
{
    if (n == 2)
        return ops[0] == SK_OP_accept ? sk_k_round_close(args[0], args[1], l)
                                      : sk_k_inject_down(args[0], args[1], l);
    if (n == 4)
        return ops[2] == SK_OP_draft_none
                   ? sk_k_round_open(args[0], args[1], args[2], NULL, args[3], l)
                   : sk_k_round_open(args[0], args[1], NULL, args[2], args[3], l);
    return sk_cuda_ops[ops[0]](args[0], l);
}
