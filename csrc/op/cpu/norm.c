/* rms_norm, add, silu_mul, by definition. */
#include "op/cpu/def.h"

#include <math.h>

static void norm_vector(const float *x, const float *gain, int64_t n, float eps, int32_t out_type,
                        uint8_t *out)
{
    double squares = 0;
    float r;
    for (int64_t i = 0; i < n; i++) squares += (double)x[i] * (double)x[i];
    r = 1.0f / sqrtf((float)(squares / (double)n) + eps);
    for (int64_t i = 0; i < n; i++) sk_act_set(out_type, out, i, (x[i] * r) * gain[i]);
}

void sk_rms_norm_rows(const sk_rms_norm_args *a, int64_t begin, int64_t end)
{
    bool grouped = a->x.rank == 3;
    int64_t n_groups = grouped ? a->x.dim[1] : 1;
    int64_t n = a->x.dim[a->x.rank - 1];
    const float *gain = (const float *)(void *)a->gain.p;
    for (int64_t r = begin; r < end; r++)
        for (int64_t g = 0; g < n_groups; g++) {
            const uint8_t *x = sk_view_row(&a->x, r) + (grouped ? g * a->x.stride[1] : 0);
            uint8_t *out = sk_view_row(&a->out, r) + (grouped ? g * a->out.stride[1] : 0);
            norm_vector((const float *)(const void *)x, gain, n, a->eps, a->out.dtype, out);
        }
}

void sk_cpu_rms_norm(const void *args, const sk_cpu *cpu)
{
    const sk_rms_norm_args *a = args;
    (void)cpu;
    sk_rms_norm_rows(a, 0, sk_live_rows(&a->count, a->x.dim[0]));
}

void sk_cpu_add(const void *args, const sk_cpu *cpu)
{
    const sk_add_args *a = args;
    int64_t n_rows = sk_live_rows(&a->count, a->x.dim[0]);
    (void)cpu;
    for (int64_t r = 0; r < n_rows; r++) {
        const float *x = (const float *)(void *)sk_view_row(&a->x, r);
        float *y = (float *)(void *)sk_view_row(&a->y, r);
        for (int64_t i = 0; i < a->x.dim[1]; i++) y[i] += x[i];
    }
}

void sk_silu_mul_rows(const sk_silu_mul_args *a, int64_t begin, int64_t end)
{
    for (int64_t r = begin; r < end; r++) {
        const float *gate = (const float *)(void *)sk_view_row(&a->gate, r);
        const float *up = (const float *)(void *)sk_view_row(&a->up, r);
        uint8_t *out = sk_view_row(&a->out, r);
        for (int64_t i = 0; i < a->gate.dim[1]; i++)
            sk_act_set(a->out.dtype, out, i, (gate[i] / (1.0f + expf(-gate[i]))) * up[i]);
    }
}

void sk_cpu_silu_mul(const void *args, const sk_cpu *cpu)
{
    const sk_silu_mul_args *a = args;
    (void)cpu;
    sk_silu_mul_rows(a, 0, sk_live_rows(&a->count, a->gate.dim[0]));
}
