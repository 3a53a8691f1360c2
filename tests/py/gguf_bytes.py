"""GGUF files by hand, well formed or broken on purpose.

Independent of the `gguf` package and of the loader under test: every field can be given a wrong
value, and nothing here checks anything.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)

_PACK = {
    U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<B",
    U64: "<Q", I64: "<q", F64: "<d",
}  # fmt: skip

# Elements and bytes of a block by ggml type id.
BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    9: (32, 36), 10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
    15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18),
    21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8),
    28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
    40: (64, 36), 41: (128, 18), 42: (64, 18),
}  # fmt: skip


def u32(x: int) -> bytes:
    return struct.pack("<I", x)


def u64(x: int) -> bytes:
    return struct.pack("<Q", x)


def string(text: str | bytes, length: int | None = None) -> bytes:
    """Length and bytes; `length` overrides the truth."""
    data = text.encode() if isinstance(text, str) else text
    return u64(len(data) if length is None else length) + data


def scalar(kind: int, value: object) -> bytes:
    if kind == STRING:
        return string(value)  # type: ignore[arg-type]
    return struct.pack(_PACK[kind], value)


def kv(key: str | bytes, kind: int, value: object = None, *, raw: bytes | None = None) -> bytes:
    """One key; `raw` replaces the encoded value."""
    return string(key) + u32(kind) + (scalar(kind, value) if raw is None else raw)


def array(kind: int, values: list | tuple = (), n: int | None = None) -> bytes:
    """Payload of an array value; `n` overrides the element count."""
    body = b"".join(scalar(kind, v) for v in values)
    return u32(kind) + u64(len(values) if n is None else n) + body


@dataclass
class T:
    """A tensor. `ne` has the row length first, as the file does."""

    name: str | bytes = "t"
    ne: tuple[int, ...] = (8,)
    type: int = 0
    data: bytes | None = None  # default: counted bytes of the right size
    offset: int | None = None  # default: right behind the tensor before
    n_dims: int | None = None
    name_length: int | None = None

    def payload(self) -> bytes:
        if self.data is not None:
            return self.data
        elems, n_bytes = BLOCKS.get(self.type, (1, 1))
        total = 1
        for n in self.ne:
            total *= n
        return bytes(i % 251 for i in range(total // elems * n_bytes))

    def info(self, offset: int) -> bytes:
        return (
            string(self.name, self.name_length)
            + u32(len(self.ne) if self.n_dims is None else self.n_dims)
            + b"".join(u64(n) for n in self.ne)
            + u32(self.type)
            + u64(offset if self.offset is None else self.offset)
        )


def header(n_tensors: int = 0, n_kv: int = 0, *, magic: bytes = b"GGUF", version: int = 3) -> bytes:
    return magic + u32(version) + u64(n_tensors) + u64(n_kv)


def pad(data: bytes, alignment: int, fill: bytes = b"\0") -> bytes:
    return data + fill * (-len(data) % alignment)


def build(
    kvs: list[bytes] | tuple[bytes, ...] = (),
    tensors: list[T] | tuple[T, ...] = (),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_kv: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
    end_pad: bool = True,
    fill: bytes = b"\0",
    tail: bytes = b"",
    section: bytes | None = None,
) -> bytes:
    """A file. `section` replaces the data section, `tail` is appended to it."""
    out = header(
        len(tensors) if n_tensors is None else n_tensors,
        len(kvs) if n_kv is None else n_kv,
        magic=magic,
        version=version,
    )
    out += b"".join(kvs)
    body = b""
    for t in tensors:
        body = pad(body, alignment, fill)
        out += t.info(len(body))
        body += t.payload()
    if not tensors:
        return out + tail
    if end_pad:
        body = pad(body, alignment, fill)
    return pad(out, alignment, fill) + (body if section is None else section) + tail


def minimal() -> bytes:
    """The smallest file with a bit of everything."""
    return build(
        [
            kv("general.architecture", STRING, "test"),
            kv("test.block_count", U32, 2),
            kv("test.flags", ARRAY, raw=array(BOOL, [1, 0, 1])),
            kv("test.names", ARRAY, raw=array(STRING, ["a", "", "b\u00e4"])),
            kv("test.scores", ARRAY, raw=array(F32, [0.5, -1.0])),
        ],
        [T("a.weight", (32, 2), 2), T("b.weight", (4,), 0), T("c.weight", (256, 1, 3), 14)],
    )
