/* Ops `attend` and `rope_attend` in mode BF16. Match head dimensions that are multiples of 16 up to
 * 256, splits of 128, caches whose cells lie on 16 bytes, V of the pass on 16, q and out on 4;
 * other arguments are refused. Wrong if a row at a position below ctx_bound sees a cell that nobody
 * has written: what is between first and pos has to be in the caches or in the pass. */
#include "kernels/sk_kernels.h"

#include "kernels/attend/append.cuh"
#include "kernels/attend/chunk.cuh"
#include "kernels/attend/decode.cuh"
#include "kernels/common/setup.cuh"

namespace sk
{

constexpr int32_t kDecodeRows = SK_ATTEND_DECODE_ROWS;
constexpr int32_t kSharedMost = 227 * 1024;

/* ---- shapes ---------------------------------------------------------------------------------- */

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

static bool on(const sk_view &v, int64_t bytes)
{
    int64_t all = static_cast<int64_t>(reinterpret_cast<uintptr_t>(v.p));
    for (int d = 0; d < v.rank - 1; d++) all |= v.stride[d];
    return all % bytes == 0;
}

/* What both ops have to be. */
template <typename Args> static bool matches(const Args *a)
{
    const int64_t dim = a->q.dim[2];
    return dim >= 16 && dim <= kDimMax && dim % 16 == 0 && a->split == kSplit &&
           a->k_cache.dtype == SK_BF16 && a->v_cache.dtype == SK_BF16 && a->out.dtype == SK_BF16 &&
           on(a->k_cache, 16) && on(a->v_cache, 16) && on(a->out, 4) && on(a->rows, 4);
}

/* ---- the task -------------------------------------------------------------------------------- */

template <typename Args> static attend_task task_of(const Args *a, const sk_launch *l)
{
    attend_task t = task_of_args(a);
    const int64_t bound = a->window > 0 && a->window < l->ctx_bound ? a->window : l->ctx_bound;
    const int64_t whole = round_up(bound < 1 ? 1 : bound, kSplit);
    const int64_t most = sk_attend_chunk_cells(a->q.dim[2]);
    t.window = a->window;
    t.cells = static_cast<int32_t>(whole < most ? whole : most);
    t.n_splits = static_cast<int32_t>(sk_attend_splits(round_up(whole, t.cells)));
    t.rows_ready = l->rows_ready;
    return t;
}

static void add_fresh(attend_task *t, const sk_rope_attend_args *a)
{
    t->q = heads_at<const float>(a->q);
    t->k = heads_at<const float>(a->k);
    t->v = heads_at<const float>(a->v);
    t->q_norm = sk_view_present(&a->q_norm) ? ptr<const float>(a->q_norm) : nullptr;
    t->k_norm = sk_view_present(&a->k_norm) ? ptr<const float>(a->k_norm) : nullptr;
    t->freq = ptr<const float>(a->freq);
    t->form.eps = a->eps;
    t->form.neox = a->neox;
    t->n_rot = static_cast<int32_t>(a->freq.dim[0]);
}

/* One CTA a (row, query head). */
__global__ void __launch_bounds__(kMergeThreads) attend_merge(const attend_task t)
{
    const int32_t row = t.first + static_cast<int32_t>(blockIdx.x);
    const int32_t head = static_cast<int32_t>(blockIdx.y);
    const int32_t pair = static_cast<int32_t>(threadIdx.x);
    edge_wait();
    edge_open();
    const row_span s = span_of(t, row, 0, false);
    if (s.n == 0 || pair >= t.form.dim / 2) return;
    const split_parts parts = parts_in_work(t, row, gridDim.y, head, 0);
    merge_into<8>(t.out.p + row * t.out.row + head * t.out.head, parts, 0, pair,
                  (s.n + kSplit - 1) / kSplit);
}

/* ---- launching ------------------------------------------------------------------------------- */

static bool fits(int64_t step) { return step >= 0 && step <= INT32_MAX; }

template <typename T> static bool steps_fit(const head_rows<T> &x)
{
    return fits(x.row) && fits(x.head);
}

static bool steps_fit(const cache_rows &x) { return fits(x.slot) && fits(x.pos) && fits(x.head); }

using chunk_kernel = void(attend_task);

/* The kernel for rows of this pass. */
static chunk_kernel *fresh_kernel(const attend_task &t)
{
    if (t.group > kCols || !steps_fit(t.q) || !steps_fit(t.k) || !steps_fit(t.v) ||
        !steps_fit(t.out) || !steps_fit(t.k_cache) || !steps_fit(t.v_cache))
        return attend_chunk<true>;
    if (t.form.dim == 64) return attend_decode<64>;
    if (t.form.dim == 128) return attend_decode<128>;
    return t.form.dim == 256 ? attend_decode<256> : attend_chunk<true>;
}

/* Rows t.first .. of the pass. */
static int32_t launch_rows(const attend_task &t, const sk_launch *l, int64_t n_kv, int64_t rows,
                           bool fresh)
{
    const unsigned chunks = static_cast<unsigned>(t.n_splits / (t.cells / kSplit));
    const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(n_kv), chunks);
    const dim3 heads(static_cast<unsigned>(rows), static_cast<unsigned>(n_kv * t.group));
    const size_t shared = static_cast<size_t>(t.shared.bytes);
    const int32_t rc = launch(l, fresh ? fresh_kernel(t) : attend_chunk<false>, grid,
                              dim3(kAttendThreads), shared, t);
    if (rc != 0 || !t.sums) return rc;
    return launch(l, attend_merge, heads, dim3(kMergeThreads), 0, t);
}

/* All rows. A tier of several chunks takes as many at a time as there is scratch for their splits,
 * which starts at `work`. */
static int32_t launch_all(attend_task t, const sk_launch *l, int64_t n_kv, uint8_t *work,
                          bool fresh)
{
    const int64_t heads = n_kv * t.group;
    int64_t step = t.capacity;
    int32_t rc = 0;
    if (t.n_splits * kSplit > t.cells) {
        // From the caches alone nothing is loaded early: two CTAs on an SM, one loads, one works.
        if (!fresh && t.cells > kSplit) t.cells /= 2;
        step = sk_attend_rows_at_once(t.capacity, heads, t.form.dim, l->ctx_bound);
        t.sums = reinterpret_cast<float2 *>(work);
        t.o = reinterpret_cast<float *>(t.sums + step * heads * t.n_splits);
    }
    t.shared = map_shared(t.form.dim, t.cells, fresh ? t.capacity : 0, t.n_rot);
    if (t.shared.bytes > kSharedMost) return cudaErrorInvalidValue;
    for (int64_t row = 0; row < t.capacity && rc == 0; row += step) {
        const int64_t left = t.capacity - row;
        t.first = static_cast<int32_t>(row);
        rc = launch_rows(t, l, n_kv, left < step ? left : step, fresh);
    }
    return rc;
}

/* The whole pass into the caches first, then attention from there. */
static int32_t launch_wide(attend_task t, const sk_launch *l, int64_t n_kv)
{
    const int64_t dim = t.form.dim;
    bf16 *turned = reinterpret_cast<bf16 *>(l->work);
    int32_t rc;
    t.turned = {turned, n_kv * t.group * dim, dim};
    rc = launch(l, attend_append, dim3(static_cast<unsigned>(t.capacity)), dim3(kAppendThreads), 0,
                t, turned, static_cast<int32_t>(n_kv));
    if (rc != 0) return rc;
    return launch_all(t, l, n_kv, l->work + sk_attend_turned_bytes(t.capacity, n_kv * t.group, dim),
                      false);
}

} // namespace sk

extern "C" int32_t sk_k_attend(const sk_attend_args *a, const sk_launch *l)
{
    if (!sk::matches(a) || a->q.dtype != SK_BF16 || !sk::on(a->q, 4)) return cudaErrorInvalidValue;
    sk::attend_task t = sk::task_of(a, l);
    t.turned = sk::heads_at<const sk::bf16>(a->q);
    return sk::launch_all(t, l, a->k_cache.dim[2], l->work, false);
}

extern "C" int32_t sk_k_rope_attend(const sk_rope_attend_args *a, const sk_launch *l)
{
    if (!sk::matches(a) || !sk::on(a->v, 16)) return cudaErrorInvalidValue;
    sk::attend_task t = sk::task_of(a, l);
    sk::add_fresh(&t, a);
    if (t.capacity > sk::kDecodeRows) return sk::launch_wide(t, l, a->k_cache.dim[2]);
    return sk::launch_all(t, l, a->k_cache.dim[2], l->work, true);
}

extern "C" int32_t sk_setup_attend(void)
{
    int32_t rc = sk::allow_shared(sk::attend_chunk<true>, sk::kSharedMost);
    if (rc == 0) rc = sk::allow_shared(sk::attend_chunk<false>, sk::kSharedMost);
    if (rc == 0) rc = sk::allow_shared(sk::attend_decode<64>, sk::kSharedMost);
    if (rc == 0) rc = sk::allow_shared(sk::attend_decode<128>, sk::kSharedMost);
    if (rc == 0) rc = sk::allow_shared(sk::attend_decode<256>, sk::kSharedMost);
    if (rc == 0) rc = sk::allow_shared(sk::attend_merge, 0);
    if (rc == 0) rc = sk::allow_shared(sk::attend_append, 0);
    return rc;
}
