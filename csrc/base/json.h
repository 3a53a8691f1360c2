/* A strict JSON reader over bytes in memory. It hands out one token after the other, allocates
 * nothing and recurses nowhere; its state is a bit per level of nesting.
 *
 * Strict means RFC 8259 and no more: no comments, no trailing commas, no bare words, no byte order
 * mark, control characters only as escapes, well-formed UTF-8, surrogate escapes in pairs, nothing
 * behind the value but white space. Names of members hold no NUL. Whether a name occurs twice is
 * for the caller to find out, who knows how many there may be. */
#ifndef SK_JSON_H
#define SK_JSON_H

#include "base/sk_base.h"

#define SK_JSON_DEPTH 32 // levels of nesting

typedef enum sk_json_kind {
    SK_JSON_BAD, // `fault` of the reader says why
    SK_JSON_END, // behind the value
    SK_JSON_OBJECT,
    SK_JSON_OBJECT_END,
    SK_JSON_ARRAY,
    SK_JSON_ARRAY_END,
    SK_JSON_NAME, // of a member; its value follows
    SK_JSON_STRING,
    SK_JSON_NUMBER,
    SK_JSON_TRUE,
    SK_JSON_FALSE,
    SK_JSON_NULL
} sk_json_kind;

typedef struct sk_json_token {
    sk_json_kind kind;
    const char *p;   // as written, without the quotes
    uint64_t n;      // bytes
    uint64_t text_n; // names and strings: bytes of the text they stand for, at most n
} sk_json_token;

typedef struct sk_json {
    const char *p;
    uint64_t n;
    uint64_t pos;      // behind the last token; of a fault: the byte that is wrong
    const char *fault; // static text, "a comma or the end of the object"; what was expected there
    uint64_t objects;  // bit i: level i is an object, else an array
    uint32_t depth;
    uint8_t state;
} sk_json;

static inline sk_json sk_json_over(const void *bytes, uint64_t n)
{
    return (sk_json){.p = (const char *)bytes, .n = n};
}

/* The next token. BAD and END repeat. */
sk_json_token sk_json_next(sk_json *j);

/* Reads to the end of the value that `t`, the last token, begins. False: BAD. */
bool sk_json_skip(sk_json *j, const sk_json_token *t);

/* The text of a name or string into t->text_n bytes; not terminated. */
void sk_json_text(const sk_json_token *t, char *out);

/* Does the name or string stand for `text`? */
bool sk_json_is(const sk_json_token *t, const char *text);

/* A number written as an integer: false for a sign, a fraction, an exponent or one above 2^64-1. */
bool sk_json_u64(const sk_json_token *t, uint64_t *out);

/* The magnitude of a number without fraction and exponent, and its sign. */
bool sk_json_integer(const sk_json_token *t, uint64_t *magnitude, bool *negative);

/* Any number, to within one unit in the last place, exact where mantissa and power of ten are both
 * exact in binary64. Too large ones become infinite. Independent of the locale. */
double sk_json_f64(const sk_json_token *t);

#endif
