"""attend and rope_attend on CUDA: against the definition; bit for bit the same for a row in a pass of
any width, in any slot, tier and company; rope_attend bit for bit what its parts are."""

from __future__ import annotations

from itertools import accumulate, product

import numpy as np
import pytest
from gpu_tools import SPLIT, THREADS, F, behind, rounded
from op_tools import act, act_out, ints, row_table, run
from test_ops_attend import attend
from test_ops_fused import EPS, rope_attend
from tolerances import close_attend, close_bf16, from_bf16

pytestmark = pytest.mark.gpu
HEADS = ((16, 1), (16, 9), (32, 3), (32, 7), (64, 1), (64, 3), (64, 4), (64, 9), (96, 4), (96, 7),
         (128, 1), (128, 4), (128, 9), (256, 3), (256, 4))  # dimension, query heads of a key head  # fmt: skip
CONTEXTS = (1, 5, 127, 128, 129, 300, 520, 1100)
ROOM = 1150


def close(got: np.ndarray, want: np.ndarray) -> None:
    close_attend(got, from_bf16(want))


def values(rng, *shape):
    """Random numbers that BF16 can represent."""
    return act(rng.standard_normal(shape), "BF16")[1]


# attend.


def one_row_a_slot(rng, dim, group, n_kv=2):
    """q, k, v: slot b has a row that sees CONTEXTS[b] positions, and NaN behind them."""
    b = len(CONTEXTS)
    q = values(rng, b, n_kv * group, dim) * 2
    k, v = values(rng, b, ROOM, n_kv, dim), values(rng, b, ROOM, n_kv, dim)
    for slot, n in enumerate(CONTEXTS):
        k[slot, n:] = v[slot, n:] = np.nan
    return q, k, v


def on(table, q, k, v, slots, pos, **how):
    scale = q.shape[2] ** -0.5 / 2
    return attend(q, k, v, slots, pos, "BF16", table, THREADS, split=SPLIT, scale=scale, **how)


@pytest.mark.parametrize("window", [0, 77, 513])
@pytest.mark.parametrize("dim, group", HEADS)
def test_attend(dim, group, window):
    rng = np.random.default_rng(1)
    q, k, v = one_row_a_slot(rng, dim, group)
    slots, pos = list(range(len(CONTEXTS))), [n - 1 for n in CONTEXTS]
    want = on("definition", q, k, v, slots, pos, window=window)
    got = on("cuda", q, k, v, slots, pos, window=window)
    close(got, want)
    for capacity in (9, 40, 41, 100):
        wide = on("cuda", q, k, v, slots, pos, window=window, capacity=capacity)
        assert wide.tobytes() == got.tobytes(), capacity
    for r, p in enumerate(pos):
        moved = (slots[r] + 3) % 8  # the same history in another slot, NaN everywhere else
        k2, v2 = np.full_like(k, np.nan), np.full_like(v, np.nan)
        k2[moved, : p + 1], v2[moved, : p + 1] = k[slots[r], : p + 1], v[slots[r], : p + 1]
        for bound in (0, 512, 520, 1100, 2048, 32768):
            if 0 < bound <= p:
                continue
            table = f"cuda-{bound}" if bound else "cuda"
            alone = on(table, q[r : r + 1], k2, v2, [moved], [p], window=window)
            assert alone[0].tobytes() == got[r].tobytes(), (p, bound)
        short = on(
            "cuda", q[r : r + 1], k2[:, : p + 1], v2[:, : p + 1], [moved], [p], window=window
        )
        assert short[0].tobytes() == got[r].tobytes(), p


@pytest.mark.parametrize("rows, first", [(64, 0), (100, 450), (100, 1000)])
@pytest.mark.parametrize("dim, group", [(64, 3), (96, 9), (256, 4)])
def test_attend_of_many_rows(dim, group, rows, first):
    rng = np.random.default_rng(2)
    q = values(rng, rows, 2 * group, dim) * 2
    k, v = values(rng, 2, ROOM, 2, dim), values(rng, 2, ROOM, 2, dim)
    k[0] = v[0] = np.nan
    pos = list(range(first, first + rows))
    for window in (0, 100):
        got = on("cuda", q, k, v, [1] * rows, pos, window=window)
        close(got, on("definition", q, k, v, [1] * rows, pos, window=window))
        for r in range(0, rows, 13):
            alone = on("cuda", q[r : r + 1], k, v, [1], pos[r : r + 1], window=window)
            assert alone[0].tobytes() == got[r].tobytes(), r


# rope_attend.


class Fresh:
    """Rows of several slots, (slot, first position, rows) each, and what older rounds have left:
    positions before the first; NaN behind."""

    def __init__(self, rng, spans, dim, group, *, norms="qk", pairs=None, n_kv=2, n_slots=8):
        rows = sum(n for _, _, n in spans)
        self.scale = dim**-0.5 / 2
        self.q = (rng.standard_normal((rows, n_kv * group, dim)) * 2).astype(F)
        self.k, self.v = rng.standard_normal((2, rows, n_kv, dim)).astype(F)
        self.gains = [(rng.random(dim) + 0.5).astype(F) if n in norms else None for n in "qk"]
        self.caches = [values(rng, n_slots, ROOM, n_kv, dim) for _ in range(2)]
        old = {slot: first for slot, first, _ in spans}
        for cache, slot in product(self.caches, range(n_slots)):
            cache[slot, old.get(slot, 0) :] = np.nan
        pairs = pairs or dim // 2
        self.freq = (10000.0 ** (-np.arange(pairs) / pairs)).astype(F)
        self.slots = [slot for slot, _, n in spans for _ in range(n)]
        self.pos = [first + i for _, first, n in spans for i in range(n)]

    def run(self, table="cuda", rows=slice(None), caches=None, *, capacity=None, **how):
        """(out, k_cache, v_cache) of some of the rows, as stored; NaN behind them."""
        slots, pos = self.slots[rows], self.pos[rows]
        x = [behind(a[rows], len(pos), capacity or len(pos)) for a in (self.q, self.k, self.v)]
        out, *stored = rope_attend(*x, self.gains, self.freq, caches or self.caches, slots, pos,
                                   "BF16", table, THREADS, split=SPLIT, scale=self.scale, **how)  # fmt: skip
        return out[: len(pos)], *stored

    def parts(self, *, window=0, neox=1):
        """The same by single ops."""
        same = {"rows": row_table(self.slots, self.pos), "count": ints(len(self.pos))}
        turned = []
        for x, gain in zip((self.q, self.k), self.gains, strict=True):
            if gain is not None:
                plain, x = x, np.full_like(x, np.nan)
                run("rms_norm", "cuda", 1, x=plain, gain=gain, count=same["count"], out=x, eps=EPS)
            arg, _ = act_out(x.shape, "BF16")
            run("rope", "cuda", 1, x=x, freq=self.freq, out=arg, neox=neox, **same)
            turned.append(arg)
        stored = [rounded(c) for c in self.caches]
        run("kv_append", "cuda", 1, k=turned[1], v=self.v, k_cache=stored[0], v_cache=stored[1],
            **same)  # fmt: skip
        arg, out = act_out(self.q.shape, "BF16")
        run("attend", "cuda", 1, q=turned[0], k_cache=stored[0], v_cache=stored[1], out=arg,
            scale=self.scale, window=window, split=SPLIT, **same)  # fmt: skip
        return out, stored[0][1], stored[1][1]


def same(a, b) -> None:
    for x, y in zip(a, b, strict=True):
        assert x.tobytes() == y.tobytes()


SPANS = [(b, n - 1, rows) for b, (n, rows) in enumerate(zip(CONTEXTS, (3, 5, 8, 1, 4, 8, 1, 8)))]  # noqa: B905


@pytest.mark.parametrize("norms, neox", [("qk", 1), ("", 0), ("q", 0), ("k", 1)])
@pytest.mark.parametrize("dim, group", HEADS)
def test_rope_attend(dim, group, norms, neox):
    rng = np.random.default_rng(3)
    f = Fresh(rng, SPANS, dim, group, norms=norms, pairs=dim // 8 if norms == "q" else None)
    for window in (0, 77):
        got = f.run(window=window, neox=neox)
        same(got, f.parts(window=window, neox=neox))
        want = f.run("definition", window=window, neox=neox)
        close(got[0], want[0])
        fresh = np.zeros(got[1].shape[:2], bool)
        fresh[f.slots, f.pos] = True
        close_bf16(got[1][fresh], from_bf16(want[1][fresh]))
        assert got[2].tobytes() == want[2].tobytes()
        assert got[1][~fresh].tobytes() == want[1][~fresh].tobytes()


@pytest.mark.parametrize("dim, group", [(16, 9), (64, 3), (96, 7), (128, 4), (256, 1)])
def test_rope_attend_of_one_slot_at_a_time(dim, group):
    """Slots, pass widths, capacities and tiers do not matter, nor do rows that wait their turn."""
    rng = np.random.default_rng(4)
    f = Fresh(rng, SPANS, dim, group)
    whole = f.run()
    for capacity in (40, 41, 64, 100):
        same(f.run(capacity=capacity), whole)
    for bound in (1108, 2048, 32768):
        same(f.run(f"cuda-{bound}"), whole)
    for end, (slot, first, n) in zip(accumulate(n for _, _, n in SPANS), SPANS, strict=True):
        rows = slice(end - n, end)
        for table in ("cuda", "cuda-512", "cuda-2048"):
            if table == "cuda-512" and first + n > 512:
                continue
            alone = f.run(table, rows, capacity=9)
            assert alone[0].tobytes() == whole[0][rows].tobytes(), (slot, table)
            for mine, all_of in zip(alone[1:], whole[1:], strict=True):
                assert mine[slot].tobytes() == all_of[slot].tobytes()
        caches = f.caches
        for r in range(*rows.indices(end)):  # a row at a time
            step = f.run("cuda", slice(r, r + 1), caches)
            assert step[0][0].tobytes() == whole[0][r].tobytes()
            caches = [from_bf16(c) for c in step[1:]]


@pytest.mark.parametrize("rows, first", [(64, 0), (100, 480), (41, 1000)])
@pytest.mark.parametrize("dim, group", [(16, 1), (64, 3), (96, 7), (128, 9), (256, 4)])
def test_wide_rope_attend(dim, group, rows, first):
    """A prompt's rows at once, and the same in passes of 40, 8 and single ones."""
    rng = np.random.default_rng(5)
    f = Fresh(rng, [(1, first, rows)], dim, group, n_slots=2, norms="qk" if group > 1 else "")
    for window in (0, 100):
        wide = f.run(window=window)
        same(wide, f.parts(window=window))
        same(f.run(f"cuda-{max(2048, first + rows)}", window=window), wide)
        close(wide[0], f.run("definition", window=window)[0])
        for width in (40, 8):
            caches = f.caches
            for at in range(0, rows, width):
                step = f.run("cuda", slice(at, at + width), caches, window=window)
                assert step[0].tobytes() == wide[0][at : at + width].tobytes(), (width, at)
                caches = [from_bf16(c) for c in step[1:]]
            same(step[1:], wide[1:])
