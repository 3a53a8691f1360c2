/* Devices through the CUDA runtime, which is linked statically: without a driver everything here
 * still runs and answers that there is none. */
#include "dev/dev.h"

#include <assert.h>
#include <cuda_runtime_api.h>
#include <stdio.h>

static_assert((int)cudaErrorNoDevice == SK_DEV_NO_DEVICE, "dev.h repeats the number");

static sk_code fail(sk_status *st, cudaError_t e, const char *what)
{
    sk_code rc =
        SK_FAIL_CHECK(st, e == cudaErrorMemoryAllocation ? SK_NOMEM : SK_DEVICE, NULL, 0,
                      "CUDA: %s: %s: %s", what, cudaGetErrorName(e), cudaGetErrorString(e));
    if (st && !st->native) st->native = (int32_t)e;
    return rc;
}

void sk_dev_probe(sk_dev_env *out)
{
    sk_dev_env env = {.built = true};
    int driver = 0;
    int runtime = 0;
    int n = 0;
    cudaError_t e;
    // Both succeed without a driver, which is then version 0.
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    e = cudaGetDeviceCount(&n); // leaves n alone when the driver is missing or too old
    env.driver = driver;
    env.runtime = runtime;
    if (e == cudaSuccess) {
        env.n_dev = n;
    } else {
        env.error = (int32_t)e;
        env.error_name = cudaGetErrorName(e);
    }
    *out = env;
}

sk_code sk_dev_info_get(int32_t index, sk_dev_info *out, sk_status *st)
{
    struct cudaDeviceProp p;
    sk_dev_info info = {.name = ""};
    cudaError_t e = cudaGetDeviceProperties(&p, index);
    if (e != cudaSuccess) return fail(st, e, "cudaGetDeviceProperties");
    (void)snprintf(info.name, sizeof info.name, "%s", p.name);
    info.mem_bytes = p.totalGlobalMem;
    info.n_sm = p.multiProcessorCount;
    info.cc_major = p.major;
    info.cc_minor = p.minor;
    *out = info;
    return SK_OK;
}
