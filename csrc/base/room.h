/* How much memory the host could still give, so that a request for more is refused before any of it
 * is taken: the kernel hands out addresses freely and kills the process when it touches them. */
#ifndef SK_ROOM_H
#define SK_ROOM_H

#include "base/status.h"

/* Bytes that can be had without swapping: what the system has, or what the control group of this
 * process leaves, whichever is less; UINT64_MAX where neither is told. An estimate. */
uint64_t sk_room(void);

/* NOMEM, with both numbers, unless `bytes` fit. `what` says what they are for. */
SK_MUST_USE sk_code sk_room_need(uint64_t bytes, const char *what, sk_status *st);

#endif
