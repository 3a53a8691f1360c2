/* Sorted orders of items that stay where they are: what lookups by name, the search for duplicates
 * and the overlap check run on. A merge sort, so no input can make it quadratic. */
#ifndef SK_ORDER_H
#define SK_ORDER_H

#include "base/status.h"

/* Does item `a` come before item `b`? */
typedef bool (*sk_order_less)(const void *items, uint32_t a, uint32_t b);

/* Makes the array of 0..n-1 ordered by `less`; equal items keep their order. Release with
 * sk_mem_free. `what` names the array when memory runs out. */
SK_MUST_USE sk_code sk_order_make(uint32_t **out, uint32_t n, sk_order_less less, const void *items,
                                  const char *what, sk_status *st);

#endif
