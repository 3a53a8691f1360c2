"""linear, whole and in parts: against FP64, fast table against definition, and rows that do not know
their neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from blocks import IDS, sizes
from op_tools import BLOCKS, FAST_TYPES, FAST, TABLES, TYPES, act, ints, run, weights
import dense
from stoker import InvalidArgumentError
from tolerances import close_linear

ACTS = ("BF16", "F32")


def elems(kind: str) -> int:
    return sizes(kind)[0] if kind in IDS else 1


def linear(x, w, n_out, rows, table="definition", threads=1, count=None, bias=None):
    y = np.full((rows, n_out), np.nan, np.float32)
    run("linear", table, threads, x=x, count=ints(rows if count is None else count), w0=w, y0=y,
        bias0=bias)  # fmt: skip
    return y


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("act_type", ACTS)
@pytest.mark.parametrize("kind", TYPES)
def test_against_float64(kind, act_type, table):
    rng = np.random.default_rng(1)
    block = elems(kind)
    for n, k, p in ((1, block, 1), (7, 3 * block, 2), (33, 512, 5), (5, 768, 3)):
        w, values = weights(kind, n, k, rng)
        x, xv = act(rng.standard_normal((p, k)), act_type)
        bias = rng.standard_normal(n).astype(np.float32)
        close_linear(linear(x, w, n, p, table, 2, bias=bias), dense.linear(xv, values, bias))
        close_linear(linear(x, w, n, p, table), dense.linear(xv, values))


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "I8"])
@pytest.mark.parametrize("k", [1, 7, 8, 31, 33, 63, 100, 513])
def test_short_last_group(kind, k, table):
    rng = np.random.default_rng(k)
    w, values = weights(kind, 5, k, rng)
    x, xv = act(rng.standard_normal((6, k)), "BF16")
    close_linear(linear(x, w, 5, 6, table), dense.linear(xv, values))


def test_by_hand():
    # One Q8_0 block: scale 0.5, codes 0 .. 31; ones and a single 3.
    raw = np.concatenate(
        [np.array([0.5], np.float16).view(np.uint8), np.arange(32, dtype=np.uint8)]
    )
    x = np.ones((1, 32), np.float32)
    x[0, 10] = 3
    for table in TABLES:
        assert linear(x, ("Q8_0", raw, (1, 32)), 1, 1, table)[0, 0] == 0.5 * (31 * 16 + 20)
    # One Q4_1 block: scale 2, minimum -1, all codes 15.
    raw = np.concatenate([np.array([2, -1], np.float16).view(np.uint8), np.full(16, 255, np.uint8)])
    for table in TABLES:
        assert linear(x, ("Q4_1", raw, (1, 32)), 1, 1, table)[0, 0] == 29 * 34


@pytest.mark.parametrize("kind", TYPES)
def test_fast_is_the_definition(kind):
    rng = np.random.default_rng(2)
    block = elems(kind)
    for case in range(24):
        k = block * int(rng.integers(1, 300 if block == 1 else 1280 // block))
        n = int(rng.integers(1, 30))
        p = int(rng.integers(1, (9, 150)[case % 3 == 0]))
        w, _ = weights(kind, n, k, rng)
        x, _ = act(rng.standard_normal((p, k)) * 10.0 ** rng.integers(-3, 4), ACTS[case % 2])
        count = int(rng.integers(0, p + 1))
        want = linear(x, w, n, p, "definition", 1, count)
        for threads in (1, 2, 3, 4):
            for table in FAST:
                got = linear(x, w, n, p, table, threads, count)
                assert got.tobytes() == want.tobytes(), (k, n, p, count, table, threads)


@pytest.mark.parametrize("kind", BLOCKS)
def test_fast_is_the_definition_for_any_bytes(kind):
    """Subnormal, infinite and NaN scales among them; which NaN comes out is not said."""
    rng = np.random.default_rng(6)
    elems, n_bytes = sizes(kind)
    n, blocks = 64, 256 // elems * 2
    raw = rng.integers(0, 256, (n, blocks * n_bytes), dtype=np.uint8)
    raw[::7] = 0
    raw[1::7] = 255
    w = (kind, raw, (n, blocks * elems))
    x, _ = act(rng.standard_normal((9, blocks * elems)), "BF16")
    for p in (1, 3, 9):
        part = (x[0], x[1][:p], (p, blocks * elems))
        want = linear(part, w, n, p, "definition")
        for table in FAST:
            got = linear(part, w, n, p, table)
            np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
            assert np.nan_to_num(got).tobytes() == np.nan_to_num(want).tobytes(), (p, table)
    assert np.isfinite(want).any()


def test_segments_with_minima_of_both_group_sizes():
    rng = np.random.default_rng(7)
    p, k, kinds = 7, 512, ("Q2_K", "Q4_1", "IQ1_M", "Q5_K")
    x, xv = act(rng.standard_normal((p, k)), "BF16")
    for rows in (1, 4, 7):
        fields, want = {}, []
        for s, kind in enumerate(kinds):
            fields[f"w{s}"], values = weights(kind, 11, k, rng)
            fields[f"y{s}"] = np.full((p, 11), np.nan, np.float32)
            want.append(dense.linear(xv, values))
        for table in TABLES:
            run("linear", table, 2, x=x, count=ints(rows), **fields)
            for s, ref in enumerate(want):
                close_linear(fields[f"y{s}"][:rows], ref[:rows])


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", FAST_TYPES)
def test_a_row_does_not_know_its_neighbours(kind, table):
    rng = np.random.default_rng(3)
    n, k, most = 13, 512, 70
    w, _ = weights(kind, n, k, rng)
    x, _ = act(rng.standard_normal((most, k)), "F32")
    alone = np.concatenate([linear(x[r : r + 1], w, n, 1, table) for r in range(most)])
    for p in (*range(1, 10), 16, 63, 64, 65, most):
        order = rng.permutation(most)[:p]
        y = linear(np.ascontiguousarray(x[order]), w, n, p, table, 2)
        assert y.tobytes() == alone[order].tobytes(), p
    for count in (1, 2, 5, 9):  # what lies behind the live rows is anything
        junk = np.full((12, k), np.nan, np.float32)
        junk[count + 1 :] = np.inf
        junk[:count] = x[:count]
        y = linear(junk, w, n, 12, table, 2, count)
        assert y[:count].tobytes() == alone[:count].tobytes()
        assert np.isnan(y[count:]).all()  # not written here, and never an exception


@pytest.mark.parametrize("table", TABLES)
def test_segments_of_mixed_types_into_packed_rows(table):
    rng = np.random.default_rng(4)
    p, k, sizes, kinds = 5, 512, (7, 12, 1, 30), ("Q4_1", "Q6_K", "F16", "Q4_K")
    x, xv = act(rng.standard_normal((p, k)), "BF16")
    packed = np.full((p, sum(sizes)), np.nan, np.float32)
    fields, want, at = {}, [], 0
    for s, (n, kind) in enumerate(zip(sizes, kinds, strict=True)):
        fields[f"w{s}"], values = weights(kind, n, k, rng)
        fields[f"y{s}"] = packed[:, at : at + n]
        bias = rng.standard_normal(n).astype(np.float32) if s % 2 else None
        fields[f"bias{s}"] = bias
        want.append(dense.linear(xv, values, bias))
        at += n
    run("linear", table, 3, x=x, count=ints(p), **fields)
    for got, ref in zip(np.split(packed, np.cumsum(sizes)[:-1], axis=1), want, strict=True):
        close_linear(got, ref)


def test_weights_and_inputs_at_any_address():
    rng = np.random.default_rng(5)
    (kind, raw, shape), values = weights("Q4_1", 6, 96, rng)
    room = np.zeros(raw.size + 3, np.uint8)
    shifted = room[3:].reshape(raw.shape)
    shifted[:] = raw
    wide = rng.standard_normal((4, 200)).astype(np.float32)
    for table in TABLES:
        y = linear(wide[:, 50:146], (kind, shifted, shape), 6, 4, table)
        close_linear(y, dense.linear(wide[:, 50:146], values))


# Parts of the sum over K.


def parts(x, w, n_out, rows, n, table="definition", threads=1, count=None):
    y = np.full((n, rows, n_out), np.nan, np.float32)
    run("linear_parts", table, threads, x=x, count=ints(rows if count is None else count), w0=w,
        y0=y)  # fmt: skip
    return y


def columns(w, begin: int, end: int):
    """The weight's argument, of these columns alone."""
    if isinstance(w, np.ndarray):
        return np.ascontiguousarray(w[:, begin:end])
    kind, raw, (n, k) = w
    raw = raw.reshape(n, -1)
    size = raw.shape[1]
    return kind, np.ascontiguousarray(raw[:, begin * size // k : end * size // k]), (n, end - begin)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("act_type", ACTS)
@pytest.mark.parametrize("kind", FAST_TYPES)
def test_parts(kind, act_type, table):
    """Each is the product of its columns, in bits too; the only one is the product itself."""
    rng = np.random.default_rng(8)
    n, k, p = 13, 1024, 6
    w, values = weights(kind, n, k, rng)
    x, xv = act(rng.standard_normal((p, k)), act_type)
    whole = linear(x, w, n, p, table, 2)
    for s in (1, 2, 4):
        got = parts(x, w, n, p, s, table, 2)
        for i, at in enumerate(range(0, k, k // s)):
            some = slice(at, at + k // s)
            close_linear(got[i], dense.linear(xv[:, some], values[:, some]))
            alone, _ = act(xv[:, some], act_type)
            want = linear(alone, columns(w, at, at + k // s), n, p)
            assert got[i].tobytes() == want.tobytes(), (s, i)
        close_linear(np.add.accumulate(got)[-1], dense.linear(xv, values))
        if s == 1:
            assert got[0].tobytes() == whole.tobytes()
    for count, rows in ((0, 3), (2, 6), (5, 6)):
        got = parts(x if rows == p else act(xv[:rows], act_type)[0], w, n, rows, 4, table, 3, count)
        want = parts(x, w, n, p, 4)[:, :count]
        assert got[:, :count].tobytes() == want.tobytes()
        assert np.isnan(got[:, count:]).all()


@pytest.mark.parametrize("table", TABLES)
def test_parts_of_segments_side_by_side(table):
    rng = np.random.default_rng(9)
    p, k, n_parts, widths = 5, 2048, 8, (7, 12, 1, 30)
    x, xv = act(rng.standard_normal((p, k)), "BF16")
    packed = np.full((n_parts, p * sum(widths)), np.nan, np.float32)
    fields, want, at = {}, [], 0
    for s, (n, kind) in enumerate(zip(widths, ("Q4_1", "Q6_K", "F16", "IQ1_M"), strict=True)):
        fields[f"w{s}"], values = weights(kind, n, k, rng)
        fields[f"y{s}"] = packed[:, p * at : p * (at + n)].reshape(n_parts, p, n)
        want.append([dense.linear(xv[:, i : i + 256], values[:, i : i + 256])
                     for i in range(0, k, 256)])  # fmt: skip
        at += n
    run("linear_parts", table, 3, x=x, count=ints(p), **fields)
    for s, ref in enumerate(want):
        close_linear(fields[f"y{s}"], np.array(ref))
    assert np.isfinite(packed).all()
    twice = {"w0": fields["w0"], "y0": fields["y0"], "w1": fields["w0"]}
    shifted = packed[:, 7 : 7 + 7 * p].reshape(n_parts, p, 7)
    with pytest.raises(InvalidArgumentError, match=r"y\[0\]: expected no overlap with y\[1\]"):
        run("linear_parts", table, 1, x=x, count=ints(p), **twice, y1=shifted)
