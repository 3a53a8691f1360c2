/* Where the buffers of a session are: in host memory, or on a device. The verbs by which the
 * session reads and writes them; on a device they are ordered with the rounds that were submitted
 * before. */
#ifndef SK_PLACE_H
#define SK_PLACE_H

#include "dev/dev.h"

typedef struct sk_place {
    sk_dev *dev; // NULL: host memory
} sk_place;

/* From the host; `src` may be reused on return. */
SK_MUST_USE sk_code sk_place_write(const sk_place *p, uint8_t *dst, const void *src, uint64_t n,
                                   sk_status *st);
/* To the host; waits for what was submitted before. */
SK_MUST_USE sk_code sk_place_read(const sk_place *p, void *dst, const uint8_t *src, uint64_t n,
                                  sk_status *st);
SK_MUST_USE sk_code sk_place_fill(const sk_place *p, uint8_t *dst, int32_t byte, uint64_t n,
                                  sk_status *st);
/* Within the place. */
SK_MUST_USE sk_code sk_place_copy(const sk_place *p, uint8_t *dst, const uint8_t *src, uint64_t n,
                                  sk_status *st);

#endif
