/* Inside of a session, shared by session.c, state.c and score.c. */
#ifndef SK_SESSION_IMPL_H
#define SK_SESSION_IMPL_H

#include "base/mem.h"
#include "engine/device.h"
#include "engine/place.h"
#include "engine/session.h"

typedef enum sk_phase { SK_PHASE_IDLE, SK_PHASE_PREFILL, SK_PHASE_RUN } sk_phase;

/* What the host knows of a slot and the device does not need. */
typedef struct sk_slot_host {
    sk_phase phase;
    bool holds;    // a state to continue from: settled positions and an anchor
    int32_t end;   // prefill: position of the last given token, which becomes the anchor
    int32_t next;  // prefill: first position whose rows are not written yet
    int32_t reach; // running: the anchor's position is at most this in the next round submitted
    int64_t from;  // first round that is this request's; records of earlier ones are not for it
} sk_slot_host;

struct sk_session {
    const sk_ckpt *ck;
    sk_program prog;
    sk_sizes sizes;
    sk_place place;
    sk_device device;                          // on a device
    sk_block state, control, transients, work; // on the CPU
    uint8_t **addr;                            // by buffer; NULL for transients
    size_t n_addr;
    sk_rings rings; // as the host sees them
    sk_bound rounds[SK_ROUNDS_MAX], prefill;
    int32_t round_plan; // of the last round
    sk_exec exec;
    sk_pool *pool;
    sk_cpu_fn table[SK_OP_COUNT];
    int64_t round_at;  // number of the next round whose record is to be read
    int64_t submitted; // number of the next round to be submitted
    sk_row *rows;      // [prefill rows] on their way to the row table
    bool failed;       // the device has, in round failed_at
    int64_t failed_at;
    sk_done last; // the last record, as the caller sees it
    sk_slot_host host[SK_SLOTS_MAX];
    struct sk_diff *diff; // on the CPU: compares every step with another session's; NULL: nothing

    bool scoring;
    int32_t score_slot, score_pos;
    sk_score score;
    sk_bound score_bound;
    sk_block score_block;   // on the CPU
    uint8_t *score_base;    // rows, ids, count and transients, where they are
    uint8_t *score_addr[3]; // rows, ids, count
};

/* One slot's entry in the buffers of the round, where they are. */
SK_MUST_USE sk_code sk_slot_read(const sk_session *s, int32_t slot, sk_slot *out, sk_status *st);
SK_MUST_USE sk_code sk_slot_write(const sk_session *s, int32_t slot, const sk_slot *sl,
                                  sk_status *st);

/* The stages [from, to] of a plan, step by step, after everything submitted before. */
SK_MUST_USE sk_code sk_session_run(sk_session *s, const sk_bound *b, sk_stage from, sk_stage to,
                                   sk_status *st);
/* The slot takes part from the next round on; its last given token is the anchor. */
SK_MUST_USE sk_code sk_session_activate(sk_session *s, int32_t slot, sk_status *st);

/* What the next round needs at most: rows, and the bound of their positions. */
void sk_session_reach(const sk_session *s, int32_t *rows, int32_t *positions);
/* Submits a round with all licences, without waiting. */
SK_MUST_USE sk_code sk_session_submit(sk_session *s, bool full, sk_status *st);

/* Where the slot's token of a position is. */
static inline uint8_t *sk_token_at(const sk_session *s, int32_t slot, int64_t pos)
{
    return s->addr[s->prog.rb.tokens] +
           ((int64_t)slot * (s->prog.options.ctx + 1) + pos) * (int64_t)sizeof(int32_t);
}

/* INVALID unless 0 <= slot < slots; STATE unless it is idle (need_idle) and no scoring is open. */
SK_MUST_USE sk_code sk_session_check_slot(const sk_session *s, int32_t slot, bool need_idle,
                                          sk_status *st);
SK_MUST_USE sk_code sk_session_check_ids(const sk_session *s, const int32_t *ids, int64_t n,
                                         sk_status *st);

/* One buffer's bytes for one slot. */
static inline uint8_t *sk_slot_bytes(const sk_session *s, int32_t buf, int32_t slot,
                                     uint64_t *n_bytes)
{
    const sk_buf *b = &s->prog.space.bufs[buf];
    *n_bytes = b->bytes / (uint64_t)b->dim[0];
    return s->addr[buf] + (uint64_t)slot * *n_bytes;
}

#endif
