/* Opening and closing a session: its memory and its bindings, on the CPU or on a device. */
#include "engine/diff.h"
#include "engine/session_impl.h"

#include "base/layout.h"
#include "base/mem.h"

#include <string.h>

/* ---- host memory ---------------------------------------------------------------------------- */

static bool in_block(const sk_buf *b, bool control)
{
    if (control) return b->role == SK_ROLE_CONTROL;
    return b->role == SK_ROLE_STATE || b->role == SK_ROLE_PENDING;
}

/* Bytes of the state or control block, by the walk that hands out its addresses. */
static sk_code block_bytes(const sk_session *s, bool control, uint64_t *out, sk_status *st)
{
    const sk_space *sp = &s->prog.space;
    sk_layout dry = {0};
    for (size_t i = 0; i < sp->n; i++)
        if (in_block(&sp->bufs[i], control)) (void)sk_layout_add(&dry, sp->bufs[i].bytes);
    if (dry.bad)
        return SK_FAIL(st, SK_NOMEM, "host memory: session state exceeds the address space");
    *out = dry.used;
    return SK_OK;
}

static void hand_out(sk_session *s, bool control, const sk_block *block)
{
    const sk_space *sp = &s->prog.space;
    sk_layout wet = {0};
    for (size_t i = 0; i < sp->n; i++)
        if (in_block(&sp->bufs[i], control))
            s->addr[i] = (uint8_t *)block->p + sk_layout_add(&wet, sp->bufs[i].bytes);
}

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

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

static sk_code host_sizes(sk_session *s, uint64_t *state, uint64_t *control, uint64_t *transients,
                          uint64_t *work, sk_status *st)
{
    const sk_program *p = &s->prog;
    const int32_t threads = p->options.threads;
    uint64_t rest;
    SK_TRY(block_bytes(s, false, state, st));
    SK_TRY(block_bytes(s, true, control, st));
    *transients = p->prefill.plan.transient_bytes;
    *work = sk_exec_work_bytes(&p->prefill.plan, threads);
    for (int32_t i = 0; i < p->n_rounds; i++) {
        *transients = larger(*transients, p->rounds[i].plan.transient_bytes);
        *work = larger(*work, sk_exec_work_bytes(&p->rounds[i].plan, threads));
    }
    if (!sk_add_u64(*control, *transients, &rest) || !sk_add_u64(rest, *work, &rest))
        rest = UINT64_MAX;
    return check_capacity(*state, rest, st);
}

static sk_code take_host_memory(sk_session *s, sk_status *st)
{
    const sk_program *p = &s->prog;
    uint64_t state, control, transients, work;
    SK_TRY(host_sizes(s, &state, &control, &transients, &work, st));
    for (size_t i = 0; i < s->n_addr; i++)
        if (p->space.bufs[i].role == SK_ROLE_WEIGHT) s->addr[i] = in_place(p->space.bufs[i].source);
    SK_TRY(sk_block_init(&s->state, state, "request state", st));
    SK_TRY(sk_block_init(&s->control, control, "control blocks", st));
    SK_TRY(sk_block_init(&s->transients, transients, "transients", st));
    SK_TRY(sk_block_init(&s->work, work, "scratch", st));
    hand_out(s, false, &s->state);
    hand_out(s, true, &s->control);
    return SK_OK;
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
    SK_TRY(sk_dev_fill(d->dev, d->state, 0, d->state_bytes, st));
    SK_TRY(sk_dev_sync(d->dev, st));
    sk_device_clear_rings(d);
    return SK_OK;
}

static sk_code open_on_device(sk_session *s, sk_status *st)
{
    SK_TRY(sk_device_open(&s->device, &s->prog, s->addr, st));
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

static bool device_item(const sk_session *s, size_t at, uint64_t state, uint64_t book,
                        uint64_t pending, uint64_t bound, sk_mem_item *out)
{
    const sk_device *d = &s->device;
    const sk_mem_item items[] = {
        {"device: weights, packed", d->weight_bytes},
        {"device: state, caches and token windows", state},
        {"device: state, slots and counters", book},
        {"device: pending rows", pending},
        {"device: row tables and control", d->state_bytes - state - book - pending},
        {"device: transients", d->transient_bytes},
        {"device: work of the kernels", d->scratch_bytes - d->transient_bytes},
        {"pinned: control and completion rings", d->ring_bytes},
        {"bound plans", bound},
    };
    if (at >= SK_COUNT(items)) return false;
    *out = items[at];
    return true;
}

bool sk_session_memory(const sk_session *s, size_t at, sk_mem_item *out)
{
    const sk_space *sp = &s->prog.space;
    uint64_t weights = 0, computed = 0, state = 0, book = 0, pending = 0;
    uint64_t bound = s->prog.prefill.plan.args_bytes;
    for (size_t i = 0; i < sp->n; i++) {
        const sk_buf *b = &sp->bufs[i];
        if (b->role == SK_ROLE_WEIGHT) weights += b->bytes;
        if (b->role == SK_ROLE_PENDING) pending += b->bytes;
        if (b->role == SK_ROLE_STATE) *(b->keep == SK_KEEP_NONE ? &book : &state) += b->bytes;
    }
    for (size_t i = 0; i < sp->n; i++)
        for (size_t k = 0; k < sp->n_owned; k++)
            if (sp->bufs[i].source && sp->bufs[i].source == sp->owned[k])
                computed += sp->bufs[i].bytes;
    for (int32_t i = 0; i < s->prog.n_rounds; i++) bound += s->prog.rounds[i].plan.args_bytes;
    if (s->place.dev) return device_item(s, at, state, book, pending, bound, out);
    const sk_mem_item items[] = {
        {"weights mapped from the file", weights - computed},
        {"weights computed at load", computed},
        {"state: caches and token windows", state},
        {"state: slots and counters", book},
        {"pending rows", pending},
        {"control and completion rings", s->control.bytes},
        {"transients", s->transients.bytes},
        {"work of the CPU backend", s->work.bytes},
        {"bound plans", bound},
    };
    if (at >= SK_COUNT(items)) return false;
    *out = items[at];
    return true;
}
