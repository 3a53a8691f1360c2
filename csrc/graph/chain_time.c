/* Replaying chains. See chain.h. */
#include "graph/chain_impl.h"

#include "op/cuda/cuda.h"

#include <time.h>

// Events 0 and 1 are of the warm-up and the run; two groups take turns with the others, so that one
// can be read while the other one runs.
#define GROUP  30
#define FIRST  2
#define QUEUED 512 // launches that are put ahead at most; the runtime makes room for 1024

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static sk_code replay(sk_chain *c, int64_t n, sk_status *st)
{
    for (int64_t i = 0; i < n; i++) SK_TRY(sk_dev_graph_launch(c->dev, c->graph, st));
    return SK_OK;
}

/* How many replays take about `s` seconds. */
static int64_t replays_of(double s, double replay_us)
{
    const double n = replay_us > 0 ? s * 1e6 / replay_us : 1;
    return n < 1 ? 1 : n > QUEUED ? QUEUED : (int64_t)n;
}

/* Without a pause: the next batch is queued before the last one has ended. */
static sk_code warm(sk_chain *c, double seconds, double *replay_us, sk_status *st)
{
    const double began = now_s();
    int64_t batch;
    double none;
    int32_t event = 0;
    SK_TRY(replay(c, 1, st));
    SK_TRY(sk_dev_mark(c->dev, 0, st));
    SK_TRY(replay(c, 2, st));
    SK_TRY(sk_dev_mark(c->dev, 1, st));
    SK_TRY(sk_dev_elapsed(c->dev, 0, 1, replay_us, st));
    *replay_us /= 2;
    batch = replays_of(5e-3, *replay_us);
    SK_TRY(replay(c, batch, st));
    SK_TRY(sk_dev_mark(c->dev, event, st));
    while (now_s() - began < seconds) {
        SK_TRY(replay(c, batch, st));
        SK_TRY(sk_dev_mark(c->dev, !event, st));
        SK_TRY(sk_dev_elapsed(c->dev, event, event, &none, st));
        event = !event;
    }
    return SK_OK;
}

/* A group of n replays with an event at each end. */
static sk_code put_group(sk_chain *c, int32_t first, int32_t n, sk_status *st)
{
    SK_TRY(sk_dev_mark(c->dev, first, st));
    for (int32_t i = 1; i <= n; i++) {
        SK_TRY(replay(c, 1, st));
        SK_TRY(sk_dev_mark(c->dev, first + i, st));
    }
    return SK_OK;
}

static sk_code take_group(sk_chain *c, int32_t first, int32_t n, double *us, sk_status *st)
{
    for (int32_t i = 0; i < n; i++)
        SK_TRY(sk_dev_elapsed(c->dev, first + i, first + i + 1, &us[i], st));
    return SK_OK;
}

static int32_t group_of(int32_t left) { return left < GROUP ? left : GROUP; }

/* Each group is read while the next one, or what comes behind the last one, is running. */
static sk_code sample(sk_chain *c, sk_chain_times *t, sk_status *st)
{
    int32_t first = FIRST;
    int32_t n = group_of(t->n_samples);
    int32_t done = 0;
    SK_TRY(put_group(c, first, n, st));
    while (done < t->n_samples) {
        const int32_t other = first == FIRST ? FIRST + GROUP + 1 : FIRST;
        const int32_t next = group_of(t->n_samples - done - n);
        SK_TRY(next ? put_group(c, other, next, st) : replay(c, 2, st));
        SK_TRY(take_group(c, first, n, t->us + done, st));
        done += n;
        first = other;
        n = next;
    }
    return SK_OK;
}

sk_code sk_chain_time(sk_chain *c, double warm_s, double tail_s, sk_chain_times *t, sk_status *st)
{
    double replay_us = 0;
    if (!c->graph) return SK_FAIL(st, SK_STATE, "chain: expected a recording, found none");
    if (t->n_samples < 1 || t->n_samples > SK_CHAIN_MAX_SAMPLES)
        return SK_FAIL(st, SK_INVALID, "chain: samples: expected 1 to %d, found %d",
                       SK_CHAIN_MAX_SAMPLES, (int)t->n_samples);
    if (!(warm_s >= 0 && warm_s <= 60 && tail_s >= 0 && tail_s <= 60))
        return SK_FAIL(st, SK_INVALID, "chain: seconds: expected 0 to 60");
    SK_TRY(sk_dev_sync(c->dev, st));
    SK_TRY(warm(c, warm_s, &replay_us, st));
    SK_TRY(sample(c, t, st));
    SK_TRY(replay(c, 2, st));
    SK_TRY(sk_dev_mark(c->dev, 0, st));
    SK_TRY(replay(c, t->n_samples, st));
    SK_TRY(sk_dev_mark(c->dev, 1, st));
    SK_TRY(sk_dev_elapsed(c->dev, 0, 1, &t->run_us, st));
    t->run_us /= t->n_samples;
    return tail_s > 0 ? replay(c, replays_of(tail_s, replay_us), st) : SK_OK;
}

static sk_code check_sync(sk_chain *c, sk_status *st)
{
    uint32_t left[SK_SYNC_WORDS];
    SK_TRY(sk_dev_read(c->dev, left, c->block + c->sync_at, sizeof left, st));
    for (size_t i = 0; i < SK_SYNC_WORDS; i++)
        if (left[i])
            return SK_FAIL(st, SK_MISMATCH,
                           "chain: %s: counter %zu: expected 0 afterwards, found %u",
                           sk_ops[c->op].name, i, left[i]);
    return SK_OK;
}

sk_code sk_chain_outputs(sk_chain *c, sk_status *st)
{
    if (!c->graph || !c->of_op)
        return SK_FAIL(st, SK_STATE, "chain: expected a recording of the op, found none");
    SK_TRY(sk_chain_upload(c, true, st));
    SK_TRY(replay(c, 1, st));
    for (int i = 0; i < SK_CHAIN_FIELDS; i++) {
        const sk_place *p = &c->places[i];
        if (!p->host || p->shared || !p->written) continue;
        SK_TRY(sk_dev_read(c->dev, p->host, c->block + p->at, p->bytes, st));
    }
    return check_sync(c, st);
}
