/* The kernels of hybrid models, run on the host as emulated_cuda.h does it, against the definitions
 * of their ops and against themselves (emulated_ops.h): rows that are kept, recurrence, streams and
 * hyper-connections, hashed embeddings, products of
 * small shapes, block-sparse attention, routing, and the elementwise ops
 * and norms around them. Shapes are awkward ones: odd lengths, heads that fill no warp, slots in
 * any order and without rows. Arguments select families. */
#include "tests/c/emulated_cuda.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>
#include <vector>

#include "tests/c/emulated_ops.h"

extern "C" {
#include "op/ctl.h"
}

#include "tests/c/emulated_tools.h"

namespace
{

using emulated::Along;
using emulated::Bounds;
using emulated::Op;
using Dim = std::vector<int64_t>;

constexpr Along kNothing = Along::kNothing, kRows = Along::kRows, kSlots = Along::kSlots;
constexpr int32_t kActs[] = {SK_BF16, SK_F32};
const Bounds kExact = {true};
const Bounds kNear = {};

/* Rows of a pass: of each slot some neighbours, at consecutive positions. */
struct Pass {
    std::vector<int32_t> slots, pos, table;
    int32_t n_slots;

    /* {slot, rows, first position} */
    Pass(int32_t n, const std::vector<std::vector<int32_t>> &runs) : n_slots(n)
    {
        for (const auto &run : runs)
            for (int32_t i = 0; i < run[1]; i++) {
                slots.push_back(run[0]);
                pos.push_back(run[2] + i);
                table.insert(table.end(), {run[0], run[2] + i, i});
            }
    }
    int64_t n() const { return static_cast<int64_t>(slots.size()); }
    void give(Op &o) const
    {
        o.ints("rows", kRows, {n(), 3}, table);
        o.ints("count", kNothing, {1}, {static_cast<int32_t>(n())});
    }
};

void count(Op &o, int64_t n) { o.ints("count", kNothing, {1}, {static_cast<int32_t>(n)}); }

std::string sizes(const Dim &d)
{
    std::string s;
    for (const int64_t n : d) s += " " + std::to_string(n);
    return s;
}

std::vector<int32_t> some(int64_t n, int32_t below)
{
    std::vector<int32_t> v(static_cast<size_t>(n));
    for (int32_t &x : v) x = static_cast<int32_t>(next_random() % static_cast<uint32_t>(below));
    return v;
}

std::vector<float> floats(int64_t n, double scale, double middle = 0)
{
    std::vector<float> v(static_cast<size_t>(n));
    for (float &x : v) x = static_cast<float>(middle + scale * random_float());
    return v;
}

const Pass &some_pass()
{
    static const Pass p(5, {{3, 3, 2}, {0, 1, 9}, {4, 4, 0}, {1, 2, 5}}); // none of slot 2
    return p;
}

/* ---- state -------------------------------------------------------------------------------------
 */

void check_kept(int32_t type, int64_t n)
{
    const Pass &p = some_pass();
    Op keep("keep_rows"), take("take_rows"), commit("window_commit"), push("window_push");
    keep.put("x", kRows, SK_F32, {p.n(), n});
    p.give(keep);
    keep.put("pending", kSlots, type, {p.n_slots, 5, n});
    check(keep, kExact);
    p.give(take);
    take.put("pending", kSlots, SK_F32, {p.n_slots, 5, n});
    take.out("out", kRows, SK_F32, {p.n(), n});
    check(take, kExact);
    for (const int64_t size : {1, 3, 4, 9}) {
        commit.put("pending", kSlots, type, {p.n_slots, 6, n});
        commit.ints("kept", kSlots, {p.n_slots}, {0, 6, 1, 3, 5});
        commit.put("window", kSlots, type, {p.n_slots, size, n});
        check(commit, kExact);
        push.put("x", kRows, SK_F32, {p.n(), n});
        p.give(push);
        push.put("window", kSlots, type, {p.n_slots, size, n});
        check(push, kExact);
    }
}

void check_ngrams(int32_t orders, int32_t per)
{
    const Pass &p = some_pass();
    const int32_t heads = (orders - 1) * per, eos = 3;
    std::vector<int64_t> mult, size, offset;
    Op o("ngram_rows");
    for (int32_t i = 0; i < orders; i++) mult.push_back(1000003 + 2 * next_random() % 99991);
    for (int32_t g = 0; g < heads; g++) {
        size.push_back(101 + 2 * g);
        offset.push_back(1000 * g);
    }
    o.ints("ids", kRows, {p.n()}, some(p.n(), 6));
    o.ints("tokens", kSlots, {p.n_slots, 14}, some(p.n_slots * 14, 6));
    p.give(o);
    o.wide_ints("mult", mult);
    o.wide_ints("size", size);
    o.wide_ints("offset", offset);
    o.out("out", kRows, SK_I32, {p.n(), heads});
    o.set("eos", eos);
    check(o, kExact);
}

/* A field of the slots, of n of them. */
std::vector<uint8_t> some_slots(int32_t n)
{
    std::vector<sk_slot> slots(static_cast<size_t>(n));
    for (sk_slot &s : slots) {
        s = {};
        s.active = next_random() % 3 > 0;
        s.n = static_cast<int32_t>(next_random() % 3 + 6 * (next_random() % 2));
        s.anchor = static_cast<int32_t>(next_random() % 99);
    }
    const uint8_t *p = reinterpret_cast<const uint8_t *>(slots.data());
    return std::vector<uint8_t>(p, p + slots.size() * sizeof(sk_slot));
}

void check_row_tables(int32_t n)
{
    const std::vector<uint8_t> slots = some_slots(n);
    const int64_t size = sizeof(sk_slot);
    std::vector<int32_t> kept = some(n, 6);
    int64_t all = 3;
    for (int step = 0; step < 2; step++) {
        Op o("draft_rows");
        o.raw("slots", kSlots, SK_U8, {n, size}, slots.data()).gap = 32;
        if (step) o.ints("chosen", kSlots, {n}, some(n, 99));
        o.out("rows", kSlots, SK_I32, {n, 3});
        o.out("ids", kSlots, SK_I32, {n});
        o.out("count", kNothing, SK_I32, {1});
        o.set("step", step);
        check(o, kExact);
    }
    for (int32_t &k : kept) all += k;
    Op o("commit_rows");
    o.raw("slots", kSlots, SK_U8, {n, size}, slots.data()).gap = 32;
    o.ints("kept", kSlots, {n}, kept);
    o.out("rows", kSlots, SK_I32, {all, 3});
    o.out("count", kNothing, SK_I32, {1});
    check(o, kExact);
}

void check_ids()
{
    const Pass &p = some_pass();
    Op put("draft_put"), next("next_ids");
    const Pass one(5, {{1, 1, 3}, {2, 1, 0}, {4, 1, 8}});
    put.ints("rows", kNothing, {5, 3}, {1, 3, 0, 2, 0, 0, 4, 8, 0, -1, 0, 0, -1, 0, 0});
    put.ints("count", kNothing, {1}, {3});
    put.ints("chosen", kSlots, {5}, {10, 20, 30, 40, 50});
    put.ints("drafts", kSlots, {5, 4}, some(20, 9));
    put.ints("n_draft", kSlots, {5}, {0, 2, 2, 0, 2});
    put.set("step", 2);
    check(put, kExact);
    p.give(next);
    next.ints("tokens", kSlots, {p.n_slots, 14}, some(p.n_slots * 14, 99));
    next.out("ids", kRows, SK_I32, {p.n()});
    check(next, kExact);
}

void check_state()
{
    for (const int32_t type : kActs)
        for (const int64_t n : {1, 7, 64, 1030}) check_kept(type, n);
    check_ngrams(2, 3);
    check_ngrams(3, 1);
    check_ngrams(4, 5);
    for (const int32_t n : {1, 31, 33, 64}) check_row_tables(n);
    check_ids();
}

/* ---- recurrence --------------------------------------------------------------------------------
 */

struct Heads {
    int64_t hk, hv, dk, dv;
};
const Heads kHeads[] = {
    {1, 1, 1, 1}, {2, 6, 16, 40}, {2, 4, 6, 11}, {1, 2, 100, 6}, {1, 2, 128, 33}};

void check_conv(int32_t type, int64_t taps, int32_t dilation, int64_t n)
{
    const Pass &p = some_pass();
    Op o("conv");
    o.put("x", kRows, SK_F32, {p.n(), n}, 2.0);
    o.put("taps", kNothing, SK_F32, {n, taps});
    o.put("window", kSlots, type, {p.n_slots, (taps - 1) * dilation, n});
    p.give(o);
    o.out("out", kRows, SK_F32, {p.n(), n});
    o.set("dilation", dilation);
    check(o, kExact);
}

void check_inputs(const Heads &h)
{
    const int64_t n = 6, keys = h.hk * h.dk, values = h.hv * h.dv;
    Op o("gdn_inputs");
    o.put("c", kRows, SK_F32, {n, 2 * keys + values}, 3.0);
    o.put("a", kRows, SK_F32, {n, h.hv}, 8.0);
    o.put("b", kRows, SK_F32, {n, h.hv}, 8.0);
    o.put("coef", kNothing, SK_F32, {h.hv}, floats(h.hv, 0.5, -1));
    o.put("dt", kNothing, SK_F32, {h.hv});
    count(o, n);
    o.out("q", kRows, SK_F32, {n, h.hk, h.dk});
    o.out("in", kRows, SK_F32, {n, keys + values + 2 * h.hv});
    check(o, kNear);
}

/* Entries as gdn_inputs makes them. */
std::vector<float> entries(const Heads &h, int64_t n)
{
    const int64_t keys = h.hk * h.dk, values = h.hv * h.dv, width = keys + values + 2 * h.hv;
    std::vector<float> in = floats(n * width, 1);
    for (int64_t r = 0; r < n; r++)
        for (int64_t i = 0; i < width; i++) {
            float &x = *at(in, r * width + i);
            if (i < keys) x /= sqrtf(static_cast<float>(h.dk));
            if (i >= keys + values) x = 0.5f + 0.5f * x; // decay, beta
        }
    return in;
}

Op delta(const char *name, const Heads &h, const Pass &p, const std::vector<float> &in,
         const std::vector<float> &m)
{
    std::vector<int32_t> key;
    for (int64_t i = 0; i < h.hv; i++) key.push_back(static_cast<int32_t>((3 * i + 1) % h.hk));
    Op o(name);
    o.put("q", kRows, SK_F32, {p.n(), h.hk, h.dk},
          floats(p.n() * h.hk * h.dk, 1 / sqrt(static_cast<double>(h.dk))));
    o.put("in", kRows, SK_F32, {p.n(), h.hk * h.dk + h.hv * h.dv + 2 * h.hv}, in);
    o.ints("key", kNothing, {h.hv}, key);
    o.put("m", kSlots, SK_F32, {p.n_slots, h.hv, h.dk, h.dv}, m);
    p.give(o);
    o.out("out", kRows, SK_F32, {p.n(), h.hv, h.dv});
    return o;
}

/* Steps, a scan, and a fold of what the steps have kept. */
void check_delta(const Heads &h)
{
    const Pass &p = some_pass();
    const std::vector<float> in = entries(h, p.n());
    const std::vector<float> m = floats(p.n_slots * h.hv * h.dk * h.dv, 1);
    const int64_t width = static_cast<int64_t>(in.size()) / p.n(), most = 5;
    const Bounds bounds = {false, true};
    const Op step = delta("gdn_step", h, p, in, m);
    Op scan = delta("gdn_scan", h, p, in, m), fold("gdn_fold");
    scan.of("q") = step.arguments[static_cast<size_t>(step.field("q"))];
    check(step, bounds);
    check(scan, bounds);
    const auto stepped = computed(step, emulated::kPlainly, 0);
    const auto scanned = computed(scan, emulated::kPlainly, 0);
    CHECK(stepped.back() == scanned.back(), "gdn_step and gdn_scan differ");

    std::vector<float> pending(static_cast<size_t>(p.n_slots * most * width), NAN);
    std::vector<int32_t> kept(static_cast<size_t>(p.n_slots));
    for (int64_t r = 0; r < p.n(); r++) {
        const int64_t slot = *at(p.slots, r);
        std::copy(at(in, r * width), at(in, r * width) + width,
                  at(pending, (slot * most + (*at(kept, slot))++) * width));
    }
    fold.put("pending", kSlots, SK_F32, {p.n_slots, most, width}, pending);
    fold.ints("kept", kSlots, {p.n_slots}, kept);
    fold.of("key") = scan.of("key");
    fold.of("m") = scan.of("m");
    check(fold, bounds);
    CHECK(computed(fold, emulated::kPlainly, 0)[static_cast<size_t>(fold.field("m"))] ==
              scanned[static_cast<size_t>(scan.field("m"))],
          "gdn_fold and gdn_scan differ");
}

void check_gated_norm(int32_t type, int64_t heads, int64_t n)
{
    Op o("gated_norm");
    o.put("x", kRows, SK_F32, {5, heads, n});
    o.put("gate", kRows, SK_F32, {5, heads * n}, 4.0);
    o.put("gain", kNothing, SK_F32, {n});
    count(o, 5);
    o.out("out", kRows, type, {5, heads * n});
    o.set("eps", 1e-6);
    check(o, kNear);
}

void check_recurrent()
{
    for (const int32_t type : kActs) {
        check_conv(type, 2, 1, 1);
        check_conv(type, 4, 1, 300);
        check_conv(type, 4, 3, 40);
        check_conv(type, 9, 1, 7);
        check_gated_norm(type, 1, 1);
        check_gated_norm(type, 3, 45);
        check_gated_norm(type, 5, 128);
    }
    for (const Heads &h : kHeads) {
        check_inputs(h);
        check_delta(h);
    }
    check_inputs({1, 40, 8, 64}); // values for several warps, gates of more than 32 heads
}

/* ---- streams -----------------------------------------------------------------------------------
 */

void check_into_streams(int64_t streams, int64_t n)
{
    const int64_t rows = 6;
    for (const char *name : {"stream_copy", "stream_add", "hyper_inject"}) {
        Op o(name);
        o.put("x", kRows, SK_F32, {rows, n});
        if (o.op == SK_OP_hyper_inject) o.put("inject", kRows, SK_F32, {rows, streams});
        count(o, rows);
        o.put("s", kRows, SK_F32, {rows, streams, n});
        check(o, kExact);
    }
}

void check_ple_gate(int64_t streams, int64_t n)
{
    const int64_t rows = 5, wide = streams * n;
    Op o("ple_gate");
    o.put("key", kRows, SK_F32, {rows, wide});
    o.put("value", kRows, SK_F32, {rows, n});
    o.put("s", kRows, SK_F32, {rows, streams, n}, 2.0);
    for (const char *gain : {"key_gain", "query_gain", "conv_gain"})
        o.put(gain, kNothing, SK_F32, {wide}, floats(wide, 0.5, 1));
    count(o, rows);
    o.out("y", kRows, SK_F32, {rows, wide});
    o.out("normed", kRows, SK_F32, {rows, wide});
    o.set("eps", 1e-6);
    check(o, kNear);
}

void check_join(int32_t type, int64_t streams, int64_t n, int whole)
{
    const int64_t rows = 5;
    Op o("mtp_join");
    o.put("e", kRows, SK_F32, {rows, n});
    o.put("x", kRows, SK_F32, {rows, streams, n}, 3.0);
    o.put("e_gain", kNothing, SK_F32, {n}, floats(n, 0.5, 1));
    o.put("gain", kNothing, SK_F32, {streams * n}, floats(streams * n, 0.5, 1));
    count(o, rows);
    o.out("out", kRows, type, {rows, streams, 2 * n});
    o.out("n", kNothing, SK_I32, {1});
    o.set("eps", 1e-6);
    o.set("whole", whole);
    Bounds bounds = kNear;
    check(o, bounds);
}

/* Bits of any type, with scales that are moderate. */
std::vector<uint8_t> some_blocks(int32_t type, int64_t n)
{
    const sk_dtype_info *info = sk_dtype_find(type);
    const int64_t blocks = n / info->block_elems, bytes = info->block_bytes;
    std::vector<uint8_t> raw(static_cast<size_t>(blocks * bytes));
    for (uint8_t &b : raw) b = static_cast<uint8_t>(next_random());
    for (int64_t i = 0; i < blocks; i++) {
        uint8_t *b = at(raw, i * bytes);
        const float plain = random_float();
        const uint16_t half = sk_f32_to_bf16(plain), scale = 0x2000; // 2^-7 in F16
        if (type == SK_F32)
            memcpy(b, &plain, 4);
        else if (type == SK_BF16)
            memcpy(b, &half, 2);
        else if (type == SK_F16)
            b[1] = static_cast<uint8_t>((b[1] & 0x83) | 0x38); // 0.5 .. 1
        else
            memcpy(b, &scale, 2); // of Q8_0, Q4_0, IQ4_NL, Q4_1, Q4_K
        if (type == SK_Q4_1 || type == SK_Q4_K) memcpy(b + 2, &scale, 2);
    }
    return raw;
}

void check_table(int32_t type, int32_t act)
{
    const int64_t rows = 5, heads = 6, n = 64, table = 23;
    Op o("gather_heads");
    o.raw("table", kNothing, type, {table, n}, some_blocks(type, table * n).data());
    o.ints("ids", kRows, {rows, heads}, some(rows * heads, table));
    count(o, rows);
    o.out("out", kRows, act, {rows, heads * n});
    o.set("scale", 1.5);
    o.set("piece_rows", 0);
    check(o, kExact);
}

void check_streams()
{
    for (const Dim &d : {Dim{1, 1}, Dim{4, 64}, Dim{3, 37}, Dim{2, 1030}}) {
        check_into_streams(d[0], d[1]);
        check_ple_gate(d[0], d[1]);
        for (const int32_t type : kActs)
            for (int whole = 0; whole < 2; whole++) check_join(type, d[0], d[1], whole);
    }
    for (const int32_t type : {SK_F32, SK_F16, SK_BF16, SK_Q8_0, SK_Q4_0, SK_IQ4_NL})
        for (const int32_t act : kActs) check_table(type, act);
}

/* ---- hyper-connections -------------------------------------------------------------------------
 */

std::vector<float> values_of(int32_t type, const std::vector<uint8_t> &raw, int64_t n)
{
    std::vector<float> v(static_cast<size_t>(n));
    sk_quant_row(static_cast<sk_dtype>(type), raw.data(), static_cast<uint64_t>(n), v.data());
    return v;
}

double largest(const std::vector<float> &v)
{
    double most = 1e-9;
    for (const float x : v) most = fmax(most, fabs(x));
    return most;
}

void weight(Op &o, const char *field, int32_t type, int64_t n, int64_t k, double *most = nullptr)
{
    const std::vector<uint8_t> raw = some_blocks(type, n * k);
    o.raw(field, kNothing, type, {n, k}, raw.data()).packed = true;
    if (most) *most = largest(values_of(type, raw, n * k));
}

/* With many rows the other kernels leave copies under way that nobody needs: fused alone, then. */
void check_fused(Op &o, bool fuses)
{
    Bounds bounds;
    bounds.fuses = fuses;
    o.of("s").gap = fuses ? 4 : 1; // rows apart, and aligned
    o.fused = fuses && o.n_rows() > 16;
    check(o, bounds);
}

void check_down(int32_t type, int32_t inject, int64_t streams, int64_t n, int64_t low, int64_t rows,
                bool fuses = false)
{
    const int64_t wide = streams * n;
    double most = 1;
    Op o("hyper_down");
    o.name += " " + std::string(sk_dtype_name(type)) + sizes({streams, n, low, rows});
    weight(o, "w[0]", type, low, wide, &most);
    if (inject != -1) weight(o, "w[1]", inject, streams, wide);
    o.put("s", kRows, SK_F32, {rows, streams, n}, 2.0);
    o.put("gain", kNothing, SK_F32, {wide},
          floats(wide, 0.5, 4 / (most * sqrt(static_cast<double>(wide)))));
    count(o, rows);
    o.out("low", kRows, SK_BF16, {rows, low});
    o.out("factor", kRows, SK_F32, {rows, streams});
    if (inject != -1) o.out("inject", kRows, SK_F32, {rows, streams});
    o.set("eps", 1e-6);
    check_fused(o, fuses);
}

void check_mix(int32_t type, int64_t streams, int64_t n, int64_t low, int64_t rows,
               bool fuses = false)
{
    double most = 1;
    Op o("hyper_mix");
    o.name += " " + std::string(sk_dtype_name(type)) + sizes({streams, n, low, rows});
    weight(o, "w", type, streams * n, low, &most);
    o.put("low", kRows, SK_BF16, {rows, low}, 1 / most).gap = 8; // as products want them
    o.put("s", kRows, SK_F32, {rows, streams, n}, 2.0);
    o.put("factor", kRows, SK_F32, {rows, streams}, floats(rows * streams, 0.5, 1));
    o.put("gain", kNothing, SK_F32, {streams * n}, floats(streams * n, 0.25, 1));
    count(o, rows);
    o.out("out", kRows, SK_BF16, {rows, n});
    check_fused(o, fuses);
}

/* Two products of one input, the first with a bias; and the first onto what is there. */
void check_linear(int32_t type, int32_t other, int64_t n, int64_t k, int64_t rows)
{
    const double scale = 1 / sqrt(static_cast<double>(k));
    Op o("linear"), add("linear_add");
    for (Op *p : {&o, &add}) {
        p->name += " " + std::string(sk_dtype_name(type)) + sizes({n, k, rows});
        p->put("x", kRows, SK_BF16, {rows, k}, scale).gap = k % 32 ? 1 : 8;
        count(*p, rows);
    }
    weight(o, "w[0]", type, n, k);
    weight(o, "w[1]", other, 3, k);
    o.put("bias[0]", kNothing, SK_F32, {n});
    o.out("y[0]", kRows, SK_F32, {rows, n});
    o.out("y[1]", kRows, SK_F32, {rows, 3});
    check(o, kNear);
    add.of("w") = o.of("w[0]");
    add.put("y", kRows, SK_F32, {rows, n});
    check(add, kNear);
}

void check_products()
{
    for (const int32_t type : {SK_F32, SK_F16, SK_BF16})
        for (const int64_t k : {1, 16, 31, 33, 48, 80, 1000, 1553})
            check_linear(type, SK_BF16, k == 48 ? 90 : 17, k, k == 16 ? 42 : 5);
    check_linear(SK_BF16, SK_F32, 33, 96, 5);
    check_linear(SK_F32, SK_BF16, 17, 64, 18);
    check_linear(SK_Q8_0, SK_Q8_0, 40, 320, 42);
    check_linear(SK_Q4_K, SK_Q8_0, 19, 256, 9);
}

void check_hyper()
{
    // Streams of whole slices, that cross them, and the product of the first kernel's own.
    check_down(SK_BF16, SK_F32, 4, 64, 16, 5);
    check_down(SK_BF16, SK_BF16, 4, 64, 16, 3);
    check_down(SK_BF16, SK_F32, 4, 512, 19, 3, true);
    check_down(SK_Q8_0, SK_F32, 4, 512, 33, 9, true);
    check_down(SK_F16, SK_F32, 4, 2560, 130, 2, true);
    check_down(SK_F16, -1, 8, 256, 16, 30, true);
    check_down(SK_F16, SK_F16, 4, 512, 19, 2);
    check_down(SK_F32, -1, 2, 48, 5, 4);
    check_down(SK_Q4_K, SK_Q4_K, 2, 256, 7, 2);
    check_down(SK_BF16, SK_F32, 12, 32, 17, 2);
    check_down(SK_BF16, SK_F32, 2, 1040, 9, 2); // by several warps
    check_down(SK_BF16, SK_F32, 3, 7, 5, 3);    // of no whole blocks
    check_down(SK_F32, SK_BF16, 2, 8, 4, 9);
    check_mix(SK_BF16, 4, 64, 32, 5, true);
    check_mix(SK_F16, 4, 48, 320, 3, true);
    check_mix(SK_Q8_0, 3, 16, 96, 34, true);
    check_mix(SK_F16, 6, 32, 32, 19, true);
    check_mix(SK_BF16, 2, 32, 2048, 9, true);
    check_mix(SK_F32, 2, 5, 64, 4);
    check_mix(SK_Q8_0, 4, 300, 64, 3);
    check_mix(SK_Q4_K, 16, 33, 256, 2);
    check_mix(SK_BF16, 1, 8, 64, 42);
    check_mix(SK_BF16, 4, 64, 16, 5);
    check_mix(SK_F32, 2, 9, 7, 41);
}

/* ---- block-sparse attention --------------------------------------------------------------------
 */

void check_append(int64_t n, int64_t pairs, int32_t ratio)
{
    const int64_t room = 19;
    const Pass p(3, {{2, 5, 1}, {0, 1, ratio - 1}, {1, 7, 9}});
    Op o("index_append");
    o.put("k", kRows, SK_F32, {p.n(), n});
    o.put("gain", kNothing, SK_F32, {n}, floats(n, 0.5, 1));
    o.put("freq", kNothing, SK_F32, {pairs}, floats(pairs, 0.5, 0.6));
    p.give(o);
    o.put("raw", kSlots, SK_BF16, {3, room, n});
    o.put("pooled", kSlots, SK_BF16, {3, (room + ratio - 1) / ratio, n});
    o.set("eps", 1e-6);
    o.set("ratio", ratio);
    check(o, kNear);
}

/* Scores in a few values, so that many tie, and NaNs. */
void check_blocks(int64_t heads, int64_t n, int64_t blocks, int64_t k, int32_t ratio, bool ties)
{
    const int32_t last = static_cast<int32_t>(blocks * ratio) - 1;
    const Pass p(3, {{2, 2, last - 1}, {0, 1, 0}, {1, 3, last / 2}});
    Op o("block_topk");
    std::vector<float> q = floats(p.n() * heads * n, 1), pooled = floats(3 * blocks * n, 1);
    for (float &x : pooled)
        if (ties) x = static_cast<float>(static_cast<int>(next_random() % 3) - 1);
    for (float &x : q)
        if (ties) x = 1;
    for (int64_t b = 0; ties && b < 3 * blocks; b += 7) *at(pooled, b * n) = NAN;
    o.put("q", kRows, SK_BF16, {p.n(), heads, n}, q);
    o.put("pooled", kSlots, SK_BF16, {3, blocks, n}, pooled);
    p.give(o);
    o.out("out", kRows, SK_I32, {p.n(), k});
    o.set("scale", 0.5);
    o.set("ratio", ratio);
    Bounds bounds = kExact;
    bounds.ctx_bound = last + 1;
    bounds.bounds = {last + 100, 32768};
    check(o, bounds);
}

/* Every row with some of the blocks it sees, ascending. */
void check_attend(int64_t heads, int64_t kv, int64_t n, int64_t room, int64_t k, int32_t ratio,
                  bool gated)
{
    const int32_t last = static_cast<int32_t>(room) - 1;
    const Pass p(3, {{2, 2, last - 1}, {0, 1, 0}, {1, 2, last / 2}});
    std::vector<int32_t> blocks;
    for (int64_t r = 0; r < p.n(); r++) {
        const int64_t seen = (*at(p.pos, r) + 1) / ratio;
        int64_t left = std::min(k, seen);
        for (int64_t b = 0, there = 0; there < k; b++) {
            const bool take = left > 0 && static_cast<int64_t>(next_random()) % (seen - b) < left;
            if (b < seen && !take) continue;
            blocks.push_back(b < seen ? static_cast<int32_t>(b) : -1);
            left -= b < seen;
            there++;
        }
    }
    Op o("attend_blocks");
    o.name += sizes({heads, kv, n, room, k});
    o.put("q", kRows, SK_BF16, {p.n(), heads, n}, 2.0).gap = 2;
    if (gated) o.put("gate", kRows, SK_F32, {p.n(), heads, n}, 3.0);
    o.put("k_cache", kSlots, SK_BF16, {3, room, kv, n}).gap = 8;
    o.put("v_cache", kSlots, SK_BF16, {3, room, kv, n}).gap = 8;
    o.ints("blocks", kRows, {p.n(), k}, blocks);
    p.give(o);
    o.out("out", kRows, SK_BF16, {p.n(), heads, n}).gap = 2;
    o.set("scale", 0.5);
    o.set("ratio", ratio);
    o.set("split", 128);
    Bounds bounds = kNear;
    bounds.ctx_bound = last + 1;
    bounds.bounds = {32768};
    bounds.flipped = 1.0 / 64;
    check(o, bounds);
}

void check_sparse()
{
    check_append(16, 8, 4);
    check_append(28, 5, 1);
    check_append(530, 3, 3);
    for (int ties = 0; ties < 2; ties++) {
        check_blocks(4, 32, 9, 4, 4, ties);
        check_blocks(3, 7, 150, 33, 1, ties);
        check_blocks(5, 20, 70, 70, 3, ties);
        check_blocks(1, 128, 1500, 100, 2, ties);
    }
    check_attend(6, 2, 32, 53, 4, 4, true);
    check_attend(9, 1, 80, 300, 90, 3, false);
    check_attend(10, 1, 16, 200, 200, 1, true);
}

/* ---- routing -----------------------------------------------------------------------------------
 */

void check_topk(int64_t rows, int64_t experts, int64_t routes, int normed)
{
    std::vector<float> logits = floats(rows * experts, 3);
    for (int64_t i = 0; i < rows * experts; i++) // many that are equal, some that are none
        if (i % experts >= experts / 2) *at(logits, i) = roundf(*at(logits, i));
    Op o("route_topk");
    o.put("logits", kRows, SK_F32, {rows, experts}, logits);
    count(o, rows);
    o.out("ids", kRows, SK_I32, {rows, routes});
    o.out("weight", kRows, SK_F32, {rows, routes});
    o.set("normed", normed);
    check(o, kNear);
}

void check_gate_add(int64_t n)
{
    Op o("gate_add");
    o.put("x", kRows, SK_F32, {5, n});
    o.put("gate", kRows, SK_F32, {5, 1}, 3.0);
    count(o, 5);
    o.put("y", kRows, SK_F32, {5, n});
    check(o, kNear);
}

void check_route()
{
    for (int normed = 0; normed < 2; normed++) {
        check_topk(1, 1, 1, normed);
        check_topk(3, 17, 17, normed);
        check_topk(4, 512, 10, normed);
        check_topk(3, 513, 64, normed);
        check_topk(2, 5000, 8, normed);
    }
    for (const int64_t n : {1, 64, 701, 2560}) check_gate_add(n);
}

/* ---- around them -------------------------------------------------------------------------------
 */

void check_norms(int64_t n)
{
    for (const int32_t type : kActs) {
        Op o("rms_norm");
        o.put("x", kRows, SK_F32, {5, n});
        o.put("gain", kNothing, SK_F32, {n}, floats(n, 0.5, 1));
        count(o, 5);
        o.out("out", kRows, type, {5, n});
        o.set("eps", 1e-6);
        check(o, kNear);
    }
    Op o("norm_add");
    o.put("x", kRows, SK_F32, {5, n});
    o.put("gain", kNothing, SK_F32, {n}, floats(n, 0.5, 1));
    count(o, 5);
    o.put("y", kRows, SK_F32, {5, n});
    o.set("eps", 1e-6);
    check(o, kNear);
}

void check_elements(int64_t n)
{
    Op add("add"), copy("copy_rows");
    add.put("x", kRows, SK_F32, {5, n});
    count(add, 5);
    add.put("y", kRows, SK_F32, {5, n});
    check(add, kExact);
    copy.put("x", kRows, SK_F32, {5, n});
    count(copy, 5);
    copy.out("out", kRows, SK_F32, {5, n});
    check(copy, kExact);
    for (const char *name : {"silu_mul", "gelu_mul"})
        for (const int32_t type : kActs) {
            Op o(name);
            o.put("gate", kRows, SK_F32, {5, n}, 4.0);
            o.put("up", kRows, SK_F32, {5, n});
            count(o, 5);
            o.out("out", kRows, type, {5, n});
            check(o, kNear);
        }
}

void check_around()
{
    for (const int64_t n : {1, 45, 512, 1030}) {
        check_norms(n);
        check_elements(n);
    }
}

const struct {
    const char *name;
    void (*check)();
} kParts[] = {
    {"state", check_state},       {"recurrent", check_recurrent}, {"streams", check_streams},
    {"products", check_products}, {"hyper", check_hyper},         {"sparse", check_sparse},
    {"route", check_route},       {"around", check_around},
};

} // namespace

int main(int argc, char **argv)
{
    signal(SIGSEGV, [](int) { emulated::fail("an access to no memory"); });
    for (const auto &p : kParts) {
        bool wanted = argc < 2;
        for (int i = 1; i < argc; i++) wanted = wanted || strcmp(argv[i], p.name) == 0;
        if (wanted) p.check();
    }
    const int failed = failures + emulated::failed();
    printf("hybrid, emulated: %s\n", failed ? "failed" : "right");
    return failed != 0;
}
