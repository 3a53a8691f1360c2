/* A session: the plans of a program bound to memory, and the requests that run through them.
 *
 * One caller at a time (the binding enforces it). A slot is idle, being prefilled, or running; what
 * a request did is read from the completion record of each round. No call allocates between start
 * and finish of a request except scoring and saving. */
#ifndef SK_SESSION_H
#define SK_SESSION_H

#include "engine/sizes.h"
#include "plan/exec.h"

typedef struct sk_session sk_session;

/* `ck` is borrowed for the session's life: the CPU uses the weights where the file is mapped. */
SK_MUST_USE sk_code sk_session_open(sk_session **out, const sk_ckpt *ck, const sk_options *options,
                                    sk_status *st);
void sk_session_close(sk_session *s); // accepts NULL

const sk_program *sk_session_program(const sk_session *s);

/* On a device: are steps joined by programmatic edges, and how many graphs are recorded? */
bool sk_session_edges(const sk_session *s);
int32_t sk_session_graphs(const sk_session *s);
/* Rounds that were replayed from such a graph so far, and the nodes of the last one; 0 on the CPU.
 */
int64_t sk_session_replays(const sk_session *s);
int64_t sk_session_nodes(const sk_session *s);

/* Puts a request into an idle slot. `ids`: 1 .. tokens of the prompt. With `keep` they follow what
 * the slot already holds (its settled positions and anchor; may then be 0 tokens), else the slot
 * starts empty. STATE when the slot is busy, INVALID for ids or lengths outside their domain. */
SK_MUST_USE sk_code sk_session_start(sk_session *s, int32_t slot, const int32_t *ids, int64_t n,
                                     const sk_request *request, bool keep, sk_status *st);

/* Runs up to `max_chunks` chunks of the slot's prefill; *left is the number of tokens still to do.
 * At 0 the slot is active: its last token is the anchor of the first round. */
SK_MUST_USE sk_code sk_session_prefill(sk_session *s, int32_t slot, int32_t max_chunks,
                                       int64_t *left, sk_status *st);

#define SK_AHEAD_MAX 4 // submitted rounds behind the one that is waited for

/* One round for all active slots. licence: [slots], or NULL for SK_LICENCE_ALL everywhere. `full`:
 * the sampling class that writes logits. On a device up to `ahead` further rounds, with all
 * licences, are submitted before this one is waited for; their records come from later calls. *out
 * is borrowed until the next round. A slot whose request finished is still held until settled.
 * STATE when licences are given for a round that has been submitted already. */
SK_MUST_USE sk_code sk_session_round(sk_session *s, const sk_ctl_slot *licence, bool full,
                                     int32_t ahead, const sk_done **out, sk_status *st);

/* Rows [first, first + n) of the logits of the last round, F32 [n, V]; rows as in the completion
 * record. INVALID for rows outside its capacity; STATE unless it was of the full class and no round
 * has been submitted since. The check alone comes first where the caller makes room for them. */
SK_MUST_USE sk_code sk_session_logits_check(const sk_session *s, int32_t first, int32_t n,
                                            sk_status *st);
SK_MUST_USE sk_code sk_session_logits(const sk_session *s, int32_t first, int32_t n, float *out,
                                      sk_status *st);

/* Commits the slot's pending rows (at most `licence` of them; SK_LICENCE_ALL: all) by the code of
 * the round's commit stage. Idempotent, and the last round's logits stay. */
SK_MUST_USE sk_code sk_session_settle(sk_session *s, int32_t slot, int32_t licence, sk_status *st);

/* Settles with the given licence and makes the slot idle. Its state stays for save, copy or keep.
 */
SK_MUST_USE sk_code sk_session_finish(sk_session *s, int32_t slot, int32_t licence, sk_status *st);

/* Forgets everything the slot holds. */
SK_MUST_USE sk_code sk_session_reset(sk_session *s, int32_t slot, sk_status *st);

SK_MUST_USE sk_code sk_session_slot(const sk_session *s, int32_t slot, sk_slot *out, sk_status *st);
SK_MUST_USE sk_code sk_session_counters(const sk_session *s, int32_t slot, sk_counters *out,
                                        sk_status *st);

/* The slot's settled state as a canonical blob: header, then committed rows of every state buffer.
 * Equal states give equal bytes. *out is released with sk_mem_free. */
SK_MUST_USE sk_code sk_session_save(sk_session *s, int32_t slot, uint8_t **out, uint64_t *n_bytes,
                                    sk_status *st);
/* Into an idle slot. FORMAT for bytes that are no blob of this model and numerics. */
SK_MUST_USE sk_code sk_session_restore(sk_session *s, int32_t slot, const uint8_t *blob,
                                       uint64_t n_bytes, sk_status *st);
SK_MUST_USE sk_code sk_session_copy(sk_session *s, int32_t from, int32_t to, sk_status *st);

/* Planted drafter: `table` [n] by absolute position from 0 (negative: no proposal), `accept` [m]
 * with m a divisor of SK_PLANTED_CYCLE: how many of each round's proposals are left right, in turn.
 */
SK_MUST_USE sk_code sk_session_plant(sk_session *s, int32_t slot, const int32_t *table, int64_t n,
                                     const int32_t *accept, int32_t m, sk_status *st);

/* What the drafter proposes after ids, at most *n; *n becomes the number. Uses an idle slot. */
SK_MUST_USE sk_code sk_session_draft(sk_session *s, int32_t slot, const int32_t *ids, int64_t n_ids,
                                     int32_t *out, int32_t *n, sk_status *st);

/* Teacher-forced scoring by the decode path, in an idle slot: begin, any number of steps that each
 * append up to sk_session_score_rows() tokens, end. `want`: flags [sk_program_n_taps]. While
 * scoring is open no round may run. */
SK_MUST_USE sk_code sk_session_score_begin(sk_session *s, int32_t slot, const uint8_t *want,
                                           sk_status *st);
int32_t sk_session_score_rows(const sk_session *s);
/* next: the token behind these, or -1 when there is none, and then the draft head's last row means
 * nothing. out: [sk_program_n_taps] pointers to rows [n, width] of four bytes, read where wanted.
 */
SK_MUST_USE sk_code sk_session_score_step(sk_session *s, const int32_t *ids, int32_t n,
                                          int32_t next, void *const *out, sk_status *st);
void sk_session_score_end(sk_session *s);

/* ---- measuring ---- */

/* Of one round: from the call until its record could be read; of that, what the host took to submit
 * it; between events around it on the device. On the CPU only the first one means something. */
typedef struct sk_timed {
    double wall_us, submit_us, gpu_us;
} sk_timed;

/* A round with all licences. *done is borrowed until the next round. STATE when some round has been
 * submitted already. */
SK_MUST_USE sk_code sk_session_timed(sk_session *s, bool full, sk_timed *out, const sk_done **done,
                                     sk_status *st);

/* The experts that the rows of the last round went to, by mixture: those of draft passes, then the
 * layers of the verify pass. False past the end, and where options.forced is off. */
typedef struct sk_routes {
    const char *label; // of the step
    int32_t n_rows, n; // rows of the pass, routes of one
    int32_t buf;
} sk_routes;
bool sk_session_routes_find(const sk_session *s, size_t at, sk_routes *out);
/* I32 [n_rows, n]; only the live rows mean something. */
SK_MUST_USE sk_code sk_session_routes_read(const sk_session *s, const sk_routes *r, int32_t *out,
                                           sk_status *st);

/* Bytes of settled state that a step of a plan reads for one slot of n positions, each once: caches
 * as far as attention looks into them, recurrent matrices and windows whole. */
uint64_t sk_state_step_bytes(const sk_space *space, const sk_plan *plan, size_t step, int32_t n);

/* ---- on a device (STATE on the CPU) ---- */

/* n rounds, one at a time. wall_us [n]: from the call until the record could be read. gpu_us [n]:
 * between events before and after the graph, 0 without `events`. */
SK_MUST_USE sk_code sk_session_time(sk_session *s, bool full, bool events, int32_t n,
                                    double *wall_us, double *gpu_us, sk_status *st);
/* As above with `ahead` rounds submitted behind the one waited for. */
SK_MUST_USE sk_code sk_session_time_ahead(sk_session *s, bool full, int32_t ahead, int32_t n,
                                          double *wall_us, sk_status *st);
/* n replays of the present round without the steps of the ops in `omit` (bit = op), and without
 * accept, so that it stays the same round. What is left out costs the difference to omit = 0. */
SK_MUST_USE sk_code sk_session_time_without(sk_session *s, uint64_t omit, bool full, int32_t n,
                                            double *us, int64_t *nodes, sk_status *st);

/* Labelled bytes of everything the session holds. Returns false past the end. */
bool sk_session_memory(const sk_session *s, size_t at, sk_mem_item *out);

#endif
