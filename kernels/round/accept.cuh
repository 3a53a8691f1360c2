/* See accept.cu. */
#pragma once

#include "kernels/round/round.cuh"

namespace sk
{

static_assert(SK_STOP_MAX == 2 * kSlotLanes, "a lane has two stop ids");

constexpr int kStopStep = SK_STOP_MAX + 1; // so that the two slots of a warp read different banks

struct accept_views {
    rows<const sk_slot> slots;
    rows<const sk_request> requests;
    rows<const int32_t> drafts;
    const int32_t *n_draft;
    rows<const int32_t> span;
    const int32_t *chosen;
    rows<sk_pending> pending;
    int32_t n_slots;
    int32_t k;
    int32_t ctx;
};

/* What a lane knows before it knows the target's choice. */
struct accept_lane {
    int32_t first; // row
    int32_t rows;
    int32_t draft;
    int32_t n_draft;
    int32_t n_stop;
    int32_t left; // tokens until a limit ends the request, or fewer than 1
};

inline accept_views views_of(const sk_accept_args *a)
{
    return {
        rows_of<const sk_slot>(a->slots),       rows_of<const sk_request>(a->requests),
        rows_of<const int32_t>(a->drafts),      ptr<const int32_t>(a->n_draft),
        rows_of<const int32_t>(a->span),        ptr<const int32_t>(a->chosen),
        rows_of<sk_pending>(a->pending),        static_cast<int32_t>(a->slots.dim[0]),
        static_cast<int32_t>(a->drafts.dim[1]), a->ctx,
    };
}

__device__ inline accept_lane load_lane(const accept_views &v, int32_t b, int32_t i, int32_t *stop)
{
    const sk_slot *slot = v.slots[b];
    const sk_request *request = v.requests[b];
    const int32_t *span = v.span[b];
    accept_lane x;
    x.first = span[0];
    x.rows = span[1];
    x.draft = i < v.k ? v.drafts[b][i] : 0;
    x.n_draft = v.n_draft[b];
    x.n_stop = request->n_stop;
    x.left = min(request->max_tokens - slot->emitted, v.ctx - slot->n);
    stop[i] = request->stop[i];
    stop[kSlotLanes + i] = request->stop[kSlotLanes + i];
    return x;
}

__device__ inline bool is_stop(const int32_t *stop, int32_t n, int32_t token)
{
    bool found = false;
    for (int32_t k = 0; k < n; k++) found |= stop[k] == token;
    return found;
}

/* `ends` and `stops`: which rows' tokens end the request, and which of them by a stop id. */
__device__ inline void write_pending(sk_pending *p, int32_t i, const accept_lane &x,
                                     int32_t accepted, uint32_t ends, uint32_t stops, int32_t token)
{
    const int32_t end = ends ? __ffs(ends) - 1 : accepted;
    p->tok[i] = i <= end ? token : 0;
    if (i > 0) return;
    p->n = end + 1;
    p->drafted = x.n_draft;
    p->verified = x.rows - 1;
    p->accepted = accepted;
    p->finish = !ends ? SK_FINISH_NONE : stops >> end & 1 ? SK_FINISH_STOP : SK_FINISH_LENGTH;
    p->reserved = 0;
}

__device__ inline void accept_drafts(const accept_views &v)
{
    __shared__ int32_t stop_ids[SK_SLOTS_MAX * kStopStep];
    const int32_t b = slot_of_lane();
    const int32_t i = lane_of_slot();
    int32_t *stop = stop_ids + b * kStopStep;
    accept_lane x = {};
    if (b < v.n_slots) x = load_lane(v, b, i, stop);
    const int32_t token = i < x.rows ? v.chosen[x.first + i] : 0;
    __syncwarp();
    const int32_t accepted = leading_votes(slot_votes(i < x.rows - 1 && x.draft == token));
    const bool stops = is_stop(stop, x.n_stop, token);
    const bool counts = i <= accepted;
    const uint32_t ends = slot_votes(counts && (stops || i + 1 >= x.left));
    const uint32_t by_stop = slot_votes(counts && stops);
    if (x.rows > 0) write_pending(v.pending[b], i, x, accepted, ends, by_stop, token);
}

} // namespace sk
