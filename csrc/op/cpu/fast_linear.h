/* What the vector versions of linear share: the job of one step, the decoders into a chunk, and the
 * driver that widens activations and deals out blocks of outputs. Private to op/cpu. */
#ifndef SK_CPU_FAST_LINEAR_H
#define SK_CPU_FAST_LINEAR_H

#include "op/cpu/fast.h"

#define SK_CHUNK        512 // elements of K decoded at a time: a multiple of every block
#define SK_CHUNK_GROUPS (SK_CHUNK / 16)
#define SK_TILE_ROWS    64 // rows that share a decoded chunk

/* Largest scratch of a worker, in floats, of any of them. */
#define SK_LINEAR_SCRATCH 20480

#if SK_HAVE_AVX2
#define SK_OUTPUTS_AVX2   6 // of a block
#define SK_OUTPUTS_AVX512 12

typedef struct sk_linear_job sk_linear_job;

/* Outputs o .. o+n_out-1 of a segment for all rows of the job. */
typedef void (*sk_linear_block)(const sk_linear_job *j, float *scratch, int32_t seg, int64_t o,
                                int n_out);

struct sk_linear_job {
    const sk_linear_args *a;
    const float *x;    // [n_rows][x_stride]
    const float *sx;   // [K / 32][sx_stride] sums of the groups' activations, for minima
    const float *sx16; // [K / 16][sx_stride] for types with groups of 16
    int64_t n_rows, k;
    int64_t x_stride, sx_stride; // floats; sx_stride is a multiple of eight
    float *scratch;              // SK_LINEAR_SCRATCH a worker
    sk_linear_block block;
    int64_t outputs; // of a block
};

void sk_fast_linear_run(const void *args, const sk_cpu *cpu, sk_linear_block block,
                        int64_t outputs);
void sk_avx2_linear_block(const sk_linear_job *j, float *scratch, int32_t seg, int64_t o,
                          int n_out);

/* Elements first .. first+n-1 of a row, whole blocks: codes in vectors of eight that begin `step`
 * floats apart, a scale and (for types that have them) a minimum for each group. */
typedef void (*sk_decode_fn)(const uint8_t *w_row, int64_t first, int64_t n, int64_t step,
                             float *code, float *scale, float *min);

/* Groups first .. of a chunk with the vector decoder of `type`, or one by one without one. */
void sk_fast_decode_chunk(sk_dtype type, const uint8_t *w_row, int64_t first, int64_t n,
                          int64_t step, float *code, float *scale, float *min);

/* Scales on top of those of the format, for the groups of a chunk from column `first` on. */
void sk_fast_scale_chunk(const float *on_top, int32_t scale_k, int64_t first, int64_t n,
                         int64_t elems, float *scale, float *min);

/* Adds the last, short group of a row of a plain type to the lanes, as the definition does. */
void sk_fast_add_tail(sk_dtype type, const uint8_t *w_row, const float *x, int64_t k, float on_top,
                      float *acc);

/* For each of n_out outputs o and rows r: acc_min[o][r] += min[o][g] * (sum of the activations of
 * group first / elems + g in row first_row + r), g ascending. Eight rows at a time, so acc_min
 * [][SK_TILE_ROWS] and the sums have room for n_rows rounded up. */
void sk_fast_add_minima(const sk_linear_job *j, int n_out, float (*min)[SK_CHUNK_GROUPS],
                        float (*acc_min)[SK_TILE_ROWS], int64_t first_row, int64_t n_rows,
                        int64_t first, int64_t n, int64_t elems);
#endif

#endif
