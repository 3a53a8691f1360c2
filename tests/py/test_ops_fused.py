"""The fused ops: against FP64 from their contracts, bit for bit the composition of their parts, and rows
that do not know their neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from blocks import IDS, sizes
from op_tools import TABLES, act, act_out, bf16, ints, row_table, run, weights
import dense
from tolerances import close_bf16, close_elements, close_linear, from_bf16, to_bf16

F = np.float32
ACTS = ("BF16", "F32")
ACT_ID = {"BF16": 30, "F32": 0}
KINDS = ("F32", "F16", "BF16", "I8", "Q8_0", "Q4_1", "Q2_K", "Q4_K", "Q6_K", "IQ2_S", "NVFP4")
EPS = 1e-5


def close(kind, got, want):
    (close_bf16 if kind == "BF16" else close_elements)(got, want)


def segments(kinds, n, k, rng, *, bias=True, scales=False, index=True):
    """Fields of the weights, and their values; a grid of scales where asked for."""
    fields, values, biases = {}, [], []
    for s, kind in enumerate(kinds):
        at = s if index else ""
        fields[f"w{at}"], w = weights(kind, n[s], k, rng)
        b = rng.standard_normal(n[s]).astype(F) if bias else None
        fields[f"bias{at}"] = b
        if scales:
            grid = (rng.random((-(-n[s] // 3), -(-k // 256))) + 0.5).astype(F)
            fields |= {f"scale{at}": grid, f"scale_n{at}": 3, f"scale_k{at}": 256}
            w = w * np.repeat(np.repeat(grid, 3, 0)[: n[s]], 256, 1)[:, :k]
        values.append(w)
        biases.append(b)
    return fields, values, biases


def stream(rng, p, k):
    """Rows of very different magnitude, as the residual stream has them, and a gain."""
    x = rng.standard_normal((p, k)) * 10.0 ** rng.integers(-3, 4, (p, 1))
    return x.astype(F), rng.standard_normal(k).astype(F)


def call(name, table, threads, out, p, count=None, **fields):
    run(name, table, threads, count=ints(p if count is None else count), **fields, **out)


def norm_linear(x, gain, kind, fields, n, table="definition", threads=2, count=None):
    y = {f"y{s}": np.full((len(x), n[s]), np.nan, F) for s in range(len(n))}
    call("norm_linear", table, threads, y, len(x), count, x=x, gain=gain, eps=EPS, act=ACT_ID[kind],
         **fields)  # fmt: skip
    return list(y.values())


def norm_glu(x, gain, kind, fields, n, gelu, table="definition", threads=2, count=None):
    arg, out = act_out((len(x), n), kind)
    call("norm_glu", table, threads, {"out": arg}, len(x), count, x=x, gain=gain, eps=EPS, gelu=gelu,
         **fields)  # fmt: skip
    return out


def norm_argmax(x, gain, kind, fields, table="definition", threads=2, count=None):
    out = np.full(len(x), -7, np.int32)
    call("norm_argmax", table, threads, {"id": out}, len(x), count, x=x, gain=gain, eps=EPS,
         act=ACT_ID[kind], **fields)  # fmt: skip
    return out


# Against FP64.


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("weight", KINDS)
def test_norm_linear(weight, kind, bias, table):
    rng = np.random.default_rng(1)
    n, k = (33, 7, 20), 768
    for p in (1, 5):
        x, gain = stream(rng, p, k)
        fields, values, biases = segments((weight, "F16", weight), n, k, rng, bias=bias)
        got = norm_linear(x, gain, kind, fields, n, table)
        for y, w, b in zip(got, values, biases, strict=True):
            close_linear(y, dense.norm_linear(x, gain, F(EPS), w, b, kind == "BF16"))


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("gelu", [0, 1])
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("weight", KINDS)
def test_norm_glu(weight, kind, gelu, table):
    rng = np.random.default_rng(2)
    n, k = 70, 512
    for p, bias in ((1, False), (6, True)):
        x, gain = stream(rng, p, k)
        gain /= 20  # gates of order one, where their shape shows
        fields, w, b = segments((weight, "Q8_0"), (n, n), k, rng, bias=bias)
        y = [dense.norm_linear(x, gain, F(EPS), w[s], b[s], kind == "BF16") for s in range(2)]
        got = norm_glu(x, gain, kind, fields, n, gelu, table)
        close(kind, got, dense.glu(*y, gelu))


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("weight", KINDS)
def test_linear_add(weight, kind, table):
    rng = np.random.default_rng(3)
    for p, bias in ((1, False), (5, True)):
        x, values = act(rng.standard_normal((p, 512)), kind)
        fields, (w,), (b,) = segments((weight,), (33,), 512, rng, bias=bias, index=False)
        y = rng.standard_normal((p, 33)).astype(F)
        want = y + dense.linear(values, w, b)
        call("linear_add", table, 2, {"y": y}, p, x=x, **fields)
        close_linear(y, want)


@pytest.mark.parametrize("table", TABLES)
def test_norm_add(table):
    rng = np.random.default_rng(4)
    for p, k in ((1, 1), (1, 576), (7, 33)):
        x, gain = stream(rng, p, k)
        y = rng.standard_normal((p, k)).astype(F)
        want = y + dense.rms_norm(x, gain, F(EPS))
        call("norm_add", table, 2, {"y": y}, p, x=x, gain=gain, eps=EPS)
        close_elements(y, want)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("weight", KINDS)
def test_norm_argmax(weight, kind, table):
    """The choice is as large as any in FP64, up to what the product may be off."""
    rng = np.random.default_rng(5)
    for p, bias in ((1, False), (3, True), (37, False)):
        x, gain = stream(rng, p, 256)
        fields, (w,), (b,) = segments((weight,), (300,), 256, rng, bias=bias, index=False)
        logits = dense.norm_linear(x, gain, F(EPS), w, b, kind == "BF16")
        got = norm_argmax(x, gain, kind, fields, table)
        best = logits.copy()
        best[np.arange(p), got] = logits.max(1)
        close_linear(best.astype(F), logits)


@pytest.mark.parametrize("table", TABLES)
def test_choices_by_hand(table):
    w = np.zeros((40, 8), F)
    w[[7, 30], 0] = w[[5, 31], 1] = 1
    x = np.zeros((5, 8), F)
    x[0, 0], x[1, 1], x[3], x[4, 2] = 2, 3, np.nan, np.inf
    got = norm_argmax(x, np.ones(8, F), "F32", {"w": w}, table)
    assert got.tolist() == [7, 5, 0, 0, 0]  # the lowest of equals, and of nothing but NaN


CASES = [  # heads, d, pairs, window, split, norms of q and k
    ((6, 2), 64, 32, 0, 128, "qk"), ((4, 4), 20, 10, 7, 5, ""), ((3, 1), 7, 2, 0, 16, "q"),
    ((8, 1), 128, 64, 33, 8, "k"), ((2, 1), 256, 128, 0, 1, "qk"),
]  # fmt: skip


def attend_case(rng, kind, heads, d, pairs, norms, c=50):
    """Two slots in one pass, three rows and one; older positions in the caches, NaN behind."""
    slots, pos = [0, 0, 0, 2], [31, 32, 33, 11]
    q = rng.standard_normal((4, heads[0], d)).astype(F) * 2
    k, v = rng.standard_normal((2, 4, heads[1], d)).astype(F)
    gains = [rng.standard_normal(d).astype(F) if n in norms else None for n in "qk"]
    caches = [act(rng.standard_normal((3, c, heads[1], d)), kind)[1].copy() for _ in range(2)]
    for cache in caches:
        cache[0, 31:], cache[1], cache[2, 11:] = np.nan, np.nan, np.nan
    freq = (0.5 ** np.arange(pairs)).astype(F)  # angles are exact in FP32
    return q, k, v, gains, freq, caches, slots, pos


def rope_attend(q, k, v, gains, freq, caches, slots, pos, kind, table="definition", threads=2, *,
                window=0, split=128, neox=1, count=None, scale=0.125):  # fmt: skip
    """(out, k_cache, v_cache) as stored."""
    stored = [to_bf16(np.nan_to_num(c, nan=1e30)) if kind == "BF16" else c.copy() for c in caches]
    for s, c in zip(stored, caches, strict=True):
        if kind == "BF16":
            s[np.isnan(c)] = 0x7FC0
    args = [bf16(s) if kind == "BF16" else s for s in stored]
    arg, out = act_out(q.shape, kind)
    run("rope_attend", table, threads, q=q, k=k, v=v, q_norm=gains[0], k_norm=gains[1], freq=freq,
        rows=row_table(slots, pos, len(q)), count=ints(len(slots) if count is None else count),
        k_cache=args[0], v_cache=args[1], out=arg, eps=EPS, scale=scale, window=window, split=split,
        neox=neox)  # fmt: skip
    return out, *stored


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("neox", [0, 1])
@pytest.mark.parametrize("heads, d, pairs, window, split, norms", CASES)
def test_rope_attend(heads, d, pairs, window, split, norms, neox, kind, table):
    rng = np.random.default_rng(6)
    case = attend_case(rng, kind, heads, d, pairs, norms)
    how = {"window": window, "split": split, "neox": neox, "scale": 0.125}
    got = rope_attend(*case, kind, table, **how)
    want = dense.rope_attend(*case[:3], case[3], case[4], *case[5], *case[6:], eps=F(EPS),
                             bf16=kind == "BF16", **how)  # fmt: skip
    close(kind, got[0], want[0])
    fresh = np.zeros(got[1].shape[:2], bool)
    fresh[case[6], case[7]] = True
    for mine, theirs, before in zip(got[1:], want[1:], case[5], strict=True):
        close(kind, mine[fresh], theirs[fresh])
        values = from_bf16(mine) if kind == "BF16" else mine
        np.testing.assert_array_equal(values[~fresh], before[~fresh])


# The composition of the parts.


def rms_factor(x):
    """Squares summed in double in ascending order, the rest in FP32."""
    q = np.cumsum(x.astype(np.float64) ** 2, axis=-1)[:, -1:]
    return F(1) / np.sqrt((q / x.shape[1]).astype(F) + F(EPS))


def parts_of_norm_linear(x, gain, kind, fields, n, table):
    a, _ = act(x * gain, kind)
    by = rms_factor(x)
    out = []
    for s, width in enumerate(n):
        y = np.full((len(x), width), np.nan, F)
        at = s if len(n) > 1 or "w0" in fields else ""
        part = {name + "0": fields.get(f"{name}{at}") for name in ("w", "scale")}
        for name in ("scale_n", "scale_k"):
            part[name + "0"] = fields.get(f"{name}{at}")
        run("linear", table, 1, x=a, count=ints(len(x)), y0=y, **part)
        bias = fields.get(f"bias{at}")
        out.append(by * y if bias is None else by * y + bias)
    return out


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("weight", KINDS)
def test_products_are_their_parts(weight, kind, table):
    rng = np.random.default_rng(7)
    block = sizes(weight)[0] if weight in IDS else 1
    for case in range(8):
        k = block * int(rng.integers(1, 300 if block == 1 else 1280 // block))
        k += -k % 256 if case % 2 else 0  # a grid of scales has columns of 256
        p, n = int(rng.integers(1, 40)), tuple(int(i) for i in rng.integers(1, 30, 2))
        how = {"bias": case % 3 > 0, "scales": case % 2 > 0}
        x, gain = stream(rng, p, k)
        gain /= F(np.sqrt(k))
        fields, _, _ = segments((weight, weight), n, k, rng, **how)
        want = parts_of_norm_linear(x, gain, kind, fields, n, table)
        for threads in (1, 2, 3):
            got = norm_linear(x, gain, kind, fields, n, table, threads)
            assert [y.tobytes() for y in got] == [y.tobytes() for y in want], (k, p, n, how)

        fields, _, _ = segments((weight, weight), n[:1] * 2, k, rng, **how)
        gate, up = parts_of_norm_linear(x, gain, kind, fields, n[:1] * 2, table)
        for gelu in (0, 1):
            arg, out = act_out(gate.shape, kind)
            run(("silu_mul", "gelu_mul")[gelu], table, 1, gate=gate, up=up, count=ints(p), out=arg)
            got = norm_glu(x, gain, kind, fields, n[0], gelu, table, 1 + case % 3)
            assert got.tobytes() == out.tobytes(), (k, p, n, how, gelu)

        fields, _, _ = segments((weight,), n[1:], k, rng, index=False, **how)
        (logits,) = parts_of_norm_linear(x, gain, kind, fields, n[1:], table)
        got = norm_argmax(x, gain, kind, fields, table, 1 + case % 3)
        assert (got == dense.argmax(logits)).all(), (k, p, n, how)

        a, _ = act(x * gain, kind)
        y = rng.standard_normal((p, n[1])).astype(F)
        part, z = np.full_like(y, np.nan), y.copy()
        run(
            "linear",
            table,
            1,
            x=a,
            count=ints(p),
            y0=part,
            **{f"{f}0": v for f, v in fields.items()},
        )
        run("add", table, 1, x=part, count=ints(p), y=z)
        call("linear_add", table, 1 + case % 3, {"y": y}, p, x=a, **fields)
        assert y.tobytes() == z.tobytes()


@pytest.mark.parametrize("table", TABLES)
def test_norm_add_is_its_parts(table):
    rng = np.random.default_rng(8)
    for p, k in ((1, 5), (40, 576)):
        x, gain = stream(rng, p, k)
        y = rng.standard_normal((p, k)).astype(F)
        part, z = np.full_like(y, np.nan), y.copy()
        run("rms_norm", table, 1, x=x, gain=gain, count=ints(p), out=part, eps=EPS)
        run("add", table, 1, x=part, count=ints(p), y=z)
        call("norm_add", table, 3, {"y": y}, p, x=x, gain=gain, eps=EPS)
        assert y.tobytes() == z.tobytes()


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("heads, d, pairs, window, split, norms", CASES)
def test_rope_attend_is_its_parts(heads, d, pairs, window, split, norms, kind, table):
    rng = np.random.default_rng(9)
    q, k, v, gains, freq, caches, slots, pos = attend_case(rng, kind, heads, d, pairs, norms)
    got = rope_attend(q, k, v, gains, freq, caches, slots, pos, kind, table, 3, window=window,
                      split=split)  # fmt: skip
    same = {"rows": row_table(slots, pos), "count": ints(len(pos))}
    turned = []
    for x, gain in zip((q, k), gains, strict=True):
        if gain is not None:
            plain, x = x, np.full_like(x, np.nan)
            run("rms_norm", table, 1, x=plain, gain=gain, count=same["count"], out=x, eps=EPS)
        arg, _ = act_out(x.shape, kind)
        run("rope", table, 1, x=x, freq=freq, out=arg, neox=1, **same)
        turned.append(arg)
    stored = [act(c, kind)[0] for c in np.nan_to_num(caches)]
    run("kv_append", table, 1, k=turned[1], v=v, k_cache=stored[0], v_cache=stored[1], **same)
    arg, out = act_out(q.shape, kind)
    run("attend", table, 1, q=turned[0], k_cache=stored[0], v_cache=stored[1], out=arg, scale=0.125,
        window=window, split=split, **same)  # fmt: skip
    assert got[0].tobytes() == out.tobytes()
    for mine, theirs in zip(got[1:], stored, strict=True):
        bits = theirs[1] if kind == "BF16" else theirs
        assert mine[slots, pos].tobytes() == bits[slots, pos].tobytes()


# Every table gives the same bits, and a row knows only itself.


def junk_behind(x, count, capacity):
    out = np.full((capacity, *x.shape[1:]), np.nan, F)
    out[count + 1 :] = np.inf
    out[:count] = x[:count]
    return out


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
def test_a_row_does_not_know_its_neighbours(kind, table):
    rng = np.random.default_rng(10)
    n, k, most = (13, 6), 512, 40
    x, gain = stream(rng, most, k)
    pair, _, _ = segments(("Q4_K", "Q6_K"), n, k, rng)
    gated, _, _ = segments(("Q4_1", "Q8_0"), n[:1] * 2, k, rng)
    one, _, _ = segments(("Q4_K",), (300,), k, rng, index=False)
    start = rng.standard_normal((most, 300)).astype(F)

    def linear_add(rows, count, table=table, threads=2):
        arg, _ = act(rows, kind) if count == len(rows) else (rows, None)
        y = np.resize(start, (len(rows), 300)) * 0 + 1
        call("linear_add", table, threads, {"y": y}, len(rows), count, x=arg, **one)
        return y

    def norm_add(rows, count, table=table, threads=2):
        y = np.ones_like(rows)
        call("norm_add", table, threads, {"y": y}, len(rows), count, x=rows, gain=gain, eps=EPS)
        return y

    ops = (
        lambda rows, count, *t: np.hstack(
            norm_linear(rows, gain, kind, pair, n, *(t or (table, 2)), count=count)
        ),
        lambda rows, count, *t: norm_glu(
            rows, gain, kind, gated, n[0], 0, *(t or (table, 2)), count=count
        ),
        lambda rows, count, *t: norm_argmax(rows, gain, kind, one, *(t or (table, 2)), count=count),
        linear_add,
        norm_add,
    )
    for op in ops:
        alone = np.concatenate([op(x[r : r + 1], 1) for r in range(most)])
        assert op(x, most, "definition", 1).tobytes() == alone.tobytes()
        for p in (2, 3, 5, 9, 17, most):
            order = rng.permutation(most)[:p]
            assert op(np.ascontiguousarray(x[order]), p).tobytes() == alone[order].tobytes(), p
        if op is linear_add and kind == "BF16":
            continue  # its junk would have to be rounded; test_ops_linear.py has it
        for count in (0, 1, 4, 17):
            got = op(junk_behind(x, count, 20), count)
            assert got[:count].tobytes() == alone[:count].tobytes(), count


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ACTS)
def test_slots_do_not_know_each_other(kind, table):
    rng = np.random.default_rng(11)
    heads, d, pairs, window, split, norms = CASES[0]
    case = attend_case(rng, kind, heads, d, pairs, norms)
    q, k, v, gains, freq, caches, slots, pos = case
    want = rope_attend(*case, kind, table, split=16)
    definition = rope_attend(*case, kind, "definition", 1, split=16)
    assert [x.tobytes() for x in want] == [x.tobytes() for x in definition]
    rows = [np.concatenate([x[3:], np.full((3, *x.shape[1:]), np.nan, F)]) for x in (q, k, v)]
    alone = rope_attend(*rows, gains, freq, caches, [2], [11], kind, table, split=16)
    assert alone[0][0].tobytes() == want[0][3].tobytes()
    for mine, theirs in zip(alone[1:], want[1:], strict=True):
        assert mine[2].tobytes() == theirs[2].tobytes()
    for r in range(3):  # one row at a time is what all three at once are
        rows = [np.ascontiguousarray(x[r : r + 1]) for x in (q, k, v)]
        step = rope_attend(*rows, gains, freq, caches, [0], [31 + r], kind, table, split=16)
        assert step[0][0].tobytes() == want[0][r].tobytes()
        caches = [from_bf16(c) if kind == "BF16" else c for c in step[1:]]
