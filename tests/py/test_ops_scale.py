"""linear with scales on top of the format, and the 8-bit floats as weights."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import stoker
from op_tools import FAST, FLOAT8, TABLES, act, ints, run, weights
from tolerances import SUM_ERROR

KINDS = (
    "F8_E4M3",
    "F8_E5M2",
    "BF16",
    "F32",
    "Q8_0",
    "Q4_K",
    "Q2_K",
    "Q6_K",
    "NVFP4",
    "IQ4_NL",
    "I8",
)


SHA = {"F8_E4M3": "422eccfaa21e72a6b26855bb10cdcfead6c1ce3262ecd813c99d8cbf9677f2e2",
       "F8_E5M2": "229a94c5f728edf2259da970a0e1dfb45cc1d69cce2b30e37659f3212ec4b8b9"}  # fmt: skip


@pytest.mark.parametrize("kind", SHA)
def test_float8_values(kind, tmp_path):
    from sft_bytes import build

    path = tmp_path / "f.safetensors"
    path.write_bytes(build({"t": (kind, np.arange(256, dtype=np.uint8))}))
    got = stoker.open(path)["t"].dequantize()
    bits = np.where(np.isnan(got), np.uint32(0x7FC00000), got.view(np.uint32)).astype("<u4")
    assert np.array_equal(got, FLOAT8[kind], equal_nan=True)
    assert np.array_equal(np.signbit(got), np.signbit(FLOAT8[kind]) & ~np.isnan(got))
    assert hashlib.sha256(bits.tobytes()).hexdigest() == SHA[kind]


def test_e8m0_values(tmp_path):
    from sft_bytes import build

    path = tmp_path / "f.safetensors"
    path.write_bytes(build({"t": ("F8_E8M0", np.arange(256, dtype=np.uint8))}))
    got = stoker.open(path)["t"].dequantize()
    assert np.array_equal(got[:255], np.float32(2.0) ** (np.arange(255) - 127.0)) and np.isnan(
        got[255]
    )


def weight(kind, n, k, rng):
    if kind not in FLOAT8:
        return weights(kind, n, k, rng)
    finite = np.flatnonzero(np.isfinite(FLOAT8[kind]) & (np.abs(FLOAT8[kind]) < 500))
    codes = rng.choice(finite, (n, k)).astype(np.uint8)
    return (kind, codes, (n, k)), FLOAT8[kind][codes]


def scaled(x, w, n_out, rows, scale, sn, sk, table, threads=1, **more):
    y = np.full((rows, n_out), np.nan, np.float32)
    run("linear", table, threads, x=x, count=ints(rows), w0=w, y0=y, scale0=scale, scale_n0=sn,
        scale_k0=sk, **more)  # fmt: skip
    return y


def close(got, x, w):
    """Within the error of FP32 sums, also where the terms cancel."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    assert (np.abs(got - x @ w.T) <= SUM_ERROR * (np.abs(x) @ np.abs(w).T)).all()


GRIDS = ((128, 128), (1, 1 << 30), (1 << 30, 1 << 30), (3, 32), (5, 256), (1, 512))


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", KINDS)
def test_scales(kind, table):
    rng = np.random.default_rng(5)
    for sn, sk in GRIDS:
        for n, k, p in ((1, 256, 1), (130, 512, 3), (7, 1280, 4), (20, 768, 9), (6, 256, 70)):
            w, values = weight(kind, n, k, rng)
            scale = rng.uniform(-2, 2, (-(-n // sn), -(-k // sk))).astype(np.float32)
            x, xv = act(rng.standard_normal((p, k)), "BF16")
            whole = np.repeat(np.repeat(scale, min(sn, n), 0)[:n], min(sk, k), 1)[:, :k]
            got = scaled(x, w, n, p, scale, sn, sk, "definition")
            close(got, xv, values.astype(np.float64) * whole)
            for threads in (1, 3):
                fast = scaled(x, w, n, p, scale, sn, sk, table, threads)
                assert fast.tobytes() == got.tobytes(), (n, k, p, sn, sk)


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2", "F32"])
def test_partial_edges(kind):
    rng = np.random.default_rng(6)
    for n, k in ((129, 300), (1, 1), (127, 131), (256, 129)):
        w, values = weight(kind, n, k, rng)
        scale = rng.uniform(0.5, 2, (-(-n // 128), -(-k // 128))).astype(np.float32)
        x, xv = act(rng.standard_normal((5, k)), "F32")
        whole = np.repeat(np.repeat(scale, 128, 0)[:n], 128, 1)[:, :k]
        got = scaled(x, w, n, 5, scale, 128, 128, "definition")
        close(got, xv, values.astype(np.float64) * whole)
        for table in FAST:
            assert scaled(x, w, n, 5, scale, 128, 128, table).tobytes() == got.tobytes()


def test_scale_is_folded_into_the_groups_scale():
    """fl(group.scale * s), not the sum times s."""
    d, s = np.float16(0.1), np.float32(0.3)
    raw = np.concatenate([np.array([d]).view(np.uint8), np.arange(1, 33, dtype=np.uint8)])
    x = np.ones((1, 32), np.float32)
    got = scaled(x, ("Q8_0", raw, (1, 32)), 1, 1, np.array([[s]]), 1, 32, "definition")
    fold = np.float32(np.float32(d) * s)
    lanes = np.arange(1, 33, dtype=np.float32).reshape(4, 8).sum(0)
    p = (fold * lanes).astype(np.float32)
    want = ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]))
    assert got[0, 0] == want


@pytest.mark.parametrize("table", TABLES)
def test_one_scale_of_one_changes_nothing(table):
    rng = np.random.default_rng(7)
    for kind in ("Q4_K", "F8_E4M3", "Q5_1"):
        w, _ = weight(kind, 9, 512, rng)
        x, _ = act(rng.standard_normal((3, 512)), "BF16")
        y = np.empty((3, 9), np.float32)
        run("linear", table, 1, x=x, count=ints(3), w0=w, y0=y)
        one = np.ones((1, 1), np.float32)
        assert scaled(x, w, 9, 3, one, 9, 512, table).tobytes() == y.tobytes()


@pytest.mark.parametrize(
    "fields, names",
    [
        ({"scale_n0": 0}, r"scale_n\[0\]: expected at least 1"),
        ({"scale_k0": -1}, r"scale_k\[0\]: expected at least 1"),
        ({"scale_k0": 48}, r"scale_k\[0\]: expected a multiple of the group of 32"),
        ({"scale_n0": 3}, r"scale\[0\]: expected \[3, 1\] F32, found \[1, 1\]"),
        ({"scale_k0": 32}, r"scale\[0\]: expected \[1, 2\] F32"),
        ({"scale0": np.ones((1, 1), np.float16)}, r"scale\[0\]: expected .* F32, found .* F16"),
        ({"scale0": None}, r"scale\[0\]: expected a view"),
        ({"scale1": np.ones((1, 1), np.float32)}, r"scale\[1\]: expected no view"),
    ],
)
def test_refused(fields, names):
    base = {"x": np.ones((1, 64), np.float32), "count": ints(1), "y0": np.ones((1, 8), np.float32),
            "w0": np.ones((8, 64), np.float32), "scale0": np.ones((1, 1), np.float32),
            "scale_n0": 8, "scale_k0": 64}  # fmt: skip
    with pytest.raises(stoker.InvalidArgumentError, match=names):
        run("linear", "fast", 1, **(base | fields))
