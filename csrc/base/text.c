/* See text.h. */
#include "base/text.h"

#include <string.h>

/* One byte of a quotation into `form` (at least 4 bytes); returns how many it takes. */
static size_t quote_byte(uint8_t c, char *form)
{
    static const char digits[] = "0123456789abcdef";
    if (c == '\\') {
        memcpy(form, "\\\\", 2);
        return 2;
    }
    if (c >= 0x20 && c < 0x7f) {
        form[0] = (char)c;
        return 1;
    }
    memcpy(form, "\\x", 2);
    form[2] = digits[c >> 4];
    form[3] = digits[c & 15];
    return 4;
}

char *sk_quote(char *out, size_t room, const char *p, uint64_t n)
{
    size_t used = 0;
    size_t cut = 0; // where the dots go if the rest does not fit
    for (uint64_t i = 0; i < n; i++) {
        char form[4];
        size_t bytes = quote_byte((uint8_t)p[i], form);
        if (used + bytes >= room) {
            memcpy(out + cut, "...", 4);
            return out;
        }
        memcpy(out + used, form, bytes);
        used += bytes;
        if (used + 4 <= room) cut = used;
    }
    out[used] = 0;
    return out;
}

char *sk_quote_path(char *out, size_t room, const char *path)
{
    size_t n = strlen(path);
    if (n < room) {
        memcpy(out, path, n + 1);
        return out;
    }
    memcpy(out, "...", 3);
    memcpy(out + 3, path + n - (room - 4), room - 3);
    return out;
}

bool sk_utf8_valid(const char *p, uint64_t n)
{
    const uint8_t *s = (const uint8_t *)p;
    uint64_t i = 0;
    while (i < n) {
        uint8_t lead = s[i];
        uint64_t more; // continuation bytes
        uint8_t low = 0x80;
        uint8_t high = 0xbf; // bounds of the first of them
        if (lead < 0x80) {
            i++;
            continue;
        }
        if (lead < 0xc2 || lead > 0xf4) return false;
        more = lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
        if (lead == 0xe0) low = 0xa0;
        if (lead == 0xed) high = 0x9f;
        if (lead == 0xf0) low = 0x90;
        if (lead == 0xf4) high = 0x8f;
        if (more > n - i - 1) return false;
        if (s[i + 1] < low || s[i + 1] > high) return false;
        for (uint64_t k = 2; k <= more; k++)
            if ((s[i + k] & 0xc0) != 0x80) return false;
        i += more + 1;
    }
    return true;
}

bool sk_has_control(const char *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if ((uint8_t)p[i] < 0x20 || p[i] == 0x7f) return true;
    return false;
}
