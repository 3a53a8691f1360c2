/* The kernels of hybrid models, run on the host as emulated_cuda.h does it, against the definitions
 * of their ops and against themselves (emulated_ops.h): rows that are kept, recurrence, streams,
 * hashed embeddings, block-sparse attention and routing; in hybrid_products.cpp hyper-connections
 * and what is around them; in hybrid_rounds.cpp the ends of a round. Shapes are awkward ones: odd
 * lengths, heads that fill no warp, slots in any order and without rows. Arguments select families.
 */
#include "tests/c/emulated_cuda.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>
#include <vector>

#include "tests/c/emulated_cases.h"

namespace
{

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
const Heads kHeads[] = {{1, 1, 1, 1},   {2, 6, 16, 40},  {2, 4, 6, 11},
                        {1, 2, 100, 6}, {1, 2, 128, 33}, {1, 2, 128, 128},
                        {2, 2, 64, 7},  {1, 3, 96, 34},  {1, 2, 7, 64}};

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

/* Steps, a scan, and a fold of what the steps have kept, `most` rows a slot. */
void check_delta(const Heads &h, const Pass &p, int64_t most)
{
    const std::vector<float> in = entries(h, p.n());
    const std::vector<float> m = floats(p.n_slots * h.hv * h.dk * h.dv, 1);
    const int64_t width = static_cast<int64_t>(in.size()) / p.n();
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
        for (const int64_t n : {7, 64, 96, 130, 300}) check_gated_norm(type, 6, n);
    }
    // Rows that fill what comes into shared memory together, and that take several turns.
    const Pass longer(4, {{2, 41, 3}, {0, 8, 0}, {3, 1, 5}, {1, 17, 0}});
    for (const Heads &h : kHeads) {
        check_inputs(h);
        check_delta(h, some_pass(), 5);
        if (h.dk <= 16 || h.dv == 33) check_delta(h, longer, 42);
    }
    check_inputs({1, 40, 8, 64}); // values for several warps, gates of more than 32 heads
    check_inputs({1, 2, 132, 7}); // heads of more than a quad a lane
    check_inputs({2, 2, 301, 130});
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
    o.name += sizes({heads, n, blocks, k, ratio, ties});
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
    check_append(200, 100, 5); // more of everything than a thread holds at a time
    for (int ties = 0; ties < 2; ties++) {
        check_blocks(4, 32, 9, 4, 4, ties);
        check_blocks(3, 7, 150, 33, 1, ties);
        check_blocks(5, 20, 70, 70, 3, ties);
        check_blocks(1, 128, 1500, 100, 2, ties);
        check_blocks(5, 200, 70, 9, 2, ties); // longer than what is loaded at once
        check_blocks(2, 131, 70, 9, 1, ties);
        check_blocks(1, 16, 2100, 300, 1, ties); // more keys of a lane
        check_blocks(1, 8, 8200, 500, 1, ties);  // more than stay in registers
    }
    check_attend(6, 2, 32, 53, 4, 4, true);
    check_attend(9, 1, 80, 300, 90, 3, false);
    check_attend(10, 1, 16, 200, 200, 1, true);
    check_attend(24, 2, 256, 300, 60, 4, true);  // V over K
    check_attend(20, 1, 16, 700, 600, 1, true);  // heads for two CTAs, a list longer than a CTA
    check_attend(1, 1, 16, 2700, 675, 4, false); // more splits than are merged at once
}

/* ---- routing -----------------------------------------------------------------------------------
 */

void check_topk(int64_t rows, int64_t routes, int normed, const std::vector<float> &logits)
{
    Op o("route_topk");
    const int64_t experts = static_cast<int64_t>(logits.size()) / rows;
    o.put("logits", kRows, SK_F32, {rows, experts}, logits);
    count(o, rows);
    o.out("ids", kRows, SK_I32, {rows, routes});
    o.out("weight", kRows, SK_F32, {rows, routes});
    o.set("normed", normed);
    check(o, kNear);
}

void check_topk(int64_t rows, int64_t experts, int64_t routes, int normed)
{
    std::vector<float> logits = floats(rows * experts, 3);
    for (int64_t i = 0; i < rows * experts; i++) // many that are equal
        if (i % experts >= experts / 2) *at(logits, i) = roundf(*at(logits, i));
    check_topk(rows, routes, normed, logits);
}

/* Rows in which large logits are too many, or all in one lane, or some are none: of each some. */
void check_uneven_topk(int64_t experts, int64_t routes, int normed)
{
    std::vector<float> logits = floats(6 * experts, 3);
    for (int64_t i = 0; i < experts; i++) {
        *at(logits, i) = i % 2 ? 0.0f : -0.0f;                 // all equal
        if (i % 32 == 5) *at(logits, experts + i) += 9;        // one lane's
        if (i % 8 == 3) *at(logits, 2 * experts + i) += 9;     // of some lanes
        if (i % 16) *at(logits, 3 * experts + i) = NAN;        // few numbers, in two lanes
        if (i % 3) *at(logits, 4 * experts + i) = -INFINITY;   // equal, and below all
        if (i % 5 == 0) *at(logits, 5 * experts + i) = 2.875f; // equal, and above most
    }
    if (!normed)
        for (int64_t i = 0; i < experts; i++) *at(logits, 3 * experts + i) = 0;
    check_topk(6, routes, normed, logits);
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
        for (const int64_t n : {31, 32, 33, 300, 512, 513})
            for (const int64_t routes : {1, 10, 31}) check_topk(3, n, routes, normed);
        check_topk(2, 33, 33, normed);
        check_topk(2, 40, 32, normed);
        check_topk(3, 512, 32, normed);
        check_topk(3, 512, 64, normed);
        check_topk(3, 513, 64, normed);
        check_topk(2, 4096, 10, normed);
        check_topk(2, 5000, 8, normed);
        for (const int64_t n : {64, 500, 512}) check_uneven_topk(n, 4, normed);
        check_uneven_topk(512, 10, normed);
    }
    for (const int64_t n : {1, 64, 701, 2560}) check_gate_add(n);
}

const struct {
    const char *name;
    void (*check)();
} kParts[] = {
    {"state", check_state},       {"recurrent", check_recurrent}, {"streams", check_streams},
    {"products", check_products}, {"hyper", check_hyper},         {"sparse", check_sparse},
    {"route", check_route},       {"around", check_around},       {"rounds", check_rounds},
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
    const int failed = failures + failed_products() + failed_rounds() + emulated::failed();
    printf("hybrid, emulated: %s\n", failed ? "failed" : "right");
    return failed != 0;
}
