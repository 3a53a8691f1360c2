/* Runner of the C tests: see sk_test.h. The build passes the list of tables as
 * SK_TEST_TABLES='X(base) X(dev)', made from sources.txt. */
#include "tests/c/sk_test.h"

#include "base/fault.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#ifndef SK_FAULTS
#error "the C tests are built with -DSK_FAULTS"
#endif

#define X(name) extern const sk_test sk_tests_##name[];
SK_TEST_TABLES
#undef X

/* In the sanitizer's run time; absent without it. Non-zero when something has leaked. */
extern int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

static int failures; // of the running test
static bool leaked;

bool sk_test_fail(const char *file, int line, const char *fmt, ...)
{
    va_list ap;
    failures++;
    printf("%s:%d: ", file, line);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
    return false;
}

bool sk_test_int(const char *file, int line, const char *what, int64_t want, int64_t got)
{
    if (want == got) return true;
    return sk_test_fail(file, line, "%s: expected %lld, got %lld", what, (long long)want,
                        (long long)got);
}

bool sk_test_u64(const char *file, int line, const char *what, uint64_t want, uint64_t got)
{
    if (want == got) return true;
    return sk_test_fail(file, line, "%s: expected %llu, got %llu", what, (unsigned long long)want,
                        (unsigned long long)got);
}

bool sk_test_str(const char *file, int line, const char *what, const char *want, const char *got)
{
    if (want == got || (want && got && strcmp(want, got) == 0)) return true;
    return sk_test_fail(file, line, "%s: expected \"%s\", got \"%s\"", what, want ? want : "(null)",
                        got ? got : "(null)");
}

bool sk_test_status(const char *file, int line, const char *what, sk_code want, const char *check,
                    sk_code got, const sk_status *st)
{
    const char *rule = st->check ? st->check : "-";
    if (got != st->code && (got != SK_OK || st->code != SK_OK))
        return sk_test_fail(file, line, "%s: returned %s, but the status says %s: %s", what,
                            sk_code_name(got), sk_code_name(st->code), st->msg);
    if (got != want || (check && strcmp(check, rule) != 0))
        return sk_test_fail(file, line, "%s: expected %s (%s), got %s (%s): %s", what,
                            sk_code_name(want), check ? check : "any", sk_code_name(got), rule,
                            got == SK_OK ? "" : st->msg);
    return true;
}

bool sk_test_each_fault(const char *file, int line, sk_scenario scenario, void *arg)
{
    for (uint64_t n = 1; n < 1000000; n++) {
        sk_status st = SK_STATUS_INIT;
        uint64_t passed;
        sk_code rc;
        sk_fault_arm(n);
        rc = scenario(arg, &st);
        passed = sk_fault_count();
        sk_fault_arm(0);
        if (rc != st.code)
            return sk_test_fail(file, line, "fault %llu: returned %s, but the status says %s: %s",
                                (unsigned long long)n, sk_code_name(rc), sk_code_name(st.code),
                                st.msg);
        if (passed < n) { // no fault in this run
            if (rc == SK_OK) return true;
            return sk_test_fail(file, line, "without a fault: %s: %s", sk_code_name(rc), st.msg);
        }
        if (rc != SK_OK && rc != SK_NOMEM && rc != SK_IO && rc != SK_DEVICE)
            return sk_test_fail(file, line, "fault %llu: expected NOMEM, IO or DEVICE, got %s: %s",
                                (unsigned long long)n, sk_code_name(rc), st.msg);
    }
    return sk_test_fail(file, line, "the scenario does not end");
}

typedef struct counts {
    int passed;
    int failed;
} counts;

static bool chosen(const char *name, int argc, char **argv)
{
    bool any = false;
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-') continue;
        any = true;
        if (strstr(name, argv[i])) return true;
    }
    return !any;
}

static void run_table(const char *table, const sk_test *tests, bool list, int argc, char **argv,
                      counts *n)
{
    for (const sk_test *t = tests; t->name; t++) {
        char name[128];
        (void)snprintf(name, sizeof name, "%s.%s", table, t->name);
        if (!chosen(name, argc, argv)) continue;
        if (list) {
            printf("%s\n", name);
            continue;
        }
        failures = 0;
        t->fn();
        sk_fault_arm(0);
        // A leak is reported at every later check too: blame the first test only.
        if (!leaked && __lsan_do_recoverable_leak_check && __lsan_do_recoverable_leak_check()) {
            leaked = true;
            (void)sk_test_fail(__FILE__, __LINE__,
                               "memory leaked (report above); not looked for in later tests");
        }
        if (failures) printf("FAILED %s\n", name);
        failures ? n->failed++ : n->passed++;
    }
}

int main(int argc, char **argv)
{
    counts n = {0, 0};
    bool list = false;
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] != '-') continue;
        if (strcmp(argv[i], "--list") != 0) {
            fprintf(stderr, "usage: %s [--list] [FILTER...]\n", argv[0]);
            return 2;
        }
        list = true;
    }
    setvbuf(stdout, NULL, _IOLBF, 0); // in order with what sanitizers write
#define X(name) run_table(#name, sk_tests_##name, list, argc, argv, &n);
    SK_TEST_TABLES
#undef X
    if (list) return 0;
    if (n.passed + n.failed == 0) {
        fprintf(stderr, "no test has that name\n");
        return 2;
    }
    printf("%d passed, %d failed\n", n.passed, n.failed);
    return n.failed != 0;
}
