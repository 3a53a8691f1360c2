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
};

constexpr int kSumThreads = 64;     // so that a few rows have a CTA for most multiprocessors
constexpr int32_t kSumsAtOnce = 10; // routes whose outputs are under way together

/* That an SM can have, at least. Without this bound registers are saved instead, by loads that wait
 * for each other. */
constexpr int kSumCtas = 12;

/* Where a thread is: its elements of a route's output, and the route's weight. */
struct sum_place {
    const uint8_t *x;
    const float *weight;
};

/* The next N routes. */
template <bool Wide, int32_t N>
__device__ inline void add_routes(const SumArgs &a, sum_place &from, int32_t left, float4 &sum)
{
    float by[N];
    float4 x[N];
#pragma unroll
    for (int32_t j = 0; j < N; j++) {
        const float *quad = reinterpret_cast<const float *>(from.x);
        by[j] = from.weight[j];
        x[j] = Wide ? *reinterpret_cast<const float4 *>(quad) : load_quad(quad, 0, left, false);
        from.x += a.x.step;
    }
#pragma unroll
    for (int32_t j = 0; j < N; j++) {
        sum.x = fmaf(by[j], x[j].x, sum.x);
        sum.y = fmaf(by[j], x[j].y, sum.y);
        sum.z = fmaf(by[j], x[j].z, sum.z);
        sum.w = fmaf(by[j], x[j].w, sum.w);
    }
    from.weight += N;
}

/* Wide: rows of x and y are accessed four elements at a time, to the end. Grid: rows, parts of a
 * row. */
template <bool Wide>
__global__ void __launch_bounds__(kSumThreads, kSumCtas) sum_experts(const SumArgs a)
{
    const int32_t r = static_cast<int32_t>(blockIdx.x);
    const int32_t at = 4 * static_cast<int32_t>(blockIdx.y * kSumThreads + threadIdx.x);
    if (r >= wait_rows(a.live) || at >= a.n) return;
    const float *x = a.x[static_cast<int64_t>(r) * a.per] + at;
    sum_place from = {reinterpret_cast<const uint8_t *>(x), a.weight[r]};
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    int32_t routes = a.per;
#pragma unroll 1
    for (; routes >= kSumsAtOnce; routes -= kSumsAtOnce)
        add_routes<Wide, kSumsAtOnce>(a, from, a.n - at, sum);
    if (routes & 8) add_routes<Wide, 8>(a, from, a.n - at, sum);
    if (routes & 4) add_routes<Wide, 4>(a, from, a.n - at, sum);
    if (routes & 2) add_routes<Wide, 2>(a, from, a.n - at, sum);
    if (routes & 1) add_routes<Wide, 1>(a, from, a.n - at, sum);
    store_quad(a.y[r], at, a.n, Wide, sum);
}

} // namespace sk
