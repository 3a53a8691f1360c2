/* SHA-256 (FIPS 180-4): digests of plans and states. */
#ifndef SK_SHA256_H
#define SK_SHA256_H

#include "base/sk_base.h"

#define SK_SHA256_BYTES 32

typedef struct sk_sha256 {
    uint32_t h[8];
    uint64_t n_bytes;
    uint8_t block[64];
} sk_sha256;

void sk_sha256_init(sk_sha256 *s);
void sk_sha256_add(sk_sha256 *s, const void *data, size_t n_bytes);
void sk_sha256_end(sk_sha256 *s, uint8_t digest[SK_SHA256_BYTES]);

#endif
