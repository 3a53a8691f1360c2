/* Rows that are kept for the next commit, and windows. Copies, rounded where the target is BF16;
 * see state.cu. */
#pragma once

#include "kernels/common/quads.cuh"
#include "kernels/common/span.cuh"

namespace sk
{

/* One element as F32. */
__device__ inline float get(const float *x) { return *x; }
__device__ inline float get(const __nv_bfloat16 *x) { return from_bf16(*x); }

/* Entry `at` of a slot in `pending`, one column after the other. */
template <typename Kept> struct keep_views {
    rows<const sk_row> table;
    heads<Kept> pending;
    rows<float> x; // the other side: x of keep_rows, out of take_rows
    int32_t n;     // columns
    int32_t wide;  // rows are aligned for four elements at a time
};

/* Four columns of a row a thread. */
template <typename Kept>
__global__ void __launch_bounds__(kElemThreads) keep_columns(keep_views<Kept> v, pass p)
{
    const int32_t r = blockIdx.x;
    const int32_t i = 4 * static_cast<int32_t>(blockIdx.y * blockDim.x + threadIdx.x);
    if (r >= wait_rows(p) || i >= v.n) return;
    const sk_row row = *v.table[r];
    store_quad(v.pending.at(row.slot, row.at), i, v.n, v.wide, load_quad(v.x[r], i, v.n, v.wide));
}

template <typename Kept>
__global__ void __launch_bounds__(kElemThreads) take_columns(keep_views<Kept> v, pass p)
{
    const int32_t r = blockIdx.x;
    const int32_t first = static_cast<int32_t>(blockIdx.y * blockDim.x) * 4 + threadIdx.x;
    if (r >= wait_rows(p)) return;
    const sk_row row = *v.table[r];
    const Kept *from = v.pending.at(row.slot, row.at);
    float *to = v.x[r];
#pragma unroll
    for (int32_t j = 0; j < 4; j++) {
        const int32_t i = first + j * kElemThreads;
        if (i < v.n) to[i] = get(from + i);
    }
}

template <typename Kept>
int32_t launch_keep(const sk_launch *l, void (*kernel)(keep_views<Kept>, pass), const sk_view &x,
                    const sk_view &table, const sk_view &count, const sk_view &pending)
{
    const int64_t n = x.dim[1];
    const keep_views<Kept> v = {rows_of<const sk_row>(table), heads_of<Kept>(pending),
                                rows_of<float>(x), static_cast<int32_t>(n),
                                row_aligned(x, 16) && row_aligned(pending, 4 * sizeof(Kept))};
    const dim3 grid(static_cast<unsigned>(x.dim[0]),
                    static_cast<unsigned>((n + 4 * kElemThreads - 1) / (4 * kElemThreads)));
    return launch(l, kernel, grid, dim3(kElemThreads), 0, v, pass_of(l, count, x.dim[0]));
}

constexpr int32_t kWindowRows = 4; // read before the first of them is written

/* Behind a slot's window come n > 0 rows: keeps the last of all, in one column. `behind(i)` is
 * element i of the rows behind. A row moves to a lower place or comes from outside, so in ascending
 * order none is lost, and rows read together are read before any of them is written. */
template <typename T, typename Behind>
__device__ inline void push_column(T *window, int64_t step, int32_t size, int32_t n, Behind behind)
{
    for (int32_t i = 0; i < size; i += kWindowRows) {
        float x[kWindowRows];
#pragma unroll
        for (int32_t j = 0; j < kWindowRows; j++) {
            const int32_t from = i + j + n;
            x[j] = i + j >= size ? 0.0f
                   : from < size ? get(window + from * step)
                                 : behind(from - size);
        }
#pragma unroll
        for (int32_t j = 0; j < kWindowRows; j++)
            if (i + j < size) put(window + (i + j) * step, x[j]);
    }
}

template <typename T> struct window_views {
    heads<T> window;
    int32_t size; // rows
    int32_t n;    // columns
};

template <typename T> window_views<T> window_of(const sk_view &window)
{
    return window_views<T>{heads_of<T>(window), static_cast<int32_t>(window.dim[1]),
                           static_cast<int32_t>(window.dim[2])};
}

/* A thread a column of a slot. */
inline dim3 window_grid(const sk_view &window)
{
    return dim3(static_cast<unsigned>((window.dim[2] + kElemThreads - 1) / kElemThreads),
                static_cast<unsigned>(window.dim[0]));
}

template <typename T>
__global__ void __launch_bounds__(kElemThreads)
    commit_columns(window_views<T> v, heads<const T> pending, const int32_t *kept)
{
    const int32_t slot = blockIdx.y;
    const int32_t d = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
    edge_wait();
    edge_open();
    const int32_t n = kept[slot];
    if (n <= 0 || d >= v.n) return;
    const T *from = pending.at(slot, 0) + d;
    const int64_t step = pending.head_step / static_cast<int64_t>(sizeof(T));
    push_column(v.window.at(slot, 0) + d, v.window.head_step / static_cast<int64_t>(sizeof(T)),
                v.size, n, [=](int32_t i) { return get(from + i * step); });
}

template <typename T>
__global__ void __launch_bounds__(kElemThreads)
    push_columns(window_views<T> v, rows<const sk_row> table, rows<const float> x, pass p)
{
    const int32_t slot = blockIdx.y;
    const int32_t d = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
    const slot_span span = find_rows(table, wait_rows(p), slot);
    if (span.n == 0 || d >= v.n) return;
    const float *from = x[span.first] + d;
    const int64_t step = x.step / static_cast<int64_t>(sizeof(float));
    push_column(v.window.at(slot, 0) + d, v.window.head_step / static_cast<int64_t>(sizeof(T)),
                v.size, span.n, [=](int32_t i) { return from[i * step]; });
}

} // namespace sk
