/* Text that comes from a file and may hold anything: checking it and quoting it in messages. */
#ifndef SK_TEXT_H
#define SK_TEXT_H

#include "base/sk_base.h"

/* Room that holds any key or name worth reading; longer ones are abbreviated. */
#define SK_QUOTE_MAX 104

/* Writes p[0..n) as printable ASCII: other bytes become \xNN, a backslash \\. What does not fit in
 * `room` bytes (at least 8, terminator included) ends in "...". Returns `out`. */
char *sk_quote(char *out, size_t room, const char *p, uint64_t n);

/* Room for the path in front of a message: what is left of SK_STATUS_MSG goes to the message. */
#define SK_LABEL_MAX 168

/* Copies a path into `room` bytes (at least 8); of one that is too long, "..." and its end, which
 * says more than its beginning. Returns `out`. */
char *sk_quote_path(char *out, size_t room, const char *path);

/* Well-formed UTF-8: no overlong forms, surrogates or values above U+10FFFF. */
bool sk_utf8_valid(const char *p, uint64_t n);

/* Holds a byte below 0x20 or 0x7f; NUL is one. */
bool sk_has_control(const char *p, uint64_t n);

#endif
