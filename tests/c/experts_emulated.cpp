/* The kernels of experts, run on the host as emulated_cuda.h does it, through their launchers:
 * work list, gated and plain product, weighted sum. Products against weights as sk_quant_group
 * decodes them and sums in double; and bit for bit against each other where the kernels promise it,
 * which is however routes are put into entries and tasks are split over CTAs and warps. A program
 * of its own like formats_test.cpp; arguments select formats, or "lists", which has the sums too.
 */
#include "emulated_cuda.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

extern "C" { // ahead of what includes them too
#include "base/quant.h"
#include "op/ctl.h"
}

#include "kernels/linear/pack.cuh"
#include "tests/c/emulated_tools.h"

namespace
{

/* ---- weights -----------------------------------------------------------------------------------
 */

/* Are the values of a row moderate? Random bits are scales of any size. */
bool moderate(const std::vector<float> &values)
{
    float most = 0;
    for (const float v : values) {
        if (!isfinite(v)) return false;
        most = fmaxf(most, fabsf(v));
    }
    return most < 8 && (most > 0.01f || next_random() % 64 == 0);
}

template <typename D> void fill_block(uint8_t *block, const sk_dtype_info &info)
{
    std::vector<float> values(static_cast<size_t>(info.block_elems));
    const sk_dtype type = static_cast<sk_dtype>(D::kType);
    do {
        for (int i = 0; i < info.block_bytes; i++) block[i] = static_cast<uint8_t>(next_random());
        sk_quant_row(type, block, static_cast<uint64_t>(info.block_elems), values.data());
    } while (!moderate(values));
}

/* [experts, n, k], packed as the kernel of packing does it, and as numbers. */
template <typename D> struct Weights {
    int64_t experts, n, k, units, expert_bytes;
    Memory packed;
    std::vector<float> values;

    Weights(int64_t experts_, int64_t n_, int64_t k_)
        : experts(experts_), n(n_), k(k_), units((k_ + 32 * D::kBlocks - 1) / (32 * D::kBlocks)),
          expert_bytes((n_ + 15) / 16 * units * D::kUnitBytes),
          packed(static_cast<size_t>(experts_ * expert_bytes)),
          values(static_cast<size_t>(experts_ * n_ * k_))
    {
        const sk_dtype_info &info = *sk_dtype_find(D::kType);
        const int64_t blocks = k / info.block_elems, row_bytes = blocks * info.block_bytes;
        for (int64_t e = 0; e < experts; e++) {
            std::vector<uint8_t> raw(static_cast<size_t>(n * row_bytes + 8));
            for (int64_t i = 0; i < n * blocks; i++)
                fill_block<D>(at(raw, i * info.block_bytes), info);
            for (int64_t r = 0; r < n; r++)
                sk_quant_row(static_cast<sk_dtype>(D::kType), at(raw, r * row_bytes),
                             static_cast<uint64_t>(k), at(values, (e * n + r) * k));
            threadIdx = blockIdx = {0, 0, 0};
            gridDim = blockDim = dim3(1);
            sk::pack<D, false>({raw.data(), packed.p + e * expert_bytes, 0, n, n, row_bytes,
                                static_cast<int32_t>(units)});
        }
    }
    sk_view view() const
    {
        sk_view v = view_of(packed.p, D::kType, {experts, n, k}, 0);
        v.stride[0] = expert_bytes;
        return v;
    }
    double product(int64_t e, int64_t o, const uint16_t *x) const
    {
        const float *row = at(values, (e * n + o) * k);
        double sum = 0;
        for (int64_t i = 0; i < k; i++) sum += static_cast<double>(row[i]) * sk_bf16_to_f32(x[i]);
        return sum;
    }
    /* By which activations of about one give products of about one. */
    double factor() const
    {
        double squares = 0;
        for (const float v : values) squares += static_cast<double>(v) * v;
        return 1 / sqrt(squares / static_cast<double>(experts * n) + 1e-30);
    }
};

/* ---- routes ------------------------------------------------------------------------------------
 */

/* Rows of a pass and where they go. */
struct Routes {
    int32_t rows, per;
    std::vector<int32_t> expert; // of each route
    int64_t n() const { return rows * per; }
};

constexpr int32_t kExperts = 7; // of weights

/* Experts with 1, 2, 3, 4, 8 and 6 routes, in random order, and one without. */
Routes some_routes()
{
    Routes r = {12, 2, {}};
    const int counts[kExperts] = {1, 2, 3, 0, 4, 8, 6};
    for (int e = 0; e < kExperts; e++) r.expert.insert(r.expert.end(), counts[e], e);
    for (size_t i = r.expert.size() - 1; i > 0; i--)
        std::swap(r.expert[i], r.expert[next_random() % (i + 1)]);
    return r;
}

/* So many, to anywhere. */
Routes many_routes(int32_t n, int32_t per = 2, uint32_t experts = kExperts)
{
    Routes r = {n / per, per, {}};
    for (int32_t i = 0; i < n; i++)
        r.expert.push_back(static_cast<int32_t>(next_random() % experts));
    return r;
}

/* Entries as the contract wants them, of at most `most` routes. */
std::vector<sk_route_entry> entries_of(const Routes &r, int32_t most)
{
    std::vector<sk_route_entry> list;
    std::map<int32_t, std::vector<int32_t>> of;
    for (int32_t i = 0; i < r.n(); i++)
        if (*at(r.expert, i) >= 0) of[*at(r.expert, i)].push_back(i);
    for (const auto &expert : of) {
        int32_t room = 0;
        for (const int32_t route : expert.second) {
            if (room == 0) {
                list.push_back({expert.first, 0, {-1, -1, -1, -1}, {0, 0}});
                room = most;
            }
            list.back().route[list.back().n++] = route;
            room--;
        }
    }
    return list;
}

sk_launch launch_of(int32_t n_sm, int32_t list_ready)
{
    sk_launch l = {};
    l.n_sm = n_sm;
    l.edge = 1;
    l.list_ready = list_ready;
    return l;
}

/* The list's own kernels: of so many live rows, whatever the others have. */
void check_list(Routes r, int32_t live, emulated::Order order, int32_t ready)
{
    const size_t n = static_cast<size_t>(r.n());
    Memory ids(4 * n), list(sizeof(sk_route_entry) * n), count(4), entries(4);
    const std::vector<int32_t> all = r.expert;
    r.rows = live;
    r.expert.resize(static_cast<size_t>(live * r.per));
    const std::vector<sk_route_entry> want = entries_of(r, SK_ENTRY_ROUTES);
    emulated::setting = emulated::Setting();
    emulated::setting.name = "route_list of " + std::to_string(n);
    emulated::setting.order = order;
    memcpy(ids.p, all.data(), 4 * n);
    memcpy(count.p, &live, 4);
    emulated::setting.dependent = {
        {ids.p, 4 * n}, {list.p, sizeof(sk_route_entry) * n}, {entries.p, 4}};
    if (!ready) emulated::setting.dependent.push_back({count.p, 4});
    const int64_t rows = static_cast<int64_t>(n) / r.per;
    const sk_route_list_args a = {view_of(ids.p, SK_I32, {rows, r.per}, 4 * r.per),
                                  view_of(count.p, SK_I32, {1}, 0),
                                  view_of(list.p, SK_U8, {static_cast<int64_t>(n), 32}, 32),
                                  view_of(entries.p, SK_I32, {1}, 0)};
    sk_launch l = launch_of(1, 0);
    l.rows_ready = ready;
    CHECK(sk_k_route_list(&a, &l) == 0, "route_list");
    emulated::setting = emulated::Setting();
    int32_t listed;
    memcpy(&listed, entries.p, 4);
    CHECK(listed == static_cast<int32_t>(want.size()), "of %d routes %d entries",
          static_cast<int>(n), listed);
    CHECK(memcmp(list.p, want.data(), sizeof(sk_route_entry) * want.size()) == 0,
          "list of %d routes", static_cast<int>(n));
    CHECK(list.intact() && entries.intact(), "route_list");
    for (size_t i = want.size() * sizeof(sk_route_entry); i < n * sizeof(sk_route_entry); i++)
        CHECK(list.p[i] == 0xFF, "something behind the list");
}

void check_list(const Routes &r)
{
    check_list(r, r.rows, emulated::kAscending, 0);
    check_list(r, r.rows, emulated::kShuffled, 1);
    check_list(r, r.rows / 2, emulated::kDescending, 0);
    check_list(r, 0, emulated::kAscending, 1);
}

/* Experts of a row are not alike, as they come from routing, but for one that every row has. */
Routes routes_to(int32_t rows, int32_t per, const std::vector<int32_t> &experts)
{
    Routes r = {rows, per, {}};
    const uint32_t n = static_cast<uint32_t>(experts.size());
    for (int32_t i = 0; i < rows; i++)
        for (uint32_t j = 0, first = next_random(); j < static_cast<uint32_t>(per); j++)
            r.expert.push_back(experts[j == 0 ? n / 2 : (first + j * j) % n]);
    return r;
}

/* Around the most routes that are counted, to the experts that are and to such that are not: rounds
 * of Flash-Next, all routes to one expert, as many entries as 32 experts can have. */
void check_short_lists()
{
    std::vector<int32_t> all(512), last(32), far(513);
    for (int32_t i = 0; i < 513; i++) *at(far, i) = i;
    std::copy_n(far.begin(), 512, all.begin());
    std::copy_n(far.begin() + 480, 32, last.begin());
    for (const int32_t rows : {1, 5, 20, 51, 52, 64, 110}) {
        check_list(routes_to(rows, 10, all));
        check_list(routes_to(rows, 10, last));
    }
    for (const int32_t n : {1, 31, 32, 33, 50, 200, 511, 512, 513}) {
        check_list(routes_to(n, 1, all)); // to one
        check_list(many_routes(n, 1, 512));
        check_list(many_routes(n, 1, 513));
    }
    check_list(many_routes(128, 4, 512));
    check_list(routes_to(50, 10, far));
    check_list(routes_to(50, 10, {0, 511, 512, INT32_MAX}));
    Routes most = {512, 1, {}};
    for (int32_t i = 0; i < 512; i++) // 17 to each of half of them and 15 to the others
        most.expert.push_back(i < 480 ? i % 32 : i % 16);
    check_list(most);
}

/* More routes than are sorted: a chunk of 4096 rows of Flash-Next and less, few experts and many,
 * and such with any numbers. */
void check_long_lists()
{
    std::vector<int32_t> all(512), few = {0, 3, 511, 512, 1023, 70000, INT32_MAX}, many(3000);
    for (int32_t i = 0; i < 512; i++) all[static_cast<size_t>(i)] = i;
    for (int32_t i = 0; i < 3000; i++) many[static_cast<size_t>(i)] = i;
    check_list(routes_to(4096, 10, all));
    check_list(routes_to(820, 10, all)); // one more row than is sorted
    check_list(routes_to(8193, 1, few));
    check_list(routes_to(2051, 7, many));
    check_list(routes_to(1366, 6, few));
}

/* ---- sums --------------------------------------------------------------------------------------
 */

/* Of `per` routes a row, rows of x `step` elements apart, all but the last row alive: bit for bit,
 * with zeros of both signs among the products. */
void check_sum(int32_t rows, int32_t per, int64_t n, int64_t step, emulated::Order order)
{
    const std::string name = "expert_sum of " + std::to_string(per) + " x " + std::to_string(n);
    const int32_t live = rows - 1;
    const size_t x_bytes = static_cast<size_t>(4 * (rows * per - 1) * step + 4 * n);
    Memory x(x_bytes), weight(static_cast<size_t>(4 * rows * per)), count(4);
    Memory y(static_cast<size_t>(4 * rows * n));
    std::vector<float> from(x_bytes / 4), by(static_cast<size_t>(rows * per));
    for (float &v : from) v = next_random() % 8 ? random_float() : -0.0f;
    for (float &v : by) v = next_random() % 8 ? random_float() : 0.0f;
    memcpy(x.p, from.data(), x_bytes);
    memcpy(weight.p, by.data(), 4 * by.size());
    memcpy(count.p, &live, 4);
    emulated::setting = emulated::Setting();
    emulated::setting.name = name;
    emulated::setting.order = order;
    emulated::setting.dependent = {
        {x.p, x_bytes}, {weight.p, 4 * by.size()}, {y.p, static_cast<size_t>(4 * rows * n)}};
    const sk_expert_sum_args a = {view_of(x.p, SK_F32, {rows * per, n}, 4 * step),
                                  view_of(weight.p, SK_F32, {rows, per}, 4 * per),
                                  view_of(count.p, SK_I32, {1}, 0),
                                  view_of(y.p, SK_F32, {rows, n}, 4 * n)};
    sk_launch l = launch_of(1, 0);
    l.rows_ready = 1;
    CHECK(sk_k_expert_sum(&a, &l) == 0, "%s", name.c_str());
    emulated::setting = emulated::Setting();
    for (int64_t i = 0; i < live * n; i++) {
        float want = 0, is;
        for (int64_t j = 0; j < per; j++)
            want =
                fmaf(*at(by, i / n * per + j), *at(from, (i / n * per + j) * step + i % n), want);
        memcpy(&is, y.p + 4 * i, 4);
        CHECK(memcmp(&is, &want, 4) == 0, "%s, element %d: %g, is %g", name.c_str(),
              static_cast<int>(i), static_cast<double>(want), static_cast<double>(is));
    }
    for (int64_t i = 4 * live * n; i < 4 * rows * n; i++)
        CHECK(y.p[i] == 0xFF, "%s: a row that does not live", name.c_str());
    CHECK(y.intact(), "%s", name.c_str());
}

/* Routes around those that are under way together, rows that are aligned and such that are not. */
void check_sums()
{
    for (const int32_t per : {1, 2, 3, 7, 8, 9, 10, 11, 19, 20, 25, 64})
        for (const int64_t n : {1, 4, 63, 256, 260, 701}) {
            check_sum(3, per, n, n, emulated::kAscending);
            check_sum(3, per, n, (n + 3) / 4 * 4 + 4, emulated::kShuffled);
        }
    check_sum(6, 10, 2560, 2560, emulated::kDescending);
}

/* ---- products ----------------------------------------------------------------------------------
 */

struct Variant {
    const char *name;
    int32_t n_sm, list_ready, most; // routes of an entry
    int32_t capacity;               // of the list; 0: as many as routes
    int32_t shared;                 // bytes of a CTA
    emulated::Order order;
};

constexpr int32_t kAll = 227 * 1024, kSmall = 163 * 1024;
const Variant kVariants[] = {
    {"one CTA", 1, 0, 4, 0, kAll, emulated::kAscending},
    {"three CTAs, backwards", 3, 1, 4, 0, kAll, emulated::kDescending},
    {"seven CTAs, long list", 7, 0, 4, 300, kAll, emulated::kShuffled},
    {"long list, ready", 3, 1, 4, 1000, kAll, emulated::kAscending},
    {"single routes", 3, 0, 1, 0, kAll, emulated::kShuffled},
    {"twos", 7, 1, 2, 0, kAll, emulated::kDescending},
    {"threes, little memory", 1, 0, 3, 256, kSmall, emulated::kShuffled},
    {"more CTAs than tasks", 50, 1, 4, 0, kAll, emulated::kAscending},
};

/* One launch; the results as bytes, those of routes that nobody asked for included. */
template <typename Call>
std::vector<uint8_t> launch_variant(const std::string &name, const Variant &v, const Routes &r,
                                    const std::vector<uint16_t> &x, size_t out_bytes, Call call)
{
    const std::vector<sk_route_entry> entries = entries_of(r, v.most);
    const size_t capacity =
        std::max(static_cast<size_t>(v.capacity ? v.capacity : r.n()), entries.size());
    const int32_t listed = static_cast<int32_t>(entries.size());
    Memory acts(2 * x.size()), list(sizeof(sk_route_entry) * capacity), n(4), out(out_bytes);
    const auto put_list = [&] {
        memcpy(list.p, entries.data(), sizeof(sk_route_entry) * entries.size());
        memcpy(n.p, &listed, 4);
    };
    if (v.list_ready) put_list();
    emulated::setting.name = name + ", " + v.name;
    emulated::setting.order = v.order;
    emulated::setting.shared = v.shared;
    emulated::setting.before = [&] {
        put_list();
        memcpy(acts.p, x.data(), 2 * x.size());
    };
    const sk_view list_view =
        view_of(list.p, SK_U8, {static_cast<int64_t>(capacity), sizeof(sk_route_entry)},
                sizeof(sk_route_entry));
    const sk_launch l = launch_of(v.n_sm, v.list_ready);
    CHECK(call(acts.p, list_view, view_of(n.p, SK_I32, {1}, 0), out.p, &l) == 0, "%s, %s",
          name.c_str(), v.name);
    CHECK(out.intact() && list.intact() && acts.intact(), "%s, %s", name.c_str(), v.name);
    emulated::setting = emulated::Setting();
    return std::vector<uint8_t>(out.p, out.p + out_bytes);
}

/* All variants; the results of the first one, which the others have to have too. */
template <typename Launch>
std::vector<uint8_t> launch_all(const std::string &name, Launch launch_one)
{
    std::vector<uint8_t> first;
    for (const Variant &v : kVariants) {
        const std::vector<uint8_t> is = launch_one(name, v);
        if (first.empty()) first = is;
        size_t from = 0;
        while (from < is.size() && is[from] == first[from]) from++;
        CHECK(from == is.size(), "%s, %s: other bits than with %s from byte %zu on", name.c_str(),
              v.name, kVariants[0].name, from);
    }
    return first;
}

std::vector<uint16_t> random_acts(int64_t n, double by)
{
    std::vector<uint16_t> x(static_cast<size_t>(n));
    for (uint16_t &v : x) v = sk_f32_to_bf16(static_cast<float>(2 * by) * random_float());
    return x;
}

template <typename D>
std::vector<uint8_t> launch_linear(const std::string &name, const Variant &v, const Routes &r,
                                   const std::vector<uint16_t> &x, const Weights<D> &w)
{
    return launch_variant(
        name, v, r, x, static_cast<size_t>(4 * r.n() * w.n),
        [&](uint8_t *acts, sk_view list, sk_view n, uint8_t *out, const sk_launch *l) {
            const sk_expert_linear_args a = {
                view_of(acts, SK_BF16, {r.n(), w.k}, 2 * w.k), list, n, w.view(), no_view(),
                view_of(out, SK_F32, {r.n(), w.n}, 4 * w.n)};
            return sk_k_expert_linear(&a, l);
        });
}

template <typename D>
void check_linear(const std::string &name, const Routes &r, const Weights<D> &w)
{
    const std::vector<uint16_t> x = random_acts(r.n() * w.k, w.factor());
    const std::vector<uint8_t> bytes =
        launch_all(name + " linear", [&](const std::string &what, const Variant &v) {
            return launch_linear(what, v, r, x, w);
        });
    for (int64_t i = 0; i < r.n(); i++) {
        double error = 0, all = 0;
        for (int64_t o = 0; o < w.n; o++) {
            float is;
            memcpy(&is, at(bytes, 4 * (i * w.n + o)), 4);
            const double want = w.product(*at(r.expert, i), o, at(x, i * w.k));
            error += (is - want) * (is - want);
            all += want * want;
        }
        const double relative = sqrt(error / all);
        CHECK(relative < 1e-5, "%s linear, route %d: error %g", name.c_str(), static_cast<int>(i),
              relative);
    }
}

double gated(double g, bool gelu)
{
    return gelu ? 0.5 * g * (1 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g)))
                : g / (1 + exp(-g));
}

template <typename D>
std::vector<uint8_t> launch_glu(const std::string &name, const Variant &v, const Routes &r,
                                const std::vector<uint16_t> &x, const Weights<D> &gate,
                                const Weights<D> &up, bool gelu)
{
    return launch_variant(
        name, v, r, x, static_cast<size_t>(2 * r.n() * gate.n),
        [&](uint8_t *acts, sk_view list, sk_view n, uint8_t *out, const sk_launch *l) {
            const sk_expert_glu_args a = {view_of(acts, SK_BF16, {r.rows, gate.k}, 2 * gate.k),
                                          list,
                                          n,
                                          {gate.view(), up.view()},
                                          {no_view(), no_view()},
                                          view_of(out, SK_BF16, {r.n(), gate.n}, 2 * gate.n),
                                          gelu};
            return sk_k_expert_glu(&a, l);
        });
}

template <typename D>
void check_glu(const std::string &name, const Routes &r, const Weights<D> &gate,
               const Weights<D> &up, bool gelu)
{
    const std::vector<uint16_t> x = random_acts(r.rows * gate.k, gate.factor());
    const std::vector<uint8_t> bytes =
        launch_all(name + " glu", [&](const std::string &what, const Variant &v) {
            return launch_glu(what, v, r, x, gate, up, gelu);
        });
    for (int64_t i = 0; i < r.n(); i++) {
        std::vector<double> want(static_cast<size_t>(gate.n));
        double most = 0;
        for (int64_t o = 0; o < gate.n; o++) {
            const uint16_t *row = at(x, i / r.per * gate.k);
            double &y = *at(want, o);
            y = gated(gate.product(*at(r.expert, i), o, row), gelu) *
                up.product(*at(r.expert, i), o, row);
            most = fmax(most, fabs(y));
        }
        for (int64_t o = 0; o < gate.n; o++) {
            uint16_t is;
            memcpy(&is, at(bytes, 2 * (i * gate.n + o)), 2);
            const double y = *at(want, o), error = fabs(sk_bf16_to_f32(is) - y);
            // a difference of large sums may be small, and off by more than its own steps
            CHECK(steps_between(is, sk_f32_to_bf16(static_cast<float>(y))) <= 1 ||
                      error < 1e-5 * most,
                  "%s glu, route %d output %d: %g, is %g", name.c_str(), static_cast<int>(i),
                  static_cast<int>(o), sk_bf16_to_f32(is), y);
        }
    }
}

struct Shape {
    int32_t n;
    int32_t large, small; // K: so many times 256, and so many of the least that there can be more
};
const Shape kShapes[] = {{40, 2, 0}, {56, 3, 0}, {16, 1, 0}, {20, 0, 1}, {24, 1, 3}};

template <typename D> void check_format(const char *name)
{
    const int before = failures;
    const int64_t least = std::max(32, sk_dtype_find(D::kType)->block_elems);
    for (const Shape &s : kShapes) {
        const int64_t k = 256 * s.large + (least < 256 ? least * s.small : 0);
        if (k == 0) continue;
        const Routes r = some_routes();
        const std::string at =
            std::string(name) + " " + std::to_string(s.n) + " x " + std::to_string(k);
        const Weights<D> gate(kExperts, s.n, k), up(kExperts, s.n, k);
        check_glu<D>(at, r, gate, up, s.large & 1);
        check_linear<D>(at, r, up);
        CHECK(gate.packed.intact() && up.packed.intact(), "%s", at.c_str());
    }
    if (failures > before) printf("%s failed\n", name);
}

/* Lists of many entries, below and above the length that every warp reads as a whole, and one of
 * none. */
void check_lists()
{
    using D = sk::FormatQ8_0;
    const Weights<D> w(kExperts, 40, 64), up(kExperts, 40, 64);
    for (const int32_t n : {24, 200, 256, 300, 2000}) {
        const Routes r = n == 24 ? some_routes() : many_routes(n);
        check_list(r);
        if (n > 300) continue;
        check_linear<D>("list of " + std::to_string(n), r, w);
        check_glu<D>("list of " + std::to_string(n), r, w, up, false);
    }
    check_short_lists();
    check_long_lists();
    check_sums();
    const Variant chunk = {"the list of 4096 rows", 3, 0, 4, 40960, kAll, emulated::kAscending};
    const Routes some = many_routes(300);
    const std::vector<uint16_t> x = random_acts(some.n() * w.k, 1);
    CHECK(launch_linear("long list", chunk, some, x, w) ==
              launch_linear("long list", kVariants[0], some, x, w),
          "other bits with a long list");
    const Routes none = {2, 2, {-1, -1, -1, -1}};
    for (const Variant &v : kVariants) {
        const std::vector<uint8_t> is =
            launch_linear("no list", v, none, random_acts(4 * w.k, 1), w);
        CHECK(std::all_of(is.begin(), is.end(), [](uint8_t byte) { return byte == 0xFF; }),
              "no list, %s", v.name);
    }
}

struct Part {
    const char *name;
    void (*check)(const char *);
};
const Part kParts[] = {{"lists", [](const char *) { check_lists(); }},
#define X(name) {#name, check_format<sk::Format##name>},
                       SK_SHORT_FORMATS(X)
#undef X
};

/* Worker number i of n does its share of what is wanted. */
int work(int argc, char **argv, long i, long n)
{
    long at = 0;
    for (const Part &p : kParts) {
        const bool wanted = argc < 2 || std::any_of(argv + 1, argv + argc, [&](const char *s) {
                                return strcmp(s, p.name) == 0;
                            });
        if (wanted && at++ % n == i) p.check(p.name);
    }
    return failures != 0;
}

} // namespace

int main(int argc, char **argv)
{
    const long n = std::max(1L, std::min(8L, sysconf(_SC_NPROCESSORS_ONLN)));
    int failed = 0;
    signal(SIGSEGV, [](int) { emulated::fail("an access to no memory"); });
    for (long i = 0; i < n; i++) {
        const pid_t child = fork();
        if (child == 0) exit(work(argc, argv, i, n));
        failed += child < 0;
    }
    for (int status; wait(&status) > 0;) failed += status != 0;
    printf("experts, emulated: %s\n", failed ? "failed" : "right");
    return failed != 0;
}
