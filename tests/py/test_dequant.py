"""Decoding of tensor types, bit for bit: against the NumPy decoders of the `gguf` package, against
known answers, and exhaustively where that is cheap."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import stoker
from blocks import HALVES, IDS, put_halves, put_iq1_m_scale, random_bytes, reference, sizes
from gguf_bytes import BLOCKS, T, build

PLAIN = {"F32": 0, "F16": 1, "I8": 24, "I16": 25, "I32": 26, "I64": 27, "F64": 28, "BF16": 30}


def decode(folder: Path, name: str, data: bytes) -> np.ndarray:
    """The loader's values of `data` as one row of type `name`."""
    kind = {**PLAIN, **IDS}[name]
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


def agree(folder: Path, name: str, blocks: np.ndarray) -> None:
    same_bits(decode(folder, name, blocks.tobytes()), reference(name, blocks))


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("seed", range(3))
def test_random_blocks(tmp_path: Path, name: str, seed: int) -> None:
    """Every bit random: scales of all sizes, infinities and NaN among them."""
    agree(tmp_path, name, random_bytes(name, 2000, np.random.default_rng(seed)))


# Both zeros, subnormals, the largest and smallest numbers, infinities, NaN.
EXTREME = np.array(
    [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00, 0xBC00, 0x7C00,
     0xFC00, 0x7C01, 0x7E00, 0xFFFF], "<u2",
).view("<f2")  # fmt: skip


@pytest.mark.parametrize("name", [n for n in HALVES if len(HALVES[n]) == 2])
def test_extreme_scales_and_minima(tmp_path: Path, name: str) -> None:
    grid = np.stack(np.meshgrid(EXTREME, EXTREME), -1).reshape(-1, 2)
    blocks = random_bytes(name, 4 * len(grid), np.random.default_rng(7))
    blocks[: len(grid)] = 0  # all codes and small scales zero: signs of zero
    blocks[len(grid) : 2 * len(grid)] = 255
    for column, at in enumerate(HALVES[name]):
        put_halves(blocks, at, np.tile(grid[:, column], 4))
    agree(tmp_path, name, blocks)


@pytest.mark.parametrize("name", [*HALVES, "IQ1_M"])
@pytest.mark.parametrize("codes", ["random", 0, 255])
def test_every_half_as_a_scale(tmp_path: Path, name: str, codes: str | int) -> None:
    patterns = np.arange(65536, dtype="<u2").view("<f2")
    if codes != "random":  # signs of zero, and the largest codes: all exponents, some fractions
        patterns = patterns[(patterns.view("<u2") & 1023) % 37 < 4]
    for d in np.array_split(patterns, 8):
        blocks = random_bytes(name, len(d), np.random.default_rng(8))
        if codes != "random":
            blocks[:] = codes
        if name == "IQ1_M":
            put_iq1_m_scale(blocks, d)
        else:
            put_halves(blocks, HALVES[name][0], d)
        agree(tmp_path, name, blocks)


@pytest.mark.parametrize("name", ["MXFP4", "NVFP4"])
def test_every_byte_as_a_scale(tmp_path: Path, name: str) -> None:
    """Subnormal steps, overflow to infinity (MXFP4), the code that is no number (NVFP4)."""
    per_block = 1 if name == "MXFP4" else 4
    blocks = random_bytes(name, 256 * 16, np.random.default_rng(9))
    codes = np.resize(np.arange(256), (per_block, len(blocks))) + 64 * np.arange(per_block)[:, None]
    blocks[:, :per_block] = codes.T % 256
    agree(tmp_path, name, blocks)
    values = decode(tmp_path, name, blocks.tobytes()).reshape(len(blocks), -1)
    if name == "MXFP4":
        assert np.isinf(values[blocks[:, 0] == 255]).any()
        tiny = np.abs(values[blocks[:, 0] == 0])
        assert tiny[tiny > 0].min() == 2.0**-128  # not flushed
    else:
        groups = values.reshape(-1, 16)[blocks[:, :4].ravel() == 0x7F]
        assert len(groups) and not groups.any()


@pytest.mark.parametrize(
    "name, at, n", [("TQ1_0", 0, 52), ("IQ1_S", 34, 16), ("IQ1_M", 32, 16), ("IQ3_S", 66, 8)]
)
def test_every_byte_as_codes(tmp_path: Path, name: str, at: int, n: int) -> None:
    blocks = random_bytes(name, 256, np.random.default_rng(10))
    blocks[:, at : at + n] = np.arange(256)[:, None]
    agree(tmp_path, name, blocks)


KNOWN = {
    "Q1_0": ("dee9dd99036c3687", "882c72bcb9930850f01243635a68b8b08e96d92844a61cba4a12d463d191b945"),
    "Q2_0": ("dee9dd99036c3687", "cdd8a31e2ede2ca0650ccb0848515c4a50db6a129b136bdef38bc6a514ee2682"),
    "Q4_0": ("dee9dd99036c3687", "40cdd090faec91a40367be6bd2a0d4d2619e7d67132498952b3af64c47d0c178"),
    "Q4_1": ("5116266a9ea928ea", "4ab7a4ce7a0dd613db7001550e6f68fd13930c4461e44a2f077a6620fbbb4b0e"),
    "Q5_0": ("2fce84d62297df85", "c78921a66f7356b361ea114a8acf29c3cf3ffe9c6a09d62facdc622e3149e363"),
    "Q5_1": ("71e160757170550f", "5cc87ccd74ea3c7b4a93554debda7b471c6107a85eaee91e3d0fc8c55a7a0517"),
    "Q8_0": ("8f41b6b5d2352b32", "5fda1df42666818bb46b4bbe02eda01b71b6a74a4f957d722966ded5b9046fa6"),
    "Q2_K": ("a93b1408c242d7f9", "7b2aaef0a89181720e1b13e72535d2aa2f8c33737eb29f1a1de4e30ec48e0fb8"),
    "Q3_K": ("928541f2be28056f", "eb310f83fc5a45c26380a008c97c89961326ab2b87cf45b7dedf1afa1995e804"),
    "Q4_K": ("85176dc88c7cdcfa", "4f949d02dce953dc21af49018f1590f4c9d454d310a1a353f9d840eb4e4724f5"),
    "Q5_K": ("8ca2ccfffee0df30", "9731c9cd1664799fc1d6743cf0c882ca24f5905c46e9a414acc872017eb39d2e"),
    "Q6_K": ("59b548ef2aa426d4", "a2604ee2f40120028ed35bf10cb83b388bc513f2f59ba54424f03ae0609be142"),
    "Q8_K": ("ecd5564b39450293", "f45da64caee5efe3784568763f9d87c2795cdff35a956206a409bbd08de1b581"),
    "IQ1_S": ("619cad56bf5a98f9", "f33b34f4abc4475dd5101534c057bbdc176a924158f8a3713dca62438ae1729d"),
    "IQ1_M": ("2f8f614920a21a9e", "e199501a4c6b1dab8b6fa1a09997ce0b8c6f8945f9dee7e65df8d3c7326e546e"),
    "IQ2_XXS": ("32bcb857b6ae0735", "1143ba27bfadb94bc7f593c18374ef138e22794bd9ce9ef73a7d93450a7355ec"),
    "IQ2_XS": ("cb0b899222afcb40", "c6bbbda4dd4b7ad17aff76a9edb86563faff2d1fccea49ef77d31c3ebf145af8"),
    "IQ2_S": ("e37ac3b59ae49025", "4201dc56e6242825c149fddcbd3b71910a329126484bfa82cd27fe8b9ed6c399"),
    "IQ3_XXS": ("e3fd55947fd1e79d", "307f4df8f1d95b11a92c06731312d77066cde2ff5dde9ce44c5c552eb7999de5"),
    "IQ3_S": ("c672a0035eab3e88", "eda595664a1dc8550a93cf55615cc5dbe4ce0df8eea8b90a6f4bcac3157a819b"),
    "IQ4_NL": ("dee9dd99036c3687", "162eb03756951d6f7411d671c9cf9e993d6640797cc432c0de59daa785942d1b"),
    "IQ4_XS": ("9f54238f7ae6df28", "75e0fb9ed153abba90286d5586f10b29717210f4b2715f4f4038d6aedc8d5a9d"),
    "TQ1_0": ("4f036fd451ce9467", "73adf0f220f82026f900e74166fa06579f62adba3b0b2f72ebb6b074f1f116d9"),
    "TQ2_0": ("8b7ff827d033b439", "f943291bcec51f8206fa77900f9c3a07610828f2b6b135ff26a76669d20fd742"),
    "MXFP4": ("97aa421f7afdf25e", "d751d43a9c1ecb49feacc20bafb782592e2772fd2711467d2cab95e318f15ccb"),
    "NVFP4": ("3808c9809481d343", "3f6ab35c51c60b5f9bb3ffcd5196fb1ee8faefba3861c4a9277e8748b3935cf1"),
}  # fmt: skip


def ordinary_scales(name: str, data: bytearray) -> None:
    """Patches the scales of a block of random bytes to ordinary sizes."""
    for at in HALVES.get(name, ()):
        data[at + 1] = data[at + 1] & 0x83 | 0x2C
    if name == "IQ1_M":
        data[55] = data[55] & 0x8F | 0x20
        data[53] = data[53] & 0x3F | 0xC0
    elif name == "MXFP4":
        data[0] = (data[0] & 0x0F) + 0x78
    elif name == "NVFP4":
        data[:4] = bytes(b & 0x7F for b in data[:4])
    elif name == "Q8_K":
        data[:4] = np.float32(0.0625).tobytes()


@pytest.mark.parametrize("name", KNOWN)
def test_known_answers(tmp_path: Path, name: str) -> None:
    """64 blocks from a congruential generator, with scales patched to ordinary sizes."""
    n_bytes = sizes(name)[1]
    x, data = 12345, bytearray()
    for _ in range(64):
        block = bytearray()
        for _ in range(n_bytes):
            x = (1103515245 * x + 12345) % 2**31
            block.append(x >> 16 & 255)
        ordinary_scales(name, block)
        data += block
    assert hashlib.sha256(data).hexdigest()[:16] == KNOWN[name][0]
    values = decode(tmp_path, name, bytes(data)) + np.float32(0)
    assert hashlib.sha256(values.tobytes()).hexdigest() == KNOWN[name][1]


def test_known_answers_of_every_block_type() -> None:
    assert set(KNOWN) == set(IDS)


@pytest.mark.parametrize("name", IDS)
def test_zero_block(tmp_path: Path, name: str) -> None:
    assert not decode(tmp_path, name, bytes(sizes(name)[1])).any()


@pytest.mark.parametrize(
    "name, codes, value",
    [("Q4_0", 0, -8), ("Q5_0", 0, -16), ("Q8_0", 0, 0), ("Q4_1", 0, 0), ("Q4_1", 255, 15),
     ("Q1_0", 0, -1), ("Q1_0", 255, 1), ("Q2_0", 0, -1), ("Q2_0", 255, 2), ("IQ4_NL", 0, -127),
     ("IQ4_NL", 255, 113), ("TQ1_0", 0, -1), ("TQ2_0", 0, -1), ("TQ2_0", 255, 2)],
)  # fmt: skip
def test_unit_scale(tmp_path: Path, name: str, codes: int, value: int) -> None:
    data = np.full((1, sizes(name)[1]), codes, np.uint8)
    for at, half in zip(HALVES[name], (1.0, 0.0)):  # noqa: B905
        put_halves(data, at, np.array([half]))
    assert (decode(tmp_path, name, data.tobytes()) == value).all()


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


def test_the_type_that_cannot_be_decoded(tmp_path: Path) -> None:
    """Q8_1 opens and gives its bytes; everything else in the table of sizes has values."""
    assert set(BLOCKS) == {9, *PLAIN.values(), *IDS.values()}
    path = tmp_path / "rest.gguf"
    path.write_bytes(build([], [T("t", (256,), 9)]))
    with stoker.open(path) as ck:
        with pytest.raises(stoker.UnsupportedError, match=r"t: .*found Q8_1$"):
            ck["t"].dequantize()
        assert ck["t"].numpy().dtype == np.uint8 and ck["t"].numpy().size == ck["t"].nbytes


def test_codebooks_are_current() -> None:
    """The C tables are what the script makes of the `gguf` package."""
    script = Path(__file__).parents[2] / "tools" / "gen_codebooks.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
