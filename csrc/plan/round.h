/* The frame of a speculative round: its persistent buffers and the steps around draft and verify.
 *
 * The order is fixed: control entry, commit of what the last round left, draft, row table, (the
 * caller's trunk and head), accept, publish. Recurrent folds and drafter catch-ups belong to the
 * commit stage, after sk_round_begin, and read `kept`. */
#ifndef SK_ROUND_H
#define SK_ROUND_H

#include "plan/build.h"

typedef enum sk_drafter_kind {
    SK_DRAFTER_NONE,
    SK_DRAFTER_PLANTED,
    SK_DRAFTER_NGRAM,
    SK_DRAFTER_MTP, // its steps are the model's (model/mtp.h)
    SK_DRAFTER_COUNT
} sk_drafter_kind;

typedef struct sk_drafter {
    sk_drafter_kind kind;
    int32_t k;            // proposals a round: W - 1
    int32_t n_max, n_min; // ngram
    bool per_stream;      // mtp: the hidden row is normed by stream
    bool replaced;        // measuring: planted proposals take the place of its own
} sk_drafter;

/* Length of the planted acceptance cycle: a multiple of 1 .. 8, so any list of up to eight counts
 * can be repeated to fill it. */
#define SK_PLANTED_CYCLE 840

/* Buffer numbers. B slots, C positions, n entries a ring. */
typedef struct sk_round_bufs {
    int32_t ring;     // control U8 [n, sizeof(sk_ctl_entry)]
    int32_t done;     // control U8 [n, sizeof(sk_done)]
    int32_t round;    // control I64 [1]
    int32_t ctl;      // control U8 [sizeof(sk_ctl_entry)]
    int32_t requests; // control U8 [B, sizeof(sk_request)]
    int32_t kept;     // control I32 [B]
    int32_t slots;    // state U8 [B, sizeof(sk_slot)]
    int32_t counters; // state U8 [B, sizeof(sk_counters)]
    int32_t tokens;   // state I32 [B, C+1]
    int32_t pending;  // pending U8 [B, sizeof(sk_pending)]
    int32_t planted;  // control I32 [B, C+1] where proposals are planted, else -1
    int32_t accept;   // control I32 [SK_PLANTED_CYCLE] likewise
    int32_t n_slots, ctx, n_ring;
} sk_round_bufs;

SK_MUST_USE sk_code sk_round_add_buffers(sk_space *space, int32_t n_slots, int32_t ctx,
                                         int32_t n_ring, const sk_drafter *drafter,
                                         sk_round_bufs *out, sk_status *st);

/* What the steps of one round hand to each other. */
typedef struct sk_round_vals {
    sk_view drafts;  // I32 [B, max(1, K)]
    sk_view n_draft; // I32 [B]
    sk_view ids;     // I32 [P]
    sk_view span;    // I32 [B, 2]
} sk_round_vals;

void sk_round_begin(sk_builder *b, const sk_round_bufs *rb);
/* Drafts of every kind; of MTP only what comes ahead of its steps: no drafts yet. */
void sk_round_draft(sk_builder *b, const sk_round_bufs *rb, const sk_drafter *d, int32_t vocab,
                    sk_round_vals *v);
/* The last steps of the draft stage: what the drafter proposed gives way where it is replaced. */
void sk_round_replant(sk_builder *b, const sk_round_bufs *rb, const sk_drafter *d, int32_t vocab,
                      const sk_round_vals *v);
/* Sets b->rows and b->count. */
void sk_round_rows(sk_builder *b, const sk_round_bufs *rb, int32_t width, sk_round_vals *v);
void sk_round_end(sk_builder *b, const sk_round_bufs *rb, const sk_round_vals *v, sk_view chosen);

#endif
