/* See draft.cu. */
#pragma once

#include "kernels/round/round.cuh"

namespace sk
{

struct draft_views {
    rows<int32_t> drafts;
    int32_t *n_draft;
    int32_t n_slots;
    int32_t width; // K
};

inline draft_views drafts_of(const sk_view &drafts, const sk_view &n_draft)
{
    return draft_views{rows_of<int32_t>(drafts), ptr<int32_t>(n_draft),
                       static_cast<int32_t>(drafts.dim[0]), static_cast<int32_t>(drafts.dim[1])};
}

struct plant_views {
    rows<const sk_slot> slots;
    rows<const sk_counters> counters;
    rows<const int32_t> table;
    const int32_t *accept;
    int32_t n_table; // C+1
    uint32_t n_accept;
    uint32_t vocab;
};

inline plant_views views_of(const sk_draft_planted_args *a)
{
    return {
        rows_of<const sk_slot>(a->slots),      rows_of<const sk_counters>(a->counters),
        rows_of<const int32_t>(a->table),      ptr<const int32_t>(a->accept),
        static_cast<int32_t>(a->table.dim[1]), static_cast<uint32_t>(a->accept.dim[0]),
        static_cast<uint32_t>(a->vocab),
    };
}

__device__ inline void propose_nothing(const draft_views &d)
{
    const int32_t b = slot_of_lane();
    const int32_t i = lane_of_slot();
    if (b >= d.n_slots) return;
    if (i < d.width) d.drafts[b][i] = 0;
    if (i == 0) d.n_draft[b] = 0;
}

/* Proposal i of slot b; negative: none. */
__device__ inline int32_t planted(const plant_views &v, int32_t b, int32_t i)
{
    const sk_slot *slot = v.slots[b];
    const int64_t at = static_cast<int64_t>(slot->n) + 1 + i;
    const uint64_t rounds = static_cast<uint64_t>(v.counters[b]->rounds);
    const int32_t right = v.accept[place_in_ring(rounds, v.n_accept)];
    const int32_t token = at < v.n_table ? v.table[b][at] : -1;
    if (!slot->active || token < 0) return -1;
    return i < right ? token : static_cast<int32_t>((static_cast<uint32_t>(token) + 1u) % v.vocab);
}

__device__ inline void propose_plants(const draft_views &d, const plant_views &v)
{
    const int32_t b = slot_of_lane();
    const int32_t i = lane_of_slot();
    const int32_t token = b < d.n_slots && i < d.width ? planted(v, b, i) : -1;
    const int32_t n = leading_votes(slot_votes(token >= 0));
    if (b >= d.n_slots) return;
    if (i < d.width) d.drafts[b][i] = i < n ? token : 0;
    if (i == 0) d.n_draft[b] = n;
}

} // namespace sk
