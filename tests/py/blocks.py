"""Blocks of every tensor type: where scales are, random ones of a wanted size, outside decoders."""

from __future__ import annotations

import gguf
import numpy as np
from gguf.quants import dequantize
from gguf_bytes import BLOCKS

# Block types by name, in the order of their ids.
IDS = {
    "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12,
    "Q5_K": 13, "Q6_K": 14, "Q8_K": 15, "IQ2_XXS": 16, "IQ2_XS": 17, "IQ3_XXS": 18, "IQ1_S": 19,
    "IQ4_NL": 20, "IQ3_S": 21, "IQ2_S": 22, "IQ4_XS": 23, "IQ1_M": 29, "TQ1_0": 34, "TQ2_0": 35,
    "MXFP4": 39, "NVFP4": 40, "Q1_0": 41, "Q2_0": 42,
}  # fmt: skip
PLAIN = {"F32": 0, "F16": 1, "BF16": 30}
WEIGHTS = (*PLAIN, *(name for name in IDS if name != "Q8_K"))  # with fractional values
NAMES = {i: name for name, i in {**PLAIN, **IDS}.items()}

# Byte offsets of the binary16 fields of a block; the second one is a minimum.
HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82),
    "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ2_XXS": (0,), "IQ2_XS": (0,),
    "IQ3_XXS": (0,), "IQ1_S": (0,), "IQ4_NL": (0,), "IQ3_S": (0,), "IQ2_S": (0,), "IQ4_XS": (0,),
    "TQ1_0": (52,), "TQ2_0": (64,), "Q1_0": (0,), "Q2_0": (0,),
}  # fmt: skip
# Minimum over scale that centres the values, or nearly.
_CENTRES = {"Q4_1": -7.5, "Q5_1": -15.5, "Q2_K": 1.5, "Q4_K": 4.6, "Q5_K": 9.2}
# Standard deviation of the codes at scale 1, roughly; of the other types it is measured.
_SPREADS = {
    "Q4_0": 4.6, "Q4_1": 4.6, "Q5_0": 9.2, "Q5_1": 9.2, "Q8_0": 74.0, "Q4_K": 4.6 * 32,
    "Q5_K": 9.2 * 32, "Q6_K": 18.5 * 74,
}  # fmt: skip


def sizes(name: str) -> tuple[int, int]:
    """Elements and bytes of a block."""
    return BLOCKS[IDS[name]]


def put_halves(blocks: np.ndarray, at: int, values: np.ndarray) -> None:
    blocks[:, at : at + 2] = np.asarray(values, "<f2").view(np.uint8).reshape(-1, 2)


def put_iq1_m_scale(blocks: np.ndarray, values: np.ndarray) -> None:
    """The bits of a binary16 number, four at a time, lowest first, into the tops of four words."""
    bits = np.asarray(values, "<f2").view(np.uint16)
    for k in range(4):
        nibble = (bits >> 4 * k & 15).astype(np.uint8)
        blocks[:, 49 + 2 * k] = blocks[:, 49 + 2 * k] & 15 | nibble << 4


def _own(name: str, blocks: np.ndarray) -> np.ndarray:
    """The three formats that the `gguf` package cannot decode, from their description."""
    if name == "Q8_K":
        return blocks[:, :4].copy().view("<f4") * blocks[:, 4:260].view(np.int8).astype(np.float32)
    d = blocks[:, :2].copy().view("<f2").astype(np.float32)
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").astype(np.float32)
    if name == "Q1_0":
        return d * (2 * bits - 1)
    return d * (bits[:, 0::2] + 2 * bits[:, 1::2] - 1)


def reference(name: str, blocks: np.ndarray) -> np.ndarray:
    """Values of blocks [n, bytes of a block], flat, by a decoder that is not the one under test."""
    with np.errstate(all="ignore"):
        if name in ("Q8_K", "Q1_0", "Q2_0"):
            return _own(name, blocks).ravel()
        kind = gguf.GGMLQuantizationType(IDS[name])
        return dequantize(blocks, kind).astype(np.float32).ravel()


def random_bytes(name: str, n: int, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 256, (n, sizes(name)[1]), dtype=np.uint8)


def random_blocks(name: str, n: int, std: float, rng: np.random.Generator) -> np.ndarray:
    """n blocks of random codes whose values have a standard deviation near `std`."""
    blocks = random_bytes(name, n, rng)
    if name == "MXFP4":
        blocks[:, 0] = round(128 + np.log2(std / 5)) + rng.integers(-1, 2, n)
    elif name == "NVFP4":
        e = round(8 + np.log2(std / 5)) + rng.integers(-1, 2, (n, 4))
        blocks[:, :4] = np.clip(e, 0, 15) << 3 | blocks[:, :4] & 7
    elif name == "Q8_K":
        d = std / 74 * rng.uniform(0.5, 1.5, n)
        blocks[:, :4] = d.astype("<f4").view(np.uint8).reshape(-1, 4)
    else:
        spread = _SPREADS.get(name) or _spread(name, blocks[:64].copy())
        _set_scale(name, blocks, std / spread * rng.uniform(0.5, 1.5, n))
    return blocks


def _spread(name: str, blocks: np.ndarray) -> float:
    _set_scale(name, blocks, np.ones(len(blocks)))
    return float(reference(name, blocks).std())


def _set_scale(name: str, blocks: np.ndarray, d: np.ndarray) -> None:
    if name == "IQ1_M":
        put_iq1_m_scale(blocks, d)
        return
    put_halves(blocks, HALVES[name][0], d)
    if name in _CENTRES:
        put_halves(blocks, HALVES[name][1], d.astype("<f2").astype(np.float32) * _CENTRES[name])
