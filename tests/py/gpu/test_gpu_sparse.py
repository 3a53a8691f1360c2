"""Ops of hybrid models on CUDA: block-sparse attention, routing, hyper-connections, linear_argmax.
Against the definition on the cases of the CPU's tests, and rows that get the same bits whatever the
pass, the slot, the tier and the neighbours are."""

from __future__ import annotations

import numpy as np
import pytest
import sparse
import test_ops_experts as expert_cases
import test_ops_sparse as sparse_cases
from expert_tools import expert_glu, expert_linear, expert_weights, routing
from gpu_tools import SPLIT, THREADS, F, behind, block, near, rounded, rows_apart
from op_tools import act, act_out, ints, row_table, run, weights
from stoker import UnsupportedError, _native
from test_ops_sparse import (
    attend_blocks,
    attend_case,
    block_topk,
    choose,
    hide,
    index_append,
    index_case,
    route_topk,
    stored,
    widened,
)
from test_ops_streams import EPS, normal, same, stream_values
from tolerances import close_attend, close_bf16, close_elements, from_bf16

pytestmark = pytest.mark.gpu
RATIOS = (1, 2, 4, 5)
WEIGHTS = ("F32", "F16", "BF16", "Q8_0", "Q6_K", "Q4_K", "IQ4_NL")


def values(rng, *shape):
    """Random numbers that BF16 can represent."""
    return act(rng.standard_normal(shape), "BF16")[1]


# index_append


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("d", [16, 28, 6, 128, 700, 2600])
def test_index_append(d, ratio):
    rng = np.random.default_rng(1)
    for start in range(ratio):
        k, gain, freq, slots, pos, raw, pooled = index_case(rng, "BF16", ratio, start, d)
        freq = freq[: min(len(freq), 40)]
        args = {}
        for table in ("definition", "cuda"):
            raw_arg, raw_out = stored(raw, "BF16")
            pooled_arg, pooled_out = stored(pooled, "BF16")
            index_append(
                k, gain, freq, slots, pos, raw_arg, pooled_arg, ratio, table, 2, len(k) + 3
            )
            args[table] = raw_out, pooled_out
        (want_raw, want), (got_raw, got) = args["definition"], args["cuda"]
        assert np.array_equal(widened(got_raw), widened(want_raw), equal_nan=True)
        close_bf16(got, from_bf16(want))
        assert (got[want == stored(np.array([7], F), "BF16")[1]] == 0x40E0).all()


@pytest.mark.parametrize("ratio", RATIOS)
def test_a_pooled_key_is_a_mean_normed_and_rotated(ratio):
    """Bit for bit, by the ops of these names on the same device."""
    sparse_cases.test_a_pooled_key_is_a_mean_normed_and_rotated(ratio, "BF16", "cuda")


@pytest.mark.parametrize("ratio", RATIOS)
def test_index_append_in_any_portions(ratio):
    rng = np.random.default_rng(3)
    for d in (48, 1100):
        k = rng.standard_normal((17, d)).astype(F)
        gain, freq = np.ones(d, F), np.array([1, 0.3], F)
        results = set()
        for portions, slot, c in (
            ([17], 1, 17),
            ([17], 0, 40),
            ([1] * 17, 2, 17),
            ([3, 8, 1, 5], 0, 19),
        ):
            raw_arg, raw = stored(np.full((3, c, d), np.nan), "BF16")
            pooled_arg, pooled = stored(np.full((3, -(-c // ratio), d), np.nan), "BF16")
            at = 0
            for n in portions:
                rows = list(range(at, at + n))
                index_append(
                    k[rows], gain, freq, [slot] * n, rows, raw_arg, pooled_arg, ratio, "cuda"
                )
                at += n
            blocks = 17 // ratio
            results.add(raw[slot, :17].tobytes() + pooled[slot, :blocks].tobytes())
            assert np.isnan(widened(np.delete(pooled, slot, axis=0))).all()
            assert np.isnan(widened(pooled[slot, blocks:])).all()
        assert len(results) == 1


# block_topk: the scores have the definition's bits, so the choice is the same.


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("h, d", [(4, 32), (1, 128), (3, 7), (2, 20), (9, 64)])
def test_block_topk(h, d, ratio):
    rng = np.random.default_rng(4)
    n = 300
    for p, k in ((7, 1), (7, 6), (1, 12), (5, 130), (5, 400), (41, 20)):
        q = values(rng, p, h, d)
        pooled = values(rng, 3, n, d)
        slots = np.sort(rng.integers(0, 3, p)).tolist()
        pos = rng.integers(0, n * ratio, p).tolist()
        pos[0], pos[-1] = max(0, ratio - 2), n * ratio - 1
        for b in range(3):
            seen = [(x + 1) // ratio for s, x in zip(slots, pos, strict=True) if s == b]
            pooled[b, max(seen, default=0) :] = np.nan
        want = block_topk(q, pooled, slots, pos, "BF16", ratio, k)
        for capacity in (p, p + 2):
            got = block_topk(q, pooled, slots, pos, "BF16", ratio, k, "cuda", 1, 0.3, capacity)
            assert got.tolist() == want.tolist(), (p, k)
        longest = max(pos) + 1
        for bound in (longest, longest + ratio, 4096, 100000):
            got = block_topk(q, pooled, slots, pos, "BF16", ratio, k, f"cuda-{bound}")
            assert got.tolist() == want.tolist(), (p, k, bound)


def test_many_blocks():
    """A third of the scores tie at zero."""
    rng = np.random.default_rng(13)
    q = values(rng, 5, 1, 16)
    pooled = values(rng, 2, 60000, 16)
    pooled[rng.random(pooled.shape[:2]) < 0.3] = 0
    slots, pos = [0, 0, 0, 1, 1], [80000, 80001, 119999, 5, 119998]
    for k in (1, 512, 4000, 30000):
        want = block_topk(q, pooled, slots, pos, "BF16", 2, k, "definition", THREADS)
        assert block_topk(q, pooled, slots, pos, "BF16", 2, k, "cuda").tobytes() == want.tobytes()


def test_ties_and_nan():
    """By one head whose products are the given numbers."""
    nan = float("nan")

    def chosen(scores, k, table, scale=1.0):
        pooled = np.zeros((1, len(scores), 8), F)
        pooled[0, :, 3] = scores
        q = np.zeros((1, 1, 8), F)
        q[..., 3] = 1
        at = [len(scores) - 1]
        return block_topk(q, pooled, [0], at, "BF16", 1, k, table, 2, scale)[0].tolist()

    cases = [([1, 3, 2, 3, 0, 5], 3), ([1, 3, 2, 3, 0, 5], 2), ([2] * 6, 4), ([-3, -1, -2, 4, -5], 3),
             ([nan, nan, -1, 1, nan], 2), ([nan, nan, -1, 1, nan], 3), ([nan, nan, nan], 2),
             ([1, 2, np.inf, -np.inf], 1), ([1, 2, 3], 7)]  # fmt: skip
    for scores, k in cases:
        assert chosen(scores, k, "cuda") == chosen(scores, k, "definition"), (scores, k)
        assert chosen(scores, k, "definition") == choose(scores, k, "definition")
    for scale in (-1.0, 0.0):
        assert chosen([5, 9, 7, 9], 2, "cuda", scale) == chosen(
            [5, 9, 7, 9], 2, "definition", scale
        )
    rng = np.random.default_rng(5)
    for n in (2, 3, 17, 64, 257, 1500, 5000):
        for k in {1, 2, n // 2, n - 1} - {0}:
            scores = rng.integers(-2, 4, n).astype(F)
            scores[rng.random(n) < 0.1] = nan
            kept = np.where(scores < 0, 0, scores).tolist()
            assert chosen(scores, k, "cuda") == sorted(sparse.ranked(kept)[:k]), (n, k)


# attend_blocks


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize(
    "h, hkv, d", [(6, 2, 32), (2, 2, 16), (9, 1, 80), (24, 2, 256), (4, 4, 64)]
)
@pytest.mark.parametrize("gated", [False, True])
def test_attend_blocks(gated, h, hkv, d, ratio):
    rng = np.random.default_rng(6)
    for c, k in ((53, 4), (700, 90), (300, 400)):
        q, gate, keys, v, blocks, slots, pos = attend_case(rng, "BF16", ratio, h=h, hkv=hkv, d=d, c=c,
                                                           k=k)  # fmt: skip
        gate = gate if gated else None
        hide((keys, v), blocks, slots, pos, ratio)
        case = (q, gate, keys, v, blocks, slots, pos, "BF16")
        how = {"ratio": ratio, "split": SPLIT, "scale": d**-0.5 / 2}
        want = attend_blocks(*case, "definition", THREADS, **how)
        got = attend_blocks(*case, "cuda", **how)
        close_attend(got, from_bf16(want))
        for capacity in (8, 41):
            wide = attend_blocks(*case, "cuda", capacity=capacity, **how)
            assert wide.tobytes() == got.tobytes()
        for bound in (c + 1, 2048, 32768):
            assert attend_blocks(*case, f"cuda-{bound}", **how).tobytes() == got.tobytes()


@pytest.mark.parametrize("ratio", RATIOS)
def test_all_blocks_are_attend(ratio):
    rng = np.random.default_rng(8)
    for d, c in ((32, 53), (64, 600), (256, 1100)):
        q, _, k, v, _, slots, _ = attend_case(rng, "BF16", ratio, p=9, d=d, c=c)
        pos = [*range(8), c - 1]
        blocks = np.full((9, -(-c // ratio)), -1, np.int32)
        for r, p in enumerate(pos):
            blocks[r, : (p + 1) // ratio] = range((p + 1) // ratio)
        got = attend_blocks(
            q, None, k, v, blocks, slots, pos, "BF16", "cuda", ratio=ratio, split=SPLIT
        )
        arg, want = act_out(q.shape, "BF16")
        run("attend", "cuda", 1, q=rounded(q), k_cache=rounded(k), v_cache=rounded(v),
            rows=row_table(slots, pos), count=ints(9), out=arg, scale=0.125, window=0, split=SPLIT)  # fmt: skip
        assert got.tobytes() == want.tobytes()


def test_a_row_knows_only_its_own_blocks():
    rng = np.random.default_rng(9)
    q, gate, k, v, blocks, slots, pos = attend_case(rng, "BF16", 4, p=8, c=800, k=120, h=10)
    how = {"ratio": 4, "split": SPLIT}
    want = attend_blocks(q, gate, k, v, blocks, slots, pos, "BF16", "cuda", **how)
    for r in range(8):
        moved = (slots[r] + 1) % 3  # the same history in another slot of a longer cache
        own = sparse.seen(blocks[r], pos[r], 4)
        k2, v2 = (np.full((3, 900, *k.shape[2:]), np.nan, F) for _ in range(2))
        k2[moved, own], v2[moved, own] = k[slots[r], own], v[slots[r], own]
        wider = np.append(blocks[r], [-1, -1])[None]
        alone = attend_blocks(q[r : r + 1], gate[r : r + 1], k2, v2, wider, [moved], [pos[r]], "BF16",
                              "cuda", capacity=2, **how)  # fmt: skip
        assert alone[0].tobytes() == want[r].tobytes()


def test_flash_next():
    """The sizes of the model, a verify pass of five rows in a long context."""
    rng = np.random.default_rng(10)
    c, ratio, most = 3000, 4, 512
    q, gate, k, v, _, _, _ = attend_case(rng, "BF16", ratio, p=5, h=24, hkv=2, d=256, b=1, c=c)
    pos, slots = list(range(c - 5, c)), [0] * 5
    index_q, pooled = values(rng, 5, 4, 128), values(rng, 1, c // ratio, 128)
    want = block_topk(index_q, pooled, slots, pos, "BF16", ratio, most)
    blocks = block_topk(index_q, pooled, slots, pos, "BF16", ratio, most, "cuda-32768")
    assert blocks.tolist() == want.tolist()
    case = (q, gate, k, v, blocks, slots, pos, "BF16")
    how = {"ratio": ratio, "split": SPLIT, "scale": 1 / 16}
    got = attend_blocks(*case, "cuda-32768", **how)
    close_attend(got, from_bf16(attend_blocks(*case, "definition", THREADS, **how)))
    for r in range(5):
        one = slice(r, r + 1)
        alone = attend_blocks(
            q[one], gate[one], k, v, blocks[one], [0], pos[one], "BF16", "cuda", **how
        )
        assert alone[0].tobytes() == got[r].tobytes()


# route_topk, route_force, gate_add


@pytest.mark.parametrize("normed", [0, 1])
def test_route_topk(normed):
    rng = np.random.default_rng(10)
    for p, e, t in ((1, 1, 1), (5, 8, 2), (40, 512, 10), (3, 17, 17), (7, 9, 1), (2, 13, 12), (5, 513, 64),
                    (3, 5000, 8), (2, 65536, 10), (400, 512, 10), (5, 33, 31), (5, 512, 32), (5, 512, 33),
                    (5, 511, 31), (5, 4096, 10)):  # fmt: skip
        logits = (rng.standard_normal((p, e)) * 3).astype(F)
        logits[:, e // 2 :] = np.round(logits[:, e // 2 :])  # many that are equal
        want_ids, want = sparse.route_topk(logits, t, normed)  # long sums differ between devices
        ids, weight = route_topk(logits, t, normed, "cuda")
        assert ids.tolist() == want_ids.tolist()
        close_elements(weight, want)
        wide = np.full((p + 2, e + 3), np.nan, F)  # rows that are apart, and some that do not live
        wide[:p, 1 : e + 1] = logits
        more = route_topk(wide[:, 1 : e + 1], t, normed, "cuda", 1, p)
        assert more[0][:p].tobytes() == ids.tobytes()
        assert more[1][:p].tobytes() == weight.tobytes()
        assert (more[0][p:] == -7).all()
        assert route_topk(logits[-1:], t, normed, "cuda")[1].tobytes() == weight[-1:].tobytes()


@pytest.mark.parametrize("normed", [0, 1])
def test_route_topk_of_uneven_rows(normed):
    rng = np.random.default_rng(12)
    for e, t in ((64, 4), (500, 10), (512, 10), (512, 1)):
        logits = (rng.standard_normal((5, e)) * 3).astype(F)
        logits[0] = -0.0  # all equal
        logits[0, ::2] = 0
        logits[1, 5::32] += 9  # large ones in one lane, and in some
        logits[2, 3::8] += 9
        logits[3, ::5] = 2.875  # equal, and above most
        logits[4, e // 2 :] = np.round(logits[4, e // 2 :])
        want_ids, want = sparse.route_topk(logits, t, normed)
        ids, weight = route_topk(logits, t, normed, "cuda")
        assert ids.tolist() == want_ids.tolist()
        close_elements(weight, want)


def test_routes_of_equal_and_missing_logits():
    sparse_cases.test_routes_of_equal_and_missing_logits("cuda")


def test_route_force():
    sparse_cases.check_route_force("cuda")


def test_gate_add():
    rng = np.random.default_rng(11)
    for p, d in ((1, 1), (5, 64), (40, 2560), (3, 701)):
        x, y = (rng.standard_normal((p, d)).astype(F) for _ in range(2))
        gate = (rng.standard_normal((p, 1)) * 3).astype(F)
        outs = []
        for table in ("definition", "cuda"):
            out = behind(y, p, p + 2)
            run("gate_add", table, 1, x=behind(x, p, p + 2), gate=behind(gate, p, p + 2), count=ints(p),
                y=out)  # fmt: skip
            assert np.isnan(out[p:]).all()
            outs.append(out[:p])
        close_elements(outs[1], outs[0])
    for gate, want in ((200, [5, -1]), (-200, [1, 1])):
        y = np.ones((1, 2), F)
        run("gate_add", "cuda", 1, x=np.array([[4, -2]], F), gate=np.full((1, 1), gate, F), count=ints(1),
            y=y)  # fmt: skip
        assert y.tolist() == [want]


# hyper_down, hyper_mix


def hyper_down(s, gain, w, n_low, inject=None, table="cuda", count=None):
    """(low as stored, factors of streams, factors of injection or None)."""
    arg, low = act_out((len(s), n_low), "BF16")
    norms = np.full(s.shape[:2], np.nan, F)
    factors = None if inject is None else np.full(s.shape[:2], np.nan, F)
    run("hyper_down", table, THREADS, s=s, gain=gain, count=ints(len(s) if count is None else count),
        w0=w, w1=inject, low=arg, factor=norms, inject=factors, eps=EPS)  # fmt: skip
    return low, norms, factors


def norms_of(s):
    with np.errstate(all="ignore"):  # rows that mean nothing
        return (1 / np.sqrt(np.square(s, dtype=np.float64).mean(-1) + EPS)).astype(F)


def hyper_mix(low, w, s, gain, table="cuda", count=None):
    arg, out = act_out((len(s), s.shape[2]), "BF16")
    run("hyper_mix", table, THREADS, low=rounded(low), w=w, s=s, gain=gain,
        factor=norms_of(s), count=ints(len(s) if count is None else count), out=arg)  # fmt: skip
    return out


def down_shapes(kind: str):
    """(streams, elements of each, outputs): whole slices, long ones, and streams that cross them."""
    if block(kind) == 256:
        return (2, 256, 19), (4, 512, 33), (4, 64, 19), (3, 2560, 7), (8, 160, 16), (1, 256, 3)
    shapes = (
        (4, 512, 33),
        (4, 64, 19),
        (3, 2560, 7),
        (2, 48, 5),
        (4, 24, 9),
        (12, 32, 17),
        (1, 32, 3),
    )
    return (*shapes, (3, 7, 5), (4, 13, 9)) if kind in ("F32", "F16", "BF16") else shapes


@pytest.mark.parametrize("other", ["F32", "same"])
@pytest.mark.parametrize("kind", WEIGHTS)
def test_hyper_down(kind, other):
    rng = np.random.default_rng(2)
    for n_streams, dim, n in down_shapes(kind):
        wide = n_streams * dim
        w, w_values = weights(kind, n, wide, rng)
        inject, _ = weights(kind if other == "same" else "F32", n_streams, wide, rng)
        s, gain = stream_values(rng, 100, n_streams, dim)
        gain /= np.abs(w_values).max() * wide**0.5 / 4  # sums of order one
        want = hyper_down(s[:9], gain, w, n, inject, "definition")
        whole = hyper_down(s, gain, w, n, inject)
        close_bf16(whole[0][:9], from_bf16(want[0]))
        close_elements(whole[1][:9], want[1])
        close_elements(whole[2][:9], want[2])
        for p in (1, 5, 9, 20, 40, 41):
            got = hyper_down(s[:p], gain, w, n, inject)
            assert same(got, [x[:p] for x in whole]), (n_streams, dim, p)
        assert same(hyper_down(s[:5], gain, w, n), (whole[0][:5], whole[1][:5], None))
        for count, p in ((0, 5), (3, 5), (9, 40), (7, 64)):
            got = hyper_down(behind(s, count, p), gain, w, n, inject, count=count)
            assert same([x[:count] for x in got], [x[:count] for x in whole])
            assert (got[0][count:] == 0x7FC0).all()
            assert np.isnan(got[1][count:]).all() and np.isnan(got[2][count:]).all()
        apart = rows_apart(s[:5])
        assert same(hyper_down(apart, gain, w, n, inject), [x[:5] for x in whole])


@pytest.mark.parametrize("kind", WEIGHTS)
def test_hyper_mix(kind):
    rng = np.random.default_rng(4)
    plain = kind in ("F32", "F16", "BF16")
    for n_streams, dim in ((2, 5), (3, 256), (4, 300), (4, 2560), (1, 8), (16, 33)):
        k = 16 if plain and dim in (256, 33) else max(block(kind), 64)
        w, w_values = weights(kind, n_streams * dim, k, rng)
        low = normal(rng, 60, k) / np.abs(w_values).max()
        s, gain = stream_values(rng, 60, n_streams, dim)
        want = hyper_mix(low[:9], w, s[:9], gain, "definition")
        whole = hyper_mix(low, w, s, gain)
        close_bf16(whole[:9], from_bf16(want))
        for p in (1, 5, 9, 40, 41):
            assert hyper_mix(low[:p], w, s[:p], gain).tobytes() == whole[:p].tobytes()
        got = hyper_mix(behind(low, 7, 20), w, behind(s, 7, 20), gain, count=7)
        assert got[:7].tobytes() == whole[:7].tobytes() and (got[7:] == 0x7FC0).all()
        apart = rows_apart(s[:5])
        assert hyper_mix(low[:5], w, apart, gain).tobytes() == whole[:5].tobytes()


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0"])
def test_hyper_mix_in_one_launch(kind):
    """The bits of the other kernels, for any number of rows that live."""
    rng = np.random.default_rng(6)
    for n_streams, dim, n in ((4, 2560, 320), (4, 512, 33), (8, 256, 16), (2, 1280, 2048)):
        wide = n_streams * dim
        up, up_values = weights(kind, wide, n // 32 * 32 or 32, rng)
        s, gain = stream_values(rng, 40, n_streams, dim)
        low = normal(rng, 40, up_values.shape[1]) / np.abs(up_values).max()
        for rows in (1, 5, 9, 20, 40):
            args = (low[:rows], up, s[:rows], gain)
            assert hyper_mix(*args, table="cuda-fused").tobytes() == hyper_mix(*args).tobytes()
        for count in (0, 3, 17):
            args = (behind(low, count, 40), up, behind(s, count, 40), gain)
            one = hyper_mix(*args, table="cuda-fused", count=count)
            assert one.tobytes() == hyper_mix(*args, count=count).tobytes()


def test_hyper_connections_of_flash_next():
    rng = np.random.default_rng(5)
    n_streams, dim, n = 4, 2560, 320
    s, gain = stream_values(rng, 20, n_streams, dim)
    for kind in ("Q8_0", "BF16", "Q4_1"):
        w, w_values = weights(kind, n, n_streams * dim, rng)
        inject, _ = weights("F32", n_streams, n_streams * dim, rng)
        up, up_values = weights(kind, n_streams * dim, n, rng)
        scale = (gain / (np.abs(w_values).max() * 25)).astype(F)
        whole = hyper_down(s, scale, w, n, inject)
        want = hyper_down(s, scale, w, n, inject, "definition")
        near("BF16", whole[0], want[0])
        close_elements(whole[1], want[1])
        close_elements(whole[2], want[2])
        low = from_bf16(want[0]) / np.abs(up_values).max()
        mixed = hyper_mix(low, up, s, gain)
        close_bf16(mixed, from_bf16(hyper_mix(low, up, s, gain, "definition")))
        for r in (0, 7, 19):
            one = slice(r, r + 1)
            assert same(hyper_down(s[one], scale, w, n, inject), [x[one] for x in whole])
            assert hyper_mix(low[one], up, s[one], gain).tobytes() == mixed[one].tobytes()


# linear_argmax


@pytest.mark.parametrize("kind", WEIGHTS)
def test_linear_argmax_is_both(kind):
    """The sums of linear, the choice of argmax, on the same device."""
    rng = np.random.default_rng(12)
    for v, k in ((77, 256), (5003, 768), (33, 2048)):
        w, _ = weights(kind, v, k, rng)
        bias = rng.standard_normal(v).astype(F)
        for p in (1, 9, 20, 40, 41, 100):
            x = rounded(rng.standard_normal((p, k)))
            for parts in ({}, {"bias": bias}):
                y = np.full((p, v), np.nan, F)
                run("linear", "cuda", 1, x=x, count=ints(p), w0=w, y0=y,
                    **{f"{name}0": a for name, a in parts.items()})  # fmt: skip
                got = np.full(p, -7, np.int32)
                run("linear_argmax", "cuda", 1, x=x, count=ints(p), w=w, id=got, **parts)
                assert got.tolist() == y.argmax(axis=1).tolist(), (v, k, p)
                few = np.full(p, -7, np.int32)
                run("linear_argmax", "cuda", 1, x=x, count=ints(p // 2), w=w, id=few, **parts)
                assert few[: p // 2].tolist() == got[: p // 2].tolist()
                assert (few[p // 2 :] == -7).all()


# Experts whose matrices lie apart in the file.


@pytest.mark.parametrize("kind", ["BF16", "Q8_0", "Q4_K"])
def test_matrices_that_are_apart(kind):
    rng = np.random.default_rng(9)
    p, t, e, n, k = 9, 2, 5, 7, max(block(kind), 64)
    gate, _ = expert_weights(kind, e, n, k, rng)
    up, _ = expert_weights(kind, e, n, k, rng)
    ids = routing(rng, p, t, e)
    x, routes = (rounded(rng.standard_normal((m, k)) / 20) for m in (p, p * t))
    want, both = (
        expert_linear(routes, ids, gate, n, "cuda"),
        expert_glu(x, ids, gate, up, n, 0, "cuda"),
    )
    for order, gap in (((0, 1, 2, 3, 4), 64), ((0, 4, 2, 1, 3), 8), ((3, 0, 1, 4, 2), 128)):
        w, at = expert_cases.apart(gate, order, gap)
        u, at_up = expert_cases.apart(up, order[::-1], gap)
        assert expert_linear(routes, ids, w, n, "cuda", at=at).tobytes() == want.tobytes()
        for args in ((w, up, (at, None)), (gate, u, (None, at_up)), (w, u, (at, at_up))):
            got = expert_glu(x, ids, *args[:2], n, 0, "cuda", at=args[2])
            assert got.tobytes() == both.tobytes()


# What is refused.


def test_what_has_no_kernel():
    rows, count = row_table([0], [3]), ints(1)
    x = np.zeros((1, 1, 24), F)
    cache = rounded(np.zeros((1, 8, 1, 24)))
    attended = {"q": rounded(x), "k_cache": cache, "v_cache": cache, "blocks": np.zeros((1, 1), np.int32),
                "rows": rows, "count": count, "out": act_out(x.shape, "BF16")[0], "scale": 1.0,
                "ratio": 4, "split": SPLIT}  # fmt: skip
    routes = {"logits": np.zeros((1, 70), F), "count": count, "ids": np.zeros((1, 65), np.int32),
              "weight": np.zeros((1, 65), F), "normed": 1}  # fmt: skip
    for name, fields, text in (
        ("attend_blocks", attended, "q: expected heads of 16 to 256 elements"),
        ("route_topk", routes, "ids: expected at most 64 routes of a row, found 65"),
    ):
        with pytest.raises(UnsupportedError, match=text):
            _native.run_op(name, fields, "cuda", 1)
