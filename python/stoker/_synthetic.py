"""Checkpoints without a file: the geometry of a released model, and weights out of a seed.

What a model computes from such weights is noise of the right size, so it says nothing about text. It
takes the same time, memory and traffic as the released model does. Geometry, types and statistics:
docs/synthetic.md."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, count, islice
from math import prod, sqrt
from typing import Any

from . import _native
from .checkpoint import Checkpoint
from .errors import InvalidArgumentError

QUANTS = ("iq3_s", "q8_0", "q4_k", "bf16")
# The type that stands in where rows are no multiple of its block. F16 has no block.
FALLBACK = {
    "IQ1_S": "IQ4_NL", "IQ1_M": "IQ4_NL", "IQ2_XXS": "IQ4_NL", "IQ2_XS": "IQ4_NL",
    "IQ2_S": "IQ4_NL", "IQ3_XXS": "IQ4_NL", "IQ3_S": "IQ4_NL", "IQ4_XS": "IQ4_NL",
    "Q2_0": "Q4_0", "Q2_K": "Q4_0", "Q3_K": "Q4_0", "TQ1_0": "Q4_0", "TQ2_0": "Q4_0",
    "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
}  # fmt: skip

# Of the mix iq3_s: how many of the 48 layers have which type.
GATE_UP = {"IQ3_S": 10, "IQ3_XXS": 17, "IQ2_S": 20, "IQ4_XS": 1}
DOWN = {"IQ4_NL": 39, "Q2_0": 9}

NORMAL, UNIFORM = 0, 1  # sk_synth_kind
ALIGNMENT = 64
MAX_ROWS = 2**31 - 1

Key = tuple[str, Any, str]  # name, value or list of values, type (of an element)


@dataclass(frozen=True)
class Spec:
    """One tensor: values of a mean and a standard deviation (NORMAL), or between two numbers."""

    name: str
    type: str
    shape: tuple[int, ...]
    kind: int
    a: float
    b: float


# ---- types ------------------------------------------------------------------------------------- #


def dealt(shares: dict[str, int]) -> list[str]:
    """Types in their proportions, spread evenly: each layer gets the type that is furthest behind
    its share, the first of several. So the beginning of the list has the same mix as all of it."""
    total = sum(shares.values())
    used = dict.fromkeys(shares, 0)
    out = []
    for i in range(1, total + 1):
        out.append(max(shares, key=lambda t: shares[t] * i - used[t] * total))
        used[out[-1]] += 1
    return out


def fitting(type: str, row: int) -> str:
    """`type`, or what quantisers take for rows of this length in its place."""
    types = _native.types()
    while row % types[type][1]:
        type = FALLBACK.get(type, "F16")
    return type


@dataclass
class _Tensors:
    """Collects the tensors of a model. `mix` is the type under iq3_s; under the other quantisations
    all matrices have one type."""

    quant: str
    specs: list[Spec] = field(default_factory=list)

    def matrix(self, name: str, shape: tuple[int, ...], mix: str, sigma: float = 0.0) -> None:
        """By default of a standard deviation that keeps the size of what is multiplied."""
        type = mix if self.quant == "iq3_s" else self.quant.upper()
        b = sigma or 1 / sqrt(shape[-1])
        self.specs.append(Spec(name, fitting(type, shape[-1]), shape, NORMAL, 0.0, b))

    def plain(self, name: str, shape: tuple[int, ...], kind: int, a: float, b: float) -> None:
        self.specs.append(Spec(name, "F32", shape, kind, a, b))

    def small(self, name: str, *shape: int) -> None:
        """Matrices that files of every quantisation keep as they are."""
        self.plain(name, shape, NORMAL, 0.0, 1 / sqrt(shape[-1]))

    def norm(self, name: str, n: int) -> None:
        self.plain(name, (n,), NORMAL, 1.0, 0.2)


# ---- flash-next -------------------------------------------------------------------------------- #

VOCAB, DIM, LAYERS, EVERY = 248320, 2560, 48, 4
STREAMS, RANK = 4, 320
HEADS, KV, HEAD, ROTATED = 24, 2, 256, 64
INDEX_HEADS, INDEX_DIM, BUDGET, RATIO = 4, 128, 2048, 4
KEY_HEADS, VALUE_HEADS, STATE, TAPS = 16, 48, 128, 4
EXPERTS, USED, FFN = 512, 10, 640
PLE_LAYER, ORDERS, PER_ORDER, PLE_DIM, PLE_EOS = 1, 3, 8, 160, 248044
PLE_ROWS, PLE_BASE = 320001536, 20_000_000
MULTIPLIERS = (23703573157769, 20109073645365, 8052911324071)
PLE_HEADS = (ORDERS - 1) * PER_ORDER
WIDE = STREAMS * DIM


def is_prime(n: int) -> bool:
    """Miller-Rabin with bases that leave nothing to chance below 3,215,031,751."""
    if n < 11:
        return n in (2, 3, 5, 7)
    if not n % 2:
        return False
    twos = (n - 1 & 1 - n).bit_length() - 1
    for base in (2, 3, 5, 7):
        x = pow(base, (n - 1) >> twos, n)
        if x in (1, n - 1):
            continue
        if not any((x := x * x % n) == n - 1 for _ in range(twos - 1)):
            return False
    return True


def hash_sizes(rows: int) -> list[int]:
    """Rows of each hash head, distinct primes: those of the released table, or for a table of
    another size the largest ones up to a head's share of it."""
    if rows == PLE_ROWS:
        return list(islice(filter(is_prime, count(PLE_BASE)), PLE_HEADS))
    found = list(islice(filter(is_prime, range(rows // PLE_HEADS, 1, -1)), PLE_HEADS))
    if len(found) < PLE_HEADS:
        raise InvalidArgumentError(
            f"ple_rows: expected room for {PLE_HEADS} different primes, found {rows}"
        )
    return found[::-1]


def _hyper(t: _Tensors, name: str, inject: bool, mix: str = "F16") -> None:
    t.norm(f"{name}_norm.weight", WIDE)
    t.matrix(f"{name}_down.weight", (RANK, WIDE), mix)
    t.matrix(f"{name}_up.weight", (WIDE, RANK), mix)
    if inject:
        t.small(f"{name}_inject.weight", STREAMS, WIDE)


def _conv(t: _Tensors, name: str) -> None:
    t.plain(name, (WIDE, TAPS), NORMAL, 0.0, 0.3)


def _recurrence(t: _Tensors, p: str) -> None:
    keys, values = KEY_HEADS * STATE, VALUE_HEADS * STATE
    t.matrix(f"{p}.attn_qkv.weight", (2 * keys + values, DIM), "Q6_K")
    t.matrix(f"{p}.attn_gate.weight", (values, DIM), "Q4_K")
    t.small(f"{p}.ssm_beta.weight", VALUE_HEADS, DIM)
    t.small(f"{p}.ssm_alpha.weight", VALUE_HEADS, DIM)
    _conv(t, f"{p}.ssm_conv1d.weight")
    t.plain(f"{p}.ssm_a", (VALUE_HEADS,), UNIFORM, -8.0, -0.1)
    t.plain(f"{p}.ssm_dt.bias", (VALUE_HEADS,), UNIFORM, -2.0, 2.0)
    t.norm(f"{p}.ssm_norm.weight", STATE)
    t.matrix(f"{p}.ssm_out.weight", (DIM, values), "Q6_K")


def _attention(t: _Tensors, p: str, draft: bool) -> None:
    def mix(type: str) -> str:
        return "Q8_0" if draft else type

    t.matrix(f"{p}.attn_q.weight", (2 * HEADS * HEAD, DIM), mix("IQ4_XS"))
    t.matrix(f"{p}.attn_k.weight", (KV * HEAD, DIM), mix("Q6_K"))
    t.matrix(f"{p}.attn_v.weight", (KV * HEAD, DIM), mix("Q6_K"))
    t.norm(f"{p}.attn_q_norm.weight", HEAD)
    t.norm(f"{p}.attn_k_norm.weight", HEAD)
    t.matrix(f"{p}.attn_output.weight", (DIM, HEADS * HEAD), mix("Q6_K"))
    t.matrix(f"{p}.indexer.q_proj.weight", (INDEX_HEADS * INDEX_DIM, DIM), mix("BF16"))
    t.matrix(f"{p}.indexer.k_proj.weight", (INDEX_DIM, DIM), mix("BF16"))
    t.norm(f"{p}.indexer.q_norm.weight", INDEX_DIM)
    t.norm(f"{p}.indexer.k_norm.weight", INDEX_DIM)


def _experts(t: _Tensors, p: str, gate_up: str, down: str, draft: bool) -> None:
    shared = "Q8_0" if draft else "Q4_K"
    t.small(f"{p}.ffn_gate_inp.weight", EXPERTS, DIM)
    t.small(f"{p}.ffn_gate_inp_shexp.weight", DIM)
    t.matrix(f"{p}.ffn_gate_exps.weight", (EXPERTS, FFN, DIM), gate_up)
    t.matrix(f"{p}.ffn_up_exps.weight", (EXPERTS, FFN, DIM), gate_up)
    t.matrix(f"{p}.ffn_down_exps.weight", (EXPERTS, DIM, FFN), down)
    t.matrix(f"{p}.ffn_gate_shexp.weight", (FFN, DIM), shared)
    t.matrix(f"{p}.ffn_up_shexp.weight", (FFN, DIM), shared)
    t.matrix(f"{p}.ffn_down_shexp.weight", (DIM, FFN), "Q8_0")


def _hashed(t: _Tensors, p: str, rows: int) -> None:
    width = PLE_HEADS * PLE_DIM
    t.matrix("per_layer_token_embd.weight", (rows, PLE_DIM), "IQ4_NL", 1.0)
    t.matrix(f"{p}.ple_key.weight", (WIDE, width), "Q8_0")
    t.matrix(f"{p}.ple_value.weight", (DIM, width), "Q8_0")
    for part in ("key", "query", "conv"):
        t.norm(f"{p}.ple_norm_{part}.weight", WIDE)
    _conv(t, f"{p}.ple_conv1d.weight")


def _flash_tensors(t: _Tensors, layers: int, rows: int) -> None:
    t.matrix("token_embd.weight", (VOCAB, DIM), "Q6_K", 1.0)
    t.matrix("output.weight", (VOCAB, DIM), "Q6_K")
    _hyper(t, "output_hc", False)
    for i, gate_up, down in zip(range(layers), dealt(GATE_UP), dealt(DOWN), strict=False):
        p = f"blk.{i}"
        _hyper(t, f"{p}.hc_attn", True)
        _hyper(t, f"{p}.hc_ffn", True)
        if (i + 1) % EVERY:
            _recurrence(t, p)
        else:
            _attention(t, p, False)
        _experts(t, p, gate_up, down, False)
        if i == PLE_LAYER:
            _hashed(t, p, rows)
    p = f"blk.{layers}"
    t.norm(f"{p}.nextn.enorm.weight", DIM)
    t.norm(f"{p}.nextn.hnorm.weight", WIDE)
    t.matrix(f"{p}.nextn.eh_proj.weight", (DIM, 2 * DIM), "Q8_0")
    _hyper(t, f"{p}.nextn.hc_head", False, "Q8_0")
    _hyper(t, f"{p}.hc_attn", True, "Q8_0")
    _hyper(t, f"{p}.hc_ffn", True, "Q8_0")
    _attention(t, p, True)
    _experts(t, p, "Q8_0", "Q8_0", True)


def _flash_keys(layers: int, rows: int) -> Iterator[Key]:
    for key, n in (
        ("block_count", layers + 1), ("context_length", 262144), ("embedding_length", DIM),
        ("attention.head_count", HEADS), ("attention.head_count_kv", KV),
        ("attention.key_length", HEAD), ("attention.value_length", HEAD),
        ("rope.dimension_count", ROTATED), ("expert_count", EXPERTS), ("expert_used_count", USED),
        ("expert_feed_forward_length", FFN), ("expert_shared_feed_forward_length", FFN),
        ("ssm.conv_kernel", TAPS), ("ssm.state_size", STATE), ("ssm.group_count", KEY_HEADS),
        ("ssm.time_step_rank", VALUE_HEADS), ("ssm.inner_size", VALUE_HEADS * STATE),
        ("full_attention_interval", EVERY), ("hyper_connection.count", STREAMS),
        ("hyper_connection.low_rank", RANK), ("attention.indexer.head_count", INDEX_HEADS),
        ("attention.indexer.key_length", INDEX_DIM), ("attention.indexer.top_k", BUDGET),
        ("nextn_predict_layers", 1),
    ):  # fmt: skip
        yield key, n, "UINT32"
    yield "attention.layer_norm_rms_epsilon", 1e-6, "FLOAT32"
    yield "rope.freq_base", 1e7, "FLOAT32"
    yield "rope.dimension_sections", [11, 11, 10, 0], "INT32"
    ratios = [0 if (i + 1) % EVERY else RATIO for i in range(layers)]
    yield "attention.compress_ratios", [*ratios, 0], "INT32"
    if layers <= PLE_LAYER:
        return
    sizes = hash_sizes(rows)
    yield "ple.layers", [PLE_LAYER], "UINT32"
    for key, n in (("ple.ngram_size", ORDERS), ("ple.heads_per_ngram", PER_ORDER),
                   ("ple.conv_kernel", TAPS), ("ple.eos_token_id", PLE_EOS),
                   ("embedding_length_per_layer_input", PLE_DIM)):  # fmt: skip
        yield key, n, "UINT32"
    yield "ple.layer_multipliers", list(MULTIPLIERS), "UINT64"
    yield "ple.head_vocab_sizes", sizes, "UINT64"
    yield "ple.head_offsets", [0, *accumulate(sizes[:-1])], "UINT64"


# ---- dense models ------------------------------------------------------------------------------ #


@dataclass(frozen=True)
class Dense:
    """Geometry of a dense model."""

    arch: str
    dim: int
    layers: int
    heads: int
    kv: int
    head: int
    ffn: int
    vocab: int
    eps: float
    base: float
    more: tuple[Key, ...] = ()

    def tensors(self, t: _Tensors, layers: int) -> None:
        gemma, q, kv = self.arch == "gemma3", self.heads * self.head, self.kv * self.head
        # Gemma multiplies embeddings by sqrt(dim) and reads them again as its output.
        t.matrix("token_embd.weight", (self.vocab, self.dim), "", 0.0 if gemma else 1.0)
        t.norm("output_norm.weight", self.dim)
        if not gemma:
            t.matrix("output.weight", (self.vocab, self.dim), "")
            t.plain("rope_freqs.weight", (self.head // 2,), UNIFORM, 1.0, 8.0)
        for p in (f"blk.{i}" for i in range(layers)):
            t.norm(f"{p}.attn_norm.weight", self.dim)
            t.matrix(f"{p}.attn_q.weight", (q, self.dim), "")
            t.matrix(f"{p}.attn_k.weight", (kv, self.dim), "")
            t.matrix(f"{p}.attn_v.weight", (kv, self.dim), "")
            t.matrix(f"{p}.attn_output.weight", (self.dim, q), "")
            t.norm(f"{p}.ffn_norm.weight", self.dim)
            t.matrix(f"{p}.ffn_gate.weight", (self.ffn, self.dim), "")
            t.matrix(f"{p}.ffn_up.weight", (self.ffn, self.dim), "")
            t.matrix(f"{p}.ffn_down.weight", (self.dim, self.ffn), "")
            if gemma:
                t.norm(f"{p}.attn_q_norm.weight", self.head)
                t.norm(f"{p}.attn_k_norm.weight", self.head)
                t.norm(f"{p}.post_attention_norm.weight", self.dim)
                t.norm(f"{p}.post_ffw_norm.weight", self.dim)

    def keys(self, layers: int) -> Iterator[Key]:
        for key, n in (
            ("block_count", layers), ("context_length", 131072), ("embedding_length", self.dim),
            ("feed_forward_length", self.ffn), ("vocab_size", self.vocab),
            ("attention.head_count", self.heads), ("attention.head_count_kv", self.kv),
            ("attention.key_length", self.head), ("attention.value_length", self.head),
            ("rope.dimension_count", self.head),
        ):  # fmt: skip
            yield key, n, "UINT32"
        yield "attention.layer_norm_rms_epsilon", self.eps, "FLOAT32"
        yield "rope.freq_base", self.base, "FLOAT32"
        yield from self.more


DENSE = {
    "llama": Dense("llama", 4096, 32, 32, 8, 128, 14336, 128256, 1e-5, 5e5),
    "gemma3": Dense(
        "gemma3", 2560, 34, 8, 4, 256, 10240, 262144, 1e-6, 1e6,
        (("attention.sliding_window", 1024, "UINT32"),
         ("attention.sliding_window_pattern", 6, "UINT32"),
         ("rope.scaling.type", "linear", "STRING"), ("rope.scaling.factor", 8.0, "FLOAT32")),
    ),
}  # fmt: skip
MODELS = ("flash-next", *DENSE)

# ---- the directory ----------------------------------------------------------------------------- #

_IDS = {"UINT32": 4, "INT32": 5, "FLOAT32": 6, "STRING": 8, "ARRAY": 9, "UINT64": 10}
_CODES = {"UINT32": "<I", "INT32": "<i", "FLOAT32": "<f", "UINT64": "<Q"}


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any, type: str) -> bytes:
    if isinstance(value, list):
        head = struct.pack("<IIQ", _IDS["ARRAY"], _IDS[type], len(value))
        return head + b"".join(struct.pack(_CODES[type], x) for x in value)
    data = _text(value) if type == "STRING" else struct.pack(_CODES[type], value)
    return struct.pack("<I", _IDS[type]) + data


def directory(keys: list[Key], specs: list[Spec]) -> tuple[bytes, int]:
    """What a GGUF file of these keys and tensors has in front of its data, and its whole size."""
    types = _native.types()
    out = [b"GGUF", struct.pack("<IQQ", 3, len(specs), len(keys) + 1)]
    for key, value, type in [*keys, ("general.alignment", ALIGNMENT, "UINT32")]:
        out += [_text(key), _value(value, type)]
    at = 0
    for s in specs:
        type_id, elems, n_bytes = types[s.type]
        out += [_text(s.name), struct.pack("<I", len(s.shape))]
        out += [struct.pack("<Q", n) for n in reversed(s.shape)]
        out += [struct.pack("<IQ", type_id, at)]
        at += -(-prod(s.shape) // elems * n_bytes // ALIGNMENT) * ALIGNMENT
    head = b"".join(out)
    return head, -(-len(head) // ALIGNMENT) * ALIGNMENT + at


def assemble(
    label: str, keys: list[Key], specs: list[Spec], seed: int, threads: int | None = None
) -> Checkpoint:
    """A checkpoint of any keys and tensors."""
    head, size = directory(keys, specs)
    if threads is None:
        threads = len(os.sched_getaffinity(0))
    recipes = [(s.kind, s.a, s.b) for s in specs]
    return Checkpoint._of(_native.synthetic(label, head, size, seed, recipes, threads))


# ---- the interface ----------------------------------------------------------------------------- #


def _whole(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidArgumentError(f"{name}: expected a number {least} .. {most}, found {value!r}")


def _rows(model: str, layers: int, ple_rows: int | None) -> int:
    if ple_rows is None:
        return PLE_ROWS
    if model != "flash-next" or layers <= PLE_LAYER:
        raise InvalidArgumentError(
            f"ple_rows: expected for flash-next with at least {PLE_LAYER + 1} layers, "
            f"found {model} with {layers}"
        )
    _whole("ple_rows", ple_rows, PLE_HEADS, MAX_ROWS)
    return ple_rows


def synthetic(
    model: str,
    *,
    quant: str = "q8_0",
    layers: int | None = None,
    seed: int = 0,
    ple_rows: int | None = None,
) -> Checkpoint:
    """A checkpoint that has no file: the geometry of a released model, random weights.

    Weights are made when they are first needed, and are a function of seed and tensor alone. They
    are for measuring time, memory and traffic; text comes out of them only by accident, and there
    is no tokenizer: the engine runs on ids.

    Args:
        model: "flash-next" (with its draft head), "llama" (Llama 3.1 8B) or "gemma3" (Gemma 3 4B).
        quant: "q8_0", "q4_k" or "bf16" for all matrices, or, for flash-next, "iq3_s", a mix of
            types about 3 bits wide. Rows that a type does not divide get the usual stand-in.
        layers: the first so many layers only; by default all. flash-next has its hashed embedding
            from two layers on, and attention from four on.
        seed: 0 .. 2^64-1.
        ple_rows: rows of the table of hashed embeddings instead of the released 320,001,536.

    Raises:
        InvalidArgumentError: at once. OutOfMemoryError: when weights are first needed and do not
            fit in the memory that is there.
    """
    if model not in MODELS:
        raise InvalidArgumentError(f"model: expected {' or '.join(MODELS)}, found {model!r}")
    if quant not in QUANTS:
        raise InvalidArgumentError(f"quant: expected {' or '.join(QUANTS)}, found {quant!r}")
    most = LAYERS if model == "flash-next" else DENSE[model].layers
    n: int = most if layers is None else layers
    _whole("layers", n, 1, most)
    _whole("seed", seed, 0, 2**64 - 1)
    rows = _rows(model, n, ple_rows)
    label = f"synthetic:{model}-{quant}" + ("" if n == most else f"-{n}-layers")
    t = _Tensors(quant)
    if model == "flash-next":
        arch, keys = "qwen4exp", list(_flash_keys(n, rows))
        _flash_tensors(t, n, rows)
    else:
        if quant == "iq3_s":
            raise InvalidArgumentError(
                f"quant iq3_s: expected model flash-next, found {model}; it has q8_0, q4_k, bf16"
            )
        arch, keys = DENSE[model].arch, list(DENSE[model].keys(n))
        DENSE[model].tensors(t, n)
    general: list[Key] = [
        ("general.architecture", arch, "STRING"),
        ("general.name", f"{label}, seed {seed}", "STRING"),
    ]
    whole = [*general, *((f"{arch}.{key}", value, type) for key, value, type in keys)]
    return assemble(label, whole, t.specs, seed)
