/* The CPU backend: two tables over the same ops.
 *
 * sk_cpu_ops is the *definition*: plain loops that say what an op computes, in the documented order
 * of summation (docs/numerics.md). The fast table replaces some entries by vectorised and threaded
 * versions, chosen at run time by what the processor has, and is held to the definition bit for
 * bit. */
#ifndef SK_CPU_H
#define SK_CPU_H

#include "base/pool.h"
#include "op/op.h"

struct sk_cpu;

/* Arguments are bound and have passed sk_op_check; an op on the CPU cannot fail. */
typedef void (*sk_cpu_fn)(const void *args, const struct sk_cpu *cpu);

typedef struct sk_cpu {
    sk_pool *pool; // never NULL
    uint8_t *work; // 64-byte aligned scratch, contents undefined between ops
    uint64_t work_bytes;
    const sk_cpu_fn *table; // that the op is out of: a fused op runs its parts in it
} sk_cpu;

extern const sk_cpu_fn sk_cpu_ops[SK_OP_COUNT];

/* Fills `table` with the versions of the ops that `name` asks for: "definition"; "fast", the
 * fastest for this processor; or what a lesser processor would get, "generic", "avx2" or "avx512".
 * All of them give the same bits. False, and a table of the definition, where there is no such
 * table here.
 */
bool sk_cpu_table_find(sk_cpu_fn table[SK_OP_COUNT], const char *name);

/* "avx512", "avx2" or "generic": what "fast" means here. */
const char *sk_cpu_isa(void);

/* Scratch that any table wants for this step; a function of shapes only (no bound addresses). */
uint64_t sk_cpu_work_bytes(enum sk_op op, const void *args, int32_t n_threads);

#endif
