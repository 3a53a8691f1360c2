"""Tiny checkpoints of the dense family with random weights, written by hand from a seed.

Blocks of quantised types are random codes with patched scales, so every type can appear whether or
not anybody has a quantiser for it. Scales are chosen so that activations stay of order one and
logits discriminate."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import decoder
import numpy as np

from blocks import IDS, NAMES, PLAIN, WEIGHTS, random_blocks, sizes
from gguf_bytes import ARRAY, BLOCKS, BOOL, F32, I32, STRING, U32, T, array, build, kv

F32_T, F16_T, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 = 0, 1, 2, 3, 6, 7, 8
Q4_K, Q5_K, Q6_K, BF16_T = 12, 13, 14, 30

ALL_TYPES = tuple({**PLAIN, **IDS}[name] for name in WEIGHTS)


@dataclass(frozen=True)
class Shape:
    """Geometry of a tiny model; `types` are dealt to the matrices in turn."""

    arch: str = "llama"
    dim: int = 256
    n_layer: int = 2
    n_head: int = 4
    n_kv: int = 2
    ffn: int = 512
    vocab: int = 320
    ctx: int = 512
    rope_base: float = 10000.0
    rope_scale: float = 1.0
    tied: bool = True
    bias: bool = False
    rope_factors: bool = False
    types: tuple[int, ...] = (Q4_1, Q8_0, Q6_K, Q4_K, Q5_0, F16_T, Q5_K, BF16_T, Q4_0, Q5_1, F32_T)
    extra: tuple[bytes, ...] = field(default=())

    @property
    def head_dim(self) -> int:
        return self.dim // self.n_head


def random_matrix(rng: np.random.Generator, kind: int, n_out: int, n_in: int, std: float) -> bytes:
    """n_out rows of n_in weights of type `kind` with a standard deviation near `std`."""
    if kind in (F32_T, F16_T, BF16_T):
        w = rng.normal(0, std, (n_out, n_in)).astype(np.float32)
        if kind == F32_T:
            return w.tobytes()
        if kind == F16_T:
            return w.astype(np.float16).tobytes()
        return ((w.view(np.uint32) + 0x8000) >> 16).astype(np.uint16).tobytes()
    name = NAMES[kind]
    return random_blocks(name, n_out * n_in // sizes(name)[0], std, rng).tobytes()


def tensors(shape: Shape, seed: int) -> list[T]:
    rng = np.random.default_rng(seed)
    kinds = list(shape.types)
    out: list[T] = []

    def matrix(name: str, n_out: int, n_in: int, gain: float = 1.0) -> None:
        kind = kinds[len(out) % len(kinds)]
        if n_in % BLOCKS[kind][0]:
            kind = F16_T
        data = random_matrix(rng, kind, n_out, n_in, gain / np.sqrt(n_in))
        out.append(T(name, (n_in, n_out), kind, data))

    def vector(name: str, n: int, mean: float, std: float) -> None:
        out.append(T(name, (n,), F32_T, rng.normal(mean, std, n).astype(np.float32).tobytes()))

    q, kv_dim = shape.n_head * shape.head_dim, shape.n_kv * shape.head_dim
    matrix("token_embd.weight", shape.vocab, shape.dim, np.sqrt(shape.dim))
    vector("output_norm.weight", shape.dim, 1, 0.2)
    if not shape.tied:
        matrix("output.weight", shape.vocab, shape.dim, 3.0)
    if shape.rope_factors:
        factors = rng.uniform(1, 8, shape.head_dim // 2).astype(np.float32)
        out.append(T("rope_freqs.weight", (len(factors),), F32_T, factors.tobytes()))
    for i in range(shape.n_layer):
        vector(f"blk.{i}.attn_norm.weight", shape.dim, 1, 0.2)
        for part, n in (("q", q), ("k", kv_dim), ("v", kv_dim)):
            matrix(f"blk.{i}.attn_{part}.weight", n, shape.dim, 1.5)
            if shape.bias:
                vector(f"blk.{i}.attn_{part}.bias", n, 0, 0.3)
        if shape.arch in ("qwen3", "gemma3"):
            vector(f"blk.{i}.attn_q_norm.weight", shape.head_dim, 1, 0.2)
            vector(f"blk.{i}.attn_k_norm.weight", shape.head_dim, 1, 0.2)
        if shape.arch == "gemma3":
            vector(f"blk.{i}.post_attention_norm.weight", shape.dim, 1, 0.2)
            vector(f"blk.{i}.post_ffw_norm.weight", shape.dim, 1, 0.2)
        matrix(f"blk.{i}.attn_output.weight", shape.dim, q)
        vector(f"blk.{i}.ffn_norm.weight", shape.dim, 1, 0.2)
        matrix(f"blk.{i}.ffn_gate.weight", shape.ffn, shape.dim, 1.5)
        matrix(f"blk.{i}.ffn_up.weight", shape.ffn, shape.dim, 1.5)
        matrix(f"blk.{i}.ffn_down.weight", shape.dim, shape.ffn)
    return out


def keys(shape: Shape) -> list[bytes]:
    out = [
        kv("general.architecture", STRING, shape.arch),
        kv(f"{shape.arch}.block_count", U32, shape.n_layer),
        kv(f"{shape.arch}.context_length", U32, shape.ctx),
        kv(f"{shape.arch}.embedding_length", U32, shape.dim),
        kv(f"{shape.arch}.feed_forward_length", U32, shape.ffn),
        kv(f"{shape.arch}.attention.head_count", U32, shape.n_head),
        kv(f"{shape.arch}.attention.head_count_kv", U32, shape.n_kv),
        kv(f"{shape.arch}.attention.layer_norm_rms_epsilon", F32, 1e-5),
        kv(f"{shape.arch}.rope.freq_base", F32, shape.rope_base),
    ]
    if shape.rope_scale != 1.0:
        out += [
            kv(f"{shape.arch}.rope.scaling.type", STRING, "linear"),
            kv(f"{shape.arch}.rope.scaling.factor", F32, 1 / shape.rope_scale),
        ]
    if shape.arch == "gemma3":
        family = decoder.FAMILIES["gemma3"]
        out += [
            kv("gemma3.attention.sliding_window", U32, family.window),
            kv("gemma3.attention.sliding_window_pattern", U32, family.pattern),
        ]
    return out + list(shape.extra)


def byte_tokenizer(vocab: int) -> list[bytes]:
    """Keys of a byte-level BPE vocabulary without merges: 256 bytes, two control tokens, unused."""
    codes = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    table = {b: chr(b) for b in codes}
    table |= {b: chr(0x100 + i) for i, b in enumerate(b for b in range(256) if b not in table)}
    tokens = [table[b] for b in range(256)] + ["<|eos|>", "<|im_start|>", "<|im_end|>"]
    tokens += [f"[PAD{i}]" for i in range(len(tokens), vocab)]
    types = [1] * 256 + [3] * 3 + [5] * (vocab - 259)
    return [
        kv("tokenizer.ggml.model", STRING, "gpt2"),
        kv("tokenizer.ggml.pre", STRING, "gpt-2"),
        kv("tokenizer.ggml.tokens", ARRAY, raw=array(STRING, tokens)),
        kv("tokenizer.ggml.token_type", ARRAY, raw=array(I32, types)),
        kv("tokenizer.ggml.merges", ARRAY, raw=array(STRING, [])),
        kv("tokenizer.ggml.eos_token_id", U32, 256),
        kv("tokenizer.ggml.add_bos_token", BOOL, 0),
    ]


def write(path: Path, shape: Shape = Shape(), seed: int = 0, tokenizer: bool = True) -> Path:  # noqa: B008
    head = keys(shape) + (byte_tokenizer(shape.vocab) if tokenizer else [])
    path.write_bytes(build(head, tensors(shape, seed)))
    return path
