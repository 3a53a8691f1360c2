/* See order.h: bottom-up merges between two arrays. */
#include "base/order.h"

#include "base/mem.h"

#include <string.h>

static void merge(const uint32_t *from, uint32_t *to, uint64_t begin, uint64_t middle, uint64_t end,
                  sk_order_less less, const void *items)
{
    uint64_t a = begin;
    uint64_t b = middle;
    for (uint64_t at = begin; at < end; at++) {
        bool right = a == middle || (b < end && less(items, from[b], from[a]));
        to[at] = right ? from[b++] : from[a++];
    }
}

sk_code sk_order_make(uint32_t **out, uint32_t n, sk_order_less less, const void *items,
                      const char *what, sk_status *st)
{
    void *order = NULL;
    void *scratch = NULL;
    sk_code rc = sk_mem_new(&order, n, sizeof(uint32_t), what, st);
    if (rc == SK_OK) rc = sk_mem_new(&scratch, n, sizeof(uint32_t), what, st);
    if (rc == SK_OK) {
        uint32_t *from = order;
        uint32_t *to = scratch;
        for (uint32_t i = 0; i < n; i++) from[i] = i;
        for (uint64_t run = 1; run < n; run *= 2) {
            uint32_t *done = to;
            for (uint64_t at = 0; at < n; at += 2 * run) {
                uint64_t middle = at + run < n ? at + run : n;
                uint64_t end = at + 2 * run < n ? at + 2 * run : n;
                merge(from, to, at, middle, end, less, items);
            }
            to = from;
            from = done;
        }
        *out = from;
        if (from == order)
            order = NULL;
        else
            scratch = NULL;
    }
    sk_mem_free(order);
    sk_mem_free(scratch);
    return rc;
}
