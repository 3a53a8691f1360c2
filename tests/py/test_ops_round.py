"""The ops of a round: values worked out by hand, and whole rounds against a naive model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rounds as naive
from op_tools import I32, TABLES, ints, run
from rounds import ALL, HOST, LENGTH, NONE, STOP, WAIT

SLOTS, STOPS, WIDTH = 64, 32, 16
SLOT = np.dtype([("active", I32), ("n", I32), ("anchor", I32), ("emitted", I32), ("finish", I32),
                 ("reserved", I32, 3)])  # fmt: skip
REQUEST = np.dtype([("max_tokens", I32), ("n_stop", I32), ("stop", I32, STOPS)])
PENDING = np.dtype([("n", I32), ("drafted", I32), ("verified", I32), ("accepted", I32),
                    ("finish", I32), ("reserved", I32), ("tok", I32, WIDTH)])  # fmt: skip
COUNTERS = np.dtype([(name, np.int64) for name in (
    "rounds", "rounds_without_draft", "proposed", "verified", "accepted", "emitted",
    "emitted_by_prefill", "discarded_after_stop", "gpu_ns")]
    + [("accepted_at", np.int64, WIDTH)])  # fmt: skip
ENTRY = np.dtype([("seq", np.int64), ("valid", I32), ("reserved", I32),
                  ("slot", [("licence", I32), ("stop", I32)], SLOTS), ("seq_end", np.int64)])  # fmt: skip
DONE_SLOT = [(name, I32) for name in ("rows", "first", "pos", "n", "drafted", "accepted", "finish",
                                      "committed")] + [("tok", I32, WIDTH)]  # fmt: skip
DONE = np.dtype([("seq", np.int64), ("flags", I32), ("n_rows", I32), ("slot", DONE_SLOT, SLOTS),
                 ("seq_end", np.int64)])  # fmt: skip


def raw(a: np.ndarray) -> np.ndarray:
    """Structures as U8 [rows, bytes]; one of them as [bytes]."""
    return (
        a.view(np.uint8).reshape(*a.shape, a.itemsize) if a.shape else a.reshape(1).view(np.uint8)
    )


class Device:
    """The buffers of a round for B slots of C positions, and the ops as methods."""

    def __init__(self, b=1, ctx=32, width=5, capacity=None, table="definition"):
        self.b, self.ctx, self.width, self.table = b, ctx, width, table
        capacity = capacity or b * width
        self.slots, self.requests = np.zeros(b, SLOT), np.zeros(b, REQUEST)
        self.pending, self.counters = np.zeros(b, PENDING), np.zeros(b, COUNTERS)
        self.tokens = np.zeros((b, ctx + 1), I32)
        self.kept, self.n_draft = np.full(b, -9, I32), np.zeros(b, I32)
        self.drafts = np.zeros((b, max(1, width - 1)), I32)
        self.rows, self.ids = np.full((capacity, 3), -9, I32), np.full(capacity, -9, I32)
        self.count, self.span = np.zeros(1, I32), np.full((b, 2), -9, I32)
        self.round = np.zeros(1, np.int64)
        self.ring, self.done = np.zeros(4, ENTRY), np.zeros(3, DONE)
        self.ctl = np.zeros((), ENTRY)
        self.ctl["valid"] = 1
        self.licence(ALL)

    def licence(self, *values, stop=()):
        for b in range(self.b):
            self.ctl["slot"]["licence"][b] = values[b % len(values)]
            self.ctl["slot"]["stop"][b] = b in stop

    def start(self, b, prompt, first, max_tokens=100, stops=()):
        self.slots[b] = (1, len(prompt), first, 1, 0, 0)
        self.tokens[b, : len(prompt) + 1] = [*prompt, first]
        self.requests[b]["max_tokens"], self.requests[b]["n_stop"] = max_tokens, len(stops)
        self.requests[b]["stop"][: len(stops)] = stops
        self.counters[b]["emitted"] = self.counters[b]["emitted_by_prefill"] = 1

    def pend(self, b, tok, drafted=0, verified=0, accepted=0, finish=NONE):
        self.pending[b] = (len(tok), drafted, verified, accepted, finish, 0,
                           [*tok, *[0] * (WIDTH - len(tok))])  # fmt: skip

    def propose(self, b, *tokens):
        self.drafts[b] = 0
        self.drafts[b, : len(tokens)] = tokens
        self.n_draft[b] = len(tokens)

    def op(self, name, *fields, **more):
        args = {f: raw(v) if (v := getattr(self, f)).dtype.fields else v for f in fields}
        run(name, self.table, 1, **args, **more)

    def ctl_read(self):
        run("ctl_read", self.table, 1, ring=raw(self.ring), round=self.round, ctl=raw(self.ctl))

    def commit(self):
        self.op("commit", "ctl", "slots", "pending", "counters", "tokens", "kept")

    def round_rows(self):
        self.op("round_rows", "ctl", "slots", "requests", "pending", "drafts", "n_draft", "rows",
                "ids", "count", "span", width=self.width, ctx=self.ctx)  # fmt: skip

    def accept(self, chosen):
        chosen = np.concatenate([chosen, np.full(len(self.ids) - len(chosen), -5)]).astype(I32)
        self.op("accept", "slots", "requests", "drafts", "n_draft", "span", "pending",
                chosen=chosen, ctx=self.ctx)  # fmt: skip

    def publish(self):
        run("publish", self.table, 1, ctl=raw(self.ctl), slots=raw(self.slots),
            pending=raw(self.pending), kept=self.kept, span=self.span, round=self.round,
            ring=raw(self.done))  # fmt: skip

    def state(self, b):
        s = self.slots[b]
        return tuple(int(s[f]) for f in ("active", "n", "anchor", "emitted", "finish"))

    def counted(self, b):
        return {f: int(self.counters[b][f]) for f in naive.COUNTERS}


# ---- by hand --------------------------------------------------------------------------------------


def test_ctl_read_wants_the_round_at_both_ends():
    d = Device()
    for k in range(4):
        d.ring[k]["seq"] = d.ring[k]["seq_end"] = k
        d.ring[k]["slot"]["licence"] = 10 + k
    d.round[0] = 3
    d.ctl_read()
    assert (d.ctl["valid"], d.ctl["slot"]["licence"][5]) == (1, 13)
    d.round[0] = 4  # entry 0 still holds round 0
    d.ctl_read()
    assert (d.ctl["valid"], d.ctl["slot"]["licence"][0]) == (0, 10)
    d.ring[0]["seq"] = 4  # half written
    d.ctl_read()
    assert d.ctl["valid"] == 0
    d.ring[0]["seq_end"] = 4
    d.ring[0]["valid"] = 0  # the host's value is no matter
    d.ctl_read()
    assert d.ctl["valid"] == 1


def committed(licence, stop=False, valid=1, **pending):
    d = Device(ctx=20)
    d.start(0, [1, 2, 3], 4)
    if pending:
        d.pend(0, **pending)
    d.licence(licence, stop=(0,) if stop else ())
    d.ctl["valid"] = valid
    d.commit()
    return d


THREE = {"tok": [7, 8, 9], "drafted": 4, "verified": 3, "accepted": 2}


def test_commit_keeps_everything():
    d = committed(ALL, **THREE)
    assert d.state(0) == (1, 6, 9, 4, NONE)
    assert d.tokens[0, :8].tolist() == [1, 2, 3, 4, 7, 8, 9, 0]
    assert d.kept.tolist() == [3]
    assert d.counted(0) == {"rounds": 1, "rounds_without_draft": 0, "proposed": 4, "verified": 3,
                            "accepted": 2, "emitted": 4, "emitted_by_prefill": 1,
                            "discarded_after_stop": 0}  # fmt: skip
    assert d.counters[0]["accepted_at"][:4].tolist() == [1, 1, 0, 0]
    assert d.pending.tobytes() == bytes(PENDING.itemsize)


def test_commit_of_less_than_pending():
    d = committed(1, **THREE, finish=LENGTH)
    assert d.state(0) == (1, 4, 7, 2, NONE)  # the finish belonged to token 9
    assert d.tokens[0, :6].tolist() == [1, 2, 3, 4, 7, 0]
    assert d.counted(0)["discarded_after_stop"] == 2
    assert committed(99, **THREE, finish=LENGTH).state(0) == (0, 6, 9, 4, LENGTH)
    assert committed(3, **THREE, finish=STOP).state(0) == (0, 6, 9, 4, STOP)
    d = committed(1, stop=True, **THREE, finish=STOP)
    assert d.state(0) == (0, 4, 7, 2, HOST)
    assert committed(ALL, stop=True, **THREE).state(0) == (0, 6, 9, 4, HOST)
    assert committed(ALL, stop=True, **THREE, finish=STOP).state(0)[4] == STOP


def test_commit_that_cancels():
    d = committed(0, stop=True, **THREE)
    assert d.state(0) == (0, 3, 4, 1, HOST)
    assert d.tokens[0, :5].tolist() == [1, 2, 3, 4, 0]
    assert d.counted(0)["discarded_after_stop"] == 3
    assert not d.pending["n"].any()
    d = committed(0, stop=True)  # nothing pending: nothing counted
    assert d.state(0) == (0, 3, 4, 1, HOST)
    assert d.counted(0)["rounds"] == 0
    assert committed(0, **THREE).state(0) == (1, 3, 4, 1, NONE)


def test_commit_waits():
    for how in ({"licence": WAIT}, {"licence": WAIT, "stop": True}, {"licence": -77},
                {"licence": ALL, "valid": 0}, {"licence": 0, "stop": True, "valid": 0}):  # fmt: skip
        d = committed(**how, **THREE)
        assert d.state(0) == (1, 3, 4, 1, NONE)
        assert d.kept.tolist() == [0]
        assert d.pending["n"].tolist() == [3]
        assert d.counted(0)["rounds"] == 0


def test_commit_leaves_an_inactive_slot_alone():
    d = Device()
    d.start(0, [1], 2)
    d.slots[0]["active"] = 0
    d.pend(0, **THREE)
    before = [a.tobytes() for a in (d.slots, d.pending, d.counters, d.tokens)]
    d.licence(ALL, stop=(0,))
    d.commit()
    assert [a.tobytes() for a in (d.slots, d.pending, d.counters, d.tokens)] == before
    assert d.kept.tolist() == [0]


def test_a_round_without_draft_counts_rows_not_proposals():
    d = committed(ALL, tok=[7], drafted=3, verified=0, accepted=0)  # proposals, but no room
    assert d.counted(0)["rounds_without_draft"] == 1
    assert committed(ALL, tok=[7], drafted=3, verified=1).counted(0)["rounds_without_draft"] == 0


def test_round_rows_packs_slots_in_order():
    d = Device(b=5, width=4, ctx=32, capacity=12)
    for b in range(5):
        d.start(b, [1] * (b + 1), 50 + b)
        d.propose(b, 10 * b + 1, 10 * b + 2, 10 * b + 3)
    d.slots[1]["active"] = 0
    d.pend(2, [5])
    d.propose(3)
    d.requests[4]["max_tokens"] = 3  # one emitted: two more, so one draft
    d.round_rows()
    assert d.count[0] == 7
    assert d.span.tolist() == [[0, 4], [0, 0], [0, 0], [4, 1], [5, 2]]
    assert d.ids.tolist() == [50, 1, 2, 3, 53, 54, 41, 0, 0, 0, 0, 0]
    assert d.rows[:7].tolist() == [[0, 1, 0], [0, 2, 1], [0, 3, 2], [0, 4, 3], [3, 4, 0], [4, 5, 0],
                                   [4, 6, 1]]  # fmt: skip
    assert (d.rows[7:, 0] == -1).all()
    assert (d.rows[7:, 1:] == 0).all()


def one_slot_rows(n=3, width=5, ctx=32, **more):
    d = Device(width=width, ctx=ctx)
    d.start(0, [1] * n, 9, **more)
    d.propose(0, *range(20, 20 + d.drafts.shape[1]))
    return d


def test_round_rows_limits():
    for ctx, want in ((8, 5), (7, 4), (5, 2), (4, 1), (3, 0)):  # positions 3 .. ctx - 1
        d = one_slot_rows(ctx=ctx)
        d.round_rows()
        assert d.span[0].tolist() == [0, want]
    for most, want in ((6, 5), (5, 4), (2, 1), (1, 0)):
        d = one_slot_rows(max_tokens=most)
        d.round_rows()
        assert d.span[0, 1] == want
    d = one_slot_rows(width=1)  # one column of drafts that is not looked at
    d.round_rows()
    assert d.span.tolist() == [[0, 1]]
    assert d.ids.tolist() == [9]


def test_round_rows_waits():
    d = one_slot_rows()
    d.licence(WAIT)
    d.round_rows()
    assert (d.count[0], d.span.tolist()) == (0, [[0, 0]])
    d.licence(ALL)
    d.ctl["valid"] = 0
    d.round_rows()
    assert d.count[0] == 0
    d.ctl["valid"] = 1
    d.round_rows()
    assert d.count[0] == 5


def test_round_rows_skips_what_does_not_fit():
    d = Device(b=3, width=4, capacity=6)
    for b in range(3):
        d.start(b, [1], 9)
        d.propose(b, 1, 2, 3)
    d.propose(2, 1)
    d.round_rows()
    assert d.span.tolist() == [[0, 4], [0, 0], [4, 2]]
    assert d.count[0] == 6


def accepted(chosen, stops=(), max_tokens=100, n=3, ctx=32, drafts=(20, 21, 22, 23)):
    d = Device(ctx=ctx)
    d.start(0, [1] * n, 9, max_tokens, stops)
    d.propose(0, *drafts)
    d.round_rows()
    d.accept(chosen)
    p = d.pending[0]
    return (p["tok"][: p["n"]].tolist(), int(p["accepted"]), int(p["finish"]), int(p["verified"]),
            int(p["drafted"]))  # fmt: skip


def test_accept_takes_the_leading_agreement():
    assert accepted([20, 21, 7, 23, 8]) == ([20, 21, 7], 2, NONE, 4, 4)
    assert accepted([20, 21, 22, 23, 8]) == ([20, 21, 22, 23, 8], 4, NONE, 4, 4)
    assert accepted([7, 21, 22, 23, 8]) == ([7], 0, NONE, 4, 4)
    assert accepted([7], drafts=()) == ([7], 0, NONE, 0, 0)


def test_accept_cuts_at_stop_ids_then_at_limits():
    assert accepted([20, 21, 7, 23, 8], stops=[21]) == ([20, 21], 2, STOP, 4, 4)
    assert accepted([20, 21, 7, 23, 8], stops=[9, 7]) == ([20, 21, 7], 2, STOP, 4, 4)
    assert accepted([20, 21, 7, 23, 8], stops=[23, 8]) == ([20, 21, 7], 2, NONE, 4, 4)
    # One emitted before; the third token of the request is the last.
    assert accepted([20, 21, 7], max_tokens=3) == ([20, 21], 1, LENGTH, 1, 4)
    assert accepted([20, 21, 7], max_tokens=3, stops=[21]) == ([20, 21], 1, STOP, 1, 4)
    assert accepted([20, 21, 7], max_tokens=3, stops=[20]) == ([20], 1, STOP, 1, 4)
    # Positions 3 .. 5 of a context of 6: three more tokens fit as far as the window goes.
    assert accepted([20, 21, 22], ctx=6) == ([20, 21, 22], 2, LENGTH, 2, 4)
    assert accepted([7, 21, 22], ctx=6) == ([7], 0, NONE, 2, 4)
    assert accepted([7], ctx=4) == ([7], 0, LENGTH, 0, 4)


def test_accept_leaves_other_slots_alone():
    d = Device(b=2)
    d.start(0, [1], 9)
    d.start(1, [1], 9)
    d.pend(1, **THREE)
    before = d.pending[1].tobytes()
    d.round_rows()
    d.accept([5, 5, 5, 5, 5])
    assert d.pending[1].tobytes() == before
    assert d.pending[0]["tok"][0] == 5


def test_publish():
    d = Device(b=3, width=3)
    for b in range(3):
        d.start(b, [1] * (b + 2), 9)
        d.propose(b, 20, 21)
    d.slots[1]["active"], d.slots[1]["finish"] = 0, STOP
    d.kept[:] = [2, 1, 0]
    d.round_rows()
    d.accept([20, 8, 0, 20, 21, 22])
    d.round[0] = 7
    d.done.view(np.uint8)[:] = 0xA5  # entry 7 mod 3 holds something old
    before = d.done.copy()
    d.publish()
    rec = d.done[1]
    assert d.round[0] == 8
    assert (rec["seq"], rec["seq_end"], rec["flags"], rec["n_rows"]) == (7, 7, 0, 6)
    tail = [0] * 13
    assert rec["slot"][0].tolist()[:8] == (3, 0, 2, 2, 2, 1, NONE, 2)
    assert rec["slot"][0]["tok"].tolist() == [20, 8, 0, *tail]
    assert rec["slot"][1].tolist()[:8] == (0, 0, 3, 0, 0, 0, STOP, 1)
    assert not rec["slot"][1]["tok"].any()
    assert rec["slot"][2].tolist()[:8] == (3, 3, 4, 3, 2, 2, NONE, 0)
    assert rec["slot"][2]["tok"].tolist() == [20, 21, 22, *tail]
    old = before[1]["slot"].tobytes()
    per_slot = rec["slot"].dtype.itemsize
    assert rec["slot"].tobytes()[3 * per_slot :] == old[3 * per_slot :]  # not its slots
    for other in (0, 2):
        assert d.done[other].tobytes() == before[other].tobytes()
    d.ctl["valid"] = 0
    d.publish()
    rec = d.done[2]
    assert (rec["seq"], rec["seq_end"], rec["flags"], rec["n_rows"]) == (8, 8, 1, 6)


def test_draft_none():
    d = Device(b=2)
    d.drafts[:], d.n_draft[:] = 5, 5
    d.op("draft_none", "drafts", "n_draft")
    assert not d.drafts.any()
    assert not d.n_draft.any()


def test_draft_planted():
    d = Device(b=2, ctx=10, width=4)
    d.start(0, [1, 2, 3], 4)
    d.start(1, [1, 2, 3], 4)
    d.slots[1]["active"] = 0
    table = np.full((2, 11), -1, I32)
    table[0, 4:7] = [70, 71, 99]

    def draft(right, rounds=0):
        d.counters["rounds"] = rounds
        d.op("draft_planted", "slots", "counters", "drafts", "n_draft", table=table,
             accept=ints(*right), vocab=100)  # fmt: skip
        assert d.n_draft[1] == 0
        assert not d.drafts[1].any()
        return d.drafts[0, : d.n_draft[0]].tolist()

    assert draft([9]) == [70, 71, 99]
    assert draft([0]) == [71, 72, 0]
    assert draft([0, 1, 2], rounds=4) == [70, 72, 0]
    table[0, 5] = -1
    assert draft([9]) == [70]
    d.slots[0]["n"] = 9  # the window ends at position 10
    table[0, 10] = 5
    assert draft([9]) == [5]


def lookup(h, k=4, n_max=3, n_min=1):
    d = Device(ctx=max(20, len(h)), width=k + 1)
    d.start(0, h[:-1], h[-1])
    d.op("draft_ngram", "slots", "tokens", "drafts", "n_draft", n_max=n_max, n_min=n_min)
    return d.drafts[0, : d.n_draft[0]].tolist()


def test_draft_ngram():
    assert lookup([1, 2, 3, 4, 9, 1, 2, 3]) == [4, 9, 1, 2]
    assert lookup([1, 2, 5, 3, 2, 6, 2]) == [6, 2, 6, 2]  # the latest match; then the copy goes on
    assert lookup([7, 7]) == [7, 7, 7, 7]
    assert lookup([1, 2, 1, 2]) == [1, 2, 1, 2]
    assert lookup([3, 1, 2, 8, 1, 2, 5, 3, 1, 2]) == [8, 1, 2, 5]  # a longer match, though older
    assert lookup([1, 2, 3, 4]) == []
    assert lookup([1]) == []
    assert lookup([1, 2, 3, 1], n_min=2) == []
    assert lookup([5, 1, 5, 1, 5], k=1, n_max=9) == [1]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=18), st.integers(1, 6), st.integers(1, 4),
       st.integers(0, 3))  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_draft_ngram_against_the_model(h, k, n_min, more):
    assert lookup(h, k, n_min + more, n_min) == naive.ngram(h, n_min + more, n_min, k)


# ---- whole rounds against the naive model -----------------------------------------------------------

CTX, K = 24, 4


def plain_next(history, vocab):
    """A target whose choice depends on all that came before."""
    x = 17
    for t in history:
        x = (x * 31 + t + 1) % 10007
    return x % vocab


SLOT_SETUP = st.tuples(st.lists(st.integers(0, 7), min_size=1, max_size=10), st.integers(2, 20),
                       st.sets(st.integers(0, 9), max_size=2))  # fmt: skip
ACTION = st.tuples(st.sampled_from([ALL, ALL, ALL, WAIT, 0, 1, 2, 3, 9]),  # licence
                   st.integers(0, 19).map(lambda x: x == 0),  # stop
                   st.integers(0, K),  # proposals
                   st.integers(0, K))  # of which so many are right  # fmt: skip


@given(st.data(), st.lists(SLOT_SETUP, min_size=1, max_size=4), st.sampled_from([1, 2, 5]))
@settings(max_examples=200, deadline=None)
def test_rounds_follow_the_model(data, setups, width):
    vocab = 10
    d = Device(b=len(setups), ctx=CTX, width=width)
    d.drafts = np.zeros((len(setups), K), I32)
    model, prompts = [], []
    for b, (prompt, max_tokens, stops) in enumerate(setups):
        first = plain_next(prompt, vocab)
        d.start(b, prompt, first, max_tokens, sorted(stops))
        model.append(naive.Slot([*prompt, first], max_tokens, tuple(stops)))
        prompts.append(prompt)
    for number in range(data.draw(st.integers(1, 14), "rounds")):
        valid = data.draw(st.integers(0, 9), "valid") > 0
        todo = [data.draw(ACTION, f"slot {b}") for b in range(d.b)]
        entry = d.ring[number % 4]
        entry["seq"], entry["seq_end"] = number, number if valid else number - 1
        for b, (licence, stop, _, _) in enumerate(todo):
            entry["slot"]["licence"][b], entry["slot"]["stop"][b] = licence, stop
        d.ctl_read()
        d.commit()
        for b, (s, (licence, stop, _, _)) in enumerate(zip(model, todo, strict=True)):
            assert d.kept[b] == naive.commit(s, licence, stop, valid)
        drafts = []
        for b, (s, (_, _, n, right)) in enumerate(zip(model, todo, strict=True)):
            h = list(s.history)
            for i in range(n):
                h.append((plain_next(h, vocab) + (i >= right)) % vocab)
            drafts.append(h[len(s.history) :])
            d.propose(b, *drafts[b])
        d.round_rows()
        want_ids, at = [], 0
        for b, s in enumerate(model):
            rows = naive.rows(s, todo[b][0], valid, drafts[b], width, CTX)
            assert d.span[b].tolist() == ([at, len(rows)] if rows else [0, 0])
            for i, (pos, token) in enumerate(rows):
                assert d.rows[at + i].tolist() == [b, pos, i]
                want_ids.append(token)
            at += len(rows)
        assert d.count[0] == at
        assert d.ids.tolist() == [*want_ids, *[0] * (len(d.ids) - at)]
        chosen = []
        for r in range(at):
            b, _, i = d.rows[r]
            chosen.append(plain_next([*model[b].history, *drafts[b][:i]], vocab))
        d.accept(chosen)
        for b, s in enumerate(model):
            first, n = d.span[b]
            if n:
                naive.accept(s, drafts[b], n, chosen[first : first + n], CTX)
        d.publish()
        record = d.done[number % 3]
        assert (record["seq"], record["flags"]) == (number, 0 if valid else 1)
        for b, s in enumerate(model):
            same_slot(d, b, s, record["slot"][b])
            # Whatever the host licensed, what came out is what plain decoding gives.
            assert s.history == plain(prompts[b], len(s.history), vocab)


def plain(prompt, length, vocab):
    h = list(prompt)
    while len(h) < length:
        h.append(plain_next(h, vocab))
    return h


def same_slot(d, b, s, record):
    assert d.state(b) == (s.active, s.n, s.history[-1], s.emitted, s.finish)
    assert d.tokens[b, : s.n + 1].tolist() == s.history
    assert d.counted(b) == s.counters
    assert d.counters[b]["accepted_at"].tolist() == s.accepted_at
    assert s.identity()
    p = d.pending[b]
    if s.pending is None:
        assert p.tobytes() == bytes(PENDING.itemsize)
    else:
        got = (p["tok"][: p["n"]].tolist(), p["drafted"], p["verified"], p["accepted"], p["finish"])
        want = s.pending
        assert got == (want.tok, want.drafted, want.verified, want.accepted, want.finish)
    assert record["pos"] == s.n
    assert record["rows"] == d.span[b, 1]
    if record["rows"]:
        assert record["tok"][: record["n"]].tolist() == s.pending.tok
    else:
        assert (record["n"], record["finish"]) == (0, s.finish)


@pytest.mark.parametrize("table", TABLES)
def test_counters_are_exact_over_a_whole_request(table):
    d = Device(ctx=64, width=5, table=table)
    d.start(0, [1, 2, 3], plain_next([1, 2, 3], 1000), max_tokens=21)
    history = [1, 2, 3, plain_next([1, 2, 3], 1000)]
    right = [4, 0, 2, 1, 4, 3]
    n_rounds = 0
    while True:
        d.commit()
        if not d.slots[0]["active"]:
            break
        history = d.tokens[0, : d.slots[0]["n"] + 1].tolist()
        h = list(history)
        for i in range(4):
            h.append((plain_next(h, 1000) + (i >= right[n_rounds % 6])) % 1000)
        d.propose(0, *h[len(history) :])
        d.round_rows()
        n = d.span[0, 1]
        d.accept([plain_next([*history, *h[len(history) :][:i]], 1000) for i in range(n)])
        n_rounds += 1
    c = d.counted(0)
    assert d.state(0)[3:] == (21, LENGTH)
    assert c["rounds"] == n_rounds
    assert c["emitted"] == 21 == 1 + c["rounds"] + c["accepted"] - c["discarded_after_stop"]
    assert d.tokens[0, 3:24].tolist() == plain([1, 2, 3], 24, 1000)[3:]
