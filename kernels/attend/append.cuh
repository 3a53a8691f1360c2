/* First half of rope_attend when a pass is too wide to rotate its rows where they are used: q to
 * the step's scratch, k and v to the caches. */
#pragma once

#include "kernels/attend/task.cuh"

namespace sk
{

constexpr int32_t kAppendThreads = 256;

/* Head j of a row: those of q, then of k, then of v. */
__device__ inline const float *append_from(const attend_task &t, int32_t n_kv, int32_t row,
                                           int32_t j)
{
    const int32_t n_q = n_kv * t.group;
    const head_rows<const float> &x = j < n_q ? t.q : j < n_q + n_kv ? t.k : t.v;
    return x.p + row * x.row + (j < n_q ? j : (j - n_q) % n_kv) * x.head;
}

__device__ inline head_job append_job(const attend_task &t, bf16 *turned, int32_t n_kv, int32_t row,
                                      const float2 *sines, int32_t j)
{
    const int32_t *entry = t.rows + static_cast<int64_t>(row) * t.row_step;
    const int32_t head = j - n_kv * t.group;
    const bool is_k = head < n_kv;
    const cache_rows &cache = is_k ? t.k_cache : t.v_cache;
    bf16 *cell = cache.p + entry[0] * cache.slot + entry[1] * cache.pos + head % n_kv * cache.head;
    if (head < 0)
        return {t.q_norm, sines, turned + row * t.turned.row + j * t.turned.head, t.n_rot};
    return {is_k ? t.k_norm : nullptr, sines, cell, is_k ? t.n_rot : 0};
}

/* One CTA a row. */
__global__ void __launch_bounds__(kAppendThreads)
    attend_append(const attend_task t, bf16 *turned, int32_t n_kv)
{
    __shared__ float2 sines[kDimMax / 2];
    const int32_t row = static_cast<int32_t>(blockIdx.x);
    const int32_t thread = static_cast<int32_t>(threadIdx.x);
    edge_wait();
    edge_open();
    if (row >= live_rows(t.count, t.capacity)) return;
    const int32_t pos = t.rows[static_cast<int64_t>(row) * t.row_step + 1];
    for (int32_t p = thread; p < t.n_rot; p += kAppendThreads)
        rotation(static_cast<float>(pos), t.freq[p], &sines[p].x, &sines[p].y);
    __syncthreads();
    for (int32_t j = thread / 32; j < (t.group + 2) * n_kv; j += kAppendThreads / 32) {
        const head_job job = append_job(t, turned, n_kv, row, sines, j);
        const lane_pairs pairs = pairs_of(t.form, job.n_rot, thread % 32);
        const head_vec<kLanePairs> x = head_load(append_from(t, n_kv, row, j), pairs);
        head_put(job, t.form, pairs, x, thread % 32);
    }
}

} // namespace sk
