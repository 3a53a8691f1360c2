"""Ops of hybrid models on CUDA against the definition, with the cases of the CPU's tests: copies and
integers exactly, the others within the named tolerances; and rows whose bits do not depend on the
width of the pass, their neighbours or their slot."""

from __future__ import annotations

import numpy as np
import pytest
import recurrent
import test_ops_draft_head as heads
import test_ops_ngram as ngrams
import test_ops_recurrent as cases
import test_ops_streams as streams
from gpu_tools import near, rows_apart
from op_tools import act, ints, row_table, run, weights
from stoker import UnsupportedError
from tolerances import close_elements

pytestmark = pytest.mark.gpu
F = np.float32
CUDA = "cuda"
ACTS = ("BF16", "F32")
TABLES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "IQ4_NL")
REAL = (16, 48, 128, 128)  # heads of keys and values, elements of each
SHAPES = (*cases.SHAPES, (1, 2, 100, 6), (2, 2, 4, 64))


# Exact: copies, integers, and what is elementwise in the definition's order.


@pytest.mark.parametrize("kind", ACTS)
def test_rows_that_are_kept(kind):
    cases.test_keep_and_take_rows(kind, CUDA)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("kind", ACTS)
def test_windows(kind, wide):
    cases.test_window_commit(wide, kind, CUDA)
    cases.test_window_push(wide, kind, CUDA)


def test_row_tables_and_ids():
    heads.test_draft_rows_by_hand(CUDA)
    heads.test_draft_put(CUDA)
    heads.test_a_chain_of_steps_proposes_in_order(CUDA)
    heads.test_commit_rows(CUDA)
    heads.test_next_ids(CUDA)


def test_row_tables_of_many_slots():
    """Both warps of the kernel have slots."""
    rng = np.random.default_rng(1)
    for b in (31, 32, 33, 64):
        slots = heads.slots_of(*((int(a), int(n), 7 * i) for i, (a, n) in
                                 enumerate(zip(rng.integers(2, size=b), rng.integers(3, size=b),
                                               strict=True))))  # fmt: skip
        chosen = rng.integers(0, 99, b)
        for step in (0, 1):
            args = slots, step, chosen if step else None
            assert heads.draft_rows(*args, CUDA) == heads.draft_rows(*args)
        kept = rng.integers(0, 6, b)
        n = (kept + rng.integers(0, 30, b)).tolist()
        room = int(kept.sum()) + 3
        got = heads.commit_rows(n, kept.tolist(), room, CUDA)
        assert got == heads.commit_rows(n, kept.tolist(), room)


def test_rows_of_ngrams():
    ngrams.test_known_rows(CUDA)
    for n in (2, 3, 4):
        ngrams.test_chunks_of_sequences(n, CUDA)
    most = 2**31 - 1  # products of 63 bits
    mult = ((2**63 - 1) // most, (2**63 - 1) // most, 1)
    args = [most, most - 1, 0, 1, most], mult, (most - 100_000, 50_001, 49_998, 1), 0
    assert (ngrams.whole(*args, CUDA) == ngrams.whole(*args)).all()


@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("weight", TABLES)
def test_gather_heads(weight, kind):
    ngrams.test_gather_heads(weight, kind, CUDA)
    rng = np.random.default_rng(2)
    n, dim, per = 23, 64, 5
    arg, _ = weights(weight, n, dim, rng)
    data = np.ascontiguousarray(arg if isinstance(arg, np.ndarray) else arg[1])
    data = data.reshape(n, -1).view(np.uint8)
    row = data.shape[1]
    space, at, begin = np.empty(n * row, np.uint8), {}, 0
    for i in (0, 3, 1, 4, 2):  # where pieces lie; the last one is short
        part = data[i * per : i * per + per]
        space[begin : begin + part.size] = part.ravel()
        at[i] = begin
        begin += part.size
    piece = np.array([at[i] for i in range(5)], np.int64)
    ids = rng.permutation(n)[:20].reshape(4, 5)
    got = ngrams.gather_heads((weight, space.reshape(n, row), (n, dim)), ids, dim, kind, 1.5, CUDA,
                              piece=piece, piece_rows=per)  # fmt: skip
    assert got.tobytes() == ngrams.gather_heads(arg, ids, dim, kind, 1.5).tobytes()


def test_what_is_refused():
    rng = np.random.default_rng(3)
    arg, _ = weights("Q4_K", 3, 256, rng)
    with pytest.raises(UnsupportedError, match=r"gather_heads on CUDA: table: .* found Q4_K"):
        ngrams.gather_heads(arg, [[0]], 256, "BF16", 1.0, CUDA)
    shape = (1, 1, 132, 4)
    q, entry = cases.entries(rng, shape, 1)
    m = cases.matrices(rng, shape, 1)
    rows = row_table([0], [0])
    for op in (cases.step, cases.scan):
        with pytest.raises(UnsupportedError, match=r"on CUDA: m: .* found 132"):
            op(q, entry, ints(0), m, rows, table=CUDA)
    with pytest.raises(UnsupportedError, match=r"gdn_fold on CUDA: m: .* found 132"):
        cases.fold(np.stack([entry]), [1], ints(0), m, CUDA)


def test_copy_add_inject():
    streams.test_copy_add_inject(CUDA)


@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("k, dilation", [(2, 1), (4, 1), (4, 3), (9, 1)])
def test_conv(k, dilation, kind):
    """The bits of the definition; a real width once."""
    cases.test_conv(k, dilation, kind, CUDA)
    cases.test_conv_of_a_sequence_in_any_pieces(kind, CUDA)
    rng = np.random.default_rng(4)
    x, taps = cases.draw(rng, 40, 10240 if k == 4 else 300), None
    taps = cases.draw(rng, x.shape[1], k)
    window, _ = act(cases.draw(rng, 8, (k - 1) * dilation, x.shape[1]), kind)
    rows = row_table([b for b in range(8) for _ in range(5)], list(range(3, 8)) * 8)
    args = x, taps, window, rows, dilation
    assert cases.conv(*args, CUDA).tobytes() == cases.conv(*args).tobytes()


# The gated delta rule.


def close_parts(entry, want, shape):
    hk, hv, dk, dv = shape
    cuts = np.cumsum([hk * dk, hv * dv, hv])
    for got, part in zip(np.split(entry, cuts, 1), np.split(want, cuts, 1), strict=True):
        close_elements(got, part)


@pytest.mark.parametrize("shape", [*SHAPES, REAL])
def test_gdn_inputs(shape):
    rng = np.random.default_rng(6)
    hk, hv, dk, dv = shape
    c = cases.draw(rng, 6, 2 * hk * dk + hv * dv) * 3
    c[1] *= 1e-3  # where the 1e-6 under the root counts
    c[2] = 0
    a, b = cases.draw(rng, 6, hv) * 8, cases.draw(rng, 6, hv) * 8
    a[0, 0], b[0, 0], b[1, 0] = 60, 80, -80
    coef, dt = -np.exp(cases.draw(rng, hv)), cases.draw(rng, hv)

    def both(at, table=CUDA, count=None, tail=False):
        x = [cases.junk(y[at], len(at)) if tail else y[at] for y in (c, a, b)]
        return cases.gdn_inputs(*x, coef, dt, hk, dk, table, 1, count)

    every = list(range(6))
    q, entry = both(every)
    want_q, want = both(every, "definition")
    close_elements(q, want_q)
    close_parts(entry, want, shape)
    for at in ([3], [5, 1], [0, 1, 2, 3]):
        part = both(at, count=len(at), tail=True)
        assert all(x[: len(at)].tobytes() == y[at].tobytes()
                   for x, y in zip(part, (q, entry), strict=True))  # fmt: skip
        assert all(np.isnan(x[len(at) :]).all() for x in part)


def flat(m):
    return m.reshape(m.shape[0] * m.shape[1], -1)


@pytest.mark.parametrize("order", cases.MAPS)
@pytest.mark.parametrize("shape", SHAPES)
def test_step_and_scan(shape, order):
    rng = np.random.default_rng(7)
    key = cases.key_of(shape, order)
    q, entry = cases.entries(rng, shape, 6)
    m = cases.matrices(rng, shape, 4)
    rows = cases.table_of(cases.SLOTS, cases.POS, 3)
    after = m.copy()
    want = cases.scan(q, entry, key, after, rows[:6])
    before = m.copy()
    junk = cases.junk(q, 6), cases.junk(entry, 6), key
    got = cases.step(*junk, before, rows, CUDA, 1, 6)
    close_elements(got[:6], want)
    assert np.isnan(got[6:]).all()
    assert before.tobytes() == m.tobytes()
    again = cases.scan(*junk, before, rows, table=CUDA, count=6)
    assert again.tobytes() == got.tobytes()
    close_elements(flat(before), flat(after))
    assert before[3].tobytes() == m[3].tobytes()  # no row of this slot
    for count in (0, 1, 4):
        state = m.copy()
        got = cases.scan(*junk, state, rows, table=CUDA, count=count)
        assert got[:count].tobytes() == again[:count].tobytes()
        assert np.isnan(got[count:]).all()


def test_by_hand():
    m = np.array([[[[1, 2], [3, 4]]]], F)
    entry = np.array([[0, 1, 10, 20, 0.5, 0.25]], F)
    q = np.array([[[1, 2]]], F)
    rows = row_table([0], [0])
    assert cases.step(q, entry, ints(0), m, rows, CUDA).tolist() == [[[7.75, 14]]]
    cases.scan(q, entry, ints(0), m, rows, table=CUDA)
    assert m.tolist() == [[[[0.5, 1], [3.625, 6.5]]]]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_sequence_in_any_pieces(shape):
    """Scans of any lengths, steps and folds of what steps kept: the same bits."""
    rng = np.random.default_rng(8)
    n, key = 7, cases.key_of(shape, "grouped")
    q, entry = cases.entries(rng, shape, n)
    start = cases.matrices(rng, shape, 3)
    start[0], start[2] = np.nan, np.inf  # of other slots
    whole = start.copy()
    want = cases.scan(q, entry, key, whole, row_table([1] * n, range(n)), table=CUDA)
    assert np.isfinite(want).all()
    for pieces in ([1] * n, [3, 4], [2, 1, 4]):
        one, other = start.copy(), start.copy()
        at = 0
        for size in pieces:
            part = slice(at, at + size)
            rows = row_table([1] * size, range(at, at + size))
            expected = want[part].tobytes()
            got = cases.scan(q[part], entry[part], key, one, rows, table=CUDA)
            assert got.tobytes() == expected
            # The same as a verify pass with a rejected row behind, and a fold.
            wide = row_table([1] * (size + 1), range(at, at + size + 1))
            again = list(range(at, at + size + 1)) if at + size < n else [*range(at, n), 0]
            seen = cases.step(q[again], entry[again], key, other, wide, CUDA)
            assert seen[:size].tobytes() == expected
            pending = np.full((3, n + 1, entry.shape[1]), np.nan, F)
            run("keep_rows", CUDA, x=entry[again], rows=wide, count=ints(size + 1),
                pending=pending)  # fmt: skip
            cases.fold(pending, [0, size, 0], key, other, CUDA)
            at += size
        assert one.tobytes() == whole.tobytes()
        assert other.tobytes() == whole.tobytes()


def test_a_pass_of_4096_rows():
    """The longest chunk of a prefill, and the same rows 512 at a time."""
    rng = np.random.default_rng(15)
    n, step, shape = 4096, 512, (2, 4, 32, 16)
    key = cases.key_of(shape, "grouped")
    q, entry = cases.entries(rng, shape, n)
    m = cases.matrices(rng, shape, 2)
    x, taps = cases.draw(rng, n, 300), cases.draw(rng, 300, 4)
    window, _ = act(cases.draw(rng, 2, 3, 300), "F32")
    made = []
    for size in (n, step):
        state, kept, scanned, convolved = m.copy(), window.copy(), [], []
        for at in range(0, n, size):
            part = slice(at, at + size)
            rows = row_table([1] * size, range(at, at + size))
            scanned.append(cases.scan(q[part], entry[part], key, state, rows, table=CUDA))
            convolved.append(cases.conv(x[part], taps, kept, rows, 1, CUDA))
            run("window_push", CUDA, x=x[part], rows=rows, count=ints(size), window=kept)
        made.append(
            [a.tobytes() for a in (*map(np.concatenate, (scanned, convolved)), state, kept)]
        )
    assert made[0] == made[1]


@pytest.mark.parametrize("order", cases.MAPS)
@pytest.mark.parametrize("shape", SHAPES)
def test_fold_is_a_scan(shape, order):
    rng = np.random.default_rng(9)
    w, key = 5, cases.key_of(shape, order)
    q, entry = cases.entries(rng, shape, 4 * w)
    start = cases.matrices(rng, shape, 4)
    for kept in ([0, 1, 2, 3], [5, 4, 0, 5], [0, 0, 0, 0]):
        scanned, folded, defined = (start.copy() for _ in range(3))
        take = [b * w + i for b, n in enumerate(kept) for i in range(n)]
        slots = [b for b, n in enumerate(kept) for _ in range(n)]
        rows = row_table(slots, [0] * len(slots))
        if take:
            cases.scan(q[take], entry[take], key, scanned, rows, table=CUDA)
        pending = entry.reshape(4, w, -1).copy()
        for b, n in enumerate(kept):
            pending[b, n:] = np.nan
        cases.fold(pending, kept, key, folded, CUDA)
        cases.fold(pending, kept, key, defined)
        assert folded.tobytes() == scanned.tobytes()
        close_elements(flat(folded), flat(defined))


def test_views_that_are_part_of_a_buffer():
    """Unaligned rows take other accesses and have the same bits."""
    rng = np.random.default_rng(10)
    for shape in ((2, 4, 6, 11), (1, 2, 128, 40)):
        hk, hv, dk, dv = shape
        key = cases.key_of(shape, "grouped")
        q, entry = cases.entries(rng, shape, 6)
        m, rows = cases.matrices(rng, shape, 3), row_table(cases.SLOTS, cases.POS)
        want_m = m.copy()
        want = cases.scan(q, entry, key, want_m, rows, table=CUDA)

        def room(values, *more):
            wide = np.full([n + a for n, a in zip(values.shape, more, strict=True)], np.nan, F)
            view = wide[tuple(slice(0, n) for n in values.shape)]
            view[...] = values
            return view

        for op in ("gdn_step", "gdn_scan"):
            state = room(m, 1, 2, 3, 0)
            out = rows_apart(np.zeros((6, hv, dv), F))
            run(op, CUDA, 1, q=rows_apart(q), key=key, m=state, rows=rows, count=ints(6),
                out=out, **{"in": rows_apart(entry)})  # fmt: skip
            assert out.tobytes() == want.tobytes()
            assert state.tobytes() == (m if op == "gdn_step" else want_m).tobytes()
        pending = rows_apart(np.zeros((3, 3, entry.shape[1]), F))
        run("keep_rows", CUDA, x=entry, rows=rows, count=ints(6), pending=pending)
        state = room(m, 1, 2, 3, 0)
        cases.fold(pending, [1, 2, 3], key, state, CUDA)
        assert state.tobytes() == want_m.tobytes()


@pytest.mark.parametrize("shape", [(2, 6, 16, 40), (1, 2, 128, 128)])
def test_rows_do_not_know_their_slot(shape):
    """The rows of a slot alone, beside others, in another slot, behind other rows: the same bits."""
    rng = np.random.default_rng(11)
    key = cases.key_of(shape, "tiled")
    q, entry = cases.entries(rng, shape, 17)
    m = cases.matrices(rng, shape, 8)
    lengths = {0: 1, 3: 5, 4: 3, 7: 8}
    order = [b for b, n in lengths.items() for _ in range(n)]
    whole = m.copy()
    want = cases.scan(q, entry, key, whole, row_table(order, range(17)), table=CUDA)
    for b in lengths:
        at = [r for r in range(17) if order[r] == b]
        other = (b + 5) % 8
        state = np.full_like(m, np.nan)
        state[other] = m[b]
        rows = row_table([other] * len(at), at)
        got = cases.scan(q[at], entry[at], key, state, rows, table=CUDA)
        assert got.tobytes() == want[at].tobytes()
        assert state[other].tobytes() == whole[b].tobytes()
    turned = [*range(6, 17), *range(6)]  # slots in another order
    state = m.copy()
    got = cases.scan(q[turned], entry[turned], key, state,
                     row_table([order[r] for r in turned], turned), table=CUDA)  # fmt: skip
    assert got.tobytes() == want[turned].tobytes()
    assert state.tobytes() == whole.tobytes()


def test_real_sizes():
    """A verify pass of eight slots, and a prefill. Against FP64: where q^T M of a head cancels, the
    sums of the definition are as far from it as the bound allows, so two bounds would add up."""
    rng = np.random.default_rng(12)
    key = cases.key_of(REAL, "grouped")
    q, entry = cases.entries(rng, REAL, 40)
    m = cases.matrices(rng, REAL, 8)
    several = row_table([b for b in range(8) for _ in range(5)], list(range(5)) * 8)
    for rows in (several, row_table([5] * 40, range(40))):
        want, after = recurrent.gdn(q, entry, key, m, rows, 40)
        state = m.copy()
        close_elements(cases.scan(q, entry, key, state, rows, table=CUDA), want)
        close_elements(flat(state), flat(after))


# Norms.


@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (6, 3, 7), (5, 4, 128), (3, 2, 45), (40, 48, 128)])
def test_gated_norm(shape, kind):
    rng = np.random.default_rng(13)
    p, h, d = shape
    x, gate, gain = cases.draw(rng, p, h, d), cases.draw(rng, p, h * d) * 4, cases.draw(rng, d)
    x[0] *= 1e-3  # where eps counts
    gate[-1, -1], gate[-1, 0] = -200, 200
    got = cases.gated_norm(cases.junk(x, p), cases.junk(gate, p), gain, kind, CUDA, 1, p)[:p]
    near(kind, got, cases.gated_norm(x, gate, gain, kind))
    last = cases.gated_norm(x[-1:], gate[-1:], gain, kind, CUDA)
    assert got[-1:].tobytes() == last.tobytes()
    assert cases.gated_norm(rows_apart(x), gate, gain, kind, CUDA).tobytes() == got.tobytes()


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 2, 7), (4, 4, 64), (2, 3, 333), (9, 4, 2560)])
def test_ple_gate(shape):
    rng = np.random.default_rng(14)
    key, value, s, gains = ngrams.gate_case(rng, *shape)
    got = ngrams.ple_gate(key, value, s, gains, CUDA)
    want = ngrams.ple_gate(key, value, s, gains)
    for x, y in zip(got, want, strict=True):
        close_elements(x, y)
    at = [shape[0] - 1, 0]
    part = ngrams.ple_gate(key[at], value[at], s[at], gains, CUDA)
    assert all(x.tobytes() == y[at].tobytes() for x, y in zip(part, got, strict=True))
    key[1:], value[1:], s[1:] = np.nan, np.inf, -np.inf
    part = ngrams.ple_gate(key, value, rows_apart(s), gains, CUDA, 1, 1)
    assert all(x[:1].tobytes() == y[:1].tobytes() for x, y in zip(part, got, strict=True))
    assert all(np.isnan(x[1:]).all() for x in part)


@pytest.mark.parametrize("whole", [0, 1])
@pytest.mark.parametrize("kind", ACTS)
def test_mtp_join(kind, whole):
    rng = np.random.default_rng(15)
    for shape in ((1, 1, 1), (3, 2, 7), (5, 4, 64), (2, 3, 1000), (4, 4, 2560)):
        e, x, e_gain, gain = heads.join_case(rng, *shape)
        got = heads.mtp_join(e, x, e_gain, gain, kind, whole, CUDA)
        want = heads.mtp_join(e, x, e_gain, gain, kind, whole)
        near(kind, got, want)
        at = [shape[0] - 1, 0]
        part = heads.mtp_join(e[at], x[at], e_gain, gain, kind, whole, CUDA)
        assert part.tobytes() == got[at].tobytes()
        x[1:], e[1:] = np.nan, np.inf
        for count in (0, 1):
            part = heads.mtp_join(e, rows_apart(x), e_gain, gain, kind, whole, CUDA, count=count)
            assert part[:count].tobytes() == got[:count].tobytes()
