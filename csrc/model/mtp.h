/* The draft head of flash_next: one block of sparse attention and experts behind the target, that
 * reads the target's streams at a position and the token after it, and drafts recursively on its
 * own streams (multi-token prediction). Embedding and output are the target's.
 *
 * Row j of its caches belongs to the hidden row at position j and the token at j + 1; with n
 * committed positions rows 0 .. n-1 are settled, all of them from true hidden rows. */
#ifndef SK_MTP_H
#define SK_MTP_H

#include "model/model.h"
#include "plan/round.h"

typedef struct sk_mtp sk_mtp;

typedef struct sk_mtp_options {
    bool own_file;   // the checkpoint holds the draft head and nothing of the target that is used
    bool per_stream; // the hidden row is normed by stream, not as a whole
    int32_t n_draft; // steps a round: caches have room behind the context
} sk_mtp_options;

/* Binds the head that `ck` has into `space`, under the prefix "drafter.". FORMAT with check
 * MISSING_TENSOR or BAD_DRAFT (tensors of two kinds of draft files in one), UNSUPPORTED where the
 * target has no such head. */
SK_MUST_USE sk_code sk_mtp_open(sk_mtp **out, const sk_model *target, const sk_ckpt *ck,
                                sk_space *space, const sk_state_size *size,
                                const sk_mtp_options *options, sk_status *st);
/* Its mixture routes by a table too; see sk_model_force. */
SK_MUST_USE sk_code sk_mtp_force(sk_mtp *m, const sk_forced *f, sk_space *space, sk_status *st);
void sk_mtp_close(sk_mtp *m); // accepts NULL

/* Commit stage: caches and hidden row take in what was kept. */
void sk_mtp_commit(const sk_mtp *m, sk_builder *b, const sk_round_bufs *rb, int32_t n_rows);
/* Behind a verify pass: its streams, for the next commit. */
void sk_mtp_keep(const sk_mtp *m, sk_builder *b, sk_view s);
/* Behind a pass of which all rows are kept. Every row's next token stands in the token window.
 * `logits`, where it is not NULL, gets the head's logits for these rows. */
void sk_mtp_settle(const sk_mtp *m, sk_builder *b, sk_view s, int32_t tokens, sk_view *logits);
/* Draft stage: sets n_draft and the drafts of every active slot that has a hidden row. */
void sk_mtp_draft(const sk_mtp *m, sk_builder *b, const sk_round_bufs *rb, const sk_round_vals *v);

#endif
