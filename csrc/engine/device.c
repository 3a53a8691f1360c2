/* See device.h. */
#include "engine/device.h"

#include "base/layout.h"

#include <string.h>

#define FIRST_TIER  512         // positions; each further tier holds four times as many
#define STAGE_BYTES (64u << 20) // for weights on their way to their places; freed after loading
#define GRAPHS_WARM 16          // recorded at open, when there are no more

/* ---- sizes --------------------------------------------------------------------------------------
 */

static bool in_state(const sk_program *p, size_t buf)
{
    const sk_buf *b = &p->space.bufs[buf];
    if ((int32_t)buf == p->rb.ring || (int32_t)buf == p->rb.done) return false;
    return b->role == SK_ROLE_STATE || b->role == SK_ROLE_PENDING || b->role == SK_ROLE_CONTROL;
}

static bool is_packed(const sk_buf *b) { return !b->as_is && sk_cuda_is_packed(b->rank); }

static uint64_t weight_bytes(const sk_buf *b)
{
    return is_packed(b) ? sk_cuda_packed_bytes(b->dtype, b->rank, b->dim) : b->bytes;
}

/* Walks the buffers of one block; with `base` the addresses are handed out. */
static sk_code lay_out(const sk_program *p, bool weights, uint8_t *base, uint8_t **addr,
                       uint64_t *bytes, sk_status *st)
{
    sk_layout l = {0};
    for (size_t i = 0; i < p->space.n; i++) {
        const sk_buf *b = &p->space.bufs[i];
        uint64_t at;
        if (weights ? b->role != SK_ROLE_WEIGHT : !in_state(p, i)) continue;
        at = sk_layout_add(&l, weights ? weight_bytes(b) : b->bytes);
        if (base) addr[i] = base + at;
    }
    if (l.bad) return SK_FAIL(st, SK_NOMEM, "device memory: sizes exceed the address space");
    *bytes = l.used;
    return SK_OK;
}

static void find_tiers(sk_device *d, int32_t ctx)
{
    int64_t bound = FIRST_TIER;
    for (; bound < ctx && d->n_tiers + 1 < SK_TIERS_MAX; bound *= 4)
        d->tier[d->n_tiers++] = (int32_t)bound;
    d->tier[d->n_tiers++] = ctx;
}

int32_t sk_device_tier(const sk_device *d, int32_t positions)
{
    int32_t t = 0;
    while (t + 1 < d->n_tiers && d->tier[t] < positions) t++;
    return t;
}

static void raise(uint64_t *most, uint64_t x) { *most = x > *most ? x : *most; }

static sk_code find_sizes(sk_device *d, const sk_program *p, sk_status *st)
{
    const int32_t ctx = p->options.ctx;
    const sk_buf *bufs = p->space.bufs;
    sk_layout l = {0};
    SK_TRY(lay_out(p, true, NULL, NULL, &d->weight_bytes, st));
    SK_TRY(lay_out(p, false, NULL, NULL, &d->state_bytes, st));
    d->transient_bytes = p->prefill.plan.transient_bytes;
    d->work_bytes = sk_walk_work_bytes(&p->prefill.plan, ctx);
    for (int32_t i = 0; i < p->n_rounds; i++) {
        raise(&d->transient_bytes, p->rounds[i].plan.transient_bytes);
        raise(&d->work_bytes, sk_walk_work_bytes(&p->rounds[i].plan, ctx));
    }
    (void)sk_layout_add(&l, d->transient_bytes);
    (void)sk_layout_add(&l, d->work_bytes);
    (void)sk_layout_add(&l, SK_SYNC_WORDS * sizeof(uint32_t));
    if (l.bad) return SK_FAIL(st, SK_NOMEM, "device memory: sizes exceed the address space");
    d->scratch_bytes = l.used;
    d->ring_bytes = bufs[p->rb.ring].bytes + bufs[p->rb.done].bytes;
    return SK_OK;
}

/* Everything the session will take is known before it takes anything. */
static sk_code check_capacity(sk_device *d, sk_status *st)
{
    uint64_t there, total, want;
    SK_TRY(sk_dev_memory(d->dev, &there, &total, st));
    if (sk_add_u64(d->weight_bytes, d->state_bytes, &want) &&
        sk_add_u64(want, d->scratch_bytes, &want) && sk_add_u64(want, STAGE_BYTES, &want) &&
        want <= there)
        return SK_OK;
    return SK_FAIL(st, SK_NOMEM,
                   "device memory: expected room for weights %llu, request state %llu, transients "
                   "and scratch %llu bytes, found %llu free of %llu",
                   (unsigned long long)d->weight_bytes, (unsigned long long)d->state_bytes,
                   (unsigned long long)d->scratch_bytes, (unsigned long long)there,
                   (unsigned long long)total);
}

static sk_code check_plans(const sk_program *p, sk_status *st)
{
    for (int32_t i = 0; i < p->n_rounds; i++) SK_TRY(sk_walk_check(&p->rounds[i].plan, st));
    return sk_walk_check(&p->prefill.plan, st);
}

/* ---- weights ------------------------------------------------------------------------------------
 */

/* Rows [row, row + n) of a weight, counted through all of its matrices, in file order. A weight in
 * pieces has the same number of them in each but the last. */
static sk_code write_rows(sk_device *d, const sk_buf *b, int64_t row, int64_t n, uint64_t row_bytes,
                          uint8_t *to, sk_status *st)
{
    const int64_t of_first = b->rank == 3 ? b->dim[1] : 1; // rows for one step along dim 0
    const int64_t each =
        b->n_pieces ? (b->dim[0] + b->n_pieces - 1) / b->n_pieces * of_first : row + n;
    while (n > 0) {
        const uint8_t *piece = b->n_pieces ? b->pieces[row / each] : b->source;
        const int64_t at = row % each, m = each - at < n ? each - at : n;
        SK_TRY(sk_dev_write(d->dev, to, piece + (uint64_t)at * row_bytes, (uint64_t)m * row_bytes,
                            st));
        to += (uint64_t)m * row_bytes;
        row += m;
        n -= m;
    }
    return SK_OK;
}

/* Packs the matrix that begins at row `first`, whole tiles at a time, which are staged at `raw`. */
static sk_code upload_matrix(sk_device *d, const sk_buf *b, int64_t first, uint8_t *to,
                             uint8_t *raw, uint64_t raw_bytes, sk_status *st)
{
    const int64_t rows = b->dim[b->rank - 2], k = b->dim[b->rank - 1];
    uint64_t row_bytes = 0;
    int64_t part;
    (void)sk_dtype_row_bytes(b->dtype, (uint64_t)k, &row_bytes);
    part = (int64_t)(raw_bytes / row_bytes) / 16 * 16;
    if (part < 16)
        return SK_FAIL(st, SK_UNSUPPORTED, "%s: rows of %llu bytes do not fit the staging block",
                       b->name, (unsigned long long)row_bytes);
    for (int64_t row = 0; row < rows; row += part) {
        const int64_t n = rows - row < part ? rows - row : part;
        SK_TRY(write_rows(d, b, first + row, n, row_bytes, raw, st));
        SK_TRY(sk_dev_check(sk_k_pack(b->dtype, raw, to, row, n, rows, k, sk_dev_stream(d->dev)),
                            "packing a weight", -1, st));
    }
    return SK_OK;
}

/* The matrices of a weight, one after the other, wherever they lie in the file. */
static sk_code upload_packed(sk_device *d, const sk_buf *b, uint8_t *to, uint8_t *raw,
                             uint64_t raw_bytes, sk_status *st)
{
    const int64_t matrices = b->rank == 3 ? b->dim[0] : 1;
    const uint64_t to_step = sk_cuda_packed_bytes(b->dtype, b->rank, b->dim) / (uint64_t)matrices;
    for (int64_t i = 0; i < matrices; i++)
        SK_TRY(upload_matrix(d, b, i * b->dim[b->rank - 2], to + (uint64_t)i * to_step, raw,
                             raw_bytes, st));
    return SK_OK;
}

/* As it is in the file; pieces one behind the other. */
static sk_code upload_plain(sk_device *d, const sk_buf *b, uint8_t *to, sk_status *st)
{
    const int64_t rows = b->n_pieces ? b->dim[0] * (b->rank == 3 ? b->dim[1] : 1) : 1;
    return write_rows(d, b, 0, rows, b->bytes / (uint64_t)rows, to, st);
}

static uint64_t bytes_to_upload(const sk_program *p)
{
    uint64_t total = 0;
    for (size_t i = 0; i < p->space.n; i++)
        if (p->space.bufs[i].role == SK_ROLE_WEIGHT) total += p->space.bufs[i].bytes;
    return total;
}

static sk_code upload(sk_device *d, const sk_program *p, uint8_t *const *addr, uint8_t *raw,
                      sk_status *st)
{
    const sk_progress *progress = &p->options.progress;
    const uint64_t total = bytes_to_upload(p);
    uint64_t done = 0;
    for (size_t i = 0; i < p->space.n; i++) {
        const sk_buf *b = &p->space.bufs[i];
        if (b->role != SK_ROLE_WEIGHT) continue;
        if (progress->tell && !progress->tell(progress->ctx, done, total))
            return SK_FAIL(st, SK_STATE, "weights: loading was ended after %llu of %llu bytes",
                           (unsigned long long)done, (unsigned long long)total);
        done += b->bytes;
        if (is_packed(b))
            SK_TRY(upload_packed(d, b, addr[i], raw, STAGE_BYTES, st));
        else
            SK_TRY(upload_plain(d, b, addr[i], st));
    }
    return sk_dev_sync(d->dev, st);
}

static sk_code upload_weights(sk_device *d, const sk_program *p, uint8_t *const *addr,
                              sk_status *st)
{
    uint8_t *raw = NULL;
    sk_code rc;
    SK_TRY(sk_dev_alloc(d->dev, STAGE_BYTES, "staging of weights", &raw, st));
    rc = upload(d, p, addr, raw, st);
    sk_dev_free(d->dev, raw);
    return rc;
}

/* ---- memory -------------------------------------------------------------------------------------
 */

void sk_device_clear_rings(const sk_device *d)
{
    memset(d->pinned, 0, d->ring_bytes);
    for (int32_t i = 0; i < d->rings.n; i++) { // no round has these numbers
        sk_done *done = d->done + i;
        d->rings.ctl[i].seq = d->rings.ctl[i].seq_end = -1;
        done->seq = done->seq_end = -1;
    }
}

static sk_code pin_rings(sk_device *d, const sk_program *p, uint8_t **addr, sk_status *st)
{
    const uint64_t done_at = p->space.bufs[p->rb.ring].bytes;
    uint8_t *seen = NULL;
    SK_TRY(
        sk_dev_pin(d->dev, d->ring_bytes, "control and completion rings", &d->pinned, &seen, st));
    addr[p->rb.ring] = seen;
    addr[p->rb.done] = seen + done_at;
    d->rings.ctl = d->pinned;
    d->done = (sk_done *)(void *)((uint8_t *)d->pinned + done_at);
    d->rings.done = d->done;
    d->rings.n = p->rb.n_ring;
    sk_device_clear_rings(d);
    return SK_OK;
}

static sk_code take_memory(sk_device *d, const sk_program *p, uint8_t **addr, sk_status *st)
{
    sk_layout l = {0};
    uint64_t at;
    SK_TRY(sk_dev_alloc(d->dev, d->weight_bytes, "weights", &d->weights, st));
    SK_TRY(sk_dev_alloc(d->dev, d->state_bytes, "request state", &d->state, st));
    SK_TRY(sk_dev_alloc(d->dev, d->scratch_bytes, "transients and scratch", &d->scratch, st));
    // Products also read rows that mean nothing.
    SK_TRY(sk_dev_fill(d->dev, d->scratch, 0, d->scratch_bytes, st));
    SK_TRY(lay_out(p, true, d->weights, addr, &d->weight_bytes, st));
    SK_TRY(lay_out(p, false, d->state, addr, &d->state_bytes, st));
    d->transients = d->scratch + sk_layout_add(&l, d->transient_bytes);
    d->walk.work = d->scratch + sk_layout_add(&l, d->work_bytes);
    d->walk.work_bytes = d->work_bytes;
    at = sk_layout_add(&l, SK_SYNC_WORDS * sizeof(uint32_t));
    d->walk.sync = (uint32_t *)(void *)(d->scratch + at);
    return pin_rings(d, p, addr, st);
}

static sk_code prepare_walk(sk_device *d, const sk_options *o, sk_status *st)
{
    const int32_t edges = sk_k_has_edges();
    if (edges < 0) return sk_dev_check(-edges, "looking at the kernels", -1, st);
    SK_TRY(sk_dev_check(sk_k_setup(), "preparing the kernels", -1, st));
    d->walk.dev = d->dev;
    d->walk.edges = o->edges && edges;
    d->walk.direct = o->mode == SK_MODE_DIRECT;
    d->walk.poison = o->poison;
    return SK_OK;
}

static sk_code open_in(sk_device *d, const sk_program *p, uint8_t **addr, sk_status *st)
{
    SK_TRY(sk_dev_open(&d->dev, p->options.device, st));
    SK_TRY(check_plans(p, st));
    find_tiers(d, p->options.ctx);
    SK_TRY(find_sizes(d, p, st));
    SK_TRY(check_capacity(d, st));
    SK_TRY(prepare_walk(d, &p->options, st));
    SK_TRY(take_memory(d, p, addr, st));
    return upload_weights(d, p, addr, st);
}

sk_code sk_device_open(sk_device *out, const sk_program *p, uint8_t **addr, sk_status *st)
{
    sk_code rc;
    memset(out, 0, sizeof *out);
    rc = open_in(out, p, addr, st);
    if (rc != SK_OK) sk_device_close(out);
    return rc;
}

void sk_device_close(sk_device *d)
{
    if (!d->dev) return;
    if (sk_dev_sync(d->dev, NULL) != SK_OK) d->n_graphs = 0; // a device that failed is closed too
    for (int32_t t = 0; t < SK_TIERS_MAX; t++) {
        for (int32_t i = 0; i < SK_ROUNDS_MAX; i++) sk_dev_graph_drop(d->rounds[i][t]);
        sk_dev_graph_drop(d->prefill[t]);
    }
    sk_dev_unpin(d->dev, d->pinned);
    sk_dev_free(d->dev, d->scratch);
    sk_dev_free(d->dev, d->state);
    sk_dev_free(d->dev, d->weights);
    sk_dev_close(d->dev);
    memset(d, 0, sizeof *d);
}

/* ---- running ------------------------------------------------------------------------------------
 */

/* Launches the graph at *g, recording it at its first use. */
static sk_code replay(sk_device *d, const sk_bound *b, int32_t tier, sk_dev_graph **g,
                      sk_status *st)
{
    if (!*g) {
        SK_TRY(
            sk_walk_record(&d->walk, b, SK_STAGE_CONTROL, SK_STAGE_PUBLISH, d->tier[tier], g, st));
        d->n_graphs++;
    }
    return sk_dev_graph_launch(d->dev, *g, st);
}

static sk_code run(sk_device *d, sk_mode mode, const sk_bound *b, int32_t tier, sk_dev_graph **g,
                   sk_status *st)
{
    if (mode == SK_MODE_GRAPH) return replay(d, b, tier, g, st);
    return sk_walk_run(&d->walk, b, SK_STAGE_CONTROL, SK_STAGE_PUBLISH, d->tier[tier], st);
}

sk_code sk_device_round(sk_device *d, const sk_program *p, int32_t at, const sk_bound *bound,
                        int32_t tier, sk_status *st)
{
    sk_dev_graph **g = &d->rounds[at][tier];
    SK_TRY(run(d, p->options.mode, bound, tier, g, st));
    d->last = *g; // NULL where steps ran
    d->n_replays += *g && p->options.mode == SK_MODE_GRAPH;
    return SK_OK;
}

sk_code sk_device_prefill(sk_device *d, const sk_program *p, const sk_bound *bound, int32_t tier,
                          sk_status *st)
{
    return run(d, p->options.mode, bound, tier, &d->prefill[tier], st);
}

sk_code sk_device_warm(sk_device *d, const sk_program *p, const sk_bound *rounds,
                       const sk_bound *prefill, sk_status *st)
{
    const bool all = p->n_rounds * d->n_tiers <= GRAPHS_WARM;
    for (int32_t t = 0; t < d->n_tiers; t++) {
        SK_TRY(sk_walk_run(&d->walk, prefill, SK_STAGE_CONTROL, SK_STAGE_PUBLISH, d->tier[t], st));
        for (int32_t i = 0; i < p->n_rounds; i++)
            SK_TRY(sk_walk_run(&d->walk, &rounds[i], SK_STAGE_CONTROL, SK_STAGE_PUBLISH, d->tier[t],
                               st));
    }
    SK_TRY(sk_dev_sync(d->dev, st));
    if (p->options.mode != SK_MODE_GRAPH) return SK_OK;
    for (int32_t t = 0; t < d->n_tiers; t++)
        for (int32_t i = 0; i < p->n_rounds; i++) {
            if (!all && (t || i > 1)) continue;
            SK_TRY(sk_walk_record(&d->walk, &rounds[i], SK_STAGE_CONTROL, SK_STAGE_PUBLISH,
                                  d->tier[t], &d->rounds[i][t], st));
            d->n_graphs++;
        }
    return SK_OK;
}
