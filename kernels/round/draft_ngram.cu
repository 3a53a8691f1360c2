/* Op `draft_ngram`. Matches up to 64 slots and 32 proposals, any context, rows at any stride.
 *
 * Every earlier index e is scored with the number of last tokens that match there, at most n_max;
 * the best score wins, of equal ones the latest e: what the definition finds going through the
 * lengths from the longest down. One CTA a slot, several where the context may be long. An index
 * whose own token differs costs one load; would be slow, not wrong, where a huge n_max meets a long
 * run of one token. */
#include "kernels/sk_kernels.h"

#include "kernels/common/combine.cuh"
#include "kernels/common/rows.cuh"
#include "kernels/common/setup.cuh"

namespace sk
{

constexpr int kScanThreads = 1024;
constexpr int kScanLoads = 8; // in flight, each thread
constexpr int kScanTile = kScanThreads * kScanLoads;
constexpr int kScanShare = 4 * kScanTile; // positions of one CTA, before a second one pays
constexpr int kScanParts = 16;

struct ngram_views {
    rows<const sk_slot> slots;
    rows<const int32_t> tokens;
    rows<int32_t> drafts;
    int32_t *n_draft;
    best_cell *cells; // [slots]
    int32_t k;
    int32_t n_max;
    int32_t n_min;
};

/* How many tokens up to e equal those up to `last`, at most `most`; the first of them does. */
__device__ inline int32_t match_length(const int32_t *h, int32_t last, int32_t e, int32_t most)
{
    int32_t n = 1;
    while (n < most && n <= e && h[e - n] == h[last - n]) n++;
    return n;
}

/* Bit j: does index first + j * kScanThreads, below last, have the token `tail`? */
__device__ inline uint32_t equal_tokens(const int32_t *h, int32_t first, int32_t last, int32_t tail)
{
    int32_t token[kScanLoads];
    uint32_t equal = 0;
#pragma unroll
    for (int32_t j = 0; j < kScanLoads; j++) {
        const int32_t e = first + j * kScanThreads;
        token[j] = e < last ? h[e] : ~tail;
    }
#pragma unroll
    for (int32_t j = 0; j < kScanLoads; j++) equal |= token[j] == tail ? 1u << j : 0u;
    return equal;
}

/* This thread's best {length, index}; 0: none is long enough. */
__device__ inline uint64_t scan(const ngram_views &v, const int32_t *h, int32_t last)
{
    const int32_t most = min(v.n_max, last);
    const int32_t tail = h[last];
    uint64_t best = 0;
    for (int32_t at = blockIdx.x * kScanTile; at < last; at += gridDim.x * kScanTile) {
        const int32_t first = at + static_cast<int32_t>(threadIdx.x);
        uint32_t equal = equal_tokens(h, first, last, tail);
        for (; equal; equal &= equal - 1) {
            const int32_t e = first + (__ffs(equal) - 1) * kScanThreads;
            const int32_t n = match_length(h, last, e, most);
            const uint64_t key = static_cast<uint64_t>(n) << 32 | static_cast<uint32_t>(e);
            if (n >= v.n_min) best = best_of(best, key);
        }
    }
    return best;
}

/* The copy behind e; past the end it runs into itself, with the period last - e. */
__device__ inline void propose(const ngram_views &v, int32_t b, int32_t i, const int32_t *h,
                               int32_t last, uint64_t key)
{
    const uint32_t e = static_cast<uint32_t>(key);
    if (i == 0) v.n_draft[b] = key ? v.k : 0;
    if (i < v.k) v.drafts[b][i] = key ? h[e + 1 + i % (last - e)] : 0;
}

__global__ void __launch_bounds__(kScanThreads) find_ngram(ngram_views v)
{
    __shared__ uint64_t room[kScanThreads / 32];
    const int32_t b = blockIdx.y;
    const int32_t lane = threadIdx.x;
    bool last_to_come = true;
    edge_wait();
    edge_open();
    const int32_t active = v.slots[b]->active;
    const int32_t last = v.slots[b]->n;
    const int32_t *h = v.tokens[b];
    uint64_t key = best_of_block(active ? scan(v, h, last) : 0, room);
    if (lane >= 32) return;
    if (lane == 0) last_to_come = best_of_blocks(v.cells + b, gridDim.x, &key);
    if (!__shfl_sync(0xffffffffu, last_to_come, 0)) return;
    key = __shfl_sync(0xffffffffu, key, 0);
    propose(v, b, lane, h, last, key);
}

/* A constant of the recording, like the bound. */
inline uint32_t scan_parts(int32_t ctx_bound)
{
    const int32_t parts = ctx_bound / kScanShare + (ctx_bound % kScanShare > 0);
    return static_cast<uint32_t>(parts < 1 ? 1 : parts < kScanParts ? parts : kScanParts);
}

} // namespace sk

extern "C" int32_t sk_k_draft_ngram(const sk_draft_ngram_args *a, const sk_launch *l)
{
    static_assert(SK_SLOTS_MAX <= sk::kCells, "a cell for every slot");
    const sk::ngram_views v = {
        sk::rows_of<const sk_slot>(a->slots),
        sk::rows_of<const int32_t>(a->tokens),
        sk::rows_of<int32_t>(a->drafts),
        sk::ptr<int32_t>(a->n_draft),
        reinterpret_cast<sk::best_cell *>(l->sync),
        static_cast<int32_t>(a->drafts.dim[1]),
        a->n_max,
        a->n_min,
    };
    const dim3 grid(sk::scan_parts(l->ctx_bound), static_cast<unsigned>(a->slots.dim[0]));
    return sk::launch(l, sk::find_ngram, grid, dim3(sk::kScanThreads), 0, v);
}

extern "C" int32_t sk_setup_draft_ngram(void) { return sk::prefer_shared_all(sk::find_ngram); }
