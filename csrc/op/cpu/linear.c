/* linear, by definition. The order of every sum is part of the contract: groups in ascending order,
 * eight partial sums a group, the group's scale applied to each, one tree at the end. */
#include "op/cpu/def.h"

#include <math.h>

/* Sum of the activations of one group, for the minima. */
static float group_sum(const sk_view *x, const uint8_t *row, int64_t first, int64_t n)
{
    float s[SK_LANES] = {0};
    for (int64_t j = 0; j < n; j++) s[j % SK_LANES] += sk_act_get(x->dtype, row, first + j);
    return sk_tree8(s);
}

/* `scale` has one number for each scale_k columns; NULL: none. */
static float dot_row(const sk_view *x, const uint8_t *row, const sk_view *w, const uint8_t *w_row,
                     const float *scale, int32_t scale_k)
{
    sk_dtype type = (sk_dtype)w->dtype;
    int64_t k = x->dim[1];
    int64_t elems = sk_quant_group_elems(type);
    bool has_min = sk_quant_has_min(type);
    float acc[SK_LANES] = {0};
    float acc_min = 0;
    for (int64_t first = 0; first < k; first += elems) {
        int64_t n = k - first < elems ? k - first : elems;
        float p[SK_LANES] = {0};
        sk_group group;
        sk_quant_group(type, w_row, (uint64_t)(first / elems), (int32_t)n, &group);
        if (scale) {
            group.scale *= scale[first / scale_k];
            group.min *= scale[first / scale_k];
        }
        for (int64_t j = 0; j < n; j++)
            p[j % SK_LANES] =
                fmaf(group.code[j], sk_act_get(x->dtype, row, first + j), p[j % SK_LANES]);
        for (int32_t l = 0; l < SK_LANES; l++) acc[l] = fmaf(group.scale, p[l], acc[l]);
        if (has_min) acc_min = fmaf(group.min, group_sum(x, row, first, n), acc_min);
    }
    return has_min ? sk_tree8(acc) + acc_min : sk_tree8(acc);
}

void sk_cpu_linear(const void *args, const sk_cpu *cpu)
{
    const sk_linear_args *a = args;
    int64_t n_rows = sk_live_rows(&a->count, a->x.dim[0]);
    (void)cpu;
    for (int32_t s = 0; s < SK_LINEAR_SEGS && sk_view_present(&a->w[s]); s++) {
        const float *bias =
            sk_view_present(&a->bias[s]) ? (const float *)(void *)a->bias[s].p : NULL;
        for (int64_t r = 0; r < n_rows; r++) {
            const uint8_t *x = sk_view_row(&a->x, r);
            float *y = (float *)(void *)sk_view_row(&a->y[s], r);
            for (int64_t o = 0; o < a->w[s].dim[0]; o++) {
                float sum = dot_row(&a->x, x, &a->w[s], sk_view_row(&a->w[s], o),
                                    sk_scale_row(a, s, o), a->scale_k[s]);
                y[o] = bias ? sum + bias[o] : sum;
            }
        }
    }
}
