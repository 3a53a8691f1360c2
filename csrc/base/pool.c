/* The worker threads.
 *
 * A job is published by writing its fields while the gate is shut, opening the gate and advancing
 * the epoch that idle workers watch. A worker counts itself in before it looks at the gate; the
 * caller shuts the gate before it looks at the count. Both sides use sequentially consistent
 * atomics, so either the worker finds the gate shut or the caller waits for it. A worker that wakes
 * up too late thus costs nothing: the others have done its share. */
#include "base/pool.h"

#include "base/fault.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define THREADS_MAX 1024
#define SPINS       1000 // pauses before sleeping: some tens of microseconds
#define PIECES      4    // pieces per thread, so that an unlucky thread holds the others up less

typedef struct worker {
    struct sk_pool *pool;
    pthread_t thread;
    int32_t at; // worker number, from 1
} worker;

struct sk_pool {
    // The job. Written only while the gate is shut and nobody is inside.
    sk_pool_fn fn;
    void *ctx;
    int64_t n;
    int64_t piece;
    _Atomic int64_t next;

    atomic_bool open;
    atomic_bool quit;
    atomic_bool caller_sleeps;
    atomic_int inside;   // workers between entering and leaving the gate
    atomic_int sleepers; // workers that sleep or are about to
    atomic_uint epoch;   // changes with every job and at the end

    pthread_mutex_t lock;
    pthread_cond_t wake; // workers wait for an epoch
    pthread_cond_t done; // the caller waits for the last worker to leave
    int32_t n_threads;   // with the caller
    int32_t n_started;
    pid_t owner;      // process that has the workers: a fork leaves them behind
    worker workers[]; // n_threads - 1
};

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static void work_off(sk_pool *pool, int32_t at)
{
    for (;;) {
        int64_t begin = atomic_fetch_add(&pool->next, pool->piece);
        int64_t end;
        if (begin >= pool->n) return;
        end = pool->n - begin < pool->piece ? pool->n : begin + pool->piece;
        pool->fn(pool->ctx, begin, end, at);
    }
}

static void leave(sk_pool *pool)
{
    if (atomic_fetch_sub(&pool->inside, 1) == 1 && atomic_load(&pool->caller_sleeps)) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_signal(&pool->done);
        pthread_mutex_unlock(&pool->lock);
    }
}

static unsigned wait_for_epoch(sk_pool *pool, unsigned seen)
{
    unsigned now = atomic_load(&pool->epoch);
    for (int i = 0; now == seen && i < SPINS; i++) {
        relax();
        now = atomic_load(&pool->epoch);
    }
    if (now != seen) return now;
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    while ((now = atomic_load(&pool->epoch)) == seen) pthread_cond_wait(&pool->wake, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
    return now;
}

static void next_epoch(sk_pool *pool)
{
    atomic_fetch_add(&pool->epoch, 1);
    if (atomic_load(&pool->sleepers) > 0) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->lock);
    }
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    sk_pool *pool = w->pool;
    unsigned seen = 0;
    for (;;) {
        seen = wait_for_epoch(pool, seen);
        if (atomic_load(&pool->quit)) return NULL;
        atomic_fetch_add(&pool->inside, 1);
        if (atomic_load(&pool->open)) work_off(pool, w->at);
        leave(pool);
    }
}

static void wait_until_empty(sk_pool *pool)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load(&pool->inside) == 0) return;
        relax();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->caller_sleeps, true);
    while (atomic_load(&pool->inside) != 0) pthread_cond_wait(&pool->done, &pool->lock);
    atomic_store(&pool->caller_sleeps, false);
    pthread_mutex_unlock(&pool->lock);
}

static sk_code start_workers(sk_pool *pool, sk_status *st)
{
    for (int32_t i = 0; i < pool->n_threads - 1; i++) {
        worker *w = &pool->workers[i];
        int error = SK_FAULT() ? 11 : 0; // EAGAIN, what a full system answers
        w->pool = pool;
        w->at = i + 1;
        if (!error) error = pthread_create(&w->thread, NULL, worker_main, w);
        if (error)
            return SK_FAIL_ERRNO(st, SK_NOMEM, error, "thread pool: worker %d of %d", w->at,
                                 pool->n_threads - 1);
        pool->n_started++;
    }
    return SK_OK;
}

sk_code sk_pool_make(sk_pool **out, int32_t n_threads, sk_status *st)
{
    sk_pool *pool;
    void *mem;
    sk_code rc;
    if (n_threads < 1 || n_threads > THREADS_MAX)
        return SK_FAIL(st, SK_INVALID, "thread pool: expected 1 .. %d threads, found %d",
                       THREADS_MAX, n_threads);
    SK_TRY(sk_mem_new(&mem, 1, sizeof(sk_pool) + (size_t)(n_threads - 1) * sizeof(worker),
                      "thread pool", st));
    pool = mem;
    pool->n_threads = n_threads;
    pool->owner = getpid();
    // With default attributes these cannot fail on any system we build for.
    (void)pthread_mutex_init(&pool->lock, NULL);
    (void)pthread_cond_init(&pool->wake, NULL);
    (void)pthread_cond_init(&pool->done, NULL);
    rc = start_workers(pool, st);
    if (rc != SK_OK) {
        sk_pool_drop(pool);
        return rc;
    }
    *out = pool;
    return SK_OK;
}

void sk_pool_drop(sk_pool *pool)
{
    if (!pool) return;
    if (pool->owner != getpid()) { // no workers here, and the lock may be held by one of them
        sk_mem_free(pool);
        return;
    }
    atomic_store(&pool->quit, true);
    next_epoch(pool);
    for (int32_t i = 0; i < pool->n_started; i++) (void)pthread_join(pool->workers[i].thread, NULL);
    (void)pthread_cond_destroy(&pool->done);
    (void)pthread_cond_destroy(&pool->wake);
    (void)pthread_mutex_destroy(&pool->lock);
    sk_mem_free(pool);
}

int32_t sk_pool_threads(const sk_pool *pool) { return pool->n_threads; }

void sk_pool_run(sk_pool *pool, int64_t n, int64_t grain, sk_pool_fn fn, void *ctx)
{
    int64_t piece = n / ((int64_t)pool->n_threads * PIECES);
    if (n <= 0) return;
    if (piece < grain) piece = grain;
    if (piece < 1) piece = 1;
    if (pool->n_threads == 1 || piece >= n) {
        fn(ctx, 0, n, 0);
        return;
    }
    pool->fn = fn;
    pool->ctx = ctx;
    pool->n = n;
    pool->piece = piece;
    atomic_store(&pool->next, 0);
    atomic_store(&pool->open, true);
    next_epoch(pool);
    work_off(pool, 0);
    atomic_store(&pool->open, false);
    wait_until_empty(pool);
}
