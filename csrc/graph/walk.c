/* See walk.h. */
#include "graph/walk.h"

#include <string.h>

/* Products without a norm take scratch where there is some, and can do without. */
static bool can_do_without(enum sk_op op) { return op == SK_OP_linear || op == SK_OP_linear_add; }

static uint64_t most_bytes(const sk_plan *plan, int32_t ctx_bound, bool needed)
{
    uint64_t most = 0;
    for (size_t i = 0; i < plan->n_steps; i++) {
        const sk_step *s = &plan->steps[i];
        uint64_t n;
        if (s->branch || (needed && can_do_without(s->op))) continue;
        n = sk_cuda_work_bytes(s->op, sk_plan_args(plan, i), ctx_bound);
        if (n > most) most = n;
    }
    return most;
}

uint64_t sk_walk_work_bytes(const sk_plan *plan, int32_t ctx_bound)
{
    return most_bytes(plan, ctx_bound, false);
}

uint64_t sk_walk_needed_bytes(const sk_plan *plan, int32_t ctx_bound)
{
    return most_bytes(plan, ctx_bound, true);
}

_Static_assert(SK_OP_COUNT <= 64, "sk_walk.omit has a bit for every op");
_Static_assert(SK_LANES <= SK_DEV_BRANCHES, "a lane is a side stream");

/* A packed weight has no inside that a view could begin at. */
static sk_code whole_weights(const sk_plan *plan, size_t step, sk_status *st)
{
    const void *args = sk_plan_args(plan, step);
    for (const sk_field *f = sk_ops[plan->steps[step].op].fields; f->kind != SK_FIELD_END; f++) {
        const sk_view *v;
        if (f->kind != SK_FIELD_VIEW) continue;
        v = sk_field_view_const(args, f);
        if (!sk_view_present(v) || plan->space->bufs[v->buf].role != SK_ROLE_WEIGHT) continue;
        if (!v->off) continue;
        return SK_FAIL(st, SK_UNSUPPORTED, "%s on CUDA: %s: expected a whole weight, found a part",
                       sk_ops[plan->steps[step].op].name, f->name);
    }
    return SK_OK;
}

static bool has_counters(enum sk_op op)
{
    return op == SK_OP_argmax || op == SK_OP_norm_argmax || op == SK_OP_linear_argmax ||
           op == SK_OP_draft_ngram;
}

/* The scratch and its counters are the main stream's. */
static sk_code no_scratch_beside(const sk_plan *plan, size_t step, sk_status *st)
{
    const sk_step *s = &plan->steps[step];
    if (!s->branch || can_do_without(s->op)) return SK_OK;
    if (!has_counters(s->op) && sk_cuda_work_bytes(s->op, sk_plan_args(plan, step), INT32_MAX) == 0)
        return SK_OK;
    return SK_FAIL(st, SK_UNSUPPORTED, "%s on CUDA: expected no scratch in a step beside others",
                   sk_ops[s->op].name);
}

sk_code sk_walk_check_step(const sk_plan *plan, size_t step, sk_status *st)
{
    sk_code rc = sk_cuda_check(plan->steps[step].op, sk_plan_args(plan, step), st);
    if (rc == SK_OK) rc = whole_weights(plan, step, st);
    if (rc == SK_OK) rc = no_scratch_beside(plan, step, st);
    if (rc != SK_OK && st && st->step < 0) st->step = (int32_t)step;
    return rc;
}

sk_code sk_walk_check(const sk_plan *plan, sk_status *st)
{
    for (size_t i = 0; i < plan->n_steps; i++) SK_TRY(sk_walk_check_step(plan, i, st));
    return SK_OK;
}

static bool writes(const sk_bound *b, size_t step, int32_t buf)
{
    const void *args = b->args + b->plan->steps[step].args_at;
    for (const sk_field *f = sk_ops[b->plan->steps[step].op].fields; f->kind != SK_FIELD_END; f++) {
        const sk_view *v;
        if (f->kind != SK_FIELD_VIEW || !(f->mode & SK_WRITE)) continue;
        v = sk_field_view_const(args, f);
        if (sk_view_present(v) && v->buf == buf) return true;
    }
    return false;
}

/* May a step read what it has under these names ahead of the dependency wait? Not when it is
 * written by a step from `settled` on: those may still run when it starts. */
static bool are_ready(const sk_bound *b, size_t step, int64_t settled, const char *one,
                      const char *other)
{
    const void *args = b->args + b->plan->steps[step].args_at;
    for (const sk_field *f = sk_ops[b->plan->steps[step].op].fields; f->kind != SK_FIELD_END; f++) {
        const sk_view *v;
        if (f->kind != SK_FIELD_VIEW) continue;
        if (strcmp(f->name, one) != 0 && strcmp(f->name, other) != 0) continue;
        v = sk_field_view_const(args, f);
        for (size_t i = settled < 0 ? step : (size_t)settled; i < step; i++)
            if (sk_view_present(v) && writes(b, i, v->buf)) return false;
    }
    return true;
}

/* Where a walk is. `before`: the last step on the main stream while an edge may start from it, else
 * -1. `settled`: the last one that lets its successor start only after its own wait; all that is
 * ahead of it has ended when a later step starts. -1: everything has. */
typedef struct cursor {
    const sk_walk *w;
    const sk_bound *b;
    int32_t ctx_bound;
    sk_stage from, to;
    bool alone; // one step, on the main stream, and none that goes out with it
    int64_t before, settled;
} cursor;

static sk_code poison(const cursor *c, size_t step, sk_status *st)
{
    const sk_plan *plan = c->b->plan;
    for (size_t i = 0; i < plan->n_lives; i++) {
        const sk_life *l = &plan->lives[i];
        if (l->last == (int32_t)step)
            SK_TRY(sk_dev_fill(c->w->dev, c->b->transients + l->off, 0xff,
                               plan->space->bufs[l->buf].bytes, st));
    }
    return SK_OK;
}

/* Does a branch fork or join ahead of the step? */
static bool is_border(const sk_plan *plan, size_t step)
{
    for (size_t i = 0; i < plan->n_branches; i++)
        if (plan->branches[i].fork == (int32_t)step || plan->branches[i].join == (int32_t)step)
            return true;
    return false;
}

/* How many steps from `step` on, all of them in [from, to], go out together. Not where each step is
 * looked at, where one of them is left out, or across a fork or a join. */
static int32_t group_at(const cursor *c, size_t step)
{
    const sk_plan *plan = c->b->plan;
    enum sk_op ops[SK_CUDA_GROUP_MAX];
    int32_t n = 0;
    if (c->w->direct || c->w->poison || c->alone) return 1;
    for (size_t i = step; i < plan->n_steps && n < SK_CUDA_GROUP_MAX; i++) {
        const sk_step *s = &plan->steps[i];
        if (s->branch || s->stage > c->to || c->w->omit >> s->op & 1) break;
        if (n > 0 && is_border(plan, i)) break;
        ops[n++] = s->op;
    }
    return n > 1 ? sk_cuda_group_find(ops, n) : 1;
}

/* Products read nothing but constants ahead of their wait, so their successors may start as soon as
 * they have started themselves, while others are still running ahead of them. Everything else lets
 * its successor start after its own wait, and so bounds how far steps run ahead: attention does, in
 * every layer. So do the products of experts, of which one fills a multiprocessor, and the second
 * of which may then read the work list ahead of its wait. */
bool sk_walk_opens_early(enum sk_op op)
{
    return op == SK_OP_linear || op == SK_OP_norm_linear || op == SK_OP_norm_glu ||
           op == SK_OP_linear_add || op == SK_OP_linear_parts;
}

/* The side stream of a step; 0: the main one. */
static int32_t lane_of(const sk_plan *plan, const sk_step *s)
{
    return s->branch ? plan->branches[s->branch - 1].lane : 0;
}

static int32_t enqueue(const cursor *c, size_t step, int32_t n, const sk_launch *l)
{
    enum sk_op ops[SK_CUDA_GROUP_MAX];
    const void *args[SK_CUDA_GROUP_MAX];
    for (int32_t i = 0; i < n; i++) {
        const sk_step *s = &c->b->plan->steps[step + (size_t)i];
        ops[i] = s->op;
        args[i] = c->b->args + s->args_at;
    }
    return sk_cuda_group_run(ops, args, n, l);
}

/* The step, and those that go out with it; *n of them. */
static sk_code launch(cursor *c, size_t step, int32_t *n, sk_status *st)
{
    const sk_walk *w = c->w;
    const sk_step *s = &c->b->plan->steps[step];
    const int32_t lane = c->alone ? 0 : lane_of(c->b->plan, s);
    const bool edge = w->edges && !w->direct && !w->poison && !s->branch && c->before >= 0;
    const sk_launch l = {
        .stream = lane ? sk_dev_branch_stream(w->dev, lane) : sk_dev_stream(w->dev),
        .work = s->branch ? NULL : w->work,
        .work_bytes = s->branch ? 0 : w->work_bytes,
        .sync = s->branch ? NULL : w->sync,
        .ctx_bound = c->ctx_bound,
        .n_sm = sk_dev_about(w->dev)->n_sm,
        .edge = edge,
        .fused = w->fused,
        .rows_ready = are_ready(c->b, step, c->settled, "rows", "count"),
        .list_ready = are_ready(c->b, step, c->settled, "list", "n"),
        .state_ready = are_ready(c->b, step, c->settled, "m", "window") &&
                       are_ready(c->b, step, c->settled, "kept", "pending"),
        .open_early = edge && sk_walk_opens_early(s->op),
    };
    *n = group_at(c, step);
    if (w->poison) SK_TRY(sk_dev_fill(w->dev, w->work, 0xff, w->work_bytes, st));
    SK_TRY(sk_dev_check(enqueue(c, step, *n, &l), sk_ops[s->op].name, (int32_t)step, st));
    if (w->direct) {
        sk_code rc = lane ? sk_dev_join(w->dev, lane, st) : SK_OK;
        if (rc == SK_OK) rc = sk_dev_sync(w->dev, st);
        if (rc != SK_OK && st && st->step < 0) st->step = (int32_t)step;
        SK_TRY(rc);
    }
    if (!s->branch) {
        c->before = (int64_t)step + *n - 1;
        if (!l.open_early) c->settled = (int64_t)step;
    }
    return w->poison ? poison(c, step, st) : SK_OK;
}

/* Does a walk of these stages come by the step? */
static bool comes_by(const sk_plan *plan, int32_t step, sk_stage from, sk_stage to)
{
    return (size_t)step < plan->n_steps && plan->steps[step].stage >= from &&
           plan->steps[step].stage <= to;
}

/* Forks and joins that stand before a step. Behind a join the next step waits for whole streams;
 * behind a fork it may start early as ever, as it is the branch that waits. `end`: all that is open
 * is joined, also what the plan joins in a later stage. */
static sk_code forks_and_joins(cursor *c, int32_t step, bool end, sk_status *st)
{
    const sk_plan *plan = c->b->plan;
    for (size_t i = 0; i < plan->n_branches; i++) {
        const sk_branch *br = &plan->branches[i];
        if (!comes_by(plan, br->fork, c->from, c->to)) continue;
        if (end ? !comes_by(plan, br->join, c->from, c->to) : br->join == step) {
            SK_TRY(sk_dev_join(c->w->dev, br->lane, st));
            c->before = c->settled = -1;
        }
        if (!end && br->fork == step) SK_TRY(sk_dev_fork(c->w->dev, br->lane, st));
    }
    return SK_OK;
}

sk_code sk_walk_run(const sk_walk *w, const sk_bound *b, sk_stage from, sk_stage to,
                    int32_t ctx_bound, sk_status *st)
{
    cursor c = {w, b, ctx_bound, from, to, false, -1, -1};
    int32_t n;
    const sk_plan *plan = b->plan;
    if (w->poison && from == SK_STAGE_CONTROL)
        SK_TRY(sk_dev_fill(w->dev, b->transients, 0xff, plan->transient_bytes, st));
    for (size_t i = 0; i < plan->n_steps; i += (size_t)n) {
        n = 1;
        if (plan->steps[i].stage < from || plan->steps[i].stage > to) continue;
        SK_TRY(forks_and_joins(&c, (int32_t)i, false, st));
        if (w->omit >> plan->steps[i].op & 1) continue;
        SK_TRY(launch(&c, i, &n, st));
    }
    return forks_and_joins(&c, (int32_t)plan->n_steps, true, st);
}

sk_code sk_walk_step(const sk_walk *w, const sk_bound *b, size_t step, int32_t ctx_bound,
                     sk_status *st)
{
    cursor c = {w, b, ctx_bound, SK_STAGE_CONTROL, SK_STAGE_PUBLISH, true, -1, -1};
    int32_t n;
    return launch(&c, step, &n, st);
}

/* ---- recording ------------------------------------------------------------------------------- */

typedef struct recording {
    const sk_walk *w;
    const sk_bound *b;
    sk_stage from, to;
    int32_t ctx_bound;
} recording;

static sk_code record(void *ctx, sk_status *st)
{
    const recording *r = ctx;
    return sk_walk_run(r->w, r->b, r->from, r->to, r->ctx_bound, st);
}

sk_code sk_walk_record(const sk_walk *w, const sk_bound *b, sk_stage from, sk_stage to,
                       int32_t ctx_bound, sk_dev_graph **out, sk_status *st)
{
    recording r = {w, b, from, to, ctx_bound};
    if (w->direct)
        return SK_FAIL(st, SK_STATE, "plan %s: a direct walk cannot be recorded", b->plan->name);
    return sk_dev_capture(w->dev, record, &r, out, st);
}
