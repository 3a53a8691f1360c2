/* Weights on their way before they are wanted: while a small step runs, the memory has little to
 * do, so it asks for the weights of products further on, which then find them in the L2 cache. A
 * hint: no result depends on it. */
#ifndef SK_AHEAD_H
#define SK_AHEAD_H

#include "op/cuda/cuda.h"
#include "plan/exec.h"

/* The first weight that nobody has asked for: of a step, and which of its fields. */
typedef struct sk_ahead {
    size_t step, field;
} sk_ahead;

/* What the main step `step` asks for, into l->ahead. Nothing behind stage `to`, or behind experts:
 * nobody knows yet which of those are wanted, and they push everything else out of the cache. */
void sk_ahead_ask(sk_ahead *a, const sk_bound *b, size_t step, sk_stage to, sk_launch *l);

#endif
