/* CUDA devices as the host code sees them. No CUDA header leaks out of here.
 *
 * dev_cuda.c asks the runtime, dev_null.c answers for a build without CUDA, and dev.c holds what
 * both share: the one place that says why a device cannot be used. For now discovery only. Nothing
 * here is called at import. */
#ifndef SK_DEV_H
#define SK_DEV_H

#include "base/status.h"

/* What the driver and the runtime say, in CUDA's encoding 1000 * major + 10 * minor. */
typedef struct sk_dev_env {
    bool built;      // with CUDA
    int32_t driver;  // newest CUDA version that the driver supports; 0: there is no driver
    int32_t runtime; // of the runtime linked into this build
    int32_t n_dev;
    int32_t error;          // CUDA error number of the failed question, 0 if there is none
    const char *error_name; // its static name; NULL if there is none
} sk_dev_env;

#define SK_DEV_NO_DEVICE 100 // cudaErrorNoDevice; asserted in dev_cuda.c

typedef struct sk_dev_info {
    char name[256];
    uint64_t mem_bytes;
    int32_t n_sm;
    int32_t cc_major; // compute capability
    int32_t cc_minor;
} sk_dev_info;

/* dev_cuda.c or dev_null.c. Creates no CUDA context; may take a second when it starts the driver.
 */
void sk_dev_probe(sk_dev_env *out);
/* The caller has made sure of `index` with sk_dev_need. */
SK_MUST_USE sk_code sk_dev_info_get(int32_t index, sk_dev_info *out, sk_status *st);

/* dev.c. Devices that sk_dev_need might accept; 0 when CUDA cannot be used at all. */
int32_t sk_dev_count(void);

/* OK when device `index` exists and can be used. Otherwise exactly one failure, the first of:
 *   built without CUDA           UNSUPPORTED  NO_CUDA_BUILD
 *   no driver                    DEVICE       NO_DRIVER
 *   driver older than runtime    DEVICE       OLD_DRIVER
 *   another error of the driver  DEVICE       DRIVER
 *   no device                    DEVICE       NO_DEVICE
 *   index out of range           INVALID      DEVICE_INDEX
 *   no machine code for it       UNSUPPORTED  NO_KERNELS */
SK_MUST_USE sk_code sk_dev_need(int32_t index, sk_status *st);

/* The two halves of sk_dev_need, separate so that they can be tested without a device. `archs` is a
 * list such as "80 90a 100-virtual", as STOKER_CUDA_ARCHS. */
SK_MUST_USE sk_code sk_dev_env_check(const sk_dev_env *env, int32_t index, sk_status *st);
SK_MUST_USE sk_code sk_dev_arch_check(const char *archs, const sk_dev_info *info, sk_status *st);

#endif
