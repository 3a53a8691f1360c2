/* One head vector of a row on its way from the projections: norm, rotation, rounding. A warp does
 * one; where the result lies (shared memory, a cache) makes no difference to its bits. */
#pragma once

#include "kernels/attend/tile.cuh"
#include "kernels/common/bf16.cuh"
#include "kernels/common/rotate.cuh"

namespace sk
{

constexpr int32_t kDimMax = 256;
constexpr int32_t kLanePairs = kDimMax / 64; // pairs of elements that a lane may hold

/* What becomes of a vector. */
struct head_job {
    const float *gain;   // [D] NULL: no norm
    const float2 *sines; // [n_rot] cosine and sine of each pair
    bf16 *to;
    int32_t n_rot; // pairs that rotate
};

/* What all heads of a step share. */
struct head_form {
    float eps;
    int32_t dim;
    int32_t neox;
};

/* Elements of a lane's pairs, lane + 32 i being the number of pair i: two halves of a word, as
 * registers are scarce. Behind the rotated ones a pair is two neighbours. */
struct lane_pairs {
    uint32_t at[kLanePairs];
};

constexpr uint32_t kNoPair = 0xffffffffu;

__device__ inline int32_t pair_a(uint32_t at) { return static_cast<int32_t>(at & 0xffffu); }
__device__ inline int32_t pair_b(uint32_t at) { return static_cast<int32_t>(at >> 16); }

template <int kPairs> struct head_vec {
    float a[kPairs];
    float b[kPairs];
};

__device__ inline lane_pairs pairs_of(const head_form &f, int32_t n_rot, int32_t lane)
{
    lane_pairs l;
#pragma unroll
    for (int i = 0; i < kLanePairs; i++) {
        const int32_t p = lane + 32 * i;
        const bool apart = f.neox && p < n_rot;
        const int32_t a = apart ? p : 2 * p;
        const int32_t b = apart ? p + n_rot : 2 * p + 1;
        l.at[i] = p < f.dim / 2 ? static_cast<uint32_t>(a | b << 16) : kNoPair;
    }
    return l;
}

__device__ inline head_vec<kLanePairs> head_load(const float *x, const lane_pairs &l)
{
    head_vec<kLanePairs> v;
#pragma unroll
    for (int i = 0; i < kLanePairs; i++) {
        v.a[i] = 0;
        v.b[i] = 0;
        if (l.at[i] == kNoPair) continue;
        v.a[i] = x[pair_a(l.at[i])];
        v.b[i] = x[pair_b(l.at[i])];
    }
    return v;
}

/* 1 / sqrt(mean + eps), the mean in double and in one order. */
template <int kPairs>
__device__ inline float head_factor(const head_vec<kPairs> &v, float eps, int32_t dim)
{
    double sum = 0;
#pragma unroll
    for (int i = 0; i < kPairs; i++) {
        sum += static_cast<double>(v.a[i]) * static_cast<double>(v.a[i]);
        sum += static_cast<double>(v.b[i]) * static_cast<double>(v.b[i]);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    const float mean = static_cast<float>(sum / static_cast<double>(dim));
    return __fdiv_rn(1.0f, __fsqrt_rn(mean + eps));
}

/* Norm, rotation, rounding of what head_load has read. */
__device__ inline void head_put(const head_job &j, const head_form &f, const lane_pairs &l,
                                const head_vec<kLanePairs> &v, int32_t lane)
{
    const float r = j.gain ? head_factor(v, f.eps, f.dim) : 1.0f;
#pragma unroll
    for (int i = 0; i < kLanePairs; i++) {
        float a = v.a[i];
        float b = v.b[i];
        if (l.at[i] == kNoPair) continue;
        if (j.gain) {
            a = (a * r) * j.gain[pair_a(l.at[i])];
            b = (b * r) * j.gain[pair_b(l.at[i])];
        }
        if (lane + 32 * i < j.n_rot) {
            const float2 turn = j.sines[lane + 32 * i];
            rotate_pair(a, b, turn.x, turn.y, &a, &b);
        }
        j.to[pair_a(l.at[i])] = to_bf16(a);
        j.to[pair_b(l.at[i])] = to_bf16(b);
    }
}

} // namespace sk
