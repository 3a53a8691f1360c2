/* See session.h: requests, prefill on the chunk grid, rounds. */
#include "engine/session.h"

#include "engine/diff.h"
#include "engine/session_impl.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

/* ---- checks -------------------------------------------------------------------------------- */

static sk_code check_alive(const sk_session *s, sk_status *st)
{
    if (!s->failed) return SK_OK;
    return SK_FAIL(st, SK_STATE,
                   "session: expected a working device, found one that failed in round "
                   "%lld; open another",
                   (long long)s->failed_at);
}

sk_code sk_session_check_slot(const sk_session *s, int32_t slot, bool need_idle, sk_status *st)
{
    if (slot < 0 || slot >= s->prog.options.slots)
        return SK_FAIL(st, SK_INVALID, "slot: expected 0 .. %d, found %d",
                       (int)s->prog.options.slots - 1, (int)slot);
    SK_TRY(check_alive(s, st));
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

sk_code sk_slot_read(const sk_session *s, int32_t slot, sk_slot *out, sk_status *st)
{
    const uint8_t *at = s->addr[s->prog.rb.slots] + (size_t)slot * sizeof *out;
    return sk_place_read(&s->place, out, at, sizeof *out, st);
}

sk_code sk_slot_write(const sk_session *s, int32_t slot, const sk_slot *sl, sk_status *st)
{
    uint8_t *at = s->addr[s->prog.rb.slots] + (size_t)slot * sizeof *sl;
    return sk_place_write(&s->place, at, sl, sizeof *sl, st);
}

/* Recurrent state and windows start from zero. Caches need no clearing, nothing reads past n, but
 * for the rows that even an empty state keeps (the token window's anchor). */
static sk_code clear_slot(sk_session *s, int32_t slot, sk_status *st)
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
        SK_TRY(sk_place_fill(&s->place, p, 0, n_bytes, st));
    }
    return SK_OK;
}

sk_code sk_session_reset(sk_session *s, int32_t slot, sk_status *st)
{
    SK_TRY(sk_session_check_slot(s, slot, false, st));
    SK_TRY(clear_slot(s, slot, st));
    memset(&s->host[slot], 0, sizeof s->host[slot]);
    s->host[slot].from = s->submitted;
    return SK_OK;
}

/* What a request that continues a slot leaves there: the state, but nothing of the last request. */
static sk_code keep_slot(sk_session *s, int32_t slot, const sk_slot *sl, sk_status *st)
{
    const sk_slot kept = {.n = sl->n, .anchor = sl->anchor};
    uint64_t n_bytes;
    uint8_t *p = sk_slot_bytes(s, s->prog.rb.pending, slot, &n_bytes);
    SK_TRY(sk_slot_write(s, slot, &kept, st));
    SK_TRY(sk_place_fill(&s->place, p, 0, n_bytes, st));
    p = sk_slot_bytes(s, s->prog.rb.counters, slot, &n_bytes);
    return sk_place_fill(&s->place, p, 0, n_bytes, st);
}

sk_code sk_session_start(sk_session *s, int32_t slot, const int32_t *ids, int64_t n,
                         const sk_request *request, bool keep, sk_status *st)
{
    const int32_t ctx = s->prog.options.ctx;
    sk_slot sl = {0};
    int64_t at = 0, room = ctx;
    uint64_t n_bytes;
    SK_TRY(sk_session_check_slot(s, slot, true, st));
    SK_TRY(check_request(request, st));
    keep = keep && s->host[slot].holds;
    if (keep) {
        SK_TRY(sk_slot_read(s, slot, &sl, st));
        at = (int64_t)sl.n + 1; // after the anchor
        room = ctx - at;
    }
    if (n < (keep ? 0 : 1) || n > room)
        return SK_FAIL(st, SK_INVALID,
                       "prompt: expected %d .. %lld tokens in a context of %d, found "
                       "%lld",
                       keep ? 0 : 1, (long long)room, (int)ctx, (long long)n);
    SK_TRY(sk_session_check_ids(s, ids, n, st));
    SK_TRY(keep ? keep_slot(s, slot, &sl, st) : clear_slot(s, slot, st));
    SK_TRY(sk_place_write(&s->place, sk_token_at(s, slot, at), ids, (uint64_t)n * sizeof *ids, st));
    SK_TRY(sk_place_write(&s->place, sk_slot_bytes(s, s->prog.rb.requests, slot, &n_bytes), request,
                          sizeof *request, st));
    s->host[slot].phase = SK_PHASE_PREFILL;
    s->host[slot].holds = false; // until the prefill is through
    s->host[slot].next = sl.n;
    s->host[slot].end = (int32_t)(at + n - 1);
    s->host[slot].from = s->submitted;
    return SK_OK;
}

sk_code sk_session_run(sk_session *s, const sk_bound *b, sk_stage from, sk_stage to, sk_status *st)
{
    if (!s->place.dev) {
        sk_exec_run(&s->exec, b, from, to);
        return SK_OK;
    }
    return sk_walk_run(&s->device.walk, b, from, to, s->prog.options.ctx, st);
}

/* A whole plan on the CPU: round plan `plan`, or the prefill. */
static sk_code run_on_cpu(sk_session *s, int32_t plan, int32_t positions, sk_status *st)
{
    if (s->diff) return sk_diff_run(s->diff, plan, positions, st);
    sk_exec_run(&s->exec, plan == SK_DIFF_PREFILL ? &s->prefill : &s->rounds[plan],
                SK_STAGE_CONTROL, SK_STAGE_PUBLISH);
    return SK_OK;
}

/* Host copies of a pass's rows and ids, where they cannot be written in place. */
static sk_code write_pass(sk_session *s, int32_t slot, int32_t n, sk_status *st)
{
    const sk_pass *pass = &s->prog.prefill;
    const int32_t next = s->host[slot].next;
    for (int32_t i = 0; i < pass->n_rows; i++)
        s->rows[i] = i < n ? (sk_row){slot, next + i, i} : (sk_row){-1, 0, 0};
    SK_TRY(sk_place_write(&s->place, s->addr[pass->rows], s->rows,
                          (uint64_t)pass->n_rows * sizeof *s->rows, st));
    SK_TRY(sk_place_fill(&s->place, s->addr[pass->ids], 0, (uint64_t)pass->n_rows * sizeof(int32_t),
                         st));
    SK_TRY(sk_place_copy(&s->place, s->addr[pass->ids], sk_token_at(s, slot, next),
                         (uint64_t)n * sizeof(int32_t), st));
    return sk_place_write(&s->place, s->addr[pass->count], &n, sizeof n, st);
}

/* One chunk: positions [next, border), border = the next multiple of the chunk, or the end. */
static sk_code run_chunk(sk_session *s, int32_t slot, sk_status *st)
{
    const int32_t chunk = s->prog.prefill.n_rows;
    sk_slot_host *h = &s->host[slot];
    const int32_t border = sk_min_i32((h->next / chunk + 1) * chunk, h->end);
    SK_TRY(write_pass(s, slot, border - h->next, st));
    if (s->place.dev)
        SK_TRY(sk_device_prefill(&s->device, &s->prog, &s->prefill,
                                 sk_device_tier(&s->device, border), st));
    else
        SK_TRY(run_on_cpu(s, SK_DIFF_PREFILL, border, st));
    h->next = border;
    return SK_OK;
}

sk_code sk_session_prefill(sk_session *s, int32_t slot, int32_t max_chunks, int64_t *left,
                           sk_status *st)
{
    sk_slot_host *h;
    SK_TRY(sk_session_check_slot(s, slot, false, st));
    h = &s->host[slot];
    if (h->phase != SK_PHASE_PREFILL)
        return SK_FAIL(st, SK_STATE, "slot %d: expected a request in prefill, found none",
                       (int)slot);
    for (int32_t i = 0; i < max_chunks && h->next < h->end; i++) SK_TRY(run_chunk(s, slot, st));
    *left = h->end - h->next;
    if (*left) return SK_OK;
    SK_TRY(sk_session_activate(s, slot, st));
    h->phase = SK_PHASE_RUN;
    h->holds = true;
    return SK_OK;
}

sk_code sk_session_activate(sk_session *s, int32_t slot, sk_status *st)
{
    sk_slot_host *h = &s->host[slot];
    sk_slot sl;
    SK_TRY(sk_slot_read(s, slot, &sl, st));
    sl.n = h->end;
    sl.active = 1;
    SK_TRY(
        sk_place_read(&s->place, &sl.anchor, sk_token_at(s, slot, h->end), sizeof sl.anchor, st));
    h->reach = h->end;
    h->from = s->submitted;
    return sk_slot_write(s, slot, &sl, st);
}

/* ---- rounds -------------------------------------------------------------------------------- */

static sk_code check_licences(const sk_session *s, const sk_ctl_slot *licence, sk_status *st)
{
    for (int32_t i = 0; licence && i < s->prog.rb.n_slots; i++)
        if (licence[i].licence < SK_LICENCE_WAIT || licence[i].licence > SK_WIDTH_MAX)
            return SK_FAIL(st, SK_INVALID, "licence of slot %d: expected -2 .. %d, found %d",
                           (int)i, SK_WIDTH_MAX, (int)licence[i].licence);
    return SK_OK;
}

void sk_session_reach(const sk_session *s, int32_t *rows, int32_t *positions)
{
    const int32_t width = s->prog.width, ctx = s->prog.options.ctx;
    *rows = 0;
    *positions = 0;
    for (int32_t i = 0; i < s->prog.rb.n_slots; i++) {
        if (s->host[i].phase != SK_PHASE_RUN) continue;
        *rows += width;
        *positions = sk_max_i32(*positions, sk_min_i32(ctx, s->host[i].reach + width));
    }
}

static void reach_further(sk_session *s)
{
    for (int32_t i = 0; i < s->prog.rb.n_slots; i++)
        s->host[i].reach = sk_min_i32(s->prog.options.ctx, s->host[i].reach + s->prog.width);
}

static sk_code submit(sk_session *s, const sk_ctl_slot *licence, bool full, sk_status *st)
{
    const int64_t k = s->submitted;
    sk_ctl_slot all[SK_SLOTS_MAX];
    int32_t rows, positions;
    for (int32_t i = 0; i < SK_SLOTS_MAX; i++) all[i] = (sk_ctl_slot){SK_LICENCE_ALL, 0};
    sk_rings_put(&s->rings, k, licence ? licence : all, s->prog.rb.n_slots);
    sk_session_reach(s, &rows, &positions);
    reach_further(s);
    s->round_plan = sk_program_round_find(&s->prog, rows, full);
    if (s->place.dev)
        SK_TRY(sk_device_round(&s->device, &s->prog, s->round_plan, &s->rounds[s->round_plan],
                               sk_device_tier(&s->device, positions), st));
    else
        SK_TRY(run_on_cpu(s, s->round_plan, positions, st));
    s->submitted = k + 1;
    return SK_OK;
}

sk_code sk_session_submit(sk_session *s, bool full, sk_status *st)
{
    return submit(s, NULL, full, st);
}

/* A device that failed is of no more use: from then on every call says in which round it was. */
static sk_code fault(sk_session *s, int64_t k, sk_code rc)
{
    if (rc == SK_DEVICE) {
        s->failed = true;
        s->failed_at = k;
    }
    return rc;
}

static sk_code wait_record(sk_session *s, int64_t k, const sk_done **out, sk_status *st)
{
    char what[96];
    if (s->place.dev) {
        (void)snprintf(what, sizeof what, "round %lld (%s of %d rows, graphs up to round %lld)",
                       (long long)k, s->prog.rounds[s->round_plan].plan.name,
                       (int)s->prog.rounds[s->round_plan].n_rows, (long long)s->submitted - 1);
        return fault(s, k, sk_rings_wait(&s->rings, s->place.dev, k, what, out, st));
    }
    *out = s->rings.done + k % s->rings.n;
    return SK_OK;
}

/* The record for the caller: slots whose request began after this round was submitted had no part
 * in it, and where a slot is at most is known again. */
static void take_record(sk_session *s, int64_t k, const sk_done *done)
{
    const int32_t ahead = (int32_t)(s->submitted - k - 1);
    s->last.seq = done->seq;
    s->last.flags = done->flags;
    s->last.n_rows = done->n_rows;
    s->last.seq_end = done->seq_end;
    for (int32_t i = 0; i < s->prog.rb.n_slots; i++) {
        sk_slot_host *h = &s->host[i];
        s->last.slot[i] = done->slot[i];
        if (k < h->from) memset(&s->last.slot[i], 0, sizeof s->last.slot[i]);
        if (k >= h->from && done->slot[i].rows)
            h->reach = sk_min_i32(s->prog.options.ctx,
                                  done->slot[i].pos + done->slot[i].n + ahead * s->prog.width);
    }
}

/* Had anyone who is running now a part in round k? */
static bool concerns_someone(const sk_session *s, int64_t k)
{
    for (int32_t i = 0; i < s->prog.rb.n_slots; i++)
        if (s->host[i].phase == SK_PHASE_RUN && s->host[i].from <= k) return true;
    return false;
}

/* Rounds that ran ahead of a request which has ended since are nobody's. */
static sk_code skip_records(sk_session *s, sk_status *st)
{
    const sk_done *done;
    for (; s->round_at < s->submitted && !concerns_someone(s, s->round_at); s->round_at++)
        SK_TRY(wait_record(s, s->round_at, &done, st));
    return SK_OK;
}

sk_code sk_session_round(sk_session *s, const sk_ctl_slot *licence, bool full, int32_t ahead,
                         const sk_done **out, sk_status *st)
{
    const sk_done *done;
    int64_t k;
    SK_TRY(check_alive(s, st));
    if (s->scoring) return SK_FAIL(st, SK_STATE, "round: expected no open scoring, found one");
    if (ahead < 0 || ahead > SK_AHEAD_MAX)
        return SK_FAIL(st, SK_INVALID, "rounds ahead: expected 0 .. %d, found %d", SK_AHEAD_MAX,
                       (int)ahead);
    SK_TRY(skip_records(s, st));
    k = s->round_at;
    if (licence && s->submitted > k)
        return SK_FAIL(st, SK_STATE,
                       "round %lld: expected no licences, as it has been submitted, found some",
                       (long long)k);
    SK_TRY(check_licences(s, licence, st));
    if (s->submitted == k) SK_TRY(submit(s, licence, full, st));
    while (s->submitted < k + 1 + (s->place.dev ? ahead : 0)) SK_TRY(submit(s, NULL, full, st));
    SK_TRY(wait_record(s, k, &done, st));
    if (done->seq != k || done->seq_end != k || done->flags)
        return SK_FAIL(
            st, SK_STATE, "round %lld: expected its completion record, found %lld/%lld, flags %d",
            (long long)k, (long long)done->seq, (long long)done->seq_end, (int)done->flags);
    take_record(s, k, done);
    s->round_at = k + 1;
    *out = &s->last;
    return SK_OK;
}

sk_code sk_session_logits_check(const sk_session *s, int32_t first, int32_t n, sk_status *st)
{
    const sk_round_plan *r = &s->prog.rounds[s->round_plan];
    if (first < 0 || n < 0 || first > r->n_rows - n)
        return SK_FAIL(st, SK_INVALID, "logits: expected rows within 0 .. %d, found %d from %d",
                       (int)r->n_rows, (int)n, (int)first);
    if (!r->full || s->submitted != s->round_at)
        return SK_FAIL(st, SK_STATE,
                       "logits: expected a last round of the full class with none behind it, found "
                       "none");
    return SK_OK;
}

sk_code sk_session_logits(const sk_session *s, int32_t first, int32_t n, float *out, sk_status *st)
{
    const sk_round_plan *r = &s->prog.rounds[s->round_plan];
    const int64_t vocab = sk_model_config(s->prog.model)->vocab;
    SK_TRY(sk_session_logits_check(s, first, n, st));
    return sk_place_read(&s->place, out,
                         sk_bound_find(&s->rounds[s->round_plan], r->logits) +
                             (uint64_t)(first * vocab) * sizeof *out,
                         (uint64_t)(n * vocab) * sizeof *out, st);
}

sk_code sk_session_settle(sk_session *s, int32_t slot, int32_t licence, sk_status *st)
{
    sk_ctl_entry ctl = {.valid = 1};
    SK_TRY(sk_session_check_slot(s, slot, false, st));
    if (licence < SK_LICENCE_ALL || licence > SK_WIDTH_MAX)
        return SK_FAIL(st, SK_INVALID, "licence: expected -1 .. %d, found %d", SK_WIDTH_MAX,
                       (int)licence);
    for (int32_t i = 0; i < SK_SLOTS_MAX; i++) ctl.slot[i] = (sk_ctl_slot){SK_LICENCE_WAIT, 0};
    ctl.slot[slot] = (sk_ctl_slot){licence, 0};
    SK_TRY(sk_place_write(&s->place, s->addr[s->prog.rb.ctl], &ctl, sizeof ctl, st));
    // By the plan of the last round, whose results this leaves alone.
    return sk_session_run(s, &s->rounds[s->round_plan], SK_STAGE_COMMIT, SK_STAGE_COMMIT, st);
}

sk_code sk_session_finish(sk_session *s, int32_t slot, int32_t licence, sk_status *st)
{
    sk_slot sl;
    SK_TRY(sk_session_settle(s, slot, licence, st));
    SK_TRY(sk_slot_read(s, slot, &sl, st));
    sl.active = 0;
    s->host[slot].phase = SK_PHASE_IDLE;
    return sk_slot_write(s, slot, &sl, st);
}

sk_code sk_session_slot(const sk_session *s, int32_t slot, sk_slot *out, sk_status *st)
{
    SK_TRY(sk_session_check_slot(s, slot, false, st));
    return sk_slot_read(s, slot, out, st);
}

sk_code sk_session_counters(const sk_session *s, int32_t slot, sk_counters *out, sk_status *st)
{
    uint64_t n_bytes;
    SK_TRY(sk_session_check_slot(s, slot, false, st));
    return sk_place_read(&s->place, out, sk_slot_bytes(s, s->prog.rb.counters, slot, &n_bytes),
                         sizeof *out, st);
}

/* ---- drafting ------------------------------------------------------------------------------ */

sk_code sk_session_plant(sk_session *s, int32_t slot, const int32_t *table, int64_t n,
                         const int32_t *accept, int32_t m, sk_status *st)
{
    const sk_round_bufs *rb = &s->prog.rb;
    const int32_t ctx = s->prog.options.ctx;
    int32_t cycle[SK_PLANTED_CYCLE];
    uint64_t row_bytes;
    uint8_t *row;
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
    for (int32_t i = 0; i < SK_PLANTED_CYCLE; i++) cycle[i] = accept[i % m];
    row = sk_slot_bytes(s, rb->planted, slot, &row_bytes);
    SK_TRY(sk_place_fill(&s->place, row, 0xff, row_bytes, st));
    SK_TRY(sk_place_write(&s->place, row, table, (uint64_t)n * sizeof *table, st));
    return sk_place_write(&s->place, s->addr[rb->accept], cycle, sizeof cycle, st);
}

sk_code sk_session_draft(sk_session *s, int32_t slot, const int32_t *ids, int64_t n_ids,
                         int32_t *out, int32_t *n, sk_status *st)
{
    const sk_request request = {.max_tokens = 1};
    const int32_t k = sk_max_i32(1, s->prog.options.drafter.k);
    const sk_round_plan *r = &s->prog.rounds[0];
    int32_t count;
    SK_TRY(sk_session_start(s, slot, ids, n_ids, &request, false, st));
    // But for a draft head, which looks at hidden states, the token window is all it takes.
    if (s->prog.mtp)
        while (s->host[slot].next < s->host[slot].end) SK_TRY(run_chunk(s, slot, st));
    SK_TRY(sk_session_activate(s, slot, st));
    SK_TRY(sk_session_run(s, &s->rounds[0], SK_STAGE_DRAFT, SK_STAGE_DRAFT, st));
    SK_TRY(sk_place_read(&s->place, &count,
                         sk_bound_find(&s->rounds[0], r->n_draft) + (size_t)slot * sizeof count,
                         sizeof count, st));
    *n = sk_min_i32(*n, count);
    SK_TRY(sk_place_read(&s->place, out,
                         sk_bound_find(&s->rounds[0], r->drafts) + (size_t)(slot * k) * sizeof *out,
                         (uint64_t)*n * sizeof *out, st));
    return sk_session_reset(s, slot, st);
}
