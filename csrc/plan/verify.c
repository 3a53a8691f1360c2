/* What makes a plan valid, checked before anything runs. */
#include "plan/plan.h"

#include "base/mem.h"

#include <string.h>

typedef struct verify {
    const sk_plan *p;
    uint8_t *written; // by buffer: 1 once some earlier step has written to it
    sk_status *st;
} verify;

static sk_code refuse(const verify *v, size_t step, const char *what, const sk_field *f,
                      const sk_view *view)
{
    const sk_step *s = &v->p->steps[step];
    const char *buf = view && view->buf >= 0 && (size_t)view->buf < v->p->space->n
                          ? v->p->space->bufs[view->buf].name
                          : "?";
    sk_code rc =
        SK_FAIL(v->st, SK_INVALID, "plan %s: step %zu %s (%s): %s%s%s: %s", v->p->name, step,
                sk_ops[s->op].name, s->label, f ? f->name : "", f ? " = " : "", f ? buf : "", what);
    if (v->st) v->st->step = (int32_t)step;
    return rc;
}

static sk_code check_view(const verify *v, size_t step, const sk_field *f, const sk_view *view)
{
    uint64_t span, end;
    const sk_buf *buf;
    if (!sk_view_present(view)) {
        if (f->mode & SK_OPTIONAL) return SK_OK;
        return refuse(v, step, "missing", f, view);
    }
    if ((size_t)view->buf >= v->p->space->n) return refuse(v, step, "no such buffer", f, view);
    buf = &v->p->space->bufs[view->buf];
    if (!sk_view_span(view, &span) || !sk_add_u64(view->off, span, &end) || end > buf->bytes)
        return refuse(v, step, "view outside its buffer", f, view);
    if (f->mode & SK_WRITE && buf->role == SK_ROLE_WEIGHT)
        return refuse(v, step, "writes to a weight", f, view);
    // Pending buffers are read across rounds on purpose; a transient never is.
    if (f->mode & SK_READ && buf->role == SK_ROLE_TRANSIENT && !v->written[view->buf])
        return refuse(v, step, "transient read before it is written", f, view);
    return SK_OK;
}

static sk_code check_step(verify *v, size_t i)
{
    const sk_step *s = &v->p->steps[i];
    const void *args = sk_plan_args(v->p, i);
    const sk_field *fields = sk_ops[s->op].fields;
    if (i && s->stage < v->p->steps[i - 1].stage)
        return refuse(v, i, "stage out of order", NULL, NULL);
    for (const sk_field *f = fields; f->kind != SK_FIELD_END; f++)
        if (f->kind == SK_FIELD_VIEW) SK_TRY(check_view(v, i, f, sk_field_view_const(args, f)));
    if (sk_op_check(s->op, args, v->st) != SK_OK) {
        // The op names its field; the plan adds which step it was.
        if (v->st) v->st->step = (int32_t)i;
        return SK_INVALID;
    }
    for (const sk_field *f = fields; f->kind != SK_FIELD_END; f++) {
        const sk_view *view = f->kind == SK_FIELD_VIEW ? sk_field_view_const(args, f) : NULL;
        if (view && sk_view_present(view) && f->mode & SK_WRITE) v->written[view->buf] = 1;
    }
    return SK_OK;
}

static bool overlap(const sk_view *a, const sk_view *b)
{
    uint64_t sa = 0, sb = 0;
    if (a->buf != b->buf) return false;
    (void)sk_view_span(a, &sa);
    (void)sk_view_span(b, &sb);
    return a->off < b->off + sb && b->off < a->off + sa;
}

/* Do two steps touch the same bytes with at least one of them writing? */
static const sk_field *conflict(const sk_plan *p, size_t i, size_t k)
{
    const void *ai = sk_plan_args(p, i), *ak = sk_plan_args(p, k);
    for (const sk_field *f = sk_ops[p->steps[i].op].fields; f->kind != SK_FIELD_END; f++) {
        const sk_view *vi = f->kind == SK_FIELD_VIEW ? sk_field_view_const(ai, f) : NULL;
        if (!vi || !sk_view_present(vi)) continue;
        for (const sk_field *g = sk_ops[p->steps[k].op].fields; g->kind != SK_FIELD_END; g++) {
            const sk_view *vk = g->kind == SK_FIELD_VIEW ? sk_field_view_const(ak, g) : NULL;
            if (vk && sk_view_present(vk) && ((f->mode | g->mode) & SK_WRITE) && overlap(vi, vk))
                return f;
        }
    }
    return NULL;
}

/* A side step against every step of another branch that may run at the same time. */
static sk_code check_races(const verify *v)
{
    const sk_plan *p = v->p;
    for (size_t b = 0; b < p->n_branches; b++) {
        const sk_branch *br = &p->branches[b];
        if (br->join < 0)
            return SK_FAIL(v->st, SK_INVALID, "plan %s: branch %d is never joined", p->name,
                           (int)br->number);
        for (size_t i = 0; i < p->n_steps; i++) {
            if (p->steps[i].branch != br->number) continue;
            if ((int32_t)i < br->fork || (int32_t)i >= br->join)
                return refuse(v, i, "side step outside its fork and join", NULL, NULL);
            for (size_t k = (size_t)br->fork; k < (size_t)br->join; k++) {
                const sk_field *f;
                if (p->steps[k].branch == br->number) continue;
                f = conflict(p, i, k);
                if (f)
                    return refuse(v, i, "race with a step of another branch", f,
                                  sk_field_view_const(sk_plan_args(p, i), f));
            }
        }
    }
    return SK_OK;
}

sk_code sk_plan_verify(const sk_plan *p, sk_status *st)
{
    verify v = {.p = p, .st = st};
    sk_code rc;
    SK_TRY(sk_mem_new((void **)&v.written, p->space->n, 1, "plan verification", st));
    rc = check_races(&v);
    for (size_t i = 0; rc == SK_OK && i < p->n_steps; i++) {
        if (p->steps[i].branch < 0 || (size_t)p->steps[i].branch > p->n_branches)
            rc = refuse(&v, i, "no such branch", NULL, NULL);
        else
            rc = check_step(&v, i);
    }
    for (size_t i = 0; rc == SK_OK && i < p->n_results; i++)
        if (!v.written[p->results[i]])
            rc = SK_FAIL(st, SK_INVALID, "plan %s: result %s is never written", p->name,
                         p->space->bufs[p->results[i]].name);
    sk_mem_free(v.written);
    return rc;
}
