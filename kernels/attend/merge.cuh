/* Merging the splits of a (row, head): in the CTA that has seen them all, or behind the CTAs that
 * have seen a chunk each. One function, so the same bits. */
#pragma once

#include "kernels/attend/task.cuh"

namespace sk
{

constexpr int32_t kMergeThreads = kDimMax / 2;

/* Splits ascending, two neighbouring dimensions; loads of kAhead splits are in flight at a time. */
template <int kAhead>
__device__ inline float2 merge_splits(const float2 *sums, int32_t sums_step, const float *o,
                                      int32_t o_step, int32_t n)
{
    float top = sums[0].x;
    float total = 0;
    float2 merged = make_float2(0, 0);
#pragma unroll kAhead
    for (int32_t i = 1; i < n; i++) top = fmaxf(top, sums[i * sums_step].x);
#pragma unroll kAhead
    for (int32_t i = 0; i < n; i++) {
        const float2 sum = sums[i * sums_step];
        const float2 part = *reinterpret_cast<const float2 *>(o + i * o_step);
        const float weight = expf(sum.x - top);
        total = fmaf(sum.y, weight, total);
        merged.x = fmaf(part.x, weight, merged.x);
        merged.y = fmaf(part.y, weight, merged.y);
    }
    return make_float2(__fdiv_rn(merged.x, total), __fdiv_rn(merged.y, total));
}

/* Pair of dimensions of one query head; head counts from the first of `parts`. */
template <int kAhead>
__device__ inline void merge_into(bf16 *out, const split_parts &parts, int32_t head, int32_t pair,
                                  int32_t n)
{
    const float2 y =
        merge_splits<kAhead>(parts.sums + head * parts.sums_head, parts.sums_split,
                             parts.o + head * parts.o_head + 2 * pair, parts.o_split, n);
    *reinterpret_cast<uint32_t *>(out + 2 * pair) = bf16_pair(y.x, y.y);
}

/* Splits in global memory, from `split` on, of the heads of a row from `head` on. */
__device__ inline split_parts parts_in_work(const attend_task &t, int32_t row, int64_t heads,
                                            int32_t head, int32_t split)
{
    const int64_t at = ((row - t.first) * heads + head) * t.n_splits + split;
    return {t.sums + at, t.o + at * t.form.dim, 1, t.n_splits, t.form.dim, t.n_splits * t.form.dim};
}

} // namespace sk
