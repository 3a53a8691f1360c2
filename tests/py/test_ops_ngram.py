"""Hashed embeddings: known rows, chunks of a sequence, lookup in pieces, the gate against FP64."""

from __future__ import annotations

import numpy as np
import pytest

import streams as oracle
from op_tools import I32, TABLES, act_out, ints, row_table, run, weights
from tolerances import close_bf16, close_elements, from_bf16, to_bf16

F = np.float32
ACTS = ("BF16", "F32")
EPS = F(1e-6)
MULT = (23703573157769, 20109073645365, 8052911324071)
SIZE = (20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077, 20000081,
        20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171)  # fmt: skip
EOS = 248044


def starts(size):
    return np.concatenate([[0], np.cumsum(size)[:-1]])


def ngram_rows(ids, tokens, rows, mult, size, eos, table="definition", threads=1, count=None):
    ids = np.asarray(ids, I32)
    out = np.full((len(ids), len(size)), -5, I32)
    wide = [np.asarray(v, np.int64) for v in (mult, size, starts(size))]
    run("ngram_rows", table, threads, ids=ids, tokens=tokens, rows=rows,
        count=ints(len(ids) if count is None else count), mult=wide[0], size=wide[1],
        offset=wide[2], out=out, eos=eos)  # fmt: skip
    return out


def whole(ids, mult, size, eos, table="definition"):
    """A sequence in one pass; the window holds nothing that may be read."""
    rows = row_table([0] * len(ids), range(len(ids)))
    return ngram_rows(ids, np.full((1, len(ids) + 1), 1 << 30, I32), rows, mult, size, eos, table)


@pytest.mark.parametrize("table", TABLES)
def test_known_rows(table):
    got = whole([151644, 8948, 198, EOS, 9707], MULT, SIZE, EOS, table)
    assert got[:, [0, 1, 2, -3, -2, -1]].tolist() == [
        [9213577, 25503567, 59963735, 265606139, 292960741, 312140635],
        [15448826, 25783436, 53146314, 279743179, 288558346, 313738540],
        [7901453, 27134639, 56882985, 271830909, 295037079, 311469544],
        [16849591, 37537304, 42290399, 278205536, 289490084, 307672392],
        [16410909, 39682429, 55103279, 277007269, 290665954, 300984276]]  # fmt: skip
    mult = (4295158889766209, 8433018892997163, 1270917961435699)
    got = whole([5, 6, 7, 9, 10, 11], mult, (1009, 1013, 1019, 1021), 7, table)
    assert got.tolist() == [[335, 1391, 2390, 3286], [843, 1146, 2674, 3556],
                            [336, 1427, 3022, 3428], [450, 1157, 2257, 3444],
                            [751, 1891, 2674, 3217], [372, 1114, 2476, 3976]]  # fmt: skip


def test_products_of_63_bits():
    most = 2**31 - 1
    mult = ((2**63 - 1) // most, (2**63 - 1) // most, 1)
    size = (most - 100_000, 50_001, 49_998, 1)
    ids = [most, most - 1, 0, 1, most]
    got = whole(ids, mult, size, 0)
    assert got.tolist() == oracle.ngram_rows(ids, mult, size, starts(size), 0)
    assert got.min() >= 0


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_chunks_of_sequences(n, table):
    """Any cut of sequences into passes gives the rows of the whole."""
    rng = np.random.default_rng(n)
    mult = rng.integers(1, 2**59, n) | 1
    size = rng.integers(1, 5000, 2 * (n - 1))
    eos, length, slots = 3, 40, 3
    seqs = rng.integers(0, 9, (slots, length)).astype(I32)  # eos is frequent
    want = [oracle.ngram_rows(s, mult, size, starts(size), eos) for s in seqs]
    done = [0] * slots
    while min(done) < length:
        tokens = np.full((slots, length + 1), eos, I32)  # nothing from the pass on is read
        at_slot, at_pos = [], []
        for b in rng.permutation(slots):
            take = min(length - done[b], int(rng.integers(0, 6)))
            tokens[b, : done[b]] = seqs[b, : done[b]]
            tokens[b, done[b] :] = eos if rng.integers(2) else 77
            at_slot += [b] * take
            at_pos += range(done[b], done[b] + take)
            done[b] += take
        if not at_slot:
            continue
        used = len(at_slot)
        rows = row_table(at_slot, at_pos, used + 2)
        ids = np.full(used + 2, 77, I32)
        ids[:used] = seqs[at_slot, at_pos]
        got = ngram_rows(ids, tokens, rows, mult, size, eos, table, 3, used)
        assert got[:used].tolist() == [want[b][p] for b, p in zip(at_slot, at_pos, strict=True)]
        assert (got[used:] == -5).all()


def gather_heads(table_arg, ids, dim, kind, scale=1.0, table="definition", threads=1, count=None,
                 **pieces):  # fmt: skip
    ids = np.asarray(ids, I32)
    arg, out = act_out((len(ids), ids.shape[1] * dim), kind)
    run("gather_heads", table, threads, table=table_arg, ids=ids,
        count=ints(len(ids) if count is None else count), out=arg, scale=scale,
        **({"piece_rows": 0} | pieces))  # fmt: skip
    return out


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize(
    "weight", ["F32", "F16", "BF16", "Q8_0", "Q4_K", "Q6_K", "IQ4_NL", "F8_E4M3"]
)
def test_gather_heads(weight, kind, table):
    rng = np.random.default_rng(7)
    dim = 256 if weight.endswith("_K") else 160
    arg, values = weights(weight, 11, dim, rng)
    ids = rng.integers(0, 11, (6, 5))
    for scale in (1.0, 2.5):
        for threads in (1, 3):
            got = gather_heads(arg, ids, dim, kind, scale, table, threads, 5)
            want = values[ids[:5]].reshape(5, -1) * F(scale)
            if kind == "BF16":
                assert (got[:5] == to_bf16(want)).all() and (got[5] == 0x7FC0).all()
            else:
                assert (got[:5] == want).all() and np.isnan(got[5]).all()


@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("weight", ["BF16", "Q8_0"])
def test_gather_heads_from_pieces(weight, kind):
    """Pieces lie anywhere, ahead of the first one too; the last one is short."""
    rng = np.random.default_rng(8)
    n, dim, per = 23, 64, 5
    arg, values = weights(weight, n, dim, rng)
    data = np.ascontiguousarray(arg[1]).reshape(n, -1).view(np.uint8)
    row = data.shape[1]
    space, at, begin = np.full(40 * row + 64, 0xAA, np.uint8), {}, 0
    for i in (3, 1, 0, 4, 2):
        part = data[i * per : i * per + per]
        space[begin : begin + part.size] = part.ravel()
        at[i] = begin
        begin += part.size + int(rng.integers(0, 8)) * 2
    piece = np.array([at[i] - at[0] for i in range(5)], np.int64)
    assert piece.min() < 0 < piece.max()
    claimed = np.lib.stride_tricks.as_strided(space[at[0] :], (n, row), (row, 1))
    table_arg = (weight, claimed, (n, dim))
    ids = rng.permutation(n)[:20].reshape(4, 5)
    for threads in (1, 2):
        got = gather_heads(table_arg, ids, dim, kind, 1.0, "definition", threads, piece=piece,
                           piece_rows=per)  # fmt: skip
        assert got.tobytes() == gather_heads(arg, ids, dim, kind).tobytes()
        want = values[ids].reshape(4, -1)
        assert ((from_bf16(got) if kind == "BF16" else got) == (
            from_bf16(to_bf16(want)) if kind == "BF16" else want)).all()  # fmt: skip


def ple_gate(key, value, s, gains, table="definition", threads=2, count=None):
    y, normed = (np.full(key.shape, np.nan, F) for _ in range(2))
    run("ple_gate", table, threads, key=key, value=value, s=s, key_gain=gains[0],
        query_gain=gains[1], conv_gain=gains[2], count=ints(len(s) if count is None else count),
        y=y, normed=normed, eps=EPS)  # fmt: skip
    return y, normed


def gate_case(rng, rows, n_streams, dim):
    def normal(*shape):
        return rng.standard_normal(shape).astype(F)

    gains = [1 + normal(n_streams * dim) / 4 for _ in range(3)]
    return normal(rows, n_streams * dim) * 3, normal(rows, dim), normal(rows, n_streams, dim), gains


@pytest.mark.parametrize("table", TABLES)
def test_ple_gate(table):
    rng = np.random.default_rng(9)
    for rows, n_streams, dim in ((1, 1, 1), (3, 2, 7), (4, 4, 64), (2, 3, 333)):
        key, value, s, gains = gate_case(rng, rows, n_streams, dim)
        got = ple_gate(key, value, s, gains, table)
        want = oracle.ple_gate(key, value, s, *gains, EPS)
        close_elements(got[0], want[0])
        close_elements(got[1], want[1])
        for threads in (1, 3):
            again = ple_gate(key, value, s, gains, "definition", threads)
            assert [x.tobytes() for x in again] == [x.tobytes() for x in got]


def test_ple_gate_by_hand():
    one = np.ones(4, F)
    value, s = np.array([[2, -2]], F), np.array([[[1, 1], [1, -1]]], F)
    y, normed = ple_gate(np.array([[1, 1, 1, 1]], F), value, s, [one, one, 2 * one])
    root = 2**0.25  # t is sqrt(2) for the first stream, 0 for the second, whose gate is 1/2
    assert np.allclose(y, [[2 / (1 + np.exp(-root)), -2 / (1 + np.exp(-root)), 1, -1]], rtol=1e-5)
    assert np.allclose(normed, [[2, -2, 2, -2]], rtol=1e-5)
    y, _ = ple_gate(np.array([[-1, -1, 0, 0]], F), value, s, [one, one, one])
    assert np.allclose(y, [[2 / (1 + np.exp(root)), -2 / (1 + np.exp(root)), 1, -1]], rtol=1e-5)
    small = one * F(1e-5)  # of t the root is that of 1e-6 at least
    y, _ = ple_gate(np.array([[1, 1, -1, 1]], F), value, s, [small, one, one])
    low = 1 / (1 + np.exp(-0.00376))
    assert np.allclose(y[0, :2], [2 * low, -2 * low], rtol=1e-5)
    y, _ = ple_gate(np.array([[1, 1, -1, 1]], F), value, s, [small / 100, one, one])
    low = 1 / (1 + np.exp(np.array([-0.001, 0.001])))
    assert np.allclose(y, [[2 * low[0], -2 * low[0], 2 * low[1], -2 * low[1]]], rtol=1e-6)


@pytest.mark.parametrize("table", TABLES)
def test_gate_rows_do_not_know_each_other(table):
    rng = np.random.default_rng(10)
    key, value, s, gains = gate_case(rng, 9, 4, 96)
    first = ple_gate(key, value, s, gains, table)
    at = [7, 2]
    part = ple_gate(key[at], value[at], s[at], gains, table, 1)
    assert all((a == b[at]).all() for a, b in zip(part, first, strict=True))
    key[3:], value[3:], s[3:] = np.nan, np.inf, -np.inf
    room = np.full((9, 5, 96), np.nan, F)  # rows that are apart
    room[:, :4] = s
    for streams in (s, room[:, :4]):
        part = ple_gate(key, value, streams, gains, table, 2, 3)
        assert all((a[:3] == b[:3]).all() for a, b in zip(part, first, strict=True))
        assert all(np.isnan(a[3:]).all() for a in part)


def test_bf16_is_rounded_last():
    """scale times the value, then the rounding."""
    table = np.array([[1 + 2.0**-8, 3.0]], F)
    got = gather_heads(table, [[0, 0]], 2, "BF16", 1 - 2.0**-8)
    want = to_bf16(table[0] * F(1 - 2.0**-8))
    assert got.tolist() == [[*want.tolist(), *want.tolist()]]
    close_bf16(got, np.tile(table * (1 - 2.0**-8), 2))
