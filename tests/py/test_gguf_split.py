"""Split GGUF models, whole and broken. Numbers of cases follow the list in docs/formats.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import stoker
from gguf_bytes import BOOL, F32, I32, STRING, U8, U16, U32, U64, T, build, kv
from stoker.inspect import inspect_summary

KINDS = (U8, U16, U32, U64, I32)


def keys(
    no: int, count: int, total: int, kinds: tuple[int, int, int] = (U16, U16, I32)
) -> list[bytes]:
    return [kv("split.no", kinds[0], no), kv("split.count", kinds[1], count),
            kv("split.tensors.count", kinds[2], total)]  # fmt: skip


def shard(no: int, tensors: list[T], count: int = 3, total: int = 3, **options: object) -> bytes:
    head = [kv("general.architecture", STRING, "test")] if no == 0 else []
    return build(head + keys(no, count, total), tensors, **options)  # type: ignore[arg-type]


def name(folder: Path, no: int, count: int = 3) -> Path:
    return folder / f"m-{no + 1:05d}-of-{count:05d}.gguf"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Three files; the first has no tensors. Returns the first."""
    name(tmp_path, 0).write_bytes(shard(0, []))
    name(tmp_path, 1).write_bytes(shard(1, [T("a"), T("b", (3,))]))
    name(tmp_path, 2).write_bytes(shard(2, [T("c", (32,), 2)]))
    return name(tmp_path, 0)


def refused(path: Path, check: str, names: str, error: type = stoker.FormatError) -> None:
    with pytest.raises(error) as raised:
        stoker.open(path)
    assert raised.value.check == check, str(raised.value)
    assert re.search(names, str(raised.value)), str(raised.value)


def test_whole(model: Path) -> None:
    with stoker.open(model, strict=True) as ck:
        assert list(ck) == ["a", "b", "c"] and ck.format == "gguf" and len(ck.files) == 3
        assert ck.architecture == "test" and [Path(t.file).name[:7] for t in ck.values()] == [
            "m-00002", "m-00002", "m-00003"]  # fmt: skip
        for t in ck.values():
            assert t.numpy().tobytes() == Path(t.file).read_bytes()[t.offset :][: t.nbytes]
        assert ck.file_bytes == sum(Path(p).stat().st_size for p in ck.files)
        assert inspect_summary(ck)["unclaimed_bytes"] == 0 and inspect_summary(ck)["files"] == 3


def test_own_alignment(model: Path) -> None:
    data = build([kv("general.alignment", U32, 64), *keys(2, 3, 3)], [T("c")], alignment=64)
    name(model.parent, 2).write_bytes(data)
    with stoker.open(model, strict=True) as ck:
        assert ck["c"].offset % 64 == 0 and ck.alignment == 32


@pytest.mark.parametrize("kind", KINDS)
def test_66_integer_types(model: Path, kind: int) -> None:
    for i, tensors in enumerate(([], [T("a"), T("b")], [T("c")])):
        name(model.parent, i).write_bytes(build(keys(i, 3, 3, (kind,) * 3), tensors))
    assert len(stoker.open(model)) == 3


@pytest.mark.parametrize("no", [1, 2])
def test_61_not_the_first(model: Path, no: int) -> None:
    refused(name(model.parent, no), "BAD_SPLIT", f"split file {no + 1} of 3")


@pytest.mark.parametrize("no", [1, 2])
def test_62_missing(model: Path, no: int) -> None:
    name(model.parent, no).unlink()
    refused(model, "IO", f"m-{no + 1:05d}-of-00003.gguf: open", stoker.ReadError)


@pytest.mark.parametrize("other", ["m.gguf", "m-00001-of-00004.gguf", "m-00002-of-00003.gguf",
                                   "m-1-of-3.gguf", "00001-of-00003.gguf"])  # fmt: skip
def test_62_named_otherwise(model: Path, other: str) -> None:
    path = model.parent / "other" / other
    path.parent.mkdir()
    path.write_bytes(model.read_bytes())
    refused(path, "BAD_SPLIT", "ends in -00001-of-00003.gguf")


def test_63_same_number_twice(model: Path) -> None:
    name(model.parent, 2).write_bytes(shard(1, [T("c")]))
    refused(model, "BAD_SPLIT", "m-00003.*split.no: expected 2, found 1")


def test_64_tensor_in_two_files(model: Path) -> None:
    name(model.parent, 2).write_bytes(shard(2, [T("a")]))
    refused(model, "DUPLICATE_TENSOR", "m-00003.*tensor a.*file 2 too")


@pytest.mark.parametrize("total", [2, 4, 0, 2**31 - 1])
def test_65_wrong_total(model: Path, total: int) -> None:
    for i, tensors in enumerate(([], [T("a"), T("b")], [T("c")])):
        name(model.parent, i).write_bytes(shard(i, tensors, total=total))
    refused(model, "BAD_SPLIT", f"split.tensors.count: expected the 3 .*found {total}")


def test_65_negative_total(model: Path) -> None:
    model.write_bytes(build(keys(0, 3, -1)))
    refused(model, "BAD_HPARAM", "split.tensors.count.*found -1")


@pytest.mark.parametrize("total", [None, 7])
def test_65_totals_differ(model: Path, total: int | None) -> None:
    kvs = keys(2, 3, total or 0)
    name(model.parent, 2).write_bytes(build(kvs[:2] if total is None else kvs, [T("c")]))
    refused(model, "BAD_SPLIT", "m-00003.*split.tensors.count: expected 3, found")


def test_counts_differ(model: Path) -> None:
    name(model.parent, 1).write_bytes(shard(1, [T("a"), T("b")], count=4))
    refused(model, "BAD_SPLIT", "m-00002.*split.count: expected 3, found 4")


def test_shard_without_keys(model: Path) -> None:
    name(model.parent, 1).write_bytes(build([], [T("a"), T("b")]))
    refused(model, "BAD_SPLIT", "m-00002.*split.no: expected 1, found 0")


@pytest.mark.parametrize("kind, value, found", [(STRING, "1", "string"), (BOOL, 1, "bool"),
                                                (F32, 1.0, "float32")])  # fmt: skip
def test_66_other_types(model: Path, kind: int, value: object, found: str) -> None:
    kvs = [kv("split.no", kind, value), *keys(1, 3, 3)[1:]]
    name(model.parent, 1).write_bytes(build(kvs, [T("a"), T("b")]))
    refused(model, "KEY_TYPE", f"m-00002.*split.no.*found {found}")


def test_67_other_containers(model: Path) -> None:
    good = name(model.parent, 1).read_bytes()
    for head, check in (
        (b"GGUF\x00\x00\x00\x03", "WRONG_ENDIAN"), (b"GGUF\x04\x00\x00\x00", "BAD_VERSION"),
        (b"GGUF\x01\x00\x00\x00", "BAD_VERSION"), (b"GGML\x03\x00\x00\x00", "BAD_MAGIC"),
    ):  # fmt: skip
        name(model.parent, 1).write_bytes(head + good[8:])
        refused(model, check, "m-00002")


def test_68_too_many(tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-65535.gguf"
    path.write_bytes(build(keys(0, 65535, 1)))
    refused(path, "BAD_SPLIT", "at most 10000 files, found 65535")
    path = tmp_path / "m-00001-of-10000.gguf"
    path.write_bytes(build(keys(0, 10000, 1)))
    refused(path, "IO", "m-00002-of-10000.gguf", stoker.ReadError)


def test_architecture_differs(model: Path) -> None:
    kvs = [kv("general.architecture", STRING, "other"), *keys(1, 3, 3)]
    name(model.parent, 1).write_bytes(build(kvs, [T("a"), T("b")]))
    refused(model, "BAD_SPLIT", "m-00002.*general.architecture")


def test_names_in_the_files_are_not_followed(model: Path) -> None:
    kvs = [kv("split.prefix", STRING, "/etc/passwd"), *keys(0, 3, 3)]
    model.write_bytes(build(kvs))
    assert all(Path(p).parent == model.parent for p in stoker.open(model).files)
