"""Ops on single rows: norms, elementwise, rope, lookups, argmax."""

from __future__ import annotations

import numpy as np
import pytest

import dense
from op_tools import BLOCKS, FAST, TABLES, TYPES, act, act_out, bf16, ints, row_table, run, weights
from tolerances import ROTATION, close_bf16, close_elements, from_bf16, to_bf16

ACTS = ("BF16", "F32")


def close(kind: str, got: np.ndarray, want: np.ndarray) -> None:
    (close_bf16 if kind == "BF16" else close_elements)(got, want)


def rms_norm(x, gain, eps, kind="F32", table="definition", threads=1, count=None):
    arg, out = act_out(x.shape, kind)
    run("rms_norm", table, threads, x=x, gain=gain, count=ints(len(x) if count is None else count),
        out=arg, eps=eps)  # fmt: skip
    return out


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 576), (5, 4, 64), (1, 3, 33)])
def test_rms_norm(shape, kind, table):
    rng = np.random.default_rng(1)
    x = rng.standard_normal(shape).astype(np.float32) * 3
    gain = rng.standard_normal(shape[-1]).astype(np.float32)
    close(kind, rms_norm(x, gain, 1e-5, kind, table, 2), dense.rms_norm(x, gain, np.float32(1e-5)))
    if len(shape) == 3:  # heads inside of packed rows
        packed = np.zeros((shape[0], 2, *shape[1:]), np.float32)
        packed[:, 1] = x
        got = rms_norm(packed[:, 1], gain, 1e-5, kind, table)
        close(kind, got, dense.rms_norm(x, gain, np.float32(1e-5)))


def test_rms_norm_by_hand():
    x = np.array([[3, -4]], np.float32)  # mean of squares 12.5, and 12.5 + 3.5 = 16
    assert rms_norm(x, np.array([4, 8], np.float32), 3.5).tolist() == [[3, -8]]
    zero = rms_norm(np.zeros((1, 4), np.float32), np.ones(4, np.float32), 1e-6)
    assert not zero.any()


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("op", ["silu_mul", "gelu_mul"])
def test_gated_activations(op, kind, table):
    rng = np.random.default_rng(2)
    gate = rng.standard_normal((4, 100)).astype(np.float32) * 4
    gate[0, :4] = 0, 100, -100, -0.0
    up = rng.standard_normal((4, 100)).astype(np.float32)
    arg, out = act_out(gate.shape, kind)
    run(op, table, 2, gate=gate, up=up, count=ints(4), out=arg)
    close(kind, out, getattr(dense, op)(gate, up))


@pytest.mark.parametrize("table", TABLES)
def test_add_and_copy_rows(table):
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((2, 5, 33)).astype(np.float32)
    want = y.copy()
    want[:3] = y[:3] + x[:3]
    run("add", table, 2, x=x, count=ints(3), y=y)
    assert y.tobytes() == want.tobytes()
    out = np.zeros_like(x)
    run("copy_rows", table, 2, x=x, count=ints(4), out=out)
    assert (out[:4] == x[:4]).all()
    assert not out[4].any()


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", TYPES)
def test_gather_rows(kind, table):
    rng = np.random.default_rng(4)
    table_arg, values = weights(kind, 9, 512, rng)
    ids, out = ints(8, 0, 3, 3, 1, 99), np.full((6, 512), 7, np.float32)
    run("gather_rows", table, 2, table=table_arg, ids=ids, count=ints(5), out=out, scale=1.0)
    if kind in BLOCKS or kind in ("BF16", "F16", "F32", "I8"):  # one rounding at most: exact
        assert (out[:5] == values[ids[:5]]).all()
    assert (out[5] == 7).all()
    run("gather_rows", table, 2, table=table_arg, ids=ids, count=ints(5), out=out, scale=2.5)
    close_elements(out[:5], values[ids[:5]].astype(np.float64) * 2.5)


@pytest.mark.parametrize("table", TABLES)
def test_argmax(table):
    rng = np.random.default_rng(5)
    nan, inf = np.nan, np.inf
    x = np.array([[1, 3, 3, 2, 0], [nan, -5, nan, -4, nan], [nan] * 5, [-inf] * 5,
                  [nan, -inf, nan, nan, nan], [5, nan, 5, inf, inf], [-0.0, 0.0, 0, 0, 0]],
                 np.float32)  # fmt: skip
    out = np.full(9, -7, np.int32)
    x = np.concatenate([x, np.zeros((2, 5), np.float32)])
    run("argmax", table, 2, x=x, count=ints(8), id=out)
    assert out.tolist() == [1, 3, 0, 0, 1, 3, 0, 0, -7]
    for width in (1, 2, 31, 32, 33, 1000):
        x = rng.integers(0, 50, (6, width)).astype(np.float32)
        x[rng.random(x.shape) < 0.2] = nan
        out = np.zeros(6, np.int32)
        run("argmax", table, 3, x=x, count=ints(6), id=out)
        assert (out == dense.argmax(x)).all()


def rope(x, freq, pos, neox, kind="F32", table="definition", count=None):
    arg, out = act_out(x.shape, kind)
    rows = row_table([0] * len(pos), pos, len(x))
    run("rope", table, 2, x=x, freq=freq, rows=rows, count=ints(len(pos) if count is None else count),
        out=arg, neox=neox)  # fmt: skip
    return out


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("neox", [0, 1])
@pytest.mark.parametrize("dim, pairs", [(64, 32), (64, 8), (6, 3), (5, 1)])
def test_rope(dim, pairs, neox, kind, table):
    rng = np.random.default_rng(6)
    pos = [0, 1, 17, 250]
    x = rng.standard_normal((4, 3, dim)).astype(np.float32)
    freq = (0.5 ** np.arange(pairs)).astype(np.float32)  # angles are exact in FP32
    close(kind, rope(x, freq, pos, neox, kind, table), dense.rope(x, freq, pos, neox))


def test_rope_by_hand():
    x = np.arange(1, 7, dtype=np.float32).reshape(1, 1, 6)
    quarter = np.array([np.pi / 2, 0], np.float32)
    assert np.allclose(rope(x, quarter, [1], 0), [[[-2, 1, 3, 4, 5, 6]]], atol=ROTATION)
    assert np.allclose(rope(x, quarter, [1], 1), [[[-3, 2, 1, 4, 5, 6]]], atol=ROTATION)
    assert rope(x, quarter, [0], 1).tolist() == x.tolist()


@pytest.mark.parametrize("table", TABLES)
def test_live_rows_alone_are_touched(table):
    """Rows past `count` are neither read nor needed: garbage there changes no bit."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((6, 2, 32)).astype(np.float32)
    junk = x.copy()
    junk[2:] = np.nan
    gain, freq = np.ones(32, np.float32), np.ones(4, np.float32)
    for kind in ACTS:
        full = rms_norm(x, gain, 1e-6, kind, table)
        part = rms_norm(junk, gain, 1e-6, kind, table, 2, count=2)
        assert part[:2].tobytes() == full[:2].tobytes()
        full = rope(x, freq, [3, 4, 5, 6, 7, 8], 1, kind, table)
        part = rope(junk, freq, [3, 4], 1, kind, table, count=2)
        assert part[:2].tobytes() == full[:2].tobytes()


def test_fast_is_the_definition():
    rng = np.random.default_rng(8)
    for case in range(30):
        p, d = int(rng.integers(1, 9)), int(rng.integers(1, 700))
        x, y = rng.standard_normal((2, p, d)).astype(np.float32) * 5
        kind = ACTS[case % 2]
        got = {}
        for table, threads in (("definition", 1), *((t, n) for t in FAST for n in (1, 3))):
            arg, silu = act_out((p, d), kind)
            run("silu_mul", table, threads, gate=x, up=y, count=ints(p), out=arg)
            arg, gelu = act_out((p, d), kind)
            run("gelu_mul", table, threads, gate=x, up=y, count=ints(p), out=arg)
            total, ids = y.copy(), np.zeros(p, np.int32)
            run("add", table, threads, x=x, count=ints(p), y=total)
            run("argmax", table, threads, x=x, count=ints(p), id=ids)
            norm = rms_norm(x, y[0], 1e-6, kind, table, threads)
            got[table, threads] = [a.tobytes() for a in (silu, gelu, total, ids, norm)]
        assert all(g == got["definition", 1] for g in got.values())


def test_kv_append_rounds_and_leaves_the_rest():
    rng = np.random.default_rng(9)
    k, v = rng.standard_normal((2, 5, 2, 8)).astype(np.float32)
    for kind in ACTS:
        before = rng.standard_normal((2, 3, 10, 2, 8)).astype(np.float32)
        caches = [to_bf16(c) if kind == "BF16" else c for c in before]
        want = [c.copy() for c in caches]
        slots, pos = [0, 0, 2, 2], [3, 4, 0, 9]
        for c, fresh in zip(want, (k, v), strict=True):
            for r, (b, p) in enumerate(zip(slots, pos, strict=True)):
                c[b, p] = to_bf16(fresh[r]) if kind == "BF16" else fresh[r]
        args = [bf16(c) if kind == "BF16" else c for c in caches]
        run("kv_append", "fast", 2, k=k, v=v, rows=row_table(slots, pos, 5), count=ints(4),
            k_cache=args[0], v_cache=args[1])  # fmt: skip
        for c, w in zip(caches, want, strict=True):
            assert c.tobytes() == w.tobytes()
    # Rows that are rounded already are stored as they are.
    arg, values = act(k, "BF16")
    cache = np.zeros((1, 8, 2, 8), np.uint16)
    run("kv_append", "fast", 1, k=arg, v=arg, rows=row_table([0], [7], 5), count=ints(1),
        k_cache=bf16(cache), v_cache=bf16(np.zeros_like(cache)))  # fmt: skip
    assert (from_bf16(cache[0, 7]) == values[0]).all()
    assert not cache[0, :7].any()
