"""Rows that are kept, windows, convolution and the gated delta rule: against FP64, byte for byte in
every table, and the same whichever way a sequence is cut into passes."""

from __future__ import annotations

import numpy as np
import pytest

import dense
import recurrent
from op_tools import I32, TABLES, act, act_out, bf16, ints, row_table, run
from tolerances import close_bf16, close_elements, from_bf16, to_bf16

F = np.float32
ACTS = ("BF16", "F32")
SLOTS = [2, 2, 2, 0, 1, 1]  # of a pass with rows of several slots
POS = [7, 8, 9, 0, 3, 4]
EPS = 1e-6


def junk(x, count: int):
    """The same with rows beyond the live ones that must not be read."""
    out = np.concatenate([x[:count], np.full((3, *x.shape[1:]), np.nan, F)])
    out[-1] = np.inf
    return out


def table_of(slots, pos, extra: int = 0):
    """Rows beyond the live ones are out of every buffer."""
    rows = row_table(slots, pos, len(slots) + extra)
    rows[len(slots) :] = 2**30, 5, 0
    return rows


def state(values, kind: str):
    """(argument, array, values) of a buffer that an op changes."""
    arg, represented = act(np.array(values, F), kind)
    return arg, arg if kind == "F32" else arg[1], represented


def values_of(array, kind: str):
    return from_bf16(array) if kind == "BF16" else array


def spread(values, kind: str):
    """(argument, array) of the same values in a wider buffer, whose rest is NaN."""
    b, n, d = values.shape
    if kind == "F32":
        room = np.full((b, n + 2, d), np.nan, F)
        room[:, :n] = values
        return room[:, :n], room
    room = np.full((b, n + 2, d), 0x7FC0, np.uint16)
    room[:, :n] = to_bf16(values)
    return ("BF16", room[:, :n], (b, n, d)), room


def draw(rng, *shape):
    return rng.standard_normal(shape).astype(F)


# Rows that are kept, and windows: copies, so equality is exact.


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
def test_keep_and_take_rows(kind, table):
    rng = np.random.default_rng(1)
    for b, w, d in ((3, 3, 1), (4, 5, 33), (3, 4, 1500)):
        x, before = draw(rng, 6, d), draw(rng, b, w, d)
        rows = table_of(SLOTS, POS, 3)
        want = values_of(state(before, kind)[1], kind).copy()
        for r, row in enumerate(rows[:6]):
            want[row[0], row[2]] = act(x[r], kind)[1]
        for threads in (1, 3):
            arg, array, _ = state(before, kind)
            run("keep_rows", table, threads, x=junk(x, 6), rows=rows, count=ints(6), pending=arg)
            assert values_of(array, kind).tobytes() == want.tobytes()
            out = np.full((9, d), 7, F)
            run("take_rows", table, threads, pending=arg, rows=rows, count=ints(6), out=out)
            assert out[:6].tobytes() == act(x, kind)[1].tobytes()
            assert (out[6:] == 7).all()
    arg, room = spread(before, kind)
    run("keep_rows", table, x=x, rows=rows[:6], count=ints(6), pending=arg)
    assert values_of(room, kind)[:, :w, :d].tobytes() == want.tobytes()
    out = np.zeros((6, d), F)
    run("take_rows", table, pending=arg, rows=rows[:6], count=ints(6), out=out)
    assert out.tobytes() == act(x, kind)[1].tobytes()


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("wide", [False, True])
def test_window_commit(wide, kind, table):
    rng = np.random.default_rng(2)
    kept = [0, 1, 2, 3, 4, 7]
    for size, d in ((1, 5), (3, 40), (4, 1), (9, 17)):
        before, new = draw(rng, 6, size, d), draw(rng, 6, 7, d)
        for b, n in enumerate(kept):
            new[b, n:] = 3e38  # never looked at
        pending, pv = act(new, kind)
        bv = act(before, kind)[1]
        want = np.array([recurrent.shifted(bv[b], pv[b, :n]) for b, n in enumerate(kept)])
        for threads in (1, 3):
            arg, array, _ = state(before, kind)
            if wide:
                (pending, _), (arg, array) = spread(new, kind), spread(before, kind)
            run("window_commit", table, threads, pending=pending, kept=ints(*kept), window=arg)
            got = values_of(array, kind)
            assert got[:, :size, :d].tobytes() == want.astype(F).tobytes()
            assert np.isnan(got[:, size:]).all() and np.isnan(got[..., d:]).all()


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("wide", [False, True])
def test_window_push(wide, kind, table):
    rng = np.random.default_rng(3)
    rows = table_of(SLOTS, POS, 3)
    for size, d in ((1, 5), (2, 40), (3, 1), (4, 17)):
        x, before = draw(rng, 6, d), draw(rng, 4, size, d)
        xv, bv = act(x, kind)[1], act(before, kind)[1]
        for count in (0, 1, 4, 6):
            by_slot = recurrent.rows_by_slot(rows, count)
            want = np.array([recurrent.shifted(bv[b], xv[by_slot.get(b, [])]) for b in range(4)])
            arg, array = spread(before, kind) if wide else state(before, kind)[:2]
            run("window_push", table, 3, x=junk(x, 6), rows=rows, count=ints(count), window=arg)
            got = values_of(array, kind)[:, :size, :d]
            assert got.tobytes() == want.astype(F).tobytes()
    packed = np.full((6, 2, d), np.nan, F)  # a slice of wider rows
    packed[:, 1] = x
    arg, array, _ = state(before, kind)
    run("window_push", table, x=packed[:, 1], rows=rows[:6], count=ints(6), window=arg)
    assert values_of(array, kind).tobytes() == want.astype(F).tobytes()


# Convolution.


def conv(x, taps, window, rows, dilation=1, table="definition", threads=1, count=None):
    out = np.full(x.shape, np.nan, F)
    run("conv", table, threads, x=x, taps=taps, window=window, rows=rows,
        count=ints(len(x) if count is None else count), out=out, dilation=dilation)  # fmt: skip
    return out


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("k, dilation", [(2, 1), (4, 1), (4, 3), (3, 2), (9, 1)])
def test_conv(k, dilation, kind, table):
    rng = np.random.default_rng(4)
    rows = table_of(SLOTS, POS, 3)
    for d in (1, 8, 37, 2100):
        x, taps = draw(rng, 6, d), draw(rng, d, k)
        window, wv = act(draw(rng, 4, (k - 1) * dilation, d), kind)
        want = recurrent.conv(act(x, kind)[1], taps, wv, rows, 6, dilation)
        got = conv(junk(x, 6), taps, window, rows, dilation, table, 3, 6)
        close_elements(got[:6], want)
        alone = conv(x, taps, window, rows[:6], dilation)
        assert got[:6].tobytes() == alone.tobytes()
        wide, _ = spread(wv, kind)
        packed = np.full((6, 2, d), np.nan, F)
        packed[:, 1] = x
        apart = np.full((d, k + 1), np.nan, F)
        apart[:, :k] = taps
        got = conv(packed[:, 1], apart[:, :k], wide, rows[:6], dilation, table)
        assert got.tobytes() == alone.tobytes()


def test_conv_by_hand():
    window = np.array([[[100, 1], [20, 2], [3, 3]]], F)  # the newest last
    taps = np.array([[1, 0, 0, 0], [1, 10, 100, 1000]], F)  # tap 3 meets the row itself
    x = np.array([[7, 4], [0, 0]], F)
    rows = row_table([0, 0], [3, 4])
    for table in TABLES:
        assert conv(x, taps, window, rows, 1, table).tolist() == [[100, 4321], [20, 432]]
    window = np.array([[[5, 0], [6, 0]]], F)  # two taps, the older one two rows back
    taps = np.array([[100, 1000], [0, 0]], F)
    x = np.array([[7, 0], [8, 0], [9, 0]], F)
    got = conv(x, taps, window, row_table([0] * 3, [2, 3, 4]), 2)
    assert got[:, 0].tolist() == [7500, 8600, 9700]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
def test_conv_of_a_sequence_in_any_pieces(kind, table):
    """Windows carry what a pass needs of those before, whether pushed or committed."""
    rng = np.random.default_rng(5)
    n, d, k, dilation = 12, 19, 4, 2
    size = (k - 1) * dilation
    x, taps = draw(rng, n, d), draw(rng, d, k)
    start = draw(rng, 2, size, d)
    start[0] = np.nan  # of another slot
    whole = conv(x, taps, state(start, kind)[0], row_table([1] * n, range(n)), dilation)
    for pieces in ([1] * n, [5, 7], [2, 3, 1, 6], [11, 1]):
        for push in (True, False):
            window, _, _ = state(start, kind)
            at = 0
            for m in pieces:
                rows = row_table([1] * m, range(at, at + m))
                got = conv(x[at : at + m], taps, window, rows, dilation, table, 2)
                assert got.tobytes() == whole[at : at + m].tobytes(), (pieces, at)
                new = x[at : at + m]
                if push:
                    run("window_push", table, x=new, rows=rows, count=ints(m), window=window)
                else:
                    pending, _ = act_out((2, 12, d), kind)
                    run("keep_rows", table, x=new, rows=rows, count=ints(m), pending=pending)
                    run("window_commit", table, pending=pending, kept=ints(0, m), window=window)
                at += m


# The gated delta rule.

SHAPES = [(1, 1, 1, 1), (2, 6, 16, 40), (3, 3, 5, 7), (1, 2, 8, 33), (2, 4, 128, 128)]
MAPS = {"grouped": lambda h, hk, hv: h // (hv // hk), "tiled": lambda h, hk, hv: h % hk}


def key_of(shape, name: str):
    hk, hv, _, _ = shape
    return np.array([MAPS[name](h, hk, hv) for h in range(hv)], I32)


def gdn_inputs(c, a, b, coef, dt, hk, dk, table="definition", threads=1, count=None):
    p, hv = a.shape
    q = np.full((p, hk, dk), np.nan, F)
    out = np.full((p, c.shape[1] - hk * dk + 2 * hv), np.nan, F)
    run("gdn_inputs", table, threads, c=c, a=a, b=b, coef=coef, dt=dt,
        count=ints(p if count is None else count), q=q, **{"in": out})  # fmt: skip
    return q, out


def entries(rng, shape, n: int):
    """(q, in) of n rows, as of gdn_inputs."""
    hk, hv, dk, dv = shape
    c = draw(rng, n, 2 * hk * dk + hv * dv)
    coef, dt = -np.exp(draw(rng, hv)), draw(rng, hv)
    return gdn_inputs(c, draw(rng, n, hv), draw(rng, n, hv), coef, dt, hk, dk)


def matrices(rng, shape, slots: int):
    _, hv, dk, dv = shape
    return draw(rng, slots, hv, dk, dv)


def step(q, entry, key, m, rows, table="definition", threads=1, count=None, op="gdn_step"):
    out = np.full((len(q), m.shape[1], m.shape[3]), np.nan, F)
    run(op, table, threads, q=q, key=key, m=m, rows=rows,
        count=ints(len(q) if count is None else count), out=out, **{"in": entry})  # fmt: skip
    return out


def scan(*args, **kw):
    """Returns the outputs; m becomes what is there after the rows."""
    return step(*args, op="gdn_scan", **kw)


def fold(pending, kept, key, m, table="definition", threads=1):
    run("gdn_fold", table, threads, pending=pending, kept=ints(*kept), key=key, m=m)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("shape", SHAPES)
def test_gdn_inputs(shape, table):
    rng = np.random.default_rng(6)
    hk, hv, dk, dv = shape
    c = draw(rng, 6, 2 * hk * dk + hv * dv) * 3
    c[1] *= 1e-3  # where the 1e-6 under the root counts
    c[2] = 0
    a, b = draw(rng, 6, hv) * 8, draw(rng, 6, hv) * 8
    a[0, 0], b[0, 0], b[1, 0] = 60, 80, -80
    coef, dt = -np.exp(draw(rng, hv)), draw(rng, hv)
    q, entry = gdn_inputs(junk(c, 6), junk(a, 6), junk(b, 6), coef, dt, hk, dk, table, 3, 6)
    want_q, want = recurrent.gdn_inputs(c, a, b, coef, dt, hk, dk)
    close_elements(q[:6], want_q)
    cuts = np.cumsum([hk * dk, hv * dv, hv])
    for got, part in zip(np.split(entry[:6], cuts, 1), np.split(want, cuts, 1), strict=True):
        close_elements(got, part)
    alone = gdn_inputs(c[3:4], a[3:4], b[3:4], coef, dt, hk, dk)
    assert (q[3:4].tobytes(), entry[3:4].tobytes()) == tuple(y.tobytes() for y in alone)


def test_gdn_inputs_by_hand():
    c = np.array([[3, 4, 0, 5, 9]], F)  # q (3, 4), k (0, 5), v 9; Dk = 2
    zero = np.zeros((1, 1), F)
    q, entry = gdn_inputs(c, zero, zero, np.array([-1], F), np.zeros(1, F), 1, 2)
    assert np.allclose(q, [[[0.6 / 2**0.5, 0.8 / 2**0.5]]], rtol=1e-6)
    assert np.allclose(entry, [[0, 1, 9, 0.5, 0.5]], rtol=1e-6)  # exp(-log 2), sigmoid(0)


def test_gdn_by_hand():
    m = np.array([[[[1, 2], [3, 4]]]], F)
    entry = np.array([[0, 1, 10, 20, 0.5, 0.25]], F)  # k takes the second row of M
    q = np.array([[[1, 2]]], F)
    # M / 2 = (.5, 1; 1.5, 2); u = (8.5, 18) / 4; the second row becomes (3.625, 6.5)
    for table in TABLES:
        before = m.copy()
        assert step(q, entry, ints(0), before, row_table([0], [0]), table).tolist() == [
            [[7.75, 14]]
        ]
        assert (before == m).all()
        scan(q, entry, ints(0), before, row_table([0], [0]), table=table)
        assert before.tolist() == [[[[0.5, 1], [3.625, 6.5]]]]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("order", MAPS)
@pytest.mark.parametrize("shape", SHAPES)
def test_step_and_scan(shape, order, table):
    rng = np.random.default_rng(7)
    key = key_of(shape, order)
    q, entry = entries(rng, shape, 6)
    m = matrices(rng, shape, 4)
    rows = table_of(SLOTS, POS, 3)
    want, after = recurrent.gdn(q, entry, key, m, rows, 6)
    before = m.copy()
    first = step(q, entry, key, m, rows[:6])
    got = step(junk(q, 6), junk(entry, 6), key, before, rows, table, 3, 6)[:6]
    close_elements(got, want)
    assert (before == m).all()
    assert got.tobytes() == first.tobytes()
    assert (
        scan(junk(q, 6), junk(entry, 6), key, before, rows, table=table, threads=3, count=6)[
            :6
        ].tobytes()
        == first.tobytes()
    )
    size = before[0, 0].size
    close_elements(before.reshape(-1, size), after.reshape(-1, size))
    assert (before[3] == m[3]).all()  # no row of this slot
    assert (before[:3] != m[:3]).any((1, 2, 3)).all()


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_sequence_in_any_pieces(shape, table):
    """Scans of any lengths, steps and folds of what steps kept: the same bits."""
    rng = np.random.default_rng(8)
    n, key = 7, key_of(shape, "grouped")
    q, entry = entries(rng, shape, n)
    start = matrices(rng, shape, 3)
    start[0], start[2] = np.nan, np.inf  # of other slots
    whole = start.copy()
    want = scan(q, entry, key, whole, row_table([1] * n, range(n)))
    assert np.isfinite(want).all()
    for pieces in ([1] * n, [3, 4], [6, 1], [2, 1, 4]):
        one, other = start.copy(), start.copy()
        at = 0
        for size in pieces:
            part = slice(at, at + size)
            rows = row_table([1] * size, range(at, at + size))
            expected = want[part].tobytes()
            assert scan(q[part], entry[part], key, one, rows, table=table).tobytes() == expected
            # The same as a verify pass with a rejected row behind, and a fold.
            wide = row_table([1] * (size + 1), range(at, at + size + 1))
            again = slice(at, at + size + 1) if at + size < n else [*range(at, n), 0]
            seen = step(q[again], entry[again], key, other, wide, table, 2)
            assert seen[:size].tobytes() == expected
            pending = np.full((3, n + 1, entry.shape[1]), np.nan, F)
            run(
                "keep_rows", table, x=entry[again], rows=wide, count=ints(size + 1), pending=pending
            )
            fold(pending, [0, size, 0], key, other, table, 2)
            at += size
        assert one.tobytes() == whole.tobytes()
        assert other.tobytes() == whole.tobytes()


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("order", MAPS)
@pytest.mark.parametrize("shape", SHAPES)
def test_fold_is_a_scan(shape, order, table):
    rng = np.random.default_rng(9)
    w, key = 5, key_of(shape, order)
    q, entry = entries(rng, shape, 4 * w)
    start = matrices(rng, shape, 4)
    for kept in ([0, 1, 2, 3], [5, 4, 0, 5], [0, 0, 0, 0]):
        scanned, folded = start.copy(), start.copy()
        take = [b * w + i for b, n in enumerate(kept) for i in range(n)]
        slots = [b for b, n in enumerate(kept) for _ in range(n)]
        if take:
            scan(q[take], entry[take], key, scanned, row_table(slots, [0] * len(slots)))
        pending = entry.reshape(4, w, -1).copy()
        for b, n in enumerate(kept):
            pending[b, n:] = np.nan
        fold(pending, kept, key, folded, table, 3)
        assert folded.tobytes() == scanned.tobytes()


def test_views_that_are_part_of_a_buffer():
    rng = np.random.default_rng(10)
    shape = (2, 4, 6, 11)
    hk, hv, dk, dv = shape
    key = key_of(shape, "grouped")
    q, entry = entries(rng, shape, 6)
    m, rows = matrices(rng, shape, 3), row_table(SLOTS, POS)
    want_m = m.copy()
    want = scan(q, entry, key, want_m, rows)

    def room(values, *more):
        wide = np.full([n + a for n, a in zip(values.shape, more, strict=True)], np.nan, F)
        view = wide[tuple(slice(0, n) for n in values.shape)]
        view[...] = values
        return view

    for table in TABLES:
        for op in (step, scan):
            state_m = room(m, 1, 2, 3, 0)
            out = room(np.zeros((6, hv, dv), F), 1, 2, 0)
            run("gdn_step" if op is step else "gdn_scan", table, 2, q=room(q, 1, 2, 0), key=key,
                m=state_m, rows=rows, count=ints(6), out=out,
                **{"in": room(entry, 0, 5)})  # fmt: skip
            assert out.tobytes() == want.tobytes()
            assert state_m.tobytes() == (m if op is step else want_m).tobytes()
        pending = room(np.zeros((3, 3, entry.shape[1]), F), 1, 2, 0)
        run("keep_rows", table, x=entry, rows=rows, count=ints(6), pending=pending)
        state_m = room(m, 1, 2, 3, 0)
        fold(pending, [1, 2, 3], key, state_m, table)
        assert state_m.tobytes() == want_m.tobytes()


# The norm behind it.


def gated_norm(x, gate, gain, kind, table="definition", threads=1, count=None):
    arg, out = act_out(gate.shape, kind)
    run("gated_norm", table, threads, x=x, gate=gate, gain=gain,
        count=ints(len(x) if count is None else count), out=arg, eps=EPS)  # fmt: skip
    return out


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (6, 3, 7), (5, 4, 128), (3, 2, 45)])
def test_gated_norm(shape, kind, table):
    rng = np.random.default_rng(11)
    p, h, d = shape
    x, gate, gain = draw(rng, p, h, d), draw(rng, p, h * d) * 4, draw(rng, d)
    x[0] *= 1e-3  # where eps counts
    gate[-1, -1], gate[-1, 0] = -200, 200
    got = gated_norm(junk(x, p), junk(gate, p), gain, kind, table, 3, p)[:p]
    close = close_bf16 if kind == "BF16" else close_elements
    close(got, recurrent.gated_norm(x, gate, gain, np.float32(EPS)))
    assert got.tobytes() == gated_norm(x, gate, gain, kind).tobytes()
    last = gated_norm(x[-1:], gate[-1:], gain, kind, table)
    assert got[-1:].tobytes() == last.tobytes()
    packed = np.full((p, h + 1, d), np.nan, F)  # rows that are apart
    packed[:, :h] = x
    assert gated_norm(packed[:, :h], gate, gain, kind, table).tobytes() == got.tobytes()


def test_gated_norm_by_hand():
    x = np.array([[[3, -4]]], F)  # the mean of squares is 12.5
    gate = np.array([[0, np.inf]], F)
    got = gated_norm(x, gate, np.array([2, 1], F), "F32")
    assert np.allclose(got, [[3 / 12.5**0.5, -4 / 12.5**0.5]], rtol=1e-6)


def test_tables_agree():
    """Random shapes, byte for byte."""
    rng = np.random.default_rng(12)
    for case in range(25):
        kind = ACTS[case % 2]
        hk = int(rng.integers(1, 4))
        shape = (hk, hk * int(rng.integers(1, 4)), *(int(n) for n in rng.integers(1, 90, 2)))
        n = int(rng.integers(1, 9))
        slots = sorted(int(s) for s in rng.integers(0, 3, n))
        rows = row_table(slots, range(n))
        q, entry = entries(rng, shape, n)
        start, key = matrices(rng, shape, 3), key_of(shape, "tiled")
        x, taps = draw(rng, n, int(rng.integers(1, 2500))), None
        taps = draw(rng, x.shape[1], int(rng.integers(2, 6)))
        window, _ = act(draw(rng, 3, taps.shape[1] - 1, x.shape[1]), kind)
        seen = set()
        for table in TABLES:
            for threads in (1, 2, 5):
                m = start.copy()
                out = step(q, entry, key, m, rows, table, threads)
                last = scan(q, entry, key, m, rows, table=table, threads=threads)
                gate = draw(np.random.default_rng(case), n, out[0].size)
                normed = gated_norm(out, gate, start[0, 0, 0], kind, table, threads)
                mixed = conv(x, taps, window, rows, 1, table, threads)
                seen.add(b"".join(y.tobytes() for y in (out, last, m, normed, mixed)))
        assert len(seen) == 1


def test_windows_round_as_they_store():
    """A BF16 window sees the row it will keep, so what a pass computes does not depend on when."""
    x = np.array([[1 + 2.0**-12], [1.0]], F)
    taps = np.array([[3.0, 5.0]], F)
    rows = row_table([0, 0], [1, 2])
    window = bf16(to_bf16(np.zeros((1, 1, 1), F)))
    rounded = conv(dense.bf16_round(x).astype(F), taps, window, rows)
    assert conv(x, taps, window, rows).tobytes() == rounded.tobytes()
    exact = conv(x, taps, np.zeros((1, 1, 1), F), rows)
    assert (exact != rounded).any()
