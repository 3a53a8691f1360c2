/* The emulated kernels of a round: control entry, commit, drafters, row table, acceptance and
 * completion record, each against its definition, and both ends of a round in one launch against
 * their ops one after the other. A part of hybrid_emulated.cpp. */
#include "tests/c/emulated_cases.h"

#include <memory>

#include "kernels/sk_kernels.h"

namespace
{

using emulated::Argument;
using State = std::map<std::string, Argument>; // what the ops of a round share, by field

int32_t below(int32_t n) { return static_cast<int32_t>(next_random() % static_cast<uint32_t>(n)); }

template <typename T> void give(State &s, const char *field, const std::vector<T> &items)
{
    Argument &a = s[field];
    a.along = kSlots;
    a.dtype = SK_U8;
    a.dim = {static_cast<int64_t>(items.size()), sizeof(T)};
    a.bytes.resize(items.size() * sizeof(T));
    memcpy(a.bytes.data(), items.data(), a.bytes.size());
    a.gap = 8;
}

void give_ints(State &s, const char *field, const Dim &dim, const std::vector<int32_t> &values)
{
    Argument &a = s[field];
    a.along = kSlots;
    a.dtype = SK_I32;
    a.dim = dim;
    a.bytes.resize(4 * values.size());
    memcpy(a.bytes.data(), values.data(), a.bytes.size());
}

/* A result: NaNs, or nothing that anybody has written. */
void give_room(State &s, const char *field, const Dim &dim)
{
    int64_t n = 1;
    for (const int64_t d : dim) n *= d;
    give_ints(s, field, dim, std::vector<int32_t>(static_cast<size_t>(n), -1));
}

struct Sizes {
    int32_t slots, k, width, rows, ctx;
};
constexpr int32_t kRing = 3, kTokens = 7; // few tokens, so that many are alike

sk_slot some_slot(const Sizes &z)
{
    sk_slot s = {};
    s.active = below(4) > 0;
    s.n = below(3) ? below(z.ctx) : z.ctx - 1 - below(2);
    s.anchor = below(kTokens);
    s.emitted = below(20);
    s.finish = s.active ? SK_FINISH_NONE : below(4);
    return s;
}

/* What a pass of some rows may have left; `n` positions are there. */
sk_pending some_pending(const Sizes &z, int32_t n)
{
    sk_pending p = {};
    if (below(3) == 0) return p;
    p.drafted = below(z.k + 1);
    p.verified = below(std::min(p.drafted, z.width - 1) + 1);
    p.accepted = below(p.verified + 1);
    p.n = std::min(1 + below(p.accepted + 1), z.ctx - n);
    p.finish = below(4) ? SK_FINISH_NONE : 1 + below(2);
    for (int i = 0; i < p.n; i++) p.tok[i] = below(kTokens);
    return p;
}

State some_state(const Sizes &z, int64_t round, bool legible, bool pending)
{
    State s;
    std::vector<sk_slot> slots;
    std::vector<sk_pending> left;
    std::vector<sk_request> requests;
    std::vector<sk_counters> counters(static_cast<size_t>(z.slots));
    std::vector<sk_ctl_entry> ring(kRing);
    std::vector<sk_done> done(kRing);
    const int32_t b = z.slots;
    for (int32_t i = 0; i < b; i++) {
        slots.push_back(some_slot(z));
        left.push_back(pending ? some_pending(z, slots.back().n) : sk_pending());
        sk_request r = {slots.back().emitted + 1 + below(12), below(4), {}};
        for (int32_t &stop : r.stop) stop = below(3 * kTokens);
        requests.push_back(r);
    }
    for (sk_counters &c : counters) {
        int64_t *words = reinterpret_cast<int64_t *>(&c);
        for (size_t i = 0; i < sizeof c / 8; i++) words[i] = below(1 << 30) + (1LL << 33);
    }
    for (sk_ctl_entry &e : ring) {
        e.seq = e.seq_end = round;
        if (!legible) (below(2) ? e.seq : e.seq_end) ^= 1;
        for (sk_ctl_slot &c : e.slot) c = {below(3) ? SK_LICENCE_ALL : below(6) - 2, below(8) == 0};
    }
    sk_ctl_entry read = ring[static_cast<size_t>(round % kRing)];
    read.valid = legible;
    give(s, "slots", slots);
    give(s, "pending", left);
    give(s, "requests", requests);
    give(s, "counters", counters);
    give(s, "ring", ring);
    give(s, "done", done);
    give(s, "ctl", std::vector<sk_ctl_entry>{read});
    s["ctl"].dim = {sizeof(sk_ctl_entry)};
    s["round"] = {kSlots, SK_I64, {1}, std::vector<uint8_t>(8)};
    memcpy(s["round"].bytes.data(), &round, 8);
    give_ints(s, "tokens", {b, z.ctx + 1}, some(b * (z.ctx + 1), kTokens));
    give_ints(s, "table", {b, z.ctx + 1}, some(b * (z.ctx + 1), kTokens));
    give_ints(s, "accept", {3}, {0, 2, z.k});
    give_ints(s, "drafts", {b, z.k}, some(b * z.k, kTokens));
    give_ints(s, "n_draft", {b}, some(b, z.k + 1));
    give_ints(s, "chosen", {z.rows}, some(z.rows, kTokens));
    give_ints(s, "kept", {b}, some(b, 5));
    give_room(s, "rows", {z.rows, 3});
    give_room(s, "ids", {z.rows});
    give_room(s, "count", {1});
    give_room(s, "span", {b, 2});
    return s;
}

/* What an op calls this; publish has a ring of its own. */
std::string named(enum sk_op op, const std::string &field)
{
    return op == SK_OP_publish && field == "ring" ? "done" : field;
}

Op op_of(const char *name, const State &s, const Sizes &z)
{
    Op o(name);
    for (size_t i = 0; i < o.arguments.size(); i++) {
        const sk_field &f = sk_ops[o.op].fields[i];
        if (f.kind == SK_FIELD_VIEW) o.arguments[i] = s.at(named(o.op, f.name));
    }
    o.set("ctx", z.ctx);
    o.set("width", z.width);
    o.set("vocab", kTokens);
    o.set("n_max", 4);
    o.set("n_min", 1 + below(2));
    return o;
}

/* The definition, with its results in the state; the kernel has been held against it. */
void go_on(const char *name, State &s, const Sizes &z, bool check_it)
{
    const Op o = op_of(name, s, z);
    Bounds bounds = kExact;
    bounds.ctx_bound = z.ctx;
    if (o.op == SK_OP_draft_ngram) bounds.bounds = {100000}; // by several CTAs
    if (check_it) check(o, bounds);
    const emulated::Results r = defined(o);
    for (size_t i = 0; i < o.arguments.size(); i++) {
        const sk_field &f = sk_ops[o.op].fields[i];
        if (f.kind == SK_FIELD_VIEW) s.at(named(o.op, f.name)).bytes = r[i];
    }
}

/* ---- several ops in one launch ----------------------------------------------------------------
 */

struct Shared {
    std::map<std::string, std::unique_ptr<Memory>> memory;
    const State &s;

    explicit Shared(const State &state) : s(state)
    {
        for (const auto &a : s) {
            auto m = std::make_unique<Memory>(a.second.bytes.size());
            memcpy(m->p, a.second.bytes.data(), a.second.bytes.size());
            emulated::setting.dependent.push_back({m->p, a.second.bytes.size()});
            memory[a.first] = std::move(m);
        }
    }
    template <typename Args> Args args(enum sk_op op, const Sizes &z) const
    {
        Args a;
        sk_args_clear(op, &a);
        for (const sk_field *f = sk_ops[op].fields; f->kind != SK_FIELD_END; f++) {
            const std::string name = f->name;
            const int32_t constant = name == "ctx" ? z.ctx : name == "width" ? z.width : kTokens;
            uint8_t *at = reinterpret_cast<uint8_t *>(&a) + f->at;
            if (f->kind != SK_FIELD_VIEW) {
                memcpy(at, &constant, 4);
                continue;
            }
            const Argument &is = s.at(named(op, name));
            sk_view v =
                sk_view_dense(0, is.dtype, static_cast<int32_t>(is.dim.size()), is.dim.data());
            v.p = memory.at(named(op, name))->p;
            memcpy(at, &v, sizeof v);
        }
        return a;
    }
    void compare(const State &want, const char *what) const
    {
        for (const auto &a : want)
            CHECK(memcmp(memory.at(a.first)->p, a.second.bytes.data(), a.second.bytes.size()) == 0,
                  "%s: %s has other bits than the ops one after the other", what, a.first.c_str());
    }
};

sk_launch begin_launch(const char *name, emulated::Order order)
{
    sk_launch l = {};
    l.n_sm = 3;
    l.edge = 1;
    emulated::setting = emulated::Setting();
    emulated::setting.name = name;
    emulated::setting.order = order;
    return l;
}

void open_and_close(const State &start, const Sizes &z, bool planted, emulated::Order order)
{
    State want = start;
    {
        const sk_launch l = begin_launch("round_open", order);
        const Shared is(start);
        const auto ctl = is.args<sk_ctl_read_args>(SK_OP_ctl_read, z);
        const auto commit = is.args<sk_commit_args>(SK_OP_commit, z);
        const auto none = is.args<sk_draft_none_args>(SK_OP_draft_none, z);
        const auto plants = is.args<sk_draft_planted_args>(SK_OP_draft_planted, z);
        const auto rows = is.args<sk_round_rows_args>(SK_OP_round_rows, z);
        CHECK(sk_k_round_open(&ctl, &commit, planted ? nullptr : &none, planted ? &plants : nullptr,
                              &rows, &l) == 0,
              "round_open");
        for (const char *op :
             {"ctl_read", "commit", planted ? "draft_planted" : "draft_none", "round_rows"})
            go_on(op, want, z, false);
        emulated::setting = emulated::Setting();
        is.compare(want, "round_open");
    }
    const State opened = want;
    const sk_launch l = begin_launch("round_close", order);
    const Shared is(opened);
    const auto accept = is.args<sk_accept_args>(SK_OP_accept, z);
    const auto publish = is.args<sk_publish_args>(SK_OP_publish, z);
    CHECK(sk_k_round_close(&accept, &publish, &l) == 0, "round_close");
    emulated::setting = emulated::Setting();
    for (const char *op : {"accept", "publish"}) go_on(op, want, z, false);
    is.compare(want, "round_close");
}

/* All ops of a round, one after the other. */
void check_round(const Sizes &z, int64_t round, bool legible)
{
    State s = some_state(z, round, legible, true), unread = s;
    std::fill(unread["ctl"].bytes.begin(), unread["ctl"].bytes.end(), 0x11);
    open_and_close(unread, z, false, emulated::kShuffled);
    open_and_close(unread, z, true, emulated::kDescending);
    for (const char *op : {"ctl_read", "commit", "draft_none", "draft_planted", "draft_ngram"})
        go_on(op, s, z, true);
    s = some_state(z, round, legible, false);
    for (const char *op : {"round_rows", "accept", "publish"}) go_on(op, s, z, true);
}

} // namespace

void check_rounds()
{
    const Sizes sizes[] = {
        {1, 1, 1, 1, 4}, {3, 4, 5, 15, 40}, {5, 15, 16, 30, 300}, {64, 3, 4, 256, 20}};
    int64_t round = 0;
    for (const Sizes &z : sizes)
        for (int i = 0; i < 4; i++) check_round(z, round++, i != 1);
    check_round(sizes[1], (1LL << 32) + 1, true);
}

int failed_rounds() { return failures; }
