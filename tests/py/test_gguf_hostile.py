"""Malformed and hostile GGUF files: the class of the exception, the name of the check, and a text
that names the culprit. Numbers of cases follow the list in docs/formats.md."""

from __future__ import annotations

import os
import re
import struct
import time
from pathlib import Path

import pytest
import stoker
from gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    STRING,
    U8,
    U16,
    U32,
    U64,
    T,
    array,
    build,
    header,
    kv,
    minimal,
    pad,
    string,
    u32,
    u64,
)  # fmt: skip
from stoker import _native

BIG = (1 << 63, (1 << 64) - 1)
LONG = "a.key.long.enough"  # so that the count check passes when its value is cut

FORMAT = stoker.FormatError
UNSUPPORTED = stoker.UnsupportedError


class Files:
    """Opens bytes as a file of a name that messages must repeat."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "hostile.gguf"

    def open(self, data: bytes, *, strict: bool = False) -> stoker.Checkpoint:
        self.path.write_bytes(data)
        return stoker.open(self.path, strict=strict)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def one_key(key: str | bytes, kind: int, raw: bytes) -> bytes:
    return build([kv(key, kind, raw=raw)])


def one_tensor(**fields: object) -> bytes:
    return build([], [T(**fields)])


# (case, bytes, exception, check, what the text must name)
CASES: list[tuple[str, bytes, type, str, str]] = []


def case(name: str, data: bytes, error: type, check: str, *names: str) -> None:
    CASES.append((name, data, error, check, "|".join(names)))


# ---- header

case("1-empty", b"", FORMAT, "TRUNCATED", "header")
for n in range(1, 24):
    case(f"2-prefix-{n}", header()[:n], FORMAT, "TRUNCATED", f"found a file of {n}")
case("3-magic", build(magic=b"GGUG"), FORMAT, "BAD_MAGIC", "47 47 55 47")
case("4-zip", build(magic=b"PK\x03\x04"), FORMAT, "BAD_MAGIC", "50 4b 03 04")
case("4-ggjt", build(magic=b"tjgg"), FORMAT, "BAD_MAGIC", "74 6a 67 67")
case("4-safetensors", u64(40) + b'{"a":{"dtype":"F32"}}'.ljust(40), FORMAT, "BAD_MAGIC", "28 00")
case("5-version-0", build(version=0), FORMAT, "BAD_VERSION", "version 0")
case("6-version-1", build(version=1), FORMAT, "BAD_VERSION", "version 1, an obsolete")
case("7-version-4", build(version=4), FORMAT, "BAD_VERSION", "version 4")
case("8-big-endian", build(version=0x03000000), FORMAT, "WRONG_ENDIAN", "big-endian GGUF")
for n in BIG:
    case(f"9-n_kv-{n:x}", build(n_kv=n), FORMAT, "BAD_COUNT", f"metadata keys.*{n}")
    case(f"10-n_tensors-{n:x}", build(n_tensors=n), FORMAT, "BAD_COUNT", f"tensors.*{n}")
case("11-short", build(n_tensors=1_000_000), FORMAT, "BAD_COUNT", "1000000 tensors")
case("11-shorter", build(tail=bytes(23), n_tensors=1), FORMAT, "BAD_COUNT", "1 tensors")
case("11-both", build(tail=bytes(36), n_tensors=1, n_kv=1), FORMAT, "BAD_COUNT", "1 metadata")
case(
    "12-swapped",
    build([kv("a.b", U32, 1), kv("a.c", U32, 2)], [T("w", (8,))], n_kv=1, n_tensors=2),
    FORMAT, "OVERFLOW", "tensor a.c",
)  # fmt: skip

# ---- keys

case("14-key-length", build(n_kv=1, tail=u64((1 << 64) - 1) + bytes(64)), FORMAT, "BAD_KEY",
     "metadata key 0.*18446744073709551615")  # fmt: skip
case("15-key-length", build(n_kv=1, tail=u64(65) + b"k" * 64), FORMAT, "BAD_KEY",
     "metadata key 0.*64 bytes left.*65")  # fmt: skip
case(
    "16-empty-key", build([kv("ok", U32, 1), kv("", U32, 1)]), FORMAT, "BAD_KEY", "key 1.*length 0"
)
case("17-adjacent", build([kv("a.b", U8, 1), kv("a.b", U8, 2)]), FORMAT, "DUPLICATE_KEY",
     "a.b.*keys 0 and 1")  # fmt: skip
case(
    "17-far",
    build([kv("a.b", U8, 1), *(kv(f"k{i}", U8, 0) for i in range(999)), kv("a.b", I32, 2)]),
    FORMAT, "DUPLICATE_KEY", "a.b.*keys 0 and 1000",
)  # fmt: skip
case("18-nul", build([kv("a\0b", U8, 1)]), FORMAT, "BAD_KEY", r"a control byte in a\\x00b")
case("18-escape", build([kv("a\x1b[2Jb", U8, 1)]), FORMAT, "BAD_KEY", r"a\\x1b\[2Jb")
case("18-delete", build([kv("a\x7f", U8, 1)]), FORMAT, "BAD_KEY", r"a\\x7f")
for bad in (b"\xff", b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc3",
            b"\xf0\x9f\x98", b"\x80", b"\xc3(", b"\xf5\x80\x80\x80"):  # fmt: skip
    case(f"19-utf8-{bad.hex()}", build([kv(b"k" + bad, U8, 1)]), FORMAT, "BAD_KEY",
         r"invalid UTF-8 in k\\x")  # fmt: skip
case("20-key-65536", build([kv("k" * 65536, U8, 1)]), FORMAT, "BAD_KEY", "65535.*65536")
for kind in (13, 1 << 31, 0xFFFFFFFF):
    case(f"21-type-{kind}", one_key(LONG, kind, bytes(8)), FORMAT, "BAD_VALUE_TYPE",
         f"{LONG}.*{kind}")  # fmt: skip

# ---- values

SIZES = {U8: 1, I8: 1, U16: 2, I16: 2, U32: 4, I32: 4, F32: 4, BOOL: 1, U64: 8, I64: 8, F64: 8}
for kind, size in SIZES.items():
    for left in range(size):
        case(f"22-cut-{kind}-{left}", one_key(LONG, kind, bytes(left)), FORMAT, "TRUNCATED",
             f"{LONG}.*{size} bytes for its value, found {left}")  # fmt: skip
case("22-cut-type", build(n_kv=1, tail=string(LONG) + b"\4\0"), FORMAT, "TRUNCATED", LONG)
for left in range(8):
    case(f"22-cut-string-{left}", one_key(LONG, STRING, bytes(left)), FORMAT, "TRUNCATED",
         f"{LONG}.*string length")  # fmt: skip
    case(f"22-cut-array-{left}", one_key(LONG, ARRAY, u32(U8) + bytes(left)), FORMAT, "TRUNCATED",
         f"{LONG}.*array length")  # fmt: skip
case("22-cut-array-type", one_key(LONG, ARRAY, b"\0\0"), FORMAT, "TRUNCATED", LONG)
case("23-bool", build([kv(LONG, BOOL, 2)]), FORMAT, "BAD_BOOL", f"{LONG}.*found 2")
case("23-bools", one_key(LONG, ARRAY, array(BOOL, [0, 1, 255])), FORMAT, "BAD_BOOL",
     f"{LONG}.*found 255")  # fmt: skip
for n in (*BIG, 17):
    case(f"24-string-{n:x}", one_key(LONG, STRING, string("s" * 16, n)), FORMAT, "BAD_STRING",
         f"{LONG}.*at most 16 bytes, found length {n}")  # fmt: skip
for kind in (U8, U32, F64, STRING):
    for n in ((1 << 64) - 1, 1 << 62, 1 << 61, 1 << 63, 17):
        case(f"25-array-{kind}-{n:x}", one_key(LONG, ARRAY, array(kind, n=n) + bytes(16)), FORMAT,
             "BAD_ARRAY", f"{LONG}.*{n}")  # fmt: skip
for n in (9, 1 << 40, (1 << 64) - 1):
    inner = u32(STRING) + u64(2) + string("fine") + string("8 bytes!", n)
    case(f"26-inner-{n:x}", one_key(LONG, ARRAY, inner), FORMAT, "BAD_STRING",
         f"{LONG}: string 2 of 2.*{n}")  # fmt: skip
case("26-inner-cut", one_key(LONG, ARRAY, u32(STRING) + u64(2) + string("sixteen bytes ..")[:18]),
     FORMAT, "BAD_ARRAY|BAD_STRING", LONG)  # fmt: skip
case("27-nested", one_key(LONG, ARRAY, u32(ARRAY) + u64(1) + array(U8, [1])), FORMAT,
     "NESTED_ARRAY", LONG)  # fmt: skip
case("28-deep", one_key(LONG, ARRAY, (u32(ARRAY) + u64(1)) * 10_000), FORMAT, "NESTED_ARRAY", LONG)
case("29-element", one_key(LONG, ARRAY, array(99, n=0)), FORMAT, "BAD_VALUE_TYPE", f"{LONG}.*99")
case("32-too-many", build([kv(f"{i:012d}", U8, 0) for i in range(100_000)]), FORMAT, "BAD_COUNT",
     "65536.*100000")  # fmt: skip

# ---- alignment

ALIGN = "general.alignment"
for a in (0, 1, 2, 3, 4, 24, 33, 1 << 21, 1 << 31, 0xFFFFFFFF):  # cases 34, 35, 36, 38
    case(f"34-align-{a}", build([kv(ALIGN, U32, a)], [T()]), FORMAT, "BAD_ALIGNMENT",
         f"{ALIGN}.*{a}")  # fmt: skip
for kind, found in ((I32, "int32"), (U64, "uint64"), (U8, "uint8"), (F32, "float32")):
    case(f"37-align-{found}", build([kv(ALIGN, kind, 32)], [T()]), FORMAT, "BAD_ALIGNMENT",
         f"{ALIGN}.*{found}")  # fmt: skip
case("37-align-string", build([kv(ALIGN, STRING, "32")]), FORMAT, "BAD_ALIGNMENT", "found string")
case("37-align-array", one_key(ALIGN, ARRAY, array(U32, [32])), FORMAT, "BAD_ALIGNMENT", "array")
case("87-align-last", build([kv(f"k{i}", U8, 0) for i in range(9)] + [kv(ALIGN, U32, 64)],
                            [T("a", (8,)), T("b", (8,))]), FORMAT, "MISALIGNED_OFFSET",
     "tensor b.*multiples of 64, found 32")  # fmt: skip

# ---- tensor infos

case("39-name-length", one_tensor(name_length=(1 << 64) - 1), FORMAT, "BAD_TENSOR_NAME",
     "tensor 0.*18446744073709551615")  # fmt: skip
for n in (64, 65):
    case(f"40-name-{n}", one_tensor(name="n" * n), FORMAT, "BAD_TENSOR_NAME", f"63.*{n}")
case("41-empty-name", build([], [T("ok"), T("")]), FORMAT, "BAD_TENSOR_NAME", "tensor 1.*length 0")
case("42-nul", build([], [T("a\0b"), T("a\0c")]), FORMAT, "BAD_TENSOR_NAME", r"a\\x00b")
case("42-utf8", build([], [T(b"a\xff")]), FORMAT, "BAD_TENSOR_NAME", r"UTF-8 in a\\xff")
case("43-twice", build([], [T("a"), T("b"), T("a")]), FORMAT, "DUPLICATE_TENSOR",
     "tensor a.*tensors 0 and 2")  # fmt: skip
for n in (5, (1 << 32) - 1):
    case(f"44-dims-{n}", one_tensor(n_dims=n), FORMAT, "BAD_NDIMS", f"tensor t.*{n}")
for at in range(4):
    ne = tuple(0 if i == at else 4 for i in range(4))
    case(f"45-zero-{at}", one_tensor(ne=ne, data=b""), FORMAT, "BAD_DIM",
         f"tensor t: dimension {at}.*found 0")  # fmt: skip
for n in BIG:
    case(f"46-dim-{n:x}", one_tensor(ne=(n,), data=b""), FORMAT, "BAD_DIM", f"tensor t.*{n}")
case("47-wraps", one_tensor(ne=(4194305, 4194305, 211106198978564), data=bytes(16)), FORMAT,
     "OVERFLOW", "tensor t.*2\\^63-1 elements")  # fmt: skip
case("47-wraps-to-0", one_tensor(ne=(1 << 32, 1 << 32), data=b""), FORMAT, "OVERFLOW", "tensor t")
case("48-bytes", one_tensor(ne=(1 << 62,), type=28, data=b""), FORMAT, "OVERFLOW", "tensor t.*F64")
for kind in (4, 5, 31, 32, 33, 36, 37, 38):
    case(f"49-dead-{kind}", one_tensor(name="blk.0.x", type=kind), UNSUPPORTED, "UNKNOWN_TYPE",
         f"tensor blk.0.x.*id {kind} .a type removed")  # fmt: skip
for kind in (43, 97, 142, 1000, 1 << 31, 0xFFFFFFFF):
    case(f"49-type-{kind}", one_tensor(name="blk.0.x", type=kind), UNSUPPORTED, "UNKNOWN_TYPE",
         f"tensor blk.0.x.*id {kind}")  # fmt: skip
for kind, n, name in ((2, 33, "Q4_0"), (12, 128, "Q4_K"), (42, 32, "Q2_0"), (8, 1, "Q8_0")):
    case(f"50-row-{name}", one_tensor(ne=(n, 2), type=kind, data=bytes(512)), FORMAT,
         "BAD_ROW_LENGTH", f"tensor t.*{name}, found {n}")  # fmt: skip
case("50-scalar-block", one_tensor(ne=(), type=2, data=bytes(32)), FORMAT, "BAD_ROW_LENGTH", "Q4_0")
case("51-misaligned", build([], [T("a"), T("b", offset=33)]), FORMAT, "MISALIGNED_OFFSET",
     "tensor b.*found 33")  # fmt: skip
case("52-wraps", build([], [T("a", offset=(1 << 64) - 32)]), FORMAT, "OUT_OF_BOUNDS",
     "tensor a.*18446744073709551584")  # fmt: skip
case("53-beyond", build([], [T("a"), T("b", offset=1 << 20)]), FORMAT, "OUT_OF_BOUNDS",
     "tensor b.*1048576")  # fmt: skip
case("54-byte-short", build([], [T("a"), T("b")], end_pad=False)[:-1], FORMAT, "OUT_OF_BOUNDS",
     "tensor b.*32 bytes.*63")  # fmt: skip
case("55-overlap", build([], [T("a", (16,)), T("b", offset=32)]), FORMAT, "OVERLAP",
     "tensor b.*tensor a")  # fmt: skip
case("55-inside", build([], [T("a", (64,)), T("b", (4,), offset=64)]), FORMAT, "OVERLAP",
     "tensor b.*tensor a")  # fmt: skip
case("56-identical", build([], [T("a"), T("b", offset=0)]), FORMAT, "OVERLAP", "tensor b.*tensor a")
case("59-no-data", build([], [T("a")])[: len(header()) + len(T("a").info(0))], FORMAT, "TRUNCATED",
     "data section")  # fmt: skip
INFO = T("a.tensor.name").info(0)
for left in range(24, len(INFO)):
    case(
        f"59-info-cut-{left}", header(1) + INFO[:left], FORMAT, "TRUNCATED", "tensor a.tensor.name"
    )

# ---- splits

SPLIT = kv("split.tensors.count", I32, 0)
case("61-second", build([kv("split.no", U16, 1), kv("split.count", U16, 3)]), FORMAT,
     "BAD_SPLIT", "split file 2 of 3")  # fmt: skip
case("62-first", build([kv("split.no", U16, 0), kv("split.count", U16, 3), SPLIT]), FORMAT,
     "BAD_SPLIT", "split file 1 of 3.*-00001-of-00003.gguf")  # fmt: skip
case("62-no-total", build([kv("split.no", U16, 0), kv("split.count", U16, 3)]), FORMAT,
     "MISSING_KEY", "split.tensors.count")  # fmt: skip
for kind in (U8, I8, I16, U32, I32, U64, I64):
    case(
        f"66-type-{kind}", build([kv("split.count", kind, 3), SPLIT]), FORMAT, "BAD_SPLIT", "1 of 3"
    )
for kind in (I8, I16, I32, I64):
    case(f"66-negative-{kind}", build([kv("split.count", kind, -3)]), FORMAT, "BAD_HPARAM",
         "split.count.*found -3")  # fmt: skip
case("66-lowest", build([kv("split.count", I64, -(1 << 63))]), FORMAT, "BAD_HPARAM",
     "found -9223372036854775808")  # fmt: skip
case("66-large", build([kv("split.count", U32, 65536)]), FORMAT, "BAD_HPARAM", "65535, found 65536")
for kind, value, found in ((STRING, "3", "string"), (F32, 3.0, "float32"), (BOOL, 1, "bool")):
    case(f"66-{found}", build([kv("split.count", kind, value)]), FORMAT, "KEY_TYPE",
         f"split.count.*found {found}")  # fmt: skip
case("66-array", one_key("split.count", ARRAY, array(U16, [3])), FORMAT, "KEY_TYPE",
     "an array of uint16")  # fmt: skip
case("61-lone", build([kv("split.no", U16, 1)]), FORMAT, "BAD_SPLIT", "split.no.*found 1")
case("68-65535", build([kv("split.count", U16, 65535), SPLIT]), FORMAT, "BAD_SPLIT", "65535")


def check_refused(error: pytest.ExceptionInfo, path: Path, check: str, names: str) -> None:
    text = str(error.value)
    assert error.value.check in check.split("|"), text
    assert str(path) in text or (text.startswith("...") and path.name in text)
    assert re.search(names, text), text
    rule = text.replace(str(path), "")
    assert rule.isprintable() and rule.isascii() and len(text.encode()) < 512, text
    assert not text.endswith(".")


@pytest.mark.parametrize("strict", [False, True], ids=["lenient", "strict"])
@pytest.mark.parametrize(
    "data, error, check, names", [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_refused(
    files: Files, data: bytes, error: type, check: str, names: str, strict: bool
) -> None:
    with pytest.raises(error) as raised:
        files.open(data, strict=strict)
    assert type(raised.value) is error
    assert raised.value.where <= len(data)
    check_refused(raised, files.path, check, names)


# ---- refused when strict only

STRICT = {
    "57-gap": (build([], [T("a"), T("b", offset=64)], tail=bytes(32)), "GAP", "tensor b.*32"),
    "57-gap-first": (build([], [T("a", offset=32)], tail=bytes(32)), "GAP", "tensor a"),
    "58-shuffled": (build([], [T("a", offset=32), T("b", offset=0)]), "GAP", "tensor a"),
    "60-trailing": (build([], [T("a")], tail=bytes(3 << 20)), "TRAILING_DATA", "found 3145728"),
    "60-one-unit": (build([], [T("a")], tail=bytes(32)), "TRAILING_DATA", "found 32"),
    "60-no-tensors": (build(tail=bytes(32)), "TRAILING_DATA", "found 32"),
    "padding": (build([], [T("a", (5,)), T("b")], fill=b"x"), "TRAILING_DATA", "0x78"),
    "padding-end": (build([], [T("a", (5,))], end_pad=False, tail=b"\1"), "TRAILING_DATA", "0x01"),
}


@pytest.mark.parametrize("data, check, names", STRICT.values(), ids=STRICT.keys())
def test_refused_when_strict(files: Files, data: bytes, check: str, names: str) -> None:
    with pytest.raises(FORMAT) as raised:
        files.open(data, strict=True)
    check_refused(raised, files.path, check, names)
    with files.open(data) as ck:
        for t in ck.values():
            assert t.numpy().tobytes() == data[t.offset : t.offset + t.nbytes]


# ---- accepted


def accepted(files: Files, data: bytes) -> stoker.Checkpoint:
    files.open(data, strict=True).close()
    return files.open(data)


def test_13_empty(files: Files) -> None:
    ck = accepted(files, header())
    assert len(ck) == 0 and ck.metadata == {} and "0 tensors" in repr(ck)


def test_versions_2_and_3(files: Files) -> None:
    for version in (2, 3):
        assert accepted(files, build(version=version)).version == version


def test_20_longest_key_and_40_longest_name(files: Files) -> None:
    ck = accepted(files, build([kv("k" * 65535, U8, 7)], [T("n" * 63)]))
    assert ck.metadata == {"k" * 65535: 7} and list(ck) == ["n" * 63]


def test_30_empty_arrays(files: Files) -> None:
    kinds = (*SIZES, STRING)
    ck = accepted(files, build([kv(f"k{k}", ARRAY, raw=array(k)) for k in kinds]))
    assert all(len(ck.metadata[f"k{k}"]) == 0 for k in kinds)


def test_31_not_finite(files: Files) -> None:
    ck = accepted(files, build([kv("a", F32, float("nan")), kv("b", F64, float("inf"))]))
    assert ck.metadata["a"] != ck.metadata["a"] and ck.metadata["b"] == float("inf")


def test_end_padding_is_optional(files: Files) -> None:
    for end_pad in (False, True):
        accepted(files, build([], [T("a", (5,)), T("b", (3,))], end_pad=end_pad))


def test_scalar_tensor(files: Files) -> None:
    t = accepted(files, build([], [T("s", (), data=struct.pack("<f", 2.5))]))["s"]
    assert t.shape == () and t.numpy() == 2.5 and t.dequantize() == 2.5


def test_every_known_type_opens(files: Files) -> None:
    from gguf_bytes import BLOCKS

    tensors = [T(f"t{k}", (2 * n, 3), k) for k, (n, _) in BLOCKS.items()]
    ck = accepted(files, build([], tensors))
    for t, (_, n_bytes) in zip(ck.values(), BLOCKS.values(), strict=True):
        assert t.nbytes == 6 * n_bytes and t.numpy().nbytes == t.nbytes


@pytest.mark.parametrize("a", [8, 16, 64, 4096, 1 << 20])
def test_87_alignment_key_anywhere(files: Files, a: int) -> None:
    tensors = [T("a", (5,)), T("b", (5,))]
    for at in range(3):
        kvs = [kv("x", U8, 1), kv("y", U8, 2)]
        kvs.insert(at, kv(ALIGN, U32, a))
        ck = accepted(files, build(kvs, tensors, alignment=a))
        assert ck.alignment == a
        assert ck["b"].offset - ck["a"].offset == -(-20 // a) * a


def test_split_of_one(files: Files) -> None:
    for n in (0, 1):
        accepted(files, build([kv("split.no", U16, 0), kv("split.count", U16, n)]))


# ---- cost


def test_32_similar_names_are_not_quadratic(files: Files) -> None:
    keys = [kv("k" * 60 + f"{i:08d}", U8, 0) for i in range(65_536)]
    tensors = [T("t" * 55 + f"{i:08d}", (8,), data=bytes(32)) for i in range(100_000)]
    out = header(len(tensors), len(keys)) + b"".join(keys)
    out += b"".join(t.info(32 * i) for i, t in enumerate(tensors))
    data = pad(out, 32) + bytes(32 * len(tensors))
    files.path.write_bytes(data)
    begin = time.perf_counter()
    native = _native.Checkpoint(str(files.path), True)
    assert time.perf_counter() - begin < 5
    assert len(native.tensors()) == 100_000


def anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"RssAnon:\s+(\d+)", status).group(1))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_33_string_arrays_stay_in_the_file(files: Files) -> None:
    n = 2_000_000
    files.path.write_bytes(
        build([kv("tokens", ARRAY, raw=u32(STRING) + u64(n) + (u64(1) + b"x") * n)])
    )
    before = anonymous_bytes()
    native = _native.Checkpoint(str(files.path), True)
    assert anonymous_bytes() - before < 4 << 20  # the file has 18 MB
    native.close()


def test_refusals_leak_nothing(files: Files) -> None:
    def count() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_bytes().count(b"hostile.gguf")
        return len(os.listdir("/proc/self/fd")), maps

    before = count()
    for _, data, error, _, _ in CASES[::7] * 3:
        with pytest.raises(error):
            files.open(data)
    assert count() == before


# ---- messages


def test_long_names_are_abbreviated(files: Files) -> None:
    with pytest.raises(FORMAT) as raised:
        files.open(build([kv("k" * 60_000, 99, raw=b"")]))
    assert "kkk..." in str(raised.value) and "found 99" in str(raised.value)


def test_long_paths_keep_their_end(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 120) / ("e" * 120)
    folder.mkdir(parents=True)
    path = folder / "model.gguf"
    path.write_bytes(build(version=9))
    with pytest.raises(FORMAT, match=r"^\.\.\..*/model\.gguf: header: .* version 9$"):
        stoker.open(path)


def test_wide_names_do_not_push_out_the_message(files: Files) -> None:
    names = ["\u4e00" * 20 + c for c in "ab"]
    with pytest.raises(FORMAT) as raised:
        files.open(build([], [T(names[0], (16,)), T(names[1], offset=32)]))
    assert raised.value.check == "OVERLAP" and "from offset" in str(raised.value)


def test_offset_of_the_fault(files: Files) -> None:
    with pytest.raises(FORMAT) as raised:
        files.open(build([kv("ab", BOOL, 3)]))
    assert raised.value.where == 24 + 8 + 2 + 4
    assert raised.value.code == "FORMAT" and isinstance(raised.value, ValueError)


# ---- not a file


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(stoker.ReadError, match="No such file") as raised:
        stoker.open(tmp_path / "none.gguf")
    assert raised.value.check == "IO" and raised.value.native == 2 and raised.value.errno == 2
    assert "none.gguf" in str(raised.value) and isinstance(raised.value, OSError)


def test_not_regular(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, found in ((tmp_path / "pipe", "a pipe"), ("/dev/null", "a device")):
        with pytest.raises(stoker.ReadError, match=f"regular file, found {found}") as raised:
            stoker.open(path)
        assert raised.value.check == "IO"


def test_minimal_is_valid(files: Files) -> None:
    assert len(accepted(files, minimal())) == 3
