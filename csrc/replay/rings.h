/* The two rings by which a running graph and the host talk: control entries for rounds to come,
 * completion records of rounds that are done. Both in host memory that the device sees.
 *
 * The host writes entry k before it submits round k, and never one that a submitted round may still
 * read; the device writes record k at the end of round k. Sequence numbers stand at both ends, so
 * that neither side takes a half-written one. */
#ifndef SK_RINGS_H
#define SK_RINGS_H

#include "dev/dev.h"
#include "op/ctl.h"

typedef struct sk_rings {
    sk_ctl_entry *ctl; // [n]
    const sk_done *done;
    int32_t n;
} sk_rings;

/* Entry of round k: `slot` [n_slots], the other slots keep what they accepted. */
void sk_rings_put(const sk_rings *r, int64_t k, const sk_ctl_slot *slot, int32_t n_slots);

/* Record of round k, or NULL while it is not complete. */
const sk_done *sk_rings_find(const sk_rings *r, int64_t k);

/* Waits for record k: spins for as long as a round takes, then sleeps between looks. DEVICE when
 * the device reports an error ("CUDA: <what>: ..."), STATE when it has nothing left to do and the
 * record is not there. */
SK_MUST_USE sk_code sk_rings_wait(const sk_rings *r, sk_dev *dev, int64_t k, const char *what,
                                  const sk_done **out, sk_status *st);

#endif
