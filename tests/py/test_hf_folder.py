"""Models from Hugging Face folders: the same numbers as from GGUF, and what is refused by name."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import decoder
import llama_hf
import numpy as np
import pytest
import sft_bytes
import stoker
import tiny
import tiny_hf
from gguf_bytes import F32, STRING, U32, T, build, kv
from stoker.engine import Engine
from tolerances import BF16_WHOLE, F32_WHOLE, VISIBLE

IDS = np.random.default_rng(20).integers(0, 256, 24)
BASE = tiny.Shape(types=tiny_hf.PLAIN)


def logits(path: Path, numerics: str = "f32", kernels: str = "fast") -> np.ndarray:
    with Engine(path, numerics=numerics, device="cpu", context=64, threads=2, kernels=kernels) as e:
        return e.evaluate(IDS)["logits"]


def both(tmp_path: Path, shape: tiny.Shape, files: int = 1, **more: object) -> tuple[Path, Path]:
    gguf = tiny.write(tmp_path / "m.gguf", shape, seed=3, tokenizer=False)
    folder = tiny_hf.write(
        tmp_path / "hf", tiny_hf.tensors(shape, 3), tiny_hf.config(shape, **more), files
    )
    return gguf, folder


def relative(found: np.ndarray, want: np.ndarray) -> float:
    return float((np.abs(found - want).max(-1) / np.abs(want).max(-1)).max())


SHAPES = {
    "plain": BASE,
    "untied": replace(BASE, tied=False),
    "biases": replace(BASE, bias=True),
    "one kv head": replace(BASE, n_head=8, n_kv=1),
    "odd sizes": replace(BASE, dim=96, n_head=3, n_kv=3, ffn=160, vocab=259),
}


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("shape_name", SHAPES)
def test_same_model_in_both_formats(tmp_path: Path, shape_name: str, files: int) -> None:
    shape = SHAPES[shape_name]
    gguf, folder = both(tmp_path, shape, files, attention_bias=shape.bias)
    with stoker.open(gguf) as a, stoker.open(folder, strict=True) as b:
        assert len(a) == len(b) and a.parameters == b.parameters
        for name, t in a.items():
            other = b[tiny_hf.name(name)]
            assert (t.type, t.shape, t.nbytes) == (other.type, other.shape, other.nbytes)
            heads = {"attn_q": shape.n_head, "attn_k": shape.n_kv}.get(name.split(".")[-2], 0)
            want = tiny_hf.halves(t.numpy(), heads) if heads else t.numpy()
            assert want.tobytes() == other.numpy().tobytes()
            if not heads:
                assert t.dequantize().tobytes() == other.dequantize().tobytes()
    for kernels in ("fast", "definition"):
        x, y = logits(gguf, kernels=kernels), logits(folder, kernels=kernels)
        # Elements of q k^T are added in another order, and that is all.
        assert relative(x, y) < F32_WHOLE and (x.argmax(-1) == y.argmax(-1)).all()


@pytest.mark.parametrize("numerics", ["f32", "bf16"])
def test_bit_for_bit_where_the_order_is_the_same(tmp_path: Path, numerics: str) -> None:
    """Heads of two elements have one rotated pair: both layouts are one."""
    shape = replace(BASE, dim=64, n_head=32, n_kv=8, ffn=96, tied=False)
    gguf, folder = both(tmp_path, shape)
    assert logits(gguf, numerics).tobytes() == logits(folder, numerics).tobytes()


@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("kind", ["type", "rope_type"])
def test_linear_scaling(tmp_path: Path, place: str, kind: str) -> None:
    shape = replace(BASE, rope_scale=0.25, rope_base=1e5)
    gguf, folder = both(tmp_path, shape, **{place: {kind: "linear", "factor": 4}})
    assert relative(logits(gguf), logits(folder)) < F32_WHOLE


def test_rope_parameters_have_the_base(tmp_path: Path) -> None:
    shape = replace(BASE, rope_base=5e5)
    gguf, folder = both(tmp_path, shape, rope_theta=None,
                        rope_parameters={"rope_type": "default", "rope_theta": 500000})  # fmt: skip
    assert relative(logits(gguf), logits(folder)) < F32_WHOLE


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip


def test_context_is_at_most_what_the_model_was_made_for(tmp_path: Path) -> None:
    for path in both(tmp_path, replace(BASE, ctx=40)):
        with Engine(path, device="cpu", threads=1) as e:
            assert e.options["context"] == 40


def test_llama3_scaling(tmp_path: Path) -> None:
    _, folder = both(tmp_path, BASE, rope_scaling=LLAMA3)
    with stoker.open(folder) as ck:
        want = llama_hf.forward({k: t.dequantize() for k, t in ck.items()}, ck.config, IDS)
    assert relative(logits(folder), want) < F32_WHOLE
    plain = tiny_hf.write(tmp_path / "plain", tiny_hf.tensors(BASE, 3), tiny_hf.config(BASE))
    assert relative(logits(plain), want) > VISIBLE  # the rule does something


def test_against_float64(tmp_path: Path) -> None:
    shape = replace(BASE, tied=False, n_layer=3, bias=True)
    folder = tiny_hf.write(tmp_path, tiny_hf.tensors(shape, 5), tiny_hf.config(shape), 2)
    with stoker.open(folder) as ck:
        want = llama_hf.forward({k: t.dequantize() for k, t in ck.items()}, ck.config, IDS)
    assert relative(logits(folder), want) < F32_WHOLE
    assert relative(logits(folder, "bf16"), want) < BF16_WHOLE


def test_tied_head_in_the_file_is_ignored(tmp_path: Path) -> None:
    weights = tiny_hf.tensors(BASE, 3)
    folder = tiny_hf.write(tmp_path / "a", weights, tiny_hf.config(BASE))
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = ("F32", np.ones(32, np.float32))
    other = tiny_hf.write(tmp_path / "b", weights, tiny_hf.config(BASE))
    assert logits(folder).tobytes() == logits(other).tobytes()


def test_unaligned_tensors(tmp_path: Path) -> None:
    from sft_bytes import raw

    weights = tiny_hf.tensors(BASE, 3)
    folder = tiny_hf.write(tmp_path / "a", weights, tiny_hf.config(BASE))
    data = (folder / "model.safetensors").read_bytes()
    want = logits(folder)
    n = int.from_bytes(data[:8], "little")
    for shift in (1, 2, 3):
        (folder / "model.safetensors").write_bytes(
            raw(data[8 : 8 + n] + b" " * shift, data[8 + n :])
        )
        for kernels in ("fast", "definition"):
            assert logits(folder, kernels=kernels).tobytes() == want.tobytes()


REFUSED = {
    "model_type": ({"model_type": "bert"}, stoker.UnsupportedError, None, "model_type.*bert"),
    "no model_type": ({"model_type": None}, stoker.FormatError, "MISSING_KEY", "model_type"),
    "yarn": ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, stoker.UnsupportedError, None,
             "rope_type.*yarn"),
    "activation": ({"hidden_act": "gelu"}, stoker.UnsupportedError, None, "hidden_act.*silu.*gelu"),
    "partial": ({"partial_rotary_factor": 0.5}, stoker.UnsupportedError, None, "partial_rotary"),
    "experts": ({"num_local_experts": 8}, stoker.UnsupportedError, None, "expert_count|num_local"),
    "window": ({"use_sliding_window": True}, stoker.UnsupportedError, None, "use_sliding_window"),
    "layers": ({"num_hidden_layers": 2.0}, stoker.FormatError, "KEY_TYPE", "num_hidden_layers"),
    "negative": ({"num_hidden_layers": -2}, stoker.FormatError, "BAD_HPARAM", "num_hidden_layers"),
    "zero": ({"num_attention_heads": 0}, stoker.FormatError, "BAD_HPARAM", "num_attention_heads"),
    "eps": ({"rms_norm_eps": 0}, stoker.FormatError, "BAD_HPARAM", "rms_norm_eps"),
    "eps text": ({"rms_norm_eps": "1e-5"}, stoker.FormatError, "KEY_TYPE", "rms_norm_eps"),
    "hidden": ({"hidden_size": 512}, stoker.FormatError, "BAD_SHAPE", "model.embed_tokens.weight"),
    "ffn": ({"intermediate_size": 99}, stoker.FormatError, "BAD_SHAPE", "mlp.gate_proj.weight"),
    "vocab": ({"vocab_size": 7}, stoker.FormatError, "BAD_HPARAM", "vocab_size"),
    "untied": ({"tie_word_embeddings": False}, stoker.FormatError, "MISSING_TENSOR", "lm_head.weight"),
    "more layers": ({"num_hidden_layers": 3}, stoker.FormatError, "MISSING_TENSOR",
                    "model.layers.2.input_layernorm.weight"),
    "fewer layers": ({"num_hidden_layers": 1}, stoker.FormatError, "UNEXPECTED_TENSOR",
                     "model.layers.1"),
    "bias": ({"attention_bias": True}, stoker.FormatError, "MISSING_TENSOR", "attention_bias"),
    "llama3": ({"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}}, stoker.FormatError,
               "BAD_HPARAM", "rope_scaling"),
    "llama3 key": ({"rope_scaling": {"rope_type": "llama3"}}, stoker.FormatError, "MISSING_KEY",
                   "rope_scaling.factor"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path: Path, case: str) -> None:
    more, error, check, names = REFUSED[case]
    folder = tiny_hf.write(tmp_path, tiny_hf.tensors(BASE, 3), tiny_hf.config(BASE, **more))
    with pytest.raises(error) as raised:
        Engine(folder, device="cpu", context=64)
    assert raised.value.check == check, str(raised.value)
    assert re.search(names, str(raised.value)), str(raised.value)


@pytest.mark.parametrize("arch", ["qwen2", "qwen3"])
def test_other_architectures(tmp_path: Path, arch: str) -> None:
    """qwen files keep the order of rows, so both sides give the same bits."""
    shape = replace(BASE, bias=arch == "qwen2", tied=False)
    rng = np.random.default_rng(8)
    weights = {}
    listed = []
    for t in tiny.tensors(shape, 3):
        listed.append(t)
        if arch == "qwen3" and t.name.endswith("attn_v.weight"):
            for part in ("q", "k"):
                gain = rng.normal(1, 0.2, shape.head_dim).astype(np.float32)
                norm = t.name.replace("attn_v", f"attn_{part}_norm")
                listed.append(T(norm, (shape.head_dim,), 0, gain.tobytes()))
    for t in listed:
        kind, dtype = tiny_hf.TYPES[t.type]
        weights[tiny_hf.name(t.name)] = (kind, np.frombuffer(t.data, dtype).reshape(t.ne[::-1]))
    gguf_keys = [
        kv("general.architecture", STRING, arch),
        *(kv(f"{arch}.{k}", U32, v) for k, v in {
            "block_count": shape.n_layer, "context_length": shape.ctx,
            "embedding_length": shape.dim, "feed_forward_length": shape.ffn,
            "attention.head_count": shape.n_head, "attention.head_count_kv": shape.n_kv,
        }.items()),
        kv(f"{arch}.attention.layer_norm_rms_epsilon", F32, 1e-5),
        kv(f"{arch}.rope.freq_base", F32, shape.rope_base),
    ]  # fmt: skip
    gguf = tmp_path / "m.gguf"
    gguf.write_bytes(build(gguf_keys, listed))
    settings = tiny_hf.config(shape, model_type=arch, head_dim=shape.head_dim)
    folder = tiny_hf.write(tmp_path / "hf", weights, settings, 2)
    assert logits(gguf).tobytes() == logits(folder).tobytes()


def gemma3_folder(path: Path, shape: tiny.Shape, **more: object) -> Path:
    """Norms of a folder hold w where GGUF files hold 1 + w."""
    weights = {}
    for t in tiny.tensors(shape, 3):
        w = np.frombuffer(t.data, "<f4").reshape(t.ne[::-1])
        weights[tiny_hf.name(t.name, tiny_hf.GEMMA)] = ("F32", w - 1 if "norm" in t.name else w)
    family = decoder.FAMILIES["gemma3"]
    kinds = ["full_attention" if i % family.pattern == family.pattern - 1 else "sliding_attention"
             for i in range(shape.n_layer)]  # fmt: skip
    settings = tiny_hf.config(shape, model_type="gemma3_text", hidden_activation="gelu_pytorch_tanh",
                              head_dim=shape.head_dim, query_pre_attn_scalar=shape.head_dim,
                              sliding_window=family.window, rope_local_base_freq=10000.0,
                              _sliding_window_pattern=family.pattern, layer_types=kinds) | more  # fmt: skip
    settings.pop("hidden_act")
    return tiny_hf.write(path, weights, settings)


def test_gemma3_folder_is_the_gguf_file(tmp_path: Path) -> None:
    shape = tiny.Shape("gemma3", n_layer=4, types=(tiny.F32_T,), rope_base=1e6)
    with (
        Engine(
            tiny.write(tmp_path / "m.gguf", shape, 3), numerics="f32", device="cpu", context=64
        ) as a,
        Engine(
            gemma3_folder(tmp_path / "hf", shape), numerics="f32", device="cpu", context=64
        ) as b,
    ):
        want, got = (e.evaluate(IDS)["logits"] for e in (a, b))
    assert (np.abs(got - want).max(1) / np.abs(want).max(1)).max() < 1e-5


def test_gemma3_layers_must_follow_a_pattern(tmp_path: Path) -> None:
    shape = tiny.Shape("gemma3", n_layer=4, types=(tiny.F32_T,), rope_base=1e6)
    folder = gemma3_folder(tmp_path / "a", shape, layer_types=["full_attention"] * 4)
    with pytest.raises(stoker.UnsupportedError, match="layer_types: expected sliding_attention"):
        Engine(folder, device="cpu")
    folder = gemma3_folder(tmp_path / "b", shape, layer_types=["full_attention"])
    with pytest.raises(stoker.FormatError, match="layer_types: expected a list of 4 texts"):
        Engine(folder, device="cpu")


def test_a_draft_head_in_a_file_of_its_own(tmp_path: Path) -> None:
    """mtp.safetensors beside model.safetensors is part of the folder, by no other name."""
    one = {"model.embed_tokens.weight": ("F32", np.zeros((3, 4)))}
    two = {"mtp.fc.weight": ("BF16", np.arange(8).reshape(2, 4))}
    (tmp_path / "config.json").write_text('{"model_type": "qwen4_exp_text"}')
    (tmp_path / "model.safetensors").write_bytes(sft_bytes.build(one))
    (tmp_path / "mtp2.safetensors").write_bytes(sft_bytes.build(two))
    with stoker.open(tmp_path) as ck:
        assert set(ck) == set(one)
    (tmp_path / "mtp.safetensors").write_bytes(sft_bytes.build(two))
    for strict in (False, True):
        with stoker.open(tmp_path, strict=strict) as ck:
            assert set(ck) == {*one, *two}
            assert ck["mtp.fc.weight"].numpy().tolist() == np.arange(8).reshape(2, 4).tolist()
            assert ck.config["model_type"] == "qwen4_exp_text"
    with stoker.open(tmp_path / "mtp.safetensors") as ck:
        assert set(ck) == set(two)
    (tmp_path / "mtp.safetensors").write_bytes(sft_bytes.build(one))
    with pytest.raises(stoker.FormatError, match="model.embed_tokens.weight") as error:
        stoker.open(tmp_path)
    assert error.value.check == "DUPLICATE_TENSOR"
    (tmp_path / "mtp.safetensors").write_bytes(b"damaged!")
    with pytest.raises(stoker.FormatError, match=r"mtp\.safetensors"):
        stoker.open(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(stoker.ReadError, match=r"model\.safetensors in the folder, found neither"):
        stoker.open(tmp_path)
    # With an index it is the index that says what belongs to the folder.
    sft_bytes.write_shards(tmp_path, one, 1)
    (tmp_path / "mtp.safetensors").write_bytes(sft_bytes.build(two))
    with stoker.open(tmp_path) as ck:
        assert set(ck) == set(one)
