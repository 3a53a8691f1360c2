"""Arrays in and out of single ops, and random weights of every type."""

from __future__ import annotations

import numpy as np
from blocks import HALVES, IDS, random_blocks, reference, sizes
from stoker import _native
from tolerances import from_bf16, to_bf16

I32 = np.int32
ISAS = ("generic", "avx2", "avx512")  # each needs what the ones before it need
FAST = ISAS[: ISAS.index(_native.cpu_isa()) + 1]  # those that run on this processor
TABLES = ("definition", *FAST)
BLOCKS = tuple(name for name in IDS if name != "Q8_K")  # which is no type of weights
PLAIN = {"F32": np.float32, "F16": np.float16, "F64": np.float64, "I8": np.int8,
         "I16": np.int16, "I32": np.int32, "I64": np.int64}  # fmt: skip
TYPES = (*BLOCKS, "BF16", *PLAIN)
FAST_TYPES = (*BLOCKS, "BF16", "F32", "F16")


def run(name: str, table: str = "definition", threads: int = 1, /, **fields) -> None:
    """Keywords w0, y1, bias2 stand for w[0], y[1], bias[2]."""
    named = {f"{k[:-1]}[{k[-1]}]" if k[-1].isdigit() else k: v for k, v in fields.items()}
    _native.run_op(name, {k: v for k, v in named.items() if v is not None}, table, threads)


def ints(*values: int) -> np.ndarray:
    return np.array(values, I32)


def act(x: np.ndarray, kind: str):
    """(argument, represented values) of activations of type BF16 or F32."""
    x = np.ascontiguousarray(x, np.float32)
    if kind == "F32":
        return x, x
    bits = to_bf16(x)
    return bf16(bits), from_bf16(bits)


def bf16(bits: np.ndarray):
    return "BF16", bits, bits.shape


def act_out(shape, kind: str):
    """(argument, array) of an output of type BF16 or F32, full of NaN."""
    if kind == "F32":
        out = np.full(shape, np.nan, np.float32)
        return out, out
    bits = np.full(shape, 0x7FC0, np.uint16)
    return bf16(bits), bits


def e4m3() -> np.ndarray:
    """The 256 values, by the definition of the format."""
    b = np.arange(256)
    sign, e, m = np.where(b & 128, -1.0, 1.0), b >> 3 & 15, b & 7
    x = sign * np.where(e == 0, m * 2.0**-9, (1 + m / 8) * 2.0 ** (e - 7.0))
    x[(b & 127) == 127] = np.nan
    return x.astype(np.float32)


def e5m2() -> np.ndarray:
    return (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float32)


FLOAT8 = {"F8_E4M3": e4m3(), "F8_E5M2": e5m2()}


def weights(kind: str, n: int, k: int, rng: np.random.Generator):
    """(argument, values) of a random weight [n, k]."""
    if kind == "BF16":
        return act(rng.standard_normal((n, k)), kind)
    if kind in PLAIN:
        dtype = np.dtype(PLAIN[kind])
        draw = rng.standard_normal((n, k)) if dtype.kind == "f" else rng.integers(-99, 100, (n, k))
        w = draw.astype(dtype)
        return w, w.astype(np.float32)
    if kind in FLOAT8:
        small = np.flatnonzero(np.abs(FLOAT8[kind]) < 4)
        codes = rng.choice(small, (n, k)).astype(np.uint8)
        return (kind, codes, (n, k)), FLOAT8[kind][codes]
    blocks = random_blocks(kind, n * k // sizes(kind)[0], 1.0, rng)
    for at in HALVES.get(kind, ())[:1]:  # scales have a sign
        blocks[:, at + 1] ^= (rng.integers(0, 2, len(blocks)) << 7).astype(np.uint8)
    return (kind, blocks.reshape(n, -1), (n, k)), reference(kind, blocks).reshape(n, k)


def row_table(slots, pos, capacity: int | None = None) -> np.ndarray:
    """Rows of a pass; `at` counts within the slot."""
    rows = np.zeros((capacity or len(slots), 3), I32)
    rows[:, 0] = -1
    seen: dict[int, int] = {}
    for i, (b, p) in enumerate(zip(slots, pos, strict=True)):
        rows[i] = b, p, seen.get(b, 0)
        seen[b] = seen.get(b, 0) + 1
    return rows
