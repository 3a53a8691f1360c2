"""Flash-Next checkpoints that are wrong in one thing: each is refused by name when the engine is
opened. Edits are of what flash_tools and flash_gguf write, so that the rest is right."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flash_gguf
import flash_tools
import numpy as np
import pytest
from flash_gguf import Edit, Keys, Tensor
from flash_tools import GEOMETRIES, Geometry

import stoker
from stoker import FormatError, UnsupportedError
from stoker.engine import Engine

Array = np.ndarray[Any, Any]
G = GEOMETRIES["tiny"]
PLE = "model.layers.1.ple.ple_embedding."
SHARD = PLE + "ngram_embedding.shard_"
Weights = dict[str, Array]
Refusal = tuple[type, str | None, str]  # class, check, part of the text


def shape(part: str) -> Refusal:
    return FormatError, "BAD_SHAPE", part


def missing(part: str) -> Refusal:
    return FormatError, "MISSING_TENSOR", f"tensor {part}: expected in the file, found none"


def value(part: str) -> Refusal:
    return FormatError, "BAD_HPARAM", part


def unsupported(part: str) -> Refusal:
    return UnsupportedError, None, part


def left(part: str) -> Refusal:
    return FormatError, "UNEXPECTED_TENSOR", f"expected no tensor beyond the model's, found {part}"


def refused(path: Path, want: Refusal, drafter: Any = "mtp:4", subject: Path | None = None) -> None:
    kind, check, text = want
    with pytest.raises(kind) as error:
        Engine(path, drafter, device="cpu", context=64, threads=1)
    assert error.value.check == check, error.value
    assert text in str(error.value) and str(subject or path) in str(error.value)


# Folders


def folder(tmp_path: Path, settings: dict[str, Any] | None = None,
           edit: Callable[[Weights], Any] | None = None, g: Geometry = G, **how: Any) -> Path:  # fmt: skip
    """`settings`: members of config.json, None: taken out. `edit` changes the tensors as they lie in
    the folder."""
    w = dict(flash_tools.weights(g))
    path = flash_tools.write_hf(tmp_path / "m", g, w, **how)
    if edit:
        options = dict(fused=how.get("fused", True), mtp_fused=True, prefix="model.",
                       shards=how.get("shards", 1))  # fmt: skip
        tensors = flash_tools.hf_tensors(w, **options)
        edit(tensors)
        draft = {k: x for k, x in tensors.items() if k.startswith("mtp.")}
        flash_tools.save(
            path / "model.safetensors", {k: x for k, x in tensors.items() if k not in draft}
        )
        (path / "mtp.safetensors").unlink()
        if draft:
            flash_tools.save(path / "mtp.safetensors", draft)
    config = json.loads((path / "config.json").read_text()) | (settings or {})
    config = {k: v for k, v in config.items() if v is not None}
    (path / "config.json").write_text(json.dumps(config))
    return path


TYPES = ["linear_attention"] * 3 + ["full_attention"]
SETTINGS: dict[str, tuple[dict[str, Any], Refusal]] = {
    "unknown kind of layer": ({"layer_types": [*TYPES[:3], "sliding_attention"]},
        unsupported("layer_types: expected linear_attention, full_attention or "
                    "qwen_sparse_attention, found sliding_attention")),
    "kinds of fewer layers": ({"layer_types": TYPES[1:]},
        value("layer_types: expected a list of 4 texts, found another value")),
    "kinds as numbers": ({"layer_types": [0, 0, 0, 1]}, value("layer_types")),
    "no kinds": ({"layer_types": None}, value("layer_types")),
    "gate silu": ({"output_gate_type": "silu"},
        unsupported("output_gate_type: expected sigmoid, found silu")),
    "activation": ({"hidden_act": "gelu"}, unsupported("hidden_act: expected silu, found gelu")),
    "rotary rule": ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e7, "factor": 4.0,
                                         "partial_rotary_factor": 0.25}},
        unsupported("rope_parameters.rope_type: expected default, found yarn")),
    "older rotary rule": ({"rope_scaling": {"type": "yarn", "factor": 4.0}},
        unsupported("rope_scaling.type: expected default, found yarn")),
    "rotary part 0": ({"rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0}},
        value("rope_parameters: expected a base above 0 and a part of a head in (0, 1]")),
    "rotary part 2": ({"rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 2.0}},
        value("found 10000000 and 2")),
    "rotary part odd": ({"rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.1}},
        value("partial_rotary_factor: expected an even number of rotated dimensions above 0, found 3")),
    "rotary base negative": ({"rope_parameters": {"rope_theta": -1.0,
                                                  "partial_rotary_factor": 0.25}},
        value("found -1 and 0.25")),
    "rotated beyond the index": ({"rope_parameters": {"rope_theta": 1e7,
                                                      "partial_rotary_factor": 1.0}},
        value("indexer_head_dim: expected at least as many as the rotated dimensions of a head")),
    "bias": ({"attention_bias": True}, unsupported("attention_bias: expected false, found true")),
    "heads of index keys": ({"indexer_kv_heads": 2},
        unsupported("indexer_kv_heads: expected 1, found another number")),
    "no heads of the index": ({"indexer_n_heads": 0}, value("indexer_n_heads: expected 1 ..")),
    "budget not divisible": ({"indexer_budget": 18},
        value("indexer_budget: expected a multiple of the ratio 4, found 18")),
    "ratio 0": ({"indexer_compress_ratio": 0},
        value("indexer_compress_ratio: expected at least 1, found 0")),
    "ratio negative": ({"indexer_compress_ratio": -4}, value("indexer_compress_ratio")),
    "heads not divisible": ({"num_key_value_heads": 3}, value("num_key_value_heads")),
    "heads of values not divisible": ({"linear_num_value_heads": 5},
        value("linear_num_value_heads: expected a multiple of the heads of keys, found 5")),
    "no width of values": ({"linear_value_head_dim": 0}, value("linear_value_head_dim")),
    "taps 1": ({"linear_conv_kernel_dim": 1}, value("linear_conv_kernel_dim: expected at least 2")),
    "no experts": ({"num_experts": 0}, value("num_experts: expected at least 1, found 0")),
    "more experts than there are": ({"num_experts_per_tok": 9},
        value("num_experts_per_tok: expected 1 .. 8, found 9")),
    "no width of experts": ({"moe_intermediate_size": 0}, value("moe_intermediate_size")),
    "another width of experts": ({"moe_intermediate_size": 48},
        shape("experts.gate_up_proj: expected [8,96,64], found [8,64,64]")),
    "no streams": ({"hc_count": 0}, value("hc_count: expected 1 .. 16")),
    "streams beyond all bounds": ({"hc_count": 17}, value("hc_count: expected 1 .. 16, found 17")),
    "another rank": ({"hc_lowrank": 8}, shape("input_mix_weight_down.weight: expected [8,256]")),
    "n-grams at attention": ({"ple_layer_ids": [4]},
        unsupported("ple_layer_ids: expected a layer with a recurrence, found one with attention")),
    "n-grams beyond the model": ({"ple_layer_ids": [5]},
        value("ple_layer_ids: expected a layer of the model, found 5")),
    "n-grams at layer 0 of 1": ({"ple_layer_ids": [0]},
        value("ple_layer_ids: expected layers from 1 on, found 0")),
    "n-grams at a negative layer": ({"ple_layer_ids": [-1]}, value("ple_layer_ids")),
    "n-grams twice": ({"ple_layer_ids": [1, 2]},
        unsupported("ple_layer_ids: expected one layer, found several")),
    "n-grams nowhere": ({"ple_layer_ids": []}, left("10: model.layers.1.ple.")),
    "n-grams elsewhere": ({"ple_layer_ids": [1]}, missing("model.layers.0.ple.key_proj.weight")),
    "orders 1": ({"ngram_size": 1}, value("ngram_size: expected at least 2")),
    "orders beyond all bounds": ({"ngram_size": 17}, value("ngram_size: expected 1 .. 16")),
    "width not divisible by heads": ({"ple_embed_dim": 66},
        value("ple_embed_dim: expected a multiple of the hash heads, found 66")),
    "fewer hash heads": ({"heads_per_ngram": 1},
        shape("ngram_embedding.shard_0.weight: expected [rows, 32]")),
    "another order": ({"ngram_size": 2, "ple_embed_dim": 32}, shape("key_proj.weight")),
    "end of text outside": ({"eos_token_id": 256},
        value("eos_token_id: expected a token of the vocabulary, found 256")),
    "no end of text": ({"eos_token_id": None}, (FormatError, "MISSING_KEY", "eos_token_id")),
    "end of text, no ids": ({"eos_token_id": []}, value("eos_token_id: expected 1 .. 32 ids")),
    "another vocabulary": ({"vocab_size": 300}, value("vocab_size: expected 256, found 300")),
    "two heads that draft": ({"mtp_num_hidden_layers": 2},
        unsupported("mtp_num_hidden_layers: expected at most 1, found more")),
    "more layers": ({"num_hidden_layers": 5}, value("layer_types: expected a list of 5 texts")),
    "fewer layers": ({"num_hidden_layers": 3, "layer_types": TYPES[:3]}, left("24: model.layers.3.")),
    "kinds exchanged": ({"layer_types": TYPES[::-1]}, missing("model.layers.0.self_attn.q_proj.weight")),
    "no layers": ({"num_hidden_layers": 0, "layer_types": []}, value("num_hidden_layers")),
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_a_folder(tmp_path: Path, name: str) -> None:
    settings, want = SETTINGS[name]
    refused(folder(tmp_path, settings), want)


def put(name: str, x: Array | None) -> Callable[[Weights], None]:
    def edit(w: Weights) -> None:
        w.pop(name, None)
        if x is not None:
            w[name] = x

    return edit


def zeros(*dim: int) -> Array:
    return np.zeros(dim, np.float32)


def ints(*x: int) -> Array:
    return np.array(x, np.int64)


M, S, O = (PLE + x for x in ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"))  # noqa: E741
FIRST = "model.layers.0.attn_hyper_connection."
TENSORS: dict[str, tuple[Callable[[Weights], Any], Refusal]] = {
    "norm of one stream": (put(FIRST + "hc_norm.weight", zeros(64)),
        shape(FIRST + "hc_norm.weight: expected [256], found [64] BF16")),
    "no norm": (put(FIRST + "hc_norm.weight", None), missing(FIRST + "hc_norm.weight")),
    "norm of a head": (put("model.layers.3.self_attn.q_norm.weight", zeros(16)),
        shape("q_norm.weight: expected [32], found [16]")),
    "query without gate": (put("model.layers.3.self_attn.q_proj.weight", zeros(128, 64)),
        shape("q_proj.weight: expected [256,64], found [128,64]")),
    "no head": (put("lm_head.weight", None), missing("lm_head.weight")),
    "decay of heads": (put("model.layers.2.linear_attn.A_log", zeros(5)),
        shape("A_log: expected [6], found [5]")),
    "decay of nothing": (put("model.layers.2.linear_attn.A_log", np.full(6, np.nan, np.float32)),
        (FormatError, "BAD_DATA", "expected finite decays below 0")),
    "decay without end": (put("model.layers.2.linear_attn.A_log", np.full(6, 800, np.float32)),
        (FormatError, "BAD_DATA", "expected finite decays below 0, found -inf at 0")),
    "taps": (put("model.layers.0.linear_attn.conv1d.weight", zeros(160, 1, 3)),
        shape("conv1d.weight: expected [160,4], found [160,1,3]")),
    "no multipliers": (put(M, None), missing(M)),
    "no sizes": (put(S, None), missing(S)),
    "no offsets": (put(O, None), missing(O)),
    "multipliers as floats": (put(M, np.ones(3, np.float32)),
        (FormatError, "BAD_TYPE", f"{M}: expected I64, found BF16")),
    "multipliers of 32 bits": (put(M, np.ones(3, np.int32)),
        (FormatError, "BAD_TYPE", f"{M}: expected I64, found I32")),
    "two multipliers": (put(M, ints(1, 3)), shape(f"{M}: expected [3], found [2] I64")),
    "negative multiplier": (put(M, ints(1, -3, 5)),
        (FormatError, "BAD_DATA", "multipliers of n-grams: expected numbers above 0")),
    "multiplier 0": (put(M, ints(1, 0, 5)), (FormatError, "BAD_DATA", "found 0")),
    "multiplier too large": (put(M, ints(1, 2**63 // 255, 5)), (FormatError, "BAD_DATA", "63 bits")),
    "size 0": (put(S, ints(251, 0, 263, 269)), (FormatError, "BAD_DATA", "rows of n-grams")),
    "offset negative": (put(O, ints(0, -251, 508, 771)), (FormatError, "BAD_DATA", "found -251")),
    "offset near the end": (put(O, ints(0, 251, 508, 2**63 - 1)), (FormatError, "BAD_DATA", "ranges")),
    "table too small": (put(SHARD + "0.weight", zeros(1039, 16)),
        (FormatError, "BAD_DATA", "rows of n-grams: expected ranges within the table, found 771")),
    "table of another width": (put(SHARD + "0.weight", zeros(1152, 12)),
        shape(SHARD + "0.weight: expected [rows, 16], found [1152,12] BF16")),
    "no table": (put(SHARD + "0.weight", None), missing(SHARD + "0.weight")),
    "no first projection of experts": (put("model.layers.2.mlp.experts.gate_up_proj", None),
        missing("model.layers.2.mlp.experts.gate_up_proj")),
    "no second projection of experts": (put("model.layers.2.mlp.experts.down_proj", None),
        missing("model.layers.2.mlp.experts.down_proj")),
    "too few experts": (put("model.layers.2.mlp.experts.down_proj", zeros(7, 64, 32)),
        shape("down_proj: expected [8,64,32], found [7,64,32]")),
    "something else": (put("model.layers.2.mlp.bias", zeros(8)), left("1: model.layers.2.mlp.bias")),
    "a norm that the model has not": (put("model.norm.weight", zeros(64)), left("1: model.norm.weight")),
    "no draft head": (lambda w: [w.pop(k) for k in [*w] if k.startswith("mtp.")],
        missing("mtp.pre_fc_norm_embedding.weight")),
    "part of a draft head": (put("mtp.fc_hidden.weight", None), missing("mtp.fc_hidden.weight")),
    "norm of a hidden row of one stream": (put("mtp.pre_fc_norm_hidden.weight", zeros(64)),
        shape("mtp.pre_fc_norm_hidden.weight: expected [256], found [64]")),
    "a second draft layer": (put("mtp.layers.1.mlp.gate.weight", zeros(8, 64)),
        left("1: mtp.layers.1.mlp.gate.weight")),
    "a draft head's own embedding": (put("mtp.embed_tokens.weight", zeros(256, 64)),
        left("1: mtp.embed_tokens.weight")),
}  # fmt: skip


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_of_a_folder(tmp_path: Path, name: str) -> None:
    edit, want = TENSORS[name]
    refused(folder(tmp_path, edit=edit), want)


def test_shards_of_a_folder(tmp_path: Path) -> None:
    """12 of 96 rows; names sort by their number."""
    for gone in (0, 3, 10):
        edit = put(f"{SHARD}{gone}.weight", None)
        refused(folder(tmp_path, edit=edit, shards=12), missing(f"{SHARD}{gone}.weight"))

    def last(w: Weights) -> None:
        for i in (10, 11):
            del w[f"{SHARD}{i}.weight"]

    refused(folder(tmp_path, edit=last, shards=12),
            (FormatError, "BAD_DATA", "rows of n-grams: expected ranges within the table"))  # fmt: skip
    rows = flash_tools.table_rows(G) // 12
    for at, dim in ((3, (rows - 1, 16)), (3, (rows + 1, 16)), (11, (rows + 1, 16))):
        edit = put(f"{SHARD}{at}.weight", zeros(*dim))
        found = at + 1 if dim[0] < rows else at  # a short one is the last
        refused(folder(tmp_path, edit=edit, shards=12), shape(f"{SHARD}{found}.weight: expected"))
    edit = put(f"{SHARD}2.weight", np.zeros((rows, 16), np.float16))
    refused(folder(tmp_path, edit=edit, shards=12), (UnsupportedError, "BAD_TYPE", "one type"))


def test_experts_of_a_folder(tmp_path: Path) -> None:
    p = "model.layers.0.mlp.experts."
    for edit, want in (
        (put(p + "5.up_proj.weight", None), missing(p + "5.up_proj.weight")),
        (put(p + "5.up_proj.weight", zeros(31, 64)), shape("up_proj.weight: expected [32,64]")),
        (put(p + "8.up_proj.weight", zeros(32, 64)), left(f"1: {p}8.up_proj.weight")),
        (put(p + "5.up_proj.weight", np.zeros((32, 64), np.float16)),
         (UnsupportedError, "BAD_TYPE", f"{p}5.up_proj.weight: expected BF16 as those before it")),
    ):  # fmt: skip
        refused(folder(tmp_path, edit=edit, fused=False), want)


# GGUF files


def file(tmp_path: Path, edit: Edit | None = None, g: Geometry = G, **how: Any) -> Path:
    path = tmp_path / "m.gguf"
    flash_gguf.write_gguf(path, flash_tools.config(g), flash_tools.weights(g), edit=edit, **how)
    return path


def key(name: str, x: Any, kind: str = "UINT32") -> Edit:
    def edit(keys: Keys, tensors: list[Tensor]) -> None:
        keys[:] = [k for k in keys if k[0] != name]
        if x is not None:
            keys.append((name, x, kind))

    return edit


def f32(name: str, x: Array) -> Tensor:
    return Tensor(name, "F32", x.shape, x.reshape(-1, x.shape[-1]).view(np.uint8))


def tensor(name: str, x: Array | None) -> Edit:
    def edit(keys: Keys, tensors: list[Tensor]) -> None:
        tensors[:] = [t for t in tensors if t.name.removeprefix("draft:") != name]
        if x is not None:
            tensors.append(f32(name, x))

    return edit


def renamed(*pairs: tuple[str, str]) -> Edit:
    def edit(keys: Keys, tensors: list[Tensor]) -> None:
        for a, b in pairs:
            tensors[:] = [
                dataclasses.replace(t, name=t.name.replace(a, b)) if a in t.name else t
                for t in tensors
            ]

    return edit


def all_of(*edits: Edit) -> Edit:
    def edit(keys: Keys, tensors: list[Tensor]) -> None:
        for e in edits:
            e(keys, tensors)

    return edit


RATIOS, MULT = "attention.compress_ratios", "ple.layer_multipliers"
KEYS: dict[str, tuple[Edit, Refusal]] = {
    "no layers but the draft head's": (key("block_count", 1),
        value("block_count: expected more blocks than those that draft, found 1")),
    "no blocks": (key("block_count", 0), value("block_count")),
    "two heads that draft": (key("nextn_predict_layers", 2),
        unsupported("nextn_predict_layers: expected at most 1, found more")),
    "more heads that draft than blocks": (key("nextn_predict_layers", 5),
        unsupported("nextn_predict_layers")),
    "no ratios": (key(RATIOS, None), (FormatError, "MISSING_KEY", RATIOS)),
    "ratio 0 at attention": (key(RATIOS, [4, 4, 4, 0, 4], "INT32"),
        unsupported("compress_ratios: expected a ratio above 0 for layers with attention, found 0")),
    "too few ratios": (key(RATIOS, [0, 0, 4], "INT32"), value(RATIOS)),
    "negative ratio": (key(RATIOS, [0, 0, 0, -4, 0], "INT32"), value(RATIOS)),
    "ratios as floats": (key(RATIOS, [0.0, 0.0, 0.0, 4.0, 0.0], "FLOAT32"),
        (FormatError, "KEY_TYPE", RATIOS)),
    "budget not divisible": (key("attention.indexer.top_k", 18),
        value("attention.indexer.top_k: expected a multiple of the ratio 4, found 18")),
    "no interval": (key("full_attention_interval", None),
        (FormatError, "MISSING_KEY", "full_attention_interval")),
    "interval 0": (key("full_attention_interval", 0), value("full_attention_interval")),
    "another interval": (key("full_attention_interval", 2),
        unsupported("compress_ratios: expected a ratio above 0")),
    "flags of too few layers": (key("attention.recurrent_layers", [True, False], "BOOL"),
        value("recurrent_layers: expected a flag for each of 4 layers")),
    "flags of too many layers": (key("attention.recurrent_layers", [True] * 6, "BOOL"),
        value("recurrent_layers: expected a flag for each of 4 layers")),
    "flags as fractions": (key("attention.recurrent_layers", [0.5] * 5, "FLOAT32"),
        value("recurrent_layers")),
    "flags as texts": (key("attention.recurrent_layers", ["y"] * 5, "STRING"),
        value("recurrent_layers")),
    "heads not divisible": (key("attention.head_count_kv", 3), value("head_count_kv")),
    "heads of values not divisible": (key("ssm.time_step_rank", 5),
        value("ssm.time_step_rank: expected a multiple of the heads of keys")),
    "width of values not divisible": (key("ssm.inner_size", 97),
        value("ssm.inner_size: expected a total width above 0 of at most 2^20, a multiple")),
    "width of values 0": (key("ssm.inner_size", 0), value("ssm.inner_size")),
    "more experts than there are": (key("expert_used_count", 9), value("expert_used_count: expected 1 .. 8")),
    "no experts": (key("expert_count", 0), value("expert_count: expected at least 1, found 0")),
    "widths that differ": (key("expert_feed_forward_length", [32, 32, 16, 32, 32]),
        value("expert_feed_forward_length: expected one number above 0, found 16")),
    "widths of too few layers": (key("expert_feed_forward_length", [32, 32]),
        value("expert_feed_forward_length")),
    "no multipliers": (key(MULT, None), (FormatError, "MISSING_KEY", f"{MULT}: expected in the file")),
    "no sizes": (key("ple.head_vocab_sizes", None), (FormatError, "MISSING_KEY", "head_vocab_sizes")),
    "no offsets": (key("ple.head_offsets", None), (FormatError, "MISSING_KEY", "head_offsets")),
    "multipliers as floats": (key(MULT, [1.0, 3.0, 5.0], "FLOAT64"), (FormatError, "KEY_TYPE", MULT)),
    "two multipliers": (key(MULT, [1, 3], "UINT64"), value(MULT)),
    "negative multiplier": (key(MULT, [1, -3, 5], "INT64"), value(MULT)),
    "multiplier of 64 bits": (key(MULT, [1, 2**64 - 1, 5], "UINT64"), value(MULT)),
    "multiplier 0": (key(MULT, [1, 0, 5], "UINT64"), (FormatError, "BAD_DATA", "multipliers")),
    "multiplier too large": (key(MULT, [1, 2**63 // 255, 5], "UINT64"),
        (FormatError, "BAD_DATA", "whose products with a token fit 63 bits")),
    "one size for all": (key("ple.head_vocab_sizes", 2**62, "UINT64"),
        (FormatError, "BAD_DATA", "rows of n-grams")),
    "offset beyond the table": (key("ple.head_offsets", [0, 251, 508, 884], "UINT64"),
        (FormatError, "BAD_DATA", "rows of n-grams: expected ranges within the table, found 884")),
    "n-grams at attention": (key("ple.layers", [3]),
        unsupported("ple.layers: expected a layer with a recurrence")),
    "n-grams at the draft head": (key("ple.layers", [4]),
        value("ple.layers: expected a layer of the model, found 4")),
    "n-grams twice": (key("ple.layers", [0, 1]), unsupported("ple.layers: expected one layer")),
    "end of text outside": (key("ple.eos_token_id", 256),
        value("ple.eos_token_id: expected a token of the vocabulary, found 256")),
    "no end of text": (key("ple.eos_token_id", None), (FormatError, "MISSING_KEY", "eos_token_id")),
    "rotary rule": (key("rope.scaling.type", "yarn", "STRING"), unsupported("rope.scaling.type")),
    "another vocabulary": (key("vocab_size", 300), value("vocab_size: expected 256, found 300")),
    "table too small": (tensor("per_layer_token_embd.weight", zeros(1039, 16)),
        (FormatError, "BAD_DATA", "rows of n-grams: expected ranges within the table, found 771")),
    "table of another width": (tensor("per_layer_token_embd.weight", zeros(1152, 12)),
        shape("per_layer_token_embd.weight: expected [1152,16]")),
    "no table": (tensor("per_layer_token_embd.weight", None), missing("per_layer_token_embd.weight")),
    "decay that grows": (tensor("blk.0.ssm_a", np.full(6, 0.5, np.float32)),
        (FormatError, "BAD_DATA", "blk.0.ssm_a: expected finite decays below 0, found 0.5 at 0")),
    "norm of one stream": (tensor("blk.0.hc_attn_norm.weight", zeros(64)),
        shape("blk.0.hc_attn_norm.weight: expected [256], found [64] F32")),
    "no mixer": (tensor("output_hc_up.weight", None), missing("output_hc_up.weight")),
    "no experts' gate": (tensor("blk.1.ffn_gate_exps.weight", None), missing("blk.1.ffn_gate_exps.weight")),
    "gate and up twice": (tensor("blk.1.ffn_gate_up_exps.weight", zeros(8, 64, 64)),
        left("2: blk.1.ffn_gate_exps.weight, blk.1.ffn_up_exps.weight")),
    "gate of the shared expert": (tensor("blk.1.ffn_gate_inp_shexp.weight", zeros(63)),
        shape("blk.1.ffn_gate_inp_shexp.weight: expected [1,64], found [63] F32")),
    "something else": (tensor("blk.0.attn_norm.weight", zeros(64)), left("1: blk.0.attn_norm.weight")),
    "something else that drafts": (tensor("blk.4.attn_norm.weight", zeros(64)),
        left("1: blk.4.attn_norm.weight")),
    "part of a draft head": (tensor("blk.4.nextn.enorm.weight", None), missing("blk.4.nextn.enorm.weight")),
    "rows of a mixer's norm": (tensor("blk.4.nextn.hc_head_norm.weight", zeros(2, 128)),
        shape("blk.4.nextn.hc_head_norm.weight: expected [4,64], found [2,128] F32")),
}  # fmt: skip


@pytest.mark.parametrize("name", KEYS)
def test_keys_and_tensors_of_a_file(tmp_path: Path, name: str) -> None:
    edit, want = KEYS[name]
    refused(file(tmp_path, edit), want)


def test_ratios_that_differ(tmp_path: Path) -> None:
    path = file(tmp_path, key(RATIOS, [0, 4, 2, 0, 0, 0], "INT32"), GEOMETRIES["odd"])
    refused(path, unsupported("compress_ratios: expected a ratio above 0"))
    path = file(tmp_path, key(RATIOS, [4, 0, 2, 4, 0, 0], "INT32"), GEOMETRIES["odd"])
    refused(path, unsupported("compress_ratios: expected one ratio for all layers, found several"))


def test_a_layer_that_is_not_counted(tmp_path: Path) -> None:
    """Of a file that says nothing about drafting, block 4 is no draft head unless it looks like one."""
    edit = all_of(key("block_count", 4), key("nextn_predict_layers", None),
                  key(RATIOS, [0, 0, 0, 4], "INT32"))  # fmt: skip
    with Engine(file(tmp_path, edit), "mtp:2", device="cpu", context=64, threads=1) as e:
        assert e.config["mtp"] and e.config["n_layer"] == 4

    def bare(keys: Keys, tensors: list[Tensor]) -> None:
        tensors[:] = [t for t in tensors if ".nextn." not in t.name]

    path = file(tmp_path, all_of(edit, bare))
    refused(path, left("26: blk.4."), "none")


# Numbers beyond all bounds

EXTREMES = (0, 1, -1, 3, 1 << 16, 1 << 24, 2**31 - 1, 2**31, 2**32 - 1, 2**63)
MEMBERS = [k for k, v in flash_tools.config(G).items() if type(v) is int]
NUMBERS = [k for k, v, kind in flash_gguf.keys(
    flash_gguf.Config.read(flash_tools.config(G)), flash_tools.config(G), {}, draft=True,
    draft_ratio=0, ffn_array=False, shared_target=False) if type(v) is int and kind == "UINT32"]  # fmt: skip


def survives(path: Path) -> None:
    """Opens and runs, or is refused by an error of our own."""
    try:
        with Engine(path, "mtp:2", device="cpu", context=32, threads=1) as e:
            assert e.generate([1, 2], 4, ignore_eos=True).ids
    except stoker.Error as error:
        assert "expected" in str(error)


def test_members_at_extremes(tmp_path: Path) -> None:
    path = folder(tmp_path)
    settings = json.loads((path / "config.json").read_text())
    for name in MEMBERS:
        for x in EXTREMES:
            (path / "config.json").write_text(json.dumps(settings | {name: x}))
            survives(path)


def test_keys_at_extremes(tmp_path: Path) -> None:
    """In place, in the bytes of one file."""
    path = file(tmp_path)
    raw = path.read_bytes()
    for name in NUMBERS:
        head = f"qwen4exp.{name}".encode()
        at = raw.index(len(head).to_bytes(8, "little") + head) + 8 + len(head)
        assert raw[at : at + 4] == (4).to_bytes(4, "little"), name
        for x in EXTREMES:
            if 0 <= x < 2**32:
                changed = raw[: at + 4] + x.to_bytes(4, "little") + raw[at + 8 :]
                path.write_bytes(changed)
                survives(path)
            changed = raw[:at] + (5).to_bytes(4, "little") + raw[at + 4 :]  # as INT32
            if -(2**31) <= x < 0:
                path.write_bytes(changed[: at + 4] + x.to_bytes(4, "little", signed=True)
                                 + changed[at + 8 :])  # fmt: skip
                survives(path)


NO_NUMBERS = (
    "model.embed_tokens.weight", FIRST + "hc_norm.weight", "model.layers.2.mlp.gate.weight",
    "model.layers.3.self_attn.indexer.index_qk_proj.weight", "mtp.layers.0.mlp.gate.weight",
    "model.layers.0.linear_attn.dt_bias", "model.layers.1.ple.norm_query.weight",
    "model.layers.3.self_attn.indexer.k_layernorm.weight", "model.layers.3.mlp.experts.down_proj",
    "mtp.pre_fc_norm_hidden.weight", "lm_head.weight",
)  # fmt: skip


@pytest.mark.parametrize("name", NO_NUMBERS)
def test_weights_that_are_no_numbers(tmp_path: Path, name: str) -> None:
    """NaN and infinities run through; experts, blocks and tokens are still some that there are."""
    like = flash_tools.weights(G)[name].shape
    ids = np.arange(26, dtype=np.int32)
    for bad, kernels in ((np.nan, "fast"), (np.inf, "fast"), (np.nan, "definition")):
        path = folder(tmp_path, edit=put(name, np.full(like, bad, np.float32)))
        with Engine(path, "mtp:3", device="cpu", context=64, threads=1, kernels=kernels) as e:
            e.evaluate(ids, ("logits", "mtp_logits"))
            found = e.generate(ids, 6, ignore_eos=True).ids + e.draft(ids, 3)
            assert len(found) >= 6 and all(0 <= t < G.vocab for t in found)
