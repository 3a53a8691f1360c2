"""Checkpoints as Python sees them: a mapping of tensors, and metadata.

Opening maps the files and checks their whole directories; no tensor is read until it is asked for.
"""

from __future__ import annotations

import html
import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from . import _native
from .errors import FormatError, InvalidArgumentError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Types whose elements NumPy can show as they lie in the file. BF16 and the 8-bit floats have no
# NumPy type: their bits.
_NUMPY_TYPES = {
    "F32": "<f4",
    "F16": "<f2",
    "F64": "<f8",
    "BF16": "<u2",
    "I8": "i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "U8": "u1",
    "U16": "<u2",
    "U32": "<u4",
    "U64": "<u8",
    "BOOL": "?",
    "C64": "<c8",
    "F8_E4M3": "u1",
    "F8_E5M2": "u1",
    "F8_E8M0": "u1",
    "F8_E4M3FNUZ": "u1",
    "F8_E5M2FNUZ": "u1",
}


def printable(text: str) -> str:
    """`text` with everything that a terminal could obey or not show written as an escape."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def format_bytes(n: float) -> str:
    """`2.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024:
            return f"{n:.0f} B" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"


def format_count(n: float) -> str:
    """`134.5 M`."""
    for unit in ("", " K", " M", " B"):
        if n < 1000:
            return f"{n:.0f}" if not unit else f"{n:.1f}{unit}"
        n /= 1000
    return f"{n:.1f} T"


class Tensor:
    """One tensor of a checkpoint. Holds the open file, not the data."""

    __slots__ = ("_index", "_native", "file", "name", "nbytes", "offset", "shape", "type")

    name: str
    """Name in the file."""
    type: str
    """Storage type: "F32", "Q4_K", ..."""
    shape: tuple[int, ...]
    """Outermost dimension first, so a matrix is (outputs, inputs)."""
    nbytes: int
    """Bytes in the file."""
    offset: int
    """Position of the first byte in its file."""
    file: str
    """Path of the file that holds it."""

    def __init__(
        self,
        native: _native.Checkpoint,
        files: Sequence[str],
        index: int,
        row: tuple[str, str, tuple[int, ...], int, int, int],
    ) -> None:
        self._native = native
        self._index = index
        self.name, self.type, self.shape, self.nbytes, self.offset, file = row
        self.file = files[file]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def numpy(self) -> NDArray[Any]:
        """The stored bytes as a read-only array, without a copy.

        F32, F16, F64, bools and the integer types come as that NumPy type with the tensor's shape.
        BF16 comes as uint16 bit patterns, 8-bit floats as uint8. Block types come as uint8 with
        the last dimension replaced by the bytes of a row (flat where rows are no whole number of
        bytes); `dequantize` gives their values. The array keeps the file mapped, also past
        `Checkpoint.close`.
        """
        raw = self._native.raw(self._index)
        dtype = _NUMPY_TYPES.get(self.type)
        if dtype is not None:
            return raw.view(dtype).reshape(self.shape)
        rows = self.shape[:-1]
        n_rows = math.prod(rows)
        if not n_rows or self.nbytes % n_rows:
            return raw
        return raw.reshape(*rows, self.nbytes // n_rows)

    def dequantize(self) -> NDArray[np.float32]:
        """The values as a new float32 array of the tensor's shape.

        Raises UnsupportedError for a type that cannot be decoded yet.
        """
        return self._native.dequantize(self._index).reshape(self.shape)

    def _facts(self) -> list[tuple[str, str]]:
        size = format_bytes(self.nbytes)
        if self.size:
            size += f", {8 * self.nbytes / self.size:.4g} bits per element"
        facts = [
            ("name", printable(self.name)),
            ("type", self.type),
            ("shape", str(list(self.shape))),
            ("size", size),
            ("offset", f"{self.offset}"),
        ]
        return [*facts, ("file", printable(os.path.basename(self.file)))]

    def __repr__(self) -> str:
        facts = dict(self._facts())
        return f"<Tensor {facts['name']}: {facts['type']} {facts['shape']}, {facts['size']}>"

    def _repr_html_(self) -> str:
        return _html_table(self._facts())


class Checkpoint(Mapping[str, Tensor]):
    """An open checkpoint: `checkpoint["output.weight"]` is a Tensor, `.metadata` a dict.

    Made by `stoker.open` or `stoker.synthetic`. A context manager; `close` may also be left to the garbage collector.
    """

    def __init__(self, path: str | bytes | os.PathLike[str], *, strict: bool = False) -> None:
        self._take(_native.Checkpoint(path, strict))

    @classmethod
    def _of(cls, native: _native.Checkpoint) -> Checkpoint:
        """Around an open one."""
        self = cls.__new__(cls)
        self._take(native)
        return self

    def _take(self, native: _native.Checkpoint) -> None:
        self._native = native
        self._metadata: dict[str, Any] | None = None
        self.path: str = self._native.path
        self.format: str = self._native.format
        self._file_sizes = self._native.files()
        self.files: tuple[str, ...] = tuple(path for path, _ in self._file_sizes)
        self._tensors: dict[str, Tensor] = {
            row[0]: Tensor(self._native, self.files, index, row)
            for index, row in enumerate(self._native.tensors())
        }
        self._config: dict[str, Any] | None = None
        self.file_bytes: int = self._native.file_bytes
        self.version: int = self._native.version
        self.alignment: int = self._native.alignment

    @property
    def metadata(self) -> dict[str, Any]:
        """All keys of a GGUF file, `__metadata__` of safetensors files. Read when first asked for,
        then kept.

        Arrays of numbers are NumPy arrays, arrays of strings are lists. Bytes that are not UTF-8
        are kept as lone surrogates ("surrogateescape").
        """
        if self._metadata is None:
            self._metadata = self._native.metadata()
        return self._metadata

    @property
    def config(self) -> dict[str, Any] | None:
        """`config.json` beside safetensors files, or None when there is none."""
        if self._config is None:
            data = self._native.config()
            try:
                self._config = None if data is None else json.loads(data)
            except (
                ValueError
            ) as error:  # what Python refuses beyond the native reader: huge numbers
                raise FormatError(
                    f"{self.path}: config.json: expected JSON, found {error}"
                ) from None
        return self._config

    @property
    def folder(self) -> str:
        """Where the files are."""
        return os.path.dirname(self.files[0])

    @property
    def architecture(self) -> str | None:
        """`general.architecture`, or `model_type` of `config.json`; None when nothing says."""
        if self.format != "safetensors":
            name = self.metadata.get("general.architecture")
        else:
            name = (self.config or {}).get("model_type")
        return name if isinstance(name, str) else None

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._native.closed

    @property
    def parameters(self) -> int:
        """Number of elements in all tensors."""
        return sum(t.size for t in self._tensors.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for t in self._tensors.values())

    def types(self) -> list[dict[str, Any]]:
        """The types of each block's tensors by part of the model: a dict a block, each type once and
        those with the most bytes first. What belongs to no block comes first, as block ""."""
        from .inspect import type_rows

        return type_rows(self)

    def close(self) -> None:
        """Ends the use of the file. Arrays from `Tensor.numpy` stay valid: the file is unmapped
        when the last of them is gone."""
        self._native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self._tensors[name]
        except KeyError:
            raise KeyError(f"{self.path}: no tensor {name!r}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    # Two mappings of equal contents are not one file: compare and hash by identity.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def _type_mix(self) -> str:
        sizes: dict[str, int] = {}
        for t in self._tensors.values():
            sizes[t.type] = sizes.get(t.type, 0) + t.nbytes
        total = sum(sizes.values())
        ordered = sorted(sizes.items(), key=lambda item: -item[1])
        return " ".join(f"{name} {100 * n / total:.0f}%" for name, n in ordered)

    def _facts(self) -> list[tuple[str, str]]:
        n = self.parameters
        facts = [
            ("file", printable(self.path)),
            ("format", self.format),
            ("architecture", printable(self.architecture or "unknown")),
            ("tensors", f"{len(self)}"),
            ("parameters", format_count(n)),
            ("size", format_bytes(self.nbytes)),
        ]
        if len(self.files) > 1:
            facts.append(("files", f"{len(self.files)}"))
        if n and self.nbytes:
            facts.append(("bits per weight", f"{8 * self.nbytes / n:.3g}"))
            facts.append(("types", self._type_mix()))
        return facts

    def __repr__(self) -> str:
        name = printable(os.path.basename(self.path.rstrip("/")) or self.path)
        if self.closed:
            return f"<Checkpoint {name}: closed>"
        facts = dict(self._facts())
        line = (
            f"<Checkpoint {name}: {facts['architecture']}, {facts['tensors']} tensors, "
            f"{facts['parameters']} parameters, {facts['size']}"
        )
        if "types" in facts:
            line += f", {facts['bits per weight']} bits per weight ({facts['types']})"
        return line + ">"

    def _repr_html_(self) -> str:
        if self.closed:
            return _html_table([("file", printable(self.path)), ("state", "closed")])
        return _html_table(self._facts())


def _html_table(facts: list[tuple[str, str]]) -> str:
    rows = "".join(
        f'<tr><th style="text-align:left">{html.escape(k)}</th><td>{html.escape(v)}</td></tr>'
        for k, v in facts
    )
    return f"<table>{rows}</table>"


def open(path: str | bytes | os.PathLike[str], *, strict: bool = False) -> Checkpoint:
    """Maps the files of a checkpoint and checks their whole directories.

    `path` is a GGUF file (of a split model, the first one), a `.safetensors` file, the index of a
    sharded one, or a folder with `model.safetensors` or `model.safetensors.index.json`; where both
    are there, the index wins, with a warning. Beside safetensors files `config.json` is read.

    `strict` also refuses, in GGUF, gaps between tensors, tensors out of order, padding that is not
    zero and data behind the last tensor, and in safetensors unknown members of a tensor.

    Raises FormatError, UnsupportedError or ReadError, whose text names the file, the key or tensor,
    what was expected and what was found, and whose `check` names the rule.
    """
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"path: expected a file name, found {path!r}") from None
    if b"\0" in os.fsencode(path):
        raise InvalidArgumentError(f"path: expected a file name without NUL, found {path!r}")
    checkpoint = Checkpoint(os.path.expanduser(path), strict=strict)
    if checkpoint.format == "safetensors" and os.path.isdir(checkpoint.path):
        whole = os.path.join(checkpoint.path, "model.safetensors")
        if whole not in checkpoint.files and os.path.exists(whole):
            warnings.warn(
                f"{printable(checkpoint.path)}: both an index and model.safetensors are there; "
                "the index is used",
                stacklevel=2,
            )
    return checkpoint
