/* Status, memory, checked arithmetic, and the runner's own fault loop. */
#include "tests/c/sk_test.h"

#include "base/fault.h"
#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void status_first_failure_wins(void)
{
    sk_status st = SK_STATUS_INIT;
    SK_EXPECT_INT(SK_FORMAT, SK_FAIL_CHECK(&st, SK_FORMAT, "BAD_MAGIC", 7, "magic: found %d", 3));
    SK_EXPECT_INT(SK_IO, SK_FAIL(&st, SK_IO, "later")); // the code of this failure is returned
    SK_EXPECT_INT(SK_IO, SK_FAIL_ERRNO(&st, SK_IO, ENOENT, "later still"));
    SK_EXPECT_INT(SK_FORMAT, st.code);
    SK_EXPECT_STR("magic: found 3", st.msg);
    SK_EXPECT_STR("BAD_MAGIC", st.check);
    SK_EXPECT_U64(7, st.where);
    SK_EXPECT_INT(0, st.native);
    SK_EXPECT_INT(-1, st.step);
    SK_EXPECT(st.line > 0 && strstr(st.file, "test_base.c"));
}

static void status_may_be_absent(void)
{
    SK_EXPECT_INT(SK_STATE, SK_FAIL(NULL, SK_STATE, "nobody listens"));
    SK_EXPECT_INT(SK_IO, SK_FAIL_ERRNO(NULL, SK_IO, EIO, "nobody listens"));
}

static void status_keeps_errno(void)
{
    sk_status st = SK_STATUS_INIT;
    SK_EXPECT_INT(SK_IO, SK_FAIL_ERRNO(&st, SK_IO, ENOENT, "model.gguf"));
    SK_EXPECT_INT(ENOENT, st.native);
    SK_EXPECT(strncmp(st.msg, "model.gguf: ", 12) == 0 && strlen(st.msg) > 12);
}

static void status_truncates(void)
{
    char long_name[2 * SK_STATUS_MSG];
    memset(long_name, 'x', sizeof long_name);
    long_name[sizeof long_name - 1] = '\0';
    sk_status st = SK_STATUS_INIT;
    SK_EXPECT_INT(SK_IO, SK_FAIL_ERRNO(&st, SK_IO, EIO, "%s", long_name));
    SK_EXPECT_U64(SK_STATUS_MSG - 1, strlen(st.msg));
}

static void codes_have_names(void)
{
    SK_EXPECT_STR("OK", sk_code_name(SK_OK));
    SK_EXPECT_STR("NOMEM", sk_code_name(SK_NOMEM));
    SK_EXPECT_STR("MISMATCH", sk_code_name((sk_code)(SK_CODE_COUNT - 1)));
    SK_EXPECT_STR("UNKNOWN", sk_code_name(SK_CODE_COUNT));
}

static void arithmetic_refuses_to_wrap(void)
{
    uint64_t out = 42;
    SK_EXPECT(!sk_mul_u64(UINT64_MAX, 2, &out));
    SK_EXPECT(!sk_add_u64(UINT64_MAX, 1, &out));
    SK_EXPECT(sk_mul_u64(1u << 31, 1u << 31, &out));
    SK_EXPECT_U64(1ull << 62, out);
    SK_EXPECT(sk_add_u64(UINT64_MAX - 1, 1, &out));
    SK_EXPECT_U64(UINT64_MAX, out);
}

static void align_up(void)
{
    uint64_t out = 42;
    SK_EXPECT(sk_align_up(0, 64, &out));
    SK_EXPECT_U64(0, out);
    SK_EXPECT(sk_align_up(65, 64, &out));
    SK_EXPECT_U64(128, out);
    SK_EXPECT(sk_align_up(UINT64_MAX - 63, 64, &out));
    SK_EXPECT_U64(UINT64_MAX - 63, out);
    SK_EXPECT(!sk_align_up(UINT64_MAX - 62, 64, &out));
    SK_EXPECT_U64(UINT64_MAX - 63, out); // untouched
}

static void memory_is_zeroed_and_aligned(void)
{
    sk_status st = SK_STATUS_INIT;
    void *p = NULL;
    SK_REQUIRE(SK_EXPECT_OK(sk_mem_new(&p, 3, 5, "p", &st), &st));
    for (int i = 0; i < 15; i++) SK_EXPECT_INT(0, ((char *)p)[i]);
    sk_mem_free(p);
    SK_REQUIRE(SK_EXPECT_OK(sk_mem_new(&p, 0, 0, "p", &st), &st));
    SK_EXPECT(p != NULL);
    sk_mem_free(p);
    SK_REQUIRE(SK_EXPECT_OK(sk_mem_new_aligned(&p, 65, "p", &st), &st));
    SK_EXPECT_U64(0, (uintptr_t)p % 64);
    for (int i = 0; i < 65; i++) SK_EXPECT_INT(0, ((char *)p)[i]);
    sk_mem_free(p);
    sk_mem_free(NULL);
}

static void memory_refuses_the_impossible(void)
{
    sk_status st = SK_STATUS_INIT;
    int mark = 0;
    void *p = &mark;
    SK_EXPECT_FAIL(SK_NOMEM, NULL, sk_mem_new(&p, SIZE_MAX, 2, "weights", &st), &st);
    SK_EXPECT(strstr(st.msg, "weights"));
    st = (sk_status)SK_STATUS_INIT;
    SK_EXPECT_FAIL(SK_NOMEM, NULL, sk_mem_new_aligned(&p, SIZE_MAX - 1, "weights", &st), &st);
    SK_EXPECT(p == &mark);
}

static void memory_grows(void)
{
    sk_status st = SK_STATUS_INIT;
    int32_t *items = NULL;
    size_t cap = 0;
    for (size_t n = 0; n < 1000; n++) {
        SK_REQUIRE(
            SK_EXPECT_OK(sk_mem_grow((void **)&items, n, &cap, sizeof *items, "i", &st), &st));
        SK_REQUIRE(cap > n);
        SK_EXPECT_INT(0, items[n]);
        items[n] = (int32_t)n;
    }
    for (size_t n = 0; n < 1000; n++) SK_EXPECT_INT((int64_t)n, items[n]);
    sk_mem_free(items);
}

static void memory_keeps_the_array_when_growing_fails(void)
{
    sk_status st = SK_STATUS_INIT;
    int mark = 0;
    void *items = &mark;
    size_t cap = SIZE_MAX / 4;
    SK_EXPECT_FAIL(SK_NOMEM, NULL, sk_mem_grow(&items, cap, &cap, 16, "i", &st), &st);
    SK_EXPECT(items == &mark && cap == SIZE_MAX / 4);
}

static sk_code three_allocations(void *arg, sk_status *st)
{
    void *a = NULL;
    void *b = NULL;
    void *items = NULL;
    size_t cap = 0;
    sk_code rc = sk_mem_new(&a, 1, 100, "a", st);
    if (rc == SK_OK) rc = sk_mem_new_aligned(&b, 100, "b", st);
    if (rc == SK_OK) rc = sk_mem_grow(&items, 0, &cap, 8, "items", st);
    ++*(int *)arg;
    sk_mem_free(a);
    sk_mem_free(b);
    sk_mem_free(items);
    return rc;
}

static void every_allocation_fails_once(void)
{
    int runs = 0;
    SK_EXPECT(SK_EACH_FAULT(three_allocations, &runs));
    SK_EXPECT_INT(4, runs); // three that fail, one that passes
}

static void put(const char *root, const char *name, const char *text)
{
    char path[128];
    FILE *f;
    (void)snprintf(path, sizeof path, "%s/%s", root, name);
    if (!text) {
        SK_REQUIRE(mkdir(path, 0700) == 0);
        return;
    }
    f = fopen(path, "w");
    SK_REQUIRE(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void files_in_memory_are_available(void)
{
    static const char *const names[][2] = {
        {"proc", NULL},
        {"sys", NULL},
        {"sys/fs", NULL},
        {"sys/fs/cgroup", NULL},
        {"proc/meminfo", "MemTotal:   99 kB\nMemAvailable:   50 kB\n"},
        {"sys/fs/cgroup/memory.max", "30000\n"},
        {"sys/fs/cgroup/memory.current", "28000\n"},
        {"sys/fs/cgroup/memory.stat", "anon 3000\nfile 25000\nkernel 9\nshmem 1000\n"},
    };
    char root[] = "/tmp/sk_memory_XXXXXX", path[128];
    SK_REQUIRE(mkdtemp(root));
    SK_EXPECT_U64(UINT64_MAX, sk_mem_available_in(root));
    for (size_t i = 0; i < SK_COUNT(names); i++) put(root, names[i][0], names[i][1]);
    SK_EXPECT_U64(30000 - 28000 + 24000, sk_mem_available_in(root));
    put(root, "sys/fs/cgroup/memory.max", "max\n");
    SK_EXPECT_U64(50 * 1024, sk_mem_available_in(root));
    for (size_t i = SK_COUNT(names); i-- > 0;) {
        (void)snprintf(path, sizeof path, "%s/%s", root, names[i][0]);
        SK_EXPECT_INT(0, remove(path));
    }
    SK_EXPECT_INT(0, remove(root));
}

const sk_test sk_tests_base[] = {
    {"status_first_failure_wins", status_first_failure_wins},
    {"status_may_be_absent", status_may_be_absent},
    {"status_keeps_errno", status_keeps_errno},
    {"status_truncates", status_truncates},
    {"codes_have_names", codes_have_names},
    {"arithmetic_refuses_to_wrap", arithmetic_refuses_to_wrap},
    {"align_up", align_up},
    {"memory_is_zeroed_and_aligned", memory_is_zeroed_and_aligned},
    {"memory_refuses_the_impossible", memory_refuses_the_impossible},
    {"memory_grows", memory_grows},
    {"memory_keeps_the_array_when_growing_fails", memory_keeps_the_array_when_growing_fails},
    {"every_allocation_fails_once", every_allocation_fails_once},
    {"files_in_memory_are_available", files_in_memory_are_available},
    {0},
};
