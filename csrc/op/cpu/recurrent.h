/* Recurrences: what the tables share. The split of the work is here once; a table brings the
 * function that computes one piece. Private to op/cpu. */
#ifndef SK_CPU_RECURRENT_H
#define SK_CPU_RECURRENT_H

#include "op/cpu/def.h"

/* How many rows from r on belong to its slot: they are neighbours. */
static inline int64_t sk_slot_rows(const sk_view *rows, int64_t r, int64_t live)
{
    int64_t end = r + 1;
    while (end < live && sk_row_at(rows, end)->slot == sk_row_at(rows, r)->slot) end++;
    return end - r;
}

/* What tap k of a convolution meets: a row of the pass, or one of the slot's window. */
typedef struct sk_tap_row {
    const uint8_t *p;
    int32_t dtype;
} sk_tap_row;

sk_tap_row sk_tap_row_of(const sk_conv_args *a, int64_t r, int64_t k);

/* Channels begin .. end-1 of row r. */
typedef void (*sk_conv_fn)(const sk_conv_args *a, int64_t r, int64_t begin, int64_t end);
void sk_conv_channels(const sk_conv_args *a, int64_t r, int64_t begin, int64_t end);
void sk_conv_run(const sk_conv_args *a, const sk_cpu *cpu, sk_conv_fn channels);

/* Columns of a matrix at a time: with 128 keys they are half a first-level cache. */
#define SK_DELTA_COLUMNS 32

/* One step of the delta rule on up to SK_DELTA_COLUMNS columns of a matrix, which know nothing of
 * the others. They are worked on in `work`, one row right behind the other: in a matrix, rows that
 * are a power of two apart would drive one another out of the cache. */
typedef struct sk_delta {
    const float *k;   // [dk]
    const float *v;   // [n]
    const float *q;   // [dk]; NULL: nobody asks
    float *out;       // [n], where there is q
    const float *old; // [dk, n] before the step, old_stride elements between rows
    float *work;      // [dk, SK_DELTA_COLUMNS] decayed; may be old
    float *m;         // [dk, n] after it; may be work, or old
    int64_t old_stride, m_stride;
    float decay, beta;
    int64_t dk, n;
} sk_delta;

typedef void (*sk_delta_fn)(const sk_delta *s);
/* Its columns from `begin` on. */
void sk_delta_columns(const sk_delta *s, int64_t begin);
void sk_gdn_step_run(const sk_gdn_step_args *a, const sk_cpu *cpu, sk_delta_fn step);
void sk_gdn_scan_run(const sk_gdn_scan_args *a, const sk_cpu *cpu, sk_delta_fn step);
void sk_gdn_fold_run(const sk_gdn_fold_args *a, const sk_cpu *cpu, sk_delta_fn step);

/* One head of a row: n is its norm's factor; elements begin .. D-1 are left to do. */
typedef void (*sk_gated_norm_fn)(const sk_gated_norm_args *a, int64_t r, int64_t head);
void sk_gated_norm_tail(const sk_gated_norm_args *a, int64_t r, int64_t head, float n,
                        int64_t begin);
void sk_gated_norm_run(const sk_gated_norm_args *a, const sk_cpu *cpu, sk_gated_norm_fn one);

#endif
