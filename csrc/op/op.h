/* Ops as data: the enum, the descriptors with their fields, and the contract check.
 *
 * An op is a closed transformation with a contract (op/args.h); it knows neither the model nor the
 * phase nor the caller. The generic walkers of the plan layer see only descriptors. */
#ifndef SK_OP_H
#define SK_OP_H

#include "op/args.h"

enum sk_op {
#define SK_OP(name, fields) SK_OP_##name,
#include "op/ops.def"
    SK_OP_COUNT
};

enum { SK_READ = 1, SK_WRITE = 2, SK_OPTIONAL = 4, SK_APART = 8 };

typedef enum sk_field_kind {
    SK_FIELD_END = 0,
    SK_FIELD_VIEW,
    SK_FIELD_I32,
    SK_FIELD_F32
} sk_field_kind;

typedef struct sk_field {
    const char *name;
    size_t at; // offset in the argument struct
    sk_field_kind kind;
    int32_t mode; // views: SK_READ | SK_WRITE | SK_OPTIONAL | SK_APART (heads may be apart)
} sk_field;

typedef struct sk_op_desc {
    const char *name;
    size_t args_bytes;
    const sk_field *fields; // ends with SK_FIELD_END
} sk_op_desc;

extern const sk_op_desc sk_ops[SK_OP_COUNT];

#define SK_ARGS_MAX 2048 // no argument struct is larger; asserted in op.c

/* SK_OP_COUNT when no op has that name. */
enum sk_op sk_op_find(const char *name);

static inline sk_view *sk_field_view(void *args, const sk_field *f)
{
    return (sk_view *)(void *)((char *)args + f->at);
}

static inline const sk_view *sk_field_view_const(const void *args, const sk_field *f)
{
    return (const sk_view *)(const void *)((const char *)args + f->at);
}

/* All views absent, constants zero. */
void sk_args_clear(enum sk_op op, void *args);

/* The op's contract: types, ranks, shapes, domains of the constants, forbidden overlap. Same for
 * all backends; run once when a plan is verified. INVALID with "op: field: expected ..., found
 * ...". */
SK_MUST_USE sk_code sk_op_check(enum sk_op op, const void *args, sk_status *st);

#endif
