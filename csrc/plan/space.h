/* The buffer table of an engine: every buffer that the plans of one engine name, by number.
 *
 * Numbers, not addresses: the same table serves CPU and GPU. A binding adds addresses. Roles say
 * who owns the contents and for how long; state and pending buffers have one entry per slot along
 * dim 0, which is what lets save, restore, copy and clear be written once for all architectures. */
#ifndef SK_SPACE_H
#define SK_SPACE_H

#include "op/view.h"

#define SK_NAME_MAX 64

typedef enum sk_role {
    SK_ROLE_WEIGHT,    // constant; bytes from the checkpoint or computed at load
    SK_ROLE_STATE,     // settled, per slot, lives across rounds
    SK_ROLE_PENDING,   // per slot, written by one round and consumed by the next commit
    SK_ROLE_CONTROL,   // rings, request constants, row tables that the host writes
    SK_ROLE_TRANSIENT, // lives within one run of one plan
    SK_ROLE_WORK       // private to a backend, outside every comparison
} sk_role;

/* What of a state buffer belongs to the canonical state of a slot. */
typedef enum sk_keep {
    SK_KEEP_NONE, // bookkeeping that is no model state (activity, counters)
    SK_KEEP_ALL,  // the slot's whole entry (recurrent matrices, windows)
    SK_KEEP_ROWS  // rows [0, (n + keep_extra) / keep_unit) along dim 1, n = committed positions
} sk_keep;

typedef struct sk_buf {
    char name[SK_NAME_MAX];
    sk_role role;
    int32_t dtype;
    int32_t rank;
    int64_t dim[SK_VIEW_DIMS];
    uint64_t bytes;
    sk_keep keep;
    int32_t keep_extra;
    int32_t keep_unit;     // positions that a row stands for
    const uint8_t *source; // weights: the bytes, borrowed from the checkpoint or owned by the space
    const uint8_t **pieces; // a weight in pieces: where each is, owned by the space; else NULL
    int32_t n_pieces;       // source is the first of them
    int64_t piece_rows;     // entries of each along dim 0; the last one has what is left
    bool as_is;             // weights: no product multiplies by it, so no device reorders it
    bool sparse;            // weights: a pass reads a few rows of many, so they may stay far away
    bool computed;          // weights: the bytes are the space's own
} sk_buf;

typedef struct sk_space {
    sk_buf *bufs;
    size_t n, cap;
    void **owned; // memory of computed weights
    size_t n_owned, owned_cap;
    bool elsewhere;     // weights are used in a device's memory, and synthetic ones made there
    bool sizes_only;    // weights are used nowhere: what would be computed has no bytes
    int32_t *by_name;   // open addressing, -1: free; transients are not in it
    size_t by_name_cap; // a power of two, or 0
    size_t by_name_n;   // entries, also those of buffers that were cut off
} sk_space;

void sk_space_init(sk_space *sp); // buffers may be cut off at the end by lowering n
void sk_space_fini(sk_space *sp);

/* A new buffer; *out is its number. Names are unique. Sizes that overflow are INVALID. */
SK_MUST_USE sk_code sk_space_add(sk_space *sp, const char *name, sk_role role, int32_t dtype,
                                 int32_t rank, const int64_t *dim, int32_t *out, sk_status *st);

/* A weight whose bytes the checkpoint holds (borrowed). */
SK_MUST_USE sk_code sk_space_add_weight(sk_space *sp, const char *name, int32_t dtype, int32_t rank,
                                        const int64_t *dim, const uint8_t *source, int32_t *out,
                                        sk_status *st);

/* A weight computed at load; `values` are copied, unless the space wants sizes only. */
SK_MUST_USE sk_code sk_space_add_const(sk_space *sp, const char *name, int32_t dtype, int32_t rank,
                                       const int64_t *dim, const void *values, int32_t *out,
                                       sk_status *st);

/* A weight whose parts along dim 0 lie apart: of `rows` entries each, the last one of what is left.
 * *out is the whole, *at a constant I64 [parts] of the bytes from the first piece to each; -1 when
 * they follow each other. Pieces that are not aligned for their type are copied together. */
SK_MUST_USE sk_code sk_space_add_pieces(sk_space *sp, const char *name, int32_t dtype, int32_t rank,
                                        const int64_t *dim, int64_t rows,
                                        const uint8_t *const *pieces, int32_t *out, int32_t *at,
                                        sk_status *st);

/* Where the contents of a weight lie in the file from its row `row` on, counted through all of its
 * matrices; *n, how many rows are wanted, becomes how many of them follow there. */
const uint8_t *sk_buf_rows(const sk_buf *b, int64_t row, int64_t *n);

/* Marks what of a state buffer is canonical. */
void sk_space_keep(sk_space *sp, int32_t buf, sk_keep keep, int32_t extra);
/* As SK_KEEP_ROWS for rows of which each stands for `unit` positions. */
void sk_space_keep_blocks(sk_space *sp, int32_t buf, int32_t unit);

int32_t sk_space_find(const sk_space *sp, const char *name); // -1 if absent
sk_view sk_space_view(const sk_space *sp, int32_t buf);      // dense, whole buffer

#endif
