/* A session's side on a CUDA device: three blocks of memory (weights, state, transients), the
 * pinned rings, pinned tables when they stay in host memory, and the recorded rounds. */
#ifndef SK_DEVICE_H
#define SK_DEVICE_H

#include "engine/sizes.h"
#include "graph/walk.h"
#include "replay/rings.h"

#define SK_TIERS_MAX 12

typedef struct sk_device {
    sk_dev *dev;
    uint8_t *weights;    // packed matrices, vectors as they are
    uint8_t *state;      // state, pending and control buffers
    uint8_t *scratch;    // transients, then scratch of the kernels, then counters
    void *pinned;        // both rings
    void *table;         // what stays in host memory, pinned; NULL: nothing
    uint8_t *table_seen; // by the device
    sk_done *done;       // the completion ring in it
    uint8_t *transients;
    sk_sizes sizes;
    sk_rings rings;
    sk_walk walk;
    int32_t tier[SK_TIERS_MAX]; // upper bounds of positions, ascending; the last is the context
    int32_t n_tiers;
    sk_dev_graph *rounds[SK_ROUNDS_MAX][SK_TIERS_MAX];
    sk_dev_graph *prefill[SK_TIERS_MAX];
    int32_t n_graphs;   // recorded so far
    sk_dev_graph *last; // of the rounds, the one that was launched last
    int64_t n_replays;  // launches of recorded rounds
} sk_device;

/* Opens the device of the program's options, refuses what does not fit, takes the memory and
 * uploads the weights. addr[buf] gets the device address of every buffer but transients.
 * UNSUPPORTED for a step without a kernel, NOMEM with the numbers: both before anything is
 * allocated. */
SK_MUST_USE sk_code sk_device_open(sk_device *out, const sk_program *p, const sk_sizes *sizes,
                                   uint8_t **addr, sk_status *st);
void sk_device_close(sk_device *d);             // accepts a zeroed struct
void sk_device_clear_rings(const sk_device *d); // no entry, no record

/* Upper bounds of the tiers of a context, ascending; their number. */
int32_t sk_device_tiers(int32_t ctx, int32_t tier[SK_TIERS_MAX]);
/* The smallest tier whose bound is at least `positions`. */
int32_t sk_device_tier(const sk_device *d, int32_t positions);

/* Runs all stages of round plan `at` in the session's mode. */
SK_MUST_USE sk_code sk_device_round(sk_device *d, const sk_program *p, int32_t at,
                                    const sk_bound *bound, int32_t tier, sk_status *st);
SK_MUST_USE sk_code sk_device_prefill(sk_device *d, const sk_program *p, const sk_bound *bound,
                                      int32_t tier, sk_status *st);
/* Loads every kernel by running the plans once, and records the rounds where they are few; what is
 * recorded later is recorded at its first use. The state must be reset afterwards. */
SK_MUST_USE sk_code sk_device_warm(sk_device *d, const sk_program *p, const sk_bound *rounds,
                                   const sk_bound *prefill, sk_status *st);

#endif
