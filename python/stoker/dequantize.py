"""A checkpoint as plain floats: every tensor decoded, scales stored beside weights multiplied in,
written as one safetensors file. One tensor is in memory at a time."""

from __future__ import annotations

import json
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from ._vocabulary import shown
from .checkpoint import Checkpoint, Tensor, printable
from .checkpoint import open as open_checkpoint
from .errors import FormatError, InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["dequantize"]

DTYPES = {"f32": ("F32", 4), "bf16": ("BF16", 2), "f16": ("F16", 2)}
# Integers and bools are no weights: they are copied, and keep their type.
_COPIED = {"I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "BOOL"}
_BLOCK = 128
_BLOCK_KEYS = (
    "quantization_config.weight_block_size",
    "quantization_config.config_groups.group_0.weights.block_structure",
)
_CHUNK = 1 << 22  # elements converted at a time
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


@dataclass
class _Item:
    """One tensor of the output, and what it is made of."""

    name: str
    shape: tuple[int, ...]
    copied: str | None  # dtype of a tensor that is copied
    values: Callable[[], NDArray[Any]]


def to_bf16(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bits, rounded to nearest, ties to even; NaN stays one."""
    bits = x.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan, (bits >> 16) | 0x40, rounded).astype(np.uint16)


def _block_shape(checkpoint: Checkpoint) -> tuple[int, int]:
    """Rows and columns that share a scale; one number stands for both."""
    for path in _BLOCK_KEYS:
        value: Any = checkpoint.config
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value is None:
            continue
        pair = [value, value] if isinstance(value, int) else value
        if (
            isinstance(pair, list)
            and len(pair) == 2
            and all(type(n) is int and n > 0 for n in pair)
        ):
            return pair[0], pair[1]
        raise FormatError(
            f"{checkpoint.path}: {path}: expected two numbers above 0, found {shown(value)}"
        )
    return _BLOCK, _BLOCK


class _Plan:
    """Which tensors of the input make which of the output."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.block = _block_shape(checkpoint)
        self.sidecars: set[str] = set()
        self.items = list(self._items())
        self.items = [item for item in self.items if item.name not in self.sidecars]

    def _beside(self, base: str, *endings: str) -> Tensor | None:
        for ending in endings:
            if base + ending in self.checkpoint:
                self.sidecars.add(base + ending)
                return self.checkpoint[base + ending]
        return None

    def _items(self) -> Iterator[_Item]:
        for name, t in self.checkpoint.items():
            base, dot, last = name.rpartition(".")
            if dot and last in ("weight", "weight_packed"):
                item = self._weight(base, last, t)
                if item is not None:
                    yield item
                    continue
            if t.type in _COPIED:
                yield _Item(name, t.shape, t.type, t.numpy)
            else:
                yield _Item(name, t.shape, None, t.dequantize)

    def _weight(self, base: str, last: str, t: Tensor) -> _Item | None:
        """A weight with its scales; None when it stands alone."""
        name = f"{base}.weight"
        if self.checkpoint.format != "safetensors":
            scale = self._beside(base, ".scale")
            return None if scale is None else self._scaled(name, t, scale)
        groups = self.checkpoint.get(f"{base}.weight_scale")
        if t.type == "U8" and groups is not None and groups.type == "F8_E4M3":
            packed = last == "weight_packed"
            ending = ".weight_global_scale" if packed else ".weight_scale_2"
            whole = self._beside(base, ending)
            if whole is None:
                raise FormatError(f"{name}: expected a tensor {base}{ending} beside it, found none")
            self._beside(base, ".weight_scale")
            shape = (*t.shape[:-1], 2 * t.shape[-1])
            return _Item(name, shape, None, lambda: _nvfp4(name, t, groups, whole, packed))
        if last == "weight_packed":
            raise UnsupportedError(f"{base}.weight_packed: expected NVFP4 codes, found {t.type}")
        scale = self._beside(base, ".weight_scale_inv", ".weight_scale")
        return None if scale is None else self._scaled(name, t, scale)

    def _scaled(self, name: str, t: Tensor, scale: Tensor) -> _Item:
        return _Item(name, t.shape, None, lambda: _product(t, scale, self.block))


def _product(t: Tensor, scale: Tensor, block: tuple[int, int]) -> NDArray[np.float32]:
    values, s = t.dequantize(), scale.dequantize()
    if s.size == 1:
        return values * s.reshape(())
    n, k = values.shape[-2:]
    if s.shape in ((n,), (n, 1)):
        return values * s.reshape(n, 1)
    rows, columns = -(-n // block[0]), -(-k // block[1])
    if s.shape != (*values.shape[:-2], rows, columns):
        raise FormatError(
            f"{printable(scale.name)}: expected [1], [{n}], [{n},1] or [{rows},{columns}], found "
            f"{list(s.shape)}"
        )
    wide = np.repeat(s, block[1], axis=-1)[..., :k]
    for i in range(rows):
        part = slice(i * block[0], (i + 1) * block[0])
        values[..., part, :] *= wide[..., i : i + 1, :]
    return values


def _nvfp4(
    name: str, codes: Tensor, groups: Tensor, whole: Tensor, reciprocal: bool
) -> NDArray[np.float32]:
    packed, s, t = codes.numpy(), groups.dequantize(), whole.dequantize()
    if t.size != 1 or s.shape != (*packed.shape[:-1], packed.shape[-1] // 8):
        raise FormatError(
            f"{printable(name)}: expected one scale for 16 elements and one for all, found "
            f"{list(s.shape)} and {list(t.shape)}"
        )
    out = np.empty((*packed.shape, 2), np.float32)
    out[..., 0], out[..., 1] = _E2M1[packed & 15], _E2M1[packed >> 4]
    # The same rounding as the engine's: the scale of a group times that of the tensor first.
    factor = np.float32(1) / t.reshape(()) if reciprocal else t.reshape(())
    each = (s * factor)[..., None]
    return (out.reshape(*s.shape, 16) * each).reshape(*packed.shape[:-1], -1)


def _convert(name: str, values: NDArray[Any], dtype: str) -> NDArray[Any]:
    if dtype == "f32":
        return values.astype("<f4", copy=False)
    if dtype == "bf16":
        return to_bf16(values)
    with np.errstate(over="ignore"):
        half = values.astype("<f2")
    if (np.isinf(half) & np.isfinite(values)).any():
        raise InvalidArgumentError(
            f"{printable(name)}: expected values within the range of F16, found larger ones; "
            "bf16 and f32 hold them"
        )
    return half


def _write(out: BinaryIO, plan: _Plan, dtype: str, progress: Callable[[int, int], None]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "producer": "stoker dequantize"}}
    at = 0
    sizes = []
    for item in plan.items:
        n = int(np.prod(item.shape, dtype=np.int64))
        name, width = DTYPES[dtype]
        if item.copied:
            name, width = item.copied, plan.checkpoint[item.name].nbytes // max(n, 1)
        sizes.append(n * width)
        header[item.name] = {"dtype": name, "shape": list(item.shape),
                             "data_offsets": [at, at + n * width]}  # fmt: skip
        at += n * width
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    out.write(struct.pack("<Q", len(text)) + text)
    for number, (item, size) in enumerate(zip(plan.items, sizes, strict=True)):
        values = np.ascontiguousarray(item.values()).reshape(-1)
        written = 0
        for begin in range(0, values.size, _CHUNK):
            part = values[begin : begin + _CHUNK]
            data = part if item.copied else _convert(item.name, part, dtype)
            written += out.write(data.tobytes())
        if written != size:  # cannot be; a wrong file must not be left behind
            raise FormatError(f"{printable(item.name)}: expected {size} bytes, found {written}")
        progress(number + 1, len(plan.items))


def dequantize(
    source: Checkpoint | str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    dtype: str = "f32",
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Writes all tensors of a checkpoint as plain floats to a safetensors file; returns its size.

    Scales that belong to a weight (`weight_scale_inv`, `weight_scale`, `weight_scale_2`,
    `weight_global_scale`, GGUF's `.scale`) are multiplied in and not written; integers and bools
    are copied. Names stay those of the source. The file appears under its name when it is whole.

    Args:
        source: an open checkpoint, or a path.
        target: path of the file; it ends in `.safetensors`.
        dtype: "f32", "bf16" (to nearest, ties to even) or "f16".
        progress: called with tensors done and of how many.

    Raises:
        UnsupportedError: a type that cannot be decoded.
        InvalidArgumentError: an unknown dtype, another ending, or values beyond F16.
    """
    path = Path(target)
    if dtype not in DTYPES:
        raise InvalidArgumentError(f"dtype: expected f32, bf16 or f16, found {dtype!r}")
    if path.suffix != ".safetensors":
        raise InvalidArgumentError(
            f"{path}: expected a name that ends in .safetensors, found another"
        )
    if not isinstance(source, Checkpoint):
        with open_checkpoint(source) as checkpoint:
            return dequantize(checkpoint, target, dtype=dtype, progress=progress)
    plan = _Plan(source)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            _write(out, plan, dtype, progress or (lambda done, total: None))
            size = out.tell()
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return size
