/* Launchers of the kernels: the only header that C and CUDA share about them.
 *
 * A launcher enqueues on `stream` and returns 0 or the CUDA error number. It never allocates,
 * synchronises, reads device memory on the host or touches the default stream, so it can be
 * recorded. Pointers are device pointers. */
#ifndef SK_KERNELS_H
#define SK_KERNELS_H

#include <stdint.h>

struct CUstream_st; // what cudaStream_t points to

#ifdef __cplusplus
extern "C" {
#endif

/* y[i] += x[i] for i < n. x and y are the same or distinct. */
int32_t sk_k_add(const float *x, float *y, int64_t n, struct CUstream_st *stream);

/* out[i] = silu(gate[i]) * up[i] for i < n, silu(g) = g / (1 + exp(-g)). out may be gate or up. */
int32_t sk_k_silu_mul(const float *gate, const float *up, float *out, int64_t n,
                      struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
