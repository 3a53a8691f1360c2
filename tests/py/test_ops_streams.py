"""Streams of a wide residual: against FP64, the products of hyper-connections bit for bit those of
linear, and rows that do not know each other."""

from __future__ import annotations

import numpy as np
import pytest
from blocks import IDS, sizes

import streams as oracle
from dense import bf16_round
from op_tools import TABLES, act, act_out, ints, run, weights
from tolerances import close_bf16, close_elements

F = np.float32
ACTS = ("BF16", "F32")
EPS = F(1e-6)
CLOSE = {"BF16": close_bf16, "F32": close_elements}
KEPT = {"BF16": bf16_round, "F32": lambda x: np.asarray(x, np.float64)}
# Weight of the products, streams, elements of each. The first ones multiply a stream's columns by
# themselves; of the others a block or a group has elements of two streams.
APART = (("F32", 3, 64), ("F16", 2, 96), ("BF16", 4, 64), ("Q8_0", 3, 64), ("IQ4_NL", 4, 32),
         ("Q4_K", 2, 256), ("Q6_K", 3, 256), ("Q2_0", 2, 128), ("I8", 4, 32))  # fmt: skip
CROSSING = (("F32", 3, 40), ("F16", 4, 7), ("BF16", 2, 33), ("Q8_0", 2, 48), ("IQ4_NL", 4, 40),
            ("Q4_K", 4, 64), ("Q6_K", 4, 64), ("Q4_K", 2, 128), ("Q6_K", 4, 192),
            ("Q4_1", 4, 24))  # fmt: skip
SHAPES = APART + CROSSING


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(F)


def stream_values(rng, rows, n_streams, dim):
    """Rows of streams of different sizes, and a gain."""
    s = normal(rng, rows, n_streams, dim) * (1 + np.arange(n_streams, dtype=F))[:, None]
    return s, 1 + normal(rng, n_streams * dim) / 4


def live(x, count):
    return ints(len(x) if count is None else count)


def hyper_down(s, gain, w, n_low, inject=None, kind="F32", table="definition", threads=2,
               count=None, eps=EPS):  # fmt: skip
    """(low as stored, factors of streams, factors of injection or None)."""
    arg, low = act_out((len(s), n_low), kind)
    norms = np.full(s.shape[:2], np.nan, F)
    factors = None if inject is None else np.full(s.shape[:2], np.nan, F)
    run("hyper_down", table, threads, s=s, gain=gain, count=live(s, count), w0=w, w1=inject,
        low=arg, factor=norms, inject=factors, eps=eps)  # fmt: skip
    return low, norms, factors


def norms_of(s, eps=EPS):
    with np.errstate(all="ignore"):  # rows that mean nothing
        return (1 / np.sqrt(np.square(s, dtype=np.float64).mean(-1) + eps)).astype(F)


def hyper_mix(low, w, s, gain, kind="F32", table="definition", threads=2, count=None, eps=EPS):
    arg, out = act_out((len(s), s.shape[2]), kind)
    run("hyper_mix", table, threads, low=low, w=w, s=s, gain=gain, factor=norms_of(s, eps),
        count=live(s, count), out=arg)  # fmt: skip
    return out


def same(a, b) -> bool:
    return all(x is y is None or x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("table", TABLES)
def test_copy_add_inject(table):
    rng = np.random.default_rng(1)
    for rows, n_streams, dim in ((1, 1, 1), (3, 2, 7), (5, 4, 64), (2, 3, 5003)):
        x, inject = normal(rng, rows, dim), normal(rng, rows, n_streams)
        s, _ = stream_values(rng, rows, n_streams, dim)
        for threads in (1, 3):
            for name, fields, want in (
                ("stream_copy", {}, np.repeat(x[:, None], n_streams, 1)),
                ("stream_add", {}, s + x[:, None]),
                ("hyper_inject", {"inject": inject}, None)):  # fmt: skip
                got, first = s.copy(), s.copy()
                run(name, table, threads, x=x, count=ints(rows), s=got, **fields)
                run(name, "definition", 1, x=x, count=ints(rows), s=first, **fields)
                assert got.tobytes() == first.tobytes()
                if want is None:
                    close_elements(got, oracle.hyper_inject(x, inject, s))
                else:
                    assert got.tobytes() == want.tobytes()
                wide = np.full((rows, n_streams + 1, dim), F(7))  # rows that are apart
                wide[:, :n_streams] = s
                run(
                    name, table, threads, x=x, count=ints(rows - 1), s=wide[:, :n_streams], **fields
                )
                assert wide[: rows - 1, :n_streams].tobytes() == got[: rows - 1].tobytes()
                assert (wide[:, n_streams:] == 7).all()
                assert (wide[rows - 1, :n_streams] == s[rows - 1]).all()


def test_inject_is_fused():
    s, by = np.full((1, 1, 9), -1, F), np.full((1, 1), 1 + 2.0**-12, F)
    for table in TABLES:
        got = s.copy()
        run("hyper_inject", table, x=np.full((1, 9), 1 - 2.0**-12, F), inject=by, count=ints(1),
            s=got)  # fmt: skip
        assert (got == -(2.0**-24)).all()  # the rounded product is 1


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("weight, n_streams, dim", SHAPES)
def test_hyper_down(weight, n_streams, dim, kind, table):
    rng = np.random.default_rng(2)
    wide = n_streams * dim
    w, values = weights(weight, 19, wide, rng)
    inject, inject_values = weights(weight, n_streams, wide, rng)
    s, gain = stream_values(rng, 5, n_streams, dim)
    gain /= np.abs(values).max() * wide**0.5 / 4  # sums of order one
    low, norms, factors = hyper_down(s, gain, w, 19, inject, kind, table)
    want, want_factors = oracle.hyper_down(s, gain, values, inject_values, EPS, KEPT[kind])
    CLOSE[kind](low, want)
    close_elements(factors, want_factors)
    close_elements(norms, oracle.factors(s, EPS))
    assert same((low, norms, factors), hyper_down(s, gain, w, 19, inject, kind, "definition", 1))
    assert same((low, norms, None), hyper_down(s, gain, w, 19, None, kind, table, 3))


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("weight, n_streams, dim", SHAPES)
def test_a_stream_is_linear_with_zeros(weight, n_streams, dim, kind, table):
    """Both ways of multiplying give the bits of linear on rows whose other streams are 0."""
    rng = np.random.default_rng(3)
    wide = n_streams * dim
    w, _ = weights(weight, 11, wide, rng)
    s = rng.choice([F(-1), F(1)], (4, n_streams, dim))  # so that all factors are 1
    gain = normal(rng, wide) / (8 if weight != "I8" else 800)
    y = np.zeros((4, 11), F)
    for i in range(n_streams):
        a = np.zeros((4, n_streams, dim), F)
        a[:, i] = s[:, i] * gain.reshape(n_streams, dim)[i]
        part = np.full((4, 11), np.nan, F)
        run("linear", table, x=act(a.reshape(4, wide), kind)[0], count=ints(4), w0=w, y0=part)
        y += part
    arg, want = act_out((4, 11), kind)
    run("silu_mul", table, gate=y / F(n_streams), up=np.ones((4, 11), F), count=ints(4), out=arg)
    eps = F(1e-12)
    low = hyper_down(s, gain, w, 11, None, kind, table, eps=eps)[0]
    assert low.tobytes() == want.tobytes()
    # Beside a weight that is multiplied in the other way.
    other, _ = weights("F32", n_streams, wide, rng)
    if dim % 32 == 0:
        low, norms, factors = hyper_down(s, gain, w, 11, other, kind, table, eps=eps)
        alone = hyper_down(s, gain, other, n_streams, other, kind, table, eps=eps)[2]
        assert (norms == 1).all()
        assert low.tobytes() == want.tobytes() and factors.tobytes() == alone.tobytes()


def test_hyper_down_by_hand():
    s = np.array([[[3, 4], [0, 0]]], F)  # mean of squares 12.5 and 0
    w = np.array([[1, 1, 9, 9], [0, 0, 1, 1]], F)
    for table in TABLES:
        low, norms, inject = hyper_down(s, np.ones(4, F), w, 2, w, table=table, eps=F(3.5))
        y = 7 / 4 / 2  # the factor is 1/4, of the streams there are two
        assert np.allclose(low, [[y / (1 + np.exp(-y)), 0]], rtol=1e-6)
        assert np.allclose(inject, [[2 / (1 + np.exp(-y)), 1]], rtol=1e-6)
        assert np.allclose(norms, [[1 / 4, 3.5**-0.5]], rtol=1e-6)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("weight", ["F32", "F16", "BF16", "Q8_0", "Q4_K", "Q6_K", "IQ4_NL"])
def test_hyper_mix(weight, kind, table):
    rng = np.random.default_rng(4)
    block = sizes(weight)[0] if weight in IDS else 24
    for rows, n_streams, dim in ((1, 2, 5), (4, 3, 256), (3, 4, 300), (2, 1, 8)):
        w, values = weights(weight, n_streams * dim, block, rng)
        low, low_values = act(normal(rng, rows, block) / np.abs(values).max(), kind)
        s, gain = stream_values(rng, rows, n_streams, dim)
        got = hyper_mix(low, w, s, gain, kind, table)
        CLOSE[kind](got, oracle.hyper_mix(low_values, values, s, gain, EPS))
        assert got.tobytes() == hyper_mix(low, w, s, gain, kind, "definition", 1).tobytes()


def test_hyper_mix_by_hand():
    s = np.array([[[3, -4], [1, 1]]], F)  # the factors are 1/sqrt(12.5) and 1
    gain, n = np.array([1, 1, 2, -2], F), 12.5**-0.5
    for table in TABLES:
        got = hyper_mix(np.zeros((1, 3), F), np.ones((4, 3), F), s, gain, table=table)
        assert np.allclose(got, [[(3 * n + 2) / 4, (-4 * n - 2) / 4]], atol=1e-6)
        far = np.array([[1e4], [-1e4], [-1e4], [1e4]], F)  # gates 1, 0, 0, 1
        got = hyper_mix(np.ones((1, 1), F), far, s, gain, table=table)
        assert np.allclose(got, [[3 * n / 2, -1]], atol=1e-6)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("weight, n_streams, dim", [("Q4_K", 4, 64), ("Q8_0", 2, 64)])
def test_rows_do_not_know_each_other(weight, n_streams, dim, kind, table):
    rng = np.random.default_rng(5)
    wide, rows = n_streams * dim, 21
    w, _ = weights(weight, 6, wide, rng)
    inject, _ = weights("F16", n_streams, wide, rng)
    up, _ = weights("BF16", wide, 6, rng)
    s, gain = stream_values(rng, rows, n_streams, dim)
    low_values = normal(rng, rows, 6)

    def both(s, low, threads, count=None):
        down = hyper_down(s, gain, w, 6, inject, kind, table, threads, count)
        return *down, hyper_mix(act(low, kind)[0], up, s, gain, kind, table, threads, count)

    whole = both(s, low_values, 3)
    for part in ([0], [20, 3], range(1, 18)):
        at = list(part)
        assert same(both(s[at], low_values[at], 1), [x[at] for x in whole])
    for count in (0, 1, 5, 99, -1):
        n = max(0, min(count, rows))
        junk, junk_low = s.copy(), low_values.copy()
        junk[n:], junk_low[n:] = np.nan, np.inf
        got = both(junk, junk_low, 2, count)
        assert same([x[:n] for x in got], [x[:n] for x in whole])
        for x in got:  # as they were
            assert (x[n:] == 0x7FC0).all() if x.dtype == np.uint16 else np.isnan(x[n:]).all()
    room = np.full((rows, n_streams + 1, dim), np.nan, F)  # rows that are apart
    room[:, :n_streams] = s
    assert same(both(room[:, :n_streams], low_values, 2), whole)


@pytest.mark.parametrize("kind", ACTS)
def test_all_tables_are_the_definition(kind):
    rng = np.random.default_rng(6)
    for _ in range(12):
        rows, n_streams = int(rng.integers(1, 6)), int(rng.integers(1, 6))
        dim, n_low = int(rng.integers(1, 600)), int(rng.integers(1, 40))
        s, gain = stream_values(rng, rows, n_streams, dim)
        w, _ = weights("F16", n_low, n_streams * dim, rng)
        up, _ = weights("F32", n_streams * dim, n_low, rng)
        low, _ = act(normal(rng, rows, n_low) * 4, kind)
        first = None
        for table in TABLES:
            got = (
                hyper_down(s, gain, w, n_low, None, kind, table)[0],
                hyper_mix(low, up, s, gain, kind, table),
            )
            first = first or got
            assert same(got, first), (table, rows, n_streams, dim, n_low)
