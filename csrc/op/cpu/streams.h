/* What the definition of the streams and its vector versions share. Private to op/cpu. */
#ifndef SK_CPU_STREAMS_H
#define SK_CPU_STREAMS_H

#include "op/cpu/def.h"

#include "op/cpu/exp.h"

#define SK_MIX_COLS 256 // columns of a row that a thread mixes at a time

/* Stream i of row r. */
static inline float *sk_stream_at(const sk_view *s, int64_t r, int64_t i)
{
    return (float *)(void *)sk_view_head(s, r, i);
}

/* hyper_mix behind its product. */
typedef struct sk_hyper_mix {
    const sk_hyper_mix_args *a;
    sk_view z; // F32 [P, S*D] W low
} sk_hyper_mix;

/* Element d of row r, before it is rounded. */
static inline float sk_hyper_mix_at(const sk_hyper_mix *m, int64_t r, int64_t d)
{
    const int64_t n_streams = m->a->s.dim[1];
    const int64_t dim = m->a->s.dim[2];
    const float *z = (const float *)(const void *)sk_view_row(&m->z, r);
    const float *n = (const float *)(const void *)sk_view_row(&m->a->factor, r);
    const float *gain = (const float *)(const void *)m->a->gain.p;
    float sum = 0;
    for (int64_t i = 0; i < n_streams; i++) {
        const float gate = 1.0f / (1.0f + sk_exp(-z[i * dim + d]));
        sum = fmaf(gate, (sk_stream_at(&m->a->s, r, i)[d] * n[i]) * gain[i * dim + d], sum);
    }
    return sum / (float)n_streams;
}

/* hyper_mix with `pieces` for what is behind its product: ctx is a sk_hyper_mix, item k the piece
 * k mod m of row k / m, m = sk_mix_pieces. */
void sk_hyper_mix_run(const sk_hyper_mix_args *a, const sk_cpu *cpu, sk_pool_fn pieces);

static inline int64_t sk_mix_pieces(int64_t dim) { return (dim + SK_MIX_COLS - 1) / SK_MIX_COLS; }

/* hyper_inject with `streams`: ctx is its arguments, item k the stream k mod S of row k / S. */
void sk_hyper_inject_run(const sk_hyper_inject_args *a, const sk_cpu *cpu, sk_pool_fn streams);

/* Scratch of gather_heads. */
uint64_t sk_gather_heads_bytes(const sk_gather_heads_args *a, int32_t n_threads);

#endif
