/* The two ends of a round, each in one launch: control entry, commit, a drafter that looks at no
 * model, and the row table; acceptance and the completion record. What the single kernels of these
 * ops do, one after the other in one CTA, so that a barrier takes the place of a node. Matches what
 * each of them matches. */
#include "kernels/sk_kernels.h"

#include "kernels/common/setup.cuh"
#include "kernels/round/accept.cuh"
#include "kernels/round/commit.cuh"
#include "kernels/round/ctl_read.cuh"
#include "kernels/round/draft.cuh"
#include "kernels/round/publish.cuh"
#include "kernels/round/round_rows.cuh"

namespace sk
{

struct open_views {
    control_views control;
    commit_views commit;
    draft_views drafts;
    plant_views plants; // n_accept 0: nothing is planted
    table_views table;
};

__global__ void __launch_bounds__(kRoundThreads) open_round(const open_views v)
{
    edge_wait();
    edge_open();
    read_control(v.control);
    __syncthreads();
    commit_pending(v.commit);
    __syncthreads();
    if (v.plants.n_accept)
        propose_plants(v.drafts, v.plants);
    else
        propose_nothing(v.drafts);
    __syncthreads();
    fill_rows(v.table);
}

struct close_views {
    accept_views accept;
    publish_views publish;
};

__global__ void __launch_bounds__(kRoundThreads) close_round(const close_views v)
{
    edge_wait();
    edge_open();
    accept_drafts(v.accept);
    __syncthreads();
    publish_record(v.publish);
}

} // namespace sk

extern "C" int32_t sk_k_round_open(const sk_ctl_read_args *ctl, const sk_commit_args *commit,
                                   const sk_draft_none_args *none,
                                   const sk_draft_planted_args *planted,
                                   const sk_round_rows_args *rows, const sk_launch *l)
{
    sk::open_views v = {};
    const dim3 most(sk::kCtlThreads);
    const dim3 block = sk::round_block(commit->slots.dim[0]);
    v.control = sk::views_of(ctl);
    v.commit = sk::views_of(commit);
    v.drafts = planted ? sk::drafts_of(planted->drafts, planted->n_draft)
                       : sk::drafts_of(none->drafts, none->n_draft);
    if (planted) v.plants = sk::views_of(planted);
    v.table = sk::views_of(rows);
    return sk::launch(l, sk::open_round, dim3(1), block.x < most.x ? most : block, 0, v);
}

extern "C" int32_t sk_k_round_close(const sk_accept_args *accept, const sk_publish_args *publish,
                                    const sk_launch *l)
{
    const sk::close_views v = {sk::views_of(accept), sk::views_of(publish)};
    return sk::launch(l, sk::close_round, dim3(1), sk::round_block(accept->slots.dim[0]), 0, v);
}

extern "C" int32_t sk_setup_round_ends(void)
{
    return sk::prefer_shared_all(sk::open_round, sk::close_round);
}
