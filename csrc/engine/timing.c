/* Measuring the rounds of a session. See session.h. */
#include "engine/session_impl.h"

#include <time.h>

static double now_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static sk_code need_device(const sk_session *s, sk_status *st)
{
    if (s->place.dev) return SK_OK;
    return SK_FAIL(st, SK_STATE, "timing: expected a session on a device, found one on the CPU");
}

static sk_code time_one(sk_session *s, bool full, bool events, sk_timed *out, const sk_done **done,
                        sk_status *st)
{
    const double begin = now_us();
    double submit;
    if (events) SK_TRY(sk_dev_mark(s->place.dev, 0, st));
    submit = now_us();
    SK_TRY(sk_session_submit(s, full, st));
    out->submit_us = now_us() - submit;
    if (events) SK_TRY(sk_dev_mark(s->place.dev, 1, st));
    SK_TRY(sk_session_round(s, NULL, full, 0, done, st));
    out->wall_us = now_us() - begin;
    out->gpu_us = 0;
    return events ? sk_dev_elapsed(s->place.dev, 0, 1, &out->gpu_us, st) : SK_OK;
}

static sk_code none_submitted(const sk_session *s, sk_status *st)
{
    if (s->submitted == s->round_at) return SK_OK;
    return SK_FAIL(st, SK_STATE, "timing: expected no submitted rounds, found some");
}

sk_code sk_session_timed(sk_session *s, bool full, sk_timed *out, const sk_done **done,
                         sk_status *st)
{
    SK_TRY(none_submitted(s, st));
    return time_one(s, full, s->place.dev != NULL, out, done, st);
}

sk_code sk_session_time(sk_session *s, bool full, bool events, int32_t n, double *wall_us,
                        double *gpu_us, sk_status *st)
{
    const sk_done *done;
    sk_timed t;
    SK_TRY(need_device(s, st));
    for (int32_t i = 0; i < n; i++) {
        SK_TRY(time_one(s, full, events, &t, &done, st));
        wall_us[i] = t.wall_us;
        gpu_us[i] = t.gpu_us;
    }
    return SK_OK;
}

sk_code sk_session_time_ahead(sk_session *s, bool full, int32_t ahead, int32_t n, double *wall_us,
                              sk_status *st)
{
    const sk_done *done;
    SK_TRY(need_device(s, st));
    for (int32_t i = 0; i < n; i++) {
        const double begin = now_us();
        SK_TRY(sk_session_round(s, NULL, full, ahead, &done, st));
        wall_us[i] = now_us() - begin;
    }
    return SK_OK;
}

/* Replays of one recorded round. The control entry of each is in the ring before it starts. */
static sk_code time_graph(sk_session *s, sk_dev_graph *g, int32_t n, double *us, sk_status *st)
{
    const sk_done *done;
    for (int32_t i = 0; i < n; i++) {
        sk_rings_put(&s->rings, s->submitted, NULL, 0);
        SK_TRY(sk_dev_mark(s->place.dev, 0, st));
        SK_TRY(sk_dev_graph_launch(s->place.dev, g, st));
        SK_TRY(sk_dev_mark(s->place.dev, 1, st));
        SK_TRY(sk_rings_wait(&s->rings, s->place.dev, s->submitted, "a round without some steps",
                             &done, st));
        SK_TRY(sk_dev_elapsed(s->place.dev, 0, 1, &us[i], st));
        s->round_at = ++s->submitted;
    }
    return SK_OK;
}

sk_code sk_session_time_without(sk_session *s, uint64_t omit, bool full, int32_t n, double *us,
                                int64_t *nodes, sk_status *st)
{
    sk_dev_graph *g = NULL;
    sk_walk walk = s->device.walk;
    int32_t rows, positions, plan;
    sk_code rc;
    SK_TRY(need_device(s, st));
    SK_TRY(none_submitted(s, st));
    // Without accept a round changes nothing, so that all replays are of the same one.
    walk.omit = omit | UINT64_C(1) << SK_OP_accept;
    sk_session_reach(s, &rows, &positions);
    plan = sk_program_round_find(&s->prog, rows, full);
    SK_TRY(sk_walk_record(&walk, &s->rounds[plan], SK_STAGE_CONTROL, SK_STAGE_PUBLISH,
                          s->device.tier[sk_device_tier(&s->device, positions)], &g, st));
    *nodes = sk_dev_graph_nodes(g);
    rc = time_graph(s, g, n, us, st);
    sk_dev_graph_drop(g);
    return rc;
}

bool sk_session_routes_find(const sk_session *s, size_t at, sk_routes *out)
{
    const sk_plan *p = &s->prog.rounds[s->round_plan].plan;
    for (size_t i = 0; s->prog.options.forced.on && i < p->n_steps; i++) {
        const sk_route_topk_args *a = sk_plan_args(p, i);
        if (p->steps[i].op != SK_OP_route_topk || at-- > 0) continue;
        *out = (sk_routes){p->steps[i].label, (int32_t)a->ids.dim[0], (int32_t)a->ids.dim[1],
                           a->ids.buf};
        return true;
    }
    return false;
}

sk_code sk_session_routes_read(const sk_session *s, const sk_routes *r, int32_t *out, sk_status *st)
{
    return sk_place_read(&s->place, out, sk_bound_find(&s->rounds[s->round_plan], r->buf),
                         (uint64_t)r->n_rows * (uint64_t)r->n * sizeof *out, st);
}

/* Positions that attention reads of n. */
static int64_t positions_read(enum sk_op op, const void *args, int32_t n)
{
    switch (op) {
    case SK_OP_attend: {
        const sk_attend_args *a = args;
        return a->window > 0 ? sk_min_i32(n, a->window) : n;
    }
    case SK_OP_rope_attend: {
        const sk_rope_attend_args *a = args;
        return a->window > 0 ? sk_min_i32(n, a->window) : n;
    }
    case SK_OP_attend_blocks: { // one row's blocks; those of the others may be the same
        const sk_attend_blocks_args *a = args;
        const int64_t most = a->blocks.dim[1] * a->ratio;
        return n < most ? n : most;
    }
    case SK_OP_block_topk:
        return n;
    default: // an append writes
        return 0;
    }
}

uint64_t sk_state_step_bytes(const sk_space *space, const sk_plan *plan, size_t step, int32_t n)
{
    const enum sk_op op = plan->steps[step].op;
    const void *args = sk_plan_args(plan, step);
    const uint64_t positions = (uint64_t)positions_read(op, args, n);
    uint64_t bytes = 0;
    for (const sk_field *f = sk_ops[op].fields; f->kind != SK_FIELD_END; f++) {
        const sk_view *v = f->kind == SK_FIELD_VIEW ? sk_field_view_const(args, f) : NULL;
        const sk_buf *b;
        uint64_t slot;
        if (!v || !sk_view_present(v) || !(f->mode & SK_READ)) continue;
        b = &space->bufs[v->buf];
        if (b->role != SK_ROLE_STATE || b->keep == SK_KEEP_NONE || b->dtype == SK_I32) continue;
        slot = b->bytes / (uint64_t)b->dim[0];
        if (b->keep == SK_KEEP_ALL)
            bytes += slot;
        else
            bytes += slot / (uint64_t)b->dim[1] *
                     ((positions + (uint64_t)b->keep_unit - 1) / (uint64_t)b->keep_unit);
    }
    return bytes;
}
