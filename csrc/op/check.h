/* What the contract checks of the op families share. Private to op/.
 *
 * A checker carries the first failure of one op. Every call does nothing once there is one, so a
 * family writes its expectations straight down. */
#ifndef SK_OP_CHECK_H
#define SK_OP_CHECK_H

#include "op/op.h"

/* Sets of accepted types. ACT is the activation type of the plan: BF16, or F32. */
typedef enum sk_types {
    SK_TYPES_F32,
    SK_TYPES_I32,
    SK_TYPES_I64,
    SK_TYPES_U8,
    SK_TYPES_ACT,
    SK_TYPES_WEIGHT
} sk_types;

typedef struct sk_checker {
    const char *op;
    sk_status *st;
    sk_code rc;
} sk_checker;

#define SK_ANY (-1) // a dimension that may have any size

/* The view has a type out of `types` and exactly these dimensions; unused ones are 0. */
void sk_want(sk_checker *c, const char *field, const sk_view *v, sk_types types, int32_t rank,
             int64_t d0, int64_t d1, int64_t d2, int64_t d3);
/* Two views of one type: "attend: v_cache: expected BF16 as q, found F32". */
void sk_want_type(sk_checker *c, const char *field, const sk_view *v, const char *as,
                  const sk_view *other);
/* Rows of a control structure: U8 [rows, bytes] (or [bytes] when rows is 0), aligned for it. */
void sk_want_structs(sk_checker *c, const char *field, const sk_view *v, int64_t rows, size_t bytes,
                     size_t align);
void sk_want_i32(sk_checker *c, const char *field, int32_t x, int32_t lowest, int32_t highest);

/* What many ops have under these names: count, rows, freq (for heads of `dim`), eps of a norm. */
void sk_want_count(sk_checker *c, const sk_view *count);
void sk_want_rows(sk_checker *c, const sk_view *rows, int64_t capacity);
void sk_want_freq(sk_checker *c, const sk_view *freq, int64_t dim);
void sk_want_eps(sk_checker *c, float eps);
void sk_want_finite(sk_checker *c, const char *field, float x);

/* What the ops of a round have: slots, the proposals of K a slot, a window of tokens. */
void sk_want_slots(sk_checker *c, const sk_view *v);
void sk_want_drafts(sk_checker *c, const sk_view *drafts, const sk_view *n_draft, int64_t slots);
void sk_want_window(sk_checker *c, const char *field, const sk_view *v, int64_t slots);

/* A weight and what may belong to it, as linear has up to four. */
typedef struct sk_segment {
    int32_t index; // in the names of its fields; -1: they have none
    const sk_view *w, *bias, *scale;
    const sk_view *y; // NULL: its product is no field of the op
    int32_t scale_n, scale_k;
    int64_t parts; // of K, the first dimension of y; 0: y has none
} sk_segment;

/* All of them: arrays of SK_LINEAR_SEGS. */
typedef struct sk_segments {
    const sk_view *x; // [P, K]
    const sk_view *w, *bias, *scale, *y;
    const int32_t *scale_n, *scale_k;
    int64_t parts; // as of a segment
} sk_segments;

void sk_want_segment(sk_checker *c, const sk_segment *s, const sk_view *x);
void sk_want_segments(sk_checker *c, const sk_segments *all);

/* What `attend` and `attend_blocks` ask alike of queries that have been looked at. */
typedef struct sk_attention {
    const sk_view *q, *k_cache, *v_cache, *rows, *count, *out;
    float scale;
    int32_t split;
} sk_attention;

#define SK_ATTENTION_OF(a)                                                                         \
    ((sk_attention){&(a)->q, &(a)->k_cache, &(a)->v_cache, &(a)->rows, &(a)->count, &(a)->out,     \
                    (a)->scale, (a)->split})

void sk_want_attention(sk_checker *c, const sk_attention *a);

/* Breaks a rule that is none of the above; `fmt` says what was expected and found. */
void sk_break(sk_checker *c, const char *field, const char *fmt, ...) SK_PRINTF(3, 4);

/* Ops composed of others (check_fused.c); false: not one of them. */
bool sk_check_fused_op(enum sk_op op, const void *args, sk_checker *c);
/* Ops of the experts of a mixture (check_experts.c); false: not one of them. */
bool sk_check_experts_op(enum sk_op op, const void *args, sk_checker *c);
/* Rows that are kept, recurrences (check_recurrent.c); false: not one of them. */
bool sk_check_recurrent_op(enum sk_op op, const void *args, sk_checker *c);
/* Streams, hashed embeddings, the draft head (check_streams.c); false: not one of them. */
bool sk_check_streams_op(enum sk_op op, const void *args, sk_checker *c);
/* Block-sparse attention, routing (check_sparse.c); false: not one of them. */
bool sk_check_sparse_op(enum sk_op op, const void *args, sk_checker *c);
/* Ops that run the round: control, commit, drafts, rows, accept, publish (check_round.c). */
void sk_check_round_op(enum sk_op op, const void *args, sk_checker *c);

#endif
