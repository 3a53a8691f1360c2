/* Inside of a session, shared by session.c, state.c and score.c. */
#ifndef SK_SESSION_IMPL_H
#define SK_SESSION_IMPL_H

#include "base/mem.h"
#include "engine/session.h"

typedef enum sk_phase { SK_PHASE_IDLE, SK_PHASE_PREFILL, SK_PHASE_RUN } sk_phase;

/* What the host knows of a slot and the device does not need. */
typedef struct sk_slot_host {
    sk_phase phase;
    bool holds;   // a state to continue from: settled positions and an anchor
    int32_t end;  // prefill: position of the last given token, which becomes the anchor
    int32_t next; // prefill: first position whose rows are not written yet
} sk_slot_host;

struct sk_session {
    const sk_ckpt *ck;
    sk_program prog;
    sk_block state, control, transients, work;
    uint8_t **addr; // by buffer; NULL for transients
    size_t n_addr;
    sk_bound round, prefill;
    sk_exec exec;
    sk_pool *pool;
    sk_cpu_fn table[SK_OP_COUNT];
    int64_t round_at; // number of the next round
    sk_slot_host host[SK_SLOTS_MAX];

    bool scoring;
    int32_t score_slot, score_pos;
    sk_score score;
    sk_bound score_bound;
    sk_block score_transients, score_control;
};

static inline sk_slot *sk_slot_at(const sk_session *s, int32_t slot)
{
    return (sk_slot *)(void *)s->addr[s->prog.rb.slots] + slot;
}

static inline sk_pending *sk_pending_at(const sk_session *s, int32_t slot)
{
    return (sk_pending *)(void *)s->addr[s->prog.rb.pending] + slot;
}

static inline int32_t *sk_tokens_at(const sk_session *s, int32_t slot)
{
    return (int32_t *)(void *)s->addr[s->prog.rb.tokens] +
           (int64_t)slot * (s->prog.options.ctx + 1);
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
