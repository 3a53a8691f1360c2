/* The runner of the C tests. A file test_X.c, listed in sources.txt, holds static functions and one
 * table; nothing else has to be edited:
 *
 *     static void grows(void) { SK_EXPECT(1 + 1 == 2); }
 *     const sk_test sk_tests_X[] = {{"grows", grows}, {0}};
 *
 * The program always has the fault points of base/fault.h. `sk_tests [--list] [FILTER...]` runs the
 * tests whose "X.name" contains one of the filters. */
#ifndef SK_TEST_H
#define SK_TEST_H

#include "base/status.h"

typedef struct sk_test {
    const char *name; // NULL ends a table
    void (*fn)(void);
} sk_test;

/* Counts a failure of the running test and prints where it is. Returns false. */
bool sk_test_fail(const char *file, int line, const char *fmt, ...) SK_PRINTF(3, 4);

/* EXPECT goes on after a failure, REQUIRE leaves the (void) function. */
#define SK_EXPECT(expr) ((expr) ? true : sk_test_fail(__FILE__, __LINE__, "%s", #expr))
#define SK_REQUIRE(expr)                                                                           \
    do {                                                                                           \
        if (!SK_EXPECT(expr)) return;                                                              \
    } while (0)

/* The same for pairs, printing both. `want` comes first. */
#define SK_EXPECT_INT(want, got) sk_test_int(__FILE__, __LINE__, #got, (want), (got))
#define SK_EXPECT_U64(want, got) sk_test_u64(__FILE__, __LINE__, #got, (want), (got))
#define SK_EXPECT_STR(want, got) sk_test_str(__FILE__, __LINE__, #got, (want), (got))
bool sk_test_int(const char *file, int line, const char *what, int64_t want, int64_t got);
bool sk_test_u64(const char *file, int line, const char *what, uint64_t want, uint64_t got);
bool sk_test_str(const char *file, int line, const char *what, const char *want, const char *got);

/* A call that has to succeed, or to fail with `code` and rule `check` (NULL: any) on a fresh `st`.
 * Prints the message that was there instead. */
#define SK_EXPECT_OK(rc, st) sk_test_status(__FILE__, __LINE__, #rc, SK_OK, NULL, (rc), (st))
#define SK_EXPECT_FAIL(code, check, rc, st)                                                        \
    sk_test_status(__FILE__, __LINE__, #rc, (code), (check), (rc), (st))
bool sk_test_status(const char *file, int line, const char *what, sk_code want, const char *check,
                    sk_code got, const sk_status *st);

/* Runs `scenario` again and again with fault point N failing, N = 1, 2, ..., until N is beyond its
 * last one. A scenario makes, uses and drops everything it needs, and returns the first code that
 * was not SK_OK. Each run must end in SK_OK (the fault was harmless) or in NOMEM, IO or DEVICE with
 * the status saying the same; the last run, without a fault, must succeed. What a failed run leaks
 * is reported under ASan, at the end of the test. */
typedef sk_code (*sk_scenario)(void *arg, sk_status *st);
#define SK_EACH_FAULT(scenario, arg) sk_test_each_fault(__FILE__, __LINE__, (scenario), (arg))
bool sk_test_each_fault(const char *file, int line, sk_scenario scenario, void *arg);

#endif
