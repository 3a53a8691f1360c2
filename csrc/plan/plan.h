/* A plan: the steps of one pass or one round over numbered buffers. Data, not code.
 *
 * The semantic plan is free of any backend: it is hashed, printed, verified and compared. Steps
 * stand in an order that is valid when run one after the other; steps of a side branch may overlap
 * with the main branch between their fork and their join, and their transients are laid out for
 * that. */
#ifndef SK_PLAN_H
#define SK_PLAN_H

#include "base/sha256.h"
#include "op/op.h"
#include "plan/space.h"

/* The order of a round, and what settle runs: the commit stage alone. */
typedef enum sk_stage {
    SK_STAGE_CONTROL,
    SK_STAGE_COMMIT,
    SK_STAGE_DRAFT,
    SK_STAGE_VERIFY,
    SK_STAGE_ACCEPT,
    SK_STAGE_PUBLISH,
    SK_STAGE_COUNT
} sk_stage;

typedef struct sk_step {
    enum sk_op op;
    sk_stage stage;
    int32_t branch; // 0: main
    size_t args_at; // offset in the plan's argument bytes
    char label[40]; // where in the model: "target.blk.3.attn"
} sk_step;

/* Branches that may be open at the same time. */
#define SK_LANES 4

/* Side branch `number` may run beside the main steps in [fork, join). */
typedef struct sk_branch {
    int32_t number;
    int32_t fork;
    int32_t join; // -1 while open
    int32_t lane; // 1 .. SK_LANES: of no other branch that is open at the time
} sk_branch;

/* A transient of this plan: who uses it when, and where it lies in the transient block. */
typedef struct sk_life {
    int32_t buf;
    int32_t first, last; // steps; 0 and the number of steps for what the host reads afterwards
    uint64_t off;
} sk_life;

typedef struct sk_plan {
    char name[24];
    const sk_space *space;
    sk_step *steps;
    size_t n_steps, steps_cap;
    uint8_t *args;
    size_t args_bytes, args_cap;
    sk_branch *branches;
    size_t n_branches, branches_cap;
    int32_t *results; // transients that the host reads after a run
    size_t n_results, results_cap;
    sk_life *lives; // by first use; filled by sk_plan_finish
    size_t n_lives, lives_cap;
    uint64_t transient_bytes;
    uint8_t digest[SK_SHA256_BYTES];
} sk_plan;

void sk_plan_init(sk_plan *p, const char *name, const sk_space *space);
void sk_plan_fini(sk_plan *p);

SK_MUST_USE sk_code sk_plan_append(sk_plan *p, enum sk_op op, const void *args, sk_stage stage,
                                   int32_t branch, const char *label, sk_status *st);
SK_MUST_USE sk_code sk_plan_fork(sk_plan *p, int32_t *branch, sk_status *st);
SK_MUST_USE sk_code sk_plan_join(sk_plan *p, int32_t branch, sk_status *st);
SK_MUST_USE sk_code sk_plan_result(sk_plan *p, int32_t buf, sk_status *st);

/* Verifies the plan, computes lifetimes, offsets and the digest. After this the plan is constant.
 * Refused: a step that breaks its op's contract, a view outside its buffer, a transient
 * read before it is written, a write to a weight, a data race between branches, an open
 * branch, a stage out of order. The status carries the step. */
SK_MUST_USE sk_code sk_plan_finish(sk_plan *p, sk_status *st);

static inline const void *sk_plan_args(const sk_plan *p, size_t step)
{
    return p->args + p->steps[step].args_at;
}

/* The plan as text: buffers used, then one line a step. A new string; release with sk_mem_free. */
SK_MUST_USE sk_code sk_plan_dump(const sk_plan *p, char **out, sk_status *st);

const char *sk_stage_name(sk_stage stage);

/* live.c: lifetimes and offsets of the transients. Called by sk_plan_finish. */
SK_MUST_USE sk_code sk_plan_lay_out(sk_plan *p, sk_status *st);
/* verify.c: everything sk_plan_finish refuses. */
SK_MUST_USE sk_code sk_plan_verify(const sk_plan *p, sk_status *st);

#endif
