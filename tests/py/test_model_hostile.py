"""Well-formed GGUF files whose meaning is wrong: hyper-parameters, tensors that are missing, left over
or misshapen, and values that are no numbers. Each is refused by name, when the engine is opened."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny
from gguf_bytes import ARRAY, F32, I32, STRING, U32, U64, T, array, build, kv

import stoker
from stoker.engine import Engine

SHAPE = tiny.Shape(dim=64, n_head=4, n_kv=2, ffn=96, vocab=259, ctx=64)
Edit = Callable[[list[bytes], list[T]], None]


def write(path: Path, edit: Edit, shape: tiny.Shape = SHAPE) -> Path:
    keys, tensors = tiny.keys(shape) + tiny.byte_tokenizer(shape.vocab), tiny.tensors(shape, 0)
    edit(keys, tensors)
    path.write_bytes(build(keys, tensors))
    return path


def named(keys: list[bytes], name: str) -> int:
    """Index of a key; a key's bytes begin with its length and name."""
    head = len(name).to_bytes(8, "little") + name.encode()
    return next(i for i, k in enumerate(keys) if k.startswith(head))


def key(name: str, *value: object, **raw: bytes) -> Edit:
    """Replaces a key, or adds it."""

    def edit(keys: list[bytes], tensors: list[T]) -> None:
        try:
            keys[named(keys, name)] = kv(name, *value, **raw)  # type: ignore[arg-type]
        except StopIteration:
            keys.append(kv(name, *value, **raw))  # type: ignore[arg-type]

    return edit


def without(name: str) -> Edit:
    return lambda keys, tensors: keys.pop(named(keys, name)) and None


def tensor(name: str, **changes: object) -> Edit:
    def edit(keys: list[bytes], tensors: list[T]) -> None:
        at = next(i for i, t in enumerate(tensors) if t.name == name)
        tensors[at] = dataclasses.replace(tensors[at], **changes)  # type: ignore[arg-type]

    return edit


def missing(name: str) -> Edit:
    return lambda keys, tensors: tensors.remove(next(t for t in tensors if t.name == name))


def both(first: Edit, second: Edit) -> Edit:
    def edit(keys: list[bytes], tensors: list[T]) -> None:
        first(keys, tensors)
        second(keys, tensors)

    return edit


def extra(name: str) -> Edit:
    return lambda keys, tensors: tensors.append(T(name, (8,), 0, bytes(32)))


NAN, INF = float("nan"), float("inf")
L = "llama."
A = "llama.attention."
CASES: dict[str, tuple[Edit, str, str]] = {
    "no architecture": (without("general.architecture"), "MISSING_KEY", "general.architecture"),
    "architecture is a number": (key("general.architecture", U32, 3), "KEY_TYPE", "string"),
    "architecture of 1 MiB": (key("general.architecture", STRING, "x" * (1 << 20)), "BAD_HPARAM",
                              "general.architecture: expected a name of 1 .. 31 bytes"),
    "no layers": (key(L + "block_count", U32, 0), "BAD_HPARAM", "block_count: expected 1 .. 4096"),
    "endless layers": (key(L + "block_count", U32, 2**32 - 1), "BAD_HPARAM", "found 4294967295"),
    "more layers than tensors": (key(L + "block_count", U32, 3), "MISSING_TENSOR", "blk.2."),
    "fewer layers than tensors": (key(L + "block_count", U32, 1), "UNEXPECTED_TENSOR", "blk.1."),
    "layers as text": (key(L + "block_count", STRING, "2"), "KEY_TYPE", "llama.block_count"),
    "no layer count": (without(L + "block_count"), "MISSING_KEY", "llama.block_count"),
    "no heads": (key(A + "head_count", U32, 0), "BAD_HPARAM", "head_count: expected 1 .."),
    "no kv heads": (key(A + "head_count_kv", U32, 0), "BAD_HPARAM", "head_count_kv: expected 1 .."),
    "heads not divisible": (key(A + "head_count_kv", U32, 3), "BAD_HPARAM",
                            "head_count_kv: expected a divisor of attention.head_count, found 3"),
    "heads per layer": (key(A + "head_count", ARRAY, raw=array(I32, [4, 4])), "KEY_TYPE",
                        "head_count"),
    "width not divisible by heads": (key(A + "head_count", U32, 6), "BAD_HPARAM", "head_count"),
    "heads beyond all bounds": (key(A + "key_length", U32, 65538), "BAD_HPARAM", "key_length"),
    "odd head": (key(A + "key_length", U32, 17), "BAD_HPARAM", "key_length"),
    "other value width": (key(A + "value_length", U32, 8), "BAD_HPARAM", "value_length"),
    "width unlike the embedding": (key(L + "embedding_length", U32, 128), "BAD_SHAPE",
                                   "token_embd.weight: expected [vocabulary, 128]"),
    "width beyond all bounds": (key(L + "embedding_length", U64, 2**63), "BAD_HPARAM",
                                "embedding_length"),
    "no context": (key(L + "context_length", U32, 0), "BAD_HPARAM", "context_length"),
    "eps 0": (key(A + "layer_norm_rms_epsilon", F32, 0.0), "BAD_HPARAM", "above 0, found 0"),
    "eps NaN": (key(A + "layer_norm_rms_epsilon", F32, NAN), "BAD_HPARAM", "epsilon"),
    "no eps": (without(A + "layer_norm_rms_epsilon"), "MISSING_KEY", "epsilon"),
    "rotary base infinite": (key(L + "rope.freq_base", F32, INF), "BAD_HPARAM", "rope.freq_base"),
    "rotary base negative": (key(L + "rope.freq_base", F32, -1.0), "BAD_HPARAM", "rope.freq_base"),
    "rotary dims odd": (key(L + "rope.dimension_count", U32, 15), "BAD_HPARAM", "an even number"),
    "rotary dims too many": (key(L + "rope.dimension_count", U32, 18), "BAD_HPARAM", "expected 1 .. 16"),
    "rotary dims too few": (key(L + "rope.dimension_count", U32, 8), "BAD_HPARAM",
                            "expected the head width 16, found 8"),
    "rope scaling factor 0": (key(L + "rope.scaling.factor", F32, 0.0), "BAD_HPARAM", "factor"),
    "more tokens than embeddings": (
        both(key("tokenizer.ggml.model", STRING, "none"),
             key("tokenizer.ggml.tokens", ARRAY, raw=array(STRING, [f"{i}" for i in range(260)]))),
        "BAD_HPARAM", "tokenizer.ggml.tokens: expected at most 259 tokens, found 260"),
    "other vocabulary size": (key(L + "vocab_size", U32, 300), "BAD_HPARAM", "vocab_size: expected 259"),
    "no embedding": (missing("token_embd.weight"), "MISSING_TENSOR", "token_embd.weight"),
    "no query": (missing("blk.1.attn_q.weight"), "MISSING_TENSOR", "blk.1.attn_q.weight"),
    "no final norm": (missing("output_norm.weight"), "MISSING_TENSOR", "output_norm.weight"),
    "something else": (extra("blk.0.attn_sinks"), "UNEXPECTED_TENSOR",
                       "expected no tensor beyond the model's, found 1: blk.0.attn_sinks"),
    "transposed": (tensor("blk.0.ffn_down.weight", ne=(64, 96)), "BAD_SHAPE",
                   "blk.0.ffn_down.weight: expected [64,96], found [96,64]"),
    "norm of another width": (tensor("blk.0.attn_norm.weight", ne=(32,), data=bytes(128)),
                              "BAD_SHAPE", "blk.0.attn_norm.weight: expected [64], found [32]"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_refused_by_name(name: str, tmp_path: Path) -> None:
    edit, check, text = CASES[name]
    path = write(tmp_path / "m.gguf", edit)
    with pytest.raises(stoker.FormatError) as error:
        Engine(path, device="cpu")
    assert error.value.check == check
    assert text in str(error.value) and str(path) in str(error.value)


def test_the_unedited_file_works(tmp_path: Path) -> None:
    with Engine(write(tmp_path / "m.gguf", lambda keys, tensors: None), device="cpu") as e:
        assert len(e.generate([1, 2, 3], 4, ignore_eos=True).ids) == 4
        assert e.options["context"] == 64  # what the model was made for


UNSUPPORTED: dict[str, tuple[Edit, str]] = {
    "architecture": (key("general.architecture", STRING, "mamba"),
                     "general.architecture: expected one of llama, qwen2, qwen3, gemma3, qwen4exp, found mamba"),
    "experts": (key(L + "expert_count", U32, 8), "llama.expert_count: expected 0, found 8"),
    "rope scaling": (key(L + "rope.scaling.type", STRING, "yarn"), "rope.scaling.type"),
    "tokenizer": (key("tokenizer.ggml.model", STRING, "rwkv"), "rwkv"),
    "pre-tokenizer": (key("tokenizer.ggml.pre", STRING, "no-such-thing"), "no-such-thing"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_by_name(name: str, tmp_path: Path) -> None:
    edit, text = UNSUPPORTED[name]
    with pytest.raises(stoker.UnsupportedError) as error:
        Engine(write(tmp_path / "m.gguf", edit))
    assert text in str(error.value)


def test_gemma3_keys(tmp_path: Path) -> None:
    shape = dataclasses.replace(SHAPE, arch="gemma3")
    cases = {
        "attention.sliding_window: expected 1 ..": key("gemma3.attention.sliding_window", U32, 0),
        "sliding_window_pattern: expected 1 ..": key(
            "gemma3.attention.sliding_window_pattern", U32, 0
        ),
        "rope.freq_base_swa": key("gemma3.rope.freq_base_swa", F32, NAN),
    }
    for text, edit in cases.items():
        with pytest.raises(stoker.FormatError, match="BAD_HPARAM|expected") as error:
            Engine(write(tmp_path / "m.gguf", edit, shape))
        assert text in str(error.value) and error.value.check == "BAD_HPARAM"
    capped = key("gemma3.final_logit_softcapping", F32, 30.0)
    with pytest.raises(
        stoker.UnsupportedError, match="final_logit_softcapping: expected 0, found 30"
    ):
        Engine(write(tmp_path / "m.gguf", capped, shape))


def test_weights_that_are_no_numbers(tmp_path: Path) -> None:
    """NaN and infinities run through; the choice is still a token."""
    for bad in (NAN, INF, -INF):
        values = np.full(SHAPE.dim, bad, np.float32).tobytes()
        path = write(tmp_path / "m.gguf", tensor("blk.0.attn_norm.weight", data=values))
        for kernels in ("fast", "definition"):
            with Engine(path, "ngram:4", device="cpu", kernels=kernels) as e:
                r = e.generate([1, 2, 3, 1, 2, 3], 5, ignore_eos=True)
                assert len(r.ids) == 5 and all(0 <= t < SHAPE.vocab for t in r.ids)


def test_rope_factors_must_be_factors(tmp_path: Path) -> None:
    shape = dataclasses.replace(SHAPE, rope_factors=True)
    bad = np.array([1, 2, 0, 4, 5, 6, 7, 8], np.float32).tobytes()
    with pytest.raises(stoker.FormatError, match="expected finite factors above 0, found 0 at 2"):
        Engine(write(tmp_path / "m.gguf", tensor("rope_freqs.weight", data=bad), shape))
    short = tensor("rope_freqs.weight", ne=(4,), data=bytes(16))
    with pytest.raises(stoker.FormatError, match=r"rope_freqs.weight: expected \[8\] F32"):
        Engine(write(tmp_path / "m.gguf", short, shape))


def test_memory_that_is_not_there(tmp_path: Path) -> None:
    """A cache beyond the machine is refused with the bytes it would take, before any is taken."""
    path = write(tmp_path / "m.gguf", key("llama.context_length", U32, 1 << 24))
    with pytest.raises(stoker.OutOfMemoryError) as error:
        Engine(path, slots=64, device="cpu", context=1 << 24)
    words = str(error.value).replace(",", " ").split()
    wanted, there = (int(words[words.index(w) + at]) for w, at in (("for", 1), ("found", 1)))
    caches = 64 * (1 << 24) * 2 * SHAPE.n_layer * SHAPE.n_kv * SHAPE.head_dim * 2
    assert wanted > caches > there
    assert "request state" in str(error.value)
