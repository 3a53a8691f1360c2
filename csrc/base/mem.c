/* See mem.h. */
#include "base/mem.h"

#include "base/fault.h"

#include <stdlib.h>
#include <string.h>

static sk_code no_memory(size_t n, size_t size, const char *what, sk_status *st)
{
    return SK_FAIL(st, SK_NOMEM, "host memory: expected %zu x %zu bytes for %s, found less", n,
                   size, what);
}

sk_code sk_mem_new(void **out, size_t n, size_t size, const char *what, sk_status *st)
{
    void *p = SK_FAULT() ? NULL : calloc(n ? n : 1, size ? size : 1); // calloc checks n * size
    if (!p) return no_memory(n, size, what, st);
    *out = p;
    return SK_OK;
}

sk_code sk_mem_new_aligned(void **out, size_t bytes, const char *what, sk_status *st)
{
    uint64_t room;
    void *p = NULL;
    if (sk_align_up(bytes ? bytes : 1, 64, &room) && !SK_FAULT()) p = aligned_alloc(64, room);
    if (!p) return no_memory(1, bytes, what, st);
    memset(p, 0, room);
    *out = p;
    return SK_OK;
}

sk_code sk_mem_grow(void **items, size_t n, size_t *cap, size_t size, const char *what,
                    sk_status *st)
{
    size_t want = *cap ? *cap * 2 : 16;
    void *p;
    if (n < *cap) return SK_OK;
    if (want < *cap || want > SIZE_MAX / size || SK_FAULT()) return no_memory(want, size, what, st);
    p = realloc(*items, want * size);
    if (!p) return no_memory(want, size, what, st);
    memset((char *)p + *cap * size, 0, (want - *cap) * size);
    *items = p;
    *cap = want;
    return SK_OK;
}

void sk_mem_free(void *p) { free(p); }
