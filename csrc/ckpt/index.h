/* Lookup by name over items that stay where they are: a sorted order and binary search, so names
 * chosen to collide cannot make it slow. */
#ifndef SK_INDEX_H
#define SK_INDEX_H

#include "ckpt/ckpt.h"

typedef struct sk_index {
    const void *items; // borrowed; the first member of each is its name, an sk_str
    size_t stride;
    uint32_t n;
    uint32_t *order; // [n], positions in ascending bytewise order of names
} sk_index;

SK_MUST_USE sk_code sk_index_init(sk_index *out, const void *items, size_t stride, uint32_t n,
                                  const char *what, sk_status *st);
/* Accepts a zeroed index and leaves one. */
void sk_index_fini(sk_index *index);

/* The item, or NULL. */
const void *sk_index_find(const sk_index *index, const char *name, uint64_t n_bytes);

/* Positions of two items of the same name, the earlier one first; false when there are none. */
bool sk_index_find_twins(const sk_index *index, uint32_t *a, uint32_t *b);

#endif
