/* See json.h. */
#include "base/json.h"

#include "base/text.h"

#include <math.h>
#include <string.h>

/* What may come next. */
enum {
    WANT_VALUE = 0,
    WANT_FIRST_NAME, // or the end of the object
    WANT_NAME,
    WANT_FIRST_ITEM, // or the end of the array
    WANT_COMMA,      // or the end of what is open
    WANT_NOTHING
};

static sk_json_token fail(sk_json *j, uint64_t at, const char *expected)
{
    if (!j->fault) {
        j->fault = expected;
        j->pos = at;
    }
    return (sk_json_token){.kind = SK_JSON_BAD};
}

static void skip_space(sk_json *j)
{
    while (j->pos < j->n && (j->p[j->pos] == ' ' || j->p[j->pos] == '\t' || j->p[j->pos] == '\n' ||
                             j->p[j->pos] == '\r'))
        j->pos++;
}

/* ---- strings --------------------------------------------------------------------------------- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* The four digits behind \u; -1 when they are not there. */
static int32_t hex4(const char *p, uint64_t n)
{
    int32_t x = 0;
    if (n < 4) return -1;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(p[i]);
        if (digit < 0) return -1;
        x = x << 4 | digit;
    }
    return x;
}

static uint32_t put_utf8(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 63));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 63));
        out[2] = (char)(0x80 | (c & 63));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 63));
    out[2] = (char)(0x80 | (c >> 6 & 63));
    out[3] = (char)(0x80 | (c & 63));
    return 4;
}

/* The escape at p (a backslash): bytes it takes, its UTF-8 in out, that length in *n_out. 0: no
 * escape of JSON. */
static uint32_t take_escape(const char *p, uint64_t n, char out[4], uint32_t *n_out)
{
    static const char from[] = "\"\\/bfnrt";
    static const char to[] = "\"\\/\b\f\n\r\t";
    const char *known;
    int32_t c;
    int32_t low;
    if (n < 2 || p[1] == 0) return 0;
    known = strchr(from, p[1]);
    if (known) {
        out[0] = to[known - from];
        *n_out = 1;
        return 2;
    }
    if (p[1] != 'u') return 0;
    c = hex4(p + 2, n - 2);
    if (c < 0 || (c >= 0xdc00 && c <= 0xdfff)) return 0;
    if (c < 0xd800 || c > 0xdbff) {
        *n_out = put_utf8((uint32_t)c, out);
        return 6;
    }
    if (n < 12 || p[6] != '\\' || p[7] != 'u') return 0;
    low = hex4(p + 8, n - 8);
    if (low < 0xdc00 || low > 0xdfff) return 0;
    *n_out = put_utf8(0x10000u + (((uint32_t)c - 0xd800u) << 10) + ((uint32_t)low - 0xdc00u), out);
    return 12;
}

/* At a quote. */
static sk_json_token take_string(sk_json *j, sk_json_kind kind)
{
    const uint64_t begin = j->pos + 1;
    uint64_t at = begin;
    uint64_t text_n = 0;
    bool plain_ascii = true;
    while (at < j->n && j->p[at] != '"') {
        uint8_t c = (uint8_t)j->p[at];
        char text[4];
        uint32_t n_text = 1;
        uint32_t taken = 1;
        if (c < 0x20) return fail(j, at, "a control character as an escape");
        if (c == '\\') {
            taken = take_escape(j->p + at, j->n - at, text, &n_text);
            if (taken == 0) return fail(j, at, "an escape of JSON, surrogates in pairs");
            if (kind == SK_JSON_NAME && n_text == 1 && text[0] == 0)
                return fail(j, at, "a name without NUL");
        }
        plain_ascii = plain_ascii && c < 0x80;
        at += taken;
        text_n += n_text;
    }
    if (at >= j->n) return fail(j, j->n, "the end of a string");
    if (!plain_ascii && !sk_utf8_valid(j->p + begin, at - begin))
        return fail(j, begin, "well-formed UTF-8");
    j->pos = at + 1;
    return (sk_json_token){kind, j->p + begin, at - begin, text_n};
}

void sk_json_text(const sk_json_token *t, char *out)
{
    uint64_t at = 0;
    if (t->text_n == t->n) { // an escape is always longer than what it stands for
        if (t->n) memcpy(out, t->p, (size_t)t->n);
        return;
    }
    while (at < t->n) {
        char text[4] = {t->p[at]};
        uint32_t n_text = 1;
        uint32_t taken = t->p[at] == '\\' ? take_escape(t->p + at, t->n - at, text, &n_text) : 1;
        if (taken == 0) return; // cannot be: the token was checked
        memcpy(out, text, n_text);
        out += n_text;
        at += taken;
    }
}

bool sk_json_is(const sk_json_token *t, const char *text)
{
    char own[64];
    size_t n = strlen(text);
    if (t->kind != SK_JSON_NAME && t->kind != SK_JSON_STRING) return false;
    if (t->text_n != n) return false;
    if (t->n == n) return memcmp(t->p, text, n) == 0;
    if (n > sizeof own) return false;
    sk_json_text(t, own);
    return memcmp(own, text, n) == 0;
}

/* ---- numbers --------------------------------------------------------------------------------- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static uint64_t digits_at(const sk_json *j, uint64_t at)
{
    uint64_t n = 0;
    while (at + n < j->n && is_digit(j->p[at + n])) n++;
    return n;
}

static sk_json_token take_number(sk_json *j)
{
    const uint64_t begin = j->pos;
    uint64_t at = begin;
    uint64_t n;
    if (j->p[at] == '-') at++;
    n = digits_at(j, at);
    if (n == 0) return fail(j, at, "a digit");
    if (n > 1 && j->p[at] == '0') return fail(j, at, "a number without leading zeros");
    at += n;
    if (at < j->n && j->p[at] == '.') {
        n = digits_at(j, at + 1);
        if (n == 0) return fail(j, at + 1, "a digit behind the point");
        at += 1 + n;
    }
    if (at < j->n && (j->p[at] == 'e' || j->p[at] == 'E')) {
        at++;
        if (at < j->n && (j->p[at] == '+' || j->p[at] == '-')) at++;
        n = digits_at(j, at);
        if (n == 0) return fail(j, at, "a digit of the exponent");
        at += n;
    }
    j->pos = at;
    return (sk_json_token){SK_JSON_NUMBER, j->p + begin, at - begin, 0};
}

bool sk_json_integer(const sk_json_token *t, uint64_t *magnitude, bool *negative)
{
    uint64_t at = 0;
    uint64_t x = 0;
    if (t->kind != SK_JSON_NUMBER) return false;
    *negative = t->p[0] == '-';
    if (*negative) at = 1;
    if (*negative && t->n == 2 && t->p[1] == '0') return false; // -0
    for (; at < t->n; at++) {
        if (!is_digit(t->p[at])) return false;
        if (!sk_mul_u64(x, 10, &x) || !sk_add_u64(x, (uint64_t)(t->p[at] - '0'), &x)) return false;
    }
    *magnitude = x;
    return true;
}

bool sk_json_u64(const sk_json_token *t, uint64_t *out)
{
    bool negative;
    uint64_t x;
    if (!sk_json_integer(t, &x, &negative) || negative) return false;
    *out = x;
    return true;
}

/* m * 10^e. The table is exact in binary64; with m below 2^53 and |e| at most 22 so is the result
 * up to its one rounding. Beyond that, long double keeps the error below half a unit mostly. */
static double scale10(uint64_t m, int32_t e)
{
    static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                    1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                    1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    long double x = (long double)m;
    if (m <= UINT64_C(1) << 53 && e >= -22 && e <= 22)
        return e < 0 ? (double)m / powers[-e] : (double)m * powers[e];
    if (m == 0) return 0;
    for (; e > 22; e -= 22) x *= 1e22L;
    for (; e < -22; e += 22) x /= 1e22L;
    return (double)(e < 0 ? x / (long double)powers[-e] : x * (long double)powers[e]);
}

double sk_json_f64(const sk_json_token *t)
{
    const char *p = t->p;
    const char *end = t->p + t->n;
    bool negative = p < end && *p == '-';
    bool fraction = false;
    uint64_t m = 0;
    int32_t e = 0;
    int32_t written = 0; // exponent
    double x;
    if (negative) p++;
    for (; p < end && *p != 'e' && *p != 'E'; p++) {
        if (*p == '.') {
            fraction = true;
        } else if (m < UINT64_MAX / 10 - 1) {
            m = 10 * m + (uint64_t)(*p - '0');
            if (fraction && e > -100000) e--;
        } else if (!fraction && e < 100000) {
            e++; // digits that no longer count
        }
    }
    if (p < end) {
        bool minus = *++p == '-';
        if (*p == '-' || *p == '+') p++;
        for (; p < end; p++)
            if (written < 100000) written = 10 * written + (*p - '0');
        if (minus) written = -written;
    }
    e += written;
    // Beyond these every mantissa is infinite or zero.
    x = e > 400 ? (m ? (double)INFINITY : 0) : e < -400 ? 0 : scale10(m, e);
    return negative ? -x : x;
}

/* ---- structure ------------------------------------------------------------------------------- */

static bool in_object(const sk_json *j)
{
    return j->depth > 0 && (j->objects >> (j->depth - 1) & 1);
}

static void after_value(sk_json *j) { j->state = j->depth == 0 ? WANT_NOTHING : WANT_COMMA; }

static sk_json_token open_level(sk_json *j, bool object)
{
    sk_json_token t = {object ? SK_JSON_OBJECT : SK_JSON_ARRAY, j->p + j->pos, 1, 0};
    uint64_t bit;
    if (j->depth >= SK_JSON_DEPTH) return fail(j, j->pos, "at most 32 levels of nesting");
    bit = UINT64_C(1) << j->depth;
    j->objects = object ? j->objects | bit : j->objects & ~bit;
    j->depth++;
    j->state = object ? WANT_FIRST_NAME : WANT_FIRST_ITEM;
    j->pos++;
    return t;
}

static sk_json_token close_level(sk_json *j)
{
    sk_json_token t = {in_object(j) ? SK_JSON_OBJECT_END : SK_JSON_ARRAY_END, j->p + j->pos, 1, 0};
    j->depth--;
    j->pos++;
    after_value(j);
    return t;
}

static sk_json_token take_word(sk_json *j)
{
    static const struct {
        const char *text;
        sk_json_kind kind;
    } words[] = {{"true", SK_JSON_TRUE}, {"false", SK_JSON_FALSE}, {"null", SK_JSON_NULL}};
    for (size_t i = 0; i < SK_COUNT(words); i++) {
        size_t n = strlen(words[i].text);
        if (n > j->n - j->pos || memcmp(j->p + j->pos, words[i].text, n) != 0) continue;
        j->pos += n;
        return (sk_json_token){words[i].kind, j->p + j->pos - n, n, 0};
    }
    return fail(j, j->pos, "a value");
}

static sk_json_token take_value(sk_json *j)
{
    const char c = j->p[j->pos];
    sk_json_token t;
    if (c == '{' || c == '[') return open_level(j, c == '{');
    if (c == '"')
        t = take_string(j, SK_JSON_STRING);
    else if (c == '-' || is_digit(c))
        t = take_number(j);
    else
        t = take_word(j);
    if (t.kind != SK_JSON_BAD) after_value(j);
    return t;
}

static sk_json_token take_name(sk_json *j)
{
    sk_json_token t;
    if (j->p[j->pos] != '"') return fail(j, j->pos, "the name of a member in quotes");
    t = take_string(j, SK_JSON_NAME);
    if (t.kind == SK_JSON_BAD) return t;
    skip_space(j);
    if (j->pos >= j->n || j->p[j->pos] != ':') return fail(j, j->pos, "a colon");
    j->pos++;
    j->state = WANT_VALUE;
    return t;
}

sk_json_token sk_json_next(sk_json *j)
{
    char c;
    if (j->fault) return (sk_json_token){.kind = SK_JSON_BAD};
    skip_space(j);
    if (j->state == WANT_NOTHING) {
        if (j->pos < j->n) return fail(j, j->pos, "nothing but white space behind the value");
        return (sk_json_token){.kind = SK_JSON_END};
    }
    if (j->pos >= j->n) return fail(j, j->n, j->depth ? "more before the end" : "a value");
    c = j->p[j->pos];
    if (j->state == WANT_COMMA) {
        if (c == (in_object(j) ? '}' : ']')) return close_level(j);
        if (c != ',') return fail(j, j->pos, "a comma or a closing bracket");
        j->pos++;
        skip_space(j);
        if (j->pos >= j->n) return fail(j, j->n, "more before the end");
        return in_object(j) ? take_name(j) : take_value(j);
    }
    if (j->state == WANT_FIRST_NAME) return c == '}' ? close_level(j) : take_name(j);
    if (j->state == WANT_FIRST_ITEM && c == ']') return close_level(j);
    return take_value(j);
}

bool sk_json_skip(sk_json *j, const sk_json_token *t)
{
    const uint32_t level = j->depth;
    if (t->kind == SK_JSON_BAD) return false;
    if (t->kind != SK_JSON_OBJECT && t->kind != SK_JSON_ARRAY) return true;
    while (j->depth >= level)
        if (sk_json_next(j).kind == SK_JSON_BAD) return false;
    return true;
}
