/* rms_norm, add, silu_mul, gelu_mul, by definition. */
#include "op/cpu/def.h"

#include "op/cpu/exp.h"

#include <math.h>

float sk_rms_factor(const float *x, int64_t n, float eps)
{
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += (double)x[i] * (double)x[i];
    return 1.0f / sqrtf((float)(squares / (double)n) + eps);
}

static void norm_vector(const float *x, const float *gain, int64_t n, float eps, int32_t out_type,
                        uint8_t *out)
{
    float r = sk_rms_factor(x, n, eps);
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

void sk_add_rows(const sk_add_args *a, int64_t begin, int64_t end)
{
    for (int64_t r = begin; r < end; r++) {
        const float *x = (const float *)(void *)sk_view_row(&a->x, r);
        float *y = (float *)(void *)sk_view_row(&a->y, r);
        for (int64_t i = 0; i < a->x.dim[1]; i++) y[i] += x[i];
    }
}

void sk_cpu_add(const void *args, const sk_cpu *cpu)
{
    const sk_add_args *a = args;
    (void)cpu;
    sk_add_rows(a, 0, sk_live_rows(&a->count, a->x.dim[0]));
}

static float silu(float g) { return g / (1.0f + sk_exp(-g)); }

static float gelu_tanh(float g)
{
    const float root = 0.7978845608028654f; // sqrt(2 / pi)
    return 0.5f * g * (1.0f + tanhf(root * (g + 0.044715f * (g * g * g))));
}

/* One row of an activation times its gate's partner. */
static void gate_row(float (*act)(float), const sk_view *gate, const sk_view *up,
                     const sk_view *out, int64_t r)
{
    const float *g = (const float *)(void *)sk_view_row(gate, r);
    const float *u = (const float *)(void *)sk_view_row(up, r);
    uint8_t *y = sk_view_row(out, r);
    for (int64_t i = 0; i < gate->dim[1]; i++) sk_act_set(out->dtype, y, i, act(g[i]) * u[i]);
}

void sk_silu_mul_rows(const sk_silu_mul_args *a, int64_t begin, int64_t end)
{
    for (int64_t r = begin; r < end; r++) gate_row(silu, &a->gate, &a->up, &a->out, r);
}

void sk_cpu_silu_mul(const void *args, const sk_cpu *cpu)
{
    const sk_silu_mul_args *a = args;
    (void)cpu;
    sk_silu_mul_rows(a, 0, sk_live_rows(&a->count, a->gate.dim[0]));
}

void sk_gelu_mul_rows(const sk_gelu_mul_args *a, int64_t begin, int64_t end)
{
    for (int64_t r = begin; r < end; r++) gate_row(gelu_tanh, &a->gate, &a->up, &a->out, r);
}

void sk_cpu_gelu_mul(const void *args, const sk_cpu *cpu)
{
    const sk_gelu_mul_args *a = args;
    (void)cpu;
    sk_gelu_mul_rows(a, 0, sk_live_rows(&a->count, a->gate.dim[0]));
}
