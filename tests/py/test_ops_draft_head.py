"""The draft head: row tables of its passes by hand and against a naive model, and the join."""

from __future__ import annotations

import numpy as np
import pytest

import streams as oracle
from op_tools import I32, TABLES, act_out, ints, run
from test_ops_round import SLOT, raw
from tolerances import close_bf16, close_elements

F = np.float32
ACTS = ("BF16", "F32")
EPS = F(1e-6)


def slots_of(*values):
    """(active, n, anchor) of every slot."""
    slots = np.zeros(len(values), SLOT)
    for b, (active, n, anchor) in enumerate(values):
        slots[b]["active"], slots[b]["n"], slots[b]["anchor"] = active, n, anchor
    return slots


def draft_rows(slots, step=0, chosen=None, table="definition"):
    """([((slot, pos, at), id)], what is behind)."""
    b = len(slots)
    rows, ids, count = np.full((b, 3), -9, I32), np.full(b, -9, I32), ints(-9)
    run("draft_rows", table, 1, slots=raw(slots), rows=rows, ids=ids, count=count, step=step,
        chosen=None if chosen is None else np.asarray(chosen, I32))  # fmt: skip
    n = int(count[0])
    assert (rows[n:] == (-1, 0, 0)).all() and not ids[n:].any()
    return [(tuple(r), i) for r, i in zip(rows[:n].tolist(), ids[:n].tolist(), strict=True)]


@pytest.mark.parametrize("table", TABLES)
def test_draft_rows_by_hand(table):
    slots = slots_of((1, 5, 50), (0, 6, 60), (1, 0, 70), (1, 1, 80))
    assert draft_rows(slots, table=table) == [((0, 4, 0), 50), ((3, 0, 0), 80)]
    # The second packed row is slot 3's: its choice is the second of the step before.
    got = draft_rows(slots, 2, [11, 12, 13, 14], table)
    assert got == [((0, 6, 0), 11), ((3, 2, 0), 12)]
    assert draft_rows(slots_of((0, 3, 1)), table=table) == []


def test_draft_rows_against_a_naive_model():
    rng = np.random.default_rng(1)
    for _ in range(100):
        b = int(rng.integers(1, 9))
        values = [tuple(int(v) for v in (rng.integers(2), rng.integers(4), rng.integers(99)))
                  for _ in range(b)]  # fmt: skip
        step = int(rng.integers(0, 5))
        chosen = rng.integers(0, 99, b).tolist() if step else None
        assert draft_rows(slots_of(*values), step, chosen) == oracle.draft_rows(
            values, chosen, step
        )


@pytest.mark.parametrize("table", TABLES)
def test_draft_put(table):
    rows = np.array([[0, 4, 0], [3, 0, 0], [-1, 0, 0], [-1, 0, 0]], I32)
    drafts, n_draft = np.full((4, 3), -5, I32), np.full(4, -5, I32)
    for step, chosen in enumerate(([7, 8, 90, 91], [17, 18, 92, 93])):
        run("draft_put", table, 1, rows=rows, count=ints(2), chosen=np.array(chosen, I32),
            drafts=drafts, n_draft=n_draft, step=step)  # fmt: skip
        assert n_draft.tolist() == [step + 1, -5, -5, step + 1]
    assert drafts.tolist() == [[7, 17, -5], [-5] * 3, [-5] * 3, [8, 18, -5]]
    run("draft_put", table, 1, rows=rows, count=ints(0), chosen=ints(1, 1, 1, 1), drafts=drafts,
        n_draft=n_draft, step=2)  # fmt: skip
    assert n_draft.tolist() == [2, -5, -5, 2] and drafts[0, 2] == -5


@pytest.mark.parametrize("table", TABLES)
def test_a_chain_of_steps_proposes_in_order(table):
    """Rows, a choice, put: as a plan does it, with a head that adds one."""
    slots = slots_of((1, 5, 50), (0, 9, 60), (1, 2, 70))
    drafts, n_draft, chosen = np.zeros((3, 4), I32), np.zeros(3, I32), None
    for step in range(4):
        rows, ids, count = np.zeros((3, 3), I32), np.zeros(3, I32), ints(0)
        run("draft_rows", table, 1, slots=raw(slots), rows=rows, ids=ids, count=count, step=step,
            chosen=chosen)  # fmt: skip
        chosen = ids + 1
        run("draft_put", table, 1, rows=rows, count=count, chosen=chosen, drafts=drafts,
            n_draft=n_draft, step=step)  # fmt: skip
    assert drafts.tolist() == [[51, 52, 53, 54], [0] * 4, [71, 72, 73, 74]]
    assert n_draft.tolist() == [4, 0, 4]


def commit_rows(n, kept, capacity, table="definition"):
    slots, rows, count = (
        slots_of(*((0, v, 0) for v in n)),
        np.full((capacity, 3), -9, I32),
        ints(-9),
    )
    run("commit_rows", table, 1, slots=raw(slots), kept=np.array(kept, I32), rows=rows, count=count)
    assert (rows[count[0] :] == (-1, 0, 0)).all()
    return [tuple(r) for r in rows[: count[0]].tolist()]


@pytest.mark.parametrize("table", TABLES)
def test_commit_rows(table):
    got = commit_rows([7, 3, 9], [2, 0, 3], 6, table)
    assert got == [(0, 5, 0), (0, 6, 1), (2, 6, 0), (2, 7, 1), (2, 8, 2)]
    assert commit_rows([7, 3], [0, 0], 1, table) == []
    rng = np.random.default_rng(2)
    for _ in range(50):
        kept = rng.integers(0, 6, int(rng.integers(1, 7)))
        n = kept + rng.integers(0, 30, len(kept))
        got = commit_rows(n.tolist(), kept.tolist(), int(kept.sum()) + 1, table)
        assert got == oracle.commit_rows(n.tolist(), kept.tolist())


@pytest.mark.parametrize("table", TABLES)
def test_next_ids(table):
    tokens = np.arange(24, dtype=I32).reshape(3, 8) * 10
    rows = np.array([[2, 0, 0], [2, 1, 1], [0, 6, 0], [-1, 0, 0]], I32)
    for count, want in ((3, [170, 180, 70, -5]), (1, [170, -5, -5, -5]), (0, [-5] * 4)):
        ids = np.full(4, -5, I32)
        run("next_ids", table, 1, tokens=tokens, rows=rows, count=ints(count), ids=ids)
        assert ids.tolist() == want


def mtp_join(e, x, e_gain, gain, kind="F32", whole=1, table="definition", threads=2, count=None,
             eps=EPS):  # fmt: skip
    arg, out = act_out((len(x), x.shape[1], 2 * x.shape[2]), kind)
    n = ints(-9)
    live = len(x) if count is None else count
    run("mtp_join", table, threads, e=e, x=x, e_gain=e_gain, gain=gain, count=ints(live), out=arg,
        n=n, eps=eps, whole=whole)  # fmt: skip
    assert n[0] == min(max(live, 0), len(x)) * x.shape[1]
    return out


def join_case(rng, rows, n_streams, dim):
    def normal(*shape):
        return rng.standard_normal(shape).astype(F)

    x = normal(rows, n_streams, dim) * (1 + np.arange(n_streams, dtype=F))[:, None]
    return normal(rows, dim), x, 1 + normal(dim) / 4, 1 + normal(n_streams * dim) / 4


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("whole", [0, 1])
def test_mtp_join(whole, kind, table):
    rng = np.random.default_rng(3)
    close = close_bf16 if kind == "BF16" else close_elements
    for rows, n_streams, dim in ((1, 1, 1), (3, 2, 7), (5, 4, 64), (2, 3, 1000)):
        case = join_case(rng, rows, n_streams, dim)
        got = mtp_join(*case, kind, whole, table)
        close(got, oracle.mtp_join(*case, EPS, whole))
        for threads in (1, 3):
            again = mtp_join(*case, kind, whole, "definition", threads)
            assert again.tobytes() == got.tobytes()


def test_mtp_join_by_hand():
    e, x = np.array([[3, 4]], F), np.array([[[1, 1], [5, 5]]], F)
    e_gain, gain = np.array([4, 8], F), np.array([4, 4, 1, 2], F)
    got = mtp_join(e, x, e_gain, gain, whole=1, eps=F(3))  # mean of squares 13, and 3: a factor 1/4
    assert np.allclose(got[0, :, 2:], [[1, 1], [1.25, 2.5]], rtol=1e-6)
    assert np.allclose(got[0, :, :2], np.array([12, 32]) / 15.5**0.5, rtol=1e-6)
    got = mtp_join(e, x, e_gain, gain, whole=0, eps=F(3))
    assert np.allclose(got[0, 0, 2:], [2, 2], rtol=1e-6)
    assert np.allclose(got[0, 1, 2:], np.array([5, 10]) / 28**0.5, rtol=1e-6)


@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("whole", [0, 1])
def test_joined_rows_do_not_know_each_other(whole, kind):
    rng = np.random.default_rng(4)
    e, x, e_gain, gain = join_case(rng, 8, 4, 48)
    first = mtp_join(e, x, e_gain, gain, kind, whole)
    part = mtp_join(e[[5, 1]], x[[5, 1]], e_gain, gain, kind, whole, threads=1)
    assert part.tobytes() == first[[5, 1]].tobytes()
    room = np.full((8, 5, 48), np.nan, F)  # rows that are apart
    room[:3, :4] = x[:3]
    e[3:] = np.inf
    for count in (0, 3, -2):
        got = mtp_join(e, room[:, :4], e_gain, gain, kind, whole, count=count)
        assert got[: max(0, count)].tobytes() == first[: max(0, count)].tobytes()
