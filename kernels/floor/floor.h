/* Launchers of the floor harness: kernels that do nothing but stream, start and wait. No op of a
 * plan; csrc/dev/dev_cuda_floor.c measures with them. As every launcher they enqueue on the stream
 * and return 0 or the CUDA error number. */
#ifndef SK_FLOOR_KERNELS_H
#define SK_FLOOR_KERNELS_H

#include <stdint.h>

struct CUstream_st; // what cudaStream_t points to

#ifdef __cplusplus
extern "C" {
#endif

/* Launch shapes of the reading kernel: threads a block, blocks a multiprocessor, 16-byte loads in
 * flight a thread. Which one is fastest depends on the size, so the harness tries them. */
#define SK_F_SHAPES(X)                                                                             \
    X(512, 1, 4)                                                                                   \
    X(512, 1, 8)                                                                                   \
    X(512, 2, 4)                                                                                   \
    X(512, 2, 8)                                                                                   \
    X(512, 4, 4)                                                                                   \
    X(1024, 1, 4)                                                                                  \
    X(1024, 1, 8)                                                                                  \
    X(256, 4, 8)                                                                                   \
    X(256, 1, 8)                                                                                   \
    X(256, 2, 4)                                                                                   \
    X(1024, 1, 2)

typedef struct sk_f_launch {
    struct CUstream_st *stream;
    int32_t n_sm;
    int32_t edge; // 1: programmatic edge to the kernel before
} sk_f_launch;

/* 1 when the code that runs on the current device has the dependency wait, so that `edge` may be
 * used. Negative: minus the CUDA error number. */
int32_t sk_f_has_edges(void);

/* Random bits: zeros would be read faster. `bytes` is a multiple of 16. */
int32_t sk_f_random(uint8_t *p, uint64_t bytes, uint64_t seed, const sk_f_launch *l);
/* Reads `bytes` (a multiple of 16, possibly 0) once, in launch shape `shape`. With an edge the
 * first loads are under way before the wait. Writes nothing that means anything to *sink. */
int32_t sk_f_read(const uint8_t *p, uint64_t bytes, int32_t shape, uint32_t *sink,
                  const sk_f_launch *l);
/* A block of 256 threads on each multiprocessor that does nothing but the two halves of the edge.
 * `never` has to be 0. */
int32_t sk_f_empty(uint32_t never, uint32_t *sink, const sk_f_launch *l);
/* n barriers over the whole grid of `per_sm` blocks of 256 threads a multiprocessor. *count is zero
 * before. */
int32_t sk_f_barrier(uint32_t *count, int32_t n, int32_t per_sm, const sk_f_launch *l);

#ifdef __cplusplus
}
#endif

#endif
