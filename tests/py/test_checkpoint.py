"""The Python face of a checkpoint: contents against an independent reader, who keeps what alive,
and what is shown."""

from __future__ import annotations

import gc
import itertools
import math
import os
import sys
import threading
from pathlib import Path

import gguf
import numpy as np
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
    kv,
    minimal,
    string,
    u32,
    u64,
)  # fmt: skip
from stoker import _native
from stoker.checkpoint import Checkpoint, Tensor
from stoker.inspect import abbreviate, inspect_rows, inspect_summary, part_of


def write(folder: Path, data: bytes, name: str = "m.gguf") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write(tmp_path, minimal())


def is_mapped(path: Path) -> bool:
    return os.fsencode(path) in Path("/proc/self/maps").read_bytes()


# ---- contents, against the reader of the gguf package


def check_against_reader(path: Path) -> None:
    reader = gguf.GGUFReader(path)
    with stoker.open(path, strict=True) as ck:
        fields = {k: f for k, f in reader.fields.items() if not k.startswith("GGUF.")}
        assert list(ck.metadata) == list(fields)
        for key, field in fields.items():
            want, got = field.contents(), ck.metadata[key]
            if isinstance(want, list) and want and not isinstance(want[0], str):
                assert isinstance(got, np.ndarray)
                np.testing.assert_array_equal(got, np.array(want, got.dtype))
            else:
                assert got == want and type(got) is type(want), key
        assert list(ck) == [t.name for t in reader.tensors]
        for t in reader.tensors:
            mine = ck[t.name]
            assert mine.type == t.tensor_type.name
            assert mine.shape == tuple(int(n) for n in t.shape)[::-1]
            assert (mine.nbytes, mine.offset) == (t.n_bytes, t.data_offset)
            assert mine.size == t.n_elements
            assert mine.numpy().tobytes() == t.data.tobytes()


def test_file_of_the_gguf_writer(tmp_path: Path) -> None:
    path = tmp_path / "w.gguf"
    w = gguf.GGUFWriter(path, "llama")
    w.add_name("n\u00e4me")
    w.add_uint8("k.u8", 255)
    w.add_int8("k.i8", -128)
    w.add_uint16("k.u16", 65535)
    w.add_int16("k.i16", -32768)
    w.add_uint32("k.u32", 2**32 - 1)
    w.add_int32("k.i32", -(2**31))
    w.add_uint64("k.u64", 2**64 - 1)
    w.add_int64("k.i64", -(2**63))
    w.add_float32("k.f32", 0.1)
    w.add_float64("k.f64", 0.1)
    w.add_bool("k.true", True)
    w.add_bool("k.false", False)
    w.add_string("k.empty", "")
    w.add_array("k.ints", [1, -2, 3])
    w.add_array("k.floats", [0.5, -1.5])
    w.add_array("k.bools", [True, False])
    w.add_array("k.strings", ["a", "", "\u4e2d\u6587", "\U0001f525"])
    rng = np.random.default_rng(0)
    for i, shape in enumerate([(5,), (3, 64), (2, 3, 32), (2, 1, 3, 4)]):
        w.add_tensor(f"f32.{i}", rng.standard_normal(shape).astype(np.float32))
        w.add_tensor(f"f16.{i}", rng.standard_normal(shape).astype(np.float16))
    q = gguf.quants.quantize(rng.standard_normal((4, 64)).astype(np.float32),
                             gguf.GGMLQuantizationType.Q8_0)  # fmt: skip
    w.add_tensor("q8", q, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    check_against_reader(path)


@pytest.mark.model
def test_smollm2(smollm2_path: Path) -> None:
    check_against_reader(smollm2_path)
    with stoker.open(smollm2_path) as ck:
        assert ck.architecture == "llama" and len(ck) == 272 and ck.parameters == 134_515_008
        for name in ("token_embd.weight", "blk.7.ffn_down.weight", "output_norm.weight"):
            t = ck[name]
            kind = gguf.GGMLQuantizationType[t.type]
            want = t.numpy() if t.type == "F32" else gguf.quants.dequantize(t.numpy(), kind)
            np.testing.assert_array_equal(t.dequantize(), want)


def test_metadata_types(tmp_path: Path) -> None:
    scalars = {
        U8: 200, I8: -100, U16: 60000, I16: -30000, U32: 4 * 10**9, I32: -(2**31), U64: 2**64 - 1,
        I64: -(2**63), F32: 0.5, F64: 0.1, BOOL: 1, STRING: "s",
    }  # fmt: skip
    arrays = {k: np.dtype(d) for k, d in ((U8, "u1"), (I8, "i1"), (U16, "u2"), (I16, "i2"),
              (U32, "u4"), (I32, "i4"), (U64, "u8"), (I64, "i8"), (F32, "f4"), (F64, "f8"),
              (BOOL, "?"))}  # fmt: skip
    kvs = [kv(f"s{k}", k, v) for k, v in scalars.items()]
    kvs += [kv(f"a{k}", ARRAY, raw=array(k, [scalars[k], 0, 1])) for k in arrays]
    meta = stoker.open(write(tmp_path, build(kvs))).metadata
    for k, v in scalars.items():
        assert meta[f"s{k}"] == v
    assert meta[f"s{BOOL}"] is True and type(meta[f"s{U8}"]) is int
    for k, dtype in arrays.items():
        assert meta[f"a{k}"].dtype == dtype and meta[f"a{k}"].tolist() == [scalars[k], 0, 1]


def test_strings_of_any_bytes(tmp_path: Path) -> None:
    odd = [b"\xff\xfe", b"\xc3", b"a\0b", b"", "\u00e4".encode()]
    raw = u32(STRING) + u64(len(odd)) + b"".join(string(s) for s in odd)
    ck = stoker.open(write(tmp_path, build([kv("t", ARRAY, raw=raw), kv("s", STRING, odd[0])])))
    assert [s.encode("utf-8", "surrogateescape") for s in ck.metadata["t"]] == odd
    assert ck.metadata["s"].encode("utf-8", "surrogateescape") == odd[0]
    assert abbreviate(ck.metadata["s"]).isascii()


def test_views(tmp_path: Path) -> None:
    kinds = {"F32": (0, "f4"), "F16": (1, "f2"), "F64": (28, "f8"), "BF16": (30, "u2"),
             "I8": (24, "i1"), "I16": (25, "i2"), "I32": (26, "i4"), "I64": (27, "i8")}  # fmt: skip
    tensors = [T(name, (3, 5, 2), kind) for name, (kind, _) in kinds.items()]
    data = build([], [*tensors, T("Q6_K", (512, 3, 2), 14)])
    ck = stoker.open(write(tmp_path, data))
    for name, (_, dtype) in kinds.items():
        view, t = ck[name].numpy(), ck[name]
        assert view.dtype == np.dtype(dtype) and view.shape == (2, 5, 3) == t.shape
        assert view.flags.aligned and view.flags.c_contiguous and not view.flags.owndata
        assert view.tobytes() == data[t.offset : t.offset + t.nbytes]
        assert t.dequantize().shape == t.shape
    blocks = ck["Q6_K"].numpy()
    assert blocks.shape == (2, 3, 420) and blocks.dtype == np.uint8
    assert ck["Q6_K"].dequantize().shape == (2, 3, 512)


def test_views_cannot_be_written(small: Path) -> None:
    before = small.read_bytes()
    view = stoker.open(small)["b.weight"].numpy()
    assert not view.flags.writeable
    with pytest.raises(ValueError):
        view[0] = 1
    with pytest.raises(ValueError):
        view.flags.writeable = True
    with pytest.raises(ValueError):
        view.setflags(write=True)
    with pytest.raises((ValueError, BufferError, TypeError)):
        memoryview(view)[0] = 1.0
    assert small.read_bytes() == before


# ---- as a mapping


def test_mapping(small: Path) -> None:
    ck = stoker.open(small)
    assert isinstance(ck, Checkpoint) and isinstance(ck["a.weight"], Tensor)
    assert list(ck) == ["a.weight", "b.weight", "c.weight"] and len(ck) == 3
    assert "a.weight" in ck and "none" not in ck and 3 not in ck
    assert ck.get("none") is None and ck["a.weight"] is ck["a.weight"]
    with pytest.raises(KeyError, match=r"m\.gguf: no tensor 'none'"):
        ck["none"]
    other = stoker.open(small)
    assert ck != other and len({ck, other}) == 2
    assert ck.metadata is ck.metadata


@pytest.mark.parametrize("kind", [str, Path, os.fsencode])
def test_path_kinds(small: Path, kind: type) -> None:
    assert stoker.open(kind(str(small))).path == str(small)


def test_odd_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (b"sp ace.gguf", "\u4e2d.gguf".encode(), b"\xff\xfe.gguf"):
        path = os.path.join(os.fsencode(tmp_path), name)
        Path(os.fsdecode(path)).write_bytes(minimal())
        assert os.fsencode(stoker.open(path).path) == path
    write(tmp_path, minimal(), "home.gguf")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(stoker.open("~/home.gguf")) == 3


def test_arguments(small: Path) -> None:
    for bad in (3, None, 1.5):
        with pytest.raises(TypeError):
            stoker.open(bad)
    with pytest.raises(ValueError):
        stoker.open("a\0b")
    with pytest.raises(TypeError):
        stoker.open(small, True)
    native = _native.Checkpoint(str(small))
    for at in (3, -1, 2**62):
        with pytest.raises(stoker.InvalidArgumentError, match="expected 0 to 2, found"):
            native.raw(at)
    for at in ("0", 1.0, None):
        with pytest.raises(TypeError):
            native.dequantize(at)
    with pytest.raises(OverflowError):
        native.raw(2**64)


# ---- who keeps what alive


def test_close(small: Path) -> None:
    ck = stoker.open(small)
    t, meta = ck["a.weight"], ck.metadata
    assert is_mapped(small) and not ck.closed
    ck.close()
    ck.close()
    assert ck.closed and not is_mapped(small)
    for use in (t.numpy, t.dequantize, ck._native.metadata, ck._native.tensors,
                lambda: ck._native.version):  # fmt: skip
        with pytest.raises(stoker.StateError, match=r"m\.gguf: expected an open checkpoint"):
            use()
    assert ck.metadata is meta and len(ck) == 3 and ck.path == str(small)
    fresh = stoker.open(small)
    fresh.close()
    with pytest.raises(stoker.StateError):
        _ = fresh.metadata
    with stoker.open(small) as ck:
        pass
    assert ck.closed


OWNERS = ("checkpoint", "tensor", "view", "slice")


@pytest.mark.parametrize("order", list(itertools.permutations(OWNERS)))
@pytest.mark.parametrize("close", [False, True])
def test_any_order_of_death(small: Path, order: tuple[str, ...], close: bool) -> None:
    data = small.read_bytes()
    alive: dict[str, object] = {"checkpoint": stoker.open(small)}
    alive["tensor"] = alive["checkpoint"]["a.weight"]
    alive["view"] = alive["tensor"].numpy()
    alive["slice"] = alive["view"][1:, ::2]
    start = alive["tensor"].offset
    want = np.frombuffer(data, np.uint8)[start : start + 36].reshape(2, 18)
    if close:
        alive["checkpoint"].close()
    for name in order:
        assert is_mapped(small)
        del alive[name]
        gc.collect()
        if "view" in alive:
            np.testing.assert_array_equal(alive["view"], want)
        if "slice" in alive:
            np.testing.assert_array_equal(alive["slice"], want[1:, ::2])
        if close and "view" not in alive and "slice" not in alive:
            break
    assert not is_mapped(small)


def test_close_while_decoding(tmp_path: Path) -> None:
    path = write(tmp_path, build([], [T("big", (1 << 20, 4), 8, bytes(34 * (1 << 17)))]))
    failures: list[BaseException] = []

    def decode(ck: Checkpoint) -> None:
        try:
            for _ in range(20):
                assert not ck["big"].dequantize().any()
        except stoker.StateError:
            pass
        except BaseException as e:
            failures.append(e)

    for _ in range(5):
        ck = stoker.open(path)
        threads = [threading.Thread(target=decode, args=(ck,)) for _ in range(2)]
        for t in threads:
            t.start()
        ck.close()
        for t in threads:
            t.join()
    assert not failures and not is_mapped(path)


@pytest.mark.model
def test_close_under_an_engine(smollm2_path: Path) -> None:
    path = smollm2_path
    ck = stoker.open(path)
    engine = stoker.Engine(ck, device="cpu", context=64)
    want = engine.generate([1, 2, 3], max_tokens=2, temperature=0).ids
    ck.close()
    assert ck.closed and is_mapped(path)
    assert engine.generate([1, 2, 3], max_tokens=2, temperature=0).ids == want
    with pytest.raises(stoker.StateError, match="open checkpoint"):
        stoker.Engine(ck, device="cpu", context=64)
    del engine, ck
    gc.collect()
    assert not is_mapped(path)


def test_references_do_not_pile_up(small: Path) -> None:
    bad = write(small.parent, build(version=7), "bad.gguf")
    native_type = _native.Checkpoint

    def once() -> None:
        ck = stoker.open(small)
        views = [t.numpy() for t in ck.values()]
        _ = [t.dequantize() for t in ck.values()], ck.metadata, repr(ck), ck._repr_html_()
        ck._native.tensors()
        ck.close()
        for use in (ck["a.weight"].numpy, lambda: ck._native.raw(99), lambda: ck._native.raw("x"),
                    lambda: stoker.open(bad), lambda: native_type(), lambda: native_type(3)):  # fmt: skip
            with pytest.raises((stoker.Error, TypeError)):
                use()
        del views

    for _ in range(20):
        once()
    gc.collect()
    blocks, type_refs = sys.getallocatedblocks(), sys.getrefcount(native_type)
    for _ in range(200):
        once()
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 100
    assert abs(sys.getrefcount(native_type) - type_refs) <= 1
    assert not is_mapped(small) and not is_mapped(bad)


def test_no_descriptors_left(small: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        stoker.open(small)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


# ---- what is shown


def test_reprs(small: Path) -> None:
    ck = stoker.open(small)
    assert repr(ck).startswith("<Checkpoint m.gguf: test, 3 tensors, 836 parameters, 682 B, 6.53 ")
    assert "Q6_K 92% Q4_0 5% F32 2%" in repr(ck) and "\n" not in repr(ck)
    assert repr(ck["a.weight"]) == "<Tensor a.weight: Q4_0 [2, 32], 36 B, 4.5 bits per element>"
    assert "<th" in ck._repr_html_() and "Q4_0" in ck["a.weight"]._repr_html_()
    ck.close()
    assert repr(ck) == "<Checkpoint m.gguf: closed>" and "closed" in ck._repr_html_()


def test_shown_text_is_harmless(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\x1b[2J\u202e"
    kvs = [kv("general.architecture", STRING, evil), kv("a<b", STRING, evil * 10)]
    ck = stoker.open(write(tmp_path, build(kvs, [T("<b>\u202e", (4,))]), "<i>.gguf"))
    shown = [
        repr(ck),
        repr(ck["<b>\u202e"]),
        *(r["value"] for r in inspect_summary(ck)["metadata"]),
    ]
    assert all(s.isprintable() for s in shown)
    for text in (ck._repr_html_(), ck["<b>\u202e"]._repr_html_()):
        assert text.isprintable() and "<script" not in text and "<i>" not in text
        assert "<b>" not in text


def test_inspect(small: Path) -> None:
    ck = stoker.open(small)
    rows, summary = inspect_rows(ck), inspect_summary(ck)
    assert [r["name"] for r in rows] == list(ck)
    assert rows[0]["shape"] == [2, 32] and rows[0]["bits_per_weight"] == 4.5
    assert summary["parameters"] == 836 and summary["bytes"] == 682
    assert summary["unclaimed_bytes"] == 0 and summary["directory_bytes"] == rows[0]["offset"]
    for table in ("types", "parts"):
        assert sum(r["bytes"] for r in summary[table]) == 682
        assert math.isclose(sum(r["share"] for r in summary[table]), 1)
    values = {r["key"]: r["value"] for r in summary["metadata"]}
    assert values["test.names"] == "[3 x string] a, , b\u00e4"
    assert values["test.scores"] == "[2 x float32] 0.5, -1.0"
    gap = write(small.parent, build([], [T("a"), T("b", offset=64)], tail=bytes(32)), "gap.gguf")
    assert inspect_summary(stoker.open(gap))["unclaimed_bytes"] == 32
    empty = write(small.parent, build(), "empty.gguf")
    assert inspect_summary(stoker.open(empty))["bits_per_weight"] is None


@pytest.mark.parametrize(
    "name, part",
    [
        ("token_embd.weight", "embedding"), ("output.weight", "output"),
        ("output_norm.weight", "norm"), ("blk.0.attn_norm.weight", "norm"),
        ("blk.0.attn_q.weight", "attention"), ("blk.10.attn_q_norm.weight", "norm"),
        ("blk.0.ffn_down.weight", "ffn"), ("blk.0.ffn_down_exps.weight", "experts"),
        ("blk.0.ffn_gate_inp.weight", "router"), ("blk.0.ffn_up_shexp.weight", "ffn"),
        ("blk.0.ssm_conv1d.weight", "recurrent"), ("blk.4.nextn.eh_proj.weight", "mtp"),
        ("blk", "other"), ("rope_freqs.weight", "other"),
    ],
)  # fmt: skip
def test_parts(name: str, part: str) -> None:
    assert part_of(name) == part


@pytest.mark.parametrize("path", ["a\0b", "a\udc80\ud800"], ids=ascii)
def test_paths_that_no_file_has(path: str) -> None:
    with pytest.raises(stoker.InvalidArgumentError, match="path: expected a file name"):
        stoker.open(path)
