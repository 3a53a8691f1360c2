/* Host memory. Every allocation of the host code comes from here, so that it is checked for
 * overflow, can be made to fail in tests, and reports how many bytes were wanted. */
#ifndef SK_MEM_H
#define SK_MEM_H

#include "base/status.h"

/* n * size zeroed bytes into *out (at least one byte is allocated). On failure *out is untouched
 * and the status names `what`. Release with sk_mem_free. */
SK_MUST_USE sk_code sk_mem_new(void **out, size_t n, size_t size, const char *what, sk_status *st);

/* As sk_mem_new, aligned to 64 bytes (a cache line, and what the vector kernels like). */
SK_MUST_USE sk_code sk_mem_new_aligned(void **out, size_t bytes, const char *what, sk_status *st);

/* Makes room for one more item in a growable array of `*cap` items: doubles when n == *cap. The new
 * items are zeroed. On failure the array is as it was. */
SK_MUST_USE sk_code sk_mem_grow(void **items, size_t n, size_t *cap, size_t size, const char *what,
                                sk_status *st);

/* Accepts NULL. */
void sk_mem_free(void *p);

/* A large zeroed block, aligned to 64 bytes, whose pages are taken when they are first written. */
typedef struct sk_block {
    void *p;
    uint64_t bytes;
    void *raw; // what the allocator gave
} sk_block;

SK_MUST_USE sk_code sk_block_init(sk_block *out, uint64_t bytes, const char *what, sk_status *st);
void sk_block_fini(sk_block *b); // accepts a zeroed struct

/* Bytes that this process may still take, by the system's own estimate: memory that is free or can
 * be reclaimed, within the control group's limit where there is one. UINT64_MAX when nobody says.
 * `root` is where the system's files are, "" but in tests. */
uint64_t sk_mem_available_in(const char *root);
uint64_t sk_mem_available(void);

#endif
