/* The fast table: which entries of the definition are replaced, by what the processor has. */
#include "op/cpu/def.h"

#include <string.h>

void sk_cpu_fast_table(sk_cpu_fn table[SK_OP_COUNT])
{
    memcpy(table, sk_cpu_ops, sizeof sk_cpu_ops);
}

const char *sk_cpu_isa(void) { return "generic"; }

uint64_t sk_cpu_fast_linear_bytes(const sk_linear_args *a, int32_t n_threads)
{
    (void)a;
    (void)n_threads;
    return 0;
}
