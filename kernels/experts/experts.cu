/* Ops route_list, expert_glu, expert_linear, expert_sum. Match K in multiples of 32, activations in
 * BF16 with rows aligned to 16 bytes, gate and up of one type; sk_cuda_check refuses the rest. */
#include "kernels/common/setup.h"
#include "kernels/experts/experts.cuh"
#include "kernels/experts/list.cuh"
#include "kernels/experts/sum.cuh"

#define X(name) extern const sk::ExpertFamily sk_experts_##name;
SK_SHORT_FORMATS(X)
#undef X

namespace
{

constexpr int32_t kInvalid = 1; // cudaErrorInvalidValue

const sk::ExpertFamily *family_of(int32_t dtype)
{
    static const sk::ExpertFamily *const families[] = {
#define X(name) &sk_experts_##name,
        SK_SHORT_FORMATS(X)
#undef X
    };
    for (const sk::ExpertFamily *f : families)
        if (f->dtype == dtype) return f;
    return nullptr;
}

/* What both products have. */
sk::ExpertArgs args_of(const sk::ExpertFamily *f, const sk_view &x, const sk_view &list,
                       const sk_view &n, const sk_view &w, const sk_launch *l)
{
    sk::ExpertArgs a = {};
    a.x = sk::ptr<const uint16_t>(x);
    a.x_step = sk::step_of<uint16_t>(x, 0);
    a.list = list.p;
    a.list_step = static_cast<int32_t>(list.stride[0]);
    a.n = sk::ptr<const int32_t>(n);
    a.capacity = static_cast<int32_t>(list.dim[0]);
    a.k = static_cast<int32_t>(w.dim[2]);
    a.n_out = static_cast<int32_t>(w.dim[1]);
    a.tiles = (a.n_out + 15) / 16;
    a.units = static_cast<int32_t>((w.dim[2] + f->unit - 1) / f->unit);
    a.tile_bytes = static_cast<int64_t>(a.units) * f->unit_bytes;
    a.expert_bytes = a.tiles * a.tile_bytes;
    a.list_ready = l->list_ready;
    return a;
}

} // namespace

extern "C" int32_t sk_k_expert_glu(const sk_expert_glu_args *o, const sk_launch *l)
{
    const sk::ExpertFamily *f = family_of(o->w[0].dtype);
    if (!f || o->w[1].dtype != o->w[0].dtype || o->x.dim[1] % 32) return kInvalid;
    sk::ExpertArgs a = args_of(f, o->x, o->list, o->n, o->w[0], l);
    a.w = o->w[0].p;
    a.apart = static_cast<int64_t>(reinterpret_cast<uintptr_t>(o->w[1].p) -
                                   reinterpret_cast<uintptr_t>(o->w[0].p));
    a.per = sk_divisor_of(static_cast<int32_t>(o->out.dim[0] / o->x.dim[0]));
    a.stripes = a.tiles;
    a.of_stripes = sk_divisor_of(a.stripes);
    a.out = o->out.p;
    a.out_step = sk::step_of<uint16_t>(o->out, 0);
    a.gelu = o->gelu;
    return f->glu(a, l);
}

extern "C" int32_t sk_k_expert_linear(const sk_expert_linear_args *o, const sk_launch *l)
{
    const sk::ExpertFamily *f = family_of(o->w.dtype);
    if (!f || o->x.dim[1] % 32) return kInvalid;
    sk::ExpertArgs a = args_of(f, o->x, o->list, o->n, o->w, l);
    a.w = o->w.p;
    a.apart = a.tile_bytes;
    a.per = sk_divisor_of(1);
    a.stripes = (a.tiles + 1) / 2;
    a.of_stripes = sk_divisor_of(a.stripes);
    a.out = o->y.p;
    a.out_step = sk::step_of<float>(o->y, 0);
    return f->linear(a, l);
}

extern "C" int32_t sk_k_route_list(const sk_route_list_args *o, const sk_launch *l)
{
    const int64_t routes = o->ids.dim[0] * o->ids.dim[1];
    sk::ListArgs a = {};
    a.ids = sk::ptr<const int32_t>(o->ids);
    a.ids_step = sk::step_of<int32_t>(o->ids, 0);
    a.count = sk::ptr<const int32_t>(o->count);
    a.capacity = static_cast<int32_t>(o->ids.dim[0]);
    a.per = static_cast<int32_t>(o->ids.dim[1]);
    a.of_per = sk_divisor_of(a.per);
    a.list = o->list.p;
    a.list_step = o->list.stride[0];
    a.n = sk::ptr<int32_t>(o->n);
    a.rows_ready = l->rows_ready;
    if (routes > sk::kSortedRoutes)
        return sk::launch(l, sk::list_many_routes, dim3(1), dim3(sk::kManyThreads),
                          sizeof(sk::many_shared), a);
    for (a.room = 1; a.room < routes;) a.room *= 2;
    return sk::launch(l, sk::list_routes, dim3(1), dim3(sk::kListThreads), sk::list_bytes(a.room),
                      a);
}

extern "C" int32_t sk_k_expert_sum(const sk_expert_sum_args *o, const sk_launch *l)
{
    sk::SumArgs a = {};
    a.x = sk::rows_of<const float>(o->x);
    a.weight = sk::rows_of<const float>(o->weight);
    a.y = sk::rows_of<float>(o->y);
    a.live = sk::pass_of(l, o->count, o->y.dim[0]);
    a.per = static_cast<int32_t>(o->weight.dim[1]);
    a.n = static_cast<int32_t>(o->y.dim[1]);
    const bool wide = sk::row_aligned(o->x, 16) && sk::row_aligned(o->y, 16) && a.n % 4 == 0;
    const dim3 grid(static_cast<unsigned>(o->y.dim[0]),
                    static_cast<unsigned>((a.n + 4 * sk::kSumThreads - 1) / (4 * sk::kSumThreads)));
    return sk::launch(l, wide ? sk::sum_experts<true> : sk::sum_experts<false>, grid,
                      dim3(sk::kSumThreads), 0, a);
}

extern "C" int32_t sk_setup_experts(void)
{
    int32_t e = sk::allow_shared(sk::list_routes, sk::list_bytes(sk::kSortedRoutes));
    if (!e) e = sk::allow_shared(sk::list_many_routes, sizeof(sk::many_shared));
    if (!e) e = sk::prefer_shared_all(sk::sum_experts<true>, sk::sum_experts<false>);
#define X(name)                                                                                    \
    if (!e) e = sk_experts_##name.setup();
    SK_SHORT_FORMATS(X)
#undef X
    return e;
}
