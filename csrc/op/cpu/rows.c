/* gather_rows, copy_rows and argmax, by definition. */
#include "op/cpu/def.h"

#include <math.h>
#include <string.h>

void sk_cpu_gather_rows(const void *args, const sk_cpu *cpu)
{
    const sk_gather_rows_args *a = args;
    const int32_t *ids = (const int32_t *)(void *)a->ids.p;
    int64_t n = a->table.dim[1];
    int64_t n_rows = sk_live_rows(&a->count, a->ids.dim[0]);
    (void)cpu;
    for (int64_t r = 0; r < n_rows; r++) {
        float *out = (float *)(void *)sk_view_row(&a->out, r);
        sk_quant_row((sk_dtype)a->table.dtype, sk_view_row(&a->table, ids[r]), (uint64_t)n, out);
        for (int64_t i = 0; i < n; i++) out[i] = a->scale * out[i];
    }
}

void sk_cpu_copy_rows(const void *args, const sk_cpu *cpu)
{
    const sk_copy_rows_args *a = args;
    int64_t n_rows = sk_live_rows(&a->count, a->x.dim[0]);
    (void)cpu;
    for (int64_t r = 0; r < n_rows; r++)
        memcpy(sk_view_row(&a->out, r), sk_view_row(&a->x, r), (size_t)a->x.dim[1] * 4);
}

static int32_t argmax_of(const float *x, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best] || (isnan(x[best]) && !isnan(x[i]))) best = i;
    return isnan(x[best]) ? 0 : (int32_t)best;
}

void sk_cpu_argmax(const void *args, const sk_cpu *cpu)
{
    const sk_argmax_args *a = args;
    int32_t *id = (int32_t *)(void *)a->id.p;
    int64_t n_rows = sk_live_rows(&a->count, a->x.dim[0]);
    (void)cpu;
    for (int64_t r = 0; r < n_rows; r++)
        id[r] = argmax_of((const float *)(void *)sk_view_row(&a->x, r), a->x.dim[1]);
}
