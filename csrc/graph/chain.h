/* A chain: one op many times over in a recorded graph, each node behind the one before it and with
 * its own copy of the weights, and the time of its replays. That is how an op stands in a round:
 * weights from memory, not from a cache, and a start that hides behind its predecessor. For
 * benchmarks; no engine comes this way.
 *
 * The same chain can be recorded with nothing in its nodes but the reading of as many bytes. */
#ifndef SK_CHAIN_H
#define SK_CHAIN_H

#include "dev/dev.h"
#include "op/op.h"

#define SK_CHAIN_FIELDS      64 // no op has more
#define SK_CHAIN_MAX_COPIES  4096
#define SK_CHAIN_MAX_NODES   4096
#define SK_CHAIN_MAX_SAMPLES 100000

typedef struct sk_chain sk_chain;

/* What the weights are: bit i of `weights` is field i of the op. */
typedef struct sk_chain_weights {
    enum sk_op op;
    const void *args; // bound to host addresses, has passed sk_op_check
    uint64_t weights;
    int32_t n_copies;
} sk_chain_weights;

/* What one recording is. */
typedef struct sk_chain_spec {
    const void *args; // as above; its weights have the types and shapes of the chain's
    // Field i lies n_stack[i] times one after the other from stack[i] on, and node j takes number j
    // mod n_stack[i] of them. NULL: all nodes share the field.
    const uint8_t *stack[SK_CHAIN_FIELDS];
    int32_t n_stack[SK_CHAIN_FIELDS];
    int32_t n_nodes;
    bool edges;
    // As sk_launch (rows_ready: list_ready too); -1: what a walk would say of a row of such steps.
    int32_t rows_ready, open_early;
} sk_chain_spec;

/* A recording that only reads: node j has `bytes` bytes of the copies, behind those of node j - 1
 * and round and round. Memory of the copies is what is read, so it lies as that of the op does. */
typedef struct sk_chain_stream {
    uint64_t bytes;
    int32_t n_nodes;
    bool edges;
    int32_t shape; // launch shape of dev/floor.h, -1: by size
} sk_chain_stream;

/* What was recorded. */
typedef struct sk_chain_about {
    int64_t n_nodes, n_edges, n_programmatic;
    uint64_t copy_bytes; // of the weights of one node
    int32_t open_early, rows_ready;
} sk_chain_about;

/* Packs the weights once and copies the packed bytes. Opens the device, which is the chain's own.
 * INVALID for numbers out of range and fields that are no views; else as sk_dev_open and
 * sk_cuda_check. */
SK_MUST_USE sk_code sk_chain_open(sk_chain **out, int32_t device, const sk_chain_weights *w,
                                  sk_status *st);
void sk_chain_close(sk_chain *c); // accepts NULL

/* Records a graph, in the place of the one before. MISMATCH when the graph is no chain of so many
 * steps with the edges asked for: a time of something else is not reported. */
SK_MUST_USE sk_code sk_chain_record(sk_chain *c, const sk_chain_spec *spec, sk_chain_about *about,
                                    sk_status *st);
SK_MUST_USE sk_code sk_chain_record_stream(sk_chain *c, const sk_chain_stream *s,
                                           sk_chain_about *about, sk_status *st);

/* The host's half of the checks, without a device. INVALID. */
SK_MUST_USE sk_code sk_chain_check_weights(const sk_chain_weights *w, sk_status *st);
SK_MUST_USE sk_code sk_chain_check_spec(enum sk_op op, uint64_t weights, const sk_chain_spec *spec,
                                        sk_status *st);

/* Is what was recorded a row of `n_nodes` equal steps with edges of this kind between them? */
bool sk_chain_is_row(const sk_chain_about *a, int32_t n_nodes, bool edges);

typedef struct sk_chain_times {
    double *us;        // [n_samples] device time of one replay, between events, of replays that
                       // follow one another without a pause
    int32_t n_samples; // also the replays of `run_us`
    double run_us;     // so many replays without events in between, for each
} sk_chain_times;

/* Replays for `warm_s` seconds, then samples, and leaves about `tail_s` seconds of replays queued
 * behind: whoever looks at clocks and power next sees the load. Allocates nothing. */
SK_MUST_USE sk_code sk_chain_time(sk_chain *c, double warm_s, double tail_s, sk_chain_times *t,
                                  sk_status *st);

/* One more replay of the recorded op, on outputs as they are on the host now, and those of the last
 * node back to the host. STATE when the last recording was none of the op; MISMATCH when counters
 * of the backend are left behind. */
SK_MUST_USE sk_code sk_chain_outputs(sk_chain *c, sk_status *st);

#endif
