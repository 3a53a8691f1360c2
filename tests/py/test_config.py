"""Hyper-parameters outside their range, and models that no recipe computes: refused by name."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
import tiny
from gguf_bytes import ARRAY, F32, I32, STRING, U32, array, build, kv
from stoker import _native

import stoker
from stoker.engine import Engine

ARCH = "general.architecture"
HEADS, KV_HEADS, WIDTH = "attention.head_count", "attention.head_count_kv", "attention.key_length"


def name_of(entry: bytes) -> str:
    (n,) = struct.unpack_from("<Q", entry)
    return entry[8 : 8 + n].decode()


def model(path: Path, arch: str, changed: dict[str, bytes | None]) -> Path:
    """The tiny model of an architecture with keys replaced, added or (None) left out."""
    shape = tiny.Shape(arch)
    kept = [k for k in tiny.keys(shape) if name_of(k) not in changed]
    path.write_bytes(build(kept + [v for v in changed.values() if v], tiny.tensors(shape, 0)))
    return path


CASES = {
    "no architecture": ({ARCH: None}, stoker.FormatError, "MISSING_KEY", f"{ARCH}"),
    "empty architecture": ({ARCH: ""}, stoker.FormatError, "BAD_HPARAM",
                           "expected a name of 1 .. 31 bytes, found 0"),
    "unknown architecture": ({ARCH: "mamba"}, stoker.UnsupportedError, None,
                             "expected one of llama, qwen2, qwen3, gemma3, found mamba"),
    "no layers": ({"block_count": 0}, stoker.FormatError, "BAD_HPARAM",
                  "llama.block_count: expected 1 .. 4096, found 0"),
    "too many layers": ({"block_count": 4097}, stoker.FormatError, "BAD_HPARAM", "found 4097"),
    "layers missing": ({"block_count": None}, stoker.FormatError, "MISSING_KEY", "block_count"),
    "heads do not divide": ({HEADS: 5, KV_HEADS: 5}, stoker.FormatError, "BAD_HPARAM",
                            "head_count: expected a divisor of embedding_length, found 5"),
    "key heads do not divide": ({KV_HEADS: 3}, stoker.FormatError, "BAD_HPARAM",
                                "head_count_kv: expected a divisor of attention.head_count, found 3"),
    "values of another width": ({WIDTH: 64, "attention.value_length": 32}, stoker.FormatError,
                                "BAD_HPARAM", "value_length: expected attention.key_length, found 32"),
    "odd width": ({WIDTH: 33}, stoker.FormatError, "BAD_HPARAM",
                  "key_length: expected an even number, found 33"),
    "wide heads": ({HEADS: 32, WIDTH: 65536}, stoker.FormatError, "BAD_HPARAM",
                   "expected a total head width of at most 1048576, found 32"),
    "odd rotation": ({"rope.dimension_count": 31}, stoker.FormatError, "BAD_HPARAM",
                     "rope.dimension_count: expected an even number, found 31"),
    "partial rotation": ({"rope.dimension_count": 32}, stoker.FormatError, "BAD_HPARAM",
                         "rope.dimension_count: expected the head width 64, found 32"),
    "no epsilon": ({"attention.layer_norm_rms_epsilon": 0.0}, stoker.FormatError, "BAD_HPARAM",
                   "expected a finite number above 0, found 0"),
    "rotary base": ({"rope.freq_base": -1.0}, stoker.FormatError, "BAD_HPARAM",
                    "rope.freq_base: expected a finite number above 0, found -1"),
    "rotary rule": ({"rope.scaling.type": "yarn"}, stoker.UnsupportedError, None,
                    "rope.scaling.type: expected none or linear, found yarn"),
    "experts": ({"expert_count": 8}, stoker.UnsupportedError, None,
                "llama.expert_count: expected 0, found 8"),
    "vocabulary": ({"vocab_size": 7}, stoker.FormatError, "BAD_HPARAM",
                   "llama.vocab_size: expected 320, found 7"),
}  # fmt: skip


def entry(arch: str, key: str, value: object) -> bytes | None:
    kind = {int: U32, float: F32, str: STRING}
    full = key if "." in key and key.split(".")[0] == "general" else f"{arch}.{key}"
    return None if value is None else kv(full, kind[type(value)], value)


def refused(path: Path, error: type[stoker.Error], check: str | None, text: str) -> None:
    with pytest.raises(error, match=re.escape(text)) as raised:
        Engine(path, context=64)
    assert raised.value.check == check
    assert str(raised.value).startswith(str(path))


@pytest.mark.parametrize("case", CASES)
def test_refused(tmp_path: Path, case: str) -> None:
    changed, *want = CASES[case]
    keys = {k if k == ARCH else f"llama.{k}": entry("llama", k, v) for k, v in changed.items()}
    refused(model(tmp_path / "m.gguf", "llama", keys), *want)


def test_gemma_caps_its_logits(tmp_path: Path) -> None:
    key = "gemma3.final_logit_softcapping"
    path = model(tmp_path / "m.gguf", "gemma3", {key: kv(key, F32, 30.0)})
    refused(path, stoker.UnsupportedError, None, f"{key}: expected 0, found 30")


def test_more_tokens_than_rows(tmp_path: Path) -> None:
    key = "tokenizer.ggml.tokens"
    tokens = kv(key, ARRAY, raw=array(STRING, [str(i) for i in range(321)]))
    path = model(tmp_path / "m.gguf", "llama", {key: tokens})
    refused(
        path, stoker.FormatError, "BAD_HPARAM", f"{key}: expected at most 320 tokens, found 321"
    )
    tokens = kv(key, ARRAY, raw=array(I32, [1, 2]))
    assert Engine(model(path, "llama", {key: tokens}), context=64)


# What the engine has checked before, the session checks itself.

OPTIONS = {"slots": 1, "ctx": 64, "chunk": 16, "threads": 1, "f32": 0, "kernels": "fast",
           "poison": 0, "kind": 0, "k": 0, "n_max": 4, "n_min": 2}  # fmt: skip
OUTSIDE = {
    "slots: expected 1 .. 64, found 65": {"slots": 65},
    "context: expected 1 .. 16777216, found 0": {"ctx": 0},
    "prefill_chunk: expected 1 .. 8192, found 8193": {"chunk": 8193},
    "threads: expected 1 .. 1024, found 0": {"threads": 0},
    "drafter: expected 0 .. 15 proposals, found 16": {"kind": 2, "k": 16},
    "drafter: expected at least 1 proposal, found 0": {"kind": 2},
    "drafter: expected a kind in 0 .. 2, found 3": {"kind": 3, "k": 1},
    "draft_ngram: n_min: expected at least 1, found 0": {"kind": 2, "k": 1, "n_max": 0, "n_min": 0},
}


@pytest.mark.parametrize("text", OUTSIDE)
def test_options_of_a_session(tiny_path: Path, text: str) -> None:
    with stoker.open(tiny_path) as ck:
        values = tuple((OPTIONS | OUTSIDE[text]).values())
        with pytest.raises(stoker.InvalidArgumentError, match=re.escape(text)):
            _native.Session(ck._native, values)


def test_kernels_of_a_session(tiny_path: Path) -> None:
    with stoker.open(tiny_path) as ck:
        values = tuple((OPTIONS | {"kernels": "vliw"}).values())
        text = "kernels: expected what this processor has, found vliw"
        with pytest.raises(stoker.UnsupportedError, match=text):
            _native.Session(ck._native, values)


def test_a_session_wants_a_checkpoint() -> None:
    text = "checkpoint: expected a _native.Checkpoint, found another object"
    with pytest.raises(stoker.InvalidArgumentError, match=text):
        _native.Session("m.gguf", tuple(OPTIONS.values()))
