/* See publish.cu. */
#pragma once

#include "kernels/round/round.cuh"

namespace sk
{

constexpr int kDoneHead =
    offsetof(sk_done, slot) / 8;                     // words ahead of the slots: seq, flags + rows
constexpr int kDoneWords = sizeof(sk_done_slot) / 8; // of a slot
constexpr int kDoneEnd = offsetof(sk_done, seq_end) / 8;
static_assert(kDoneHead == 2 && sizeof(sk_done_slot) % 16 == 0 && offsetof(sk_done_slot, tok) == 32,
              "completion record in words");

struct publish_views {
    const sk_ctl_entry *ctl;
    rows<const sk_slot> slots;
    rows<const sk_pending> pending;
    const int32_t *kept;
    rows<const int32_t> span;
    int64_t *round;
    rows<uint64_t> ring;
    uint32_t n_ring;
    int32_t n_slots;
};

inline publish_views views_of(const sk_publish_args *a)
{
    return {
        ptr<const sk_ctl_entry>(a->ctl),
        rows_of<const sk_slot>(a->slots),
        rows_of<const sk_pending>(a->pending),
        ptr<const int32_t>(a->kept),
        rows_of<const int32_t>(a->span),
        ptr<int64_t>(a->round),
        rows_of<uint64_t>(a->ring),
        static_cast<uint32_t>(a->ring.dim[0]),
        static_cast<int32_t>(a->slots.dim[0]),
    };
}

/* Lane i of slot b writes its part of the slot's entry; returns the slot's rows. */
__device__ inline int32_t fill_slot(const publish_views &v, int32_t b, int32_t i, sk_done_slot *d)
{
    const sk_slot *slot = v.slots[b];
    const sk_pending *p = v.pending[b];
    const int32_t first = v.span[b][0];
    const int32_t n_rows = v.span[b][1];
    const int32_t pos = slot->n, settled = slot->finish, kept = v.kept[b];
    const int32_t n = p->n, drafted = p->drafted, accepted = p->accepted, finish = p->finish;
    const int32_t token = p->tok[i];
    const bool part = n_rows > 0;
    d->tok[i] = part ? token : 0;
    if (i > 0) return part ? n_rows : 0;
    d->rows = part ? n_rows : 0;
    d->first = part ? first : 0;
    d->pos = pos;
    d->n = part ? n : 0;
    d->drafted = part ? drafted : 0;
    d->accepted = part ? accepted : 0;
    d->finish = part ? finish : settled;
    d->committed = kept;
    return part ? n_rows : 0;
}

__device__ inline void publish_record(const publish_views &v)
{
    __shared__ __align__(16) sk_done_slot done[SK_SLOTS_MAX];
    __shared__ int32_t warp_rows[kRoundThreads / 32];
    const int32_t b = slot_of_lane();
    const int32_t i = lane_of_slot();
    const int32_t t = threadIdx.x;
    const int64_t round = *v.round;
    const int32_t valid = v.ctl->valid;
    volatile uint64_t *record = v.ring[place_in_ring(round, v.n_ring)];
    const int32_t n_rows = b < v.n_slots ? fill_slot(v, b, i, done + b) : 0;
    const int32_t sum = __reduce_add_sync(0xffffffffu, i == 0 ? n_rows : 0);
    if (t % 32 == 0) warp_rows[t / 32] = sum;
    __syncthreads();
    const uint64_t *words = reinterpret_cast<const uint64_t *>(done);
    for (int32_t w = t; w < v.n_slots * kDoneWords; w += blockDim.x)
        record[kDoneHead + w] = words[w];
    if (t == 0) {
        uint32_t total = 0;
        for (uint32_t k = 0; k < blockDim.x / 32; k++) total += warp_rows[k];
        record[1] = static_cast<uint64_t>(total) << 32 |
                    (valid ? 0u : static_cast<uint32_t>(SK_DONE_BAD_CONTROL));
        *v.round = round + 1;
    }
    __syncthreads();
    if (t > 0) return;
    __threadfence_system(); // for all of the CTA: the barrier has put the others' words before it
    record[kDoneEnd] = round;
    record[0] = round;
}

} // namespace sk
