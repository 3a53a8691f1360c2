/* Lifetimes of transients over the step list, and their offsets in one block.
 *
 * A transient lives from its first to its last use. One that a side branch touches lives from the
 * fork to the join at least, because the branch may run at any time in between; so nothing that is
 * alive on either side of a fork shares bytes with it. A result lives all the time: stages of a
 * plan may run again by themselves before the host has read it. */
#include "plan/plan.h"

#include "base/layout.h"
#include "base/mem.h"

#include <string.h>

static sk_life *life_of(sk_plan *p, const int32_t *at, int32_t buf)
{
    return at[buf] < 0 ? NULL : &p->lives[at[buf]];
}

static sk_code touch(sk_plan *p, int32_t *at, int32_t buf, const sk_step *s, int32_t step,
                     sk_status *st)
{
    int32_t first = step, last = step;
    sk_life *l;
    if (p->space->bufs[buf].role != SK_ROLE_TRANSIENT) return SK_OK;
    if (s->branch) {
        first = sk_min_i32(first, p->branches[s->branch - 1].fork);
        last = sk_max_i32(last, p->branches[s->branch - 1].join);
    }
    if (at[buf] < 0) {
        SK_TRY(sk_mem_grow((void **)&p->lives, p->n_lives, &p->lives_cap, sizeof *p->lives,
                           "transient lifetimes", st));
        at[buf] = (int32_t)p->n_lives;
        p->lives[p->n_lives++] = (sk_life){buf, first, last, 0};
        return SK_OK;
    }
    l = life_of(p, at, buf);
    l->first = sk_min_i32(l->first, first);
    l->last = sk_max_i32(l->last, last);
    return SK_OK;
}

static sk_code collect(sk_plan *p, int32_t *at, sk_status *st)
{
    for (size_t b = 0; b < p->space->n; b++) at[b] = -1;
    for (size_t i = 0; i < p->n_steps; i++) {
        const void *args = sk_plan_args(p, i);
        for (const sk_field *f = sk_ops[p->steps[i].op].fields; f->kind != SK_FIELD_END; f++) {
            const sk_view *v;
            if (f->kind != SK_FIELD_VIEW) continue;
            v = sk_field_view_const(args, f);
            if (sk_view_present(v)) SK_TRY(touch(p, at, v->buf, &p->steps[i], (int32_t)i, st));
        }
    }
    for (size_t i = 0; i < p->n_results; i++) {
        sk_life *l = life_of(p, at, p->results[i]);
        if (!l) continue;
        l->first = 0;
        l->last = (int32_t)p->n_steps;
    }
    return SK_OK;
}

/* First fit in order of first use: the lowest offset that is free of everything alive at the same
 * time. Quadratic in the number of transients, which is thousands at most, once per plan. */
static sk_code place(sk_plan *p, size_t i, sk_status *st)
{
    sk_life *l = &p->lives[i];
    uint64_t bytes = p->space->bufs[l->buf].bytes;
    uint64_t off = 0, end, align_end;
    bool moved = true;
    while (moved) {
        moved = false;
        for (size_t k = 0; k < i; k++) {
            const sk_life *o = &p->lives[k];
            uint64_t o_end = o->off + p->space->bufs[o->buf].bytes;
            if (o->last < l->first || l->last < o->first) continue;
            if (off < o_end && o->off < off + bytes) {
                if (!sk_align_up(o_end, SK_LAYOUT_ALIGN, &off)) goto overflow;
                moved = true;
            }
        }
        if (!sk_add_u64(off, bytes, &end)) goto overflow;
    }
    if (!sk_align_up(end, SK_LAYOUT_ALIGN, &align_end)) goto overflow;
    l->off = off;
    if (align_end > p->transient_bytes) p->transient_bytes = align_end;
    return SK_OK;
overflow:
    return SK_FAIL(st, SK_INVALID, "plan %s: transients exceed the address space", p->name);
}

sk_code sk_plan_lay_out(sk_plan *p, sk_status *st)
{
    int32_t *at = NULL;
    sk_code rc;
    p->n_lives = 0;
    p->transient_bytes = 0;
    SK_TRY(sk_mem_new((void **)&at, p->space->n, sizeof *at, "lifetimes", st));
    rc = collect(p, at, st);
    for (size_t i = 0; rc == SK_OK && i < p->n_lives; i++) rc = place(p, i, st);
    sk_mem_free(at);
    return rc;
}
