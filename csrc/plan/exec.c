/* See exec.h. */
#include "plan/exec.h"

#include "base/mem.h"

#include <string.h>

static void bind_views(const sk_plan *plan, uint8_t *args, uint8_t *const *base)
{
    for (size_t i = 0; i < plan->n_steps; i++) {
        void *step_args = args + plan->steps[i].args_at;
        for (const sk_field *f = sk_ops[plan->steps[i].op].fields; f->kind != SK_FIELD_END; f++) {
            sk_view *v;
            if (f->kind != SK_FIELD_VIEW) continue;
            v = sk_field_view(step_args, f);
            if (sk_view_present(v)) v->p = base[v->buf] + v->off;
        }
    }
}

sk_code sk_bound_make(sk_bound *out, const sk_plan *plan, uint8_t *const *addr, uint8_t *transients,
                      sk_status *st)
{
    sk_bound b = {.plan = plan, .transients = transients};
    uint8_t **base = NULL;
    void *args = NULL;
    sk_code rc = sk_mem_new((void **)&base, plan->space->n, sizeof *base, "binding", st);
    if (rc == SK_OK) rc = sk_mem_new_aligned(&args, plan->args_bytes, "bound step arguments", st);
    if (rc == SK_OK) {
        b.args = args;
        memcpy(base, addr, plan->space->n * sizeof *base);
        for (size_t i = 0; i < plan->n_lives; i++)
            base[plan->lives[i].buf] = transients + plan->lives[i].off;
        memcpy(b.args, plan->args, plan->args_bytes);
        bind_views(plan, b.args, base);
        *out = b;
    }
    sk_mem_free(base);
    return rc;
}

void sk_bound_drop(sk_bound *b)
{
    sk_mem_free(b->args);
    memset(b, 0, sizeof *b);
}

uint8_t *sk_bound_find(const sk_bound *b, int32_t buf)
{
    for (size_t i = 0; i < b->plan->n_lives; i++)
        if (b->plan->lives[i].buf == buf) return b->transients + b->plan->lives[i].off;
    return NULL;
}

static void poison_dead(const sk_bound *b, int32_t step)
{
    for (size_t i = 0; i < b->plan->n_lives; i++) {
        const sk_life *l = &b->plan->lives[i];
        if (l->last == step)
            memset(b->transients + l->off, 0xff, b->plan->space->bufs[l->buf].bytes);
    }
}

void sk_exec_step(const sk_exec *ex, const sk_bound *b, size_t step)
{
    const sk_step *s = &b->plan->steps[step];
    sk_cpu cpu = ex->cpu;
    cpu.table = ex->table;
    if (ex->poison) memset(cpu.work, 0xff, cpu.work_bytes);
    cpu.table[s->op](b->args + s->args_at, &cpu);
}

void sk_exec_run(const sk_exec *ex, const sk_bound *b, sk_stage from, sk_stage to)
{
    const sk_plan *plan = b->plan;
    if (ex->poison && from == SK_STAGE_CONTROL) memset(b->transients, 0xff, plan->transient_bytes);
    for (size_t i = 0; i < plan->n_steps; i++) {
        if (plan->steps[i].stage < from || plan->steps[i].stage > to) continue;
        sk_exec_step(ex, b, i);
        if (ex->poison) poison_dead(b, (int32_t)i);
    }
}

uint64_t sk_exec_work_bytes(const sk_plan *plan, int32_t n_threads)
{
    uint64_t most = 0;
    for (size_t i = 0; i < plan->n_steps; i++) {
        uint64_t bytes = sk_cpu_work_bytes(plan->steps[i].op, sk_plan_args(plan, i), n_threads);
        if (bytes > most) most = bytes;
    }
    return most;
}
