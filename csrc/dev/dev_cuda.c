/* Devices through the CUDA runtime, which is linked statically: without a driver discovery still
 * runs and answers that there is none. Also opening and closing a device. */
#include "dev/dev.h"

#include "base/mem.h"
#include "dev/dev_cuda_impl.h"

#include <assert.h>
#include <stdio.h>

static_assert((int)cudaErrorNoDevice == SK_DEV_NO_DEVICE, "dev.h repeats the number");

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
    SK_TRY(sk_dev_try(cudaGetDeviceProperties(&p, index), "cudaGetDeviceProperties", st));
    (void)snprintf(info.name, sizeof info.name, "%s", p.name);
    info.mem_bytes = p.totalGlobalMem;
    info.l2_bytes = (uint64_t)p.l2CacheSize;
    info.n_sm = p.multiProcessorCount;
    info.cc_major = p.major;
    info.cc_minor = p.minor;
    *out = info;
    return SK_OK;
}

sk_code sk_dev_check(int32_t error, const char *what, int32_t step, sk_status *st)
{
    cudaError_t e = (cudaError_t)error;
    bool first = st && st->code == SK_OK;
    sk_code rc;
    if (e == cudaSuccess) return SK_OK;
    (void)cudaGetLastError(); // told; a later launch is not to be taken for the one that failed
    rc = SK_FAIL_CHECK(st, e == cudaErrorMemoryAllocation ? SK_NOMEM : SK_DEVICE, NULL, 0,
                       "CUDA: %s: %s: %s", what, cudaGetErrorName(e), cudaGetErrorString(e));
    if (first) {
        st->native = error;
        st->step = step;
    }
    return rc;
}

sk_code sk_dev_use(const sk_dev *d, sk_status *st)
{
    return sk_dev_try(cudaSetDevice(d->index), "cudaSetDevice", st);
}

sk_code sk_dev_use_live(const sk_dev *d, const char *what, sk_status *st)
{
    if (d->recording)
        return SK_FAIL(st, SK_STATE, "CUDA device %d: %s inside a recording", (int)d->index, what);
    return sk_dev_use(d, st);
}

/* Opening */

static sk_code new_stream(cudaStream_t *out, sk_status *st)
{
    // Non-blocking: nothing waits for the default stream, which other libraries may be using.
    return sk_dev_try(cudaStreamCreateWithFlags(out, cudaStreamNonBlocking),
                      "cudaStreamCreateWithFlags", st);
}

static sk_code new_events(cudaEvent_t *out, int n, unsigned flags, sk_status *st)
{
    for (int i = 0; i < n; i++)
        SK_TRY(
            sk_dev_try(cudaEventCreateWithFlags(&out[i], flags), "cudaEventCreateWithFlags", st));
    return SK_OK;
}

static sk_code fit_out(sk_dev *d, sk_status *st)
{
    void *stage = NULL;
    SK_TRY(sk_dev_use(d, st));
    SK_TRY(new_stream(&d->stream, st));
    for (int i = 0; i < SK_DEV_BRANCHES; i++) SK_TRY(new_stream(&d->branch[i], st));
    SK_TRY(new_events(d->forked, SK_DEV_BRANCHES, cudaEventDisableTiming, st));
    SK_TRY(new_events(d->joined, SK_DEV_BRANCHES, cudaEventDisableTiming, st));
    SK_TRY(new_events(d->staged, SK_DEV_PIECES, cudaEventDisableTiming, st));
    SK_TRY(new_events(d->mark, SK_DEV_EVENTS, cudaEventDefault, st));
    SK_TRY(sk_dev_pin(d, SK_DEV_PIECES * SK_DEV_PIECE, "staging", &stage, NULL, st));
    d->stage = stage;
    return SK_OK;
}

sk_code sk_dev_open(sk_dev **out, int32_t index, sk_status *st)
{
    void *p;
    sk_dev *d;
    sk_code rc;
    SK_TRY(sk_dev_need(index, st));
    SK_TRY(sk_mem_new(&p, 1, sizeof *d, "device", st));
    d = p;
    d->index = index;
    rc = sk_dev_info_get(index, &d->info, st);
    if (rc == SK_OK) rc = fit_out(d, st);
    if (rc != SK_OK) {
        sk_dev_close(d);
        return rc;
    }
    *out = d;
    return SK_OK;
}

static void drop_stream(cudaStream_t stream)
{
    if (!stream) return;
    (void)cudaStreamSynchronize(stream);
    (void)cudaStreamDestroy(stream);
}

static void drop_events(const cudaEvent_t *events, int n)
{
    for (int i = 0; i < n; i++)
        if (events[i]) (void)cudaEventDestroy(events[i]);
}

void sk_dev_close(sk_dev *d)
{
    if (!d) return;
    // Whatever fails from here on has failed before, in a call that said so.
    if (cudaSetDevice(d->index) == cudaSuccess) {
        drop_stream(d->stream);
        for (int i = 0; i < SK_DEV_BRANCHES; i++) drop_stream(d->branch[i]);
        drop_events(d->forked, SK_DEV_BRANCHES);
        drop_events(d->joined, SK_DEV_BRANCHES);
        drop_events(d->staged, SK_DEV_PIECES);
        drop_events(d->mark, SK_DEV_EVENTS);
        sk_dev_unpin(d, d->stage);
    }
    sk_mem_free(d);
}

struct CUstream_st *sk_dev_stream(const sk_dev *d) { return d->stream; }

struct CUstream_st *sk_dev_branch_stream(sk_dev *d, int32_t branch)
{
    return branch >= 1 && branch <= SK_DEV_BRANCHES ? d->branch[branch - 1] : NULL;
}

const sk_dev_info *sk_dev_about(const sk_dev *d) { return &d->info; }

sk_code sk_dev_sync(sk_dev *d, sk_status *st)
{
    SK_TRY(sk_dev_use_live(d, "wait", st));
    return sk_dev_try(cudaStreamSynchronize(d->stream), "cudaStreamSynchronize", st);
}

int32_t sk_dev_busy(sk_dev *d)
{
    cudaError_t e = cudaSetDevice(d->index);
    if (e == cudaSuccess) e = cudaStreamQuery(d->stream);
    if (e == cudaErrorNotReady) (void)cudaGetLastError(); // or the next launch seems to have it
    return e == cudaSuccess ? 0 : e == cudaErrorNotReady ? 1 : -(int32_t)e;
}
