/* See commit.cu. */
#pragma once

#include "kernels/round/round.cuh"

namespace sk
{

constexpr int kPendingWords = sizeof(sk_pending) / 4;
constexpr int kCountersBefore = 9; // the ones ahead of accepted_at
static_assert(offsetof(sk_counters, accepted_at) == 8 * kCountersBefore &&
                  kPendingWords <= 2 * kSlotLanes,
              "a lane has two counters and two words");

struct commit_views {
    const sk_ctl_entry *ctl;
    rows<sk_slot> slots;
    rows<sk_pending> pending;
    rows<int64_t> counters;
    rows<int32_t> tokens;
    int32_t *kept;
    int32_t n_slots;
};

inline commit_views views_of(const sk_commit_args *a)
{
    return {
        ptr<const sk_ctl_entry>(a->ctl),       rows_of<sk_slot>(a->slots),
        rows_of<sk_pending>(a->pending),       rows_of<int64_t>(a->counters),
        rows_of<int32_t>(a->tokens),           ptr<int32_t>(a->kept),
        static_cast<int32_t>(a->slots.dim[0]),
    };
}

/* What counter i of sk_counters grows by. Selections, as lanes of a warp would take every branch.
 */
__device__ inline int32_t counter_growth(const sk_pending &p, int32_t kept, int32_t i)
{
    int32_t by = i == 0;                // rounds
    by = i == 1 ? p.verified == 0 : by; // rounds_without_draft
    by = i == 2 ? p.drafted : by;       // proposed
    by = i == 3 ? p.verified : by;
    by = i == 4 ? p.accepted : by;
    by = i == 5 ? kept : by;                    // emitted
    return i == 7 ? p.accepted + 1 - kept : by; // discarded_after_stop
}

/* The fields that all lanes need; `tok` is left alone. */
__device__ inline sk_pending pending_head(const sk_pending *p)
{
    sk_pending head;
    head.n = p->n;
    head.drafted = p->drafted;
    head.verified = p->verified;
    head.accepted = p->accepted;
    head.finish = p->finish;
    return head;
}

__device__ inline void settle(sk_slot *slot, const sk_slot &was, int32_t kept, int32_t finish)
{
    slot->n = was.n + kept;
    slot->emitted = was.emitted + kept;
    if (finish == SK_FINISH_NONE) return;
    slot->active = 0;
    slot->finish = finish;
}

__device__ inline int32_t finish_of(const sk_pending &p, int32_t kept, int32_t stop)
{
    const int32_t finish = p.n > 0 && kept == p.n ? p.finish : SK_FINISH_NONE;
    return finish == SK_FINISH_NONE && stop ? SK_FINISH_HOST : finish;
}

__device__ inline void commit_pending(const commit_views &v)
{
    const int32_t b = slot_of_lane();
    const int32_t i = lane_of_slot();
    if (b >= v.n_slots) return;
    sk_slot *slot = v.slots[b];
    sk_pending *pending = v.pending[b];
    int64_t *counters = v.counters[b];
    const int32_t valid = v.ctl->valid;
    const int32_t licence = v.ctl->slot[b].licence;
    const int32_t stop = v.ctl->slot[b].stop;
    const sk_slot was = *slot;
    const sk_pending p = pending_head(pending);
    const int32_t token = pending->tok[i];
    const int64_t low = i < kCountersBefore ? counters[i] : 0;
    const int64_t high = counters[kCountersBefore + i];
    __syncwarp(lanes_of_slot()); // everything is read before anything is written
    const bool commits = was.active && !slot_waits(valid, licence);
    const int32_t kept = !commits ? 0 : licence == SK_LICENCE_ALL ? p.n : min(p.n, licence);
    if (i == 0) v.kept[b] = kept;
    if (!commits) return;
    if (i == 0) settle(slot, was, kept, finish_of(p, kept, stop));
    if (p.n > 0) {
        if (i < kept) v.tokens[b][was.n + 1 + i] = token;
        if (i == kept - 1) slot->anchor = token;
        if (i < kCountersBefore) counters[i] = low + counter_growth(p, kept, i);
        if (i < p.accepted) counters[kCountersBefore + i] = high + 1;
    }
    int32_t *words = reinterpret_cast<int32_t *>(pending);
    words[i] = 0;
    if (kSlotLanes + i < kPendingWords) words[kSlotLanes + i] = 0;
}

} // namespace sk
