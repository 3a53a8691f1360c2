/* A fixed set of worker threads that split index ranges. It decides who computes, never what: an
 * item is handed whole to one thread, so results do not depend on the number of threads. */
#ifndef SK_POOL_H
#define SK_POOL_H

#include "base/status.h"

typedef struct sk_pool sk_pool;

/* Computes items [begin, end). `worker` is 0 .. sk_pool_threads-1, for private scratch. */
typedef void (*sk_pool_fn)(void *ctx, int64_t begin, int64_t end, int32_t worker);

/* `n_threads` >= 1 counts the caller; 1 starts no thread. */
SK_MUST_USE sk_code sk_pool_make(sk_pool **out, int32_t n_threads, sk_status *st);
void sk_pool_drop(sk_pool *pool); // accepts NULL
int32_t sk_pool_threads(const sk_pool *pool);

/* Runs fn over [0, n) in pieces of at least `grain` items and returns when all are done. One caller
 * at a time. Workers spin for a short while between calls (rounds follow each other closely), then
 * sleep. */
void sk_pool_run(sk_pool *pool, int64_t n, int64_t grain, sk_pool_fn fn, void *ctx);

#endif
