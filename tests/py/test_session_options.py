"""What a session checks itself: options outside their range, whoever calls it; and the one limit of a
model that takes two hyper-parameters to break (test_model_hostile.py has those that take one)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tiny
from gguf_bytes import U32, build, kv
from stoker import _native

import stoker
from stoker.engine import MODES, Engine


def test_heads_too_wide_together(tmp_path: Path) -> None:
    shape = tiny.Shape(n_head=32)
    wide = kv("llama.attention.key_length", U32, 65536)
    path = tmp_path / "m.gguf"
    path.write_bytes(build([*tiny.keys(shape), wide], tiny.tensors(shape, 0)))
    text = "attention.head_count: expected a total head width of at most 1048576, found 32"
    with pytest.raises(stoker.FormatError, match=re.escape(text)) as raised:
        Engine(path, device="cpu", context=64)
    assert raised.value.check == "BAD_HPARAM"


OPTIONS = {"slots": 1, "ctx": 64, "chunk": 16, "threads": 1, "f32": 0, "kernels": "fast",
           "poison": 0, "device": -1, "mode": 0, "edges": 1, "kind": 0, "k": 0, "n_max": 4, "n_min": 2,
           "per_stream": 0, "in_ram": 0, "fused": 0, "forced": (0, 0, 0, 0)}  # fmt: skip
OUTSIDE = {
    "slots: expected 1 .. 64, found 65": {"slots": 65},
    "context: expected 1 .. 16777216, found 0": {"ctx": 0},
    "prefill_chunk: expected 1 .. 8192, found 8193": {"chunk": 8193},
    "threads: expected 1 .. 1024, found 0": {"threads": 0},
    "device: expected at least -1, found -2": {"device": -2},
    "mode: expected 0 .. 2, found 3": {"mode": 3},
    "mode: expected 0 .. 2, found -1": {"mode": -1},
    "drafter: expected 0 .. 15 proposals, found 16": {"kind": 2, "k": 16},
    "drafter: expected at least 1 proposal, found 0": {"kind": 2},
    "drafter: expected a kind in 0 .. 3, found 4": {"kind": 4, "k": 1},
    "forced routing: expected a kind in 0 .. 2, found 3": {"forced": (1, 3, 0, 0)},
    "forced routing: expected a kind in 0 .. 2, found -1": {"forced": (1, -1, 0, 0)},
    "forced acceptance: expected a drafter with at least 1 proposal, found 0": {
        "forced": (1, 0, 1, 0)
    },
    "draft_ngram: n_min: expected at least 1, found 0": {"kind": 2, "k": 1, "n_max": 0, "n_min": 0},
}


@pytest.mark.parametrize("text", OUTSIDE)
def test_options_of_a_session(tiny_path: Path, text: str) -> None:
    with stoker.open(tiny_path) as ck:
        values = tuple((OPTIONS | OUTSIDE[text]).values())
        with pytest.raises(stoker.InvalidArgumentError, match=re.escape(text)):
            _native.Session(ck._native, values)


@pytest.mark.parametrize("mode", (0, 1, 2))
def test_modes_are_those_of_the_engine(tiny_path: Path, mode: int) -> None:
    """All of them are taken on the CPU, which runs steps."""
    assert len(MODES) == 3
    with Engine(tiny_path, device="cpu", mode=MODES[mode], context=64) as e:
        assert (e.options["mode"], e.options["executed"]) == (MODES[mode], "cpu steps")
    with stoker.open(tiny_path) as ck:
        _native.Session(ck._native, tuple((OPTIONS | {"mode": mode}).values())).close()


def test_numerics_f32_is_the_cpu_s(tiny_path: Path) -> None:
    text = re.escape("numerics f32: expected device cpu, found cuda:3")
    with stoker.open(tiny_path) as ck:
        values = tuple((OPTIONS | {"f32": 1, "device": 3}).values())
        with pytest.raises(stoker.UnsupportedError, match=text):
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
