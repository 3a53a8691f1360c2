/* Opening and closing a session: its memory and its bindings, on the CPU or on a device. */
#include "engine/diff.h"
#include "engine/session_impl.h"

#include "base/mem.h"

#include <string.h>

/* ---- host memory ---------------------------------------------------------------------------- */

/* The CPU reads weights where the checkpoint has them mapped and never writes to one; verification
 * has refused any step that would. */
static uint8_t *in_place(const uint8_t *weight)
{
    union {
        const uint8_t *in;
        uint8_t *out;
    } u = {.in = weight};
    return u.out;
}

/* Everything a session will take is known before it takes anything. */
static sk_code check_capacity(uint64_t state, uint64_t rest, sk_status *st)
{
    uint64_t want = state, there = sk_mem_available();
    if (sk_add_u64(state, rest, &want) && want <= there) return SK_OK;
    return SK_FAIL(st, SK_NOMEM,
                   "host memory: expected room for %llu bytes (request state %llu, transients and "
                   "scratch %llu), found %llu available",
                   (unsigned long long)want, (unsigned long long)state, (unsigned long long)rest,
                   (unsigned long long)there);
}

static sk_code check_host_sizes(const sk_sizes *z, sk_status *st)
{
    uint64_t rest;
    if (!sk_add_u64(z->control, z->transients, &rest) || !sk_add_u64(rest, z->work, &rest))
        rest = UINT64_MAX;
    return check_capacity(z->state, rest, st);
}

static sk_code take_host_memory(sk_session *s, sk_status *st)
{
    const sk_program *p = &s->prog;
    sk_sizes *z = &s->sizes;
    SK_TRY(check_host_sizes(z, st));
    for (size_t i = 0; i < s->n_addr; i++)
        if (p->space.bufs[i].role == SK_ROLE_WEIGHT) s->addr[i] = in_place(p->space.bufs[i].source);
    SK_TRY(sk_block_init(&s->state, z->state, "request state", st));
    SK_TRY(sk_block_init(&s->control, z->control, "control blocks", st));
    SK_TRY(sk_block_init(&s->transients, z->transients, "transients", st));
    SK_TRY(sk_block_init(&s->work, z->work, "scratch", st));
    SK_TRY(sk_sizes_lay_out(p, SK_AREA_STATE, s->state.p, s->addr, &z->state, st));
    return sk_sizes_lay_out(p, SK_AREA_CONTROL, s->control.p, s->addr, &z->control, st);
}

static sk_code fill_table(sk_session *s, sk_status *st)
{
    const char *name = s->prog.options.kernels[0] ? s->prog.options.kernels : "fast";
    if (sk_cpu_table_find(s->table, name)) return SK_OK;
    return SK_FAIL(st, SK_UNSUPPORTED, "kernels: expected what this processor has, found %s", name);
}

static sk_code open_on_cpu(sk_session *s, sk_status *st)
{
    const sk_options *o = &s->prog.options;
    SK_TRY(fill_table(s, st));
    SK_TRY(take_host_memory(s, st));
    SK_TRY(sk_pool_make(&s->pool, o->threads, st));
    s->exec = (sk_exec){
        .table = s->table, .cpu = {s->pool, s->work.p, s->work.bytes}, .poison = o->poison};
    s->rings.ctl = (sk_ctl_entry *)(void *)s->addr[s->prog.rb.ring];
    s->rings.done = (const sk_done *)(const void *)s->addr[s->prog.rb.done];
    s->rings.n = s->prog.rb.n_ring;
    return SK_OK;
}

static sk_code bind_plans(sk_session *s, uint8_t *transients, sk_status *st)
{
    const sk_program *p = &s->prog;
    for (int32_t i = 0; i < p->n_rounds; i++)
        SK_TRY(sk_bound_make(&s->rounds[i], &p->rounds[i].plan, s->addr, transients, st));
    return sk_bound_make(&s->prefill, &p->prefill.plan, s->addr, transients, st);
}

/* As after opening: nothing in any slot, the next round is number 0. */
static sk_code forget_warming(sk_session *s, sk_status *st)
{
    const sk_device *d = &s->device;
    SK_TRY(sk_dev_fill(d->dev, d->state, 0, d->sizes.state, st));
    SK_TRY(sk_dev_sync(d->dev, st));
    sk_device_clear_rings(d);
    return SK_OK;
}

static sk_code open_on_device(sk_session *s, sk_status *st)
{
    SK_TRY(sk_device_open(&s->device, &s->prog, &s->sizes, s->addr, st));
    s->prog.options.progress = (sk_progress){NULL, NULL}; // was for the loading
    s->place.dev = s->device.dev;
    s->rings = s->device.rings;
    SK_TRY(bind_plans(s, s->device.transients, st));
    SK_TRY(sk_device_warm(&s->device, &s->prog, s->rounds, &s->prefill, st));
    return forget_warming(s, st);
}

static sk_code open_in(sk_session *s, const sk_options *options, sk_status *st)
{
    const int32_t *planted = &s->prog.rb.planted;
    SK_TRY(sk_program_open(&s->prog, s->ck, options, st));
    SK_TRY(sk_sizes_init(&s->sizes, &s->prog, st));
    s->n_addr = s->prog.space.n;
    SK_TRY(sk_mem_new((void **)&s->addr, s->n_addr, sizeof *s->addr, "buffer addresses", st));
    SK_TRY(sk_mem_new((void **)&s->rows, (size_t)s->prog.prefill.n_rows, sizeof *s->rows,
                      "rows of a chunk", st));
    if (options->device >= 0) {
        SK_TRY(open_on_device(s, st));
    } else {
        SK_TRY(open_on_cpu(s, st));
        SK_TRY(bind_plans(s, s->transients.p, st));
    }
    if (*planted < 0) return SK_OK;
    return sk_place_fill(&s->place, s->addr[*planted], 0xff, s->prog.space.bufs[*planted].bytes,
                         st); // nothing is planted yet
}

sk_code sk_session_open(sk_session **out, const sk_ckpt *ck, const sk_options *options,
                        sk_status *st)
{
    sk_session *s = NULL;
    sk_code rc;
    SK_TRY(sk_mem_new((void **)&s, 1, sizeof *s, "session", st));
    s->ck = ck;
    rc = open_in(s, options, st);
    if (rc != SK_OK) {
        sk_session_close(s);
        return rc;
    }
    *out = s;
    return SK_OK;
}

void sk_session_close(sk_session *s)
{
    if (!s) return;
    sk_session_score_end(s);
    sk_diff_drop(s->diff);
    for (int32_t i = 0; i < SK_ROUNDS_MAX; i++) sk_bound_drop(&s->rounds[i]);
    sk_bound_drop(&s->prefill);
    sk_device_close(&s->device);
    sk_pool_drop(s->pool);
    sk_block_fini(&s->work);
    sk_block_fini(&s->transients);
    sk_block_fini(&s->control);
    sk_block_fini(&s->state);
    sk_mem_free(s->addr);
    sk_mem_free(s->rows);
    sk_program_close(&s->prog);
    sk_mem_free(s);
}

const sk_program *sk_session_program(const sk_session *s) { return &s->prog; }

bool sk_session_edges(const sk_session *s)
{
    const sk_walk *w = &s->device.walk;
    return w->edges && !w->direct && !w->poison;
}

int32_t sk_session_graphs(const sk_session *s) { return s->device.n_graphs; }

int64_t sk_session_replays(const sk_session *s) { return s->device.n_replays; }

int64_t sk_session_nodes(const sk_session *s)
{
    return s->device.last ? sk_dev_graph_nodes(s->device.last) : 0;
}

bool sk_session_memory(const sk_session *s, size_t at, sk_mem_item *out)
{
    return sk_sizes_item(&s->sizes, &s->prog, at, out);
}
