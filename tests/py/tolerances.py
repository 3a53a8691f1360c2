"""Every numeric bound of the tests, by name. A failing test means: fix the kernel."""

from __future__ import annotations

import numpy as np

LINEAR_REL_L2 = 3e-6  # a row of a matrix product before output rounding, against FP64
ELEMENTWISE = 1e-5  # largest error of an element, relative to the row's largest magnitude
BF16_ULPS = 1  # how far a BF16 output may be from the rounded FP64 value ...
BF16_SHARE = 0.005  # ... and the share of elements that may differ at all
SUM_ERROR = 1e-6  # of a product in FP32, relative to the sum of its terms' magnitudes
ROTATION = 1e-6  # of rotations by multiples of a quarter turn, values of order one
FLIPPED = (
    1 / 64
)  # error of attention, of its head's peak, where a q, k or P rounds the other way ...
FLIPPED_SHARE = 0.02  # ... and the share of a row, beside half a head, that may differ at all
DECODED = 3e-7  # relative: a decoded value times a scale, two roundings to FP32

# Whole models, relative to the row's largest magnitude.
F32_WHOLE = 2e-5  # FP32 sums through all layers, against float64 or with rows in another order
F32_SAME = 1e-5  # the same weights, scaled before or while they are multiplied
BF16_WHOLE = 0.05  # mode bf16 against f32
BF16_DEVICES = 0.05  # mode bf16 on a GPU against the CPU
NEAR_TIE = 0.02  # logits that another device may take in another order
BF16_VISIBLE = 1e-5  # ... and how far apart they are at least
VISIBLE = 1e-3  # what a rule of the model changes at least
FLASH_GOLDEN = 2e-5  # the Flash-Next reference in float64 against its outside one in float32
FLASH_CHUNKS = 1e-9  # ... against itself with the rows cut in another way
FLASH_BF16 = 0.1  # mode bf16 against stored values, of the median row: choices of blocks may flip
FLASH_GGUF = 2e-6  # ... with gains and decays that were converted in float32
LOGPROB = 1e-9  # absolute, the same formula in float64


def finite(x: np.ndarray) -> np.ndarray:
    assert np.isfinite(x).all(), "not finite"
    return x


def close_linear(got: np.ndarray, want: np.ndarray, start: np.ndarray | float = 0.0) -> None:
    """`start`: what the product was added to, and may have cancelled."""
    got = finite(got).astype(np.float64)
    norm = np.linalg.norm(want, axis=-1) + np.linalg.norm(np.atleast_1d(start))
    error = np.linalg.norm(got - want, axis=-1) / np.where(norm > 0, norm, 1)
    assert error.max() <= LINEAR_REL_L2, error.max()


def close_elements(got: np.ndarray, want: np.ndarray) -> None:
    scale = np.abs(want).max(axis=-1, keepdims=True)
    error = np.abs(finite(got) - want) / np.where(scale > 0, scale, 1)
    assert error.max() <= ELEMENTWISE, error.max()


def ordered(bits: np.ndarray) -> np.ndarray:
    """BF16 patterns as integers in the order of their values; neighbours differ by 1."""
    b = bits.astype(np.int32)
    return np.where(b & 0x8000, -(b & 0x7FFF), b)


def close_bf16(got_bits: np.ndarray, want: np.ndarray) -> None:
    """ULPs mean nothing where a sum cancels to about zero: there ELEMENTWISE holds instead."""
    want_bits = to_bf16(want.astype(np.float32))
    got = finite(from_bf16(got_bits))
    near = np.abs(got - want) <= ELEMENTWISE * np.abs(want).max(axis=-1, keepdims=True)
    off = np.where(near, 0, np.abs(ordered(got_bits) - ordered(want_bits)))
    assert off.max() <= BF16_ULPS, off.max()
    allowed = max(1, int(BF16_SHARE * off.size))  # a small case may have one
    assert np.count_nonzero(off) <= allowed, (np.count_nonzero(off), off.size)


def close_attend(got_bits: np.ndarray, want: np.ndarray) -> None:
    """Rows [P, H, D] of another backend. One q that rounds the other way moves a head's every
    element a little; a position too many or too few moves most elements of the row."""
    got = finite(from_bf16(got_bits))
    peak = np.abs(want).max(axis=-1, keepdims=True)
    error = np.abs(got - want)
    assert (error <= FLIPPED * peak).all(), (error / np.where(peak > 0, peak, 1)).max()
    differ = (got_bits != to_bf16(want.astype(np.float32))) & (error > ELEMENTWISE * peak)
    allowed = int(FLIPPED_SHARE * differ[0].size) + want.shape[-1]  # a head's
    assert (differ.sum((1, 2)) <= allowed).all(), (differ.sum((1, 2)), allowed)


def to_bf16(x: np.ndarray) -> np.ndarray:
    """Round to nearest even; no NaN in."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)
