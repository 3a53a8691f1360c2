/* One op on a device, on arguments that lie in host memory. For tests and tools: it allocates,
 * packs weights and copies at every call. */
#ifndef SK_ONCE_H
#define SK_ONCE_H

#include "base/synth.h"
#include "dev/dev.h"
#include "op/op.h"

typedef struct sk_once {
    sk_dev *dev;
    int32_t ctx_bound; // tier; 0: the caches' own size
    bool fused;        // see sk_launch
} sk_once;

/* `args` are bound to host addresses and have passed sk_op_check. Every view is copied to the
 * device, written ones are copied back. UNSUPPORTED as sk_cuda_check; MISMATCH when the op leaves
 * counters of the backend behind that are not zero. */
SK_MUST_USE sk_code sk_once_run(const sk_once *o, enum sk_op op, const void *args, sk_status *st);

/* The tier that an op's own caches stand for, 0 without any. */
int32_t sk_once_bound(enum sk_op op, const void *args);

/* Bytes on the device of a field that is a packed weight, 0 for any other. UNSUPPORTED for rows
 * with a stride. */
SK_MUST_USE sk_code sk_once_packed(enum sk_op op, const sk_field *f, const sk_view *v,
                                   uint64_t *bytes, sk_status *st);

/* Where a weight lies that an op takes in pieces: bytes from the first of them to each, and the
 * rows of a piece, counted through all matrices. NULL: it is whole. On the device it always is. */
typedef struct sk_pieces {
    const int64_t *at;
    int64_t rows;
} sk_pieces;

/* Those of a field; `args` are bound to host addresses. */
sk_pieces sk_once_pieces(enum sk_op op, const sk_field *f, const void *args);
/* A weight on the host into its packed place on the device. */
SK_MUST_USE sk_code sk_once_pack(sk_dev *dev, const sk_view *v, const sk_pieces *pieces,
                                 uint8_t *packed, sk_status *st);

/* A plan with a side branch, run step by step and then `replays` times as a graph: each time y += x
 * on the main stream while the branch copies x, then y += the copy. x and y: F32 [n], on the host;
 * y gets the result. *nodes is the graph's. */
SK_MUST_USE sk_code sk_once_branches(sk_dev *dev, const float *x, float *y, int32_t n,
                                     int32_t replays, int64_t *nodes, sk_status *st);

/* A dense weight [n, k] or [e, n, k] in file order packed on the device and unpacked again, into
 * `out`; what the device took for either. */
SK_MUST_USE sk_code sk_once_repack(sk_dev *dev, const sk_view *w, const uint8_t *raw, uint8_t *out,
                                   double us[2], sk_status *st);

/* `bytes` of a synthetic weight from block `first` on, made on the device, into `out`. */
SK_MUST_USE sk_code sk_once_synth(sk_dev *dev, const sk_synth *recipe, uint64_t first,
                                  uint64_t bytes, uint8_t *out, sk_status *st);

#endif
