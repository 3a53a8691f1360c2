/* What chain.c and chain_time.c share. */
#ifndef SK_CHAIN_IMPL_H
#define SK_CHAIN_IMPL_H

#include "graph/chain.h"

/* Where a field that is no weight lies: `n` elements of `bytes` on the host, `step` apart on the
 * device. */
typedef struct sk_place {
    uint8_t *host; // NULL: the op has no such view
    uint64_t bytes, at, step;
    int32_t n;
    bool written;
    bool shared; // in the place of an earlier field
} sk_place;

struct sk_chain {
    sk_dev *dev;
    enum sk_op op;
    uint64_t weights;
    sk_view weight[SK_CHAIN_FIELDS]; // with its place in the first copy
    uint8_t *copies;
    uint64_t copy_bytes, node_bytes; // from copy to copy; of which a node has
    int32_t n_copies;
    void *args; // of the node that is being launched

    // The recording; `graph` is NULL without one.
    sk_dev_graph *graph;
    int32_t n_nodes;
    bool of_op;
    uint8_t *block;
    sk_place places[SK_CHAIN_FIELDS];
    uint64_t work_at, work_bytes, sync_at;
};

/* Fields from the host to their places. */
SK_MUST_USE sk_code sk_chain_upload(sk_chain *c, bool only_written, sk_status *st);

#endif
