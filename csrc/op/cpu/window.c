/* Rows that are kept for the next commit, and windows: the last rows of a stream. Copies, rounded
 * where the target is BF16. */
#include "op/cpu/recurrent.h"

#include <string.h>

#define GRAIN 16384 // elements worth waking a thread for

/* One row of activations into another. */
static void put_row(int32_t to, uint8_t *out, int32_t from, const uint8_t *x, int64_t n)
{
    if (to == from)
        memcpy(out, x, (size_t)n * (to == SK_BF16 ? 2 : 4));
    else
        for (int64_t i = 0; i < n; i++) sk_act_set(to, out, i, sk_act_get(from, x, i));
}

/* ---- keep_rows, take_rows -------------------------------------------------------------------- */

static void keep_rows(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const sk_keep_rows_args *a = ctx;
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        const sk_row *row = sk_row_at(&a->rows, r);
        put_row(a->pending.dtype, sk_view_head(&a->pending, row->slot, row->at), SK_F32,
                sk_view_row(&a->x, r), a->x.dim[1]);
    }
}

void sk_cpu_keep_rows(const void *args, const sk_cpu *cpu)
{
    sk_keep_rows_args a = *(const sk_keep_rows_args *)args;
    sk_pool_run(cpu->pool, sk_live_rows(&a.count, a.x.dim[0]), 1 + GRAIN / a.x.dim[1], keep_rows,
                &a);
}

static void take_rows(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const sk_take_rows_args *a = ctx;
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        const sk_row *row = sk_row_at(&a->rows, r);
        put_row(SK_F32, sk_view_row(&a->out, r), a->pending.dtype,
                sk_view_head(&a->pending, row->slot, row->at), a->out.dim[1]);
    }
}

void sk_cpu_take_rows(const void *args, const sk_cpu *cpu)
{
    sk_take_rows_args a = *(const sk_take_rows_args *)args;
    sk_pool_run(cpu->pool, sk_live_rows(&a.count, a.out.dim[0]), 1 + GRAIN / a.out.dim[1],
                take_rows, &a);
}

/* ---- windows --------------------------------------------------------------------------------- */

/* Behind a slot's window come n rows of type `dtype`, `stride` bytes apart: keeps the last of all.
 * A row moves to a lower place or comes from outside, so in ascending order none is lost. */
static void push(const sk_view *window, int64_t slot, int32_t dtype, const uint8_t *rows,
                 int64_t stride, int64_t n)
{
    const int64_t size = window->dim[1];
    if (n == 0) return;
    for (int64_t i = 0; i < size; i++) {
        const int64_t at = i + n; // in the window with the rows behind it
        if (at < size)
            put_row(window->dtype, sk_view_head(window, slot, i), window->dtype,
                    sk_view_head(window, slot, at), window->dim[2]);
        else
            put_row(window->dtype, sk_view_head(window, slot, i), dtype,
                    rows + (at - size) * stride, window->dim[2]);
    }
}

static void commit_slots(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const sk_window_commit_args *a = ctx;
    const int32_t *kept = (const int32_t *)(const void *)a->kept.p;
    (void)worker;
    for (int64_t b = begin; b < end; b++)
        push(&a->window, b, a->pending.dtype, sk_view_row(&a->pending, b), a->pending.stride[1],
             kept[b]);
}

void sk_cpu_window_commit(const void *args, const sk_cpu *cpu)
{
    sk_window_commit_args a = *(const sk_window_commit_args *)args;
    const int64_t slot = a.window.dim[1] * a.window.dim[2];
    sk_pool_run(cpu->pool, a.window.dim[0], 1 + GRAIN / slot, commit_slots, &a);
}

static void push_slots(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const sk_window_push_args *a = ctx;
    const int64_t live = sk_live_rows(&a->count, a->x.dim[0]);
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        const sk_row *row = sk_row_at(&a->rows, r);
        if (row->at != 0) continue; // the slot's first row stands for all of them
        push(&a->window, row->slot, SK_F32, sk_view_row(&a->x, r), a->x.stride[0],
             sk_slot_rows(&a->rows, r, live));
    }
}

void sk_cpu_window_push(const void *args, const sk_cpu *cpu)
{
    sk_window_push_args a = *(const sk_window_push_args *)args;
    sk_pool_run(cpu->pool, sk_live_rows(&a.count, a.x.dim[0]), 1 + GRAIN / a.x.dim[1], push_slots,
                &a);
}
