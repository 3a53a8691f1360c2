/* Ops `keep_rows`, `take_rows`, `window_commit`, `window_push`, `next_ids`, `ngram_rows`,
 * `draft_rows`, `draft_put`, `commit_rows`. Copies and integers, so results are exact. Match any
 * shape and stride, BF16 and F32, and up to 64 slots. Would be wrong if a live row's slot, position
 * or place lay outside its buffer, if the rows of a slot were not neighbours, or if commit_rows had
 * room for fewer rows than are kept. */
#include "kernels/sk_kernels.h"

#include "kernels/common/setup.cuh"
#include "kernels/state/ids.cuh"
#include "kernels/state/keep.cuh"

namespace sk
{

template <typename T> int32_t window_commit(const sk_window_commit_args *a, const sk_launch *l)
{
    return launch(l, commit_columns<T>, window_grid(a->window), dim3(kElemThreads), 0,
                  window_of<T>(l, a->window), heads_of<const T>(a->pending),
                  ptr<const int32_t>(a->kept));
}

template <typename T> int32_t window_push(const sk_window_push_args *a, const sk_launch *l)
{
    return launch(l, push_columns<T>, window_grid(a->window), dim3(kElemThreads), 0,
                  window_of<T>(l, a->window), rows_of<const sk_row>(a->rows),
                  rows_of<const float>(a->x), pass_of(l, a->count, a->x.dim[0]));
}

} // namespace sk

extern "C" int32_t sk_k_keep_rows(const sk_keep_rows_args *a, const sk_launch *l)
{
    if (a->pending.dtype == SK_BF16)
        return sk::launch_keep(l, sk::keep_columns<__nv_bfloat16>, a->x, a->rows, a->count,
                               a->pending);
    return sk::launch_keep(l, sk::keep_columns<float>, a->x, a->rows, a->count, a->pending);
}

extern "C" int32_t sk_k_take_rows(const sk_take_rows_args *a, const sk_launch *l)
{
    if (a->pending.dtype == SK_BF16)
        return sk::launch_keep(l, sk::take_columns<__nv_bfloat16>, a->out, a->rows, a->count,
                               a->pending);
    return sk::launch_keep(l, sk::take_columns<float>, a->out, a->rows, a->count, a->pending);
}

extern "C" int32_t sk_k_window_commit(const sk_window_commit_args *a, const sk_launch *l)
{
    if (a->window.dtype == SK_BF16) return sk::window_commit<__nv_bfloat16>(a, l);
    return sk::window_commit<float>(a, l);
}

extern "C" int32_t sk_k_window_push(const sk_window_push_args *a, const sk_launch *l)
{
    if (a->window.dtype == SK_BF16) return sk::window_push<__nv_bfloat16>(a, l);
    return sk::window_push<float>(a, l);
}

extern "C" int32_t sk_k_draft_rows(const sk_draft_rows_args *a, const sk_launch *l)
{
    return sk::launch(l, sk::fill_draft_rows, dim3(1), dim3(sk::kSlotThreads), 0,
                      sk::new_rows_of(a->rows, a->count), sk::rows_of<const sk_slot>(a->slots),
                      static_cast<int32_t>(a->slots.dim[0]), sk::ptr<const int32_t>(a->chosen),
                      sk::ptr<int32_t>(a->ids), a->step);
}

extern "C" int32_t sk_k_draft_put(const sk_draft_put_args *a, const sk_launch *l)
{
    return sk::launch(l, sk::put_drafts, dim3(1), dim3(sk::kSlotThreads), 0,
                      sk::rows_of<const sk_row>(a->rows), sk::ptr<const int32_t>(a->chosen),
                      sk::rows_of<int32_t>(a->drafts), sk::ptr<int32_t>(a->n_draft), a->step,
                      sk::pass_of(l, a->count, a->rows.dim[0]));
}

extern "C" int32_t sk_k_commit_rows(const sk_commit_rows_args *a, const sk_launch *l)
{
    return sk::launch(l, sk::fill_commit_rows, dim3(1), dim3(sk::kSlotThreads), 0,
                      sk::new_rows_of(a->rows, a->count), sk::rows_of<const sk_slot>(a->slots),
                      static_cast<int32_t>(a->slots.dim[0]), sk::ptr<const int32_t>(a->kept));
}

extern "C" int32_t sk_k_next_ids(const sk_next_ids_args *a, const sk_launch *l)
{
    const int64_t n = a->rows.dim[0];
    const int64_t blocks = (n + sk::kElemThreads - 1) / sk::kElemThreads;
    return sk::launch(l, sk::look_ahead, dim3(static_cast<unsigned>(blocks)),
                      dim3(sk::kElemThreads), 0, sk::rows_of<const int32_t>(a->tokens),
                      sk::rows_of<const sk_row>(a->rows), sk::ptr<int32_t>(a->ids),
                      sk::pass_of(l, a->count, n));
}

extern "C" int32_t sk_k_ngram_rows(const sk_ngram_rows_args *a, const sk_launch *l)
{
    const int32_t n_heads = static_cast<int32_t>(a->size.dim[0]);
    const sk::hash_views v = {sk::ptr<const int32_t>(a->ids),
                              sk::rows_of<const int32_t>(a->tokens),
                              sk::rows_of<const sk_row>(a->rows),
                              sk::ptr<const uint64_t>(a->mult),
                              sk::ptr<const uint64_t>(a->size),
                              sk::ptr<const int64_t>(a->offset),
                              sk::rows_of<int32_t>(a->out),
                              n_heads,
                              n_heads / (static_cast<int32_t>(a->mult.dim[0]) - 1),
                              a->eos};
    const int64_t blocks = (a->ids.dim[0] * n_heads + sk::kElemThreads - 1) / sk::kElemThreads;
    return sk::launch(l, sk::hash_ngrams, dim3(static_cast<unsigned>(blocks)),
                      dim3(sk::kElemThreads), 0, v, sk::pass_of(l, a->count, a->ids.dim[0]));
}

extern "C" int32_t sk_setup_state(void)
{
    using bf16 = __nv_bfloat16;
    return sk::prefer_shared_all(
        sk::keep_columns<float>, sk::keep_columns<bf16>, sk::take_columns<float>,
        sk::take_columns<bf16>, sk::commit_columns<float>, sk::commit_columns<bf16>,
        sk::push_columns<float>, sk::push_columns<bf16>, sk::fill_draft_rows, sk::put_drafts,
        sk::fill_commit_rows, sk::look_ahead, sk::hash_ngrams);
}
