/* Putting the steps of a bound plan on a device, in order: at once (eager, direct) or into a
 * recording.
 *
 * A step may start before its predecessor has ended (a programmatic edge) when both are on the main
 * stream and the kernels have the dependency wait; it then waits by itself. */
#ifndef SK_WALK_H
#define SK_WALK_H

#include "dev/dev.h"
#include "op/cuda/cuda.h"
#include "plan/exec.h"

typedef struct sk_walk {
    sk_dev *dev;
    uint8_t *work; // scratch, sk_walk_needed_bytes at least
    uint64_t work_bytes;
    uint32_t *sync; // [SK_SYNC_WORDS], zero
    bool edges;     // programmatic edges
    bool fused;     // fewer launches, see sk_launch
    bool direct;    // diagnosis: wait after every step and say which one failed
    bool poison;    // diagnosis: scratch and dead transients become NaN, as sk_exec.poison
    uint64_t omit;  // measuring: bit `op` set leaves the steps of that op out
} sk_walk;

/* The largest scratch that a step of the plan has a use for; and that one cannot do without. */
uint64_t sk_walk_work_bytes(const sk_plan *plan, int32_t ctx_bound);
uint64_t sk_walk_needed_bytes(const sk_plan *plan, int32_t ctx_bound);

/* May a step of this op let its successor start ahead of its own wait? */
bool sk_walk_opens_early(enum sk_op op);

/* UNSUPPORTED for a step that has no kernel; the status carries the step. */
SK_MUST_USE sk_code sk_walk_check_step(const sk_plan *plan, size_t step, sk_status *st);
/* The same for the first such step of a plan. */
SK_MUST_USE sk_code sk_walk_check(const sk_plan *plan, sk_status *st);

/* The steps of the stages [from, to]; every position of the pass is below ctx_bound. */
SK_MUST_USE sk_code sk_walk_run(const sk_walk *w, const sk_bound *b, sk_stage from, sk_stage to,
                                int32_t ctx_bound, sk_status *st);
/* One step alone, without an edge. */
SK_MUST_USE sk_code sk_walk_step(const sk_walk *w, const sk_bound *b, size_t step,
                                 int32_t ctx_bound, sk_status *st);
/* The same steps as one graph. */
SK_MUST_USE sk_code sk_walk_record(const sk_walk *w, const sk_bound *b, sk_stage from, sk_stage to,
                                   int32_t ctx_bound, sk_dev_graph **out, sk_status *st);

#endif
