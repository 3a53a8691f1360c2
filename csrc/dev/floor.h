/* The floor: what starting, streaming and waiting cost on a device when nothing else is done. A
 * service time minus its floor is our own overhead. Used by `stoker floor` and by the engine's
 * reports; nothing here runs during a round. */
#ifndef SK_FLOOR_H
#define SK_FLOOR_H

#include "dev/dev.h"

/* X(kind, name). One sample is, in microseconds:
 *   copy     device time of a copy of `bytes` within the device
 *   read     device time of one launch that reads `bytes` and nothing else
 *   empty    device time of a graph of n dependent kernels that do nothing
 *   submit   host time of the call that launches that graph
 *   return   host time from that call until the host knows that the graph has ended
 *   fork     device time of a graph of n stages: two parallel empty kernels, one that joins them
 *   barrier  device time of a kernel with n barriers over a grid of `shape` blocks per SM
 *   chain    device time of a graph of n dependent kernels that read node_bytes[i] (or `bytes`) */
#define SK_FLOOR_KINDS(X)                                                                          \
    X(COPY, "copy")                                                                                \
    X(READ, "read")                                                                                \
    X(EMPTY, "empty")                                                                              \
    X(SUBMIT, "submit")                                                                            \
    X(RETURN, "return")                                                                            \
    X(FORK, "fork")                                                                                \
    X(BARRIER, "barrier")                                                                          \
    X(CHAIN, "chain")

typedef enum sk_floor_kind {
#define X(kind, name) SK_FLOOR_##kind,
    SK_FLOOR_KINDS(X)
#undef X
        SK_FLOOR_KIND_COUNT
} sk_floor_kind;

typedef struct sk_floor_case {
    sk_floor_kind kind;
    int64_t n;                  // nodes, stages or barriers of one launch
    uint64_t bytes;             // copy, read, chain
    const uint64_t *node_bytes; // chain: [n]; NULL: each node reads `bytes`
    bool programmatic;          // empty, submit, return, chain: edges between the nodes
    int32_t shape;              // read, chain: launch shape, -1: by size; barrier: blocks per SM
    int32_t n_samples;
} sk_floor_case;

/* What ran. */
typedef struct sk_floor_about {
    int64_t n_nodes, n_edges, n_programmatic; // of the recorded graph, 0 without one
    uint64_t arena_bytes;                     // random bytes that the reads go round in
} sk_floor_about;

#define SK_FLOOR_MAX_NODES   100000
#define SK_FLOOR_MAX_SAMPLES 100000

/* false, and *out untouched, for a name that is none. */
bool sk_floor_kind_find(const char *name, sk_floor_kind *out);
/* Launch shape i of the reading kernel; false behind the last one. */
bool sk_floor_shape(int32_t i, int32_t *threads, int32_t *per_sm, int32_t *loads);
/* INVALID for numbers outside of what makes sense. */
SK_MUST_USE sk_code sk_floor_check(const sk_floor_case *c, sk_status *st);

/* Opens the device, warms up, and writes c->n_samples samples to us[]. Reads go round in at least
 * four times the device's L2, in random bytes. MISMATCH when the graph is not the one asked for: a
 * time of something else is not reported. */
SK_MUST_USE sk_code sk_floor_run(int32_t device, const sk_floor_case *c, double *us,
                                 sk_floor_about *about, sk_status *st);

/* Enqueues the reading kernel on the stream of `d`: `bytes` (a multiple of 16) from p, in a launch
 * shape as above. Can be recorded. *sink gets nothing that means anything. */
SK_MUST_USE sk_code sk_floor_put_read(sk_dev *d, const uint8_t *p, uint64_t bytes, int32_t shape,
                                      bool edge, uint32_t *sink, sk_status *st);

#endif
