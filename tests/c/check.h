/* What the test programs in C++ check with: the first failures are printed, all are counted. And
 * numbers that are the same in every run. */
#ifndef SK_TESTS_CHECK_H
#define SK_TESTS_CHECK_H

#include <stdint.h>
#include <stdio.h>

namespace
{

int failures;

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition) && failures++ < 20) {                                                     \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #condition);                                 \
            printf(__VA_ARGS__);                                                                   \
            printf("\n");                                                                          \
        }                                                                                          \
    } while (0)

uint32_t next_random()
{
    static uint64_t state = 20240229;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state >> 33);
}

} // namespace

#endif
