/* Ops `stream_copy`, `stream_add`, `hyper_inject`, `ple_gate`, `mtp_join`, `gather_heads`. Match
 * any shape and stride, outputs in BF16 or F32, and tables of the types listed below, in file
 * order. Sums of squares, and of key and query in ple_gate, are in double, in another order than
 * the CPU's; the rest is elementwise as defined. Would be wrong if an id lay outside the table, if
 * rows of a table in F32 or BF16 were not aligned to their elements, or if P times streams reached
 * 2^31. */
#include "kernels/sk_kernels.h"

#include "kernels/common/setup.cuh"
#include "kernels/streams/streams.cuh"
#include "kernels/streams/table.cuh"
#include "kernels/streams/tables.h"

#include <math.h>

extern "C" int32_t sk_k_stream_copy(const sk_stream_copy_args *a, const sk_launch *l)
{
    return sk::launch_streams<sk::stream_copy>(l, a->x, nullptr, a->count, a->s);
}

extern "C" int32_t sk_k_stream_add(const sk_stream_add_args *a, const sk_launch *l)
{
    return sk::launch_streams<sk::stream_add>(l, a->x, nullptr, a->count, a->s);
}

extern "C" int32_t sk_k_hyper_inject(const sk_hyper_inject_args *a, const sk_launch *l)
{
    return sk::launch_streams<sk::stream_inject>(l, a->x, &a->inject, a->count, a->s);
}

extern "C" int32_t sk_k_ple_gate(const sk_ple_gate_args *a, const sk_launch *l)
{
    const int32_t n = static_cast<int32_t>(a->s.dim[2]);
    const int64_t vectors = a->s.dim[0] * a->s.dim[1];
    const sk::ple_views v = {sk::rows_of<const float>(a->key),
                             sk::rows_of<const float>(a->value),
                             sk::heads_of<const float>(a->s),
                             sk::ptr<const float>(a->key_gain),
                             sk::ptr<const float>(a->query_gain),
                             sk::ptr<const float>(a->conv_gain),
                             sk::rows_of<float>(a->y),
                             sk::rows_of<float>(a->normed),
                             static_cast<int32_t>(a->s.dim[1]),
                             n,
                             sqrtf(static_cast<float>(n)),
                             a->eps,
                             n % 4 == 0 && sk::row_aligned(a->key, 16) &&
                                 sk::row_aligned(a->s, 16) && sk::row_aligned(a->y, 16)};
    return sk::launch(l, sk::gate_streams, dim3(static_cast<unsigned>(vectors)),
                      dim3(sk::norm_threads(n)), 0, v, sk::pass_of(l, a->count, a->s.dim[0]));
}

extern "C" int32_t sk_k_mtp_join(const sk_mtp_join_args *a, const sk_launch *l)
{
    if (a->out.dtype == SK_BF16) return sk::launch_join<__nv_bfloat16>(a, l);
    return sk::launch_join<float>(a, l);
}

extern "C" int32_t sk_k_gather_heads(const sk_gather_heads_args *a, const sk_launch *l)
{
#define TABLE(type, name)                                                                          \
    if (a->table.dtype == SK_##type) return sk::launch_table<sk::table_##name>(a, l);
    SK_TABLES(TABLE)
#undef TABLE
    return static_cast<int32_t>(cudaErrorInvalidValue);
}

extern "C" int32_t sk_setup_streams(void)
{
    using bf16 = __nv_bfloat16;
    int32_t rc =
        sk::prefer_shared_all(sk::into_streams<sk::stream_copy>, sk::into_streams<sk::stream_add>,
                              sk::into_streams<sk::stream_inject>, sk::gate_streams,
                              sk::join_streams<float>, sk::join_streams<bf16>);
#define TABLE(type, name)                                                                          \
    if (rc == 0) rc = sk::prefer_table<sk::table_##name>();
    SK_TABLES(TABLE)
#undef TABLE
    return rc;
}
