/* Ops `draft_none` and `draft_planted`. Match up to 64 slots and 15 proposals, rows at any stride.
 * Sixteen lanes a slot, lane i has proposal i. Would be wrong if K were above 16. */
#include "kernels/sk_kernels.h"

#include "kernels/common/setup.cuh"
#include "kernels/round/draft.cuh"

namespace sk
{

__global__ void __launch_bounds__(kRoundThreads) draft_nothing(draft_views d)
{
    edge_wait();
    edge_open();
    propose_nothing(d);
}

__global__ void __launch_bounds__(kRoundThreads) draft_plants(draft_views d, plant_views v)
{
    edge_wait();
    edge_open();
    propose_plants(d, v);
}

} // namespace sk

extern "C" int32_t sk_k_draft_none(const sk_draft_none_args *a, const sk_launch *l)
{
    const sk::draft_views d = sk::drafts_of(a->drafts, a->n_draft);
    return sk::launch(l, sk::draft_nothing, dim3(1), sk::round_block(d.n_slots), 0, d);
}

extern "C" int32_t sk_k_draft_planted(const sk_draft_planted_args *a, const sk_launch *l)
{
    const sk::draft_views d = sk::drafts_of(a->drafts, a->n_draft);
    const sk::plant_views v = sk::views_of(a);
    return sk::launch(l, sk::draft_plants, dim3(1), sk::round_block(d.n_slots), 0, d, v);
}

extern "C" int32_t sk_setup_draft(void)
{
    return sk::prefer_shared_all(sk::draft_nothing, sk::draft_plants);
}
