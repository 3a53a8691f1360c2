"""Every op on CUDA against the definition, within the named tolerances; rows that get the same bits
whatever is around them; what is refused. Attention is in test_gpu_attend.py."""

from __future__ import annotations

import inspect
from itertools import product

import numpy as np
import pytest
import test_ops_round as round_cases
from blocks import IDS, random_bytes, sizes
from gpu_tools import F, NARROW, THREADS, TYPES, WIDE, behind, block, near, rounded, stored
from op_tools import act, act_out, bf16, ints, row_table, run, weights
from stoker import UnsupportedError, _native
from test_ops_linear import columns
from test_ops_fused import norm_argmax, norm_glu, norm_linear, segments, stream
from test_ops_rows import rms_norm, rope
from test_ops_scale import weight as scaled_weight
from tolerances import close_elements, close_linear, to_bf16

pytestmark = pytest.mark.gpu
EPS = 1e-5
ACTS = ("BF16", "F32")


# Products.


def linear(x, fields, n, table="cuda", count=None):
    """Outputs of all segments side by side; x is rounded to BF16."""
    y = {f"y{s}": np.full((len(x), width), np.nan, F) for s, width in enumerate(n)}
    count = ints(len(x) if count is None else count)
    run("linear", table, THREADS, x=rounded(x), count=count, **fields, **y)
    return np.hstack(list(y.values()))


def linear_add(x, fields, start, table="cuda", count=None):
    y = np.tile(start, (len(x), 1))
    count = ints(len(x) if count is None else count)
    run("linear_add", table, THREADS, x=rounded(x), count=count, y=y, **fields)
    return y


def partner(kind: str) -> str:
    return "Q4_1" if kind == "Q8_0" else "Q8_0"


def products(kind: str, n: int, k: int, rng) -> dict:
    """Each product on random weights, as a function of (rows, table, live rows)."""
    gain = (rng.standard_normal(k) / 20).astype(F)  # gates of order one
    four, _, _ = segments((kind, kind, partner(kind), kind), (n, 5, 19, 1), k, rng)
    alike, _, _ = segments((kind, kind), (n, n), k, rng, bias=k % 128 == 0)
    mixed, _, _ = segments((partner(kind), kind), (n, n), k, rng)
    one, _, _ = segments((kind,), (n,), k, rng, index=False)
    start = rng.standard_normal(n).astype(F)

    def glu(fields, gelu):
        return lambda x, table="cuda", count=None: norm_glu(
            x, gain, "BF16", fields, n, gelu, table, THREADS, count
        )

    def normed(x, table="cuda", count=None):
        y = norm_linear(x, gain, "BF16", four, (n, 5, 19, 1), table, THREADS, count)
        return np.hstack(y)

    def argmax(x, table="cuda", count=None):
        return norm_argmax(x, gain, "BF16", one, table, THREADS, count)

    return {
        "linear": lambda x, *how: linear(x, four, (n, 5, 19, 1), *how),
        "linear_add": lambda x, *how: linear_add(x, one, start, *how),
        "norm_linear": normed,
        "norm_glu": glu(alike, 0),
        "norm_glu, gelu": glu(alike, 1),
        "norm_glu, mixed": glu(mixed, 0),
        "norm_argmax": argmax,
    }


PRODUCTS = tuple(products("F32", 1, 32, np.random.default_rng(0)))


def shapes(kind: str) -> tuple[tuple[int, int], ...]:
    if block(kind) == 256:
        return (33, 256), (70, 768), (301, 512), (17, 2048), (9, 8192)
    if block(kind) > 32:
        return (1, 128), (70, 384), (301, 640), (130, 1536), (17, 2048), (9, 8192)
    return (1, 32), (33, 64), (70, 96), (301, 576), (130, 1536), (17, 2048), (9, 8192)


@pytest.mark.parametrize("name", [name for name in PRODUCTS if name != "norm_argmax"])
@pytest.mark.parametrize("kind", TYPES)
def test_products(kind, name):
    """Against the definition; narrow and wide kernels give a row the same bits."""
    rng = np.random.default_rng(1)
    for n, k in shapes(kind):
        op = products(kind, n, k, rng)[name]
        x, _ = stream(rng, 100, k)
        want, whole = op(x, "definition"), op(x)
        if name.startswith("norm_glu"):
            near("BF16", whole, want)
        else:
            close_linear(whole, want, op(0 * x[:1])[0] if name == "linear_add" else 0.0)
        for p in (*NARROW, *WIDE):
            assert op(x[:p])[:p].tobytes() == whole[:p].tobytes(), (n, k, p)
        for count, p in ((0, 5), (3, 5), (9, 40), (2, 41), (41, 64), (65, 100)):
            got = op(behind(x, count, p), "cuda", count)
            assert got[:count].tobytes() == whole[:count].tobytes(), (n, k, count, p)


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("kind", TYPES)
def test_a_row_does_not_know_its_neighbours(kind, name):
    """At any place among any rows, NaN and infinite ones too."""
    rng = np.random.default_rng(2)
    op = products(kind, 37, 512, rng)[name]
    x, _ = stream(rng, 24, 512)
    alone = np.concatenate([op(x[r : r + 1]) for r in range(24)])
    for p in (*NARROW, *WIDE):
        at = rng.integers(0, 24, p)
        assert op(x[at]).tobytes() == alone[at].tobytes(), p
        sound = rng.random(p) < 0.5
        rows = x[at]
        rows[~sound] = np.where(rng.random((np.count_nonzero(~sound), 1)) < 0.5, np.nan, np.inf)
        assert op(rows)[sound].tobytes() == alone[at][sound].tobytes(), p


@pytest.mark.parametrize("kind", TYPES)
def test_more_tiles_than_multiprocessors(kind):
    rng = np.random.default_rng(3)
    for n, k, rows in ((5003, 256, (1, 9, 20, 40, 41)), (7003, 2560, (1, 9, 20, 40))):
        x, gain = stream(rng, max(rows), k)
        fields, _, _ = segments((kind,), (n,), k, rng)
        whole = norm_linear(x, gain, "BF16", fields, (n,), "cuda")[0]
        want = norm_linear(x[:2], gain, "BF16", fields, (n,), "definition", THREADS)[0]
        close_linear(whole[:2], want)
        for p in rows:
            got = norm_linear(x[:p], gain, "BF16", fields, (n,), "cuda")[0]
            assert got.tobytes() == whole[:p].tobytes(), (n, k, p)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_few_outputs_of_a_long_k(kind):
    """As of a router and of gates of heads; the wide kernel gives a row the same bits."""
    rng = np.random.default_rng(5)
    shapes = ((512, 1), 2560), ((48, 48), 2560), ((300, 9), 1568), ((1000,), 2048), ((5,), 6144)
    for n, k in shapes:
        x, _ = stream(rng, 64, k)
        fields, _, _ = segments((kind,) * len(n), n, k, rng, bias=k == 1568)
        one, _, _ = segments((kind,), n[:1], k, rng, index=False)
        start = rng.standard_normal(n[0]).astype(F)
        whole, added = linear(x, fields, n), linear_add(x, one, start)
        close_linear(whole[:2], linear(x[:2], fields, n, "definition"))
        for p in NARROW:
            assert linear(x[:p], fields, n).tobytes() == whole[:p].tobytes(), (n, k, p)
            assert linear_add(x[:p], one, start).tobytes() == added[:p].tobytes(), (n, k, p)
        for count, p in ((0, 5), (3, 8), (9, 40)):
            got = linear(behind(x, count, p), fields, n, "cuda", count)
            assert got[:count].tobytes() == whole[:count].tobytes(), (n, k, count, p)


@pytest.mark.parametrize(
    "kinds",
    [*(TYPES[i : i + 4] for i in range(0, len(TYPES), 4)), TYPES[:1] * 4, TYPES[1:5:3]],
)
def test_segments_of_mixed_types(kinds):
    rng = np.random.default_rng(4)
    n = tuple(int(i) for i in rng.integers(1, 90, len(kinds)))
    x, gain = stream(rng, 64, 512)
    fields, _, _ = segments(kinds, n, 512, rng)
    for p in (1, 9, 64):
        close_linear(linear(x[:p], fields, n), linear(x[:p], fields, n, "definition"))
        got = norm_linear(x[:p], gain, "BF16", fields, n, "cuda")
        want = norm_linear(x[:p], gain, "BF16", fields, n, "definition", THREADS)
        for a, b in zip(got, want, strict=True):
            close_linear(a, b)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_rows_of_no_whole_blocks(kind):
    """Plain weights whose columns 32 does not divide: near the definition, and the same bits in any
    pass."""
    rng = np.random.default_rng(18)
    for n, k in product((16, 17, 90), (1, 16, 31, 33, 48, 100, 1000, 1553)):
        x, _ = stream(rng, 100, k)
        fields, _, _ = segments((kind, kind), (n, 19), k, rng)
        whole = linear(x, fields, (n, 19))
        close_linear(whole, linear(x, fields, (n, 19), "definition"))
        for p in (1, 5, 8, 9, 40, 41):
            assert linear(x[:p], fields, (n, 19)).tobytes() == whole[:p].tobytes(), (n, k, p)
        got = linear(behind(x, 7, 20), fields, (n, 19), count=7)
        assert got[:7].tobytes() == whole[:7].tobytes() and np.isnan(got[7:]).all()
        raw = raw_weight(kind, n, k, rng).tobytes()
        assert _native.repack(kind, raw, n, k)[0] == raw, (n, k)


PART_TYPES = tuple(kind for kind in TYPES if kind != "F32")


def linear_parts(x, w, n, n_parts, table="cuda", count=None):
    y = np.full((n_parts, len(x), n), np.nan, F)
    count = ints(len(x) if count is None else count)
    run("linear_parts", table, THREADS, x=rounded(x), count=count, w0=w, y0=y)
    return y


def corner(w, n: int, k: int):
    """The first rows and columns of a weight."""
    if isinstance(w, np.ndarray):
        return columns(w[:n], 0, k)
    kind, raw, (rows, whole) = w
    return columns((kind, raw.reshape(rows, -1)[:n], (n, whole)), 0, k)


@pytest.mark.parametrize("kind", PART_TYPES)
def test_linear_parts(kind):
    """Every part against the definition (whose bits the fast table has), and the same bits in any
    pass; the only one is linear."""
    rng = np.random.default_rng(17)
    big, _ = weights(kind, 2560, 6144, rng)
    rows, _ = stream(rng, 41, 6144)
    for n, k in product((33, 301, 2560), (2048, 2560, 6144)):
        w, x = corner(big, n, k), np.ascontiguousarray(rows[:, :k])
        for s in (s for s in (1, 2, 4, 8) if k % (256 * s) == 0):
            whole = linear_parts(x, w, n, s)
            close_linear(whole, linear_parts(x, w, n, s, "fast"))
            for p in (1, 5, 20, 40):
                assert linear_parts(x[:p], w, n, s).tobytes() == whole[:, :p].tobytes(), (n, s, p)
            for count, p in ((0, 5), (3, 20), (21, 41)):
                got = linear_parts(behind(x, count, p), w, n, s, "cuda", count)
                assert got[:, :count].tobytes() == whole[:, :count].tobytes(), (n, k, s, count)
            if s == 1:
                assert whole[0].tobytes() == linear(x, {"w0": w}, (n,)).tobytes(), (n, k)


@pytest.mark.parametrize("kind", PART_TYPES)
def test_a_row_of_parts_does_not_know_its_neighbours(kind):
    rng = np.random.default_rng(18)
    n, k, s = 37, 2048, 4
    w, _ = weights(kind, n, k, rng)
    x, _ = stream(rng, 24, k)
    alone = np.concatenate([linear_parts(x[r : r + 1], w, n, s) for r in range(24)], axis=1)
    for p in (5, 9, 20, 40, 41, 100):
        at = rng.integers(0, 24, p)
        assert linear_parts(x[at], w, n, s).tobytes() == alone[:, at].tobytes(), p
        sound = rng.random(p) < 0.5
        rows = x[at]
        rows[~sound] = np.where(rng.random((np.count_nonzero(~sound), 1)) < 0.5, np.nan, np.inf)
        assert linear_parts(rows, w, n, s)[:, sound].tobytes() == alone[:, at[sound]].tobytes(), p


@pytest.mark.parametrize("kind", ["Q4_K", "IQ3_S", "Q4_1", "NVFP4", "F16"])
def test_teams_that_share_tiles(kind):
    """So many outputs that with 20 rows the fours of tiles of a block are dealt out by slices."""
    rng = np.random.default_rng(20)
    n, k, s = 4803, 6144, 4
    w, _ = weights(kind, n, k, rng)
    x, _ = stream(rng, 24, k)
    alone = np.concatenate([linear_parts(x[r : r + 1], w, n, s) for r in (0, 3)], axis=1)
    for p in (17, 20, 24):
        assert linear_parts(x[:p], w, n, s)[:, [0, 3]].tobytes() == alone.tobytes(), p


def test_parts_of_segments():
    """Of one type and of several, in one launch where the parts lie equally far apart."""
    rng = np.random.default_rng(19)
    k, s, n = 2048, 8, (40, 17, 300, 5)
    x, _ = stream(rng, 64, k)
    for kinds in (("Q8_0",) * 4, ("Q8_0", "Q8_0", "Q4_K", "BF16"), ("Q6_K", "Q4_1", "Q6_K", "F16")):
        ws = [weights(kind, width, k, rng)[0] for kind, width in zip(kinds, n, strict=True)]
        fields = {f"w{i}": w for i, w in enumerate(ws)}
        for p in (1, 20, 64):
            alone = [linear_parts(x[:p], w, width, s) for w, width in zip(ws, n, strict=True)]
            room = np.full((len(n), s, p * max(n)), np.nan, F)
            alike = [room[i, :, : p * w].reshape(s, p, w) for i, w in enumerate(n)]
            apart = [np.full_like(y, np.nan) for y in alone]
            for order in (alike, apart):
                outs = {f"y{i}": y for i, y in enumerate(order)}
                run("linear_parts", "cuda", 1, x=rounded(x[:p]), count=ints(p), **fields, **outs)
                for y, want in zip(order, alone, strict=True):
                    assert y.tobytes() == want.tobytes(), (kinds, p)


@pytest.mark.parametrize("kind", TYPES)
def test_norm_argmax(kind):
    """Bit for bit the choice among the logits of CUDA, and that of the definition unless two logits
    are as close as a product may be off."""
    rng = np.random.default_rng(5)
    for n, k in ((7, 256), (1000, 512), (5003, 256)):
        x, gain = stream(rng, 100, k)
        fields, _, _ = segments((kind,), (n,), k, rng, index=False)
        indexed = {f"{name}0": value for name, value in fields.items()}
        logits = norm_linear(x, gain, "BF16", indexed, (n,), "definition", THREADS)[0]
        want = logits.argmax(1)  # the definition's choice: test_ops_fused.py
        mine = norm_linear(x, gain, "BF16", indexed, (n,), "cuda")[0].argmax(1)
        for p in (*NARROW, *WIDE):
            got = norm_argmax(x[:p], gain, "BF16", fields, "cuda")
            assert (got == mine[:p]).all(), p
            best = logits[:p].copy()
            best[np.arange(p), got] = logits[:p].max(1)
            close_linear(best, logits[:p])
        assert np.count_nonzero(mine != want) <= 1, np.flatnonzero(mine != want)


@pytest.mark.parametrize("kind", TYPES)
def test_norm_argmax_of_ties_and_nan(kind):
    rng = np.random.default_rng(6)
    n, k = 1003, 256
    x, gain = stream(rng, 41, k)
    fields, _, _ = segments((kind,), (n,), k, rng, bias=False, index=False)
    for p in (1, 9, 41):
        rows = x[:p].copy()
        best = int(norm_argmax(rows, gain, "BF16", fields, "cuda")[0])
        raw = stored(fields["w"])
        kept = raw.copy()
        for equal in ((best, n - 1), (3, best), (3, 500, best, n - 1)):
            raw[list(equal)] = kept[best]
            got = norm_argmax(rows, gain, "BF16", fields, "cuda")
            assert got[0] == min(equal)
            assert (got == norm_argmax(rows, gain, "BF16", fields, "definition", THREADS)).all()
            raw[:] = kept
        bias = np.zeros(n, F)
        bias[[0, best]] = np.nan
        with_nan = {**fields, "bias": bias}
        got = norm_argmax(rows, gain, "BF16", with_nan, "cuda")
        assert got[0] not in (0, best)
        assert (got == norm_argmax(rows, gain, "BF16", with_nan, "definition", THREADS)).all()
        rows[p - 1, 5] = np.nan
        assert norm_argmax(rows, gain, "BF16", fields, "cuda")[p - 1] == 0


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2", "NVFP4"])
def test_scales_beside_weights(kind):
    """One for the whole weight, for each row, for blocks; narrow, wide and many tiles."""
    rng = np.random.default_rng(8)
    for n, k in ((37, 256), (130, 832), (2500, 2560)):
        w, _ = scaled_weight(kind, n, k, rng)
        x, _ = stream(rng, 41, k)
        for sn, sk in ((n, k), (1, k), (128, 128), (3, 64)):
            grid = rng.uniform(-2, 2, (-(-n // sn), -(-k // sk))).astype(F)
            fields = {"w0": w, "scale0": grid, "scale_n0": sn, "scale_k0": sk}
            whole = linear(x, fields, (n,))
            close_linear(whole[:5], linear(x[:5], fields, (n,), "definition"))
            for p in (1, 5, 20, 40):
                assert linear(x[:p], fields, (n,)).tobytes() == whole[:p].tobytes(), (n, k, p)


# Rows.


@pytest.mark.parametrize("kind", TYPES)
def test_gather_rows_is_the_definition(kind):
    rng = np.random.default_rng(7)
    for n, k in ((1, 256), (50, 512), (333, 1536), *(((37, 96),) if block(kind) == 32 else ())):
        table, _ = weights(kind, n, k, rng)
        ids = rng.integers(0, n, 64).astype(np.int32)
        ids[:2] = n - 1, 0
        for count, scale in product((1, 3, 40, 64), (1.0, 2.5)):
            out = {name: np.full((64, k), np.nan, F) for name in ("cuda", "definition")}
            wild = np.where(np.arange(64) < count, ids, 10**9).astype(np.int32)
            for name, y in out.items():
                run("gather_rows", name, 1, table=table, ids=wild, count=ints(count), out=y,
                    scale=scale)  # fmt: skip
            assert out["cuda"][:count].tobytes() == out["definition"][:count].tobytes()


@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize(
    "shape",
    [(1, 1), (5, 7), (40, 576), (9, 2048), (3, 8192), (64, 9, 64), (20, 3, 256), (1, 2, 33)],
)
def test_rms_norm(shape, kind):
    rng = np.random.default_rng(8)
    x = stream(rng, shape[0], int(np.prod(shape[1:])))[0].reshape(shape)
    gain = rng.standard_normal(shape[-1]).astype(F)
    want = rms_norm(x, gain, EPS, kind, "definition")
    near(kind, rms_norm(x, gain, EPS, kind, "cuda"), want)
    alone = np.concatenate([rms_norm(x[r : r + 1], gain, EPS, kind, "cuda") for r in range(len(x))])
    for count in {1, len(x) // 2, len(x)}:
        got = rms_norm(behind(x, count, len(x)), gain, EPS, kind, "cuda", count=count)
        assert got[:count].tobytes() == alone[:count].tobytes()
    if len(shape) == 3:  # heads inside of packed rows
        packed = np.zeros((shape[0], 2, *shape[1:]), F)
        packed[:, 1] = x
        assert rms_norm(packed[:, 1], gain, EPS, kind, "cuda").tobytes() == alone.tobytes()


def test_norm_add():
    rng = np.random.default_rng(9)
    for p, k in ((1, 1), (5, 33), (40, 576), (100, 2048)):
        x, gain = stream(rng, p, k)
        y = rng.standard_normal((p, k)).astype(F)
        count = max(1, p - 1)
        out = {name: y.copy() for name in ("cuda", "definition")}
        for name, total in out.items():
            run("norm_add", name, 1, x=behind(x, count, p), gain=gain, count=ints(count), y=total,
                eps=EPS)  # fmt: skip
        close_elements(out["cuda"][:count], out["definition"][:count])
        part, total = np.full_like(x, np.nan), y.copy()
        run("rms_norm", "cuda", 1, x=x, gain=gain, count=ints(p), out=part, eps=EPS)
        run("add", "cuda", 1, x=part, count=ints(p), y=total)
        assert out["cuda"][:count].tobytes() == total[:count].tobytes()


@pytest.mark.parametrize("kind", ACTS)
@pytest.mark.parametrize("neox", [0, 1])
@pytest.mark.parametrize("dim, pairs", [(64, 32), (64, 8), (128, 64), (256, 128), (96, 48), (6, 2)])
def test_rope(dim, pairs, neox, kind):
    rng = np.random.default_rng(10)
    pos = [0, 1, 17, 250, 511, 512, 4095, 32767, 65536, 131070, 131071]
    x = rng.standard_normal((len(pos) + 3, 3, dim)).astype(F)
    freq = (10000.0 ** (-np.arange(pairs) / pairs)).astype(F)
    rows = behind(x, len(pos), len(x))
    got = rope(rows, freq, pos, neox, kind, "cuda")[: len(pos)]
    near(kind, got, rope(rows, freq, pos, neox, kind)[: len(pos)])
    for r, at in enumerate(pos):
        alone = rope(x[r : r + 1], freq, [at], neox, kind, "cuda")
        assert alone.tobytes() == got[r : r + 1].tobytes()


@pytest.mark.parametrize("source", ACTS)
def test_kv_append_is_the_definition(source):
    rng = np.random.default_rng(11)
    for heads, dim, p in ((1, 16, 1), (3, 64, 5), (2, 256, 40), (4, 96, 100)):
        live = max(1, p - 2)
        k, v = (behind(rng.standard_normal((p, heads, dim)), live, p) for _ in range(2))
        args = [rounded(x) if source == "BF16" else x for x in (k, v)]
        slots = np.sort(rng.integers(0, 3, live)).tolist()
        pos = rng.permutation(130)[:live].tolist()
        before = to_bf16(rng.standard_normal((2, 3, 130, heads, dim)))
        found = {}
        for name in ("cuda", "definition"):
            caches = before.copy()
            run("kv_append", name, 1, k=args[0], v=args[1], rows=row_table(slots, pos, p),
                count=ints(live), k_cache=bf16(caches[0]), v_cache=bf16(caches[1]))  # fmt: skip
            found[name] = caches.tobytes()
        assert found["cuda"] == found["definition"]


@pytest.mark.parametrize("d", [1, 33, 576, 8192])
def test_add_and_copy_rows_are_the_definition(d):
    rng = np.random.default_rng(12)
    for p in (1, 5, 40, 100):
        x, y = rng.standard_normal((2, p, d)).astype(F)
        count = max(1, p - 1)
        rows = behind(x, count, p)
        total, copy = y.copy(), np.zeros_like(x)
        run("add", "cuda", 1, x=rows, count=ints(count), y=total)
        run("copy_rows", "cuda", 1, x=rows, count=ints(count), out=copy)
        assert total[:count].tobytes() == (y + x)[:count].tobytes()
        assert copy[:count].tobytes() == x[:count].tobytes()


@pytest.mark.parametrize("op", ["silu_mul", "gelu_mul"])
@pytest.mark.parametrize("d", [4, 33, 1536])
def test_gated_activations(d, op):
    rng = np.random.default_rng(13)
    for p in (1, 5, 40, 100):
        gate, up = rng.standard_normal((2, p, d)).astype(F)
        gate *= 4
        gate[0, :4] = 0, 100, -100, -0.0
        count = max(1, p - 1)
        out = {}
        for name in ("cuda", "definition"):
            arg, out[name] = act_out((p, d), "BF16")
            run(op, name, 1, gate=behind(gate, count, p), up=behind(up, count, p),
                count=ints(count), out=arg)  # fmt: skip
        near("BF16", out["cuda"][:count], out["definition"][:count])


@pytest.mark.parametrize("v", [1, 7, 1000, 49152, 70001])
def test_argmax_is_the_definition(v):
    rng = np.random.default_rng(14)
    for p in (1, 5, 40, 64, 100 if v > 1000 else 700):
        x = rng.standard_normal((p, v)).astype(F)
        x[1::4] = rng.integers(-9, 3, x[1::4].shape)  # many equal ones
        x[2::8] = np.where(rng.random(x[2::8].shape) < 0.5, 0.0, -0.0)
        x[3::8][rng.random(x[3::8].shape) < 0.3] = np.nan
        x[4::8] = np.nan
        x[5::16] = -np.inf
        x[6::8, v // 2] = np.inf
        count = max(1, p - 1)
        ids = {name: np.full(p, -7, np.int32) for name in ("cuda", "definition")}
        for name, out in ids.items():
            run("argmax", name, THREADS, x=behind(x, count, p), count=ints(count), id=out)
        assert (ids["cuda"][:count] == ids["definition"][:count]).all()


# The round: all cases of test_ops_round.py, each op of theirs on both tables.


def both(name, table="definition", threads=1, /, **fields):
    """The op on CUDA, in place; the definition on copies has to leave the same bytes everywhere."""
    copies = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in fields.items()}
    run(name, "definition", 1, **copies)
    run(name, "cuda", 1, **fields)
    for field, value in fields.items():
        if isinstance(value, np.ndarray):
            assert value.tobytes() == copies[field].tobytes(), (name, field)


CASES = {name: f for name, f in vars(round_cases).items() if name.startswith("test_")}


@pytest.mark.parametrize("name", CASES)
def test_round_ops(name, monkeypatch):
    monkeypatch.setattr(round_cases, "run", both)
    case = CASES[name]
    case(*["definition"] * ("table" in inspect.signature(case).parameters))


# Packing.


def raw_weight(kind, n, k, rng):
    if kind in IDS:
        return random_bytes(kind, n * k // sizes(kind)[0], rng)
    width = {"F32": 4, "F16": 2, "BF16": 2}.get(kind, 1)
    return rng.integers(0, 256, (n * k, width), dtype=np.uint8)


@pytest.mark.parametrize("kind", TYPES)
def test_unpacking_gives_back_every_byte(kind):
    rng = np.random.default_rng(15)
    unit = block(kind)
    for n, k in product((1, 7, 15, 16, 17, 33, 301), (unit, 2 * unit, 3 * unit, 9 * unit)):
        raw = raw_weight(kind, n, k, rng).tobytes()
        assert _native.repack(kind, raw, n, k)[0] == raw, (n, k)


@pytest.mark.parametrize("kind", TYPES)
def test_packing_takes_a_second_for_10_gb_at_most(kind, record_property):
    rng = np.random.default_rng(16)
    n, k = 8192, 2560
    raw = raw_weight(kind, 64, k, rng).tobytes() * (n // 64)
    took = [_native.repack(kind, raw, n, k)[1] for _ in range(3)]
    record_property("gb_per_s", len(raw) / min(took) / 1e3)
    assert len(raw) / min(took) >= 10_000, f"{len(raw) / min(took) / 1e3:.1f} GB/s"


# What has no kernel.


def refused(message: str):
    return pytest.raises(UnsupportedError, match=message)


def test_refusals_of_products():
    rng = np.random.default_rng(16)
    x, gain = stream(rng, 2, 256)
    fields, _, _ = segments(("F16",), (4,), 256, rng)
    one, _, _ = segments(("F16",), (4,), 256, rng, index=False)
    y = {"y0": np.zeros((2, 4), F)}
    with refused(r"linear on CUDA: x: expected BF16 \(numerics bf16\), found F32"):
        run("linear", "cuda", 1, x=x, count=ints(2), **fields, **y)
    with refused(r"linear_add on CUDA: x: expected BF16 \(numerics bf16\), found F32"):
        run("linear_add", "cuda", 1, x=x, count=ints(2), y=y["y0"], **one)
    with refused(r"norm_linear on CUDA: act: expected BF16 \(numerics bf16\), found F32"):
        norm_linear(x, gain, "F32", fields, (4,), "cuda")
    with refused(r"norm_argmax on CUDA: act: expected BF16 \(numerics bf16\), found F32"):
        norm_argmax(x, gain, "F32", one, "cuda")
    two, _, _ = segments(("F16", "F16"), (4, 4), 256, rng)
    with refused(r"norm_glu on CUDA: out: expected BF16 \(numerics bf16\), found F32"):
        norm_glu(x, gain, "F32", two, 4, 0, "cuda")
    for k in (8, 48):
        for kind in ("F8_E4M3", "F16"):
            narrow, _, _ = segments((kind,), (4,), k, rng)
            op = "linear" if kind == "F8_E4M3" else "norm_linear"
            with refused(rf"{op} on CUDA: w\[0\]: expected a multiple of 32 columns, found {k}"):
                if op == "linear":
                    linear(x[:, :k], narrow, (4,))
                else:
                    norm_linear(x[:, :k], gain[:k], "BF16", narrow, (4,), "cuda")
    known = "expected a float of at most 32 bits or a block format"
    for kind in ("F64", "I8", "I64"):
        other, _, _ = segments(("F16", kind), (4, 4), 256, rng)
        with refused(rf"linear on CUDA: w\[1\]: {known}, found {kind}"):
            linear(x, other, (4, 4))
        with refused(f"gather_rows on CUDA: table: {known}, found {kind}"):
            run("gather_rows", "cuda", 1, table=other["w1"], ids=ints(1, 2), count=ints(2),
                out=x.copy(), scale=1.0)  # fmt: skip
    beside = "no scales beside weights other than FP8 and NVFP4"
    scaled, _, _ = segments(("F16",), (4,), 256, rng, scales=True)
    with refused(rf"linear on CUDA: scale\[0\]: expected {beside}, found F16"):
        linear(x, scaled, (4,))
    odd, _, _ = segments(("NVFP4",), (4,), 256, rng)
    odd |= {"scale0": np.ones((4, 3), F), "scale_n0": 1, "scale_k0": 96}
    with refused(
        r"linear on CUDA: scale_k\[0\]: expected a power of two, or all columns, found 96"
    ):
        linear(x, odd, (4,))


def test_refusals_of_parts():
    rng = np.random.default_rng(20)
    x = np.zeros((2, 8192), F)
    known = "expected a type and columns whose product can be left in parts"
    for kind, k in (("F32", 2048), ("F16", 1536), ("Q4_1", 512)):
        w, _ = weights(kind, 4, k, rng)
        found = f"found {kind} with {k} columns"
        with refused(rf"linear_parts on CUDA: w\[0\]: {known}, {found}"):
            linear_parts(x[:, :k], w, 4, 2)
    w, _ = weights("Q6_K", 4, 8192, rng)
    slices = "expected parts of a multiple of 512 columns, found 256"
    with refused(rf"linear_parts on CUDA: y\[0\]: {slices}"):
        linear_parts(x, w, 4, 32)
    with refused(r"linear_parts on CUDA: x: expected BF16 \(numerics bf16\), found F32"):
        run("linear_parts", "cuda", 1, x=x, count=ints(2), w0=w, y0=np.zeros((2, 2, 4), F))


@pytest.mark.parametrize("op", ["silu_mul", "gelu_mul"])
def test_refusals_of_gates(op):
    gate = np.zeros((2, 8), F)
    with refused(rf"{op} on CUDA: out: expected BF16 \(numerics bf16\), found F32"):
        run(op, "cuda", 1, gate=gate, up=gate, count=ints(2), out=gate.copy())


@pytest.mark.parametrize("dim", [8, 24, 272])
def test_refusals_of_attention(dim):
    q, cache = np.zeros((1, 2, dim), F), np.zeros((1, 4, 2, dim), F)
    turned, _ = act(q, "BF16")
    out, _ = act_out(q.shape, "BF16")
    freq = np.ones(dim // 2, F)
    pass_of = {"rows": row_table([0], [0]), "count": ints(1)}
    how = {"scale": 1.0, "window": 0, "split": 128}
    heads = f"q: expected heads of 16 to 256 elements in multiples of 16, found {dim}"
    with refused(f"attend on CUDA: {heads}"):
        run("attend", "cuda", 1, q=turned, k_cache=rounded(cache), v_cache=rounded(cache), out=out,
            **pass_of, **how)  # fmt: skip
    fresh = {"q": q, "k": q.copy(), "v": q.copy(), "freq": freq, "neox": 0, **pass_of, **how}
    with refused(f"rope_attend on CUDA: {heads}"):
        run("rope_attend", "cuda", 1, k_cache=rounded(cache), v_cache=rounded(cache), out=out,
            **fresh)  # fmt: skip
    found = r"expected BF16 \(numerics bf16\), found F32"
    with refused(f"attend on CUDA: q: {found}"):
        run("attend", "cuda", 1, q=q, k_cache=cache, v_cache=cache.copy(), out=q.copy(), **pass_of,
            **how)  # fmt: skip
    with refused(f"rope_attend on CUDA: k_cache: {found}"):
        run("rope_attend", "cuda", 1, k_cache=cache, v_cache=cache.copy(), out=q.copy(), **fresh)
    with refused(f"kv_append on CUDA: k_cache: {found}"):
        run("kv_append", "cuda", 1, k=q, v=q.copy(), k_cache=cache, v_cache=cache.copy(), **pass_of)


@pytest.mark.parametrize("n", [1, 1000, 1 << 20])
def test_side_branches_are_joined(n):
    """Copy on a branch beside an addition, then the copy is added: eager, then 50 times as a graph."""
    x, y = np.arange(n, dtype=F) % 7, np.ones(n, F)
    assert _native.branches(x, y, 50) == 3
    assert y.tobytes() == (1 + 102 * x).astype(F).tobytes()
