"""20,000 damaged copies of small valid files: each opens or is refused with a stoker.Error, and
whatever opens can be read to its last byte."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import stoker
from gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    I32,
    STRING,
    U16,
    U32,
    U64,
    T,
    array,
    build,
    header,
    kv,
    minimal,
)  # fmt: skip
from stoker import _native

ROUNDS = 20_000
SEED = 20_260_101


def seeds() -> list[bytes]:
    words = ["", "a", "bc", "def"]
    return [
        header(),
        minimal(),
        build([kv("general.alignment", U32, 8)], [T("x", (3,)), T("y", (2, 2), 1)], alignment=8),
        build([kv(f"k{i}", U64, i) for i in range(6)]),
        build(
            [
                kv("tokenizer.ggml.tokens", ARRAY, raw=array(STRING, words)),
                kv("tokenizer.ggml.token_type", ARRAY, raw=array(I32, [1, 2, 3, 6])),
                kv("tokenizer.ggml.scores", ARRAY, raw=array(F32, [0.0, 1.0, 2.0, 3.0])),
                kv("flags", ARRAY, raw=array(BOOL, [0, 1])),
                kv("split.count", U16, 0),
            ],
            [T("q5", (32,), 7), T("k", (256,), 12), T("h", (4,), 30)],
        ),
    ]


# Numbers that break arithmetic, little-endian.
ODD = [x.to_bytes(n, "little") for n in (4, 8) for x in (0, 1, 2**31, 2 ** (8 * n) - 1)]
ODD += [x.to_bytes(8, "little") for x in (2**63, 2**62, 2**61, 2**32, 2**64 - 32)]


def mutate(rng: random.Random, data: bytearray, other: bytes) -> None:
    kind = rng.randrange(6)
    at = rng.randrange(len(data)) if data else 0
    if kind == 0:
        data[at : at + 1] = bytes([rng.randrange(256)])
    elif kind == 1 and data:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 2:
        data[at:at] = rng.randbytes(rng.randrange(1, 9))
    elif kind == 3:
        del data[at : at + rng.randrange(1, 33)]
    elif kind == 4:
        odd = rng.choice(ODD)
        data[at : at + len(odd)] = odd
    else:
        begin = rng.randrange(len(other))
        data[at : at + rng.randrange(32)] = other[begin : begin + rng.randrange(64)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """In memory where there is such a place: 20,000 small files wear out patience on a disk."""
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK):
        return tmp_path
    return shm


def read_all(native: object) -> None:
    native.metadata()
    for at, (name, _, shape, n_bytes, offset, _) in enumerate(native.tensors()):
        assert name and len(shape) <= 4 and offset + n_bytes <= native.file_bytes
        assert native.raw(at).nbytes == n_bytes
        native.raw(at).sum()
        try:
            native.dequantize(at)
        except stoker.UnsupportedError:
            pass


def test_damaged_files(folder: Path) -> None:
    rng = random.Random(SEED)
    files = seeds()
    path = folder / f"stoker-damaged-{os.getpid()}.gguf"
    opened, checks = 0, {}
    try:
        for n in range(ROUNDS):
            data = bytearray(rng.choice(files))
            for _ in range(rng.choice((1, 1, 1, 2, 4))):
                mutate(rng, data, rng.choice(files))
            if rng.randrange(20) == 0:
                del data[rng.randrange(len(data) + 1) :]
            path.write_bytes(data)
            try:
                native = _native.Checkpoint(str(path), bool(n & 1))
            except stoker.Error as e:
                assert e.check and str(path) in str(e), (n, bytes(data))
                checks[e.check] = checks.get(e.check, 0) + 1
                continue
            opened += 1
            read_all(native)
            native.close()
    finally:
        path.unlink(missing_ok=True)
    print(f"seed {SEED}: {opened} of {ROUNDS} opened; {sorted(checks.items())}")
    # Neither the mutations nor the checks have become too weak to mean anything.
    assert opened > ROUNDS // 50 and len(checks) > 20
