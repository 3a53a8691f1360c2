"""Small Flash-Next checkpoints with random weights that tell one rule from another, as Hugging Face
folders and as GGUF files (flash_gguf.py), each with the reference that runs on what was written.

    path, oracle = case(tmp_path, "tiny", format="gguf", types="Q4_0")
    want = oracle.evaluate(ids, ("logits", "layer3", "ple_rows", "mtp_logits"))

No model here has a tokenizer."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flash_gguf
import numpy as np
import safetensors
from flash_next import Config, FlashNext, hash_constants
from tolerances import from_bf16, to_bf16

Array = np.ndarray[Any, Any]
INTEGERS = ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")


@dataclass(frozen=True)
class Geometry:
    """`layers`: L a delta net, S sparse attention. `hashed` counts from 0; None: no n-grams."""

    layers: str = "LLLS"
    dim: int = 64
    vocab: int = 256
    streams: int = 4
    low: int = 16
    n_head: int = 4
    n_kv: int = 2
    head_dim: int = 32
    partial: float = 0.25
    index_heads: int = 4
    index_dim: int = 16
    budget: int = 16
    ratio: int = 4
    key_heads: int = 2
    value_heads: int = 6
    linear_dim: int = 16
    taps: int = 4
    experts: int = 8
    top: int = 3
    ffn: int = 32
    shared: int = 32
    normalised: bool = True
    hashed: int | None = 1
    orders: int = 3
    heads_per_order: int = 2
    table_base: int = 251
    hashed_taps: int = 4
    hashed_dim: int = 64
    multiple: int = 128
    eos: int = 7
    seed: int = 1234
    mtp: int = 1
    context: int = 4096

    @property
    def hash_heads(self) -> int:
        return (self.orders - 1) * self.heads_per_order


GEOMETRIES = {
    "tiny": Geometry(),
    # sparse layers first and in a row, odd sizes everywhere, shares not scaled to a sum of 1
    "odd": Geometry(
        layers="SLSSL", dim=96, vocab=200, streams=3, low=24, n_head=3, n_kv=1, head_dim=16,
        partial=0.5, index_heads=2, budget=8, ratio=2, key_heads=2, value_heads=4, taps=3,
        experts=6, top=2, ffn=48, shared=64, normalised=False, orders=2, heads_per_order=3,
        table_base=101, hashed_taps=3, hashed_dim=48, eos=0, seed=99,
    ),
    # three heads of keys, long blocks, n-grams of four tokens in front of the third layer
    "long_grams": Geometry(
        layers="LLLSS", dim=128, vocab=320, streams=2, low=32, n_head=6, n_kv=3, index_heads=2,
        index_dim=32, budget=32, ratio=8, key_heads=4, value_heads=12, experts=16, top=4, ffn=64,
        shared=32, hashed=2, orders=4, table_base=127, hashed_taps=2, hashed_dim=192, eos=11,
    ),
    # every row but the table's has a multiple of 256 weights, those of the delta net's output 768
    "wide": Geometry(
        layers="LLS", dim=256, streams=2, low=256, n_head=4, head_dim=64, index_dim=32, linear_dim=128,
        experts=4, top=2, ffn=256, shared=256, hashed_dim=256,
    ),
    # no n-grams and no draft head
    "bare": Geometry(
        layers="LSL", streams=2, n_head=8, n_kv=1, head_dim=16, partial=1.0, index_heads=4,
        budget=8, key_heads=1, value_heads=3, linear_dim=32, experts=5, top=5, hashed=None, mtp=0,
    ),
    # the released budget, for prompts of thousands of tokens
    "long": Geometry(
        layers="LS", n_head=2, n_kv=1, head_dim=16, index_heads=2, budget=2048, key_heads=1,
        value_heads=2, hashed=0, context=8192,
    ),
}  # fmt: skip


def config(
    g: Geometry, style: str = "full_attention", shards: int = 1, composite: bool = False
) -> dict[str, Any]:
    """config.json; `style` is how sparse layers are called."""
    pairs = int(g.head_dim * g.partial) // 2
    text = {
        "model_type": "qwen4_exp_text", "hidden_act": "silu", "attention_bias": False,
        "vocab_size": g.vocab, "hidden_size": g.dim, "num_hidden_layers": len(g.layers),
        "layer_types": [style if x == "S" else "linear_attention" for x in g.layers],
        "hc_count": g.streams, "hc_lowrank": g.low, "num_attention_heads": g.n_head,
        "num_key_value_heads": g.n_kv, "head_dim": g.head_dim, "indexer_n_heads": g.index_heads,
        "indexer_kv_heads": 1, "indexer_head_dim": g.index_dim, "indexer_budget": g.budget,
        "indexer_compress_ratio": g.ratio, "linear_num_key_heads": g.key_heads,
        "linear_num_value_heads": g.value_heads, "linear_key_head_dim": g.linear_dim,
        "linear_value_head_dim": g.linear_dim, "linear_conv_kernel_dim": g.taps,
        "output_gate_type": "sigmoid", "num_experts": g.experts, "num_experts_per_tok": g.top,
        "moe_intermediate_size": g.ffn, "shared_expert_intermediate_size": g.shared,
        "ple_layer_ids": [] if g.hashed is None else [g.hashed + 1], "ple_embed_dim": g.hashed_dim,
        "ngram_size": g.orders, "heads_per_ngram": g.heads_per_order,
        "ngram_vocab_size_base": g.table_base, "ple_conv_kernel_size": g.hashed_taps,
        "make_ngram_vocab_size_divisible_by": g.multiple, "split_ngram_parts": shards,
        "seed": g.seed, "eos_token_id": g.eos, "bos_token_id": g.eos, "pad_token_id": 0,
        "rms_norm_eps": 1e-6, "max_position_embeddings": g.context, "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": g.partial,
            "mrope_interleaved": True, "mrope_section": [pairs - 2 * (pairs // 3)] + [pairs // 3] * 2,
        },
        "mtp_num_hidden_layers": g.mtp, "mtp_use_dedicated_embeddings": False, "dtype": "bfloat16",
    }  # fmt: skip
    if not g.normalised:  # absent means true
        text["norm_topk_prob"] = False
    if not composite:
        return {"architectures": ["Qwen4ExpForCausalLM"], **text}
    return {
        "architectures": ["Qwen4ExpForConditionalGeneration"], "model_type": "qwen4_exp",
        "text_config": text, "vision_config": {"model_type": "qwen4_exp", "depth": 1},
        "image_token_id": g.vocab - 2, "tie_word_embeddings": False,
    }  # fmt: skip


def table_rows(g: Geometry) -> int:
    used = int(hash_constants(Config.read(config(g)))[1].sum())
    return -(-used // g.multiple) * g.multiple


def shapes(g: Geometry) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of all weights, experts fused, the table whole, without the constants."""
    wide = g.streams * g.dim
    yield "model.embed_tokens.weight", (g.vocab, g.dim)
    yield "lm_head.weight", (g.vocab, g.dim)

    def mixer(p: str, inject: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield p + ".hc_norm.weight", (wide,)
        yield p + ".input_mix_weight_down.weight", (g.low, wide)
        yield p + ".input_mix_weight_up.weight", (wide, g.low)
        if inject:
            yield p + ".block_inject_weight.weight", (g.streams, wide)

    def layer(p: str, sparse: bool, hashed: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield from mixer(p + "attn_hyper_connection", True)
        yield from mixer(p + "mlp_hyper_connection", True)
        if sparse:
            n, kv, a = g.n_head * g.head_dim, g.n_kv * g.head_dim, p + "self_attn."
            parts = {"q_proj": (2 * n, g.dim), "k_proj": (kv, g.dim), "v_proj": (kv, g.dim),
                     "o_proj": (g.dim, n), "q_norm": (g.head_dim,), "k_norm": (g.head_dim,),
                     "indexer.index_qk_proj": ((g.index_heads + 1) * g.index_dim, g.dim),
                     "indexer.q_layernorm": (g.index_dim,), "indexer.k_layernorm": (g.index_dim,)}  # fmt: skip
        else:
            key, value, a = (
                g.key_heads * g.linear_dim,
                g.value_heads * g.linear_dim,
                p + "linear_attn.",
            )
            parts = {"in_proj_qkv": (2 * key + value, g.dim), "in_proj_z": (value, g.dim),
                     "in_proj_b": (g.value_heads, g.dim), "in_proj_a": (g.value_heads, g.dim),
                     "conv1d": (2 * key + value, 1, g.taps), "norm": (g.linear_dim,),
                     "out_proj": (g.dim, value)}  # fmt: skip
            yield a + "A_log", (g.value_heads,)
            yield a + "dt_bias", (g.value_heads,)
        for name, shape in parts.items():
            yield f"{a}{name}.weight", shape
        yield p + "mlp.gate.weight", (g.experts, g.dim)
        yield p + "mlp.experts.gate_up_proj", (g.experts, 2 * g.ffn, g.dim)
        yield p + "mlp.experts.down_proj", (g.experts, g.dim, g.ffn)
        for name, shape in (("gate", (g.shared, g.dim)), ("up", (g.shared, g.dim)),
                            ("down", (g.dim, g.shared))):  # fmt: skip
            yield f"{p}mlp.shared_expert.{name}_proj.weight", shape
        yield p + "mlp.shared_expert_gate.weight", (1, g.dim)
        if hashed:
            yield p + "ple.key_proj.weight", (wide, g.hashed_dim)
            yield p + "ple.value_proj.weight", (g.dim, g.hashed_dim)
            for name in ("norm_key", "norm_query", "norm_conv"):
                yield f"{p}ple.{name}.weight", (wide,)
            yield p + "ple.conv1d.weight", (wide, 1, g.hashed_taps)
            width = g.hashed_dim // g.hash_heads
            yield p + "ple.ple_embedding.ngram_embedding.shard_0.weight", (table_rows(g), width)

    for i, kind in enumerate(g.layers):
        yield from layer(f"model.layers.{i}.", kind == "S", i == g.hashed)
    yield from mixer("model.hyper_connection_mixer", False)
    if g.mtp:
        yield "mtp.pre_fc_norm_embedding.weight", (g.dim,)
        yield "mtp.pre_fc_norm_hidden.weight", (wide,)
        yield "mtp.fc_embedding.weight", (g.dim, g.dim)
        yield "mtp.fc_hidden.weight", (g.dim, g.dim)
        yield from layer("mtp.layers.0.", True, False)
        yield from mixer("mtp.hyper_connection_mixer", False)


def random_values(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if name.endswith("A_log"):
        return np.log(rng.uniform(0.1, 8, shape))
    if name.endswith("dt_bias"):
        return rng.uniform(-2, 2, shape)
    if name.endswith("linear_attn.norm.weight"):  # the only gain that is stored as it is
        return rng.uniform(0.6, 1.4, shape)
    if len(shape) == 1:
        return rng.uniform(-0.4, 0.4, shape)
    if "conv1d" in name:
        return rng.normal(0, 0.3, shape)
    if "embed_tokens" in name or "ngram_embedding" in name:
        return rng.normal(0, 1, shape)
    return rng.normal(0, shape[-1] ** -0.5, shape)


@functools.lru_cache(4)
def weights(g: Geometry, seed: int = 0) -> dict[str, Array]:
    """Float32 values that BF16 can hold, and the constants of the hash. Shared: not to be changed."""
    rng = np.random.default_rng(seed)
    out = {
        name: from_bf16(to_bf16(random_values(name, shape, rng).astype(np.float32)))
        for name, shape in shapes(g)
    }
    if g.hashed is not None:
        p = f"model.layers.{g.hashed}.ple.ple_embedding."
        values = hash_constants(Config.read(config(g)))
        out |= {p + name: x for name, x in zip(INTEGERS, values, strict=True)}
    return out


# Hugging Face folders


def hf_tensors(w: Mapping[str, Array], *, fused: bool, mtp_fused: bool, prefix: str,
               shards: int) -> dict[str, Array]:  # fmt: skip
    """The tensors as a folder holds them."""
    out: dict[str, Array] = {}
    for name, x in w.items():
        name = prefix + name.removeprefix("model.") if name.startswith("model.") else name
        is_fused = mtp_fused if name.startswith("mtp.") else fused
        if ".mlp.experts." in name and not is_fused:
            p = name[: name.index("experts.") + 8]
            for e in range(len(x)):
                parts = np.split(x[e], 2) if "gate_up" in name else [x[e]]
                for part, y in zip(
                    ("gate", "up") if len(parts) == 2 else ("down",), parts, strict=True
                ):
                    out[f"{p}{e}.{part}_proj.weight"] = y
        elif ".ngram_embedding.shard_0" in name:
            for i, y in enumerate(np.split(x, shards)):
                out[name.replace("shard_0", f"shard_{i}")] = y
        else:
            out[name] = x
    return out


def save(path: Path, tensors: Mapping[str, Array]) -> None:
    """By the safetensors package: floats as BF16, integers as they are."""
    whole = {k: np.ascontiguousarray(to_bf16(x) if x.dtype == np.float32 else x)
             for k, x in tensors.items()}  # fmt: skip
    names = {"uint16": "bfloat16"}
    spec = getattr(safetensors, "TensorSpec", None)
    entries = {}
    for k, x in whole.items():
        about: dict[str, Any] = {
            "dtype": names.get(str(x.dtype), str(x.dtype)),
            "shape": list(x.shape),
        }
        if spec is None:
            entries[k] = {**about, "data": x.tobytes()}
        else:
            entries[k] = spec(**about, data_ptr=x.ctypes.data, data_len=x.nbytes)
    safetensors.serialize_file(entries, str(path), {"format": "pt"})


def vision(g: Geometry) -> dict[str, Array]:
    """Tensors of an image tower, which a text engine passes over."""
    x = np.ones((8, 8), np.float32)
    return {f"model.visual.{n}.weight": x for n in ("patch_embed.proj", "blocks.0.attn.qkv")}


def write_hf(folder: Path, g: Geometry, w: Mapping[str, Array], *, fused: bool = True,
             mtp_fused: bool = True, prefix: str = "model.", shards: int = 1, files: int = 1,
             mtp_file: bool = True, style: str = "full_attention", composite: bool = False,
             with_vision: bool = False) -> Path:  # fmt: skip
    """A folder. `shards` of the table, `files` for the trunk (more than one: with an index); the
    draft head in a file of its own or among the rest."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = hf_tensors(w, fused=fused, mtp_fused=mtp_fused, prefix=prefix, shards=shards)
    if with_vision:
        tensors |= vision(g)
    dealt: dict[str, dict[str, Array]] = {}
    for i, (name, x) in enumerate(tensors.items()):
        file = "model.safetensors"
        if files > 1:
            file = f"model-{i % files + 1:05d}-of-{files:05d}.safetensors"
        if mtp_file and name.startswith("mtp."):
            file = "mtp.safetensors"
        dealt.setdefault(file, {})[name] = x
    for file, part in dealt.items():
        save(folder / file, part)
    if files > 1:
        where = {name: file for file, part in dealt.items() for name in part}
        index = {"metadata": {"total_size": 0}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    settings = config(g, style, shards, composite)
    (folder / "config.json").write_text(json.dumps(settings, indent=1))
    return folder


class Stored:
    """A tensor of a mapped file, widened only where it is read."""

    def __init__(self, x: Array, bf16: bool):
        self.x, self.bf16, self.shape = x, bf16, x.shape

    def __getitem__(self, i: Any) -> Array:
        x = np.asarray(self.x[i])
        return from_bf16(x) if self.bf16 else x

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[...] if dtype is None else self[...].astype(dtype)


def read_hf(folder: Path) -> dict[str, Stored]:
    """All tensors of a folder's safetensors files, mapped."""
    kinds = {"BF16": "<u2", "F16": "<f2", "F32": "<f4", "I64": "<i8"}
    out = {}
    for path in sorted(folder.glob("*.safetensors")):
        raw = np.memmap(path, np.uint8, "r")
        start = 8 + int(raw[:8].view("<u8")[0])
        for name, t in json.loads(raw[8:start].tobytes()).items():
            if name != "__metadata__":
                a, b = t["data_offsets"]
                x = raw[start + a : start + b].view(kinds[t["dtype"]]).reshape(t["shape"])
                out[name] = Stored(x, t["dtype"] == "BF16")
    return out


def whole(folder: Path) -> dict[str, Array]:
    """The weights of any folder as `weights` has them: experts and the table in one."""
    out: dict[str, Array] = {}
    parts: dict[str, list[Array]] = {}
    held = {k: np.asarray(v) for k, v in read_hf(folder).items()}
    shard = "ngram_embedding.shard_"
    for name in sorted(held, key=lambda k: [int(p) if p.isdigit() else -1 for p in
                                            k.replace("shard_", "shard_.").split(".")]):  # fmt: skip
        if shard in name:
            parts.setdefault(name.split(shard)[0] + shard + "0.weight", []).append(held[name])
        elif ".mlp.experts." in name and not name.endswith("experts.gate_up_proj") \
                and name.endswith(".weight"):  # fmt: skip
            p, rest = name.split("experts.")
            parts.setdefault(f"{p}experts.{rest.split('.')[1]}", []).append(held[name])
        else:
            out[name] = held[name]
    for name, rows in parts.items():
        if shard in name:
            out[name] = np.concatenate(rows)
        elif name.endswith("down_proj"):
            out[name] = np.stack(rows)
        elif name.endswith("gate_proj"):
            up = parts[name.replace("gate_proj", "up_proj")]
            out[name.replace("gate_proj", "gate_up_proj")] = np.stack(
                [np.concatenate(both) for both in zip(rows, up, strict=True)]
            )
    return out


def oracle_of(folder: Path, dtype: Any = np.float64, **options: Any) -> FlashNext:
    """The reference on any Hugging Face folder."""
    return FlashNext(
        json.loads((folder / "config.json").read_text()), read_hf(folder), dtype, **options
    )


# Both at once


def case(tmp_path: Path, name: str | Geometry, *, format: str = "hf", seed: int = 0, dtype: Any = np.float64,
         oracle: Mapping[str, Any] | None = None, **how: Any) -> tuple[Path, FlashNext]:  # fmt: skip
    """A checkpoint of a geometry, by its name or itself, and the reference on what it holds. `how`
    goes to write_hf or to flash_gguf.write_gguf, `oracle` to FlashNext."""
    g = GEOMETRIES[name] if isinstance(name, str) else name
    w = weights(g, seed)
    if format == "hf":
        path = write_hf(tmp_path / "model", g, w, **how)
        return path, FlashNext(config(g), w, dtype, **(oracle or {}))
    path = tmp_path / "model.gguf"
    held = flash_gguf.write_gguf(path, config(g), w, seed=seed, **how)
    return path, FlashNext(config(g), held, dtype, **(oracle or {}))
