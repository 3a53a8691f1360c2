/* Rotating heads and appending them to a cache: one warp a head, eight heads a CTA. */
#pragma once

#include "kernels/common/bf16.cuh"
#include "kernels/common/live_row.cuh"
#include "kernels/common/rotate.cuh"
#include "kernels/common/rows.cuh"

namespace sk
{

constexpr int kHeadsPerBlock = 8;

inline dim3 head_grid(int64_t n_rows, int64_t n_heads, unsigned z)
{
    return dim3(static_cast<unsigned>(n_rows),
                static_cast<unsigned>((n_heads + kHeadsPerBlock - 1) / kHeadsPerBlock), z);
}

__device__ inline int32_t head_of_warp() { return blockIdx.y * kHeadsPerBlock + threadIdx.y; }

template <typename Out> struct rope_views {
    heads<const float> x;
    const float *freq;
    rows<const sk_row> at;
    heads<Out> out;
    int32_t n_heads;
    int32_t n;       // elements of a head
    int32_t n_pairs; // that are rotated
    int32_t neox;
};

template <typename Out>
__device__ inline void rotate_head(const rope_views<Out> &v, const float *x, Out *out, float pos,
                                   float first_freq)
{
    // What does not rotate is asked for at once, ahead of the first store.
    constexpr int kRest = 8;
    const int32_t behind = 2 * v.n_pairs + static_cast<int32_t>(threadIdx.x);
    float rest[kRest];
#pragma unroll
    for (int j = 0; j < kRest; j++) rest[j] = behind + 32 * j < v.n ? x[behind + 32 * j] : 0.0f;
    for (int32_t i = threadIdx.x; i < v.n_pairs; i += 32) {
        const int32_t at = v.neox ? i : 2 * i;
        const int32_t with = v.neox ? i + v.n_pairs : 2 * i + 1;
        const float a = x[at];
        const float b = x[with];
        float c, s, to_a, to_b;
        rotation(pos, i < 32 ? first_freq : v.freq[i], &c, &s);
        rotate_pair(a, b, c, s, &to_a, &to_b);
        put(out + at, to_a);
        put(out + with, to_b);
    }
#pragma unroll
    for (int j = 0; j < kRest; j++)
        if (behind + 32 * j < v.n) put(out + behind + 32 * j, rest[j]);
#pragma unroll 1
    for (int32_t i = behind + 32 * kRest; i < v.n; i += 32) put(out + i, x[i]);
}

template <typename Out>
__global__ void __launch_bounds__(32 * kHeadsPerBlock) rotate_heads(rope_views<Out> v, pass p)
{
    const int32_t r = blockIdx.x;
    const int32_t h = head_of_warp();
    const int32_t lane = static_cast<int32_t>(threadIdx.x);
    const float first_freq = lane < v.n_pairs ? v.freq[lane] : 0.0f; // a constant
    const live_row row = wait_row(v.at, p, r);
    if (!row.live || h >= v.n_heads) return;
    rotate_head(v, v.x.at(r, h), v.out.at(r, h), static_cast<float>(row.pos), first_freq);
}

template <typename Out> int32_t launch_rope(const sk_rope_args *a, const sk_launch *l)
{
    const rope_views<Out> v = {
        heads_of<const float>(a->x),          ptr<const float>(a->freq),
        rows_of<const sk_row>(a->rows),       heads_of<Out>(a->out),
        static_cast<int32_t>(a->x.dim[1]),    static_cast<int32_t>(a->x.dim[2]),
        static_cast<int32_t>(a->freq.dim[0]), a->neox,
    };
    return launch(l, rotate_heads<Out>, head_grid(a->x.dim[0], a->x.dim[1], 1),
                  dim3(32, kHeadsPerBlock), 0, v, pass_of(l, a->count, a->x.dim[0]));
}

/* BF16 stays as it is; a signalling NaN becomes quiet, as in every conversion. */
__device__ inline void keep(__nv_bfloat16 *to, __nv_bfloat16 x)
{
    const uint16_t bits = __bfloat16_as_ushort(x);
    *to = __ushort_as_bfloat16((bits & 0x7fffu) > 0x7f80u ? bits | 0x40u : bits);
}
__device__ inline void keep(__nv_bfloat16 *to, float x) { put(to, x); }
__device__ inline void keep(float *to, float x) { put(to, x); }

/* A cache [B, C, H, D] and the heads that go into it. */
template <typename Cache> struct fresh_views {
    heads<const uint8_t> fresh;
    uint8_t *cache;
    int64_t slot_step;
    int64_t pos_step;
    int64_t head_step;
    int32_t fresh_bf16;

    __device__ Cache *at(const live_row &row, int32_t h) const
    {
        return reinterpret_cast<Cache *>(cache + row.slot * slot_step + row.pos * pos_step +
                                         h * head_step);
    }
};

template <typename Cache> fresh_views<Cache> fresh_of(const sk_view &fresh, const sk_view &cache)
{
    return fresh_views<Cache>{
        heads_of<const uint8_t>(fresh), cache.p, cache.stride[0], cache.stride[1], cache.stride[2],
        fresh.dtype == SK_BF16};
}

/* The contract has them apart. */
template <typename From, typename To>
__device__ inline void copy_head(const From *__restrict__ from, To *__restrict__ to, int32_t n)
{
#pragma unroll 4
    for (int32_t i = threadIdx.x; i < n; i += 32) keep(to + i, from[i]);
}

/* BF16 goes into a cache of BF16 only. */
template <typename Cache>
__device__ inline void append_head(const fresh_views<Cache> &f, int32_t r, int32_t h, int32_t n,
                                   const live_row &row)
{
    const uint8_t *from = f.fresh.at(r, h);
    if (f.fresh_bf16)
        copy_head(reinterpret_cast<const Cache *>(from), f.at(row, h), n);
    else
        copy_head(reinterpret_cast<const float *>(from), f.at(row, h), n);
}

template <typename Cache>
__global__ void __launch_bounds__(32 * kHeadsPerBlock)
    append_heads(fresh_views<Cache> k, fresh_views<Cache> v, rows<const sk_row> at, int32_t n_heads,
                 int32_t n, pass p)
{
    const int32_t r = blockIdx.x;
    const int32_t h = head_of_warp();
    const live_row row = wait_row(at, p, r);
    if (!row.live || h >= n_heads) return;
    if (blockIdx.z == 0) // a branch, as a reference to either would move both to local memory
        append_head(k, r, h, n, row);
    else
        append_head(v, r, h, n, row);
}

template <typename Cache> int32_t launch_append(const sk_kv_append_args *a, const sk_launch *l)
{
    return launch(l, append_heads<Cache>, head_grid(a->k.dim[0], a->k.dim[1], 2),
                  dim3(32, kHeadsPerBlock), 0, fresh_of<Cache>(a->k, a->k_cache),
                  fresh_of<Cache>(a->v, a->v_cache), rows_of<const sk_row>(a->rows), a->k.dim[1],
                  a->k.dim[2], pass_of(l, a->count, a->k.dim[0]));
}

} // namespace sk
