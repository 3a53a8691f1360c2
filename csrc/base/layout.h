/* A dry run of memory: adds labelled spans and yields offsets and the total, so that one allocation
 * can be made afterwards and no byte formula is kept twice. */
#ifndef SK_LAYOUT_H
#define SK_LAYOUT_H

#include "base/sk_base.h"

#define SK_LAYOUT_ALIGN 256 // enough for a cache line, a vector register and a device transaction

typedef struct sk_layout {
    uint64_t used;
    bool bad; // sticky: a size overflowed
} sk_layout;

/* Offset of `bytes` more bytes, aligned. After an overflow every call returns 0 and `bad` is set.
 */
static inline uint64_t sk_layout_add(sk_layout *l, uint64_t bytes)
{
    uint64_t off, end;
    if (l->bad || !sk_align_up(l->used, SK_LAYOUT_ALIGN, &off) || !sk_add_u64(off, bytes, &end)) {
        l->bad = true;
        return 0;
    }
    l->used = end;
    return off;
}

#endif
