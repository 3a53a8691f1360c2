/* The error model of the host code: a status carried by pointer, in which the first failure wins.
 *
 * A function that can fail returns sk_code and takes `sk_status *` last. The struct lives with the
 * caller and owns nothing, so reporting that memory ran out needs no memory. One list generates the
 * codes, the Python exception classes and their built-in bases. */
#ifndef SK_STATUS_H
#define SK_STATUS_H

#include "base/sk_base.h"

/* X(code, Python class, additional Python base, when it is raised) */
#define SK_CODES(X)                                                                                \
    X(INVALID, "InvalidArgumentError", "ValueError", "an argument outside its documented domain")  \
    X(FORMAT, "FormatError", "ValueError",                                                         \
      "checkpoint bytes that break the rules of their format")                                     \
    X(UNSUPPORTED, "UnsupportedError", "NotImplementedError",                                      \
      "something well formed that this build does not implement")                                  \
    X(IO, "ReadError", "OSError", "a file that cannot be opened, mapped or read")                  \
    X(NOMEM, "OutOfMemoryError", "MemoryError", "host or device memory that is not there")         \
    X(DEVICE, "DeviceError", "RuntimeError", "an error reported by the CUDA driver or runtime")    \
    X(STATE, "StateError", "RuntimeError", "a call out of order, or on something busy or closed")  \
    X(MISMATCH, "MismatchError", "AssertionError", "two executions that should agree and do not")

typedef enum sk_code {
    SK_OK = 0,
#define X(code, python_class, python_base, when) SK_##code,
    SK_CODES(X)
#undef X
        SK_CODE_COUNT
} sk_code;

#define SK_STATUS_MSG 512

typedef struct sk_status {
    sk_code code;
    int32_t native;    // errno or CUDA error number, 0 if there is none
    int32_t step;      // plan step, -1 if there is none
    uint64_t where;    // byte offset in a file, 0 if there is none
    const char *check; // static name of the rule that failed, such as "BAD_MAGIC"; NULL if unnamed
    const char *file;  // reporter's source position
    int line;
    char msg[SK_STATUS_MSG];
} sk_status;

#define SK_STATUS_INIT                                                                             \
    {                                                                                              \
        .code = SK_OK, .step = -1                                                                  \
    }

/* Stores the failure unless `st` already holds one; returns `code`. `st` may be NULL. */
sk_code sk_fail_at(sk_status *st, const char *file, int line, sk_code code, const char *check,
                   uint64_t where, const char *fmt, ...) SK_PRINTF(7, 8);

/* As sk_fail_at for a failed system call: keeps errno and appends its text. */
sk_code sk_fail_errno_at(sk_status *st, const char *file, int line, sk_code code, int error,
                         const char *fmt, ...) SK_PRINTF(6, 7);

/* The value of these is `code`, visibly so for whoever analyses the caller. */
static inline sk_code sk_code_after(sk_code stored, sk_code code)
{
    (void)stored;
    return code;
}

#define SK_FAIL(st, code, ...) SK_FAIL_CHECK((st), (code), NULL, 0, __VA_ARGS__)
#define SK_FAIL_CHECK(st, code, check, where, ...)                                                 \
    sk_code_after(sk_fail_at((st), __FILE__, __LINE__, (code), (check), (where), __VA_ARGS__),     \
                  (code))
#define SK_FAIL_ERRNO(st, code, error, ...)                                                        \
    sk_code_after(sk_fail_errno_at((st), __FILE__, __LINE__, (code), (error), __VA_ARGS__), (code))

#define SK_TRY(expr)                                                                               \
    do {                                                                                           \
        sk_code sk_try_rc = (expr);                                                                \
        if (sk_try_rc != SK_OK) return sk_try_rc;                                                  \
    } while (0)

/* "INVALID", ...; "OK" for SK_OK; never NULL. */
const char *sk_code_name(sk_code code);

#endif
