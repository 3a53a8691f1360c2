/* See round_rows.cu. */
#pragma once

#include "kernels/round/round.cuh"

namespace sk
{

struct table_views {
    const sk_ctl_entry *ctl;
    rows<const sk_slot> slots;
    rows<const sk_request> requests;
    rows<const sk_pending> pending;
    rows<const int32_t> drafts;
    const int32_t *n_draft;
    rows<sk_row> rows_;
    int32_t *ids;
    int32_t *count;
    rows<int32_t> span;
    int32_t n_slots;
    int32_t capacity;
    int32_t k; // proposals that a row of drafts has room for
    int32_t width;
    int32_t ctx;
};

/* Where the rows of each slot go. A slot that takes no part has no rows. */
struct placement {
    int32_t rows[SK_SLOTS_MAX];
    int32_t first[SK_SLOTS_MAX];
    int32_t used;
};

inline table_views views_of(const sk_round_rows_args *a)
{
    return {
        ptr<const sk_ctl_entry>(a->ctl),
        rows_of<const sk_slot>(a->slots),
        rows_of<const sk_request>(a->requests),
        rows_of<const sk_pending>(a->pending),
        rows_of<const int32_t>(a->drafts),
        ptr<const int32_t>(a->n_draft),
        rows_of<sk_row>(a->rows),
        ptr<int32_t>(a->ids),
        ptr<int32_t>(a->count),
        rows_of<int32_t>(a->span),
        static_cast<int32_t>(a->slots.dim[0]),
        static_cast<int32_t>(a->rows.dim[0]),
        static_cast<int32_t>(a->drafts.dim[1]),
        a->width,
        a->ctx,
    };
}

/* Rows that a slot asks for; 0: it takes no part. */
__device__ inline int32_t rows_wanted(const table_views &v, int32_t b, const sk_slot &slot)
{
    const int32_t valid = v.ctl->valid;
    const int32_t licence = v.ctl->slot[b].licence;
    const int32_t pending = v.pending[b]->n;
    const int32_t n_draft = v.n_draft[b];
    const int32_t max_tokens = v.requests[b]->max_tokens;
    int32_t n = min(n_draft, v.width - 1);
    n = min(n, max_tokens - slot.emitted - 1);
    n = min(n, v.ctx - slot.n - 1);
    if (!slot.active || slot_waits(valid, licence) || pending > 0) return 0;
    return max(n + 1, 0);
}

/* Slots in ascending order, leaving out each whose rows do not fit behind those before it. */
__device__ inline void place_one_by_one(placement *p, int32_t capacity)
{
    int32_t used = 0;
    for (int32_t b = 0; b < SK_SLOTS_MAX; b++) {
        const int32_t n = p->rows[b];
        p->first[b] = used;
        if (n > capacity - used)
            p->rows[b] = 0;
        else
            used += n;
    }
    p->used = used;
}

/* By one warp, two slots a lane: prefix sums, unless something has to be left out. */
__device__ inline void place(placement *p, int32_t capacity)
{
    const uint32_t lane = threadIdx.x;
    const int32_t even = p->rows[2 * lane];
    const int32_t both = even + p->rows[2 * lane + 1];
    int32_t sum = both;
    for (uint32_t by = 1; by < 32; by *= 2) {
        const int32_t below = __shfl_up_sync(0xffffffffu, sum, by);
        if (lane >= by) sum += below;
    }
    if (__shfl_sync(0xffffffffu, sum, 31) > capacity) {
        if (lane == 0) place_one_by_one(p, capacity);
        return;
    }
    p->first[2 * lane] = sum - both;
    p->first[2 * lane + 1] = sum - both + even;
    if (lane == 31) p->used = sum;
}

__device__ inline void write_row(const table_views &v, int32_t r, sk_row row, int32_t id)
{
    *v.rows_[r] = row;
    v.ids[r] = id;
}

__device__ inline void write_slot(const table_views &v, const placement &p, int32_t b, int32_t i,
                                  const sk_slot &slot, int32_t token)
{
    const int32_t n = p.rows[b];
    const int32_t first = p.first[b];
    if (i < n) write_row(v, first + i, sk_row{b, slot.n + i, i}, token);
    if (i < 2) v.span[b][i] = n == 0 ? 0 : i == 0 ? first : n;
}

__device__ inline void fill_rows(const table_views &v)
{
    __shared__ placement p;
    const int32_t b = slot_of_lane();
    const int32_t i = lane_of_slot();
    const bool exists = b < v.n_slots;
    sk_slot slot = {};
    int32_t token = 0;
    for (int32_t s = threadIdx.x; s < SK_SLOTS_MAX; s += blockDim.x)
        if (s >= v.n_slots) p.rows[s] = 0;
    if (exists) {
        slot = *v.slots[b];
        token = i == 0 ? slot.anchor : i <= v.k ? v.drafts[b][i - 1] : 0;
        const int32_t wanted = rows_wanted(v, b, slot);
        if (i == 0) p.rows[b] = wanted;
    }
    __syncthreads();
    if (threadIdx.x < 32) place(&p, v.capacity);
    __syncthreads();
    if (exists) write_slot(v, p, b, i, slot, token);
    if (threadIdx.x == 0) *v.count = p.used;
    for (int32_t r = p.used + threadIdx.x; r < v.capacity; r += blockDim.x)
        write_row(v, r, sk_row{-1, 0, 0}, 0);
}

} // namespace sk
