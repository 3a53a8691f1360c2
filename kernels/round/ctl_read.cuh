/* The control entry of a round. See ctl_read.cu. */
#pragma once

#include "kernels/round/round.cuh"

namespace sk
{

constexpr int kCtlWords = sizeof(sk_ctl_entry) / 8;
constexpr int kCtlThreads = (kCtlWords + 31) / 32 * 32;
static_assert(sizeof(sk_ctl_entry) % 8 == 0 && offsetof(sk_ctl_entry, seq) == 0 &&
                  offsetof(sk_ctl_entry, valid) == 8 &&
                  offsetof(sk_ctl_entry, seq_end) == (kCtlWords - 1) * 8,
              "control entry in words");

struct control_views {
    rows<const uint64_t> ring;
    const int64_t *round;
    uint64_t *ctl;
    uint32_t n;
};

inline control_views views_of(const sk_ctl_read_args *a)
{
    return {rows_of<const uint64_t>(a->ring), ptr<const int64_t>(a->round), ptr<uint64_t>(a->ctl),
            static_cast<uint32_t>(a->ring.dim[0])};
}

/* By kCtlThreads threads at least. */
__device__ inline void read_control(const control_views &v)
{
    const uint32_t i = threadIdx.x;
    const uint64_t round = static_cast<uint64_t>(*v.round);
    const volatile uint64_t *entry = v.ring[place_in_ring(round, v.n)];
    uint64_t word = i < kCtlWords ? entry[i] : round;
    const bool right = (i != 0 && i != kCtlWords - 1) || word == round;
    const uint64_t valid = __syncthreads_and(right) ? 1u : 0u;
    if (i == 1) word = (word & 0xffffffff00000000u) | valid; // beside the reserved word
    if (i < kCtlWords) v.ctl[i] = word;
}

} // namespace sk
