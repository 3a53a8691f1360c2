/* Measuring the floor. One run opens the device, makes what it needs, warms up, samples, and drops
 * everything again: it is a measurement, not a service. */
#include "dev/dev.h"
#include "dev/floor.h"
#include "kernels/floor/floor.h"

#include <time.h>

#define WINDOW_LEAST (UINT64_C(256) << 20)
#define WARM_LEAST   3
#define WARM_MOST    200
#define WARM_US      1e6

typedef struct run {
    const sk_floor_case *c;
    sk_dev *dev;
    sk_dev_graph *graph; // NULL: `submit` launches by itself
    uint8_t *arena, *small;
    uint64_t arena_bytes;
    uint64_t at; // where in the arena the next read begins
    sk_f_launch launch;
} run;

static uint32_t *sink(const run *r) { return (uint32_t *)(void *)r->small; }
static uint32_t *counter(const run *r) { return (uint32_t *)(void *)(r->small + 128); }

static uint64_t bytes_of(const sk_floor_case *c, int64_t i)
{
    uint64_t bytes = c->node_bytes ? c->node_bytes[i] : c->bytes;
    return (bytes + 15) / 16 * 16;
}

/* What is asked of one SM decides: little needs few threads, which start and end sooner. */
static int32_t shape_of(int32_t shape, uint64_t bytes, int32_t n_sm)
{
    uint64_t share = bytes / (uint64_t)n_sm;
    if (shape >= 0) return shape;
    return share <= 32 << 10 ? 0 : share <= 64 << 10 ? 1 : 3;
}

static sk_code put_read(run *r, int64_t i, sk_status *st)
{
    uint64_t bytes = bytes_of(r->c, i);
    if (r->arena_bytes - r->at < bytes) r->at = 0;
    SK_TRY(
        sk_dev_check(sk_f_read(r->arena + r->at, bytes,
                               shape_of(r->c->shape, bytes, r->launch.n_sm), sink(r), &r->launch),
                     "floor read", (int32_t)i, st));
    r->at += bytes;
    return SK_OK;
}

static sk_code put_empty(run *r, int64_t i, sk_status *st)
{
    return sk_dev_check(sk_f_empty(0, sink(r), &r->launch), "floor empty", (int32_t)i, st);
}

static sk_code put_stage(run *r, int64_t i, sk_status *st)
{
    struct CUstream_st *main_stream = r->launch.stream;
    sk_code rc;
    SK_TRY(sk_dev_fork(r->dev, 1, st));
    SK_TRY(put_empty(r, i, st));
    r->launch.stream = sk_dev_branch_stream(r->dev, 1);
    rc = put_empty(r, i, st);
    r->launch.stream = main_stream;
    SK_TRY(rc);
    SK_TRY(sk_dev_join(r->dev, 1, st));
    return put_empty(r, i, st);
}

/* All nodes of one launch on the stream. */
static sk_code put_all(void *ctx, sk_status *st)
{
    run *r = ctx;
    r->at = 0;
    for (int64_t i = 0; i < r->c->n; i++) {
        r->launch.edge = r->c->programmatic && i > 0;
        if (r->c->kind == SK_FLOOR_CHAIN)
            SK_TRY(put_read(r, i, st));
        else if (r->c->kind == SK_FLOOR_FORK)
            SK_TRY(put_stage(r, i, st));
        else
            SK_TRY(put_empty(r, i, st));
    }
    return SK_OK;
}

static bool by_graph(sk_floor_kind kind)
{
    return kind != SK_FLOOR_COPY && kind != SK_FLOOR_READ && kind != SK_FLOOR_BARRIER;
}

/* A time is a time of what was asked for, or it is none. */
static sk_code check_graph(const sk_floor_case *c, const sk_floor_about *found, sk_status *st)
{
    bool fork = c->kind == SK_FLOOR_FORK;
    int64_t nodes = fork ? 3 * c->n : c->n;
    int64_t edges = fork ? found->n_edges : c->n - 1; // a branch also keeps its own order
    if (found->n_nodes == nodes && found->n_edges == edges &&
        found->n_programmatic == (c->programmatic ? edges : 0))
        return SK_OK;
    return SK_FAIL(st, SK_MISMATCH,
                   "floor graph: expected %lld nodes and %lld edges, found %lld and %lld, %lld of "
                   "them programmatic",
                   (long long)nodes, (long long)edges, (long long)found->n_nodes,
                   (long long)found->n_edges, (long long)found->n_programmatic);
}

static sk_code record(run *r, sk_floor_about *about, sk_status *st)
{
    SK_TRY(put_all(r, st)); // once by hand, which loads the kernels
    SK_TRY(sk_dev_sync(r->dev, st));
    SK_TRY(sk_dev_capture(r->dev, put_all, r, &r->graph, st));
    about->n_nodes = sk_dev_graph_nodes(r->graph);
    about->n_edges = sk_dev_graph_edges(r->graph, &about->n_programmatic);
    return check_graph(r->c, about, st);
}

static uint64_t arena_wanted(const sk_floor_case *c, uint64_t l2_bytes)
{
    uint64_t bytes = 4 * l2_bytes > WINDOW_LEAST ? 4 * l2_bytes : WINDOW_LEAST;
    if (c->kind == SK_FLOOR_COPY) return 2 * bytes_of(c, 0);
    if (c->kind == SK_FLOOR_READ) return bytes > bytes_of(c, 0) ? bytes : bytes_of(c, 0);
    if (c->kind != SK_FLOOR_CHAIN) return 0;
    for (int64_t i = 0; i < c->n; i++) bytes = bytes > bytes_of(c, i) ? bytes : bytes_of(c, i);
    return bytes;
}

static sk_code check_edges(const run *r, sk_status *st)
{
    int32_t has = sk_f_has_edges();
    if (has < 0) return sk_dev_check(-has, "cudaFuncGetAttributes", -1, st);
    if (r->c->programmatic && !has)
        return SK_FAIL(st, SK_UNSUPPORTED,
                       "CUDA device %s: programmatic edges need compute capability 9.0 and kernels "
                       "built for it",
                       sk_dev_about(r->dev)->name);
    return SK_OK;
}

static sk_code make(run *r, sk_floor_about *about, sk_status *st)
{
    const sk_dev_info *info = sk_dev_about(r->dev);
    r->launch.stream = sk_dev_stream(r->dev);
    r->launch.n_sm = info->n_sm;
    SK_TRY(check_edges(r, st));
    SK_TRY(sk_dev_alloc(r->dev, 256, "floor counters", &r->small, st));
    about->arena_bytes = r->arena_bytes = arena_wanted(r->c, info->l2_bytes) / 16 * 16;
    if (r->arena_bytes) {
        SK_TRY(sk_dev_alloc(r->dev, r->arena_bytes, "floor arena", &r->arena, st));
        SK_TRY(sk_dev_check(sk_f_random(r->arena, r->arena_bytes, 1, &r->launch), "floor random",
                            -1, st));
        SK_TRY(sk_dev_sync(r->dev, st));
    }
    return by_graph(r->c->kind) ? record(r, about, st) : SK_OK;
}

static sk_code submit(run *r, sk_status *st)
{
    uint64_t half = r->arena_bytes / 2;
    if (r->graph) return sk_dev_graph_launch(r->dev, r->graph, st);
    if (r->c->kind == SK_FLOOR_READ) return put_read(r, 0, st);
    if (r->c->kind == SK_FLOOR_COPY)
        return sk_dev_copy(r->dev, r->arena, r->arena + half, half, st);
    return sk_dev_check(sk_f_barrier(counter(r), (int32_t)r->c->n, r->c->shape, &r->launch),
                        "floor barrier", -1, st);
}

static sk_code by_device_clock(run *r, double *us, sk_status *st)
{
    if (r->c->kind == SK_FLOOR_BARRIER)
        SK_TRY(sk_dev_fill(r->dev, (uint8_t *)counter(r), 0, sizeof(uint32_t), st));
    SK_TRY(sk_dev_mark(r->dev, 0, st));
    SK_TRY(submit(r, st));
    SK_TRY(sk_dev_mark(r->dev, 1, st));
    return sk_dev_elapsed(r->dev, 0, 1, us, st);
}

static double now_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static sk_code by_host_clock(run *r, double *us, sk_status *st)
{
    double began = now_us();
    double called;
    SK_TRY(submit(r, st));
    called = now_us();
    SK_TRY(sk_dev_sync(r->dev, st)); // the next sample finds the device idle
    *us = (r->c->kind == SK_FLOOR_SUBMIT ? called : now_us()) - began;
    return SK_OK;
}

static sk_code sample(run *r, double *us, sk_status *st)
{
    bool host = r->c->kind == SK_FLOOR_SUBMIT || r->c->kind == SK_FLOOR_RETURN;
    return host ? by_host_clock(r, us, st) : by_device_clock(r, us, st);
}

static sk_code measure(run *r, double *us, sk_floor_about *about, sk_status *st)
{
    double began;
    double cold;
    SK_TRY(make(r, about, st));
    began = now_us();
    for (int i = 0; i < WARM_LEAST || (i < WARM_MOST && now_us() - began < WARM_US); i++)
        SK_TRY(sample(r, &cold, st));
    for (int32_t i = 0; i < r->c->n_samples; i++) SK_TRY(sample(r, &us[i], st));
    return SK_OK;
}

sk_code sk_floor_put_read(sk_dev *d, const uint8_t *p, uint64_t bytes, int32_t shape, bool edge,
                          uint32_t *sink, sk_status *st)
{
    const sk_f_launch l = {sk_dev_stream(d), sk_dev_about(d)->n_sm, edge};
    return sk_dev_check(sk_f_read(p, bytes, shape_of(shape, bytes, l.n_sm), sink, &l), "floor read",
                        -1, st);
}

sk_code sk_floor_run(int32_t device, const sk_floor_case *c, double *us, sk_floor_about *about,
                     sk_status *st)
{
    sk_floor_about found = {0};
    run r = {.c = c};
    sk_code rc;
    SK_TRY(sk_floor_check(c, st));
    SK_TRY(sk_dev_open(&r.dev, device, st));
    rc = measure(&r, us, &found, st);
    if (rc == SK_OK) *about = found;
    sk_dev_graph_drop(r.graph);
    sk_dev_free(r.dev, r.arena);
    sk_dev_free(r.dev, r.small);
    sk_dev_close(r.dev);
    return rc;
}
