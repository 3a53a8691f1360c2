"""Malformed and hostile safetensors files and indexes: the class of the exception, the name of the
check, and a text that names the culprit. Numbers of cases follow the list in docs/formats.md."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path

import numpy as np
import pytest
import stoker
from sft_bytes import build, entry, one, raw, u64, write_index, write_shards
from stoker import _native
from stoker.inspect import inspect_rows, inspect_summary

FORMAT = stoker.FormatError
UNSUPPORTED = stoker.UnsupportedError
READ = stoker.ReadError

T8 = '"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}'  # of 8 bytes
B8 = bytes(8)


def header(*tensors: tuple[str, object]) -> str:
    return json.dumps(dict(tensors))


def numbers(text: str, shape: str = "[2]") -> bytes:
    return raw(f'{{"t": {{"dtype": "F32", "shape": {shape}, "data_offsets": {text}}}}}', B8)


def shapes(text: str) -> bytes:
    return numbers("[0, 8]", text)


NAMED = raw(
    header(("a", entry("F32", [4], [0, 16])), ("b", entry("F32", [4], [16, 32]))), bytes(32)
)
VALID = build({"a": ("F32", np.arange(4)), "b": ("BF16", np.arange(6).reshape(2, 3))}, {"k": "v"})

CASES: dict[str, tuple[bytes, type, str, str]] = {
    "1-empty": (b"", FORMAT, "TRUNCATED", "file of 0"),
    "2-seven": (b"\x02" * 7, FORMAT, "TRUNCATED", "file of 7"),
    "3-N-0": (u64(0) + b"{}", FORMAT, "BAD_HEADER_LENGTH", "found 0"),
    "4-N-1": (u64(1) + b"{}", FORMAT, "BAD_HEADER_LENGTH", "found 1"),
    "5-N-2^63": (u64(1 << 63) + b"{}", FORMAT, "BAD_HEADER_LENGTH", str(1 << 63)),
    "5-N-wraps": (u64((1 << 64) - 8) + b"{}", FORMAT, "BAD_HEADER_LENGTH", str((1 << 64) - 8)),
    "5-N-max": (u64((1 << 64) - 1) + b"{}", FORMAT, "BAD_HEADER_LENGTH", str((1 << 64) - 1)),
    "6-N-past-end": (raw("{}", n=3), FORMAT, "BAD_HEADER_LENGTH", "2 bytes that follow.*found 3"),
    "7-N-large": (u64(100_000_001) + b"{}", FORMAT, "BAD_HEADER_LENGTH", "100000001"),
    "8-utf8": (raw(b'{"\xff": 1}'), FORMAT, "BAD_UTF8", "UTF-8"),
    "8-utf8-surrogate": (raw(b'{"\xed\xa0\x80": 1}'), FORMAT, "BAD_UTF8", "UTF-8"),
    "9-no-json": (raw("hello!"), FORMAT, "BAD_JSON", "offset 8"),
    "9-cut": (raw("{" + T8), FORMAT, "BAD_JSON", "offset"),
    "9-comma": (raw("{" + T8 + ",}", B8), FORMAT, "BAD_JSON", "offset"),
    "9-comment": (raw("/**/{" + T8 + "}", B8), FORMAT, "BAD_JSON", "offset 8"),
    "10-array": (raw("[]"), FORMAT, "BAD_JSON", "object"),
    "10-string": (raw('"ab"'), FORMAT, "BAD_JSON", "object"),
    "11-garbage": (raw("{" + T8 + "} x", B8), FORMAT, "BAD_JSON", "nothing but white space"),
    "11-nul": (raw("{" + T8 + "}\0", B8), FORMAT, "BAD_JSON", "nothing but white space"),
    "11-twice": (raw("{}{}"), FORMAT, "BAD_JSON", "nothing but white space"),
    "14-depth": (raw("[" * 100_000), FORMAT, "BAD_JSON", "offset"),
    "14-depth-inside": (raw('{"t": ' + "[" * 100_000), FORMAT, "BAD_JSON", "32 levels"),
    "14-depth-objects": (raw('{"a":' * 100_000), FORMAT, "BAD_JSON", "32 levels"),
    "15-duplicate": (raw("{" + T8 + ", " + T8 + "}", B8), FORMAT, "DUPLICATE_TENSOR", "tensor t"),
    "15-escaped": (raw("{" + T8 + ", " + T8.replace('"t"', r'"\u0074"') + "}", B8), FORMAT,
                   "DUPLICATE_TENSOR", "tensor t"),
    "16-dtype": (raw('{"t": {"dtype": "F32", "dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}',
                     B8), FORMAT, "DUPLICATE_MEMBER", "tensor t: dtype"),
    "17-number": (raw('{"__metadata__": {"k": 1}}'), FORMAT, "BAD_METADATA", "member k"),
    "17-null": (raw('{"__metadata__": {"k": null}}'), FORMAT, "BAD_METADATA", "member k"),
    "17-array": (raw('{"__metadata__": ["k"]}'), FORMAT, "BAD_METADATA", "object"),
    "17-twice": (raw('{"__metadata__": {}, "__metadata__": {}}'), FORMAT, "DUPLICATE_KEY",
                 "__metadata__"),
    "17-same-member": (raw('{"__metadata__": {"k": "1", "k": "2"}}'), FORMAT, "DUPLICATE_KEY",
                       "member k"),
    "18-dtype": (raw('{"t": {"shape": [2], "data_offsets": [0, 8]}}', B8), FORMAT,
                 "MISSING_MEMBER", "tensor t.*dtype"),
    "18-shape": (raw('{"t": {"dtype": "F32", "data_offsets": [0, 8]}}', B8), FORMAT,
                 "MISSING_MEMBER", "tensor t.*shape"),
    "18-offsets": (raw('{"t": {"dtype": "F32", "shape": [2]}}', B8), FORMAT, "MISSING_MEMBER",
                   "tensor t.*data_offsets"),
    "18-nothing": (raw('{"t": {}}'), FORMAT, "MISSING_MEMBER", "tensor t"),
    "18-number": (raw('{"t": 1}'), FORMAT, "BAD_TENSOR", "tensor t"),
    "19-one": (numbers("[8]"), FORMAT, "BAD_OFFSETS", "fewer"),
    "19-none": (numbers("[]"), FORMAT, "BAD_OFFSETS", "fewer"),
    "19-three": (numbers("[0, 8, 8]"), FORMAT, "BAD_OFFSETS", "more"),
    "19-object": (numbers("{}"), FORMAT, "BAD_OFFSETS", "array"),
    "20-negative": (numbers("[-8, 0]"), FORMAT, "BAD_OFFSETS", "found -8"),
    "20-minus-zero": (numbers("[-0, 8]"), FORMAT, "BAD_OFFSETS", "found -0"),
    "20-shape": (shapes("[-2]"), FORMAT, "BAD_DIM", "found -2"),
    "21-reversed": (numbers("[8, 0]"), FORMAT, "BAD_OFFSETS", r"\[8, 0\]"),
    "22-fraction": (numbers("[0.0, 8]"), FORMAT, "BAD_OFFSETS", "found 0.0"),
    "22-exponent": (numbers("[0, 8e0]"), FORMAT, "BAD_OFFSETS", "found 8e0"),
    "22-shape": (shapes("[2.0]"), FORMAT, "BAD_DIM", "found 2.0"),
    "22-leading-zero": (numbers("[00, 8]"), FORMAT, "BAD_JSON", "leading zeros"),
    "22-string": (shapes('["2"]'), FORMAT, "BAD_DIM", "found 2"),
    "22-true": (shapes("[true]"), FORMAT, "BAD_DIM", "found true"),
    "22-nested": (shapes("[[2]]"), FORMAT, "BAD_DIM", "tensor t"),
    "23-2^64": (numbers(f"[0, {1 << 64}]"), FORMAT, "BAD_OFFSETS", str(1 << 64)),
    "23-shape": (shapes(f"[{10**30}]"), FORMAT, "BAD_DIM", "1" + "0" * 20),
    "24-product": (shapes(f"[2, {(1 << 64) - 2}]"), FORMAT, "OVERFLOW", "tensor t"),
    "24-to-four": (shapes("[4194305, 4194305, 211106198978564]"), FORMAT, "OVERFLOW", "tensor t"),
    "24-zero-inside": (one(shape=[1 << 40, 0, 1 << 40], offsets=(0, 0), n=0), FORMAT, "OVERFLOW",
                       "tensor t"),
    "25-bytes": (shapes(f"[2, {(1 << 63) - 1}]"), FORMAT, "OVERFLOW", "tensor t"),
    "25-bytes-2": (shapes(f"[{1 << 62}]"), FORMAT, "OVERFLOW", "tensor t"),
    "26-size": (one(offsets=(0, 4), n=4), FORMAT, "SIZE_MISMATCH", "8 bytes.*found 4"),
    "26-type": (one("F16"), FORMAT, "SIZE_MISMATCH", "4 bytes.*found 8"),
    "27-hole-first": (one(offsets=(8, 16), n=16), FORMAT, "HOLE", "tensor t.*the header.*from 8"),
    "28-hole": (raw(header(("a", entry("U8", [4], [0, 4])), ("b", entry("U8", [4], [8, 12]))),
                    bytes(12)), FORMAT, "HOLE", "tensor b.*from buffer offset 4.*a.*from 8"),
    "29-overlap": (raw(header(("a", entry("U8", [8], [0, 8])), ("b", entry("U8", [8], [4, 12]))),
                       bytes(12)), FORMAT, "OVERLAP", "tensor b.*a, found them from 4"),
    "29-inside": (raw(header(("a", entry("U8", [8], [0, 8])), ("b", entry("U8", [0], [4, 4]))),
                      B8), FORMAT, "OVERLAP", "tensor b"),
    "30-ten": (raw(header(*((f"t{i}", entry("F32", [4], [0, 16])) for i in range(10))), bytes(16)),
               FORMAT, "OVERLAP", "tensor t1"),
    "31-tail": (one(n=9), FORMAT, "TRAILING_DATA", "1 bytes"),
    "31-polyglot": (one() + b"PK\x05\x06" * 100, FORMAT, "TRAILING_DATA", "400 bytes"),
    "31-nothing": (raw("{}", b"x"), FORMAT, "TRAILING_DATA", "1 bytes"),
    "32-end": (one(n=7), FORMAT, "INCOMPLETE", "8 bytes.*buffer of 7"),
    "32-far": (one("U8", [1 << 62], (0, 1 << 62)), FORMAT, "INCOMPLETE", "tensor t"),
    "35-unknown": (one("F99"), UNSUPPORTED, "BAD_DTYPE", "tensor t.*F99"),
    "35-case": (one("f32"), UNSUPPORTED, "BAD_DTYPE", "tensor t.*f32"),
    "35-number": (one(32), FORMAT, "BAD_DTYPE", "tensor t.*string"),
    "36-odd": (one("F4", [3], (0, 1), 1), FORMAT, "ODD_BITS", "3 elements of F4"),
    "36-six": (one("F6_E2M3", [2], (0, 2), 2), FORMAT, "ODD_BITS", "2 elements of F6_E2M3"),
    "37-nul": (raw('{"a\\u0000": {}}'), FORMAT, "BAD_JSON", "NUL"),
    "37-control": (raw('{"a\\u001b[2J": {}}'), FORMAT, "BAD_TENSOR_NAME", r"a\\x1b\[2J"),
    "37-empty": (raw('{"": {}}'), FORMAT, "BAD_TENSOR_NAME", "found 0"),
    "38-long": (raw('{"' + "n" * (1 << 20) + '": {}}'), FORMAT, "BAD_TENSOR_NAME", "1048576"),
    "46-cut": (VALID[:-1], FORMAT, "INCOMPLETE", "tensor b"),
    "rank-9": (one(shape=[1] * 9), FORMAT, "BAD_NDIMS", "8 dimensions"),
    "lone-surrogate": (raw('{"\\ud800": {}}'), FORMAT, "BAD_JSON", "surrogates"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("strict", [False, True], ids=["lenient", "strict"])
def test_refused(tmp_path: Path, name: str, strict: bool) -> None:
    data, error, check, names = CASES[name]
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(data)
    with pytest.raises(error) as raised:
        stoker.open(path, strict=strict)
    text = str(raised.value)
    assert raised.value.check == check, text
    assert str(path)[-60:] in text and re.search(names, text), text
    assert "expected" in text and "found" in text and text.isascii()
    assert 0 <= raised.value.where <= len(data)


def accepted(tmp_path: Path, data: bytes, strict: bool = True) -> stoker.Checkpoint:
    path = tmp_path / "fine.safetensors"
    path.write_bytes(data)
    return stoker.open(path, strict=strict)


def test_12_13_white_space(tmp_path: Path) -> None:
    for space in (" ", "\n\t \r", " " * 4096):
        for text in (space + "{" + T8 + "}", "{" + T8 + "}" + space):
            assert list(accepted(tmp_path, raw(text, B8))) == ["t"]


def test_33_34_empty_and_scalar(tmp_path: Path) -> None:
    text = header(
        ("z", entry("F32", [0], [0, 0])), ("a", entry("F32", [], [0, 4])),
        ("y", entry("F32", [3, 0, 2], [4, 4])), ("b", entry("U8", [4], [4, 8])),
        ("x", entry("F64", [0], [8, 8])),
    )  # fmt: skip
    ck = accepted(tmp_path, raw(text, np.float32(2.5).tobytes() + b"abcd"))
    assert [t.size for t in ck.values()] == [0, 1, 0, 4, 0]
    assert ck["a"].dequantize() == 2.5 and ck["b"].numpy().tobytes() == b"abcd"
    assert ck["y"].dequantize().shape == (3, 0, 2) and ck["y"].numpy().shape == (3, 0, 2)
    for t in ck.values():
        assert repr(t) and t._repr_html_()
    assert inspect_summary(ck)["tensors"] == 5 and len(inspect_rows(ck)) == 5


def test_36_packed_types(tmp_path: Path) -> None:
    text = header(("a", entry("F4", [3, 2], [0, 3])), ("b", entry("F6_E3M2", [4], [3, 6])),
                  ("c", entry("F4", [2, 3], [6, 9])))  # fmt: skip
    ck = accepted(tmp_path, raw(text, bytes(range(9))))
    assert ck["a"].numpy().shape == (3, 1) and ck["c"].numpy().shape == (3,)
    assert [t.nbytes for t in ck.values()] == [3, 3, 3]
    with pytest.raises(UNSUPPORTED):
        ck["a"].dequantize()


def test_39_many_empty_tensors(tmp_path: Path) -> None:
    text = header(*((f"t{i:06d}", entry("F32", [0], [0, 0])) for i in range(100_000)))
    assert len(accepted(tmp_path, raw(text))) == 100_000


def test_40_shuffled_header(tmp_path: Path) -> None:
    parts = [(f"t{i}", entry("U8", [i], [i * (i - 1) // 2, i * (i + 1) // 2])) for i in range(40)]
    random.Random(1).shuffle(parts)
    data = bytes(i % 256 for i in range(39 * 40 // 2))
    ck = accepted(tmp_path, raw(header(*parts), data))
    for i in range(40):
        assert ck[f"t{i}"].numpy().tobytes() == data[i * (i - 1) // 2 :][:i]


def test_names_with_escapes(tmp_path: Path) -> None:
    text = r'{"a\u00e4\ud83d\ude80\/\\": {"dtype":"F32","shape":[],"data_offsets":[0,4]}}'
    assert list(accepted(tmp_path, raw(text, bytes(4)))) == ["aä\U0001f680/\\"]


def test_metadata_and_unknown_members(tmp_path: Path) -> None:
    ck = accepted(tmp_path, build({"t": ("F32", [1.0])}, {"format": "pt", "ä\n": '"x"'}))
    assert ck.metadata == {"format": "pt", "ä\n": '"x"'}
    assert ck.format == "safetensors" and ck.config is None and ck.architecture is None
    text = '{"t": {"dtype":"U8","shape":[],"data_offsets":[0,1],"more":{"a":[1,{"b":null}]}}}'
    assert list(accepted(tmp_path, raw(text, b"x"), strict=False)) == ["t"]
    with pytest.raises(FORMAT) as raised:
        accepted(tmp_path, raw(text, b"x"))
    assert raised.value.check == "UNKNOWN_MEMBER"


def test_unaligned_data(tmp_path: Path) -> None:
    want = np.arange(5, dtype=np.float32)
    for n in range(8):
        ck = accepted(
            tmp_path,
            build({"a": ("F32", want)}, pad=1)
            if n == 0
            else raw(header(("a", entry("F32", [5], [0, 20]))) + " " * n, want.tobytes()),
        )
        assert np.array_equal(ck["a"].numpy(), want) and np.array_equal(ck["a"].dequantize(), want)


def test_against_the_safetensors_package(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    rng = np.random.default_rng(2)
    kinds = ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u1", "u2", "u4", "u8", "?")
    tensors = {
        f"layer.{i}.{k}": rng.integers(0, 2, (i, 3)).astype(k) for i in range(3) for k in kinds
    }
    path = tmp_path / "package.safetensors"
    save_file(tensors, path, {"by": "package"})
    with stoker.open(path, strict=True) as ck:
        assert ck.metadata == {"by": "package"} and set(ck) == set(tensors)
        for name, want in tensors.items():
            got = ck[name].numpy()
            assert got.dtype == want.dtype and np.array_equal(got, want)
            assert np.array_equal(ck[name].dequantize(), want.astype(np.float32))
    path.write_bytes(build({k: (ck[k].type, v) for k, v in tensors.items()}))
    assert all(np.array_equal(v, tensors[k]) for k, v in load_file(path).items())


# ---- sharded

SHARDED = {f"t{i}": ("F32", np.full(3, i, np.float32)) for i in range(5)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shards(tmp_path / "m", SHARDED, 2, {"model_type": "test", "a": {"b": [1, 2]}})
    return tmp_path / "m"


def test_shards(folder: Path) -> None:
    for path in (folder, f"{folder}/", folder / "model.safetensors.index.json"):
        with stoker.open(path, strict=True) as ck:
            assert set(ck) == set(SHARDED) and len(ck.files) == 2 and "5 tensors" in repr(ck)
            assert ck.architecture == "test" and ck.config == {
                "model_type": "test",
                "a": {"b": [1, 2]},
            }
            for name, (_, want) in SHARDED.items():
                assert np.array_equal(ck[name].numpy(), want)
            assert os.path.basename(ck["t1"].file) == "model-00002-of-00002.safetensors"
            assert ck.metadata == {"format": "pt"}


def test_both_single_and_index(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(build(SHARDED))
    with pytest.warns(UserWarning, match="index is used"):
        assert len(stoker.open(folder).files) == 2


def test_single_file_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(build(SHARDED))
    assert stoker.open(tmp_path).files == (str(tmp_path / "model.safetensors"),)
    (tmp_path / "config.json").write_text('{"model_type": "x"}')
    for path in (tmp_path, tmp_path / "model.safetensors"):
        assert stoker.open(path).architecture == "x"


def refused(path: Path, error: type, check: str, names: str) -> None:
    with pytest.raises(error) as raised:
        stoker.open(path)
    assert raised.value.check == check, str(raised.value)
    assert re.search(names, str(raised.value)), str(raised.value)


def test_no_model(tmp_path: Path) -> None:
    refused(tmp_path, READ, "IO", "model.safetensors in the folder, found neither")
    refused(tmp_path / "absent.safetensors", READ, "IO", "absent.safetensors: open")


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/b", "a\\b", "..", ".", "", "a..b",
                                  "a\x00b", "a\nb", "n" * 256])  # fmt: skip
def test_41_names_that_leave_the_folder(folder: Path, name: str) -> None:
    write_index(folder, [("t0", name)])
    refused(folder, FORMAT, "BAD_FILE_NAME", "files in the same folder")


def mapped(folder: Path) -> dict[str, str]:
    return json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]


def test_42_tensor_beyond_the_index(folder: Path) -> None:
    write_index(folder, [(k, v) for k, v in mapped(folder).items() if k != "t3"])
    refused(folder, FORMAT, "UNEXPECTED_TENSOR", "tensor t3.*model-00002")


def test_43_tensor_in_no_shard(folder: Path) -> None:
    write_index(folder, [*mapped(folder).items(), ("t9", "model-00001-of-00002.safetensors")])
    refused(folder, FORMAT, "MISSING_TENSOR", "tensor t9.*model-00001")


def test_43_tensor_in_the_other_shard(folder: Path) -> None:
    write_index(folder, [(k, v.replace("2-of", "1-of") if k == "t1" else v)
                         for k, v in mapped(folder).items()])  # fmt: skip
    refused(folder, FORMAT, "WRONG_FILE", "tensor t1.*model-00001.*model-00002")


def test_43_missing_shard(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()
    refused(folder, READ, "IO", "model-00002-of-00002.safetensors: open")


def test_44_tensor_in_two_shards(folder: Path) -> None:
    (folder / "model-00001-of-00002.safetensors").write_bytes(build(SHARDED))
    refused(folder, FORMAT, "DUPLICATE_TENSOR", "tensor t1")


BAD_INDEXES = {
    "45-array": ('{"weight_map": []}', "BAD_INDEX"),
    "45-string": ('{"weight_map": "x"}', "BAD_INDEX"),
    "45-numbers": ('{"weight_map": {"a": 1}}', "BAD_INDEX"),
    "45-none": ('{"metadata": {}}', "BAD_INDEX"),
    "45-empty": ('{"weight_map": {}}', "BAD_INDEX"),
    "45-twice": ('{"weight_map": {"a": "b"}, "weight_map": {"a": "b"}}', "BAD_INDEX"),
    "45-no-object": ("[1]", "BAD_INDEX"),
    "duplicate": ('{"weight_map": {"a": "b", "\\u0061": "b"}}', "DUPLICATE_TENSOR"),
    "name": ('{"weight_map": {"": "b"}}', "BAD_TENSOR_NAME"),
    "json": ('{"weight_map": {"a": "b",}}', "BAD_JSON"),
    "json-tail": ('{"weight_map": {"a": "b"}} x', "BAD_JSON"),
    "json-empty": ("", "BAD_JSON"),
    "json-depth": ('{"a":' * 10_000, "BAD_JSON"),
}


@pytest.mark.parametrize("name", BAD_INDEXES)
def test_bad_index(folder: Path, name: str) -> None:
    text, check = BAD_INDEXES[name]
    (folder / "model.safetensors.index.json").write_text(text)
    refused(folder, FORMAT, check, "model.safetensors.index.json: ")


BAD_CONFIGS = {
    "empty": ("", "BAD_JSON"),
    "array": ("[]", "BAD_CONFIG"),
    "twice": ('{"a": 1, "a": 1}', "DUPLICATE_KEY"),
    "twice-deep": ('{"a": {"b": 1, "b": 2}}', "DUPLICATE_KEY"),
    "twice-object": ('{"a": {"b": 1}, "a": {"c": 1}}', "DUPLICATE_KEY"),
    "twice-null": ('{"a": null, "a": 1}', "DUPLICATE_KEY"),
    "ambiguous": ('{"a": {"b": 1}, "a.b": 1}', "DUPLICATE_KEY"),
    "nan": ('{"a": NaN}', "BAD_JSON"),
    "depth": ('{"a":' * 50 + "1" + "}" * 50, "BAD_JSON"),
    "long-key": ('{"' + "k" * 300 + '": 1}', "BAD_CONFIG"),
}


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_bad_config(folder: Path, name: str) -> None:
    text, check = BAD_CONFIGS[name]
    (folder / "config.json").write_text(text)
    refused(folder, FORMAT, check, "config.json: ")


# ---- damage

ROUNDS = 10_000
SEED = 20_260_102
ODD = [b"[", b"]", b"{", b"}", b'"', b",", b"-", b"0", b"1e9", b"18446744073709551615", b"\\u0000",
       b"\\ud800", b"null", b'"__metadata__"', b'"dtype"', b"\xff", b"\0"]  # fmt: skip


def mutate(rng: random.Random, data: bytearray, other: bytes) -> None:
    at = rng.randrange(len(data))
    kind = rng.randrange(6)
    if kind == 0:
        data[at] = rng.randrange(256)
    elif kind == 1:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 2:
        data[at:at] = rng.choice(ODD)
    elif kind == 3:
        del data[at : at + rng.randrange(1, 20)]
    elif kind == 4:
        odd = rng.choice(ODD)
        data[at : at + len(odd)] = odd
    else:
        begin = rng.randrange(len(other))
        data[at : at + rng.randrange(16)] = other[begin : begin + rng.randrange(40)]
    if not data:
        data += b"x"


def test_damaged_files(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    files = [VALID, NAMED, one(), raw("{}"), build(SHARDED, {"a": "b", "c": "dä"}),
             raw("{ " + T8 + "}  ", B8)]  # fmt: skip
    shm = Path("/dev/shm")
    path = (shm if os.access(shm, os.W_OK) else tmp_path) / f"stoker-{os.getpid()}.safetensors"
    opened, checks = 0, {}
    try:
        for n in range(ROUNDS):
            data = bytearray(rng.choice(files))
            for _ in range(rng.choice((1, 1, 1, 2, 4))):
                mutate(rng, data, rng.choice(files))
            if rng.random() < 0.6 and len(data) > 8:  # a length that fits, so that more is read
                end = data.rfind(b"}") + 1
                if end > 8:
                    data[:8] = u64(end - 8)
            path.write_bytes(data)
            try:
                native = _native.Checkpoint(str(path), bool(n & 1))
            except stoker.Error as e:
                assert e.check and str(path) in str(e), (n, bytes(data))
                checks[e.check] = checks.get(e.check, 0) + 1
                continue
            opened += 1
            native.metadata()
            for at, (name, _, _, n_bytes, offset, file) in enumerate(native.tensors()):
                assert name and file == 0 and offset + n_bytes <= native.file_bytes
                assert native.raw(at).nbytes == n_bytes
                native.raw(at).sum()
            native.close()
    finally:
        path.unlink(missing_ok=True)
    print(f"seed {SEED}: {opened} of {ROUNDS} opened; {sorted(checks.items())}")
    assert opened > ROUNDS // 50 and len(checks) > 12


@pytest.mark.parametrize("n", [252, 253, 254, 255, 256])
def test_config_keys_as_long_as_may_be(folder: Path, n: int) -> None:
    """A joined key has at most 255 bytes, counting the dot; a full one has no room for a child."""
    text = json.dumps({"k" * n: {"": 1, "a": {"b": 2}}})
    (folder / "config.json").write_text(text)
    refused(folder, FORMAT, "BAD_CONFIG", "expected keys of at most 255 bytes, found a longer one")


def test_config_keys_that_just_fit(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "x", "k" * 253: {"a": 1}}))
    with stoker.open(folder) as ck:
        assert ck.config is not None and ck.config["k" * 253] == {"a": 1}
