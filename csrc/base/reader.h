/* A cursor over bytes that cannot leave them. It is sticky: after the first read past the end every
 * read yields zero and `short_by` is set, so a parser reads straight through and asks once. The
 * cursor reports nothing itself; the parser knows whose bytes were missing. */
#ifndef SK_READER_H
#define SK_READER_H

#include "base/sk_base.h"

typedef struct sk_reader {
    const uint8_t *bytes;
    uint64_t size;
    uint64_t pos;      // stays at the read that failed
    uint64_t short_by; // bytes that the failed read lacked; 0 while all is well
} sk_reader;

static inline uint64_t sk_reader_left(const sk_reader *r) { return r->size - r->pos; }

/* The next n bytes, or NULL. For n = 0 the result is not NULL unless the cursor has failed. */
static inline const uint8_t *sk_take_bytes(sk_reader *r, uint64_t n)
{
    const uint8_t *p;
    if (r->short_by) return NULL;
    if (n > sk_reader_left(r)) {
        r->short_by = n - sk_reader_left(r);
        return NULL;
    }
    p = r->bytes + r->pos;
    r->pos += n;
    return p;
}

static inline uint64_t sk_read_uint(sk_reader *r, uint32_t n_bytes) // little-endian, at most 8
{
    const uint8_t *p = sk_take_bytes(r, n_bytes);
    uint64_t x = 0;
    if (!p) return 0;
    for (uint32_t i = 0; i < n_bytes; i++) x |= (uint64_t)p[i] << 8 * i;
    return x;
}

static inline uint8_t sk_read_u8(sk_reader *r) { return (uint8_t)sk_read_uint(r, 1); }
static inline uint32_t sk_read_u32(sk_reader *r) { return (uint32_t)sk_read_uint(r, 4); }
static inline uint64_t sk_read_u64(sk_reader *r) { return sk_read_uint(r, 8); }

#endif
