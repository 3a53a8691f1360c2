/* Why a device cannot be used: every reason, on made-up answers of the driver; and what the calls
 * of a build without CUDA do. */
#include "tests/c/sk_test.h"

#include "dev/dev.h"
#include "dev/floor.h"

#include <string.h>

static const sk_dev_env good = {.built = true, .driver = 13000, .runtime = 13000, .n_dev = 2};

static void expect(sk_dev_env env, int32_t index, sk_code code, const char *check, const char *text)
{
    sk_status st = SK_STATUS_INIT;
    SK_EXPECT_FAIL(code, check, sk_dev_env_check(&env, index, &st), &st);
    if (code == SK_OK) return;
    SK_EXPECT_STR(text, st.msg);
    SK_EXPECT_INT(code == SK_DEVICE ? env.error : 0, st.native);
}

static void each_reason_is_told_apart(void)
{
    sk_dev_env env = {.built = false};
    expect(env, 0, SK_UNSUPPORTED, "NO_CUDA_BUILD",
           "CUDA: this build of stoker has none; the CPU is device \"cpu\"");
    env = good;
    env.driver = 0;
    env.n_dev = 0;
    env.error = 35;
    expect(env, 0, SK_DEVICE, "NO_DRIVER",
           "CUDA: no NVIDIA driver on this machine; version 13.0 or newer is needed");
    env.driver = 12080;
    expect(env, 0, SK_DEVICE, "OLD_DRIVER",
           "CUDA: the driver supports version 12.8, this build needs 13.0");
    env.driver = 13010;
    env.error = 802;
    env.error_name = "cudaErrorSystemNotReady";
    expect(env, 0, SK_DEVICE, "DRIVER",
           "CUDA: counting devices: cudaErrorSystemNotReady (error 802)");
    env.error = SK_DEV_NO_DEVICE;
    expect(env, 0, SK_DEVICE, "NO_DEVICE", "CUDA: the driver (version 13.1) shows no device");
    env.error = 0;
    expect(env, 0, SK_DEVICE, "NO_DEVICE", "CUDA: the driver (version 13.1) shows no device");
}

static void index_is_checked(void)
{
    sk_dev_env one = good;
    expect(good, 0, SK_OK, NULL, NULL);
    expect(good, 1, SK_OK, NULL, NULL);
    expect(good, 2, SK_INVALID, "DEVICE_INDEX", "CUDA device 2: expected 0 to 1, there are 2");
    expect(good, -1, SK_INVALID, "DEVICE_INDEX", "CUDA device -1: expected 0 to 1, there are 2");
    one.n_dev = 1;
    expect(one, 1, SK_INVALID, "DEVICE_INDEX", "CUDA device 1: expected 0 to 0, there is 1");
}

static void architectures_are_compared(void)
{
    static const struct {
        const char *archs;
        int32_t major, minor;
        bool runs;
    } cases[] = {
        {"90a", 9, 0, true},        {"90a", 10, 0, false},       {"90a", 8, 9, false},
        {"80", 8, 0, true},         {"80", 8, 6, true},          {"80", 9, 0, false},
        {"86", 8, 0, false},        {"80 90a", 9, 0, true},      {"80 90a", 12, 0, false},
        {"80-virtual", 9, 0, true}, {"80-virtual", 7, 5, false}, {"90a-virtual", 10, 0, false},
        {"100f", 10, 3, true},      {"100f", 12, 0, false},      {"100f-virtual", 12, 0, false},
        {"75 120", 12, 1, true},    {"", 9, 0, false},
    };
    for (size_t i = 0; i < SK_COUNT(cases); i++) {
        sk_dev_info info = {.name = "GPU", .cc_major = cases[i].major, .cc_minor = cases[i].minor};
        sk_status st = SK_STATUS_INIT;
        sk_code rc = sk_dev_arch_check(cases[i].archs, &info, &st);
        if (rc != (cases[i].runs ? SK_OK : SK_UNSUPPORTED) || rc != st.code)
            sk_test_fail(__FILE__, __LINE__, "%s on %d.%d: %s", cases[i].archs, (int)info.cc_major,
                         (int)info.cc_minor, sk_code_name(rc));
    }
}

static void this_program_has_no_cuda(void)
{
    sk_status st = SK_STATUS_INIT;
    SK_EXPECT_INT(0, sk_dev_count());
    SK_EXPECT_FAIL(SK_UNSUPPORTED, "NO_CUDA_BUILD", sk_dev_need(0, &st), &st);
}

static sk_code never_runs(void *ctx, sk_status *st)
{
    (void)st;
    *(bool *)ctx = true;
    return SK_OK;
}

/* What the calls below must leave as it is. */
typedef struct out {
    sk_dev *dev;
    uint8_t *p, *seen;
    void *host;
    sk_dev_graph *graph;
    sk_dev_info info;
    uint64_t a, b;
    double us;
    bool ran;
} out;

static sk_code nth_call(int n, out *o, sk_status *st)
{
    sk_dev *d = o->dev;
    uint8_t *p = o->p;
    switch (n) {
    case 0:
        return sk_dev_open(&o->dev, 0, st);
    case 1:
        return sk_dev_memory(d, &o->a, &o->b, st);
    case 2:
        return sk_dev_alloc(d, 1, "test", &o->p, st);
    case 3:
        return sk_dev_pin(d, 1, "test", &o->host, &o->seen, st);
    case 4:
        return sk_dev_write(d, p, &o->a, 1, st);
    case 5:
        return sk_dev_read(d, &o->a, p, 1, st);
    case 6:
        return sk_dev_fill(d, p, 1, 1, st);
    case 7:
        return sk_dev_copy(d, p, p, 1, st);
    case 8:
        return sk_dev_sync(d, st);
    case 9:
        return sk_dev_check(2, "test", 7, st);
    case 10:
        return sk_dev_capture(d, never_runs, &o->ran, &o->graph, st);
    case 11:
        return sk_dev_graph_launch(d, o->graph, st);
    case 12:
        return sk_dev_fork(d, 1, st);
    case 13:
        return sk_dev_join(d, 1, st);
    case 14:
        return sk_dev_mark(d, 0, st);
    case 15:
        return sk_dev_elapsed(d, 0, 1, &o->us, st);
    default:
        return sk_dev_info_get(0, &o->info, st);
    }
}

static void without_cuda_every_call_says_so(void)
{
    sk_status need = SK_STATUS_INIT;
    SK_EXPECT_FAIL(SK_UNSUPPORTED, "NO_CUDA_BUILD", sk_dev_need(0, &need), &need);
    for (int n = 0; n <= 16; n++) {
        sk_status st = SK_STATUS_INIT;
        out o = {.a = 3, .b = 5, .us = 7};
        SK_EXPECT_FAIL(SK_UNSUPPORTED, "NO_CUDA_BUILD", nth_call(n, &o, &st), &st);
        SK_EXPECT_STR(need.msg, st.msg);
        SK_EXPECT_INT(0, st.native);
        SK_EXPECT_INT(-1, st.step);
        SK_EXPECT(!o.dev && !o.p && !o.seen && !o.host && !o.graph && !o.info.n_sm && !o.ran);
        SK_EXPECT(o.a == 3 && o.b == 5 && o.us == 7);
    }
}

static void without_cuda_the_rest_is_harmless(void)
{
    sk_status st = SK_STATUS_INIT;
    int64_t nothing = 0; // nobody looks into these
    sk_dev *d = (sk_dev *)(void *)&nothing;
    sk_dev_graph *g = (sk_dev_graph *)(void *)&nothing;
    int64_t programmatic = 7;
    SK_EXPECT_OK(sk_dev_check(0, "test", 0, &st), &st);
    SK_EXPECT_INT(-SK_DEV_NO_DEVICE, sk_dev_busy(d));
    SK_EXPECT(!sk_dev_stream(d) && !sk_dev_branch_stream(d, 1) && !sk_dev_about(d));
    SK_EXPECT_INT(0, sk_dev_graph_nodes(g));
    SK_EXPECT_INT(0, sk_dev_graph_edges(g, &programmatic));
    SK_EXPECT_INT(0, programmatic);
    sk_dev_graph_drop(NULL);
    sk_dev_free(d, NULL);
    sk_dev_unpin(d, NULL);
    sk_dev_close(NULL);
}

static void floor_cases_are_checked(void)
{
    static const sk_floor_case good_case = {
        .kind = SK_FLOOR_CHAIN, .n = 2, .bytes = 16, .shape = -1, .n_samples = 1};
    const uint64_t huge[] = {16, UINT64_C(1) << 41};
    double us = 7;
    sk_floor_about about = {.n_nodes = 9};
    for (int n = 0; n < 8; n++) {
        sk_status st = SK_STATUS_INIT;
        sk_floor_case c = good_case;
        bool fine = n == 0;
        if (n == 1) c.n = 0;
        if (n == 2) c.n_samples = 0;
        if (n == 3) c.bytes = huge[1];
        if (n == 4) c.node_bytes = huge;
        if (n == 5) c.shape = 99;
        if (n == 6) c.kind = SK_FLOOR_BARRIER; // of -1 blocks
        if (n == 7) c.kind = SK_FLOOR_FORK, c.programmatic = true;
        SK_EXPECT_FAIL(fine ? SK_OK : SK_INVALID, NULL, sk_floor_check(&c, &st), &st);
        st = (sk_status)SK_STATUS_INIT;
        SK_EXPECT_FAIL(fine ? SK_UNSUPPORTED : SK_INVALID, NULL,
                       sk_floor_run(0, &c, &us, &about, &st), &st);
    }
    SK_EXPECT(us == 7 && about.n_nodes == 9);
}

static void floor_names_and_shapes(void)
{
    sk_floor_kind kind = SK_FLOOR_KIND_COUNT;
    int32_t threads = 0, per_sm = 0, loads = 0, n = 0;
    SK_EXPECT(sk_floor_kind_find("copy", &kind) && kind == SK_FLOOR_COPY);
    SK_EXPECT(sk_floor_kind_find("chain", &kind) && kind == SK_FLOOR_CHAIN);
    SK_EXPECT(!sk_floor_kind_find("ceiling", &kind) && kind == SK_FLOOR_CHAIN);
    while (sk_floor_shape(n, &threads, &per_sm, &loads)) {
        SK_EXPECT(threads % 32 == 0 && threads <= 1024 && threads * per_sm <= 2048 && loads > 0);
        n++;
    }
    SK_EXPECT(n > 3 && !sk_floor_shape(-1, &threads, &per_sm, &loads));
}

const sk_test sk_tests_dev[] = {
    {"each_reason_is_told_apart", each_reason_is_told_apart},
    {"index_is_checked", index_is_checked},
    {"architectures_are_compared", architectures_are_compared},
    {"this_program_has_no_cuda", this_program_has_no_cuda},
    {"without_cuda_every_call_says_so", without_cuda_every_call_says_so},
    {"without_cuda_the_rest_is_harmless", without_cuda_the_rest_is_harmless},
    {"floor_cases_are_checked", floor_cases_are_checked},
    {"floor_names_and_shapes", floor_names_and_shapes},
    {0},
};
