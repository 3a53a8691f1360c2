/* Why a device cannot be used, said once. See dev.h. */
#include "dev/dev.h"

#include <stdlib.h>
#include <string.h>

#ifndef SK_BUILD_ARCHS
#define SK_BUILD_ARCHS ""
#endif

sk_code sk_dev_env_check(const sk_dev_env *env, int32_t index, sk_status *st)
{
    sk_code rc = SK_DEVICE;
    if (!env->built)
        return SK_FAIL_CHECK(st, SK_UNSUPPORTED, "NO_CUDA_BUILD", 0,
                             "CUDA: this build of stoker has none; the CPU is device \"cpu\"");
    if (env->driver == 0)
        rc = SK_FAIL_CHECK(st, SK_DEVICE, "NO_DRIVER", 0,
                           "CUDA: no NVIDIA driver on this machine; version %d.%d or newer is "
                           "needed",
                           (int)(env->runtime / 1000), (int)(env->runtime % 1000 / 10));
    else if (env->driver < env->runtime)
        rc = SK_FAIL_CHECK(st, SK_DEVICE, "OLD_DRIVER", 0,
                           "CUDA: the driver supports version %d.%d, this build needs %d.%d",
                           (int)(env->driver / 1000), (int)(env->driver % 1000 / 10),
                           (int)(env->runtime / 1000), (int)(env->runtime % 1000 / 10));
    else if (env->error && env->n_dev == 0 && env->error != SK_DEV_NO_DEVICE)
        rc = SK_FAIL_CHECK(st, SK_DEVICE, "DRIVER", 0, "CUDA: counting devices: %s (error %d)",
                           env->error_name ? env->error_name : "?", (int)env->error);
    else if (env->n_dev == 0)
        rc = SK_FAIL_CHECK(st, SK_DEVICE, "NO_DEVICE", 0,
                           "CUDA: the driver (version %d.%d) shows no device",
                           (int)(env->driver / 1000), (int)(env->driver % 1000 / 10));
    else if (index < 0 || index >= env->n_dev)
        return SK_FAIL_CHECK(st, SK_INVALID, "DEVICE_INDEX", 0,
                             "CUDA device %d: expected 0 to %d, there %s %d", (int)index,
                             (int)env->n_dev - 1, env->n_dev == 1 ? "is" : "are", (int)env->n_dev);
    else
        return SK_OK;
    if (st && st->code == rc && !st->native) st->native = env->error;
    return rc;
}

/* Does machine code (or PTX) for one entry of the list run on compute capability `cc`, which is
 * 10 * major + minor? Plain code runs on the same major and a minor at least its own; 'a' code only
 * on its own capability, 'f' code on its own family; PTX on anything newer, 'a' PTX like 'a' code.
 */
static bool arch_runs(const char *entry, size_t n, int32_t cc)
{
    char *end;
    long arch = strtol(entry, &end, 10);
    bool ptx = memchr(entry, '-', n) != NULL;
    if (end < entry + n && *end == 'a') return arch == cc;
    if (end < entry + n && *end == 'f') ptx = false;
    return ptx ? cc >= arch : cc / 10 == arch / 10 && cc >= arch;
}

sk_code sk_dev_arch_check(const char *archs, const sk_dev_info *info, sk_status *st)
{
    int32_t cc = info->cc_major * 10 + info->cc_minor;
    for (const char *p = archs; *p;) {
        size_t n = strcspn(p, " ");
        if (n && arch_runs(p, n, cc)) return SK_OK;
        p += n + strspn(p + n, " ");
    }
    return SK_FAIL_CHECK(st, SK_UNSUPPORTED, "NO_KERNELS", 0,
                         "CUDA device %s: compute capability %d.%d, this build has kernels for %s",
                         info->name, (int)info->cc_major, (int)info->cc_minor,
                         *archs ? archs : "none");
}

int32_t sk_dev_count(void)
{
    sk_dev_env env;
    sk_dev_probe(&env);
    return env.built && env.driver >= env.runtime ? env.n_dev : 0;
}

sk_code sk_dev_need(int32_t index, sk_status *st)
{
    sk_dev_env env;
    sk_dev_info info;
    sk_dev_probe(&env);
    SK_TRY(sk_dev_env_check(&env, index, st));
    SK_TRY(sk_dev_info_get(index, &info, st));
    return sk_dev_arch_check(SK_BUILD_ARCHS, &info, st);
}
