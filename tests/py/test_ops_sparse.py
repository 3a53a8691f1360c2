"""Block-sparse attention, routing, the gate of a shared expert, linear_argmax: against FP64, every
table against the definition, and rows that know nothing but their own."""

from __future__ import annotations

import numpy as np
import pytest

import dense
import sparse
from op_tools import FAST, TABLES, act, act_out, bf16, ints, row_table, run, weights
from tolerances import close_bf16, close_elements, from_bf16, to_bf16

F, I32 = np.float32, np.int32
ACTS = ("BF16", "F32")
RATIOS = (1, 2, 4, 5)
EPS = 1e-6


def stored(values: np.ndarray, kind: str):
    """(argument, its array) of a cache with these values, which the type has; NaN may be among them."""
    values = np.ascontiguousarray(values, F)
    if kind == "F32":
        values = values.copy()
        return values, values
    bits = np.where(np.isnan(values), 0x7FC0, to_bf16(np.nan_to_num(values))).astype(np.uint16)
    return bf16(bits), bits


def widened(array: np.ndarray) -> np.ndarray:
    return from_bf16(array) if array.dtype == np.uint16 else array


def close(kind):
    return close_bf16 if kind == "BF16" else close_elements


def ragged(ratio: int, start: int, c: int):
    """Rows of three slots: a run that begins at `start`, one row, and the cache's last positions."""
    runs = {1: range(start, start + 2 * ratio + 1), 2: range(ratio - 1, ratio), 0: range(c - 3, c)}
    pairs = [(b, p) for b, positions in runs.items() for p in positions]
    return [b for b, _ in pairs], [p for _, p in pairs]


# index_append


def index_append(k, gain, freq, slots, pos, raw, pooled, ratio, table="definition", threads=2,
                 capacity=None):  # fmt: skip
    """Appends to the arguments raw and pooled; k has the live rows, NaN stands behind them."""
    capacity = capacity or len(k)
    padded = np.full((capacity, k.shape[1]), np.nan, F)
    padded[: len(k)] = k
    run("index_append", table, threads, k=padded, gain=gain, freq=freq, count=ints(len(k)),
        rows=row_table(slots, pos, capacity), raw=raw, pooled=pooled, eps=EPS, ratio=ratio)  # fmt: skip


def index_case(rng, kind, ratio, start, d, c=33, b=3):
    """Everything that an append reads; NaN where no row has been yet."""
    slots, pos = ragged(ratio, start, c)
    raw = act(rng.standard_normal((b, c, d)), kind)[1].copy()
    for slot in range(b):
        raw[slot, min(p for s, p in zip(slots, pos, strict=True) if s == slot) :] = np.nan
    k = rng.standard_normal((len(slots), d)).astype(F)
    gain = (1 + rng.standard_normal(d) / 4).astype(F)
    freq = (1.7 ** -np.arange(d // 4)).astype(F)
    pooled = np.full((b, -(-c // ratio), d), 7, F)
    return k, gain, freq, slots, pos, raw, pooled


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("d", [16, 7 * 4, 6])
def test_index_append(d, ratio, kind, table):
    rng = np.random.default_rng(1)
    for start in range(ratio):
        k, gain, freq, slots, pos, raw, pooled = index_case(rng, kind, ratio, start, d)
        raw_arg, raw_out = stored(raw, kind)
        pooled_arg, pooled_out = stored(pooled, kind)
        index_append(k, gain, freq, slots, pos, raw_arg, pooled_arg, ratio, table, 2, len(k) + 3)
        want_raw, keys = sparse.index_append(
            k, gain, EPS, freq, ratio, slots, pos, raw, kind == "BF16"
        )
        assert np.array_equal(widened(raw_out), want_raw, equal_nan=True)
        assert keys
        close(kind)(np.array([pooled_out[at] for at in keys]), np.array([keys[at] for at in keys]))
        for at in keys:  # nothing else has been touched
            pooled_out[at] = stored(np.array([7], F), kind)[1]
        assert (widened(pooled_out) == 7).all()


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("ratio", RATIOS)
def test_a_pooled_key_is_a_mean_normed_and_rotated(ratio, kind, table):
    """Bit for bit, by the ops of these names."""
    rng = np.random.default_rng(2)
    k, gain, freq, slots, pos, raw, pooled = index_case(rng, kind, ratio, ratio - 1, 24)
    raw_arg, raw_out = stored(raw, kind)
    pooled_arg, pooled_out = stored(pooled, kind)
    index_append(k, gain, freq, slots, pos, raw_arg, pooled_arg, ratio, table)
    for b, p in zip(slots, pos, strict=True):
        if (p + 1) % ratio:
            continue
        mean = np.zeros(24, F)
        for i in range(p + 1 - ratio, p + 1):
            mean += widened(raw_out)[b, i]
        mean = act(mean / F(ratio), kind)[1].reshape(1, 24)
        normed = np.zeros((1, 24), F)
        run("rms_norm", table, x=mean, gain=gain, count=ints(1), out=normed, eps=EPS)
        arg, out = act_out((1, 1, 24), kind)
        run("rope", table, x=normed.reshape(1, 1, 24), freq=freq, rows=row_table([0], [p + 1 - ratio]),
            count=ints(1), out=arg, neox=1)  # fmt: skip
        assert pooled_out[b, p // ratio].tobytes() == out.tobytes()


D = 1100  # which is worth several threads


@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("ratio", RATIOS)
def test_index_append_in_any_portions(ratio, kind):
    rng = np.random.default_rng(3)
    k = rng.standard_normal((17, D)).astype(F)
    gain, freq = np.ones(D, F), np.array([1, 0.3], F)
    results = []
    for table in TABLES:
        for portions, slot, c, threads in (([17], 1, 17, 1), ([17], 0, 40, 4), ([1] * 17, 2, 17, 2),
                                           ([3, 8, 1, 5], 0, 19, 3)):  # fmt: skip
            raw_arg, raw = stored(np.full((3, c, D), np.nan), kind)
            pooled_arg, pooled = stored(np.full((3, -(-c // ratio), D), np.nan), kind)
            at = 0
            for n in portions:
                rows = list(range(at, at + n))
                index_append(k[rows], gain, freq, [slot] * n, rows, raw_arg, pooled_arg, ratio,
                             table, threads)  # fmt: skip
                at += n
            blocks = 17 // ratio
            results.append(raw[slot, :17].tobytes() + pooled[slot, :blocks].tobytes())
            assert np.isnan(widened(np.delete(pooled, slot, axis=0))).all()
            assert np.isnan(widened(pooled[slot, blocks:])).all()
    assert len(set(results)) == 1


# block_topk


def block_topk(q, pooled, slots, pos, kind, ratio, k, table="definition", threads=2, scale=0.3,
               capacity=None):  # fmt: skip
    """q [P, H, D] and pooled as FP32 arrays of representable values."""
    capacity = capacity or len(q)
    padded = np.full((capacity, *q.shape[1:]), np.nan, F)
    padded[: len(q)] = q
    out = np.full((capacity, k), -7, np.int32)
    run("block_topk", table, threads, q=stored(padded, kind)[0], pooled=stored(pooled, kind)[0],
        rows=row_table(slots, pos, capacity), count=ints(len(q)), out=out, scale=scale, ratio=ratio)  # fmt: skip
    return out[: len(q)]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("h, d", [(4, 32), (1, 128), (3, 7), (2, 20)])
def test_block_topk(h, d, ratio, kind, table):
    rng = np.random.default_rng(4)
    n = 60
    for p, k in ((7, 1), (7, 6), (1, 12), (5, 90)):  # one of these K is above N
        q = act(rng.standard_normal((p, h, d)), kind)[1]
        pooled = act(rng.standard_normal((3, n, d)), kind)[1].copy()
        slots = np.sort(rng.integers(0, 3, p)).tolist()
        pos = rng.integers(0, n * ratio, p).tolist()
        pos[0] = max(0, ratio - 2)  # no block at all, but where each position is one
        pos[-1] = n * ratio - 1  # all there are
        want = sparse.block_topk(q, pooled, slots, pos, 0.3, ratio, k)
        for b in range(3):
            seen = [q // ratio for s, q in zip(slots, [x + 1 for x in pos], strict=True) if s == b]
            pooled[b, max(seen, default=0) :] = np.nan
        for threads in (1, 2, 3):
            got = block_topk(q, pooled, slots, pos, kind, ratio, k, table, threads, 0.3, p + 2)
            assert got.tolist() == want.tolist()


def choose(scores, k, table, scale=1.0):
    """Blocks chosen by one head, whose products are the given numbers."""
    pooled = np.zeros((1, len(scores), 8), F)
    pooled[0, :, 3] = scores
    q = np.zeros((1, 1, 8), F)
    q[..., 3] = 1
    return block_topk(q, pooled, [0], [len(scores) - 1], "F32", 1, k, table, 2, scale)[0].tolist()


@pytest.mark.parametrize("table", TABLES)
def test_ties_and_nan(table):
    nan = float("nan")
    assert choose([1, 3, 2, 3, 0, 5], 3, table) == [1, 3, 5]
    assert choose([1, 3, 2, 3, 0, 5], 2, table) == [1, 5]  # the lower of two equal ones
    assert choose([2, 2, 2, 2, 2, 2], 4, table) == [0, 1, 2, 3]
    assert choose([-3, -1, -2, 4, -5], 3, table) == [0, 1, 3]  # below zero is zero: a tie
    assert choose([-3, -1, -2, -4, -5], 2, table) == [0, 1]
    assert choose([nan, nan, -1, 1, nan], 2, table) == [2, 3]
    assert choose([nan, nan, -1, 1, nan], 3, table) == [0, 2, 3]
    assert choose([nan, nan, nan], 2, table) == [0, 1]
    assert choose([1, 2, np.inf, -np.inf], 1, table) == [2]
    assert choose([1, 2, 3], 7, table) == [0, 1, 2, -1, -1, -1, -1]
    assert choose([5, 9, 7, 9], 2, table, -1.0) == [0, 2]  # a scale may turn them round
    assert choose([5, 9, 7, 9], 2, table, 0.0) == [0, 1]
    rng = np.random.default_rng(5)
    for n in (2, 3, 17, 64, 257):
        for k in {1, 2, n // 2, n - 1} - {0}:
            scores = rng.integers(-2, 4, n).astype(F)
            scores[rng.random(n) < 0.1] = nan
            kept = np.where(scores < 0, 0, scores).tolist()
            assert choose(scores, k, table) == sorted(sparse.ranked(kept)[:k]), (n, k)


@pytest.mark.parametrize("kind", ACTS)
def test_many_blocks_on_many_threads(kind):
    """Enough to be split, among few rows as among many; a third of the scores tie at zero."""
    rng = np.random.default_rng(13)
    q = act(rng.standard_normal((5, 1, 16)), kind)[1]
    pooled = act(rng.standard_normal((2, 6000, 16)), kind)[1].copy()
    pooled[rng.random(pooled.shape[:2]) < 0.3] = 0
    slots, pos = [0, 0, 0, 1, 1], [8000, 8001, 11999, 5, 11998]
    for k in (512, 4000):
        want = sparse.block_topk(q, pooled, slots, pos, 0.3, 2, k)
        assert (want[2] >= 0).all()
        for table in TABLES:
            for threads in (1, 2, 4, 7):
                got = block_topk(q, pooled, slots, pos, kind, 2, k, table, threads)
                assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("kind", ACTS)
def test_a_nan_is_that_of_any_head(kind):
    q = np.ones((1, 2, 8), F)
    q[0, 1] = 0
    pooled = np.ones((1, 3, 8), F)
    pooled[0, 0] = np.inf  # times the zeros of the second head
    for table in TABLES:
        assert block_topk(q, pooled, [0], [2], kind, 1, 2, table).tolist() == [[1, 2]]


# attend_blocks


def attend_blocks(q, gate, k, v, blocks, slots, pos, kind, table="definition", threads=2, *, ratio,
                  split=16, scale=0.125, capacity=None):  # fmt: skip
    capacity = capacity or len(q)

    def rows(x, fill):
        out = np.full((capacity, *x.shape[1:]), fill, x.dtype)
        out[: len(x)] = x
        return out

    if gate is not None:  # [q | gate] of each head, in one row
        d = gate.shape[2]
        both = np.full((capacity, gate.shape[1], 2 * d), np.nan, F)
        both[: len(gate), :, d:] = gate
        gate = both[:, :, d:]
    arg, out = act_out((capacity, *q.shape[1:]), kind)
    run("attend_blocks", table, threads, q=stored(rows(q, np.nan), kind)[0], gate=gate,
        k_cache=stored(k, kind)[0], v_cache=stored(v, kind)[0],
        blocks=rows(np.asarray(blocks, np.int32), 2**30), rows=row_table(slots, pos, capacity),
        count=ints(len(q)), out=arg, scale=scale, ratio=ratio, split=split)  # fmt: skip
    return out[: len(q)]


def attend_case(rng, kind, ratio, p=6, h=6, hkv=2, d=32, b=3, c=53, k=4):
    q = act(rng.standard_normal((p, h, d)) * 2, kind)[1]
    gate = (rng.standard_normal((p, h, d)) * 3).astype(F)
    caches = [act(rng.standard_normal((b, c, hkv, d)), kind)[1].copy() for _ in range(2)]
    slots = np.sort(rng.integers(0, b, p)).tolist()
    pos = rng.integers(0, c, p).tolist()
    pos[0], pos[-1] = max(0, ratio - 2), c - 1
    blocks = np.full((p, k), -1, np.int32)
    for r, at in enumerate(pos):
        n = (at + 1) // ratio
        chosen = np.sort(rng.permutation(n)[:k])
        blocks[r, : len(chosen)] = chosen
    return q, gate, *caches, blocks, slots, pos


def hide(caches, blocks, slots, pos, ratio):
    """NaN where no row looks."""
    for cache in caches:
        hidden = np.ones(cache.shape[:2], bool)
        for r, (b, p) in enumerate(zip(slots, pos, strict=True)):
            hidden[b, sparse.seen(blocks[r], p, ratio)] = False
        cache[hidden] = np.nan


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize(
    "h, hkv, d, split", [(6, 2, 32, 16), (2, 2, 7, 1), (4, 1, 80, 5), (1, 1, 20, 64)]
)
@pytest.mark.parametrize("gated", [False, True])
def test_attend_blocks(gated, h, hkv, d, split, ratio, kind, table):
    rng = np.random.default_rng(6)
    q, gate, k, v, blocks, slots, pos = attend_case(rng, kind, ratio, h=h, hkv=hkv, d=d)
    gate = gate if gated else None
    hide((k, v), blocks, slots, pos, ratio)
    got = attend_blocks(q, gate, k, v, blocks, slots, pos, kind, table, ratio=ratio, split=split,
                        capacity=8)  # fmt: skip
    want = sparse.attend_blocks(q, gate, np.nan_to_num(k), np.nan_to_num(v), blocks, slots, pos, 0.125,
                                ratio, split, kind == "BF16")  # fmt: skip
    close(kind)(got, want)


@pytest.mark.parametrize("kind", ACTS)
def test_tables_of_attend_blocks(kind):
    rng = np.random.default_rng(7)
    for i in range(40):
        ratio, hkv = int(rng.integers(1, 6)), int(rng.integers(1, 4))
        case = attend_case(rng, kind, ratio, p=int(rng.integers(1, 9)), hkv=hkv, k=int(rng.integers(1, 20)),
                           h=hkv * int(rng.integers(1, 4)), d=int(rng.integers(1, 18)) * (8 if i % 2 else 3),
                           c=int(rng.integers(8, 90)))  # fmt: skip
        case = (case[0], None, *case[2:]) if i % 3 == 0 else case
        split = int(rng.integers(1, 50))
        want = attend_blocks(*case, kind, ratio=ratio, split=split)
        for table in FAST:
            for threads in (1, 2, 3):
                got = attend_blocks(*case, kind, table, threads, ratio=ratio, split=split)
                assert got.tobytes() == want.tobytes(), (ratio, split, table, threads)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("ratio", RATIOS)
def test_all_blocks_are_attend(ratio, kind, table):
    rng = np.random.default_rng(8)
    for d, split in ((32, 16), (64, 256), (20, 3)):
        q, _, k, v, _, slots, _ = attend_case(rng, kind, ratio, p=9, d=d)
        pos = [*range(8), 52]
        for width in (-(-53 // ratio), 70):
            blocks = np.full((9, width), -1, np.int32)
            for r, p in enumerate(pos):
                blocks[r, : (p + 1) // ratio] = range((p + 1) // ratio)
            got = attend_blocks(
                q, None, k, v, blocks, slots, pos, kind, table, ratio=ratio, split=split
            )
            arg, want = act_out(q.shape, kind)
            run("attend", table, 1, q=stored(q, kind)[0], k_cache=stored(k, kind)[0],
                v_cache=stored(v, kind)[0], rows=row_table(slots, pos), count=ints(9), out=arg,
                scale=0.125, window=0, split=split)  # fmt: skip
            assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("table", TABLES)
def test_attend_blocks_by_hand(table):
    q = np.zeros((1, 1, 2), F)  # equal scores: the mean of V
    k = np.ones((1, 8, 1, 2), F)
    v = np.arange(16, dtype=F).reshape(1, 8, 1, 2)

    def attended(blocks, p, gate=None, ratio=2):
        if gate is not None:
            gate = np.full((1, 1, 2), gate, F)
        return attend_blocks(q, gate, k, v, [blocks], [0], [p], "F32", table, ratio=ratio).tolist()

    assert attended([0, 2], 5) == [[[5, 6]]]  # positions 0, 1, 4, 5
    assert attended([1, -1], 4) == [[[6, 7]]]  # 2, 3 and the tail, 4
    assert attended([-1, -1], 0) == [[[0, 1]]]
    assert attended([-1, -1], 2, ratio=4) == [[[2, 3]]]
    assert attended([3, -1], 7, 0) == [[[6.5, 7]]]  # half of 13 and 14
    assert attended([3, -1], 7, -200) == [[[0, 0]]]
    assert attended([3, -1], 7, 200) == [[[13, 14]]]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
def test_a_row_knows_only_its_own_blocks(kind, table):
    rng = np.random.default_rng(9)
    q, gate, k, v, blocks, slots, pos = attend_case(rng, kind, 4, p=8)
    want = attend_blocks(q, gate, k, v, blocks, slots, pos, kind, table, ratio=4)
    for r in range(8):
        moved = (slots[r] + 1) % 3  # the same history in another slot of a longer cache
        own = sparse.seen(blocks[r], pos[r], 4)
        k2, v2 = (np.full((3, 60, *k.shape[2:]), np.nan, F) for _ in range(2))
        k2[moved, own], v2[moved, own] = k[slots[r], own], v[slots[r], own]
        wider = np.append(blocks[r], [-1, -1])[None]
        alone = attend_blocks(q[r : r + 1], gate[r : r + 1], k2, v2, wider, [moved], [pos[r]], kind,
                              table, 3, ratio=4, capacity=2)  # fmt: skip
        assert alone[0].tobytes() == want[r].tobytes()


# route_topk


def route_topk(logits, t, normed, table="definition", threads=2, count=None):
    ids = np.full((len(logits), t), -7, np.int32)
    weight = np.full((len(logits), t), np.nan, F)
    count = ints(len(logits) if count is None else count)
    run(
        "route_topk",
        table,
        threads,
        logits=logits,
        count=count,
        ids=ids,
        weight=weight,
        normed=normed,
    )
    return ids, weight


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("normed", [0, 1])
def test_route_topk(normed, table):
    rng = np.random.default_rng(10)
    for p, e, t in ((1, 1, 1), (5, 8, 2), (40, 512, 10), (3, 17, 17), (7, 9, 1), (2, 13, 12)):
        logits = (rng.standard_normal((p, e)) * 3).astype(F)
        ids, weight = route_topk(logits, t, normed, table)
        want_ids, want = sparse.route_topk(logits, t, normed)
        assert ids.tolist() == want_ids.tolist()
        close_elements(weight, want)
        assert weight.tobytes() == route_topk(logits, t, normed, "definition", 1)[1].tobytes()
        wide = np.full((p + 2, e + 3), np.nan, F)  # rows that are apart, and some that do not live
        wide[:p, 1 : e + 1] = logits
        more = route_topk(wide[:, 1 : e + 1], t, normed, table, 3, p)
        assert more[0][:p].tobytes() == ids.tobytes()
        assert more[1][:p].tobytes() == weight.tobytes()
        assert route_topk(logits[-1:], t, normed, table)[1].tobytes() == weight[-1:].tobytes()


@pytest.mark.parametrize("table", TABLES)
def test_routes_of_equal_and_missing_logits(table):
    nan = float("nan")
    cases = [([1, 3, 3, 2], [1, 2, 3]), ([0, -0.0, 0, -1], [0, 1, 2]), ([nan, 1, nan, 2], [3, 1, 0]),
             ([nan] * 4, [0, 1, 2]), ([-np.inf, nan, 5, -np.inf], [2, 0, 3])]  # fmt: skip
    for logits, want in cases:
        assert route_topk(np.array([logits], F), 3, 1, table)[0].tolist() == [want]
    for normed, total in ((1, 2), (0, 4)):
        ids, weight = route_topk(np.full((1, 4), 0.7, F), 2, normed, table)
        assert (ids.tolist(), weight.tolist()) == ([[0, 1]], [[1 / total] * 2])
    _, weight = route_topk(np.array([[nan, 1, nan, 1]], F), 2, 1, table)
    assert weight.tolist() == [[0.5, 0.5]]  # a NaN that is not chosen has no part
    _, weight = route_topk(np.array([[nan, 1, nan, 1]], F), 2, 0, table)
    assert np.isnan(weight).all()  # but in the sum over all of them
    far = route_topk(np.array([[0, -1000, -2000]], F), 3, 1, table)
    assert far[1].tolist() == [[1, 0, 0]]


# route_force


def route_force(table, rows, stride, kind="definition", count=None):
    ids = np.full((len(rows), table.shape[1]), -7, I32)
    run("route_force", kind, 1, table=table, rows=rows, count=ints(len(rows) if count is None else count),
        ids=ids, stride=stride)  # fmt: skip
    return ids


def check_route_force(kind):
    """Rows in any order and pass: what one goes to is a function of its slot and its position."""
    rng = np.random.default_rng(12)
    for n, t, stride in ((1, 1, 0), (7, 3, 3), (4096, 10, 1565), (64, 64, 1 << 20), (33, 65, 5)):
        table = rng.integers(0, 512, (n, t)).astype(I32)
        slots = rng.integers(0, 64, 40).tolist() + [63, 0]
        at = rng.integers(0, 300, 40).tolist() + [(1 << 24) - 1, 0]
        rows = row_table(slots, at)
        want = sparse.route_force(table, rows, stride)
        assert route_force(table, rows, stride, kind).tolist() == want.tolist()
        for i in (0, 17, 41):
            alone = route_force(table, rows[i : i + 1], stride, kind)
            assert alone.tolist() == want[i : i + 1].tolist()
        some = route_force(table, row_table(slots, at, 45), stride, kind, 5)  # live rows only
        assert some[:5].tolist() == want[:5].tolist() and (some[5:] == -7).all()


@pytest.mark.parametrize("table", TABLES)
def test_route_force(table):
    check_route_force(table)


# gate_add


@pytest.mark.parametrize("table", TABLES)
def test_gate_add(table):
    rng = np.random.default_rng(11)
    for p, d in ((1, 1), (5, 64), (40, 700)):
        x, y = (rng.standard_normal((p, d)).astype(F) for _ in range(2))
        gate = (rng.standard_normal((p, 1)) * 3).astype(F)
        want = sparse.gate_add(x, gate, y)
        for threads in (1, 3):
            out = y.copy()
            run("gate_add", table, threads, x=x, gate=gate, count=ints(p), y=out)
            close_elements(out, want)
        padded = [np.full((p + 2, a.shape[1]), np.nan, F) for a in (x, gate, y)]
        for a, b in zip(padded, (x, gate, y), strict=True):
            a[:p] = b
        run("gate_add", table, 2, x=padded[0], gate=padded[1], count=ints(p), y=padded[2])
        assert padded[2][:p].tobytes() == out.tobytes()


def test_gate_add_by_hand():
    x, gate = np.array([[4, -2], [8, 1], [1, 1]], F), np.array([[0], [200], [-200]], F)
    for table in TABLES:
        y = np.array([[1, 1], [1, 1], [3, 4]], F)
        run("gate_add", table, x=x, gate=gate, count=ints(3), y=y)
        assert y.tolist() == [[3, 0], [9, 2], [3, 4]]


# linear_argmax


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("weight", ["F32", "BF16", "Q8_0", "Q4_K", "Q6_K"])
def test_linear_argmax_is_both(weight, kind, table):
    rng = np.random.default_rng(12)
    v, k = 77, 256
    w, values = weights(weight, v, k, rng)
    bias = rng.standard_normal(v).astype(F)
    scale = (1 + rng.random((-(-v // 8), 1))).astype(F)
    for p in (1, 16, 17, 40):
        x, represented = act(rng.standard_normal((p, k)), kind)
        for parts in ({}, {"bias": bias}, {"scale": scale, "scale_n": 8, "scale_k": k}):
            named = {(n if n in ("x",) else f"{n}0"): a for n, a in parts.items()}
            y = np.full((p, v), np.nan, F)
            run("linear", table, 2, x=x, count=ints(p), w0=w, y0=y, **named)
            want = np.full(p, -7, np.int32)
            run("argmax", table, 2, x=y, count=ints(p), id=want)
            for threads in (1, 3):
                got = np.full(p, -7, np.int32)
                run("linear_argmax", table, threads, x=x, count=ints(p), w=w, id=got, **parts)
                assert got.tolist() == want.tolist()
            if not parts:
                assert want.tolist() == dense.argmax(dense.linear(represented, values)).tolist()


@pytest.mark.parametrize("table", TABLES)
def test_linear_argmax_of_live_rows_only(table):
    w = np.eye(5, dtype=F)
    x = np.full((20, 5), np.nan, F)
    x[:18] = np.eye(5, dtype=F)[np.arange(18) % 5]
    got = np.full(20, -7, np.int32)
    run("linear_argmax", table, 2, x=x, count=ints(18), w=w, id=got)
    assert got.tolist() == [*(np.arange(18) % 5), -7, -7]
    run("linear_argmax", table, 2, x=x[:2] * 0, count=ints(2), w=w, id=got[:2])
    assert got[:2].tolist() == [0, 0]  # a tie
