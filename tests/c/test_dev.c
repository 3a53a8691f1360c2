/* Why a device cannot be used: every reason, on made-up answers of the driver. */
#include "tests/c/sk_test.h"

#include "dev/dev.h"

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

const sk_test sk_tests_dev[] = {
    {"each_reason_is_told_apart", each_reason_is_told_apart},
    {"index_is_checked", index_is_checked},
    {"architectures_are_compared", architectures_are_compared},
    {"this_program_has_no_cuda", this_program_has_no_cuda},
    {0},
};
