/* Block-sparse attention: index_append, block_topk, attend_blocks.
 *
 * Rows, blocks and heads are split over threads in every table. What the fast tables replace is the
 * product inside, which comes as a function: the scores of a run of blocks, or a head over given
 * positions. */
#include "op/cpu/def.h"

#define GRAIN 16384 // elements worth waking a thread for

static uint64_t whole_lines(uint64_t bytes) { return (bytes + 63) & ~(uint64_t)63; }

/* Blocks that are complete at a row. */
static int64_t whole_blocks(const sk_row *row, int32_t ratio)
{
    return ((int64_t)row->pos + 1) / ratio;
}

/* ---- index_append ---------------------------------------------------------------------------- */

typedef struct append_job {
    const sk_index_append_args *a;
    const sk_cpu *cpu;
} append_job;

static uint64_t append_bytes(const sk_index_append_args *a)
{
    return whole_lines(4 * (uint64_t)a->k.dim[1]);
}

static void append_rows(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const sk_index_append_args *a = ((const append_job *)ctx)->a;
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        const sk_row *row = sk_row_at(&a->rows, r);
        const float *k = (const float *)(const void *)sk_view_row(&a->k, r);
        uint8_t *to = sk_cache_at(&a->raw, row->slot, row->pos, 0);
        for (int64_t i = 0; i < a->k.dim[1]; i++) sk_act_set(a->raw.dtype, to, i, k[i]);
    }
}

/* The mean goes through rms_norm and rope as any head does, on views of this one row. */
static void pool_block(const sk_index_append_args *a, int32_t slot, int32_t block, float *m)
{
    const int64_t dim = a->k.dim[1];
    const int64_t one[3] = {1, 1, dim};
    const int32_t type = a->raw.dtype;
    sk_row at = {.slot = slot, .pos = block * a->ratio};
    sk_rms_norm_args norm = {.x = sk_view_dense(0, SK_F32, 2, one + 1), .gain = a->gain};
    sk_rope_args rope = {.freq = a->freq, .neox = 1};
    for (int64_t i = 0; i < dim; i++) m[i] = 0;
    for (int32_t p = 0; p < a->ratio; p++) {
        const uint8_t *k = sk_cache_at(&a->raw, slot, at.pos + p, 0);
        for (int64_t i = 0; i < dim; i++) m[i] += sk_act_get(type, k, i);
    }
    for (int64_t i = 0; i < dim; i++) m[i] = sk_act_round(type, m[i] / (float)a->ratio);
    norm.x.p = (uint8_t *)(void *)m;
    norm.out = norm.x;
    norm.eps = a->eps;
    sk_rms_norm_rows(&norm, 0, 1);
    rope.x = sk_view_dense(0, SK_F32, 3, one);
    rope.x.p = norm.x.p;
    rope.rows = sk_view_dense(0, SK_I32, 2, (int64_t[]){1, 3});
    rope.rows.p = (uint8_t *)(void *)&at;
    rope.out = sk_view_dense(0, type, 3, one);
    rope.out.p = sk_cache_at(&a->pooled, slot, block, 0);
    sk_rope_rows(&rope, 0, 1);
}

static void pool_blocks(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const append_job *j = ctx;
    const sk_index_append_args *a = j->a;
    uint8_t *work = j->cpu->work + (uint64_t)worker * append_bytes(a);
    for (int64_t r = begin; r < end; r++) {
        const sk_row *row = sk_row_at(&a->rows, r);
        const int64_t n = whole_blocks(row, a->ratio);
        if (n * a->ratio != (int64_t)row->pos + 1) continue;
        pool_block(a, row->slot, (int32_t)(n - 1), (float *)(void *)work);
    }
}

void sk_cpu_index_append(const void *args, const sk_cpu *cpu)
{
    append_job j = {.a = args, .cpu = cpu};
    const int64_t n_rows = sk_live_rows(&j.a->count, j.a->k.dim[0]);
    const int64_t dim = j.a->k.dim[1];
    // A block may have keys of several rows: all are in their place before the first is pooled.
    sk_pool_run(cpu->pool, n_rows, 1 + GRAIN / dim, append_rows, &j);
    sk_pool_run(cpu->pool, n_rows, 1 + GRAIN / 8 / dim, pool_blocks, &j); // cosf and sinf too
}

/* ---- block_topk ------------------------------------------------------------------------------ */

void sk_block_scores(const sk_block_topk_args *a, int64_t r, int64_t begin, int64_t end,
                     float *score)
{
    const sk_row *row = sk_row_at(&a->rows, r);
    for (int64_t b = begin; b < end; b++) {
        const uint8_t *k = sk_cache_at(&a->pooled, row->slot, b, 0);
        float sum = 0;
        for (int64_t h = 0; h < a->q.dim[1]; h++) {
            float dot = sk_dot_lanes(a->q.dtype, sk_view_head(&a->q, r, h), k, a->q.dim[2]);
            sum += dot < 0 ? 0 : dot; // NaN stays
        }
        score[b - begin] = a->scale * sum;
    }
}

/* Puts heap[at] where it belongs: no block ranks before those above it. */
static void sift(const float *score, int32_t *heap, int64_t n, int64_t at)
{
    const int32_t block = heap[at];
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= n) break;
        if (child + 1 < n && sk_ranks_before(score, heap[child], heap[child + 1])) child++;
        if (sk_ranks_before(score, heap[child], block)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = block;
}

/* The k first in rank of n blocks, ascending by block. A heap of the best so far, the last of them
 * at its root, is enough to know the last one that is in; a second walk then finds them in order.
 */
static void choose(const float *score, int64_t n, int64_t k, int32_t *out)
{
    int32_t last;
    int64_t used = 0;
    for (int64_t i = 0; i < k; i++) out[i] = (int32_t)i;
    for (int64_t at = k / 2; at-- > 0;) sift(score, out, k, at);
    for (int64_t b = k; b < n; b++) {
        if (!sk_ranks_before(score, b, out[0])) continue;
        out[0] = (int32_t)b;
        sift(score, out, k, 0);
    }
    last = out[0];
    for (int64_t b = 0; b < n; b++)
        if (!sk_ranks_before(score, last, b)) out[used++] = (int32_t)b;
}

typedef struct topk_job {
    const sk_block_topk_args *a;
    const sk_cpu *cpu;
    sk_block_scores_fn scores;
    int64_t row; // whose blocks are split, if they are
} topk_job;

static uint64_t topk_bytes(const sk_block_topk_args *a)
{
    return whole_lines(4 * (uint64_t)a->pooled.dim[1]);
}

static float *topk_scores(const topk_job *j, int32_t worker)
{
    return (float *)(void *)(j->cpu->work + (uint64_t)worker * topk_bytes(j->a));
}

static void topk_blocks(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const topk_job *j = ctx;
    (void)worker;
    j->scores(j->a, j->row, begin, end, topk_scores(j, 0) + begin);
}

static void topk_rows(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const topk_job *j = ctx;
    float *score = topk_scores(j, worker);
    for (int64_t r = begin; r < end; r++) {
        const int64_t n = whole_blocks(sk_row_at(&j->a->rows, r), j->a->ratio);
        const int64_t k = j->a->out.dim[1];
        int32_t *out = (int32_t *)(void *)sk_view_row(&j->a->out, r);
        if (n > k) {
            j->scores(j->a, r, 0, n, score);
            choose(score, n, k, out);
        } else {
            for (int64_t i = 0; i < k; i++) out[i] = i < n ? (int32_t)i : -1;
        }
    }
}

/* Threads take rows, or parts of each row's blocks where there are few rows. */
void sk_block_topk_with(const sk_block_topk_args *a, const sk_cpu *cpu, sk_block_scores_fn scores)
{
    topk_job j = {.a = a, .cpu = cpu, .scores = scores};
    const int64_t n_rows = sk_live_rows(&a->count, a->q.dim[0]);
    const int64_t grain = 1 + GRAIN / (a->q.dim[1] * a->q.dim[2]);
    if (n_rows >= sk_pool_threads(cpu->pool)) {
        sk_pool_run(cpu->pool, n_rows, 1, topk_rows, &j);
        return;
    }
    for (j.row = 0; j.row < n_rows; j.row++) {
        const int64_t n = whole_blocks(sk_row_at(&a->rows, j.row), a->ratio);
        if (n > a->out.dim[1]) {
            sk_pool_run(cpu->pool, n, grain, topk_blocks, &j);
            choose(topk_scores(&j, 0), n, a->out.dim[1],
                   (int32_t *)(void *)sk_view_row(&a->out, j.row));
        } else {
            topk_rows(&j, j.row, j.row + 1, 0);
        }
    }
}

void sk_cpu_block_topk(const void *args, const sk_cpu *cpu)
{
    sk_block_topk_with(args, cpu, sk_block_scores);
}

/* ---- attend_blocks --------------------------------------------------------------------------- */

typedef struct blocks_job {
    const sk_attend_blocks_args *a;
    const sk_cpu *cpu;
    sk_attend_over_fn over;
    sk_attend_args attend; // of the same fields
} blocks_job;

/* Positions that a row attends to at most. */
static int64_t seen_max(const sk_attend_blocks_args *a)
{
    const int64_t most = (a->blocks.dim[1] + 1) * a->ratio - 1;
    return most < a->k_cache.dim[1] ? most : a->k_cache.dim[1];
}

/* Of a worker: scratch of attend, then the positions. */
static uint64_t blocks_floats(const sk_attend_blocks_args *a)
{
    return sk_attend_scratch_lay(NULL, seen_max(a), a->q.dim[2], NULL);
}

static uint64_t blocks_bytes(const sk_attend_blocks_args *a)
{
    return whole_lines(4 * (blocks_floats(a) + (uint64_t)seen_max(a)));
}

static sk_seen list_positions(const sk_attend_blocks_args *a, int64_t r, int32_t *list)
{
    const sk_row *row = sk_row_at(&a->rows, r);
    const int32_t *block = (const int32_t *)(const void *)sk_view_row(&a->blocks, r);
    int64_t n = 0;
    for (int64_t j = 0; j < a->blocks.dim[1] && block[j] >= 0; j++)
        for (int32_t i = 0; i < a->ratio; i++) list[n++] = block[j] * a->ratio + i;
    for (int64_t p = whole_blocks(row, a->ratio) * a->ratio; p <= row->pos; p++)
        list[n++] = (int32_t)p;
    return (sk_seen){.list = list, .n = n};
}

static void blocks_heads(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const blocks_job *j = ctx;
    const sk_attend_blocks_args *a = j->a;
    const int64_t heads = a->q.dim[1];
    float *work = (float *)(void *)(j->cpu->work + (uint64_t)worker * blocks_bytes(a));
    int32_t *list = (int32_t *)(void *)(work + blocks_floats(a));
    int64_t listed = -1; // row whose positions are in the list
    sk_seen seen = {.n = 0};
    sk_attend_scratch s;
    (void)sk_attend_scratch_lay(work, seen_max(a), a->q.dim[2], &s);
    for (int64_t i = begin; i < end; i++) {
        const int64_t r = i / heads;
        const float *gate = NULL;
        if (sk_view_present(&a->gate))
            gate = (const float *)(const void *)sk_view_head(&a->gate, r, i % heads);
        if (r != listed) seen = list_positions(a, r, list);
        listed = r;
        j->over(&j->attend, r, i % heads, &seen, gate, &s);
    }
}

void sk_attend_blocks_with(const sk_attend_blocks_args *a, const sk_cpu *cpu,
                           sk_attend_over_fn over)
{
    const int64_t n_rows = sk_live_rows(&a->count, a->q.dim[0]);
    int64_t longest = 1;
    blocks_job j = {.a = a,
                    .cpu = cpu,
                    .over = over,
                    .attend = {.q = a->q,
                               .k_cache = a->k_cache,
                               .v_cache = a->v_cache,
                               .rows = a->rows,
                               .count = a->count,
                               .out = a->out,
                               .scale = a->scale,
                               .split = a->split}};
    for (int64_t r = 0; r < n_rows; r++)
        if (sk_row_at(&a->rows, r)->pos >= longest) longest = sk_row_at(&a->rows, r)->pos + 1;
    if (longest > seen_max(a)) longest = seen_max(a);
    // Some ten microseconds a piece, or the threads are not worth waking.
    sk_pool_run(cpu->pool, n_rows * a->q.dim[1], 1 + 65536 / (longest * a->q.dim[2]), blocks_heads,
                &j);
}

void sk_cpu_attend_blocks(const void *args, const sk_cpu *cpu)
{
    sk_attend_blocks_with(args, cpu, sk_attend_over);
}

/* ---- how much scratch ------------------------------------------------------------------------ */

uint64_t sk_sparse_bytes(enum sk_op op, const void *args, int32_t n_threads)
{
    const uint64_t n = (uint64_t)n_threads;
    switch (op) {
    case SK_OP_index_append:
        return n * append_bytes(args);
    case SK_OP_block_topk:
        return n * topk_bytes(args);
    case SK_OP_attend_blocks:
        return n * blocks_bytes(args);
    default:
        return 0;
    }
}
