/* CUDA devices as the host code sees them: discovery, and what one engine session does with one
 * device. No CUDA header leaks out of here.
 *
 * dev_cuda.c (discovery, opening), dev_cuda_mem.c (memory, transfers) and dev_cuda_graph.c (graphs,
 * branches, timing) ask the runtime; dev_null.c answers for a build without CUDA: each call there
 * fails as sk_dev_need does and leaves its outputs alone. dev.c holds what both share: the one
 * place that says why a device cannot be used. Nothing here is called at import. */
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
    uint64_t l2_bytes;
    int32_t n_sm;
    int32_t cc_major; // compute capability
    int32_t cc_minor;
} sk_dev_info;

/* Creates no CUDA context; may take a second when it starts the driver.
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
 *   no machine code for it       UNSUPPORTED  NO_KERNELS
 * sk_dev_open begins with this, so whoever opens a device need not ask first. */
SK_MUST_USE sk_code sk_dev_need(int32_t index, sk_status *st);

/* The two halves of sk_dev_need, separate so that they can be tested without a device. `archs` is a
 * list such as "80 90a 100-virtual", as STOKER_CUDA_ARCHS. */
SK_MUST_USE sk_code sk_dev_env_check(const sk_dev_env *env, int32_t index, sk_status *st);
SK_MUST_USE sk_code sk_dev_arch_check(const char *archs, const sk_dev_info *info, sk_status *st);

/* ---- a device in use ---------------------------------------------------------------------------
 *
 * One thread at a time per sk_dev; any number of them side by side, on the same device too. Each
 * call makes its device the current one of the calling thread first. An error that a kernel caused
 * surfaces in a later call and comes back from every call after it: the status names the call that
 * saw it. "On the stream" is the main stream throughout. */

/* A device as one engine session uses it: private non-blocking streams, events, a pinned staging
 * block. */
typedef struct sk_dev sk_dev;
struct CUstream_st; // what cudaStream_t points to

#define SK_DEV_BRANCHES 4
#define SK_DEV_EVENTS   64

SK_MUST_USE sk_code sk_dev_open(sk_dev **out, int32_t index, sk_status *st);
/* Accepts NULL; waits for the streams. What was allocated and captured on it goes first. */
void sk_dev_close(sk_dev *d);

struct CUstream_st *sk_dev_stream(const sk_dev *d);
/* Side stream 1 .. SK_DEV_BRANCHES, made at open; NULL for any other number. */
struct CUstream_st *sk_dev_branch_stream(sk_dev *d, int32_t branch);
const sk_dev_info *sk_dev_about(const sk_dev *d);

/* OK for 0; else a CUDA error number as a launcher returns it: DEVICE, or NOMEM when the device is
 * out of memory, with "CUDA: <what>: <name>: <text>", native and step (-1: none). */
SK_MUST_USE sk_code sk_dev_check(int32_t error, const char *what, int32_t step, sk_status *st);

/* Waits for everything on the stream. */
SK_MUST_USE sk_code sk_dev_sync(sk_dev *d, sk_status *st);
/* 1: work is queued on the stream, 0: idle, negative: minus the CUDA error number. */
int32_t sk_dev_busy(sk_dev *d);

/* ---- memory. Not inside a recording (STATE), but for fill and copy ------------------------------
 */

SK_MUST_USE sk_code sk_dev_memory(sk_dev *d, uint64_t *free_bytes, uint64_t *total_bytes,
                                  sk_status *st);
/* Zeroed device memory, aligned to 256 bytes (at least that many are allocated). NOMEM names
 * `what`, the bytes wanted and the bytes free. */
SK_MUST_USE sk_code sk_dev_alloc(sk_dev *d, uint64_t bytes, const char *what, uint8_t **out,
                                 sk_status *st);
void sk_dev_free(sk_dev *d, uint8_t *p); // accepts NULL; waits for the device
/* Pinned host memory with any contents, and the address by which the device sees it. */
SK_MUST_USE sk_code sk_dev_pin(sk_dev *d, uint64_t bytes, const char *what, void **host,
                               uint8_t **device, sk_status *st);
void sk_dev_unpin(sk_dev *d, void *host); // accepts NULL

/* Host to device on the stream; `src` may be reused on return. */
SK_MUST_USE sk_code sk_dev_write(sk_dev *d, uint8_t *dst, const void *src, uint64_t n,
                                 sk_status *st);
/* Device to host on the stream; the bytes are there on return. */
SK_MUST_USE sk_code sk_dev_read(sk_dev *d, void *dst, const uint8_t *src, uint64_t n,
                                sk_status *st);
/* Both on the stream, and can be recorded. Also with what a device sees of pinned memory. */
SK_MUST_USE sk_code sk_dev_fill(sk_dev *d, uint8_t *dst, int32_t byte, uint64_t n, sk_status *st);
SK_MUST_USE sk_code sk_dev_copy(sk_dev *d, uint8_t *dst, const uint8_t *src, uint64_t n,
                                sk_status *st);

/* ---- graphs ------------------------------------------------------------------------------------
 */

typedef struct sk_dev_graph sk_dev_graph;

/* Records what `body` puts on the stream and on branches it forked and joined. The recording is
 * per thread and always ended, also when `body` fails; the graph is instantiated and uploaded, so
 * that its first launch costs what all others cost. Every kernel in it should have run once before:
 * loading a kernel is not always allowed while recording. */
SK_MUST_USE sk_code sk_dev_capture(sk_dev *d, sk_code (*body)(void *ctx, sk_status *st), void *ctx,
                                   sk_dev_graph **out, sk_status *st);
SK_MUST_USE sk_code sk_dev_graph_launch(sk_dev *d, sk_dev_graph *g, sk_status *st);
int64_t sk_dev_graph_nodes(const sk_dev_graph *g);
/* Edges; of these so many are programmatic (`programmatic` may be NULL). */
int64_t sk_dev_graph_edges(const sk_dev_graph *g, int64_t *programmatic);
void sk_dev_graph_drop(sk_dev_graph *g); // accepts NULL; before its device is closed

/* The branch's stream waits for what is on the stream now, and the other way round. */
SK_MUST_USE sk_code sk_dev_fork(sk_dev *d, int32_t branch, sk_status *st);
SK_MUST_USE sk_code sk_dev_join(sk_dev *d, int32_t branch, sk_status *st);

/* Timing event 0 .. SK_DEV_EVENTS - 1 on the stream; in a recording a node that marks it at each
 * launch. */
SK_MUST_USE sk_code sk_dev_mark(sk_dev *d, int32_t event, sk_status *st);
/* Waits for `to`. */
SK_MUST_USE sk_code sk_dev_elapsed(sk_dev *d, int32_t from, int32_t to, double *us, sk_status *st);

#endif
