"""Safetensors files by hand, well formed or broken on purpose. Independent of the `safetensors`
package and of the loader under test; nothing here checks anything."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2",
         "I8": "i1", "U8": "u1", "U16": "<u2", "U32": "<u4", "U64": "<u8", "BOOL": "?",
         "BF16": "<u2", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1"}  # fmt: skip

Tensors = Mapping[str, tuple[str, Any]]  # name -> (dtype, array of its bits)


def u64(x: int) -> bytes:
    return struct.pack("<Q", x)


def raw(header: str | bytes, buffer: bytes = b"", n: int | None = None) -> bytes:
    """A file; `n` overrides the length of the header."""
    data = header.encode() if isinstance(header, str) else header
    return u64(len(data) if n is None else n) + data + buffer


def entry(dtype: Any, shape: Any, offsets: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def one(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8), n: int = 8) -> bytes:
    """A file of one tensor `t` with a buffer of n bytes."""
    return raw(json.dumps({"t": entry(dtype, shape, offsets)}), bytes(n))


def build(tensors: Tensors, metadata: Mapping[str, str] | None = None, pad: int = 8) -> bytes:
    import numpy as np

    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    buffer = b""
    for name, (dtype, bits) in tensors.items():
        array = np.ascontiguousarray(bits, NUMPY[dtype])
        data = array.tobytes()
        header[name] = entry(dtype, list(np.shape(bits)), [len(buffer), len(buffer) + len(data)])
        buffer += data
    text = json.dumps(header).encode()
    return raw(text + b" " * (-len(text) % pad), buffer)


def write_shards(
    folder: Path, tensors: Tensors, n_files: int, config: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """The tensors dealt to n_files files, with an index; returns the weight map."""
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, dict[str, tuple[str, Any]]] = {}
    weight_map = {}
    for i, (name, tensor) in enumerate(tensors.items()):
        file = f"model-{i % n_files + 1:05d}-of-{n_files:05d}.safetensors"
        files.setdefault(file, {})[name] = tensor
        weight_map[name] = file
    for file, part in files.items():
        (folder / file).write_bytes(build(part, {"format": "pt"}))
    write_index(folder, weight_map.items())
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return weight_map


def write_index(folder: Path, weight_map: Iterable[tuple[str, Any]], **more: Any) -> Path:
    """An index whose weight_map may repeat names."""
    path = folder / "model.safetensors.index.json"
    members = ", ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in weight_map)
    rest = "".join(f", {json.dumps(k)}: {json.dumps(v)}" for k, v in more.items())
    path.write_text(f'{{"metadata": {{"total_size": 0}}, "weight_map": {{{members}}}{rest}}}')
    return path
