/* How the products of experts are split over CTAs and warps: each step of each task once and in
 * order, a task in one warp or two neighbouring ones, and nobody waiting for one who waits. */
#include "tests/c/sk_test.h"

#include "kernels/experts/schedule.h"

#include <stdlib.h>
#include <string.h>

#define WARPS 16

/* What is wrong with a split of `tasks` tasks from `begin` on; NULL: nothing. */
static const char *fault_of(int32_t begin, int32_t tasks, int32_t steps, int32_t warps)
{
    int32_t *done = calloc((size_t)tasks + 1, sizeof *done); // steps of each task, in order
    const char *fault = done ? NULL : "no memory";
    int32_t handed = -1; // the task whose head the warp before has left; first steps in `done`
    for (int32_t w = 0; !fault && w < warps; w++) {
        const sk_share s = sk_share_of(begin, begin + tasks, steps, w, warps);
        const int32_t n = sk_share_pieces(&s);
        int32_t left = -1;
        for (int32_t i = 0; !fault && i < n; i++) {
            const sk_piece p = sk_share_piece(&s, i);
            const int32_t t = p.task - begin;
            if (t < 0 || t >= tasks || p.first < 0 || p.first >= p.end || p.end > steps) {
                fault = "a piece outside";
            } else if (p.first > 0 && (i != n - 1 || t != handed || done[t] != p.first)) {
                fault = "a tail that is not the last piece, or not behind its head";
            } else if (p.first == 0 && done[t] != 0) {
                fault = "a task begun twice";
            } else if (p.end < steps && (i != 0 || p.first > 0)) {
                fault = "a head that is not the first piece";
            } else {
                done[t] = p.end;
                if (p.end < steps) left = t;
            }
        }
        if (!fault && handed >= 0 && done[handed] != steps) fault = "a head that nobody took";
        handed = left;
    }
    if (!fault && handed >= 0) fault = "a head at the end";
    for (int32_t t = 0; !fault && t < tasks; t++)
        if (done[t] != steps) fault = "a task unfinished";
    free(done);
    return fault;
}

static void warps_share_the_steps(void)
{
    for (int32_t steps = 1; steps <= 24; steps++)
        for (int32_t tasks = 0; tasks <= 70; tasks++)
            for (int32_t warps = 1; warps <= WARPS; warps *= 2) {
                const char *fault = fault_of(1000 * (tasks % 3), tasks, steps, warps);
                if (!fault) continue;
                sk_test_fail(__FILE__, __LINE__, "%d tasks of %d steps on %d warps: %s", tasks,
                             steps, warps, fault);
                return;
            }
    SK_EXPECT(!fault_of(0, 2400000 / 160, 160, WARPS));
}

/* Warps get work as long as there is any, and none more than a step above its part. */
static void shares_are_even(void)
{
    for (int32_t steps = 2; steps <= 20; steps++)
        for (int32_t tasks = 1; tasks <= 60; tasks++) {
            const int32_t all = tasks * steps;
            int32_t busy = 0, most = 0;
            for (int32_t w = 0; w < WARPS; w++) {
                const sk_share s = sk_share_of(0, tasks, steps, w, WARPS);
                int32_t n = 0;
                for (int32_t i = 0; i < sk_share_pieces(&s); i++)
                    n += sk_share_piece(&s, i).end - sk_share_piece(&s, i).first;
                busy += n > 0;
                most = n > most ? n : most;
            }
            SK_EXPECT_INT(all / (steps - 1) < WARPS ? all / (steps - 1) : WARPS, busy);
            SK_EXPECT_INT((all + busy - 1) / busy, most);
        }
}

/* The tasks at which the CTAs begin: ascending, from the first to the last, of equal cost to within
 * a task. */
static void ctas_share_the_cost(void)
{
    static const int32_t routes[] = {1, 1, 4, 2, 1, 3, 1, 1, 2, 1, 1, 1, 4};
    const int32_t n = (int32_t)SK_COUNT(routes);
    for (int32_t stripes = 1; stripes <= 40; stripes += 13)
        for (int32_t ctas = 1; ctas <= 132; ctas++) {
            int64_t all = 0, spent = 0;
            int32_t before = 0;
            for (int32_t e = 0; e < n; e++) all += (int64_t)sk_task_cost(routes[e]) * stripes;
            for (int32_t c = 1; c <= ctas; c++) {
                const int64_t at = sk_cost_before(all, c, ctas);
                int64_t front = 0, cost = 0;
                int32_t task = n * stripes;
                for (int32_t e = 0; e < n && at < all; e++) {
                    const int32_t one = sk_task_cost(routes[e]);
                    if (at < front + (int64_t)one * stripes) {
                        task = sk_task_at(at, front, e * stripes, one);
                        SK_REQUIRE(task >= e * stripes && task < (e + 1) * stripes);
                        break;
                    }
                    front += (int64_t)one * stripes;
                }
                SK_REQUIRE(task >= before);
                for (int32_t t = before; t < task; t++) cost += sk_task_cost(routes[t / stripes]);
                spent += cost;
                SK_EXPECT(cost <= all / ctas + 116);
                before = task;
            }
            SK_EXPECT_INT(n * stripes, before);
            SK_EXPECT_INT(all, spent);
        }
}

const sk_test sk_tests_experts[] = {{"warps_share_the_steps", warps_share_the_steps},
                                    {"shares_are_even", shares_are_even},
                                    {"ctas_share_the_cost", ctas_share_the_cost},
                                    {0}};
