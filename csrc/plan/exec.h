/* Binding a plan to addresses and running it on the CPU, step by step. */
#ifndef SK_EXEC_H
#define SK_EXEC_H

#include "op/cpu/cpu.h"
#include "plan/plan.h"

/* A plan whose views have addresses. Borrowed: the plan and all memory it points at. */
typedef struct sk_bound {
    const sk_plan *plan;
    uint8_t *args;       // copy of the plan's arguments, addresses filled in
    uint8_t *transients; // block of plan->transient_bytes
} sk_bound;

/* addr[buf] for every buffer but the plan's transients, which lie in `transients` at their offsets.
 */
SK_MUST_USE sk_code sk_bound_make(sk_bound *out, const sk_plan *plan, uint8_t *const *addr,
                                  uint8_t *transients, sk_status *st);
void sk_bound_drop(sk_bound *b); // accepts a zeroed struct

/* Where a transient of the plan lies; NULL for a buffer that is none of its transients. */
uint8_t *sk_bound_find(const sk_bound *b, int32_t buf);

typedef struct sk_exec {
    const sk_cpu_fn *table;
    sk_cpu cpu; // its table is the one above, whatever stands there
    // Diagnosis: scratch is filled with NaN bytes before each step, a transient before the run and
    // after its last use. A plan that reads what it should not gives different results.
    bool poison;
} sk_exec;

/* One step. Its transients stay as they are, whoever still reads them. */
void sk_exec_step(const sk_exec *ex, const sk_bound *b, size_t step);
/* Runs the steps of the stages [from, to] in order. */
void sk_exec_run(const sk_exec *ex, const sk_bound *b, sk_stage from, sk_stage to);

/* Scratch that the steps of a plan want: the largest over them. */
uint64_t sk_exec_work_bytes(const sk_plan *plan, int32_t n_threads);

#endif
