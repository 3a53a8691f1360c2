/* Measuring the rounds of a session on a device. See session.h. */
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

/* One round: from the call until its record can be read, and between events on the device. */
static sk_code time_one(sk_session *s, bool full, bool events, double *wall_us, double *gpu_us,
                        sk_status *st)
{
    const double begin = now_us();
    const sk_done *done;
    if (events) SK_TRY(sk_dev_mark(s->place.dev, 0, st));
    SK_TRY(sk_session_submit(s, full, st));
    if (events) SK_TRY(sk_dev_mark(s->place.dev, 1, st));
    SK_TRY(sk_session_round(s, NULL, full, 0, &done, st));
    *wall_us = now_us() - begin;
    *gpu_us = 0;
    return events ? sk_dev_elapsed(s->place.dev, 0, 1, gpu_us, st) : SK_OK;
}

sk_code sk_session_time(sk_session *s, bool full, bool events, int32_t n, double *wall_us,
                        double *gpu_us, sk_status *st)
{
    SK_TRY(need_device(s, st));
    for (int32_t i = 0; i < n; i++) SK_TRY(time_one(s, full, events, &wall_us[i], &gpu_us[i], st));
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
    if (s->submitted != s->round_at)
        return SK_FAIL(st, SK_STATE, "timing: expected no submitted rounds, found some");
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
