"""The dense decoder family (llama, qwen2, qwen3, gemma3) in float64 NumPy, from its description alone:
no kernel code, no plan.

    x = E[token] * embedding scale
    per layer:  x += post(Wo attention(rope(q), rope(k), Wv h)),   h = rms(x) * attn_norm
                x += post(Wdown (act(Wgate h) * (Wup h))),         h = rms(x) * ffn_norm
    logits = Wout (rms(x) * output_norm)

Rotary positions turn the pairs (2i, 2i+1), or (i, i + n/2) where `neox`, by pos * base^(-2i/n). Norms
of q and k and the norms called post exist where their weights do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Family:
    """What differs between the members. `window` 0: every layer sees everything; else layer i slides
    unless i % pattern == pattern - 1, with a rotary base of its own."""

    neox: bool = False
    gelu: bool = False
    embd_scale: bool = False
    window: int = 0
    pattern: int = 6
    local_base: float = 10000.0


FAMILIES = {
    "llama": Family(),
    "qwen2": Family(neox=True),
    "qwen3": Family(neox=True),
    "gemma3": Family(neox=True, gelu=True, embd_scale=True, window=8, pattern=3),
}


def rms(x: Array, gain: Array, eps: float) -> Array:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * gain


def rope(x: Array, angle: Array, neox: bool) -> Array:
    """x [T, H, D], angle [T, D/2]."""
    n = angle.shape[1]
    first = np.arange(n) if neox else np.arange(0, 2 * n, 2)
    second = first + n if neox else first + 1
    a, b = x[..., first], x[..., second]
    c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
    out = np.empty_like(x)
    out[..., first], out[..., second] = a * c - b * s, a * s + b * c
    return out


def attention(q: Array, k: Array, v: Array, window: int) -> Array:
    """Causal, grouped, in a window of positions (0: all): q [T, H, D], k and v [T, G, D]."""
    t, heads, d = q.shape
    k, v = (np.repeat(z, heads // z.shape[1], axis=1) for z in (k, v))
    scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(d)
    back = np.arange(t)[:, None] - np.arange(t)
    scores[:, (back < 0) | (back >= (window or t))] = -np.inf
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return np.einsum("hts,shd->thd", p, v).reshape(t, heads * d)


def activation(x: Array, gelu: bool) -> Array:
    if gelu:
        return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return x / (1 + np.exp(-x))


def forward(
    weights: Mapping[str, Array],
    ids: Array,
    *,
    family: Family,
    n_head: int,
    n_kv: int,
    eps: float,
    base: float,
    scale: float = 1.0,
) -> tuple[Array, list[Array]]:
    """Logits [T, V] and the residual stream [T, H] after each layer, all float64.

    weights: decoded tensors by their GGUF names, matrices [out, in]."""
    w = {k: v.astype(np.float64) for k, v in weights.items()}
    x = w["token_embd.weight"][ids]
    if family.embd_scale:
        x = x * np.sqrt(x.shape[1])
    t, d = len(ids), w["blk.0.attn_q.weight"].shape[0] // n_head
    turns = np.arange(0, d, 2) / d
    whole = base**-turns * scale / w.get("rope_freqs.weight", 1.0)
    local = family.local_base**-turns
    layers: list[Array] = []

    def linear(name: str, y: Array) -> Array:
        return y @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    def norm(name: str, y: Array) -> Array:
        gain = w.get(f"{name}.weight")
        return y if gain is None else rms(y, gain, eps)

    while f"blk.{len(layers)}.attn_norm.weight" in w:
        i, blk = len(layers), f"blk.{len(layers)}"
        slides = family.window > 0 and i % family.pattern < family.pattern - 1
        angle = np.arange(t)[:, None] * (local if slides else whole)
        h = norm(f"{blk}.attn_norm", x)
        q = linear(f"{blk}.attn_q", h).reshape(t, n_head, d)
        k, v = (linear(f"{blk}.attn_{z}", h).reshape(t, n_kv, d) for z in "kv")
        q, k = norm(f"{blk}.attn_q_norm", q), norm(f"{blk}.attn_k_norm", k)
        q, k = rope(q, angle, family.neox), rope(k, angle, family.neox)
        a = linear(f"{blk}.attn_output", attention(q, k, v, family.window if slides else 0))
        x = x + norm(f"{blk}.post_attention_norm", a)
        h = norm(f"{blk}.ffn_norm", x)
        gate, up = linear(f"{blk}.ffn_gate", h), linear(f"{blk}.ffn_up", h)
        f = linear(f"{blk}.ffn_down", activation(gate, family.gelu) * up)
        x = x + norm(f"{blk}.post_ffw_norm", f)
        layers.append(x)
    head = w.get("output.weight", w["token_embd.weight"])
    return norm("output_norm", x) @ head.T, layers
