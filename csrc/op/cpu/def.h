/* What the files of the CPU backend share: the functions of the definition, and the few operations
 * on scalars that fix a rounding or an order of summation. Private to op/cpu. */
#ifndef SK_CPU_DEF_H
#define SK_CPU_DEF_H

#include "base/quant.h"
#include "op/cpu/cpu.h"

/* One function per op: sk_cpu_ctl_read, sk_cpu_commit, ... */
#define SK_OP(name, fields) void sk_cpu_##name(const void *args, const sk_cpu *cpu);
#define IN(op, f)
#define OUT(op, f)
#define INOUT(op, f)
#define OPT(op, f)
#define OPTOUT(op, f)
#define I32(op, f)
#define F32(op, f)
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

static inline const sk_row *sk_row_at(const sk_view *rows, int64_t r)
{
    return (const sk_row *)(const void *)sk_view_row(rows, r);
}

/* The scratch of one worker for one (row, head) of attend; see attend.c. */
uint64_t sk_attend_scratch_bytes(const sk_attend_args *a);

#endif
