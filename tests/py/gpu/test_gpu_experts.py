"""The experts of a mixture on CUDA: against the definition, and routes that get the same bits whatever
the others do. A test goes through all of its cases before it fails, and names those that did."""

from __future__ import annotations

import numpy as np
import pytest
from blocks import IDS, random_bytes, sizes
from expert_tools import (
    expert_glu,
    expert_linear,
    expert_sum,
    expert_weights,
    parsed,
    route_list,
    routing,
)
from gpu_tools import TYPES as LINEAR_TYPES
from gpu_tools import F, THREADS, block, near, rounded
from stoker import UnsupportedError, _native
from tolerances import close_linear

pytestmark = pytest.mark.gpu
TYPES = tuple(kind for kind in LINEAR_TYPES if kind != "F32")
ROWS = (1, 5, 20, 40)


class Cases:
    """Collects what went wrong."""

    def __init__(self):
        self.failed = []

    def check(self, what, test, *args) -> None:
        try:
            test(*args)
        except AssertionError as e:
            self.failed.append((what, str(e).strip()[:120]))

    def same(self, what, got, want) -> None:
        got, want = np.ascontiguousarray(got), np.ascontiguousarray(want)
        if got.tobytes() != want.tobytes():
            off = int((got != want).sum())
            self.failed.append((what, f"{off} of {got.size} elements differ"))

    def finish(self) -> None:
        assert not self.failed, "\n".join(f"{what}: {text}" for what, text in self.failed)


class Mixture:
    """Random experts of one type; x [P, K] for the gated form, [P*T, K] for the plain one."""

    def __init__(self, kind, n_experts, n, k, rng, copies=1):
        made = [expert_weights(kind, n_experts // copies, n, k, rng)[0] for _ in range(2)]
        self.w = [self.repeated(w, copies) for w in made]
        self.n, self.k, self.n_experts = n, k, n_experts

    @staticmethod
    def repeated(w, copies):
        if copies == 1:
            return w
        if not isinstance(w, tuple):
            return np.tile(w, (copies, 1, 1))
        return w[0], np.tile(w[1], (copies, 1, 1)), (w[2][0] * copies, *w[2][1:])

    def glu(self, x, ids, table="cuda", gelu=0, **how):
        return expert_glu(rounded(x), ids, *self.w, self.n, gelu, table, THREADS, **how)

    def linear(self, x, ids, table="cuda", **how):
        return expert_linear(rounded(x), ids, self.w[0], self.n, table, THREADS, **how)


def shapes(kind: str):
    """(experts, routes of a row, outputs, columns)."""
    unit = block(kind)
    if unit > 32:
        return (8, 3, 80, 3 * unit), (3, 2, 17, unit), (40, 6, 48, 5 * unit), (2, 1, 9, 10 * unit)
    return (8, 3, 80, 640), (3, 2, 17, 32), (40, 6, 48, 1312), (2, 1, 9, 2560), (5, 2, 33, 96)


def rows(rng, p, k):
    return (rng.standard_normal((p, k)) / 20).astype(F)  # gates of order one


# The work list and the sum.


def test_route_list():
    rng = np.random.default_rng(1)
    cases = Cases()
    sizes_of = ((1, 1, 1), (1, 10, 512), (5, 10, 512), (20, 10, 512), (40, 10, 16), (3, 2, 2),
                (9, 1, 3), (400, 10, 512), (4096, 1, 7), (819, 10, 512), (820, 10, 512),
                (4096, 10, 512), (8192, 10, 512), (1371, 6, 3000), (8193, 1, 5), (51, 10, 512),
                (52, 10, 512), (511, 1, 512), (512, 1, 512), (512, 1, 513), (513, 1, 512), (20, 10, 32))  # fmt: skip
    ids_of = [routing(rng, *size) for size in sizes_of]
    ids_of += [np.zeros((9, 3), np.int32), np.full((64, 8), 2**31 - 1, np.int32)]
    far = np.array([0, 3, 511, 512, 1023, 70_000, 2**31 - 1], np.int32)
    ids_of += [np.zeros((1025, 8), np.int32), rng.choice(far, (4096, 3))]
    for ids in ids_of:
        for count in {len(ids), len(ids) // 2, 1, 0}:
            want = parsed(*route_list(ids, count=count))
            got = route_list(ids, "cuda", count=count)
            cases.check((ids.shape, count), lambda g=got, w=want: _equal(parsed(*g), w))
    cases.finish()


def _equal(got, want):
    assert got == want


def test_expert_sum():
    rng = np.random.default_rng(2)
    cases = Cases()
    for p, t, n in ((1, 1, 1), (1, 10, 2560), (5, 10, 2560), (40, 3, 701), (100, 2, 64), (20, 10, 2560),
                    (3, 8, 260), (3, 9, 257), (2, 25, 2560), (2, 64, 30)):  # fmt: skip
        x = rng.standard_normal((p * t, n)).astype(F)
        weight = rng.random((p, t)).astype(F)
        want = expert_sum(x, weight)
        cases.same((p, t, n), expert_sum(x, weight, "cuda"), want)
        live = p // 2
        cases.same((p, t, n, live), expert_sum(x, weight, "cuda", count=live)[:live], want[:live])
    cases.finish()


# Products against the definition.


@pytest.mark.parametrize("kind", TYPES)
def test_expert_linear(kind):
    cases = Cases()
    for e, t, n, k in shapes(kind):
        rng = np.random.default_rng(3)
        m = Mixture(kind, e, n, k, rng)
        for p in ROWS:
            ids, x = routing(rng, p, t, e), rows(rng, p * t, k)
            got, want = m.linear(x, ids), m.linear(x, ids, "fast")
            cases.check((e, t, n, k, p), close_linear, got, want)
    cases.finish()


@pytest.mark.parametrize("gelu", [0, 1])
@pytest.mark.parametrize("kind", TYPES)
def test_expert_glu(kind, gelu):
    cases = Cases()
    for e, t, n, k in shapes(kind):
        rng = np.random.default_rng(4)
        m = Mixture(kind, e, n, k, rng)
        for p in ROWS:
            ids, x = routing(rng, p, t, e), rows(rng, p, k)
            got, want = m.glu(x, ids, gelu=gelu), m.glu(x, ids, "fast", gelu)
            cases.check((e, t, n, k, p), near, "BF16", got, want)
    cases.finish()


@pytest.mark.parametrize("kind, n, k", [("IQ3_S", 640, 2560), ("IQ3_XXS", 640, 2560),
                                        ("IQ2_S", 640, 2560), ("IQ4_XS", 640, 2560),
                                        ("IQ4_NL", 2560, 640)])  # fmt: skip
def test_a_large_mixture(kind, n, k):
    """512 experts of which a row takes ten: the shapes that the kernel is made for."""
    rng = np.random.default_rng(5)
    cases = Cases()
    m = Mixture(kind, 512, n, k, rng, copies=64)
    whole = None
    for p in (40, 20, 5, 1):
        ids = routing(np.random.default_rng(6), 40, 10, 512)[:p]
        if kind == "IQ4_NL":
            x = rows(np.random.default_rng(7), 400, k)[: 10 * p]
            got = m.linear(x, ids)
            cases.check((p, "definition"), close_linear, got, m.linear(x, ids, "fast"))
        else:
            x = rows(np.random.default_rng(7), 40, k)[:p]
            got = m.glu(x, ids)
            cases.check((p, "definition"), near, "BF16", got, m.glu(x, ids, "fast"))
        whole = got if whole is None else whole
        cases.same((p, "bits"), got, whole[: 10 * p])
    cases.finish()


@pytest.mark.parametrize("kind", ["IQ3_S", "IQ3_XXS", "IQ2_S", "IQ4_XS"])
def test_the_same_bits_every_time(kind):
    """Memory answers sooner or later, and a copy of weights may not overtake what is still read."""
    m = Mixture(kind, 512, 640, 2560, np.random.default_rng(5), copies=64)
    ids = routing(np.random.default_rng(6), 40, 10, 512)
    x = rows(np.random.default_rng(7), 40, 2560)
    first = m.glu(x, ids).tobytes()
    assert sum(m.glu(x, ids).tobytes() != first for _ in range(20)) == 0


# A route does not know the others.


@pytest.mark.parametrize("kind", TYPES)
def test_a_route_does_not_know_the_others(kind):
    """Any number of rows, at any place, whatever experts the others take and however many of them
    take its own: 1, 2, 3 and 4 routes of an entry, and more than an entry holds."""
    rng = np.random.default_rng(8)
    cases = Cases()
    e, t, n = 12, 3, 72
    k = 5 * block(kind) if block(kind) > 32 else 1120
    m = Mixture(kind, e, n, k, rng)
    x, ids = rows(rng, 40, k), routing(rng, 40, t, e)
    routes = rows(rng, 40 * t, k).reshape(40, t, k)
    whole = m.glu(x, ids).reshape(40, t, n)
    plain = m.linear(routes.reshape(-1, k), ids).reshape(40, t, n)

    def against(what, order, others):
        """Rows `order`, of which the first keeps its experts, the others have those given."""
        mine = others.copy()
        mine[0] = ids[order[0]]
        got = m.glu(x[order], mine).reshape(-1, t, n)
        cases.same(("glu", *what), got[0], whole[order[0]])
        got = m.linear(routes[order].reshape(-1, k), mine).reshape(-1, t, n)
        cases.same(("linear", *what), got[0], plain[order[0]])

    for r in (0, 7, 39):
        for p in range(1, 10):  # all rows at the experts of the first
            order = np.concatenate([[r], rng.integers(0, 40, p - 1)])
            against(("forced", r, p), order, np.tile(ids[r], (p, 1)))
        for p in (2, 5, 20, 40):
            order = np.concatenate([[r], rng.integers(0, 40, p - 1)])
            against(("random", r, p), order, routing(rng, p, t, e))
    for p in (1, 2, 3, 5, 8, 17, 40):
        order = rng.permutation(40)[:p]
        got = m.glu(x[order], ids[order]).reshape(-1, t, n)
        cases.same(("glu", "order", p), got, whole[order])
        got = m.linear(routes[order].reshape(-1, k), ids[order]).reshape(-1, t, n)
        cases.same(("linear", "order", p), got, plain[order])
    for r in (3, 20):  # the same row in all places
        same = m.glu(np.tile(x[r], (20, 1)), np.tile(ids[r], (20, 1))).reshape(20, t, n)
        cases.same(("glu", "everywhere", r), same, np.tile(whole[r], (20, 1, 1)))
    cases.finish()


@pytest.mark.parametrize("kind", ["Q8_0", "IQ3_S"])
def test_rows_that_are_no_numbers(kind):
    """NaN and infinity stay in their row; what is behind the live rows is not read."""
    rng = np.random.default_rng(9)
    cases = Cases()
    m = Mixture(kind, 4, 40, 512, rng)
    x, ids = rows(rng, 20, 512), routing(rng, 20, 2, 4)
    whole = m.glu(x, ids).reshape(20, 2, 40)
    broken = x.copy()
    broken[::3] = np.nan
    broken[1::3] = np.inf
    got = m.glu(broken, ids).reshape(20, 2, 40)
    cases.same("among others", got[2::3], whole[2::3])
    for count in (0, 1, 7):
        behind = x.copy()
        behind[count:] = np.nan
        got = m.glu(behind, ids, count=count).reshape(20, 2, 40)
        cases.same(("live", count), got[:count], whole[:count])
        assert (got[count:] == 0x7FC0).all(), count  # as they were
    cases.finish()


# Packed weights of rank 3, and what has no kernel.


@pytest.mark.parametrize("kind", TYPES)
def test_unpacking_gives_back_every_byte(kind):
    rng = np.random.default_rng(10)
    cases = Cases()
    for matrices, n, units in ((1, 17, 1), (3, 16, 2), (5, 33, 3), (7, 1, 1)):
        k = units * block(kind)
        if kind in IDS:
            raw = random_bytes(kind, matrices * n * k // sizes(kind)[0], rng)
        else:
            width = 1 if kind.startswith("F8") else 2
            raw = rng.integers(0, 256, (matrices * n * k, width), dtype=np.uint8)
        back = np.frombuffer(_native.repack(kind, raw.tobytes(), n, k, matrices)[0], np.uint8)
        cases.same((matrices, n, k), back, raw.ravel())
    cases.finish()


def refused(message: str):
    return pytest.raises(UnsupportedError, match=message)


def test_refusals():
    rng = np.random.default_rng(11)
    ids = routing(rng, 2, 2, 3)
    x = rows(rng, 2, 64)
    half, _ = expert_weights("F16", 3, 16, 64, rng)
    q8, _ = expert_weights("Q8_0", 3, 16, 64, rng)
    whole, _ = expert_weights("F32", 3, 16, 64, rng)
    with refused(r"expert_glu on CUDA: w\[1\]: expected the type of w\[0\], found Q8_0"):
        expert_glu(rounded(x), ids, half, q8, 16, 0, "cuda")
    with refused(r"expert_glu on CUDA: x: expected BF16 \(numerics bf16\), found F32"):
        expert_glu(x, ids, half, half, 16, 0, "cuda")
    with refused(r"expert_linear on CUDA: x: expected BF16 \(numerics bf16\), found F32"):
        expert_linear(np.repeat(x, 2, 0), ids, half, 16, "cuda")
    with refused("expert_linear on CUDA: w: expected a type of weights that experts have kernels "
                 "for, found F32"):  # fmt: skip
        expert_linear(rounded(np.repeat(x, 2, 0)), ids, whole, 16, "cuda")
    odd, _ = expert_weights("F16", 3, 16, 48, rng)
    with refused("expert_linear on CUDA: w: expected a multiple of 32 columns, found 48"):
        expert_linear(rounded(rows(rng, 4, 48)), ids, odd, 16, "cuda")
