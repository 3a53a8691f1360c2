/* Keys of an index, and the pooled ones of whole blocks. First all keys of the pass go into `raw`,
 * then, in a launch of its own, a CTA for each row that completes a block makes the pooled key: sum
 * over the block ascending, then norm and rotation as by rms_norm and rope, with their bits. */
#pragma once

#include "kernels/common/rotate.cuh"
#include "kernels/norm/norm.cuh"

namespace sk
{

/* [B, N, D], a row of a slot at a time. */
template <typename T> struct slot_rows {
    uint8_t *p;
    int64_t slot_step, step;

    __device__ T *at(int32_t slot, int32_t i) const
    {
        return reinterpret_cast<T *>(p + slot * slot_step + i * step);
    }
};

template <typename T> slot_rows<T> slot_rows_of(const sk_view &v)
{
    return slot_rows<T>{v.p, v.stride[0], v.stride[1]};
}

/* A row of the pass. */
struct live_row {
    int32_t slot, pos;
    bool live;
};

/* Both halves of the edge. The row and the count are on their way together, and while the kernel
 * waits if they are ready. */
__device__ inline live_row wait_row(const rows<const sk_row> &at, const pass &p, int32_t r)
{
    int32_t slot = 0, pos = 0, count = 0;
    if (p.ready) {
        slot = at[r]->slot;
        pos = at[r]->pos;
        count = *p.count;
    }
    edge_wait();
    edge_open();
    if (!p.ready) {
        slot = at[r]->slot;
        pos = at[r]->pos;
        count = *p.count;
    }
    asm volatile("" : "+r"(slot), "+r"(pos), "+r"(count)); // read here, not where it is needed
    return {slot, pos, r < count};
}

struct index_views {
    rows<const float> k;
    const float *gain, *freq;
    rows<const sk_row> at;
    slot_rows<__nv_bfloat16> raw, pooled;
    int32_t n;       // elements of a key
    int32_t n_pairs; // that are rotated
    int32_t ratio;
    float eps;
};

constexpr int32_t kKeyThreads = 128;

/* One CTA a row. */
__global__ void __launch_bounds__(kKeyThreads) append_keys(index_views v, pass p)
{
    const int32_t r = blockIdx.x;
    if (r >= wait_rows(p)) return;
    const float *x = v.k[r];
    __nv_bfloat16 *to = v.raw.at(v.at[r]->slot, v.at[r]->pos);
    for (int32_t i = threadIdx.x; i < v.n; i += kKeyThreads) put(to + i, x[i]);
}

/* The mean of the block's raw keys, rounded, in F32. */
__device__ inline void mean_key(const index_views &v, int32_t slot, int32_t first, float *m)
{
    for (int32_t i = threadIdx.x; i < v.n; i += blockDim.x) {
        float sum = 0;
        for (int32_t k = 0; k < v.ratio; k++)
            sum = __fadd_rn(sum, from_bf16(v.raw.at(slot, first + k)[i]));
        m[i] = from_bf16(to_bf16(__fdiv_rn(sum, static_cast<float>(v.ratio))));
    }
}

__device__ inline void rotate_key(const index_views &v, const float *x, float pos,
                                  __nv_bfloat16 *out)
{
    for (int32_t i = threadIdx.x; i < v.n_pairs; i += blockDim.x) {
        float c, s, to_a, to_b;
        rotation(pos, v.freq[i], &c, &s);
        rotate_pair(x[i], x[i + v.n_pairs], c, s, &to_a, &to_b);
        put(out + i, to_a);
        put(out + i + v.n_pairs, to_b);
    }
    for (int32_t i = 2 * v.n_pairs + threadIdx.x; i < v.n; i += blockDim.x) put(out + i, x[i]);
}

/* One CTA a row, of as many threads as rms_norm has for this length; shared memory for a key. */
__global__ void __launch_bounds__(kNormBlockMax) pool_keys(index_views v, pass p)
{
    extern __shared__ __align__(16) float key[];
    __shared__ double room[32];
    const team t = {static_cast<int32_t>(threadIdx.x), static_cast<int32_t>(blockDim.x)};
    const int32_t r = blockIdx.x;
    const int32_t live = wait_rows(p);
    if (r >= live) return;
    const sk_row row = *v.at[r];
    const int32_t block = row.pos / v.ratio;
    if (row.pos - block * v.ratio != v.ratio - 1) return;
    const int32_t first = block * v.ratio;
    mean_key(v, row.slot, first, key);
    __syncthreads();
    const double squares = block_sum(lane_squares(key, v.n, t, v.n % 4 == 0), room);
    const float factor = norm_factor(squares, v.n, v.eps);
    for (int32_t i = threadIdx.x; i < v.n; i += blockDim.x)
        key[i] = normed(key[i], factor, v.gain[i]);
    __syncthreads();
    rotate_key(v, key, static_cast<float>(first), v.pooled.at(row.slot, block));
}

/* Threads that rms_norm gives a vector. */
inline unsigned team_threads(int32_t n) { return n <= kNormWarpMax ? 32 : norm_threads(n); }

inline int32_t launch_index_append(const sk_index_append_args *a, const sk_launch *l)
{
    const index_views v = {
        rows_of<const float>(a->k),
        ptr<const float>(a->gain),
        ptr<const float>(a->freq),
        rows_of<const sk_row>(a->rows),
        slot_rows_of<__nv_bfloat16>(a->raw),
        slot_rows_of<__nv_bfloat16>(a->pooled),
        static_cast<int32_t>(a->k.dim[1]),
        static_cast<int32_t>(a->freq.dim[0]),
        a->ratio,
        a->eps,
    };
    const pass p = pass_of(l, a->count, a->k.dim[0]);
    const dim3 grid(static_cast<unsigned>(a->k.dim[0]));
    const int32_t rc = launch(l, append_keys, grid, dim3(kKeyThreads), 0, v, p);
    if (rc != 0) return rc;
    return launch(l, pool_keys, grid, dim3(team_threads(v.n)), static_cast<size_t>(v.n) * 4, v, p);
}

} // namespace sk
