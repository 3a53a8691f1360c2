/* Fault points: a hostile test build makes the N-th allocation, read or device call fail, for
 * N = 1, 2, ... until the scenario passes. In every other build SK_FAULT() is the constant false.
 */
#ifndef SK_FAULT_H
#define SK_FAULT_H

#include "base/sk_base.h"

#ifdef SK_FAULTS
bool sk_fault_hit(void);
/* Arms the countdown: hit number `at` (from 1) fails, once; 0 disarms. Resets the counter. */
void sk_fault_arm(uint64_t at);
/* Number of fault points passed since the last arm. */
uint64_t sk_fault_count(void);
#define SK_FAULT() sk_fault_hit()
#else
#define SK_FAULT() false
#endif

#endif
