/* The step diff: the steps of a plan on two backends, each on the same inputs.
 *
 * The session on the CPU decides. Before each step, the bytes that it reads and those that it will
 * write go from the CPU's memory to the other session's; then both run it, and what the other one
 * wrote is compared. So an error shows at the step that makes it and never travels on. */
#ifndef SK_DIFF_H
#define SK_DIFF_H

#include "engine/compare.h"
#include "engine/session.h"

/* One output of one step. Text is borrowed from the plan. */
typedef struct sk_diff_item {
    const char *plan;
    int32_t n_rows; // capacity of the plan
    int32_t pass;   // which run of a plan since opening, from 0
    int32_t step;
    const char *op, *label, *field;
    int32_t dtype, rank;
    int64_t dim[SK_VIEW_DIMS];
    int64_t rows; // of dim 0 that were compared; of a cache, the rows appended
    sk_rule rule;
    sk_gap gap;
    bool ok;
} sk_diff_item;

typedef struct sk_diff sk_diff;

/* A session on the CPU, and beside it one of the same options on CUDA device `device`, or with -1
 * on the CPU by the definition. With `exact` every output has to be the same to the byte, else to
 * the rule of its op. *out runs requests as any session does, and compares while it prefills and
 * in rounds. */
SK_MUST_USE sk_code sk_diff_open(sk_session **out, const sk_ckpt *ck, const sk_options *options,
                                 int32_t device, bool exact, sk_status *st);
void sk_diff_drop(sk_diff *d); // by sk_session_close; accepts NULL

bool sk_diff_has(const sk_session *s); // did sk_diff_open open it?
/* These are for such a session. */
void sk_diff_switch(sk_session *s, bool on);
const sk_diff_item *sk_diff_items(const sk_session *s, size_t *n); // since they were last forgotten
void sk_diff_forget(sk_session *s);

/* For tests of the diff itself: from now on one byte of what the other side wrote at that step, in
 * the field of that name, is read as another. */
void sk_diff_spoil(sk_session *s, int32_t step, const char *field, uint64_t at, uint8_t flip);

#define SK_DIFF_PREFILL (-1)

/* Runs round plan `plan`, or the prefill; every position is below `positions`. */
SK_MUST_USE sk_code sk_diff_run(sk_diff *d, int32_t plan, int32_t positions, sk_status *st);

#endif
