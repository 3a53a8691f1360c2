/* The thread pool: every item once, whatever the number of threads and the grain; private worker
 * numbers; many short jobs, with pauses long enough for the workers to fall asleep. */
#include "tests/c/sk_test.h"

#include "base/pool.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

#define ITEMS 3000

typedef struct record {
    atomic_int hits[ITEMS];
    atomic_int busy[8]; // workers inside the function, by number
    atomic_int clashes;
    int64_t n;
    int64_t grain;
    int64_t sum[8]; // per worker, without atomics: the pool has to order these
} record;

static void visit(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    record *r = ctx;
    if (atomic_fetch_add(&r->busy[worker], 1) != 0) atomic_fetch_add(&r->clashes, 1);
    if (begin < 0 || begin >= end || end > r->n || (end - begin < r->grain && end < r->n))
        atomic_fetch_add(&r->clashes, 1);
    for (int64_t i = begin; i < end; i++) {
        atomic_fetch_add(&r->hits[i], 1);
        r->sum[worker] += i;
    }
    atomic_fetch_sub(&r->busy[worker], 1);
}

static bool covers(sk_pool *pool, int64_t n, int64_t grain)
{
    static record r; // too large for a stack
    int64_t sum = 0;
    memset(&r, 0, sizeof r);
    r.n = n;
    r.grain = grain;
    sk_pool_run(pool, n, grain, visit, &r);
    for (int64_t i = 0; i < ITEMS; i++)
        if (atomic_load(&r.hits[i]) != (i < n)) return false;
    for (int32_t w = 0; w < 8; w++) sum += r.sum[w];
    return atomic_load(&r.clashes) == 0 && sum == n * (n - 1) / 2;
}

static void each_item_once(void)
{
    static const int64_t sizes[] = {1, 2, 7, 8, 63, 1000, ITEMS};
    static const int64_t grains[] = {0, 1, 3, 64, 100000};
    for (int32_t threads = 1; threads <= 8; threads++) {
        sk_status st = SK_STATUS_INIT;
        sk_pool *pool = NULL;
        SK_REQUIRE(SK_EXPECT_OK(sk_pool_make(&pool, threads, &st), &st));
        SK_EXPECT_INT(threads, sk_pool_threads(pool));
        for (size_t s = 0; s < SK_COUNT(sizes); s++)
            for (size_t g = 0; g < SK_COUNT(grains); g++)
                SK_EXPECT(covers(pool, sizes[s], grains[g] ? grains[g] : 1));
        SK_EXPECT(covers(pool, 0, 1));
        sk_pool_drop(pool);
    }
}

static void count_up(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    atomic_fetch_add((atomic_long *)ctx, (long)(end - begin));
}

static void many_short_jobs(void)
{
    sk_status st = SK_STATUS_INIT;
    sk_pool *pool = NULL;
    atomic_long total = 0;
    SK_REQUIRE(SK_EXPECT_OK(sk_pool_make(&pool, 4, &st), &st));
    for (int i = 0; i < 20000; i++) sk_pool_run(pool, 16, 1, count_up, &total);
    for (int i = 0; i < 20; i++) { // asleep by now
        const struct timespec nap = {.tv_nsec = 2000000};
        (void)nanosleep(&nap, NULL);
        sk_pool_run(pool, 16, 1, count_up, &total);
    }
    SK_EXPECT_INT(20020 * 16, atomic_load(&total));
    sk_pool_drop(pool);
}

static void idle_pools_come_and_go(void)
{
    for (int i = 0; i < 200; i++) {
        sk_status st = SK_STATUS_INIT;
        sk_pool *pool = NULL;
        SK_REQUIRE(SK_EXPECT_OK(sk_pool_make(&pool, 1 + i % 5, &st), &st));
        sk_pool_drop(pool);
    }
    sk_pool_drop(NULL);
}

static void refuses_no_threads(void)
{
    static const int32_t bad[] = {0, -1, 1025, INT32_MIN};
    for (size_t i = 0; i < SK_COUNT(bad); i++) {
        sk_status st = SK_STATUS_INIT;
        sk_pool *pool = NULL;
        SK_EXPECT_FAIL(SK_INVALID, NULL, sk_pool_make(&pool, bad[i], &st), &st);
        SK_EXPECT(pool == NULL);
    }
}

static sk_code make_and_use(void *arg, sk_status *st)
{
    sk_pool *pool = NULL;
    sk_code rc = sk_pool_make(&pool, 4, st);
    (void)arg;
    if (rc != SK_OK) {
        SK_EXPECT(pool == NULL);
        return rc;
    }
    SK_EXPECT(covers(pool, 100, 1));
    sk_pool_drop(pool);
    return SK_OK;
}

/* A thread that cannot be started: those before it are joined. */
static void failing_threads(void) { SK_EACH_FAULT(make_and_use, NULL); }

const sk_test sk_tests_pool[] = {{"each_item_once", each_item_once},
                                 {"many_short_jobs", many_short_jobs},
                                 {"idle_pools_come_and_go", idle_pools_come_and_go},
                                 {"refuses_no_threads", refuses_no_threads},
                                 {"failing_threads", failing_threads},
                                 {0}};
