"""attend: against FP64, fast table against definition, independence of rows, slots and capacity."""

from __future__ import annotations

import numpy as np
import pytest

import dense
from op_tools import FAST, TABLES, act, act_out, bf16, ints, row_table, run
from tolerances import close_bf16, close_elements, to_bf16

ACTS = ("BF16", "F32")


def attend(q, k, v, slots, pos, kind, table="definition", threads=1, *, window=0, split=256,
           capacity=None, scale=0.125):  # fmt: skip
    """q [P, H, D] and the caches as FP32 arrays of representable values."""
    capacity = capacity or len(q)
    padded = np.full((capacity, *q.shape[1:]), np.nan, np.float32)
    padded[: len(q)] = q
    pack = (lambda x: bf16(to_bf16(x))) if kind == "BF16" else (lambda x: x)
    args = [pack(np.ascontiguousarray(x)) for x in (k, v)]
    arg, out = act_out(padded.shape, kind)
    bits = to_bf16(np.nan_to_num(padded))
    bits[len(q) :] = 0x7FC0
    run("attend", table, threads, q=bf16(bits) if kind == "BF16" else padded, k_cache=args[0],
        v_cache=args[1], rows=row_table(slots, pos, capacity), count=ints(len(q)), out=arg,
        scale=scale, window=window, split=split)  # fmt: skip
    return out[: len(q)]


def case(rng, kind, p=5, h=6, hkv=2, d=64, b=3, c=70):
    q = act(rng.standard_normal((p, h, d)) * 2, kind)[1]
    k, v = (act(rng.standard_normal((b, c, hkv, d)), kind)[1] for _ in range(2))
    slots = np.sort(rng.integers(0, b, p)).tolist()
    pos = rng.integers(0, c, p).tolist()
    return q, k, v, slots, pos


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("window, split", [(0, 256), (0, 16), (0, 1), (7, 256), (33, 8), (1, 4)])
@pytest.mark.parametrize("heads, d", [((6, 2), 64), ((4, 4), 20), ((3, 1), 7), ((2, 1), 256)])
def test_against_float64(heads, d, window, split, kind, table):
    rng = np.random.default_rng(1)
    q, k, v, slots, pos = case(rng, kind, h=heads[0], hkv=heads[1], d=d)
    got = attend(q, k, v, slots, pos, kind, table, 2, window=window, split=split)
    want = dense.attend(q, k, v, slots, pos, 0.125, window, split, kind == "BF16")
    (close_bf16 if kind == "BF16" else close_elements)(got, want)


def test_by_hand():
    q = np.zeros((1, 1, 2), np.float32)  # equal scores: the mean of V
    k = np.ones((1, 4, 1, 2), np.float32)
    v = np.arange(8, dtype=np.float32).reshape(1, 4, 1, 2)
    for table in TABLES:
        assert attend(q, k, v, [0], [2], "F32", table).tolist() == [[[2, 3]]]
        assert attend(q, k, v, [0], [0], "F32", table).tolist() == [[[0, 1]]]
        assert attend(q, k, v, [0], [3], "F32", table, window=2).tolist() == [[[5, 6]]]
        assert attend(q, k, v, [0], [3], "F32", table, split=3).tolist() == [[[3, 4]]]
        far = np.array([[[1e4, 0]]], np.float32)  # the largest score takes all
        keys = k * np.array([1, 2, 3, 1], np.float32)[None, :, None, None]
        assert attend(far, keys, v, [0], [3], "F32", table, split=2).tolist() == [[[4, 5]]]


@pytest.mark.parametrize("kind", ACTS)
def test_fast_is_the_definition(kind):
    rng = np.random.default_rng(2)
    for _ in range(40):
        hkv = int(rng.integers(1, 4))
        q, k, v, slots, pos = case(rng, kind, p=int(rng.integers(1, 9)), hkv=hkv,
                                   h=hkv * int(rng.integers(1, 4)), d=int(rng.integers(1, 140)),
                                   c=int(rng.integers(1, 90)))  # fmt: skip
        how = {"window": int(rng.integers(0, 60)), "split": int(rng.integers(1, 50))}
        want = attend(q, k, v, slots, pos, kind, **how)
        for threads in (1, 2, 3, 4):
            for table in FAST:
                got = attend(q, k, v, slots, pos, kind, table, threads, **how)
                assert got.tobytes() == want.tobytes(), (q.shape, k.shape, how, table, threads)


@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("d", [16, 64, 80, 128])
def test_rows_that_share_keys(kind, d):
    """Consecutive positions, as in prefill: rows of one slot in sets, with NaN behind each row."""
    rng = np.random.default_rng(4)
    for rows, start, group, window, split in ((1, 40, 3, 0, 16), (7, 0, 3, 0, 256), (13, 60, 1, 0, 32),
                                              (9, 3, 8, 0, 7), (9, 30, 5, 33, 10)):  # fmt: skip
        q, k, v, _, _ = case(rng, kind, p=rows, hkv=2, h=2 * group, d=d, c=90)
        pos, slots = list(range(start, start + rows)), [1] * rows
        slots[-1] = 2 if rows > 8 else 1  # one more request in the last set
        for cache in (k, v):
            cache[1, start + rows :] = np.nan
            cache[2, pos[-1] + 1 :] = np.nan
        how = {"window": window, "split": split}
        want = attend(q, k, v, slots, pos, kind, **how)
        assert np.isfinite(want).all()
        for table in FAST:
            for threads in (1, 2, 4):
                got = attend(q, k, v, slots, pos, kind, table, threads, **how)
                assert got.tobytes() == want.tobytes(), (rows, group, how, table, threads)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
def test_a_row_knows_only_its_own_positions(kind, table):
    rng = np.random.default_rng(3)
    q, k, v, slots, pos = case(rng, kind, p=8)
    want = attend(q, k, v, slots, pos, kind, table, split=16)
    for r in range(8):
        moved = (slots[r] + 1) % 3  # the same history in another slot, everything else garbage
        k2, v2 = np.full_like(k, 1e30), np.full_like(v, 1e30)
        n = pos[r] + 1
        k2[moved, :n], v2[moved, :n] = k[slots[r], :n], v[slots[r], :n]
        alone = attend(
            q[r : r + 1], k2, v2, [moved], [pos[r]], kind, table, 2, split=16, capacity=4
        )
        assert alone[0].tobytes() == want[r].tobytes()
        if n <= 40:  # a smaller cache: the tier is no part of the result
            tier = attend(q[r : r + 1], k2[:, :40], v2[:, :40], [moved], [pos[r]], kind, table,
                          split=16)  # fmt: skip
            assert tier[0].tobytes() == want[r].tobytes()
