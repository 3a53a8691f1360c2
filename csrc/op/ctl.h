/* The control structures that host, CPU ops and CUDA kernels share: the row table, the work list of
 * a mixture, the slots, the control ring (host to device) and the completion ring (device to host).
 *
 * Everything that changes from round to round is in here; a recorded graph never changes. Integer
 * fields only, sizes asserted on both sides. The order of a round is: read control entry, commit
 * what the last round left pending, draft, verify, accept, publish. Committed state changes only in
 * commit. */
#ifndef SK_CTL_H
#define SK_CTL_H

#include <stdint.h>

#define SK_SLOTS_MAX 64 // concurrent requests
#define SK_WIDTH_MAX 16 // rows of one request in a verify pass: anchor + drafts
#define SK_STOP_MAX  32 // token ids that end a request

/* One row of a pass. Unused rows of a capacity have slot -1 and come last. */
typedef struct sk_row {
    int32_t slot;
    int32_t pos; // absolute position of the row's input token
    int32_t at;  // row number within the slot's rows of this pass; 0 is the anchor
} sk_row;

#define SK_ENTRY_ROUTES 4

/* One entry of the work list of a mixture: an expert and rows that go to it. */
typedef struct sk_route_entry {
    int32_t expert;
    int32_t n; // routes: 1 .. SK_ENTRY_ROUTES
    int32_t route[SK_ENTRY_ROUTES];
    int32_t reserved[2]; // 0
} sk_route_entry;

/* Why a request ended. STOP: an end-of-generation or stop id. LENGTH: max_tokens or the context.
 * HOST: the host said so (stop string, cancel). */
enum { SK_FINISH_NONE = 0, SK_FINISH_STOP = 1, SK_FINISH_LENGTH = 2, SK_FINISH_HOST = 3 };

/* Settled state of a slot, beside its caches. */
typedef struct sk_slot {
    int32_t active;  // takes part in rounds
    int32_t n;       // committed positions = valid rows in every cache
    int32_t anchor;  // token at position n: known, its cache rows not yet written
    int32_t emitted; // tokens this request has emitted
    int32_t finish;  // SK_FINISH_*
    int32_t reserved[3];
} sk_slot;

/* Constants of a request; the host writes them while the slot is idle. */
typedef struct sk_request {
    int32_t max_tokens; // >= 1
    int32_t n_stop;
    int32_t stop[SK_STOP_MAX];
} sk_request;

/* What the last verify pass produced and the next commit may keep. n == 0: nothing. */
typedef struct sk_pending {
    int32_t n;        // tokens and rows the device would keep (cut by stop ids and limits)
    int32_t drafted;  // proposals of the drafter
    int32_t verified; // proposals that had a row in the verify pass
    int32_t accepted; // proposals the target agreed with; accepted + 1 tokens came out
    int32_t finish;   // SK_FINISH_* that takes effect if all n tokens are kept
    int32_t reserved;
    int32_t tok[SK_WIDTH_MAX];
} sk_pending;

/* Exact counters of a request. emitted == emitted_by_prefill + rounds + accepted -
 * discarded_after_stop holds at any time. Counted in commit, so an inactive slot counts nothing. */
typedef struct sk_counters {
    int64_t rounds;
    int64_t rounds_without_draft;
    int64_t proposed;
    int64_t verified;
    int64_t accepted;
    int64_t emitted;
    int64_t emitted_by_prefill;
    int64_t discarded_after_stop;
    int64_t gpu_ns;
    int64_t accepted_at[SK_WIDTH_MAX]; // [k]: how often proposal k (from 0) was accepted
} sk_counters;

/* Licences of the host for one slot and one round. */
enum {
    SK_LICENCE_ALL = -1, // keep what the device accepted
    SK_LICENCE_WAIT = -2 // not decided yet: the slot sits this round out, its pending rows stay
};

typedef struct sk_ctl_slot {
    int32_t licence; // SK_LICENCE_* or the number of pending rows that may be kept (0 ..)
    int32_t stop;    // 1: the slot becomes inactive with this commit
} sk_ctl_slot;

/* Entry k mod n of the control ring, written by the host before round k. The sequence number stands
 * at both ends; an entry whose numbers are not the round's is ignored and reported. */
typedef struct sk_ctl_entry {
    int64_t seq;
    int32_t valid; // written by ctl_read: 1 when both sequence numbers are right
    int32_t reserved;
    sk_ctl_slot slot[SK_SLOTS_MAX];
    int64_t seq_end;
} sk_ctl_entry;

enum { SK_DONE_BAD_CONTROL = 1 }; // flags of a completion record

typedef struct sk_done_slot {
    int32_t rows;  // rows the slot had in this round; 0: it took no part
    int32_t first; // its first row in the pass
    int32_t pos;   // position of its anchor
    int32_t n;     // tokens in tok: what the next commit keeps unless the host licenses less
    int32_t drafted;
    int32_t accepted;
    int32_t finish;
    int32_t committed; // rows that this round's commit kept (of the previous round)
    int32_t tok[SK_WIDTH_MAX];
} sk_done_slot;

/* Entry k mod n of the completion ring, written by the device at the end of round k. */
typedef struct sk_done {
    int64_t seq;
    int32_t flags;
    int32_t n_rows; // active rows of the pass
    sk_done_slot slot[SK_SLOTS_MAX];
    int64_t seq_end;
} sk_done;

#ifdef __cplusplus
#define SK_CTL_ASSERT static_assert
#else
#define SK_CTL_ASSERT _Static_assert
#endif
SK_CTL_ASSERT(sizeof(sk_row) == 12, "row table entry");
SK_CTL_ASSERT(sizeof(sk_route_entry) == 32, "entry of a work list");
SK_CTL_ASSERT(sizeof(sk_slot) == 32, "slot");
SK_CTL_ASSERT(sizeof(sk_request) == 8 + 4 * SK_STOP_MAX, "request");
SK_CTL_ASSERT(sizeof(sk_pending) == 24 + 4 * SK_WIDTH_MAX, "pending");
SK_CTL_ASSERT(sizeof(sk_counters) == 72 + 8 * SK_WIDTH_MAX, "counters");
SK_CTL_ASSERT(sizeof(sk_ctl_entry) == 24 + 8 * SK_SLOTS_MAX, "control entry");
SK_CTL_ASSERT(sizeof(sk_done_slot) == 32 + 4 * SK_WIDTH_MAX, "completion of a slot");
SK_CTL_ASSERT(sizeof(sk_done) == 24 + SK_SLOTS_MAX * (32 + 4 * SK_WIDTH_MAX), "completion record");

#endif
