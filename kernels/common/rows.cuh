/* Views as kernels take them: small enough to be parameters. */
#pragma once

#include "kernels/common/launch.cuh"

namespace sk
{

/* Rows of T, a fixed number of bytes apart. */
template <typename T> struct rows {
    uint8_t *p;
    int64_t step;

    __device__ T *operator[](int64_t i) const { return reinterpret_cast<T *>(p + i * step); }
};

template <typename T> rows<T> rows_of(const sk_view &v)
{
    return rows<T>{v.p, v.rank > 1 ? v.stride[0] : 0};
}

/* Rows of heads, [P, H, D]. */
template <typename T> struct heads {
    uint8_t *p;
    int64_t step;
    int64_t head_step;

    __device__ T *at(int64_t row, int64_t head) const
    {
        return reinterpret_cast<T *>(p + row * step + head * head_step);
    }
};

template <typename T> heads<T> heads_of(const sk_view &v)
{
    return heads<T>{v.p, v.stride[0], v.rank > 2 ? v.stride[1] : 0};
}

/* Which rows of a pass are live. */
struct pass {
    const int32_t *count;
    int32_t capacity;
    int32_t ready; // the count may be read before the wait
};

inline pass pass_of(const sk_launch *l, const sk_view &count, int64_t capacity)
{
    return pass{ptr<const int32_t>(count), static_cast<int32_t>(capacity), l->rows_ready};
}

/* Both halves of the edge; returns the number of live rows. A count that is ready is on its way
 * while the kernel waits. */
__device__ inline int32_t wait_rows(const pass &p)
{
    const int32_t early = p.ready ? live_rows(p.count, p.capacity) : 0;
    edge_wait();
    edge_open();
    return p.ready ? early : live_rows(p.count, p.capacity);
}

/* May rows of this view be accessed `bytes` at a time, from the first column on? */
inline bool row_aligned(const sk_view &v, uint64_t bytes)
{
    uint64_t bits = reinterpret_cast<uint64_t>(v.p);
    for (int32_t i = 0; i < v.rank - 1; i++) bits |= static_cast<uint64_t>(v.stride[i]);
    return bits % bytes == 0;
}

} // namespace sk
