/* See session.h: memory, requests, prefill on the chunk grid, rounds. */
#include "engine/session.h"

#include "engine/session_impl.h"

#include "base/layout.h"
#include "base/mem.h"

#include <string.h>

/* ---- opening ------------------------------------------------------------------------------- */

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

static sk_code take_memory(sk_session *s, sk_status *st)
{
    const sk_program *p = &s->prog;
    const int32_t threads = p->options.threads;
    const sk_plan *prefill = &p->prefill.plan;
    uint64_t transients = larger(p->round.transient_bytes, prefill->transient_bytes);
    uint64_t work =
        larger(sk_exec_work_bytes(&p->round, threads), sk_exec_work_bytes(prefill, threads));
    uint64_t state, control, rest;
    SK_TRY(block_bytes(s, false, &state, st));
    SK_TRY(block_bytes(s, true, &control, st));
    if (!sk_add_u64(control, transients, &rest) || !sk_add_u64(rest, work, &rest))
        rest = UINT64_MAX;
    SK_TRY(check_capacity(state, rest, st));
    s->n_addr = p->space.n;
    SK_TRY(sk_mem_new((void **)&s->addr, s->n_addr, sizeof *s->addr, "buffer addresses", st));
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

static sk_code open_in(sk_session *s, const sk_options *options, sk_status *st)
{
    SK_TRY(sk_program_open(&s->prog, s->ck, options, st));
    SK_TRY(fill_table(s, st));
    SK_TRY(take_memory(s, st));
    SK_TRY(sk_pool_make(&s->pool, options->threads, st));
    SK_TRY(sk_bound_make(&s->round, &s->prog.round, s->addr, s->transients.p, st));
    SK_TRY(sk_bound_make(&s->prefill, &s->prog.prefill.plan, s->addr, s->transients.p, st));
    s->exec = (sk_exec){
        .table = s->table, .cpu = {s->pool, s->work.p, s->work.bytes}, .poison = options->poison};
    if (s->prog.rb.planted >= 0) // nothing is planted yet
        memset(s->addr[s->prog.rb.planted], 0xff, s->prog.space.bufs[s->prog.rb.planted].bytes);
    return SK_OK;
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
    sk_bound_drop(&s->round);
    sk_bound_drop(&s->prefill);
    sk_pool_drop(s->pool);
    sk_block_fini(&s->work);
    sk_block_fini(&s->transients);
    sk_block_fini(&s->control);
    sk_block_fini(&s->state);
    sk_mem_free(s->addr);
    sk_program_close(&s->prog);
    sk_mem_free(s);
}

const sk_program *sk_session_program(const sk_session *s) { return &s->prog; }

bool sk_session_memory(const sk_session *s, size_t at, sk_mem_item *out)
{
    const sk_space *sp = &s->prog.space;
    uint64_t weights = 0, computed = 0, state = 0, book = 0, pending = 0;
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
    const sk_mem_item items[] = {
        {"weights mapped from the file", weights - computed},
        {"weights computed at load", computed},
        {"state: caches and token windows", state},
        {"state: slots and counters", book},
        {"pending rows", pending},
        {"control and completion rings", s->control.bytes},
        {"transients", s->transients.bytes},
        {"work of the CPU backend", s->work.bytes},
        {"bound plans", s->prog.round.args_bytes + s->prog.prefill.plan.args_bytes},
    };
    if (at >= SK_COUNT(items)) return false;
    *out = items[at];
    return true;
}

/* ---- checks -------------------------------------------------------------------------------- */

sk_code sk_session_check_slot(const sk_session *s, int32_t slot, bool need_idle, sk_status *st)
{
    if (slot < 0 || slot >= s->prog.options.slots)
        return SK_FAIL(st, SK_INVALID, "slot: expected 0 .. %d, found %d",
                       (int)s->prog.options.slots - 1, (int)slot);
    if (s->scoring)
        return SK_FAIL(st, SK_STATE, "slot %d: expected no open scoring, found one", (int)slot);
    if (need_idle && s->host[slot].phase != SK_PHASE_IDLE)
        return SK_FAIL(st, SK_STATE, "slot %d: expected idle, found a request in it", (int)slot);
    return SK_OK;
}

sk_code sk_session_check_ids(const sk_session *s, const int32_t *ids, int64_t n, sk_status *st)
{
    const int32_t vocab = sk_model_config(s->prog.model)->vocab;
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return SK_FAIL(st, SK_INVALID, "token %lld: expected an id in 0 .. %d, found %d",
                           (long long)i, (int)vocab - 1, (int)ids[i]);
    return SK_OK;
}

static sk_code check_request(const sk_request *r, sk_status *st)
{
    if (r->max_tokens < 1)
        return SK_FAIL(st, SK_INVALID, "max_tokens: expected at least 1, found %d",
                       (int)r->max_tokens);
    if (r->n_stop < 0 || r->n_stop > SK_STOP_MAX)
        return SK_FAIL(st, SK_INVALID, "stop ids: expected at most %d, found %d", SK_STOP_MAX,
                       (int)r->n_stop);
    return SK_OK;
}

/* ---- requests ------------------------------------------------------------------------------ */

/* Recurrent state and windows start from zero. Caches need no clearing, nothing reads past n, but
 * for the rows that even an empty state keeps (the token window's anchor). */
static void clear_slot(sk_session *s, int32_t slot)
{
    const sk_space *sp = &s->prog.space;
    for (size_t i = 0; i < sp->n; i++) {
        const sk_buf *b = &sp->bufs[i];
        uint64_t n_bytes;
        uint8_t *p;
        if (b->role != SK_ROLE_STATE && b->role != SK_ROLE_PENDING) continue;
        p = sk_slot_bytes(s, (int32_t)i, slot, &n_bytes);
        if (b->role == SK_ROLE_STATE && b->keep == SK_KEEP_ROWS)
            n_bytes = n_bytes / (uint64_t)b->dim[1] * (uint64_t)b->keep_extra;
        memset(p, 0, n_bytes);
    }
}

sk_code sk_session_reset(sk_session *s, int32_t slot, sk_status *st)
{
    SK_TRY(sk_session_check_slot(s, slot, false, st));
    clear_slot(s, slot);
    memset(&s->host[slot], 0, sizeof s->host[slot]);
    return SK_OK;
}

sk_code sk_session_start(sk_session *s, int32_t slot, const int32_t *ids, int64_t n,
                         const sk_request *request, bool keep, sk_status *st)
{
    const int32_t ctx = s->prog.options.ctx;
    sk_slot *sl;
    int64_t at = 0, room = ctx;
    SK_TRY(sk_session_check_slot(s, slot, true, st));
    SK_TRY(check_request(request, st));
    sl = sk_slot_at(s, slot);
    keep = keep && s->host[slot].holds;
    if (keep) {
        at = (int64_t)sl->n + 1; // after the anchor
        room = ctx - at;
    }
    if (n < (keep ? 0 : 1) || n > room)
        return SK_FAIL(st, SK_INVALID,
                       "prompt: expected %d .. %lld tokens in a context of %d, found "
                       "%lld",
                       keep ? 0 : 1, (long long)room, (int)ctx, (long long)n);
    SK_TRY(sk_session_check_ids(s, ids, n, st));
    if (keep) {
        const sk_slot kept = {.n = sl->n, .anchor = sl->anchor};
        *sl = kept;
        memset(sk_pending_at(s, slot), 0, sizeof(sk_pending));
        memset((sk_counters *)(void *)s->addr[s->prog.rb.counters] + slot, 0, sizeof(sk_counters));
    } else {
        clear_slot(s, slot);
    }
    if (n) memcpy(sk_tokens_at(s, slot) + at, ids, (size_t)n * sizeof *ids);
    ((sk_request *)(void *)s->addr[s->prog.rb.requests])[slot] = *request;
    s->host[slot].phase = SK_PHASE_PREFILL;
    s->host[slot].holds = false; // until the prefill is through
    s->host[slot].next = sl->n;
    s->host[slot].end = (int32_t)(at + n - 1);
    return SK_OK;
}

/* One chunk: positions [next, border), border = the next multiple of the chunk, or the end. */
static void run_chunk(sk_session *s, int32_t slot)
{
    const sk_pass *pass = &s->prog.prefill;
    sk_slot_host *h = &s->host[slot];
    const int32_t chunk = pass->n_rows;
    const int32_t border = sk_min_i32((h->next / chunk + 1) * chunk, h->end);
    sk_row *rows = (sk_row *)(void *)s->addr[pass->rows];
    int32_t *ids = (int32_t *)(void *)s->addr[pass->ids];
    const int32_t n = border - h->next;
    for (int32_t i = 0; i < chunk; i++) {
        rows[i] = i < n ? (sk_row){slot, h->next + i, i} : (sk_row){-1, 0, 0};
        ids[i] = i < n ? sk_tokens_at(s, slot)[h->next + i] : 0;
    }
    *(int32_t *)(void *)s->addr[pass->count] = n;
    sk_exec_run(&s->exec, &s->prefill, SK_STAGE_CONTROL, SK_STAGE_PUBLISH);
    h->next = border;
}

sk_code sk_session_prefill(sk_session *s, int32_t slot, int32_t max_chunks, int64_t *left,
                           sk_status *st)
{
    sk_slot_host *h;
    sk_slot *sl;
    SK_TRY(sk_session_check_slot(s, slot, false, st));
    h = &s->host[slot];
    if (h->phase != SK_PHASE_PREFILL)
        return SK_FAIL(st, SK_STATE, "slot %d: expected a request in prefill, found none",
                       (int)slot);
    for (int32_t i = 0; i < max_chunks && h->next < h->end; i++) run_chunk(s, slot);
    *left = h->end - h->next;
    if (*left) return SK_OK;
    sl = sk_slot_at(s, slot);
    sl->n = h->end;
    sl->anchor = sk_tokens_at(s, slot)[h->end];
    sl->active = 1;
    h->phase = SK_PHASE_RUN;
    h->holds = true;
    return SK_OK;
}

/* ---- rounds -------------------------------------------------------------------------------- */

sk_code sk_session_round(sk_session *s, const sk_ctl_slot *licence, const sk_done **out,
                         sk_status *st)
{
    const sk_round_bufs *rb = &s->prog.rb;
    const int64_t k = s->round_at;
    sk_ctl_entry *e = (sk_ctl_entry *)(void *)s->addr[rb->ring] + k % rb->n_ring;
    const sk_done *done = (const sk_done *)(const void *)s->addr[rb->done] + k % rb->n_ring;
    if (s->scoring) return SK_FAIL(st, SK_STATE, "round: expected no open scoring, found one");
    for (int32_t i = 0; i < SK_SLOTS_MAX; i++) {
        e->slot[i] = (sk_ctl_slot){SK_LICENCE_ALL, 0};
        if (licence && i < rb->n_slots) e->slot[i] = licence[i];
        if (e->slot[i].licence < SK_LICENCE_WAIT || e->slot[i].licence > SK_WIDTH_MAX)
            return SK_FAIL(st, SK_INVALID, "licence of slot %d: expected -2 .. %d, found %d",
                           (int)i, SK_WIDTH_MAX, (int)e->slot[i].licence);
    }
    e->seq = k;
    e->seq_end = k;
    sk_exec_run(&s->exec, &s->round, SK_STAGE_CONTROL, SK_STAGE_PUBLISH);
    if (done->seq != k || done->seq_end != k || done->flags)
        return SK_FAIL(
            st, SK_STATE, "round %lld: expected its completion record, found %lld/%lld, flags %d",
            (long long)k, (long long)done->seq, (long long)done->seq_end, (int)done->flags);
    s->round_at = k + 1;
    *out = done;
    return SK_OK;
}

const float *sk_session_logits(const sk_session *s)
{
    return (const float *)(const void *)sk_bound_find(&s->round, s->prog.logits);
}

sk_code sk_session_settle(sk_session *s, int32_t slot, int32_t licence, sk_status *st)
{
    sk_ctl_entry *ctl = (sk_ctl_entry *)(void *)s->addr[s->prog.rb.ctl];
    SK_TRY(sk_session_check_slot(s, slot, false, st));
    if (licence < SK_LICENCE_ALL || licence > SK_WIDTH_MAX)
        return SK_FAIL(st, SK_INVALID, "licence: expected -1 .. %d, found %d", SK_WIDTH_MAX,
                       (int)licence);
    for (int32_t i = 0; i < SK_SLOTS_MAX; i++) ctl->slot[i] = (sk_ctl_slot){SK_LICENCE_WAIT, 0};
    ctl->slot[slot] = (sk_ctl_slot){licence, 0};
    ctl->valid = 1;
    sk_exec_run(&s->exec, &s->round, SK_STAGE_COMMIT, SK_STAGE_COMMIT);
    return SK_OK;
}

sk_code sk_session_finish(sk_session *s, int32_t slot, int32_t licence, sk_status *st)
{
    SK_TRY(sk_session_settle(s, slot, licence, st));
    sk_slot_at(s, slot)->active = 0;
    s->host[slot].phase = SK_PHASE_IDLE;
    return SK_OK;
}

sk_code sk_session_slot(const sk_session *s, int32_t slot, sk_slot *out, sk_status *st)
{
    SK_TRY(sk_session_check_slot(s, slot, false, st));
    *out = *sk_slot_at(s, slot);
    return SK_OK;
}

sk_code sk_session_counters(const sk_session *s, int32_t slot, sk_counters *out, sk_status *st)
{
    SK_TRY(sk_session_check_slot(s, slot, false, st));
    *out = ((const sk_counters *)(const void *)s->addr[s->prog.rb.counters])[slot];
    return SK_OK;
}

/* ---- drafting ------------------------------------------------------------------------------ */

sk_code sk_session_plant(sk_session *s, int32_t slot, const int32_t *table, int64_t n,
                         const int32_t *accept, int32_t m, sk_status *st)
{
    const sk_round_bufs *rb = &s->prog.rb;
    const int32_t ctx = s->prog.options.ctx;
    int32_t *row, *cycle;
    SK_TRY(sk_session_check_slot(s, slot, false, st));
    if (rb->planted < 0) return SK_FAIL(st, SK_STATE, "drafter: expected planted, found another");
    if (n < 0 || n > (int64_t)ctx + 1)
        return SK_FAIL(st, SK_INVALID, "planted table: expected at most %d tokens, found %lld",
                       (int)ctx + 1, (long long)n);
    if (m < 1 || m > SK_PLANTED_CYCLE || SK_PLANTED_CYCLE % m)
        return SK_FAIL(st, SK_INVALID,
                       "planted acceptance: expected a length that divides %d, found %d",
                       SK_PLANTED_CYCLE, (int)m);
    for (int32_t i = 0; i < m; i++)
        if (accept[i] < 0)
            return SK_FAIL(st, SK_INVALID, "planted acceptance %d: expected at least 0, found %d",
                           (int)i, (int)accept[i]);
    for (int64_t i = 0; i < n; i++)
        if (table[i] >= 0) SK_TRY(sk_session_check_ids(s, table + i, 1, st));
    row = (int32_t *)(void *)s->addr[rb->planted] + (int64_t)slot * (ctx + 1);
    memset(row, 0xff, ((size_t)ctx + 1) * sizeof *row);
    if (n) memcpy(row, table, (size_t)n * sizeof *row);
    cycle = (int32_t *)(void *)s->addr[rb->accept];
    for (int32_t i = 0; i < SK_PLANTED_CYCLE; i++) cycle[i] = accept[i % m];
    return SK_OK;
}

sk_code sk_session_draft(sk_session *s, int32_t slot, const int32_t *ids, int64_t n_ids,
                         int32_t *out, int32_t *n, sk_status *st)
{
    const sk_request request = {.max_tokens = 1};
    const int32_t k = sk_max_i32(1, s->prog.options.drafter.k);
    const int32_t *drafts, *count;
    sk_slot *sl;
    SK_TRY(sk_session_start(s, slot, ids, n_ids, &request, false, st));
    // None of the present drafters looks at hidden states, so the token window is all it takes.
    sl = sk_slot_at(s, slot);
    sl->n = s->host[slot].end;
    sl->anchor = sk_tokens_at(s, slot)[sl->n];
    sl->active = 1;
    sk_exec_run(&s->exec, &s->round, SK_STAGE_DRAFT, SK_STAGE_DRAFT);
    drafts = (const int32_t *)(const void *)sk_bound_find(&s->round, s->prog.drafts);
    count = (const int32_t *)(const void *)sk_bound_find(&s->round, s->prog.n_draft);
    *n = sk_min_i32(*n, count[slot]);
    memcpy(out, drafts + (int64_t)slot * k, (size_t)*n * sizeof *out);
    return sk_session_reset(s, slot, st);
}
