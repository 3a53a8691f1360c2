/* The draft head: the rows of its passes, what they propose, and the input of its first projection.
 * A pass of drafting has one row a slot, so `at` is 0 there. */
#include "op/cpu/streams.h"

#include <math.h>

#define GRAIN 16384 // elements worth waking a thread for

static int32_t *ints_at(const sk_view *v, int64_t row)
{
    return (int32_t *)(void *)sk_view_row(v, row);
}

static const sk_slot *slot_at(const sk_view *v, int64_t b)
{
    return (const sk_slot *)(const void *)sk_view_row(v, b);
}

static void set_row(const sk_view *rows, int64_t r, sk_row row)
{
    *(sk_row *)(void *)sk_view_row(rows, r) = row;
}

void sk_cpu_draft_rows(const void *args, const sk_cpu *cpu)
{
    const sk_draft_rows_args *a = args;
    int32_t *ids = ints_at(&a->ids, 0);
    int32_t used = 0;
    (void)cpu;
    for (int32_t b = 0; b < a->slots.dim[0]; b++) {
        const sk_slot *slot = slot_at(&a->slots, b);
        if (!slot->active || slot->n < 1) continue;
        set_row(&a->rows, used, (sk_row){.slot = b, .pos = slot->n - 1 + a->step});
        ids[used] = a->step == 0 ? slot->anchor : ints_at(&a->chosen, 0)[used];
        used++;
    }
    *ints_at(&a->count, 0) = used;
    for (; used < a->rows.dim[0]; used++) {
        set_row(&a->rows, used, (sk_row){.slot = -1});
        ids[used] = 0;
    }
}

void sk_cpu_draft_put(const void *args, const sk_cpu *cpu)
{
    const sk_draft_put_args *a = args;
    const int64_t n_rows = sk_live_rows(&a->count, a->rows.dim[0]);
    (void)cpu;
    for (int64_t r = 0; r < n_rows; r++) {
        const int32_t b = sk_row_at(&a->rows, r)->slot;
        ints_at(&a->drafts, b)[a->step] = ints_at(&a->chosen, 0)[r];
        ints_at(&a->n_draft, 0)[b] = a->step + 1;
    }
}

void sk_cpu_commit_rows(const void *args, const sk_cpu *cpu)
{
    const sk_commit_rows_args *a = args;
    int32_t used = 0;
    (void)cpu;
    for (int32_t b = 0; b < a->slots.dim[0]; b++) {
        const int32_t kept = ints_at(&a->kept, 0)[b];
        const int32_t first = slot_at(&a->slots, b)->n - kept;
        for (int32_t i = 0; i < kept; i++)
            set_row(&a->rows, used++, (sk_row){.slot = b, .pos = first + i, .at = i});
    }
    *ints_at(&a->count, 0) = used;
    for (; used < a->rows.dim[0]; used++) set_row(&a->rows, used, (sk_row){.slot = -1});
}

void sk_cpu_next_ids(const void *args, const sk_cpu *cpu)
{
    const sk_next_ids_args *a = args;
    const int64_t n_rows = sk_live_rows(&a->count, a->rows.dim[0]);
    (void)cpu;
    for (int64_t r = 0; r < n_rows; r++) {
        const sk_row *row = sk_row_at(&a->rows, r);
        ints_at(&a->ids, 0)[r] = ints_at(&a->tokens, row->slot)[row->pos + 1];
    }
}

/* ---- mtp_join -------------------------------------------------------------------------------- */

/* sk_rms_factor over all streams of a row. */
static float factor_of_row(const sk_mtp_join_args *a, int64_t r)
{
    const int64_t n_streams = a->x.dim[1];
    const int64_t dim = a->x.dim[2];
    double squares = 0;
    for (int64_t i = 0; i < n_streams; i++) {
        const float *x = sk_stream_at(&a->x, r, i);
        for (int64_t d = 0; d < dim; d++) squares += (double)x[d] * (double)x[d];
    }
    return 1.0f / sqrtf((float)(squares / (double)(n_streams * dim)) + a->eps);
}

static void norm_into(const sk_view *out, uint8_t *row, int64_t first, const float *x, float by,
                      const float *gain)
{
    for (int64_t d = 0; d < out->dim[2] / 2; d++)
        sk_act_set(out->dtype, row, first + d, (x[d] * by) * gain[d]);
}

static void join_rows(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const sk_mtp_join_args *a = ctx;
    const int64_t n_streams = a->x.dim[1];
    const int64_t dim = a->x.dim[2];
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        const float *e = (const float *)(const void *)sk_view_row(&a->e, r);
        const float of_e = sk_rms_factor(e, dim, a->eps);
        const float of_row = a->whole ? factor_of_row(a, r) : 0;
        for (int64_t i = 0; i < n_streams; i++) {
            const float *x = sk_stream_at(&a->x, r, i);
            const float by = a->whole ? of_row : sk_rms_factor(x, dim, a->eps);
            uint8_t *out = sk_view_head(&a->out, r, i);
            norm_into(&a->out, out, 0, e, of_e, (const float *)(const void *)a->e_gain.p);
            norm_into(&a->out, out, dim, x, by, (const float *)(const void *)a->gain.p + i * dim);
        }
    }
}

void sk_cpu_mtp_join(const void *args, const sk_cpu *cpu)
{
    sk_mtp_join_args a = *(const sk_mtp_join_args *)args;
    const int64_t n_rows = sk_live_rows(&a.count, a.x.dim[0]);
    sk_pool_run(cpu->pool, n_rows, 1 + GRAIN / 4 / (a.x.dim[1] * a.x.dim[2]), join_rows, &a);
    *(int32_t *)(void *)a.n.p = (int32_t)(n_rows * a.x.dim[1]);
}
