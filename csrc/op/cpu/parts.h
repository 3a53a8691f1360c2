/* Ops that are made of others: their scratch, and running the parts in the table that the whole
 * runs in. Private to op/cpu. */
#ifndef SK_CPU_PARTS_H
#define SK_CPU_PARTS_H

#include "op/cpu/def.h"

/* Hands out an op's scratch from the front; without a base it only counts. */
typedef struct sk_arena {
    uint8_t *base;
    uint64_t used;
} sk_arena;

static inline sk_view sk_arena_take(sk_arena *s, int32_t dtype, int32_t rank, const int64_t *dim)
{
    sk_view v = sk_view_dense(0, dtype, rank, dim);
    uint64_t bytes = 0;
    (void)sk_view_span(&v, &bytes);
    if (s->base) v.p = s->base + s->used;
    s->used += (bytes + 63) & ~(uint64_t)63;
    return v;
}

/* Runs a part with the scratch that is left. */
static inline void sk_run_part(enum sk_op op, const void *args, const sk_cpu *cpu,
                               const sk_arena *s)
{
    sk_cpu rest = *cpu;
    rest.work += s->used;
    rest.work_bytes -= s->used;
    cpu->table[op](args, &rest);
}

#endif
