/* The ops that run a round, except the drafters: control entry, commit, row table, accept,
 * completion record. Integers only; there is one version for both tables. */
#include "op/cpu/def.h"

#include <string.h>

static const sk_ctl_entry *ctl_of(const sk_view *v)
{
    return (const sk_ctl_entry *)(const void *)v->p;
}

static sk_slot *slot_at(const sk_view *v, int64_t b)
{
    return (sk_slot *)(void *)sk_view_row(v, b);
}

static sk_pending *pending_at(const sk_view *v, int64_t b)
{
    return (sk_pending *)(void *)sk_view_row(v, b);
}

static const sk_request *request_at(const sk_view *v, int64_t b)
{
    return (const sk_request *)(const void *)sk_view_row(v, b);
}

static int32_t *ints_at(const sk_view *v, int64_t row)
{
    return (int32_t *)(void *)sk_view_row(v, row);
}

/* Entry of a ring for a round; rounds count up from 0. */
static uint8_t *ring_at(const sk_view *ring, int64_t round)
{
    return sk_view_row(ring, (int64_t)((uint64_t)round % (uint64_t)ring->dim[0]));
}

void sk_cpu_ctl_read(const void *args, const sk_cpu *cpu)
{
    const sk_ctl_read_args *a = args;
    int64_t round = *(const int64_t *)(const void *)a->round.p;
    sk_ctl_entry *ctl = (sk_ctl_entry *)(void *)a->ctl.p;
    (void)cpu;
    memcpy(ctl, ring_at(&a->ring, round), sizeof *ctl);
    ctl->valid = ctl->seq == round && ctl->seq_end == round;
}

/* ---- commit ---------------------------------------------------------------------------------- */

/* A slot waits when it is told to, and when nothing legible tells it anything. */
static bool waits(const sk_ctl_entry *ctl, int64_t b)
{
    return !ctl->valid || ctl->slot[b].licence < SK_LICENCE_ALL;
}

static void count_round(sk_counters *c, const sk_pending *p, int32_t kept)
{
    c->rounds += 1;
    c->rounds_without_draft += p->verified == 0;
    c->proposed += p->drafted;
    c->verified += p->verified;
    c->accepted += p->accepted;
    c->emitted += kept;
    c->discarded_after_stop += p->accepted + 1 - kept;
    for (int32_t i = 0; i < p->accepted && i < SK_WIDTH_MAX; i++) c->accepted_at[i] += 1;
}

/* Returns how many rows are kept. */
static int32_t commit_slot(const sk_ctl_slot *ctl, sk_slot *slot, sk_pending *p, sk_counters *c,
                           int32_t *tokens)
{
    int32_t kept = ctl->licence == SK_LICENCE_ALL ? p->n : sk_min_i32(p->n, ctl->licence);
    int32_t finish = SK_FINISH_NONE;
    if (p->n > 0) {
        memcpy(tokens + slot->n + 1, p->tok, (size_t)kept * sizeof *tokens);
        count_round(c, p, kept);
        slot->n += kept;
        slot->emitted += kept;
        if (kept > 0) slot->anchor = p->tok[kept - 1];
        if (kept == p->n) finish = p->finish;
    }
    if (finish == SK_FINISH_NONE && ctl->stop) finish = SK_FINISH_HOST;
    if (finish != SK_FINISH_NONE) {
        slot->active = 0;
        slot->finish = finish;
    }
    memset(p, 0, sizeof *p);
    return kept;
}

void sk_cpu_commit(const void *args, const sk_cpu *cpu)
{
    const sk_commit_args *a = args;
    const sk_ctl_entry *ctl = ctl_of(&a->ctl);
    int32_t *kept = ints_at(&a->kept, 0);
    (void)cpu;
    for (int64_t b = 0; b < a->slots.dim[0]; b++) {
        sk_slot *slot = slot_at(&a->slots, b);
        kept[b] = 0;
        if (!slot->active || waits(ctl, b)) continue;
        kept[b] = commit_slot(&ctl->slot[b], slot, pending_at(&a->pending, b),
                              (sk_counters *)(void *)sk_view_row(&a->counters, b),
                              ints_at(&a->tokens, b));
    }
}

/* ---- the row table --------------------------------------------------------------------------- */

/* Rows of a slot in this pass; 0: it takes no part. */
static int32_t rows_of_slot(const sk_round_rows_args *a, int64_t b)
{
    const sk_ctl_entry *ctl = ctl_of(&a->ctl);
    const sk_slot *slot = slot_at(&a->slots, b);
    int32_t v = ints_at(&a->n_draft, 0)[b];
    if (!slot->active || waits(ctl, b) || pending_at(&a->pending, b)->n > 0) return 0;
    v = sk_min_i32(v, a->width - 1);
    v = sk_min_i32(v, request_at(&a->requests, b)->max_tokens - slot->emitted - 1);
    v = sk_min_i32(v, a->ctx - slot->n - 1);
    return v + 1;
}

void sk_cpu_round_rows(const void *args, const sk_cpu *cpu)
{
    const sk_round_rows_args *a = args;
    int32_t capacity = (int32_t)a->rows.dim[0];
    int32_t *ids = ints_at(&a->ids, 0);
    int32_t used = 0;
    (void)cpu;
    for (int64_t b = 0; b < a->slots.dim[0]; b++) {
        const sk_slot *slot = slot_at(&a->slots, b);
        const int32_t *drafts = ints_at(&a->drafts, b);
        int32_t *span = ints_at(&a->span, b);
        int32_t n = rows_of_slot(a, b);
        if (n < 1 || n > capacity - used) {
            span[0] = 0;
            span[1] = 0;
            continue;
        }
        for (int32_t i = 0; i < n; i++) {
            sk_row *row = (sk_row *)(void *)sk_view_row(&a->rows, used + i);
            *row = (sk_row){.slot = (int32_t)b, .pos = slot->n + i, .at = i};
            ids[used + i] = i == 0 ? slot->anchor : drafts[i - 1];
        }
        span[0] = used;
        span[1] = n;
        used += n;
    }
    *ints_at(&a->count, 0) = used;
    for (; used < capacity; used++) {
        *(sk_row *)(void *)sk_view_row(&a->rows, used) = (sk_row){.slot = -1};
        ids[used] = 0;
    }
}

/* ---- accept ---------------------------------------------------------------------------------- */

static bool is_stop(const sk_request *request, int32_t token)
{
    for (int32_t i = 0; i < request->n_stop; i++)
        if (request->stop[i] == token) return true;
    return false;
}

static void accept_slot(const sk_slot *slot, const sk_request *request, const int32_t *drafts,
                        int32_t n_draft, const int32_t *chosen, int32_t n_rows, int32_t ctx,
                        sk_pending *p)
{
    memset(p, 0, sizeof *p);
    p->drafted = n_draft;
    p->verified = n_rows - 1;
    while (p->accepted < p->verified && drafts[p->accepted] == chosen[p->accepted])
        p->accepted += 1;
    // An accepted draft is the target's own choice, so the tokens are the first of `chosen`.
    while (p->n <= p->accepted && p->finish == SK_FINISH_NONE) {
        int32_t token = chosen[p->n];
        p->tok[p->n] = token;
        p->n += 1;
        if (is_stop(request, token))
            p->finish = SK_FINISH_STOP;
        else if (slot->emitted + p->n >= request->max_tokens || slot->n + p->n >= ctx)
            p->finish = SK_FINISH_LENGTH;
    }
}

void sk_cpu_accept(const void *args, const sk_cpu *cpu)
{
    const sk_accept_args *a = args;
    const int32_t *chosen = ints_at(&a->chosen, 0);
    (void)cpu;
    for (int64_t b = 0; b < a->slots.dim[0]; b++) {
        const int32_t *span = ints_at(&a->span, b);
        if (span[1] < 1) continue;
        accept_slot(slot_at(&a->slots, b), request_at(&a->requests, b), ints_at(&a->drafts, b),
                    ints_at(&a->n_draft, 0)[b], chosen + span[0], span[1], a->ctx,
                    pending_at(&a->pending, b));
    }
}

/* ---- publish --------------------------------------------------------------------------------- */

void sk_cpu_publish(const void *args, const sk_cpu *cpu)
{
    const sk_publish_args *a = args;
    int64_t *round = (int64_t *)(void *)a->round.p;
    sk_done *done = (sk_done *)(void *)ring_at(&a->ring, *round);
    (void)cpu;
    done->n_rows = 0;
    done->flags = ctl_of(&a->ctl)->valid ? 0 : SK_DONE_BAD_CONTROL;
    for (int64_t b = 0; b < a->slots.dim[0]; b++) {
        const sk_slot *slot = slot_at(&a->slots, b);
        const sk_pending *p = pending_at(&a->pending, b);
        const int32_t *span = ints_at(&a->span, b);
        sk_done_slot *d = &done->slot[b];
        memset(d, 0, sizeof *d);
        d->pos = slot->n;
        d->finish = slot->finish;
        d->committed = ints_at(&a->kept, 0)[b];
        if (span[1] < 1) continue;
        d->rows = span[1];
        d->first = span[0];
        d->n = p->n;
        d->drafted = p->drafted;
        d->accepted = p->accepted;
        d->finish = p->finish;
        memcpy(d->tok, p->tok, sizeof d->tok);
        done->n_rows += span[1];
    }
    done->seq = *round;
    done->seq_end = *round;
    *round += 1;
}
