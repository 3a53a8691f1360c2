/* Division by a reciprocal against division. */
#include "tests/c/sk_test.h"

#include "kernels/common/divide.h"

static void quotients_are_exact(void)
{
    for (int32_t n = 1; n <= 4096; n++) {
        const uint32_t by = sk_reciprocal(n);
        const int64_t end = (INT64_C(1) << 32) / n < INT32_MAX ? (INT64_C(1) << 32) / n : INT32_MAX;
        const int64_t step = end / 97 + 1;
        for (int64_t i = 0; i < 3 * n && i < end; i++)
            SK_EXPECT_INT(i / n, sk_divided((int32_t)i, by));
        for (int64_t i = 0; i < end; i += step) { // and around multiples, where it would show
            const int64_t at = i / n * n;
            SK_EXPECT_INT(at / n, sk_divided((int32_t)at, by));
            if (at + n - 1 < end) SK_EXPECT_INT(at / n, sk_divided((int32_t)(at + n - 1), by));
        }
        SK_EXPECT_INT((end - 1) / n, sk_divided((int32_t)(end - 1), by));
    }
}

static void quotients_of_any_size_are_exact(void)
{
    for (int32_t n = 1; n <= 4096; n++) {
        const sk_divisor by = sk_divisor_of(n);
        for (int64_t i = 0; i < INT32_MAX; i += INT32_MAX / 97) {
            const int64_t at = i / n * n;
            SK_EXPECT_INT(at / n, sk_quotient((int32_t)at, &by));
            if (at > 0) SK_EXPECT_INT(at / n - 1, sk_quotient((int32_t)(at - 1), &by));
        }
        SK_EXPECT_INT(INT32_MAX / n, sk_quotient(INT32_MAX, &by));
    }
}

const sk_test sk_tests_divide[] = {
    {"quotients_are_exact", quotients_are_exact},
    {"quotients_of_any_size_are_exact", quotients_of_any_size_are_exact},
    {0}};
