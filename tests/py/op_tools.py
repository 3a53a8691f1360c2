"""Arrays in and out of single ops, and random weights of every type."""

from __future__ import annotations

import gguf
import numpy as np
from gguf.quants import dequantize
from stoker import _native
from tolerances import from_bf16, to_bf16

I32 = np.int32
TABLES = ("definition", "fast")
# type: (elements, bytes of a block, where its F16 fields are)
BLOCKS = {
    "Q4_0": (32, 18, (0,)), "Q4_1": (32, 20, (0, 2)), "Q5_0": (32, 22, (0,)),
    "Q5_1": (32, 24, (0, 2)), "Q8_0": (32, 34, (0,)), "Q4_K": (256, 144, (0, 2)),
    "Q5_K": (256, 176, (0, 2)), "Q6_K": (256, 210, (208,)),
}  # fmt: skip
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


def weights(kind: str, n: int, k: int, rng: np.random.Generator):
    """(argument, values) of a random weight [n, k]."""
    if kind == "BF16":
        return act(rng.standard_normal((n, k)), kind)
    if kind in PLAIN:
        dtype = np.dtype(PLAIN[kind])
        draw = rng.standard_normal((n, k)) if dtype.kind == "f" else rng.integers(-99, 100, (n, k))
        w = draw.astype(dtype)
        return w, w.astype(np.float32)
    elems, n_bytes, halves = BLOCKS[kind]
    blocks = rng.integers(0, 256, (n, k // elems, n_bytes), dtype=np.uint8)
    for at in halves:
        scale = rng.uniform(0.01, 1, (n, k // elems, 1)) * rng.choice([-1, 1], (n, k // elems, 1))
        blocks[:, :, at : at + 2] = scale.astype(np.float16).view(np.uint8)
    raw = blocks.reshape(n, -1)
    values = dequantize(raw, gguf.GGMLQuantizationType[kind]).astype(np.float32)
    return (kind, raw, (n, k)), values.reshape(n, k)


def row_table(slots, pos, capacity: int | None = None) -> np.ndarray:
    """Rows of a pass; `at` counts within the slot."""
    rows = np.zeros((capacity or len(slots), 3), I32)
    rows[:, 0] = -1
    seen: dict[int, int] = {}
    for i, (b, p) in enumerate(zip(slots, pos, strict=True)):
        rows[i] = b, p, seen.get(b, 0)
        seen[b] = seen.get(b, 0) + 1
    return rows
