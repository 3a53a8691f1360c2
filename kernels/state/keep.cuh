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

template <typename T> struct window_views {
    heads<T> window;
    int32_t size;  // rows
    int32_t n;     // columns
    int32_t ready; // sk_launch.state_ready
};

template <typename T> window_views<T> window_of(const sk_launch *l, const sk_view &window)
{
    return window_views<T>{heads_of<T>(window), static_cast<int32_t>(window.dim[1]),
                           static_cast<int32_t>(window.dim[2]), l->state_ready};
}

/* A thread a column of a slot. */
inline dim3 window_grid(const sk_view &window)
{
    return dim3(static_cast<unsigned>((window.dim[2] + kElemThreads - 1) / kElemThreads),
                static_cast<unsigned>(window.dim[0]));
}

/* A column of a window and the n > 0 rows behind it: the last of all are kept. A row moves to a
 * lower place or comes from outside, so in ascending order none is lost, and rows read together are
 * read before any of them is written. */
template <typename T, typename Row> struct push_views {
    T *window;
    int64_t step;
    const Row *behind;
    int64_t behind_step;
    int32_t size, n;
};

/* What becomes rows i .. of the window. Where both have one type nothing is done with what is
 * loaded, so that all of it is on its way together. */
template <typename T, typename Row>
__device__ inline void load_rows(const push_views<T, Row> &v, int32_t i, T (&x)[kWindowRows])
{
#pragma unroll
    for (int32_t j = 0; j < kWindowRows; j++) {
        const int32_t from = i + j + v.n;
        const T *old = v.window + from * v.step;
        const Row *fresh = v.behind + (from - v.size) * v.behind_step;
        if (i + j >= v.size) break;
        if constexpr (sizeof(T) == sizeof(Row))
            x[j] = *(from < v.size ? old : fresh);
        else
            put(x + j, from < v.size ? get(old) : get(fresh));
    }
}

/* Writes them, and does the rows after them. */
template <typename T, typename Row>
__device__ inline void push_rows(const push_views<T, Row> &v, T (&x)[kWindowRows])
{
    for (int32_t i = 0; i < v.size; i += kWindowRows) {
        if (i > 0) load_rows(v, i, x);
#pragma unroll
        for (int32_t j = 0; j < kWindowRows; j++)
            if (i + j < v.size) v.window[(i + j) * v.step] = x[j];
    }
}

/* Where all is ready, the first rows are on their way while the kernel waits. */
template <typename T>
__global__ void __launch_bounds__(kElemThreads)
    commit_columns(window_views<T> v, heads<const T> pending, const int32_t *kept)
{
    const int32_t slot = blockIdx.y;
    const int32_t d = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
    const int64_t size = sizeof(T);
    push_views<T, T> push = {v.window.at(slot, 0) + d,
                             v.window.head_step / size,
                             pending.at(slot, 0) + d,
                             pending.head_step / size,
                             v.size,
                             0};
    T x[kWindowRows];
    if (!v.ready) edge_wait();
    push.n = kept[slot];
    const bool pushes = push.n > 0 && d < v.n;
    if (pushes) load_rows(push, 0, x);
    edge_wait();
    edge_open();
    if (pushes) push_rows(push, x);
}

template <typename T>
__global__ void __launch_bounds__(kElemThreads)
    push_columns(window_views<T> v, rows<const sk_row> table, rows<const float> x, pass p)
{
    const int32_t slot = blockIdx.y;
    const int32_t d = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
    const slot_span span = wait_span(table, p, slot);
    if (span.n == 0 || d >= v.n) return;
    const push_views<T, float> push = {v.window.at(slot, 0) + d,
                                       v.window.head_step / static_cast<int64_t>(sizeof(T)),
                                       x[span.first] + d,
                                       x.step / static_cast<int64_t>(sizeof(float)),
                                       v.size,
                                       span.n};
    T first[kWindowRows];
    load_rows(push, 0, first);
    push_rows(push, first);
}

} // namespace sk
