/* See place.h. */
#include "engine/place.h"

#include <string.h>

sk_code sk_place_write(const sk_place *p, uint8_t *dst, const void *src, uint64_t n, sk_status *st)
{
    if (!n) return SK_OK;
    if (p->dev) return sk_dev_write(p->dev, dst, src, n, st);
    memcpy(dst, src, n);
    return SK_OK;
}

sk_code sk_place_read(const sk_place *p, void *dst, const uint8_t *src, uint64_t n, sk_status *st)
{
    if (!n) return SK_OK;
    if (p->dev) return sk_dev_read(p->dev, dst, src, n, st);
    memcpy(dst, src, n);
    return SK_OK;
}

sk_code sk_place_fill(const sk_place *p, uint8_t *dst, int32_t byte, uint64_t n, sk_status *st)
{
    if (!n) return SK_OK;
    if (p->dev) return sk_dev_fill(p->dev, dst, byte, n, st);
    memset(dst, byte, n);
    return SK_OK;
}

sk_code sk_place_copy(const sk_place *p, uint8_t *dst, const uint8_t *src, uint64_t n,
                      sk_status *st)
{
    if (!n) return SK_OK;
    if (p->dev) return sk_dev_copy(p->dev, dst, src, n, st);
    memcpy(dst, src, n);
    return SK_OK;
}
