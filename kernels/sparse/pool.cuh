/* Keys of an index, and the pooled ones of whole blocks. A CTA has a row: its key goes into `raw`,
 * and if it completes a block, the CTA makes the pooled key: sum over the block ascending, then
 * norm and rotation as by rms_norm and rope, with their bits. Keys of the block that come with this
 * pass are rounded where they are read, so that no CTA waits for another. */
#pragma once

#include "kernels/common/live_row.cuh"
#include "kernels/common/rotate.cuh"
#include "kernels/norm/norm.cuh"
#include "kernels/sparse/divisor.cuh"

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

struct index_views {
    rows<const float> k;
    const float *gain, *freq;
    rows<const sk_row> at;
    slot_rows<__nv_bfloat16> raw, pooled;
    int32_t n;       // elements of a key
    int32_t n_pairs; // that are rotated
    divisor ratio;
    float eps;
};

constexpr int kHeld = 4;         // elements of a thread whose loads are in flight at a time
constexpr int kTogetherKeys = 3; // and keys of a block

/* Of what is constant, a thread's first: read ahead of the wait. */
struct held_constants {
    float gain[kHeld], freq[kHeld / 2];
};

__device__ inline held_constants hold_constants(const index_views &v, const team &t)
{
    held_constants h;
#pragma unroll
    for (int j = 0; j < kHeld; j++)
        h.gain[j] = t.lane + j * t.size < v.n ? v.gain[t.lane + j * t.size] : 0.0f;
#pragma unroll
    for (int j = 0; j < kHeld / 2; j++)
        h.freq[j] = t.lane + j * t.size < v.n_pairs ? v.freq[t.lane + j * t.size] : 0.0f;
    return h;
}

__device__ inline float rounded(float x) { return from_bf16(to_bf16(x)); }

/* Adds to sum the keys that come before the row's own in its block, ascending: of kHeld elements, i
 * and every `step`-th from there. The last `at` of them belong to rows of this pass. */
__device__ inline void add_keys(float (&sum)[kHeld], const index_views &v, const live_row &row,
                                int32_t r, int32_t i, int32_t step)
{
    const int32_t before = static_cast<int32_t>(v.ratio.by) - 1;
#pragma unroll 1
    for (int32_t k0 = 0; k0 < before; k0 += kTogetherKeys) {
        // Apart, as a load into a register waits for the one before, even if it is not taken.
        float fresh[kTogetherKeys][kHeld];
        __nv_bfloat16 old[kTogetherKeys][kHeld];
#pragma unroll
        for (int k = 0; k < kTogetherKeys; k++) {
            const int32_t back = before - k0 - k;
            const float *x = v.k[r - back];
            const __nv_bfloat16 *raw = v.raw.at(row.slot, row.pos - back);
#pragma unroll
            for (int j = 0; j < kHeld; j++) {
                const bool there = back > 0 && i + j * step < v.n;
                fresh[k][j] = there && back <= row.at ? x[i + j * step] : 0.0f;
                old[k][j] = there && back > row.at ? raw[i + j * step] : __ushort_as_bfloat16(0);
            }
        }
#pragma unroll
        for (int k = 0; k < kTogetherKeys; k++) {
            const int32_t back = before - k0 - k;
            if (back <= 0) break;
#pragma unroll
            for (int j = 0; j < kHeld; j++)
                sum[j] =
                    __fadd_rn(sum[j], back <= row.at ? rounded(fresh[k][j]) : from_bf16(old[k][j]));
        }
    }
}

/* The row's key; if it is the last of its block, the mean goes to m, rounded, in F32. */
__device__ inline void append_key(const index_views &v, const live_row &row, int32_t r, bool last,
                                  const team &t, float *m)
{
    const float *x = v.k[r];
    __nv_bfloat16 *to = v.raw.at(row.slot, row.pos);
#pragma unroll 1
    for (int32_t i = t.lane; i < v.n; i += kHeld * t.size) {
        float own[kHeld], sum[kHeld] = {};
#pragma unroll
        for (int j = 0; j < kHeld; j++) own[j] = i + j * t.size < v.n ? x[i + j * t.size] : 0.0f;
        if (last) add_keys(sum, v, row, r, i, t.size);
#pragma unroll
        for (int j = 0; j < kHeld; j++) {
            if (i + j * t.size >= v.n) break;
            put(to + i + j * t.size, own[j]);
            if (last)
                m[i + j * t.size] = rounded(
                    __fdiv_rn(__fadd_rn(sum[j], rounded(own[j])), static_cast<float>(v.ratio.by)));
        }
    }
}

__device__ inline void put_pair(const index_views &v, const float *x, int32_t i, float c, float s,
                                __nv_bfloat16 *out)
{
    float to_a, to_b;
    rotate_pair(x[i], x[i + v.n_pairs], c, s, &to_a, &to_b);
    put(out + i, to_a);
    put(out + i + v.n_pairs, to_b);
}

/* One CTA a row, of as many threads as rms_norm has for this length; shared memory for a key. */
__global__ void __launch_bounds__(kNormBlockMax) append_keys(index_views v, pass p)
{
    extern __shared__ __align__(16) float key[];
    __shared__ double room[32];
    const team t = {static_cast<int32_t>(threadIdx.x), static_cast<int32_t>(blockDim.x)};
    const int32_t r = blockIdx.x;
    const held_constants held = hold_constants(v, t);
    const live_row row = wait_row(v.at, p, r);
    if (!row.live) return;
    const uint32_t pos = static_cast<uint32_t>(row.pos), block = divided(pos, v.ratio);
    const bool last = pos - block * v.ratio.by == v.ratio.by - 1;
    append_key(v, row, r, last, t, key);
    if (!last) return;
    const float first = static_cast<float>(static_cast<int32_t>(block * v.ratio.by));
    float c[kHeld / 2], s[kHeld / 2];
#pragma unroll
    for (int j = 0; j < kHeld / 2; j++) rotation(first, held.freq[j], &c[j], &s[j]);
    __syncthreads();
    const double squares = block_sum(lane_squares(key, v.n, t, v.n % 4 == 0), room);
    const float factor = norm_factor(squares, v.n, v.eps);
#pragma unroll
    for (int j = 0; j < kHeld; j++) {
        const int32_t i = t.lane + j * t.size;
        if (i < v.n) key[i] = normed(key[i], factor, held.gain[j]);
    }
#pragma unroll 1
    for (int32_t i = t.lane + kHeld * t.size; i < v.n; i += t.size)
        key[i] = normed(key[i], factor, v.gain[i]);
    __syncthreads();
    __nv_bfloat16 *out = v.pooled.at(row.slot, static_cast<int32_t>(block));
#pragma unroll
    for (int j = 0; j < kHeld / 2; j++)
        if (t.lane + j * t.size < v.n_pairs) put_pair(v, key, t.lane + j * t.size, c[j], s[j], out);
#pragma unroll 1
    for (int32_t i = t.lane + kHeld / 2 * t.size; i < v.n_pairs; i += t.size) {
        rotation(first, v.freq[i], &c[0], &s[0]);
        put_pair(v, key, i, c[0], s[0], out);
    }
#pragma unroll 1
    for (int32_t i = 2 * v.n_pairs + t.lane; i < v.n; i += t.size) put(out + i, key[i]);
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
        divisor_of(a->ratio),
        a->eps,
    };
    const pass p = pass_of(l, a->count, a->k.dim[0]);
    const dim3 grid(static_cast<unsigned>(a->k.dim[0]));
    return launch(l, append_keys, grid, dim3(team_threads(v.n)), static_cast<size_t>(v.n) * 4, v,
                  p);
}

} // namespace sk
