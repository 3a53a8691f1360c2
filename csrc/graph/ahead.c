/* See ahead.h. */
#include "graph/ahead.h"

#define AT_ONCE (32u << 20) // asked for and not used yet: fits into the L2 cache beside what runs
#define STEPS   40          // to look ahead

/* Do its kernels ask (kernels/common/rows.cuh)? */
static bool asks(enum sk_op op)
{
    switch (op) {
    case SK_OP_hyper_down:
    case SK_OP_hyper_inject:
    case SK_OP_hyper_mix:
    case SK_OP_conv:
    case SK_OP_gdn_inputs:
    case SK_OP_gated_norm:
    case SK_OP_gate_add:
    case SK_OP_expert_sum:
    case SK_OP_rms_norm:
    case SK_OP_rope:
        return true;
    default:
        return false;
    }
}

static bool is_experts(enum sk_op op)
{
    return op == SK_OP_expert_glu || op == SK_OP_expert_linear;
}

/* Bytes of a field that is a matrix of weights, all of which the step reads; else 0. */
static uint64_t weight_bytes(const sk_bound *b, size_t step, const sk_field *f, const uint8_t **p)
{
    const sk_step *s = &b->plan->steps[step];
    const sk_view *v;
    if (f->kind != SK_FIELD_VIEW || s->op == SK_OP_gather_rows) return 0;
    if (!sk_cuda_takes_packed(s->op, f)) return 0;
    v = sk_field_view_const(b->args + s->args_at, f);
    if (!sk_view_present(v) || v->rank != 2 || !sk_k_packs(v->dtype)) return 0;
    *p = v->p;
    return sk_cuda_packed_bytes(v->dtype, v->rank, v->dim);
}

/* Asked for ahead of *a and not used yet when `step` runs. */
static uint64_t under_way(const sk_ahead *a, const sk_bound *b, size_t step)
{
    uint64_t sum = 0;
    for (size_t i = step + 1; i <= a->step && i < b->plan->n_steps; i++) {
        const sk_field *fields = sk_ops[b->plan->steps[i].op].fields;
        for (size_t k = 0; fields[k].kind != SK_FIELD_END; k++) {
            const uint8_t *p;
            if (i < a->step || k < a->field) sum += weight_bytes(b, i, &fields[k], &p);
        }
    }
    return sum;
}

void sk_ahead_ask(sk_ahead *a, const sk_bound *b, size_t step, sk_stage to, sk_launch *l)
{
    const sk_plan *plan = b->plan;
    uint64_t sum;
    int n = 0;
    if (!asks(plan->steps[step].op)) return;
    if (a->step <= step) *a = (sk_ahead){step + 1, 0};
    sum = under_way(a, b, step);
    for (; a->step < plan->n_steps && a->step <= step + STEPS; a->step++, a->field = 0) {
        const sk_step *s = &plan->steps[a->step];
        const sk_field *fields = sk_ops[s->op].fields;
        if (s->stage > to || is_experts(s->op)) return;
        for (; fields[a->field].kind != SK_FIELD_END; a->field++) {
            const uint8_t *p = NULL;
            const uint64_t bytes = weight_bytes(b, a->step, &fields[a->field], &p);
            if (!bytes) continue;
            if (n == SK_AHEAD_RANGES || sum + bytes > AT_ONCE) return;
            l->ahead[n].p = p;
            l->ahead[n++].bytes = (uint32_t)bytes;
            sum += bytes;
        }
    }
}
