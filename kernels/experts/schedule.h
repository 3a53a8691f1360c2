/* Who does which part of the products of a work list. A task is an entry and a stripe of outputs;
 * it takes a fixed number of steps along K, always in ascending order. Tasks are dealt out to CTAs
 * in runs of about equal cost, and the steps of a CTA's tasks to its warps in equal runs, each at
 * least as long as a task less one step: so a task lies in one warp or in two neighbouring ones.
 *
 * A warp begins with the head of its last task, where that goes on in the next warp, and hands its
 * sums over as they are; it ends with the tail of its first task, from the sums that the warp
 * before it handed over long ago. So every task's sums run through the same additions however it
 * is split. Plain C, so that a test holds it against these sentences on the host. */
#ifndef SK_EXPERTS_SCHEDULE_H
#define SK_EXPERTS_SCHEDULE_H

#include <stdint.h>

#ifdef __CUDACC__
#define SK_BOTH __host__ __device__ static inline
#else
#define SK_BOTH static inline
#endif

/* What a task costs, by the routes of its entry: measured. */
SK_BOTH int32_t sk_task_cost(int32_t routes) { return routes <= 1 ? 100 : routes == 2 ? 106 : 115; }

/* The first i of n parts of a whole that differ by one at most: whole * i / n without wide numbers,
 * whose division is slow on a GPU. For n up to 65535. */
SK_BOTH uint32_t sk_parts(uint32_t whole, uint32_t i, uint32_t n)
{
    return whole / n * i + whole % n * i / n;
}

/* Of all costs those in front of CTA c of n. */
SK_BOTH int64_t sk_cost_before(int64_t all, int32_t c, int32_t n) { return all * c / n; }

/* The task at which the cost `at` falls, in an entry whose first task has the number `first` and
 * the cost `before` in front of it. */
SK_BOTH int32_t sk_task_at(int64_t at, int64_t before, int32_t first, int32_t cost)
{
    return first + (int32_t)((at - before) / cost);
}

/* Steps [first, end) of a task. From 0: sums begin at zero, else with what was handed over; not to
 * the last step: sums are handed over. */
typedef struct sk_piece {
    int32_t task, first, end;
} sk_piece;

/* A warp's part of its CTA's tasks. */
typedef struct sk_share {
    int32_t steps;           // of a task
    int32_t head_task, head; // steps of it; 0: none
    int32_t whole_task, whole;
    int32_t tail_task, tail; // its first step; 0: none
} sk_share;

SK_BOTH int32_t sk_share_pieces(const sk_share *s)
{
    return (s->head > 0) + s->whole + (s->tail > 0);
}

/* Piece i, in the order in which the warp does them. */
SK_BOTH sk_piece sk_share_piece(const sk_share *s, int32_t i)
{
    sk_piece p = {s->tail_task, s->tail, s->steps};
    if (s->head > 0 && i == 0) {
        p.task = s->head_task;
        p.first = 0;
        p.end = s->head;
    } else if (i - (s->head > 0) < s->whole) {
        p.task = s->whole_task + i - (s->head > 0);
        p.first = 0;
    }
    return p;
}

/* A place in the work of a CTA: a task and a step of it. */
typedef struct sk_place {
    int32_t task, step;
} sk_place;

/* Where warp i of `warps` begins in the tasks [begin, end), and the one before it ends; all steps
 * of a CTA are fewer than 2^31. */
SK_BOTH sk_place sk_place_of(int32_t begin, int32_t end, int32_t steps, int32_t i, int32_t warps)
{
    const uint32_t all = (uint32_t)(end - begin) * (uint32_t)steps;
    const uint32_t shortest = steps > 1 ? (uint32_t)steps - 1 : 1; // part of a warp
    uint32_t active = (uint32_t)warps, at;
    sk_place p = {begin, 0};
    if (all < active * shortest) active = all / shortest;
    if (active == 0) return p;
    at = sk_parts(all, (uint32_t)i < active ? (uint32_t)i : active, active);
    p.task = begin + (int32_t)(at / (uint32_t)steps);
    p.step = (int32_t)(at % (uint32_t)steps);
    return p;
}

SK_BOTH sk_share sk_share_between(sk_place from, sk_place to, int32_t steps)
{
    sk_share s;
    s.steps = steps;
    s.tail = from.step;
    s.tail_task = from.task;
    s.head = to.step;
    s.head_task = to.task;
    s.whole_task = from.task + (from.step > 0);
    s.whole = to.task - s.whole_task;
    if (from.task == to.task && from.step == to.step) s.tail = s.head = s.whole = 0;
    return s;
}

/* Of the tasks [begin, end), for one of `warps` warps. */
SK_BOTH sk_share sk_share_of(int32_t begin, int32_t end, int32_t steps, int32_t warp, int32_t warps)
{
    return sk_share_between(sk_place_of(begin, end, steps, warp, warps),
                            sk_place_of(begin, end, steps, warp + 1, warps), steps);
}

#endif
