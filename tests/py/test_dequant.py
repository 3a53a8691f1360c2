"""Decoding of tensor types, bit for bit: against the NumPy decoders of the `gguf` package, against
known answers, and exhaustively where that is cheap."""

from __future__ import annotations

import hashlib
from pathlib import Path

import gguf
import numpy as np
import pytest
import stoker
from gguf.quants import dequantize
from gguf_bytes import BLOCKS, T, build

GGML = gguf.GGMLQuantizationType
# Type: byte offsets of its f16 fields.
F16_FIELDS = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
}  # fmt: skip


def decode(folder: Path, name: str, data: bytes) -> np.ndarray:
    """The loader's values of `data` as one row of type `name`."""
    kind = int(GGML[name])
    elems, n_bytes = BLOCKS[kind]
    path = folder / "blocks.gguf"
    path.write_bytes(build([], [T("x", (len(data) // n_bytes * elems,), kind, data)]))
    with stoker.open(path, strict=True) as ck:
        values = ck["x"].dequantize()
    assert values.dtype == np.float32
    return values


def same_bits(got: np.ndarray, want: np.ndarray) -> None:
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), nan)  # the payload of a NaN is anybody's
    np.testing.assert_array_equal(got.view(np.uint32)[~nan], want.view(np.uint32)[~nan])


def reference(name: str, blocks: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return dequantize(blocks, GGML[name]).astype(np.float32).ravel()


def random_blocks(name: str, n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, BLOCKS[int(GGML[name])][1]), dtype=np.uint8)


@pytest.mark.parametrize("name", F16_FIELDS)
@pytest.mark.parametrize("seed", range(3))
def test_random_blocks(tmp_path: Path, name: str, seed: int) -> None:
    blocks = random_blocks(name, 2000, seed)
    same_bits(decode(tmp_path, name, blocks.tobytes()), reference(name, blocks))


# Both zeros, subnormals, the largest and smallest numbers, infinities, NaN.
EXTREME = np.array(
    [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00, 0xBC00, 0x7C00,
     0xFC00, 0x7C01, 0x7E00, 0xFFFF], "<u2",
)  # fmt: skip


@pytest.mark.parametrize("name", F16_FIELDS)
def test_extreme_scales(tmp_path: Path, name: str) -> None:
    fields = F16_FIELDS[name]
    grid = np.stack(np.meshgrid(*[EXTREME] * len(fields)), -1).reshape(-1, len(fields))
    blocks = random_blocks(name, 4 * len(grid), 7)
    blocks[: len(grid)] = 0  # all codes and small scales zero: signs of zero
    blocks[len(grid) : 2 * len(grid)] = 255
    for column, at in enumerate(fields):
        values = np.tile(grid[:, column], 4)
        blocks[:, at : at + 2] = values.view(np.uint8).reshape(-1, 2)
    same_bits(decode(tmp_path, name, blocks.tobytes()), reference(name, blocks))


KNOWN = {
    "Q4_0": ("dee9dd99036c3687", "40cdd090faec91a40367be6bd2a0d4d2619e7d67132498952b3af64c47d0c178"),
    "Q4_1": ("5116266a9ea928ea", "4ab7a4ce7a0dd613db7001550e6f68fd13930c4461e44a2f077a6620fbbb4b0e"),
    "Q5_0": ("2fce84d62297df85", "c78921a66f7356b361ea114a8acf29c3cf3ffe9c6a09d62facdc622e3149e363"),
    "Q5_1": ("71e160757170550f", "5cc87ccd74ea3c7b4a93554debda7b471c6107a85eaee91e3d0fc8c55a7a0517"),
    "Q8_0": ("8f41b6b5d2352b32", "5fda1df42666818bb46b4bbe02eda01b71b6a74a4f957d722966ded5b9046fa6"),
    "Q4_K": ("85176dc88c7cdcfa", "4f949d02dce953dc21af49018f1590f4c9d454d310a1a353f9d840eb4e4724f5"),
    "Q5_K": ("8ca2ccfffee0df30", "9731c9cd1664799fc1d6743cf0c882ca24f5905c46e9a414acc872017eb39d2e"),
    "Q6_K": ("59b548ef2aa426d4", "a2604ee2f40120028ed35bf10cb83b388bc513f2f59ba54424f03ae0609be142"),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_known_answers(tmp_path: Path, name: str) -> None:
    """64 blocks from a congruential generator, with scales patched to ordinary sizes."""
    n_bytes = BLOCKS[int(GGML[name])][1]
    x, data = 12345, bytearray()
    for _ in range(64 * n_bytes):
        x = (1103515245 * x + 12345) % 2**31
        data.append(x >> 16 & 255)
    for block in range(64):
        for at in F16_FIELDS[name]:
            high = block * n_bytes + at + 1
            data[high] = data[high] & 0x83 | 0x2C
    assert hashlib.sha256(data).hexdigest()[:16] == KNOWN[name][0]
    values = decode(tmp_path, name, bytes(data)) + np.float32(0)
    assert hashlib.sha256(values.tobytes()).hexdigest() == KNOWN[name][1]


@pytest.mark.parametrize(
    "name, codes, value",
    [("Q4_0", 0, -8), ("Q5_0", 0, -16), ("Q8_0", 0, 0), ("Q4_1", 0, 0), ("Q4_1", 255, 15)],
)
def test_unit_scale(tmp_path: Path, name: str, codes: int, value: int) -> None:
    n_bytes = BLOCKS[int(GGML[name])][1]
    head = b"\x00\x3c" + b"\x00\x00" * (len(F16_FIELDS[name]) - 1)
    data = head + bytes([codes]) * (n_bytes - len(head))
    assert (decode(tmp_path, name, data) == value).all()


def test_f16_exhaustive(tmp_path: Path) -> None:
    codes = np.arange(65536, dtype="<u2")
    with np.errstate(invalid="ignore"):
        want = codes.view(np.float16).astype(np.float32)
    same_bits(decode(tmp_path, "F16", codes.tobytes()), want)


def test_bf16_exhaustive(tmp_path: Path) -> None:
    codes = np.arange(65536, dtype="<u2")
    want = (codes.astype(np.uint32) << 16).view(np.float32)
    got = decode(tmp_path, "BF16", codes.tobytes())
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("name", ["I8", "I16", "I32", "I64", "F32", "F64"])
def test_plain_types(tmp_path: Path, name: str) -> None:
    dtype = np.dtype({"F32": "<f4", "F64": "<f8"}.get(name, f"<i{int(name[1:]) // 8}"))
    data = np.random.default_rng(3).integers(0, 256, 4096, dtype=np.uint8).tobytes()
    with np.errstate(all="ignore"):
        want = np.frombuffer(data, dtype).astype(np.float32)
    same_bits(decode(tmp_path, name, data), want)


def test_types_that_cannot_be_decoded(tmp_path: Path) -> None:
    done = {"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64", *F16_FIELDS}
    rest = [k for k in BLOCKS if GGML(k).name not in done] if 42 in list(GGML) else [
        k for k in BLOCKS if k < 41 and GGML(k).name not in done
    ]  # fmt: skip
    path = tmp_path / "rest.gguf"
    path.write_bytes(build([], [T(f"t.{k}", (256,), k) for k in rest]))
    with stoker.open(path) as ck:
        for t in ck.values():
            with pytest.raises(stoker.UnsupportedError, match=f"{t.name}: .*found {t.type}$"):
                t.dequantize()
            assert t.numpy().dtype == np.uint8 and t.numpy().size == t.nbytes
