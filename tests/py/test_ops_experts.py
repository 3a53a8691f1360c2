"""The experts of a mixture: the work list, products against FP64 and bit for bit those of linear, and
routes that do not know each other."""

from __future__ import annotations

import numpy as np
import pytest
from blocks import IDS, sizes
from expert_tools import (
    expert,
    expert_glu,
    expert_linear,
    expert_sum,
    expert_weights,
    parsed,
    route_list,
    routing,
)
from op_tools import FAST_TYPES, TABLES, act, act_out, ints, run
import dense
from tolerances import close_bf16, close_elements, close_linear

F = np.float32
ACTS = ("BF16", "F32")
KINDS = ("F32", "F16", "BF16", "I8", "Q8_0", "Q4_1", "Q2_K", "Q4_K", "Q6_K", "IQ3_S",
         "IQ2_S", "NVFP4")  # fmt: skip


def rows_of(arg, index):
    """Some rows of an argument of activations."""
    index = np.asarray(index)
    if isinstance(arg, np.ndarray):
        return np.ascontiguousarray(arg[index])
    bits = np.ascontiguousarray(arg[1][index])
    return arg[0], bits, bits.shape


def linear(x, w, n, rows, table):
    y = np.full((rows, n), np.nan, F)
    run("linear", table, 1, x=x, count=ints(rows), w0=w, y0=y)
    return y


def columns(kind: str, about: int) -> int:
    """A multiple of the type's block."""
    block = sizes(kind)[0] if kind in IDS else 1
    return max(1, about // block) * block


# The work list.


@pytest.mark.parametrize("table", TABLES)
def test_route_list(table):
    rng = np.random.default_rng(1)
    cases = [routing(rng, p, t, e) for p, t, e in
             ((1, 1, 1), (1, 10, 512), (5, 10, 512), (40, 10, 16), (3, 2, 2), (9, 1, 3))]  # fmt: skip
    cases += [np.zeros((9, 3), np.int32), np.full((5, 2), 2**31 - 1, np.int32)]  # one expert
    for ids in cases:
        entries, n = route_list(ids, table)
        assert parsed(entries, n) == dense.route_list(ids)
        assert (entries[n[0] :] == 0x55).all() or n[0] == 0
        for count in (0, 1, len(ids) // 2):
            assert parsed(*route_list(ids, table, count=count)) == dense.route_list(ids[:count])
        beyond, below = (parsed(*route_list(ids, table, count=c)) for c in (len(ids) + 7, -1))
        assert (beyond, below) == (dense.route_list(ids), [])


def test_route_list_of_strided_ids():
    rng = np.random.default_rng(2)
    wide = rng.integers(0, 9, (6, 8)).astype(np.int32)
    entries, n = np.zeros((18, 32), np.uint8), ints(0)
    run("route_list", ids=wide[:, 2:5], count=ints(6), list=entries, n=n)
    assert parsed(entries, n) == dense.route_list(wide[:, 2:5])


# Against FP64.


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("weight", KINDS)
def test_expert_linear(weight, kind, table):
    rng = np.random.default_rng(3)
    for p, t, e, n, about in ((1, 3, 5, 7, 512), (6, 2, 4, 33, 256), (20, 3, 3, 5, 96)):
        k = columns(weight, about)
        w, values = expert_weights(weight, e, n, k, rng)
        ids = routing(rng, p, t, e)
        x, xv = act(rng.standard_normal((p * t, k)), kind)
        close_linear(expert_linear(x, ids, w, n, table), dense.expert_linear(xv, ids, values))


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("gelu", [0, 1])
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("weight", KINDS)
def test_expert_glu(weight, kind, gelu, table):
    rng = np.random.default_rng(4)
    p, t, e, n, k = 7, 3, 5, 21, columns(weight, 512)
    gate, g = expert_weights(weight, e, n, k, rng)
    up, u = expert_weights("Q8_0", e, n, k - k % 32, rng) if k % 32 == 0 else (gate, g)
    ids = routing(rng, p, t, e)
    x, xv = act(rng.standard_normal((p, k)) / 20, kind)  # gates of order one
    got = expert_glu(x, ids, gate, up, n, gelu, table)
    close = close_bf16 if kind == "BF16" else close_elements
    close(got, dense.expert_glu(xv, ids, g, u, gelu))


@pytest.mark.parametrize("table", TABLES)
def test_expert_sum(table):
    rng = np.random.default_rng(5)
    for p, t, n in ((1, 1, 1), (5, 10, 64), (40, 3, 700)):
        x = rng.standard_normal((p * t, n)).astype(F)
        weight = rng.random((p, t)).astype(F)
        for threads in (1, 3):
            got = expert_sum(x, weight, table, threads)
            close_elements(got, dense.expert_sum(x, weight))
            assert got.tobytes() == expert_sum(x, weight, "definition", 1).tobytes()
        junk = np.full((p * t + t, n), np.nan, F)
        junk[: p * t] = x
        got = expert_sum(junk, np.vstack([weight, weight[:1]]), table, count=p)
        assert got[:p].tobytes() == expert_sum(x, weight, table).tobytes()
        assert np.isnan(got[p]).all()


def test_expert_sum_by_hand():
    x = np.array([[1, 2], [10, 20], [3, 4], [np.inf, -1]], F)
    weight = np.array([[2, 0.5], [1, 0]], F)
    for table in TABLES:
        y = expert_sum(x, weight, table)
        assert y[0].tolist() == [7, 14]
        assert np.isnan(y[1, 0]) and y[1, 1] == 4  # 0 * inf is no number


# A route has the bits of linear with its expert's matrix, and knows no other one.


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("weight", FAST_TYPES)
def test_a_route_is_linear(weight, kind, table):
    rng = np.random.default_rng(6)
    p, t, e, n, k = 30, 2, 4, 9, columns(weight, 512)
    gate, _ = expert_weights(weight, e, n, k, rng)
    up, _ = expert_weights("F16", e, n, k, rng)
    ids = routing(rng, p, t, e)
    x, _ = act(rng.standard_normal((p, k)), kind)
    routes = rows_of(x, np.repeat(np.arange(p), t))
    alone = [linear(rows_of(routes, [i]), expert(gate, ids.flat[i]), n, 1, table)[0]
             for i in range(p * t)]  # fmt: skip
    got = expert_linear(routes, ids, gate, n, table, 3)
    assert got.tobytes() == np.array(alone).tobytes()

    pair = [linear(rows_of(routes, [i]), expert(up, ids.flat[i]), n, 1, table)[0]
            for i in range(p * t)]  # fmt: skip
    for gelu in (0, 1):
        arg, out = act_out((p * t, n), kind)
        run(("silu_mul", "gelu_mul")[gelu], table, 1, gate=np.array(alone), up=np.array(pair),
            count=ints(p * t), out=arg)  # fmt: skip
        assert expert_glu(x, ids, gate, up, n, gelu, table).tobytes() == out.tobytes()


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
def test_a_route_does_not_know_its_neighbours(kind, table):
    rng = np.random.default_rng(7)
    p, t, e, n, k = 100, 3, 6, 11, 512
    gate, _ = expert_weights("Q4_K", e, n, k, rng)
    up, _ = expert_weights("IQ4_NL", e, n, k, rng)
    values = rng.standard_normal((p, k)).astype(F)
    x, _ = act(values, kind)
    ids = routing(rng, p, t, e)
    whole = expert_glu(x, ids, gate, up, n, 0, table).reshape(p, t, n)
    assert whole.tobytes() == expert_glu(x, ids, gate, up, n, 0, "definition", 1).tobytes()
    for rows in (1, 2, 5, 17, 63):
        order = rng.permutation(p)[:rows]
        got = expert_glu(rows_of(x, order), ids[order], gate, up, n, 0, table)
        assert got.tobytes() == whole[order].tobytes(), rows
    same = ids.copy()
    same[1:] = ids[0]  # all of them to the experts of the first: more than a product takes at once
    got = expert_glu(x, same, gate, up, n, 0, table).reshape(p, t, n)
    assert got[0].tobytes() == whole[0].tobytes()
    for count in (0, 1, 4):  # rows that do not live are anything and stay unread
        bits = values.copy()
        bits[count:] = np.inf
        bits[count + 1 :] = -np.inf
        got = expert_glu(act(bits, kind)[0], ids, gate, up, n, 0, table, count=count)
        assert got[: count * t].tobytes() == whole[:count].tobytes()
        rest = got[count * t :]  # as they were
        assert (rest == 0x7FC0).all() if kind == "BF16" else np.isnan(rest).all()


def test_weights_that_are_part_of_a_buffer():
    rng = np.random.default_rng(8)
    w, values = expert_weights("Q4_1", 3, 5, 64, rng)
    room = np.zeros((3, 5 * 40 + 24), np.uint8)
    room[:, : 5 * 40] = w[1].reshape(3, -1)
    spread = np.lib.stride_tricks.as_strided(room, (3, 5, 40), (room.shape[1], 40, 1))
    ids = routing(rng, 4, 2, 3)
    x, xv = act(rng.standard_normal((8, 64)), "BF16")
    for table in TABLES:
        y = expert_linear(x, ids, ("Q4_1", spread, (3, 5, 64)), 5, table)
        close_linear(y, dense.expert_linear(xv, ids, values))


def apart(w, order, gap):
    """(w, at): the same matrices in another order, `gap` bytes between them. Only the first one is
    where the strides of w say, and what they span lies in the same array to its end."""
    kind, array, shape = w if isinstance(w, tuple) else (None, w, w.shape)
    n_experts, width = shape[0], array[0].nbytes
    room = np.full(n_experts * (2 * width + gap), 0x7F, np.uint8)  # NaN as F32
    at = np.zeros(n_experts, np.int64)
    for i, e in enumerate(order):
        at[e] = i * (width + gap)
        room[at[e] : at[e] + width] = np.ascontiguousarray(array[e]).view(np.uint8).ravel()
    at -= at[0]
    first = list(order).index(0) * (width + gap)
    view = np.lib.stride_tricks.as_strided(
        room[first:].view(array.dtype)[:1], array.shape, (width, *array[0].strides)
    )
    return (view if kind is None else (kind, view, shape)), at


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("weight", ["F32", "BF16", "Q8_0", "Q4_K"])
def test_matrices_that_are_apart(weight, kind, table):
    rng = np.random.default_rng(9)
    p, t, e, n, k = 9, 2, 5, 7, columns(weight, 256)
    gate, _ = expert_weights(weight, e, n, k, rng)
    up, _ = expert_weights("F32", e, n, k, rng)
    ids = routing(rng, p, t, e)
    x, _ = act(rng.standard_normal((p, k)) / 20, kind)
    routes = rows_of(x, np.repeat(np.arange(p), t))
    want = expert_linear(routes, ids, gate, n, table)
    both = expert_glu(x, ids, gate, up, n, 0, table)
    for order, gap in (((0, 1, 2, 3, 4), 64), ((0, 4, 2, 1, 3), 8), ((3, 0, 1, 4, 2), 128)):
        w, at = apart(gate, order, gap)
        u, at_up = apart(up, order[::-1], gap)
        assert expert_linear(routes, ids, w, n, table, at=at).tobytes() == want.tobytes()
        for args in ((w, up, (at, None)), (gate, u, (None, at_up)), (w, u, (at, at_up))):
            got = expert_glu(x, ids, *args[:2], n, 0, table, at=args[2])
            assert got.tobytes() == both.tobytes()
