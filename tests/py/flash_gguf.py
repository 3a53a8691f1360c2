"""Flash-Next weights as GGUF files: what released files do to names, values and the order of heads,
and back again.

What is stored of a Hugging Face tensor: one is added to the gains of all norms but the delta net's;
A_log becomes -exp(A_log); value heads, which Hugging Face groups by key head, go round the key heads
in turn; the indexer's projection is split, the two of the draft head's fusion are joined; experts are
split into gate and up; convolutions lose their middle axis; the hash's constants become keys."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from blocks import HALVES, IDS, NAMES, PLAIN, put_halves, random_blocks, reference
from flash_next import Config
from gguf.quants import quantize
from gguf_bytes import BLOCKS

Array = np.ndarray[Any, Any]
Keys = list[tuple[str, Any, str]]  # without the architecture, value, type
Types = str | Sequence[str] | Mapping[str, str] | Callable[[str], str | None]

ARCH = "qwen4exp"
OWN_QUANTISER = ("BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4")
FALLBACK = {"Q2_0": "Q4_0", "Q1_0": "Q4_0", "NVFP4": "Q4_0", "Q2_K": "Q4_0", "Q3_K": "Q4_0",
            "TQ1_0": "Q4_0", "TQ2_0": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}  # fmt: skip
CENTRES = {"Q4_K": 7.5, "Q5_K": 15.5}  # minimum over scale for codes whose mean that is
FLAVOURS = ("eh_proj", "output_hc", "fc")  # of the draft head's names

HYPER = {"hc_norm": "norm", "input_mix_weight_down": "down", "input_mix_weight_up": "up",
         "block_inject_weight": "inject"}  # fmt: skip
# Of a layer: Hugging Face name -> GGUF name, without `.weight`.
LAYER = {
    **{f"attn_hyper_connection.{a}": f"hc_attn_{b}" for a, b in HYPER.items()},
    **{f"mlp_hyper_connection.{a}": f"hc_ffn_{b}" for a, b in HYPER.items()},
    "mlp.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "self_attn.indexer.q_layernorm": "indexer.q_norm",
    "self_attn.indexer.k_layernorm": "indexer.k_norm",
    "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
    "ple.key_proj": "ple_key", "ple.value_proj": "ple_value", "ple.norm_key": "ple_norm_key",
    "ple.norm_query": "ple_norm_query", "ple.norm_conv": "ple_norm_conv",
    "ple.conv1d": "ple_conv1d",
}  # fmt: skip
BARE = {"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}
CONSTANTS = {"layer_multipliers": "layer_multipliers", "ngram_heads_vocab_sizes": "head_vocab_sizes",
             "ngram_heads_offsets": "head_offsets"}  # fmt: skip
MIXER = tuple(HYPER)[:3]


# Order of value heads


def tiled(c: Config) -> Array:
    """Hugging Face's head at each place of the file: head r of key head k is at r * key_heads + k."""
    return np.arange(c.value_heads).reshape(c.key_heads, -1).T.ravel()


def reorder(c: Config, name: str, x: Array, order: Array) -> Array:
    """Value heads of a delta net's tensor (its name in the file) in another order."""
    rows = c.value_heads * c.value_dim

    def heads(y: Array) -> Array:
        return y.reshape(c.value_heads, -1, *y.shape[1:])[order].reshape(y.shape)

    part = name.split(".", 2)[2].removesuffix(".weight") if name.startswith("blk.") else ""
    if part in ("attn_gate", "ssm_alpha", "ssm_beta", "ssm_a", "ssm_dt.bias"):
        return heads(x)
    if part in ("attn_qkv", "ssm_conv1d"):
        return np.concatenate([x[:-rows], heads(x[-rows:])])
    if part == "ssm_out":
        return np.ascontiguousarray(heads(x.T).T)
    return x


def has_one_added(name: str) -> bool:
    """Norms of the file whose gain is stored whole."""
    return "norm" in name and not name.endswith("ssm_norm.weight")


# To the file


def pieces(
    c: Config, w: Mapping[str, Any], flavour: str, head_norm: str, joined: bool
) -> Iterator[tuple[str, Array]]:
    """Names in the file and their values in float32, before heads are put in order; `w` is fused and
    named with the prefix `model.`."""

    def get(name: str) -> Array:
        return np.asarray(w[name], np.float32)

    yield "token_embd.weight", get("model.embed_tokens.weight")
    yield "output.weight", get("lm_head.weight")
    for part in MIXER:
        yield f"output_hc_{HYPER[part]}.weight", get(f"model.hyper_connection_mixer.{part}.weight")
    n = len(c.sparse)
    has_draft = "mtp.fc_hidden.weight" in w
    for i in range(n + has_draft):
        p, blk = f"model.layers.{i}." if i < n else "mtp.layers.0.", f"blk.{i}"
        for a, b in LAYER.items():
            if f"{p}{a}.weight" in w:
                yield f"{blk}.{b}.weight", get(f"{p}{a}.weight")
        for a, b in BARE.items():
            if p + a in w:
                yield f"{blk}.{b}", get(p + a)
        both = get(p + "mlp.experts.gate_up_proj")
        if joined:
            yield f"{blk}.ffn_gate_up_exps.weight", both
        else:
            gate, up = np.split(both, 2, 1)
            yield f"{blk}.ffn_gate_exps.weight", gate
            yield f"{blk}.ffn_up_exps.weight", up
        yield f"{blk}.ffn_down_exps.weight", get(p + "mlp.experts.down_proj")
        index = p + "self_attn.indexer.index_qk_proj.weight"
        if index in w:
            q, k = np.split(get(index), [c.index_heads * c.index_dim])
            yield f"{blk}.indexer.q_proj.weight", q
            yield f"{blk}.indexer.k_proj.weight", k
    if c.hashed is not None:
        p = f"model.layers.{c.hashed}.ple.ple_embedding.ngram_embedding.shard_0.weight"
        yield "per_layer_token_embd.weight", get(p)
    if has_draft:
        yield from draft_pieces(get, f"blk.{n}.nextn", c, flavour, head_norm)


def draft_pieces(get: Callable[[str], Array], blk: str, c: Config, flavour: str,
                 head_norm: str) -> Iterator[tuple[str, Array]]:  # fmt: skip
    """The fusion and the mixer of the draft head, which go by different names in different files."""
    yield f"{blk}.enorm.weight", get("mtp.pre_fc_norm_embedding.weight")
    yield f"{blk}.hnorm.weight", get("mtp.pre_fc_norm_hidden.weight")
    embd, hidden = get("mtp.fc_embedding.weight"), get("mtp.fc_hidden.weight")
    if flavour == "fc":
        yield f"{blk}.fc_embd.weight", embd
        yield f"{blk}.fc_hidden.weight", hidden
    else:
        yield f"{blk}.eh_proj.weight", np.concatenate([embd, hidden], 1)
    start = {"eh_proj": f"{blk}.hc_head_", "output_hc": "draft:output_hc_", "fc": f"{blk}.hc_"}[
        flavour
    ]
    for part in MIXER:
        x = get(f"mtp.hyper_connection_mixer.{part}.weight")
        if part == "hc_norm" and flavour == "output_hc":
            yield f"{blk}.shared_head_norm.weight", x
        if part == "hc_norm" and head_norm == "streams":
            x = x.reshape(c.streams, c.dim)
        yield f"{start}{HYPER[part]}.weight", x


@dataclass(frozen=True)
class Tensor:
    """Of a file: its name there, type, shape with the row length last, bytes [rows, bytes]."""

    name: str
    type: str
    shape: tuple[int, ...]
    data: Array

    def __getitem__(self, i: int) -> Array:
        """Decoded part i of the first axis."""
        n = len(self.data) // self.shape[0]
        return decoded(self.type, self.data[i * n : (i + 1) * n]).reshape(self.shape[1:])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        x = decoded(self.type, self.data).reshape(self.shape)
        return x if dtype is None else x.astype(dtype)


def decoded(kind: str, rows: Array) -> Array:
    if kind in ("F32", "F16"):
        return rows.view({"F32": "<f4", "F16": "<f2"}[kind]).astype(np.float32)
    if kind == "BF16":
        return (rows.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return reference(kind, rows.reshape(-1, BLOCKS[IDS[kind]][1]))


def encoded(name: str, x: Array, kind: str, seed: int) -> Tensor:
    """Quantised by the gguf package, or random codes of the same spread where it cannot."""
    kind = fitting(kind, x.shape[-1])
    flat = np.ascontiguousarray(x.reshape(-1, x.shape[-1]), np.float32)
    if kind in ("F32", "F16"):
        data = flat.astype({"F32": "<f4", "F16": "<f2"}[kind]).view(np.uint8)
    elif kind in OWN_QUANTISER:
        data = quantize(flat, gguf.GGMLQuantizationType[kind]).view(np.uint8)
    elif kind == "Q2_0":
        data = quantised_q2_0(flat)
    else:
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        elems = BLOCKS[IDS[kind]][0]
        data = random_blocks(kind, flat.size // elems, float(flat.std()), rng)
        if kind in CENTRES:
            centre(kind, data, float(flat.std()))
    return Tensor(name, kind, x.shape, data.reshape(len(flat), -1))


def quantised_q2_0(x: Array) -> Array:
    """Codes -1, 0, 1, 2 of 64 weights and their scale; random ones would have a mean."""
    x = x.reshape(-1, 64)
    d = np.maximum(x.max(1) / 2, -x.min(1)).astype("<f2")
    code = np.clip(np.rint(x / d.astype(np.float32)[:, None]) + 1, 0, 3).astype(np.uint8)
    packed = (code.reshape(-1, 16, 4) << np.array([0, 2, 4, 6], np.uint8)).sum(2, dtype=np.uint8)
    return np.concatenate([d[:, None].view(np.uint8), packed], 1)


def centre(kind: str, blocks: Array, std: float) -> None:
    """Scales and minima such that the values have a mean near 0 and the wanted spread."""
    d = blocks[:, :2].copy().view("<f2")[:, 0].astype(np.float32)
    for _ in range(2):
        for at, factor in zip(HALVES[kind], (1, CENTRES[kind]), strict=True):
            put_halves(blocks, at, d * factor)
        d *= std / reference(kind, blocks[:64]).std()


def fitting(kind: str, n: int) -> str:
    """The type a quantiser takes for rows of n weights instead of one whose blocks do not divide."""
    while n % BLOCKS[{**PLAIN, **IDS}[kind]][0]:
        small = "IQ4_NL" if kind != "IQ4_NL" and kind.startswith("IQ") else "F16"
        kind = FALLBACK.get(kind, small)
    return kind


def stays_plain(name: str, x: Array) -> bool:
    """What files of every quantisation keep as F32."""
    parts = ("norm", "inject", "ffn_gate_inp", "conv1d", "ssm_alpha", "ssm_beta")
    return x.ndim == 1 or any(p in name for p in parts)


def chosen_type(types: Types, name: str, x: Array, turn: int) -> str:
    if callable(types):
        return types(name) or "F32"
    if isinstance(types, Mapping):
        return types.get(name, "F32")
    dealt = (types,) if isinstance(types, str) else types
    return "F32" if stays_plain(name, x) else dealt[turn % len(dealt)]


def converted(c: Config, w: Mapping[str, Any], types: Types, flavour: str = "eh_proj",
              head_norm: str = "flat", seed: int = 0, joined: bool = False) -> list[Tensor]:  # fmt: skip
    """All tensors of the trunk and of the draft head; those that only a draft file can hold under
    their name carry `draft:` in front of it."""
    out: list[Tensor] = []
    matrices = 0
    for name, x in pieces(c, w, flavour, head_norm, joined):
        plain = name.removeprefix("draft:")
        if has_one_added(plain):
            x = x + np.float32(1)
        if plain.endswith("ssm_a"):
            x = -np.exp(x)
        if "conv1d" in plain:
            x = x.reshape(len(x), -1)
        if plain.endswith("ffn_gate_inp_shexp.weight"):
            x = x.reshape(-1)
        x = reorder(c, plain, x, tiled(c))
        out.append(encoded(name, x, chosen_type(types, plain, x, matrices), seed))
        matrices += not stays_plain(plain, x)
    return out


# Keys

Edit = Callable[[Keys, list[Tensor]], None]


def keys(c: Config, d: Mapping[str, Any], constants: Mapping[str, Array], *, draft: bool,
         draft_ratio: int, ffn_array: bool, shared_target: bool) -> Iterator[tuple[str, Any, str]]:  # fmt: skip
    """Key without the architecture, value, type; an array has the type of its elements."""
    n = len(c.sparse) + draft
    sparse = [*c.sparse, *([True] if draft else [])]
    for key, value in (
        ("block_count", n),
        ("context_length", d["max_position_embeddings"]),
        ("embedding_length", c.dim),
        ("attention.head_count", c.n_head),
        ("attention.head_count_kv", c.n_kv),
        ("attention.key_length", c.head_dim),
        ("attention.value_length", c.head_dim),
        ("rope.dimension_count", c.rotated),
        ("expert_count", c.experts),
        ("expert_used_count", c.top),
        ("expert_shared_feed_forward_length", d["shared_expert_intermediate_size"]),
        ("ssm.conv_kernel", c.taps),
        ("ssm.state_size", c.key_dim),
        ("ssm.group_count", c.key_heads),
        ("ssm.time_step_rank", c.value_heads),
        ("ssm.inner_size", c.value_heads * c.value_dim),
        ("hyper_connection.count", c.streams),
        ("hyper_connection.low_rank", d["hc_lowrank"]),
        ("attention.indexer.head_count", c.index_heads),
        ("attention.indexer.key_length", c.index_dim),
        ("attention.indexer.top_k", c.budget),
    ):
        yield key, value, "UINT32"
    yield "attention.layer_norm_rms_epsilon", c.eps, "FLOAT32"
    yield "rope.freq_base", c.base, "FLOAT32"
    yield "rope.dimension_sections", [*d["rope_parameters"]["mrope_section"], 0], "INT32"
    ffn = d["moe_intermediate_size"]
    yield "expert_feed_forward_length", [ffn] * n if ffn_array else ffn, "UINT32"
    ratios = [c.ratio if s else 0 for s in c.sparse] + [draft_ratio] * draft
    yield "attention.compress_ratios", ratios, "INT32"
    period = c.sparse.index(True) + 1 if any(c.sparse) else 0
    if all(s == ((i + 1) % period == 0) for i, s in enumerate(c.sparse)):
        yield "full_attention_interval", period, "UINT32"
    else:
        yield "attention.recurrent_layers", [not s for s in sparse], "BOOL"
    if not c.normalised:  # absent means true
        yield "expert_weights_norm", False, "BOOL"
    if c.hashed is not None:
        yield "ple.layers", [c.hashed], "UINT32"
        yield "ple.ngram_size", c.orders, "UINT32"
        yield "ple.heads_per_ngram", c.heads_per_order, "UINT32"
        yield "ple.conv_kernel", c.hashed_taps, "UINT32"
        yield "ple.eos_token_id", c.eos, "UINT32"
        width = d["ple_embed_dim"] // ((c.orders - 1) * c.heads_per_order)
        yield "embedding_length_per_layer_input", width, "UINT32"
        for name, values in constants.items():
            yield f"ple.{name}", [int(v) for v in values], "UINT64"
    if draft:
        yield "nextn_predict_layers", 1, "UINT32"
    if shared_target:
        yield "nextn_shared_target_tensors", True, "BOOL"


def write_file(path: Path, head: Iterator[tuple[str, Any, str]], tensors: list[Tensor],
               tokenizer: str | None, edit: Edit | None = None) -> None:  # fmt: skip
    """By the gguf package."""
    head, tensors = list(head), list(tensors)
    if edit:
        edit(head, tensors)
    out = gguf.GGUFWriter(path, ARCH)
    kinds = gguf.GGUFValueType
    for key, value, kind in head:
        if isinstance(value, list):
            out.add_key_value(f"{ARCH}.{key}", value, kinds.ARRAY, sub_type=kinds[kind])
        else:
            out.add_key_value(f"{ARCH}.{key}", value, kinds[kind])
    if tokenizer:
        out.add_string("tokenizer.ggml.model", tokenizer)
    for t in tensors:
        # As int8 and a number, so that the package takes types that it does not know.
        name = t.name.removeprefix("draft:")
        out.add_tensor(name, t.data.view(np.int8), t.shape, {**PLAIN, **IDS}[t.type])
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def draft_path(path: Path) -> Path:
    return path.with_suffix(".mtp.gguf")


def write_gguf(path: Path, d: Mapping[str, Any], w: Mapping[str, Any], *, types: Types = "F32",
               mtp: str | None = "block", flavour: str = "eh_proj", head_norm: str = "flat",
               draft_has_target: bool = False, draft_ratio: int = 0, ffn_array: bool = False,
               tokenizer: str | None = None, seed: int = 0, joined: bool = False,
               edit: Edit | None = None) -> Restored:  # fmt: skip
    """A file of the weights `w` (flash_tools.weights) of the model that `d` configures; returns what
    it holds, by Hugging Face names.

    types: a type for all matrices (norms, router, convolutions and the like stay F32), several dealt to
    them in turn, or the type by the name in the file, nothing meaning F32. Rows that do not fit fall back as a quantiser's do.
    mtp: the draft head as a block behind the trunk, "separate" in a file at draft_path(path), or None.
    flavour, of the draft head's names: "eh_proj" (nextn.eh_proj, nextn.hc_head_*), "output_hc" (its
    mixer as output_hc_*, so only in a separate file; the norm again as nextn.shared_head_norm), "fc"
    (nextn.fc_embd, nextn.fc_hidden, nextn.hc_*). head_norm "streams": the mixer's norm as a matrix.
    draft_has_target: the separate file repeats embedding and output. draft_ratio: the draft head's
    entry in attention.compress_ratios, 0 in released files. joined: gate and up of the experts in one
    tensor. edit(keys, tensors) may change what each file gets, the draft head's last."""
    assert flavour in FLAVOURS and head_norm in ("flat", "streams")
    assert mtp in ("block", "separate", None) and (flavour != "output_hc" or mtp != "block")
    d = d.get("text_config", d)
    c = Config.read(d)
    tensors = converted(c, w, types, flavour, head_norm, seed, joined)
    blk = f"blk.{len(c.sparse)}."
    trunk = [t for t in tensors if not t.name.startswith((blk, "draft:"))]
    draft = [t for t in tensors if t.name.startswith((blk, "draft:"))]
    has_draft = mtp is not None and len(draft) > 0
    constants = {}
    if c.hashed is not None:
        p = f"model.layers.{c.hashed}.ple.ple_embedding."
        constants = {b: np.asarray(w[p + a]) for a, b in CONSTANTS.items()}
    common = dict(draft_ratio=draft_ratio, ffn_array=ffn_array)
    with_block = has_draft and mtp == "block"
    head = keys(c, d, constants, draft=with_block, shared_target=False, **common)
    write_file(path, head, trunk + draft if with_block else trunk, tokenizer, edit)
    if has_draft and mtp == "separate":
        lent = [t for t in trunk if t.name in ("token_embd.weight", "output.weight")]
        head = keys(c, d, constants, draft=True, shared_target=not draft_has_target, **common)
        write_file(draft_path(path), head, (lent if draft_has_target else []) + draft, tokenizer,
                   edit)  # fmt: skip
    return Restored(c, tensors if has_draft else trunk, constants)


# And back


class Restored(Mapping[str, Any]):
    """Tensors of a file by their Hugging Face names, in the order and with the values they have there;
    decoded where they are asked for, experts and rows of the table one at a time."""

    def __init__(self, c: Config, tensors: list[Tensor], constants: Mapping[str, Array]):
        self.c = c
        self.t = {t.name: t for t in tensors}
        self.made: dict[str, Callable[[], Any]] = {}
        self.plain("model.embed_tokens.weight", "token_embd.weight")
        self.plain("lm_head.weight", "output.weight")
        self.mixer("model.", "output_hc_")
        for i in range(len(c.sparse) + 1):
            p = "mtp.layers.0." if i == len(c.sparse) else f"model.layers.{i}."
            self.layer(p, f"blk.{i}")
        self.draft(f"blk.{len(c.sparse)}.nextn")
        if c.hashed is not None:
            p = f"model.layers.{c.hashed}.ple.ple_embedding."
            table = self.t["per_layer_token_embd.weight"]
            self.made[p + "ngram_embedding.shard_0.weight"] = lambda: table
            for a, b in CONSTANTS.items():
                self.made[p + a] = lambda b=b: np.asarray(constants[b], np.int64)

    def __getitem__(self, name: str) -> Any:
        return self.made[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self.made)

    def __len__(self) -> int:
        return len(self.made)

    def value(self, name: str) -> Array:
        """Of a tensor by its name in the file, one taken off again and heads grouped."""
        x = np.asarray(self.t[name])
        plain = name.removeprefix("draft:")
        x = reorder(self.c, plain, x, np.argsort(tiled(self.c)))
        if has_one_added(plain):
            x = x.reshape(-1).astype(np.float64) - 1  # the sum was rounded, this is exact
        if plain.endswith("ssm_a"):
            x = np.log(-x.astype(np.float64))
        if plain.endswith("conv1d.weight"):
            x = x[:, None]
        return x[None] if plain.endswith("ffn_gate_inp_shexp.weight") else x

    def plain(self, to: str, name: str) -> None:
        if name in self.t:
            self.made[to] = lambda: self.value(name)

    def mixer(self, p: str, start: str) -> None:
        for part in MIXER:
            self.plain(f"{p}hyper_connection_mixer.{part}.weight", f"{start}{HYPER[part]}.weight")

    def layer(self, p: str, blk: str) -> None:
        for a, b in LAYER.items():
            self.plain(f"{p}{a}.weight", f"{blk}.{b}.weight")
        for a, b in BARE.items():
            self.plain(p + a, f"{blk}.{b}")
        self.joined(p + "self_attn.indexer.index_qk_proj.weight",
                    [f"{blk}.indexer.{x}_proj.weight" for x in "qk"])  # fmt: skip
        names = ("gate", "up", "down", "gate_up")
        gate, up, down, both = (self.t.get(f"{blk}.ffn_{x}_exps.weight") for x in names)
        if down is not None:
            self.made[p + "mlp.experts.gate_up_proj"] = lambda: both or Pair(gate, up)
            self.made[p + "mlp.experts.down_proj"] = lambda: down

    def joined(self, to: str, names: list[str]) -> None:
        if names[0] in self.t:
            self.made[to] = lambda: np.concatenate([self.value(n) for n in names])

    def draft(self, blk: str) -> None:
        self.plain("mtp.pre_fc_norm_embedding.weight", f"{blk}.enorm.weight")
        self.plain("mtp.pre_fc_norm_hidden.weight", f"{blk}.hnorm.weight")
        self.plain("mtp.fc_embedding.weight", f"{blk}.fc_embd.weight")
        self.plain("mtp.fc_hidden.weight", f"{blk}.fc_hidden.weight")
        both = f"{blk}.eh_proj.weight"
        if both in self.t:
            for at, part in enumerate(("embedding", "hidden")):
                name = f"mtp.fc_{part}.weight"
                self.made[name] = lambda at=at: np.split(self.value(both), 2, 1)[at]
        for start in (f"{blk}.hc_head_", f"{blk}.hc_", "draft:output_hc_"):
            self.mixer("mtp.", start)


class Pair:
    """Gate and up of the experts, one above the other."""

    def __init__(self, gate: Tensor, up: Tensor):
        self.parts = (gate, up)
        self.shape = (gate.shape[0], 2 * gate.shape[1], gate.shape[2])

    def __getitem__(self, e: int) -> Array:
        return np.concatenate([t[e] for t in self.parts])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.concatenate([np.asarray(t, dtype) for t in self.parts], 1)


def read_tensors(path: Path) -> tuple[list[Tensor], dict[str, Any]]:
    """Tensors and keys of any file whose types the gguf package knows."""
    reader = gguf.GGUFReader(path)
    out = []
    for t in reader.tensors:
        shape = tuple(int(n) for n in reversed(t.shape))
        rows = np.asarray(t.data).view(np.uint8).reshape(int(np.prod(shape[:-1])), -1)
        out.append(Tensor(t.name, NAMES[int(t.tensor_type)], shape, rows))
    return out, {name: field.contents() for name, field in reader.fields.items()}


def read_gguf(c: Config, *paths: Path) -> Restored:
    """A model of one file, or of the trunk's and the draft head's."""
    tensors, found = read_tensors(paths[0])
    for path in paths[1:]:
        lent = {t.name for t in tensors}
        for t in read_tensors(path)[0]:
            if t.name.startswith("output_hc_"):
                tensors.append(Tensor("draft:" + t.name, t.type, t.shape, t.data))
            elif t.name not in lent:
                tensors.append(t)
    constants = {b: found[f"{ARCH}.ple.{b}"] for b in CONSTANTS.values() if c.hashed is not None}
    return Restored(c, tensors, constants)
