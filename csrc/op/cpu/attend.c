/* rope, kv_append, attend, by definition. */
#include "op/cpu/fast.h"

#include "op/cpu/exp.h"

#include <math.h>

void sk_rope_rows(const sk_rope_args *a, int64_t begin, int64_t end)
{
    const float *freq = (const float *)(void *)a->freq.p;
    int64_t n_pairs = a->freq.dim[0];
    for (int64_t r = begin; r < end; r++) {
        float pos = (float)sk_row_at(&a->rows, r)->pos;
        for (int64_t i = 0; i < n_pairs; i++) {
            int64_t at = a->neox ? i : 2 * i;
            int64_t with = a->neox ? i + n_pairs : 2 * i + 1;
            float c = cosf(pos * freq[i]);
            float s = sinf(pos * freq[i]);
            for (int64_t h = 0; h < a->x.dim[1]; h++) {
                const float *x = (const float *)(void *)sk_view_head(&a->x, r, h);
                uint8_t *out = sk_view_head(&a->out, r, h);
                sk_act_set(a->out.dtype, out, at, x[at] * c - x[with] * s);
                sk_act_set(a->out.dtype, out, with, x[at] * s + x[with] * c);
            }
        }
        for (int64_t h = 0; h < a->x.dim[1]; h++) {
            const float *x = (const float *)(void *)sk_view_head(&a->x, r, h);
            uint8_t *out = sk_view_head(&a->out, r, h);
            for (int64_t i = 2 * n_pairs; i < a->x.dim[2]; i++)
                sk_act_set(a->out.dtype, out, i, x[i]);
        }
    }
}

void sk_cpu_rope(const void *args, const sk_cpu *cpu)
{
    const sk_rope_args *a = args;
    (void)cpu;
    sk_rope_rows(a, 0, sk_live_rows(&a->count, a->x.dim[0]));
}

static void append_row(const sk_view *fresh, int64_t r, const sk_view *cache, const sk_row *row)
{
    for (int64_t h = 0; h < fresh->dim[1]; h++) {
        const uint8_t *from = sk_view_head(fresh, r, h);
        uint8_t *to = sk_cache_at(cache, row->slot, row->pos, h);
        for (int64_t i = 0; i < fresh->dim[2]; i++)
            sk_act_set(cache->dtype, to, i, sk_act_get(fresh->dtype, from, i));
    }
}

void sk_cpu_kv_append(const void *args, const sk_cpu *cpu)
{
    const sk_kv_append_args *a = args;
    int64_t n_rows = sk_live_rows(&a->count, a->k.dim[0]);
    (void)cpu;
    for (int64_t r = 0; r < n_rows; r++) {
        const sk_row *row = sk_row_at(&a->rows, r);
        append_row(&a->k, r, &a->k_cache, row);
        append_row(&a->v, r, &a->v_cache, row);
    }
}

/* ---- attend ---------------------------------------------------------------------------------- */

uint64_t sk_attend_scratch_lay(float *work, int64_t n, int64_t dim, sk_attend_scratch *out)
{
    if (work) {
        out->score = work;
        out->part = work + n;
        out->merged = out->part + dim;
        out->q = out->merged + dim;
    }
    return (uint64_t)n + 3 * (uint64_t)dim;
}

sk_attend_scratch sk_attend_scratch_at(const sk_attend_args *a, const sk_cpu *cpu, int32_t worker)
{
    uint8_t *work = cpu->work + (uint64_t)worker * sk_attend_scratch_bytes(a);
    sk_attend_scratch s;
    (void)sk_attend_scratch_lay((float *)(void *)work, a->k_cache.dim[1], a->q.dim[2], &s);
    return s;
}

uint64_t sk_attend_scratch_bytes(const sk_attend_args *a)
{
    uint64_t floats = sk_attend_scratch_lay(NULL, a->k_cache.dim[1], a->q.dim[2], NULL);
    uint64_t bytes = (4 * floats + 63) & ~(uint64_t)63;
    uint64_t fast = sk_fast_attend_bytes(a);
    return bytes < fast ? fast : bytes;
}

float sk_dot_lanes(int32_t type, const uint8_t *a, const uint8_t *b, int64_t n)
{
    float acc[SK_LANES] = {0};
    for (int64_t i = 0; i < n; i++)
        acc[i % SK_LANES] = fmaf(sk_act_get(type, a, i), sk_act_get(type, b, i), acc[i % SK_LANES]);
    return sk_tree8(acc);
}

void sk_attend_over(const sk_attend_args *a, int64_t r, int64_t head, const sk_seen *seen,
                    const float *gate, const sk_attend_scratch *s)
{
    const sk_row *row = sk_row_at(&a->rows, r);
    int64_t dim = a->q.dim[2];
    int64_t kv_head = head / (a->q.dim[1] / a->k_cache.dim[2]);
    int64_t n = seen->n;
    const uint8_t *q = sk_view_head(&a->q, r, head);
    uint8_t *out = sk_view_head(&a->out, r, head);
    float max;
    float total = 0;
    for (int64_t j = 0; j < n; j++) {
        const uint8_t *k = sk_cache_at(&a->k_cache, row->slot, sk_seen_at(seen, j), kv_head);
        s->score[j] = sk_dot_lanes(a->q.dtype, q, k, dim) * a->scale;
    }
    max = sk_max_of(s->score, n); // also the maximum of the splits' maxima
    for (int64_t i = 0; i < dim; i++) s->merged[i] = 0;
    for (int64_t begin = 0; begin < n; begin += a->split) { // splits in ascending order
        int64_t end = n - begin < a->split ? n : begin + a->split;
        float part_max = sk_max_of(s->score + begin, end - begin);
        float sum = 0;
        float weight;
        for (int64_t i = 0; i < dim; i++) s->part[i] = 0;
        for (int64_t j = begin; j < end; j++) {
            const uint8_t *v = sk_cache_at(&a->v_cache, row->slot, sk_seen_at(seen, j), kv_head);
            float p = sk_exp(s->score[j] - part_max);
            sum += p;
            p = sk_act_round(a->q.dtype, p);
            for (int64_t i = 0; i < dim; i++)
                s->part[i] = fmaf(p, sk_act_get(a->v_cache.dtype, v, i), s->part[i]);
        }
        weight = sk_exp(part_max - max);
        total = fmaf(sum, weight, total);
        for (int64_t i = 0; i < dim; i++) s->merged[i] = fmaf(s->part[i], weight, s->merged[i]);
    }
    for (int64_t i = 0; i < dim; i++)
        sk_act_set(a->out.dtype, out, i, sk_gated(s->merged[i] / total, gate, i));
}

void sk_attend_head(const sk_attend_args *a, int64_t r, int64_t head, const sk_attend_scratch *s)
{
    const sk_seen seen = sk_attend_seen(a, sk_row_at(&a->rows, r));
    sk_attend_over(a, r, head, &seen, NULL, s);
}

void sk_cpu_attend(const void *args, const sk_cpu *cpu)
{
    const sk_attend_args *a = args;
    sk_attend_scratch s = sk_attend_scratch_at(a, cpu, 0);
    int64_t n_rows = sk_live_rows(&a->count, a->q.dim[0]);
    for (int64_t r = 0; r < n_rows; r++)
        for (int64_t h = 0; h < a->q.dim[1]; h++) sk_attend_head(a, r, h, &s);
}
