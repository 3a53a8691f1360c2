/* See sizes.h. */
#include "engine/sizes.h"

#include "base/layout.h"
#include "graph/walk.h"
#include "plan/exec.h"

#define STAGE_BYTES (64u << 20) // for weights on their way to their places

static bool on_device(const sk_program *p) { return p->options.device >= 0; }

/* ---- buffers ----------------------------------------------------------------------------------
 */

bool sk_sizes_area(const sk_program *p, size_t buf, sk_area *out)
{
    const bool ring = (int32_t)buf == p->rb.ring || (int32_t)buf == p->rb.done;
    const sk_buf *b = &p->space.bufs[buf];
    switch (b->role) {
    case SK_ROLE_WEIGHT:
        *out = b->sparse && p->options.table_in_ram ? SK_AREA_TABLES : SK_AREA_WEIGHTS;
        return on_device(p);
    case SK_ROLE_STATE:
    case SK_ROLE_PENDING:
        *out = SK_AREA_STATE;
        return true;
    case SK_ROLE_CONTROL:
        *out = !on_device(p) ? SK_AREA_CONTROL : ring ? SK_AREA_RINGS : SK_AREA_STATE;
        return true;
    default:
        return false;
    }
}

bool sk_sizes_packs(const sk_buf *b) { return !b->as_is && sk_cuda_is_packed(b->rank); }

uint64_t sk_sizes_bytes(const sk_program *p, size_t buf)
{
    const sk_buf *b = &p->space.bufs[buf];
    if (b->role != SK_ROLE_WEIGHT || !on_device(p) || !sk_sizes_packs(b)) return b->bytes;
    return sk_cuda_packed_bytes(b->dtype, b->rank, b->dim);
}

sk_code sk_sizes_lay_out(const sk_program *p, sk_area area, uint8_t *base, uint8_t **addr,
                         uint64_t *bytes, sk_status *st)
{
    sk_layout l = {0};
    for (size_t i = 0; i < p->space.n; i++) {
        sk_area its;
        uint64_t at;
        if (!sk_sizes_area(p, i, &its) || its != area) continue;
        at = sk_layout_add(&l, sk_sizes_bytes(p, i));
        if (base) addr[i] = base + at;
    }
    if (l.bad)
        return SK_FAIL(st, SK_NOMEM, "%s memory: sizes exceed the address space",
                       on_device(p) ? "device" : "host");
    *bytes = l.used;
    return SK_OK;
}

/* ---- blocks -----------------------------------------------------------------------------------
 */

static void raise(uint64_t *most, uint64_t x) { *most = x > *most ? x : *most; }

static void add_plan(sk_sizes *s, const sk_program *p, const sk_plan *plan)
{
    raise(&s->transients, plan->transient_bytes);
    raise(&s->work, on_device(p) ? sk_walk_work_bytes(plan, p->options.ctx)
                                 : sk_exec_work_bytes(plan, p->options.threads));
}

sk_code sk_sizes_init(sk_sizes *out, const sk_program *p, sk_status *st)
{
    sk_sizes s = {0};
    sk_layout l = {0};
    SK_TRY(sk_sizes_lay_out(p, SK_AREA_WEIGHTS, NULL, NULL, &s.weights, st));
    SK_TRY(sk_sizes_lay_out(p, SK_AREA_STATE, NULL, NULL, &s.state, st));
    SK_TRY(sk_sizes_lay_out(p, SK_AREA_CONTROL, NULL, NULL, &s.control, st));
    SK_TRY(sk_sizes_lay_out(p, SK_AREA_RINGS, NULL, NULL, &s.rings, st));
    SK_TRY(sk_sizes_lay_out(p, SK_AREA_TABLES, NULL, NULL, &s.tables, st));
    for (int32_t i = 0; i < p->n_rounds; i++) add_plan(&s, p, &p->rounds[i].plan);
    add_plan(&s, p, &p->prefill.plan);
    if (on_device(p)) {
        (void)sk_layout_add(&l, s.transients);
        (void)sk_layout_add(&l, s.work);
        (void)sk_layout_add(&l, SK_SYNC_WORDS * sizeof(uint32_t));
        s.scratch = l.used;
        s.staging = STAGE_BYTES;
    }
    if (l.bad) return SK_FAIL(st, SK_NOMEM, "device memory: sizes exceed the address space");
    *out = s;
    return SK_OK;
}

/* ---- the report -------------------------------------------------------------------------------
 */

/* Bytes of the buffers, by who needs them; the rest of a block is alignment. */
typedef struct shares {
    uint64_t file, computed, state, book, pending, bound;
} shares;

static shares shares_of(const sk_program *p)
{
    shares s = {.bound = p->prefill.plan.args_bytes};
    for (size_t i = 0; i < p->space.n; i++) {
        const sk_buf *b = &p->space.bufs[i];
        if (b->role == SK_ROLE_WEIGHT) *(b->computed ? &s.computed : &s.file) += b->bytes;
        if (b->role == SK_ROLE_PENDING) s.pending += b->bytes;
        if (b->role == SK_ROLE_STATE) *(b->keep == SK_KEEP_NONE ? &s.book : &s.state) += b->bytes;
    }
    for (int32_t i = 0; i < p->n_rounds; i++) s.bound += p->rounds[i].plan.args_bytes;
    return s;
}

static bool pick(const sk_mem_item *items, size_t n, size_t at, sk_mem_item *out)
{
    if (at >= n) return false;
    *out = items[at];
    return true;
}

static bool device_item(const sk_sizes *s, const shares *of, size_t at, sk_mem_item *out)
{
    const sk_mem_item items[] = {
        {"device: weights, packed", s->weights},
        {"device: state, caches and token windows", of->state},
        {"device: state, slots and counters", of->book},
        {"device: pending rows", of->pending},
        {"device: row tables and control", s->state - of->state - of->book - of->pending},
        {"device: transients", s->transients},
        {"device: work of the kernels", s->scratch - s->transients},
        {"pinned: control and completion rings", s->rings},
        {"pinned: hashed embedding", s->tables},
        {"weights computed at load", of->computed},
        {"bound plans", of->bound},
    };
    return pick(items, SK_COUNT(items), at, out);
}

bool sk_sizes_item(const sk_sizes *s, const sk_program *p, size_t at, sk_mem_item *out)
{
    const shares of = shares_of(p);
    const sk_mem_item items[] = {
        {"weights mapped from the file", of.file},
        {"weights computed at load", of.computed},
        {"state: caches and token windows", of.state},
        {"state: slots and counters", of.book},
        {"pending rows", s->state - of.state - of.book},
        {"control and completion rings", s->control},
        {"transients", s->transients},
        {"work of the CPU backend", s->work},
        {"bound plans", of.bound},
    };
    if (on_device(p)) return device_item(s, &of, at, out);
    return pick(items, SK_COUNT(items), at, out);
}
