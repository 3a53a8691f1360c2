/* See device.h. */
#include "engine/device.h"

#include "base/layout.h"
#include "base/mem.h"

#include <string.h>

#define FIRST_TIER  512 // positions; each further tier holds four times as many
#define GRAPHS_WARM 16  // recorded at open, when there are no more

/* ---- tiers --------------------------------------------------------------------------------------
 */

int32_t sk_device_tiers(int32_t ctx, int32_t tier[SK_TIERS_MAX])
{
    int64_t bound = FIRST_TIER;
    int32_t n = 0;
    for (; bound < ctx && n + 1 < SK_TIERS_MAX; bound *= 4) tier[n++] = (int32_t)bound;
    tier[n++] = ctx;
    return n;
}

int32_t sk_device_tier(const sk_device *d, int32_t positions)
{
    int32_t t = 0;
    while (t + 1 < d->n_tiers && d->tier[t] < positions) t++;
    return t;
}

/* ---- what is refused ----------------------------------------------------------------------------
 */

/* Everything the session will take is known before it takes anything. */
static sk_code check_capacity(sk_device *d, sk_status *st)
{
    uint64_t there, total, want;
    const uint64_t host = d->sizes.tables ? sk_mem_available() : UINT64_MAX;
    if (d->sizes.tables > host)
        return SK_FAIL(st, SK_NOMEM,
                       "host memory: expected room for a table of %llu bytes, found %llu available",
                       (unsigned long long)d->sizes.tables, (unsigned long long)host);
    SK_TRY(sk_dev_memory(d->dev, &there, &total, st));
    if (sk_add_u64(d->sizes.weights, d->sizes.state, &want) &&
        sk_add_u64(want, d->sizes.scratch, &want) && sk_add_u64(want, d->sizes.staging, &want) &&
        want <= there)
        return SK_OK;
    return SK_FAIL(st, SK_NOMEM,
                   "device memory: expected room for weights %llu, request state %llu, transients "
                   "and scratch %llu, staging %llu bytes, found %llu free of %llu",
                   (unsigned long long)d->sizes.weights, (unsigned long long)d->sizes.state,
                   (unsigned long long)d->sizes.scratch, (unsigned long long)d->sizes.staging,
                   (unsigned long long)there, (unsigned long long)total);
}

static sk_code check_plans(const sk_program *p, sk_status *st)
{
    for (int32_t i = 0; i < p->n_rounds; i++) SK_TRY(sk_walk_check(&p->rounds[i].plan, st));
    return sk_walk_check(&p->prefill.plan, st);
}

/* ---- weights ------------------------------------------------------------------------------------
 */

static const sk_synth *find_recipe(const sk_program *p, const uint8_t *from, uint64_t *at)
{
    const sk_synth *recipe = sk_ckpt_recipe_at(p->ck, from, at);
    return recipe || !p->options.draft ? recipe : sk_ckpt_recipe_at(p->options.draft, from, at);
}

/* Bytes of a weight at `from`, which are made at `to` when there is a recipe for them. */
static sk_code write_piece(sk_device *d, const sk_program *p, const uint8_t *from, uint64_t bytes,
                           uint8_t *to, sk_status *st)
{
    uint64_t block = 0;
    const sk_synth *recipe = find_recipe(p, from, &block);
    if (!recipe) return sk_dev_write(d->dev, to, from, bytes, st);
    return sk_dev_check(
        sk_k_synth(recipe, block, bytes / (uint64_t)recipe->block_bytes, to, sk_dev_stream(d->dev)),
        "making a weight", -1, st);
}

/* Rows [row, row + n) of a weight, counted through all of its matrices, in file order. */
static sk_code write_rows(sk_device *d, const sk_program *p, const sk_buf *b, int64_t row,
                          int64_t n, uint64_t row_bytes, uint8_t *to, sk_status *st)
{
    while (n > 0) {
        int64_t here = n;
        const uint8_t *from = sk_buf_rows(b, row, &here);
        SK_TRY(write_piece(d, p, from, (uint64_t)here * row_bytes, to, st));
        to += (uint64_t)here * row_bytes;
        row += here;
        n -= here;
    }
    return SK_OK;
}

/* Packs the matrix that begins at row `first`, whole tiles at a time, which are staged at `raw`. */
static sk_code upload_matrix(sk_device *d, const sk_program *p, const sk_buf *b, int64_t first,
                             uint8_t *to, uint8_t *raw, uint64_t raw_bytes, sk_status *st)
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
        SK_TRY(write_rows(d, p, b, first + row, n, row_bytes, raw, st));
        SK_TRY(sk_dev_check(sk_k_pack(b->dtype, raw, to, row, n, rows, k, sk_dev_stream(d->dev)),
                            "packing a weight", -1, st));
    }
    return SK_OK;
}

/* The matrices of a weight, one after the other, wherever they lie in the file. */
static sk_code upload_packed(sk_device *d, const sk_program *p, const sk_buf *b, uint8_t *to,
                             uint8_t *raw, uint64_t raw_bytes, sk_status *st)
{
    const int64_t matrices = b->rank == 3 ? b->dim[0] : 1;
    const uint64_t to_step = sk_cuda_packed_bytes(b->dtype, b->rank, b->dim) / (uint64_t)matrices;
    for (int64_t i = 0; i < matrices; i++)
        SK_TRY(upload_matrix(d, p, b, i * b->dim[b->rank - 2], to + (uint64_t)i * to_step, raw,
                             raw_bytes, st));
    return SK_OK;
}

/* As it is in the file; pieces one behind the other. */
static sk_code upload_plain(sk_device *d, const sk_program *p, const sk_buf *b, uint8_t *to,
                            sk_status *st)
{
    const int64_t rows = b->rank == 1 ? 1 : b->dim[0] * (b->rank == 3 ? b->dim[1] : 1);
    return write_rows(d, p, b, 0, rows, b->bytes / (uint64_t)rows, to, st);
}

/* Into pinned host memory, which the device sees at `to`. What is made is made at `raw` and copied
 * whole: a kernel's stores over the bus would go a few bytes at a time. */
static sk_code upload_far(sk_device *d, const sk_program *p, const sk_buf *b, uint8_t *to,
                          uint8_t *raw, uint64_t raw_bytes, sk_status *st)
{
    const int64_t rows = b->dim[0];
    const uint64_t row_bytes = b->bytes / (uint64_t)rows;
    const int64_t part = (int64_t)(raw_bytes / row_bytes);
    uint8_t *host = (uint8_t *)d->table + (to - d->table_seen);
    uint64_t block, at;
    const bool made = find_recipe(p, b->source, &block) != NULL;
    for (int64_t row = 0, n; row < rows; row += n) {
        n = rows - row < part ? rows - row : part;
        at = (uint64_t)row * row_bytes;
        if (!made) {
            const uint8_t *from = sk_buf_rows(b, row, &n);
            memcpy(host + at, from, (size_t)((uint64_t)n * row_bytes));
            continue;
        }
        SK_TRY(write_rows(d, p, b, row, n, row_bytes, raw, st));
        SK_TRY(sk_dev_copy(d->dev, to + at, raw, (uint64_t)n * row_bytes, st));
    }
    return SK_OK;
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
        sk_area area;
        if (b->role != SK_ROLE_WEIGHT) continue;
        if (progress->tell && !progress->tell(progress->ctx, done, total))
            return SK_FAIL(st, SK_STATE, "weights: loading was ended after %llu of %llu bytes",
                           (unsigned long long)done, (unsigned long long)total);
        done += b->bytes;
        if (sk_sizes_area(p, i, &area) && area == SK_AREA_TABLES)
            SK_TRY(upload_far(d, p, b, addr[i], raw, d->sizes.staging, st));
        else if (sk_sizes_packs(b))
            SK_TRY(upload_packed(d, p, b, addr[i], raw, d->sizes.staging, st));
        else
            SK_TRY(upload_plain(d, p, b, addr[i], st));
    }
    return sk_dev_sync(d->dev, st);
}

static sk_code upload_weights(sk_device *d, const sk_program *p, uint8_t *const *addr,
                              sk_status *st)
{
    uint8_t *raw = NULL;
    sk_code rc;
    SK_TRY(sk_dev_alloc(d->dev, d->sizes.staging, "staging of weights", &raw, st));
    rc = upload(d, p, addr, raw, st);
    sk_dev_free(d->dev, raw);
    return rc;
}

/* ---- memory -------------------------------------------------------------------------------------
 */

void sk_device_clear_rings(const sk_device *d)
{
    memset(d->pinned, 0, d->sizes.rings);
    for (int32_t i = 0; i < d->rings.n; i++) { // no round has these numbers
        sk_done *done = d->done + i;
        d->rings.ctl[i].seq = d->rings.ctl[i].seq_end = -1;
        done->seq = done->seq_end = -1;
    }
}

static sk_code pin_rings(sk_device *d, const sk_program *p, uint8_t **addr, sk_status *st)
{
    uint8_t *seen = NULL;
    SK_TRY(
        sk_dev_pin(d->dev, d->sizes.rings, "control and completion rings", &d->pinned, &seen, st));
    SK_TRY(sk_sizes_lay_out(p, SK_AREA_RINGS, seen, addr, &d->sizes.rings, st));
    d->rings.ctl = (sk_ctl_entry *)(void *)((uint8_t *)d->pinned + (addr[p->rb.ring] - seen));
    d->done = (sk_done *)(void *)((uint8_t *)d->pinned + (addr[p->rb.done] - seen));
    d->rings.done = d->done;
    d->rings.n = p->rb.n_ring;
    sk_device_clear_rings(d);
    return SK_OK;
}

static sk_code pin_tables(sk_device *d, const sk_program *p, uint8_t **addr, sk_status *st)
{
    if (!d->sizes.tables) return SK_OK;
    SK_TRY(sk_dev_pin(d->dev, d->sizes.tables, "a table in host memory", &d->table, &d->table_seen,
                      st));
    return sk_sizes_lay_out(p, SK_AREA_TABLES, d->table_seen, addr, &d->sizes.tables, st);
}

static sk_code take_memory(sk_device *d, const sk_program *p, uint8_t **addr, sk_status *st)
{
    sk_layout l = {0};
    uint64_t at;
    SK_TRY(sk_dev_alloc(d->dev, d->sizes.weights, "weights", &d->weights, st));
    SK_TRY(sk_dev_alloc(d->dev, d->sizes.state, "request state", &d->state, st));
    SK_TRY(sk_dev_alloc(d->dev, d->sizes.scratch, "transients and scratch", &d->scratch, st));
    // Products also read rows that mean nothing.
    SK_TRY(sk_dev_fill(d->dev, d->scratch, 0, d->sizes.scratch, st));
    SK_TRY(sk_sizes_lay_out(p, SK_AREA_WEIGHTS, d->weights, addr, &d->sizes.weights, st));
    SK_TRY(sk_sizes_lay_out(p, SK_AREA_STATE, d->state, addr, &d->sizes.state, st));
    SK_TRY(pin_tables(d, p, addr, st));
    d->transients = d->scratch + sk_layout_add(&l, d->sizes.transients);
    d->walk.work = d->scratch + sk_layout_add(&l, d->sizes.work);
    d->walk.work_bytes = d->sizes.work;
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
    d->walk.fused = o->fused;
    d->walk.direct = o->mode == SK_MODE_DIRECT;
    d->walk.poison = o->poison;
    return SK_OK;
}

static sk_code open_in(sk_device *d, const sk_program *p, uint8_t **addr, sk_status *st)
{
    SK_TRY(sk_dev_open(&d->dev, p->options.device, st));
    SK_TRY(check_plans(p, st));
    d->n_tiers = sk_device_tiers(p->options.ctx, d->tier);
    SK_TRY(check_capacity(d, st));
    SK_TRY(prepare_walk(d, &p->options, st));
    SK_TRY(take_memory(d, p, addr, st));
    return upload_weights(d, p, addr, st);
}

sk_code sk_device_open(sk_device *out, const sk_program *p, const sk_sizes *sizes, uint8_t **addr,
                       sk_status *st)
{
    sk_code rc;
    memset(out, 0, sizeof *out);
    out->sizes = *sizes;
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
    sk_dev_unpin(d->dev, d->table);
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
