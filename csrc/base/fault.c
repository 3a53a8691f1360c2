/* The countdown behind SK_FAULT(). The only mutable statics of the host code, and only in the
 * hostile test build. */
#include "base/fault.h"

#ifdef SK_FAULTS
#include <stdatomic.h>

static _Atomic uint64_t fault_at;
static _Atomic uint64_t fault_seen;

bool sk_fault_hit(void)
{
    uint64_t n = atomic_fetch_add(&fault_seen, 1) + 1;
    return n == atomic_load(&fault_at);
}

void sk_fault_arm(uint64_t at)
{
    atomic_store(&fault_seen, 0);
    atomic_store(&fault_at, at);
}

uint64_t sk_fault_count(void) { return atomic_load(&fault_seen); }
#else
typedef int sk_fault_unused; // ISO C wants a declaration in every translation unit
#endif
