/* Small things every file of the host code may use: attributes, min/max/align, and arithmetic that
 * refuses to wrap. No I/O, no allocation, nothing that knows what a model is. */
#ifndef SK_BASE_H
#define SK_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SK_MUST_USE                __attribute__((warn_unused_result))
#define SK_PRINTF(fmt_at, args_at) __attribute__((format(printf, fmt_at, args_at)))
#define SK_COUNT(array)            (sizeof(array) / sizeof((array)[0]))

static inline size_t sk_min_size(size_t a, size_t b) { return a < b ? a : b; }
static inline int32_t sk_min_i32(int32_t a, int32_t b) { return a < b ? a : b; }
static inline int32_t sk_max_i32(int32_t a, int32_t b) { return a > b ? a : b; }

/* `align` is a power of two. False, and *out untouched, when the result does not fit. */
static inline bool sk_align_up(uint64_t x, uint64_t align, uint64_t *out)
{
    if (x > UINT64_MAX - (align - 1)) return false;
    *out = (x + align - 1) & ~(align - 1);
    return true;
}

static inline bool sk_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool sk_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

#endif
