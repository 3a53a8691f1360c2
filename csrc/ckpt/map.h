/* A regular file mapped read-only. Owns the mapping; knows nothing of formats.
 *
 * A file that somebody else truncates while it is mapped ends the process with SIGBUS on the next
 * touch of a lost page; no check at opening can prevent that. */
#ifndef SK_MAP_H
#define SK_MAP_H

#include "base/status.h"

typedef struct sk_map {
    const uint8_t *bytes; // NULL for an empty file
    uint64_t size;
} sk_map;

SK_MUST_USE sk_code sk_map_open(sk_map *out, const char *path, sk_status *st);
/* Accepts a zeroed map and leaves one. */
void sk_map_close(sk_map *map);

#endif
