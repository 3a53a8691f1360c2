/* Filling in a status and naming its code. Nothing here allocates or prints. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void fill(sk_status *st, const char *file, int line, sk_code code, const char *check)
{
    st->code = code;
    st->native = 0;
    st->step = -1;
    st->where = 0;
    st->check = check;
    st->file = file;
    st->line = line;
}

sk_code sk_fail_at(sk_status *st, const char *file, int line, sk_code code, const char *check,
                   uint64_t where, const char *fmt, ...)
{
    if (st && st->code == SK_OK) {
        va_list ap;
        fill(st, file, line, code, check);
        st->where = where;
        va_start(ap, fmt);
        (void)vsnprintf(st->msg, sizeof st->msg, fmt, ap);
        va_end(ap);
    }
    return code;
}

sk_code sk_fail_errno_at(sk_status *st, const char *file, int line, sk_code code, int error,
                         const char *fmt, ...)
{
    if (st && st->code == SK_OK) {
        va_list ap;
        size_t used;
        fill(st, file, line, code, NULL);
        st->native = error;
        va_start(ap, fmt);
        (void)vsnprintf(st->msg, sizeof st->msg, fmt, ap);
        va_end(ap);
        used = strlen(st->msg);
        (void)snprintf(st->msg + used, sizeof st->msg - used, ": %s", strerror(error));
    }
    return code;
}

const char *sk_code_name(sk_code code)
{
    static const char *const names[SK_CODE_COUNT] = {[SK_OK] = "OK",
#define X(code, python_class, python_base, when) [SK_##code] = #code,
                                                     SK_CODES(X)
#undef X
    };
    return (unsigned)code < SK_CODE_COUNT ? names[code] : "UNKNOWN";
}
