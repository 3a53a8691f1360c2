/* What the files of the CPU backend share: the functions of the definition, and the few operations
 * on scalars that fix a rounding or an order of summation. Private to op/cpu. */
#ifndef SK_CPU_DEF_H
#define SK_CPU_DEF_H

#include "base/quant.h"
#include "op/cpu/cpu.h"

/* One function per op: sk_cpu_ctl_read, sk_cpu_commit, ... */
#define SK_OP(name, fields) void sk_cpu_##name(const void *args, const sk_cpu *cpu);
#include "op/ops.def"

#define SK_LANES 8 // accumulators of every sum in FP32; element j belongs to number j mod 8

/* The one tree in which eight accumulators are added up. */
static inline float sk_tree8(const float *a)
{
    return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
}

/* Rows of a pass that mean something. */
static inline int64_t sk_live_rows(const sk_view *count, int64_t capacity)
{
    int32_t n = *(const int32_t *)(const void *)count->p;
    return n < 0 ? 0 : n > capacity ? capacity : n;
}

/* Element i of a row of BF16 or F32. */
static inline float sk_act_get(int32_t dtype, const uint8_t *row, int64_t i)
{
    return dtype == SK_BF16 ? sk_bf16_to_f32(((const uint16_t *)(const void *)row)[i])
                            : ((const float *)(const void *)row)[i];
}

static inline void sk_act_set(int32_t dtype, uint8_t *row, int64_t i, float x)
{
    if (dtype == SK_BF16)
        ((uint16_t *)(void *)row)[i] = sk_f32_to_bf16(x);
    else
        ((float *)(void *)row)[i] = x;
}

/* What storing as `dtype` makes of x. */
static inline float sk_act_round(int32_t dtype, float x)
{
    return dtype == SK_BF16 ? sk_bf16_to_f32(sk_f32_to_bf16(x)) : x;
}

/* Columns `from` .. of row i, whose dimension 1 is [heads]: the head's first byte. */
static inline uint8_t *sk_view_head(const sk_view *v, int64_t i, int64_t head)
{
    return v->p + i * v->stride[0] + head * v->stride[1];
}

/* The scales of output o of a segment, one for each scale_k columns; NULL: none. */
static inline const float *sk_scale_row(const sk_linear_args *a, int32_t seg, int64_t o)
{
    if (!sk_view_present(&a->scale[seg])) return NULL;
    return (const float *)(const void *)sk_view_row(&a->scale[seg], o / a->scale_n[seg]);
}

static inline const sk_row *sk_row_at(const sk_view *rows, int64_t r)
{
    return (const sk_row *)(const void *)sk_view_row(rows, r);
}

/* Address of (slot, pos, head) in a cache. */
static inline uint8_t *sk_cache_at(const sk_view *cache, int32_t slot, int64_t pos, int64_t head)
{
    return cache->p + slot * cache->stride[0] + pos * cache->stride[1] + head * cache->stride[2];
}

/* A product in eight lanes of two rows of one type. */
float sk_dot_lanes(int32_t type, const uint8_t *a, const uint8_t *b, int64_t n);

/* Is x[i] to be taken before x[j]? The larger first, NaN last, the lower index in a tie. */
static inline bool sk_ranks_before(const float *x, int64_t i, int64_t j)
{
    const bool nan = x[i] != x[i];
    const bool other = x[j] != x[j];
    if (nan || other) return nan == other ? i < j : other;
    return x[i] == x[j] ? i < j : x[i] > x[j];
}

static inline float sk_max_of(const float *x, int64_t n)
{
    float max = x[0];
    for (int64_t i = 1; i < n; i++)
        if (x[i] > max) max = x[i];
    return max;
}

/* First position that a row sees. */
static inline int64_t sk_attend_first(const sk_attend_args *a, const sk_row *row)
{
    return a->window > 0 && row->pos >= a->window ? row->pos - a->window + 1 : 0;
}

/* The positions that a row attends to, ascending: a run, or those of a list. */
typedef struct sk_seen {
    const int32_t *list; // [n]; NULL: first .. first+n-1
    int64_t first;       // 0 with a list
    int64_t n;
} sk_seen;

static inline int64_t sk_seen_at(const sk_seen *s, int64_t j)
{
    return s->list ? s->list[j] : s->first + j;
}

static inline sk_seen sk_attend_seen(const sk_attend_args *a, const sk_row *row)
{
    const int64_t first = sk_attend_first(a, row);
    return (sk_seen){.first = first, .n = row->pos - first + 1};
}

/* Scratch of one worker for one (row, head) of attend: every score of the row, a split's product
 * with V, the merged one, and q in float (fast table only). */
typedef struct sk_attend_scratch {
    float *score;  // [positions seen at most]
    float *part;   // [D]
    float *merged; // [D]
    float *q;      // [D]
} sk_attend_scratch;

uint64_t sk_attend_scratch_bytes(const sk_attend_args *a);
sk_attend_scratch sk_attend_scratch_at(const sk_attend_args *a, const sk_cpu *cpu, int32_t worker);
/* The same laid out from `work` on, for at most n positions and heads of dim: floats in all. */
uint64_t sk_attend_scratch_lay(float *work, int64_t n, int64_t dim, sk_attend_scratch *out);

/* 1 / sqrt(mean(x^2) + eps): the squares are summed in double, in ascending order. */
float sk_rms_factor(const float *x, int64_t n, float eps);

/* Scratch of a fused op: what it keeps between its parts, and what they want. */
uint64_t sk_fused_bytes(enum sk_op op, const void *args, int32_t n_threads);

/* The same of the ops of experts. */
uint64_t sk_experts_bytes(enum sk_op op, const void *args, int32_t n_threads);

/* The same of rows that are kept and recurrences, of streams, of block-sparse attention. */
uint64_t sk_recurrent_bytes(enum sk_op op, const void *args, int32_t n_threads);
uint64_t sk_streams_bytes(enum sk_op op, const void *args, int32_t n_threads);
uint64_t sk_sparse_bytes(enum sk_op op, const void *args, int32_t n_threads);

/* Pieces of the definition, for whoever splits the work. */
void sk_attend_head(const sk_attend_args *a, int64_t r, int64_t head, const sk_attend_scratch *s);
/* Of given positions, under a gate: one for each element, or NULL. The window is not looked at. */
typedef void (*sk_attend_over_fn)(const sk_attend_args *a, int64_t r, int64_t head,
                                  const sk_seen *seen, const float *gate,
                                  const sk_attend_scratch *s);
void sk_attend_over(const sk_attend_args *a, int64_t r, int64_t head, const sk_seen *seen,
                    const float *gate, const sk_attend_scratch *s);
/* Scores of blocks begin .. end-1 for row r; every version of block_topk is one of these. */
typedef void (*sk_block_scores_fn)(const sk_block_topk_args *a, int64_t r, int64_t begin,
                                   int64_t end, float *score);
void sk_block_scores(const sk_block_topk_args *a, int64_t r, int64_t begin, int64_t end,
                     float *score);
void sk_attend_blocks_with(const sk_attend_blocks_args *a, const sk_cpu *cpu,
                           sk_attend_over_fn over);
void sk_block_topk_with(const sk_block_topk_args *a, const sk_cpu *cpu, sk_block_scores_fn scores);
void sk_rms_norm_rows(const sk_rms_norm_args *a, int64_t begin, int64_t end);
void sk_add_rows(const sk_add_args *a, int64_t begin, int64_t end);
void sk_rope_rows(const sk_rope_args *a, int64_t begin, int64_t end);
void sk_silu_mul_rows(const sk_silu_mul_args *a, int64_t begin, int64_t end);
void sk_gelu_mul_rows(const sk_gelu_mul_args *a, int64_t begin, int64_t end);

#endif
