/* The outputs of a row's experts, weighted and added up: four neighbouring elements a thread. */
#pragma once

#include "kernels/common/quads.cuh"
#include "kernels/common/rows.cuh"

namespace sk
{

struct SumArgs {
    rows<const float> x;
    rows<const float> weight;
    rows<float> y;
    pass live;
    int32_t per, n;
    bool wide; // rows of x and y may be accessed four at a time
};

__global__ void __launch_bounds__(kElemThreads) sum_experts(const SumArgs a)
{
    const int32_t live = wait_rows(a.live), quads = (a.n + 3) / 4;
    const int64_t all = static_cast<int64_t>(live) * quads;
    for (int64_t i = elem_first(); i < all; i += elem_stride()) {
        const int32_t r = static_cast<int32_t>(i / quads);
        const int32_t at = 4 * static_cast<int32_t>(i - static_cast<int64_t>(r) * quads);
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (int32_t j = 0; j < a.per; j++) {
            const float by = a.weight[r][j];
            const float4 x = load_quad(a.x[static_cast<int64_t>(r) * a.per + j], at, a.n, a.wide);
            sum.x = fmaf(by, x.x, sum.x);
            sum.y = fmaf(by, x.y, sum.y);
            sum.z = fmaf(by, x.z, sum.z);
            sum.w = fmaf(by, x.w, sum.w);
        }
        store_quad(a.y[r], at, a.n, a.wide, sum);
    }
}

} // namespace sk
