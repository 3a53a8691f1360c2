/* What the dev_cuda*.c files share: the open device, and how a runtime error becomes a status. Seen
 * by nobody else, because it needs the CUDA headers. */
#ifndef SK_DEV_CUDA_IMPL_H
#define SK_DEV_CUDA_IMPL_H

#include "dev/dev.h"

#include <cuda_runtime_api.h>

#define SK_DEV_PIECE  (UINT64_C(16) << 20) // a transfer goes in pieces of this size
#define SK_DEV_PIECES 2                    // one is filled while the other one travels

struct sk_dev {
    sk_dev_info info;
    int32_t index;
    bool recording; // between the two ends of sk_dev_capture
    cudaStream_t stream;
    cudaStream_t branch[SK_DEV_BRANCHES];
    cudaEvent_t forked[SK_DEV_BRANCHES], joined[SK_DEV_BRANCHES];
    cudaEvent_t mark[SK_DEV_EVENTS];
    uint8_t *stage;                    // pinned, SK_DEV_PIECES * SK_DEV_PIECE
    cudaEvent_t staged[SK_DEV_PIECES]; // the device is done with that piece
    uint64_t n_staged; // pieces used so far; the next one is n_staged % SK_DEV_PIECES
};

/* sk_dev_check without a step. */
static inline sk_code sk_dev_try(cudaError_t e, const char *what, sk_status *st)
{
    return e == cudaSuccess ? SK_OK : sk_dev_check((int32_t)e, what, -1, st);
}

/* Makes the device current. */
SK_MUST_USE sk_code sk_dev_use(const sk_dev *d, sk_status *st);
/* The same for calls that a recording cannot hold: STATE inside one. */
SK_MUST_USE sk_code sk_dev_use_live(const sk_dev *d, const char *what, sk_status *st);

#endif
