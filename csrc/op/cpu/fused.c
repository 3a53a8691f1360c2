/* The fused ops: each the composition of its parts through scratch.
 *
 * The parts run in the table that the op runs in (sk_cpu.table), so one version serves all tables:
 * by definition it calls the definition, fast it calls what is fast. What is not an op of its own,
 * the gain before a product and the norm behind it, is here. */
#include "op/cpu/parts.h"

#define GRAIN       16384 // elements worth waking a thread for
#define ARGMAX_ROWS 16    // rows whose logits are there at a time

/* ---- a product behind a norm ----------------------------------------------------------------- */

typedef struct normed {
    const sk_view *x, *gain;
    const sk_view *bias; // of the segments; the product has none, as the norm comes first
    float eps;
    sk_linear_args product; // of a, which lies in scratch
} normed;

/* The product's input; segments are the caller's. */
static normed normed_of(const sk_view *x, const sk_view *gain, const sk_view *count,
                        const sk_view *bias, float eps, int32_t act, int64_t n_rows, sk_arena *s)
{
    normed n = {.x = x, .gain = gain, .bias = bias, .eps = eps};
    sk_args_clear(SK_OP_linear, &n.product);
    n.product.x = sk_arena_take(s, act, 2, (int64_t[]){n_rows, x->dim[1]});
    n.product.count = *count;
    return n;
}

static void set_segment(sk_linear_args *a, int32_t i, const sk_view *w, const sk_view *scale,
                        int32_t scale_n, int32_t scale_k, const sk_view *y)
{
    a->w[i] = *w;
    a->scale[i] = *scale;
    a->scale_n[i] = scale_n;
    a->scale_k[i] = scale_k;
    a->y[i] = *y;
}

/* a = round(x * gain) */
static void gain_rows(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const normed *n = ctx;
    const sk_view *a = &n->product.x;
    const float *gain = (const float *)(const void *)n->gain->p;
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        const float *x = (const float *)(const void *)sk_view_row(n->x, r);
        uint8_t *out = sk_view_row(a, r);
        for (int64_t i = 0; i < a->dim[1]; i++) sk_act_set(a->dtype, out, i, x[i] * gain[i]);
    }
}

/* y = n_r * y (+ bias); in pieces of a constant size, of which the compiler makes vectors. */
static void norm_row(float *restrict y, float by, const float *restrict bias, int64_t n)
{
    int64_t i = 0;
    for (; bias && i + 8 <= n; i += 8)
        for (int l = 0; l < 8; l++) y[i + l] = by * y[i + l] + bias[i + l];
    for (; i + 8 <= n; i += 8)
        for (int l = 0; l < 8; l++) y[i + l] = by * y[i + l];
    for (; i < n; i++) y[i] = bias ? by * y[i] + bias[i] : by * y[i];
}

static void norm_rows(void *ctx, int64_t begin, int64_t end, int32_t worker)
{
    const normed *n = ctx;
    const sk_linear_args *p = &n->product;
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        const float *x = (const float *)(const void *)sk_view_row(n->x, r);
        const float by = sk_rms_factor(x, n->x->dim[1], n->eps);
        for (int32_t s = 0; s < SK_LINEAR_SEGS && sk_view_present(&p->w[s]); s++) {
            const bool has_bias = sk_view_present(&n->bias[s]);
            norm_row((float *)(void *)sk_view_row(&p->y[s], r), by,
                     has_bias ? (const float *)(const void *)n->bias[s].p : NULL, p->y[s].dim[1]);
        }
    }
}

static void run_normed(normed *n, const sk_cpu *cpu, const sk_arena *s)
{
    const int64_t n_rows = sk_live_rows(&n->product.count, n->product.x.dim[0]);
    const int64_t grain = 1 + GRAIN / n->x->dim[1];
    sk_pool_run(cpu->pool, n_rows, grain, gain_rows, n);
    sk_run_part(SK_OP_linear, &n->product, cpu, s);
    sk_pool_run(cpu->pool, n_rows, grain, norm_rows, n);
}

/* ---- norm_linear ----------------------------------------------------------------------------- */

static normed norm_linear_parts(const sk_norm_linear_args *a, sk_arena *s)
{
    normed n = normed_of(&a->x, &a->gain, &a->count, a->bias, a->eps, a->act, a->x.dim[0], s);
    for (int32_t i = 0; i < SK_LINEAR_SEGS; i++)
        set_segment(&n.product, i, &a->w[i], &a->scale[i], a->scale_n[i], a->scale_k[i], &a->y[i]);
    return n;
}

void sk_cpu_norm_linear(const void *args, const sk_cpu *cpu)
{
    sk_arena s = {.base = cpu->work};
    normed n = norm_linear_parts(args, &s);
    run_normed(&n, cpu, &s);
}

/* ---- norm_glu -------------------------------------------------------------------------------- */

static normed norm_glu_parts(const sk_norm_glu_args *a, sk_arena *s)
{
    const int64_t dim[2] = {a->x.dim[0], a->w[0].dim[0]};
    normed n = normed_of(&a->x, &a->gain, &a->count, a->bias, a->eps, a->out.dtype, dim[0], s);
    for (int32_t i = 0; i < 2; i++) {
        const sk_view y = sk_arena_take(s, SK_F32, 2, dim);
        set_segment(&n.product, i, &a->w[i], &a->scale[i], a->scale_n[i], a->scale_k[i], &y);
    }
    return n;
}

void sk_cpu_norm_glu(const void *args, const sk_cpu *cpu)
{
    const sk_norm_glu_args *a = args;
    sk_arena s = {.base = cpu->work};
    normed n = norm_glu_parts(a, &s);
    const sk_view *y = n.product.y;
    run_normed(&n, cpu, &s);
    if (a->gelu)
        sk_run_part(SK_OP_gelu_mul, &(sk_gelu_mul_args){y[0], y[1], a->count, a->out}, cpu, &s);
    else
        sk_run_part(SK_OP_silu_mul, &(sk_silu_mul_args){y[0], y[1], a->count, a->out}, cpu, &s);
}

/* ---- norm_argmax ----------------------------------------------------------------------------- */

/* The logits of a block of rows; its count and its rows are set when it runs. */
static normed norm_argmax_parts(const sk_norm_argmax_args *a, sk_arena *s)
{
    const int64_t rows = a->x.dim[0] < ARGMAX_ROWS ? a->x.dim[0] : ARGMAX_ROWS;
    normed n = normed_of(&a->x, &a->gain, &a->count, &a->bias, a->eps, a->act, rows, s);
    const sk_view y = sk_arena_take(s, SK_F32, 2, (int64_t[]){rows, a->w.dim[0]});
    set_segment(&n.product, 0, &a->w, &a->scale, a->scale_n, a->scale_k, &y);
    return n;
}

void sk_cpu_norm_argmax(const void *args, const sk_cpu *cpu)
{
    const sk_norm_argmax_args *a = args;
    const int64_t n_rows = sk_live_rows(&a->count, a->x.dim[0]);
    sk_arena s = {.base = cpu->work};
    normed n = norm_argmax_parts(a, &s);
    const int64_t block = n.product.x.dim[0];
    for (int64_t r = 0; r < n_rows; r += block) {
        int32_t live = (int32_t)(n_rows - r < block ? n_rows - r : block);
        sk_view x = a->x;
        sk_argmax_args pick = {.x = n.product.y[0], .id = a->id};
        x.p = sk_view_row(&a->x, r);
        n.x = &x;
        n.product.count.p = (uint8_t *)(void *)&live;
        pick.count = n.product.count;
        pick.id.p += r * (int64_t)sizeof(int32_t);
        run_normed(&n, cpu, &s);
        sk_run_part(SK_OP_argmax, &pick, cpu, &s);
    }
}

/* ---- linear_argmax --------------------------------------------------------------------------- */

/* As of norm_argmax, with rows of x where they are. */
static sk_linear_args linear_argmax_parts(const sk_linear_argmax_args *a, sk_arena *s)
{
    const int64_t rows = a->x.dim[0] < ARGMAX_ROWS ? a->x.dim[0] : ARGMAX_ROWS;
    const sk_view y = sk_arena_take(s, SK_F32, 2, (int64_t[]){rows, a->w.dim[0]});
    sk_linear_args product;
    sk_args_clear(SK_OP_linear, &product);
    product.x = a->x;
    product.x.dim[0] = rows;
    product.count = a->count;
    set_segment(&product, 0, &a->w, &a->scale, a->scale_n, a->scale_k, &y);
    product.bias[0] = a->bias;
    return product;
}

void sk_cpu_linear_argmax(const void *args, const sk_cpu *cpu)
{
    const sk_linear_argmax_args *a = args;
    const int64_t n_rows = sk_live_rows(&a->count, a->x.dim[0]);
    sk_arena s = {.base = cpu->work};
    sk_linear_args product = linear_argmax_parts(a, &s);
    const int64_t block = product.x.dim[0];
    for (int64_t r = 0; r < n_rows; r += block) {
        int32_t live = (int32_t)(n_rows - r < block ? n_rows - r : block);
        sk_argmax_args pick = {.x = product.y[0], .id = a->id};
        product.x.p = sk_view_row(&a->x, r);
        product.count.p = (uint8_t *)(void *)&live;
        pick.count = product.count;
        pick.id.p += r * (int64_t)sizeof(int32_t);
        sk_run_part(SK_OP_linear, &product, cpu, &s);
        sk_run_part(SK_OP_argmax, &pick, cpu, &s);
    }
}

/* ---- linear_parts ---------------------------------------------------------------------------- */

/* The product of one part: views of its columns. Blocks of all types end where parts do. */
static sk_linear_args part_of(const sk_linear_parts_args *a, int64_t part)
{
    const int64_t k = a->x.dim[1] / a->y[0].dim[0];
    uint64_t before = 0;
    sk_linear_args p;
    sk_args_clear(SK_OP_linear, &p);
    p.x = a->x;
    p.x.dim[1] = k;
    (void)sk_dtype_row_bytes(a->x.dtype, (uint64_t)(part * k), &before);
    if (p.x.p) p.x.p += before;
    p.count = a->count;
    for (int32_t i = 0; i < SK_LINEAR_SEGS && sk_view_present(&a->w[i]); i++) {
        const sk_view *y = &a->y[i];
        p.w[i] = a->w[i];
        p.w[i].dim[1] = k;
        (void)sk_dtype_row_bytes(a->w[i].dtype, (uint64_t)(part * k), &before);
        if (p.w[i].p) p.w[i].p += before;
        p.y[i] = sk_view_dense(y->buf, SK_F32, 2, y->dim + 1);
        p.y[i].stride[0] = y->stride[1];
        if (y->p) p.y[i].p = y->p + part * y->stride[0];
    }
    return p;
}

void sk_cpu_linear_parts(const void *args, const sk_cpu *cpu)
{
    const sk_linear_parts_args *a = args;
    const sk_arena s = {.base = cpu->work};
    for (int64_t i = 0; i < a->y[0].dim[0]; i++) {
        const sk_linear_args part = part_of(a, i);
        sk_run_part(SK_OP_linear, &part, cpu, &s);
    }
}

/* ---- what is added to the stream ------------------------------------------------------------- */

static sk_linear_args linear_add_parts(const sk_linear_add_args *a, sk_arena *s)
{
    const sk_view y = sk_arena_take(s, SK_F32, 2, a->y.dim);
    sk_linear_args product;
    sk_args_clear(SK_OP_linear, &product);
    product.x = a->x;
    product.count = a->count;
    set_segment(&product, 0, &a->w, &a->scale, a->scale_n, a->scale_k, &y);
    product.bias[0] = a->bias;
    return product;
}

void sk_cpu_linear_add(const void *args, const sk_cpu *cpu)
{
    const sk_linear_add_args *a = args;
    sk_arena s = {.base = cpu->work};
    sk_linear_args product = linear_add_parts(a, &s);
    sk_run_part(SK_OP_linear, &product, cpu, &s);
    sk_run_part(SK_OP_add, &(sk_add_args){product.y[0], a->count, a->y}, cpu, &s);
}

static sk_rms_norm_args norm_of(const sk_view *x, const sk_view *gain, const sk_view *count,
                                float eps, sk_arena *s)
{
    return (sk_rms_norm_args){.x = *x,
                              .gain = *gain,
                              .count = *count,
                              .out = sk_arena_take(s, SK_F32, x->rank, x->dim),
                              .eps = eps};
}

void sk_cpu_norm_add(const void *args, const sk_cpu *cpu)
{
    const sk_norm_add_args *a = args;
    sk_arena s = {.base = cpu->work};
    sk_rms_norm_args norm = norm_of(&a->x, &a->gain, &a->count, a->eps, &s);
    sk_run_part(SK_OP_rms_norm, &norm, cpu, &s);
    sk_run_part(SK_OP_add, &(sk_add_args){norm.out, a->count, a->y}, cpu, &s);
}

/* ---- rope_attend ----------------------------------------------------------------------------- */

/* Heads on their way into attention: normed where there is a gain, rotated. */
typedef struct heads {
    sk_rms_norm_args norm; // its gain may be absent
    sk_rope_args rope;
} heads;

static heads heads_of(const sk_rope_attend_args *a, const sk_view *x, const sk_view *gain,
                      sk_arena *s)
{
    heads h = {.norm = {.gain = *gain}};
    h.rope = (sk_rope_args){
        .x = *x, .freq = a->freq, .rows = a->rows, .count = a->count, .neox = a->neox};
    h.rope.out = sk_arena_take(s, a->k_cache.dtype, 3, x->dim);
    if (sk_view_present(gain)) {
        h.norm = norm_of(x, gain, &a->count, a->eps, s);
        h.rope.x = h.norm.out;
    }
    return h;
}

static void run_heads(const heads *h, const sk_cpu *cpu, const sk_arena *s)
{
    if (sk_view_present(&h->norm.gain)) sk_run_part(SK_OP_rms_norm, &h->norm, cpu, s);
    sk_run_part(SK_OP_rope, &h->rope, cpu, s);
}

typedef struct rope_attend {
    heads q, k;
    sk_kv_append_args append;
    sk_attend_args attend;
} rope_attend;

static rope_attend rope_attend_parts(const sk_rope_attend_args *a, sk_arena *s)
{
    rope_attend p = {.q = heads_of(a, &a->q, &a->q_norm, s),
                     .k = heads_of(a, &a->k, &a->k_norm, s)};
    p.append = (sk_kv_append_args){.k = p.k.rope.out,
                                   .v = a->v,
                                   .rows = a->rows,
                                   .count = a->count,
                                   .k_cache = a->k_cache,
                                   .v_cache = a->v_cache};
    p.attend = (sk_attend_args){.q = p.q.rope.out,
                                .k_cache = a->k_cache,
                                .v_cache = a->v_cache,
                                .rows = a->rows,
                                .count = a->count,
                                .out = a->out,
                                .scale = a->scale,
                                .window = a->window,
                                .split = a->split};
    return p;
}

void sk_cpu_rope_attend(const void *args, const sk_cpu *cpu)
{
    sk_arena s = {.base = cpu->work};
    const rope_attend p = rope_attend_parts(args, &s);
    run_heads(&p.k, cpu, &s);
    sk_run_part(SK_OP_kv_append, &p.append, cpu, &s);
    run_heads(&p.q, cpu, &s);
    sk_run_part(SK_OP_attend, &p.attend, cpu, &s);
}

/* ---- how much scratch ------------------------------------------------------------------------ */

static uint64_t linear_bytes(const sk_linear_args *product, int32_t n_threads)
{
    return sk_cpu_work_bytes(SK_OP_linear, product, n_threads);
}

uint64_t sk_fused_bytes(enum sk_op op, const void *args, int32_t n_threads)
{
    sk_arena s = {.base = NULL};
    uint64_t part = 0;
    switch (op) {
    case SK_OP_norm_linear: {
        const normed n = norm_linear_parts(args, &s);
        part = linear_bytes(&n.product, n_threads);
        break;
    }
    case SK_OP_norm_glu: {
        const normed n = norm_glu_parts(args, &s);
        part = linear_bytes(&n.product, n_threads);
        break;
    }
    case SK_OP_norm_argmax: {
        const normed n = norm_argmax_parts(args, &s);
        part = linear_bytes(&n.product, n_threads);
        break;
    }
    case SK_OP_linear_argmax: {
        const sk_linear_args product = linear_argmax_parts(args, &s);
        part = linear_bytes(&product, n_threads);
        break;
    }
    case SK_OP_linear_add: {
        const sk_linear_args product = linear_add_parts(args, &s);
        part = linear_bytes(&product, n_threads);
        break;
    }
    case SK_OP_linear_parts: {
        const sk_linear_args product = part_of(args, 0);
        part = linear_bytes(&product, n_threads);
        break;
    }
    case SK_OP_norm_add:
        (void)sk_arena_take(&s, SK_F32, 2, ((const sk_norm_add_args *)args)->x.dim);
        break;
    case SK_OP_rope_attend: {
        const rope_attend p = rope_attend_parts(args, &s);
        part = sk_cpu_work_bytes(SK_OP_attend, &p.attend, n_threads);
        break;
    }
    default:
        break;
    }
    return s.used + part;
}
