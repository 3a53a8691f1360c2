"""The llama architecture in float64 NumPy, from its description alone: no kernel code, no plan.

    x = E[token]
    per layer:  x += Wo attention(rope(Wq h), rope(Wk h), Wv h),  h = rms(x) * attn_norm
                x += Wdown (silu(Wgate h) * (Wup h)),             h = rms(x) * ffn_norm
    logits = Wout (rms(x) * output_norm)

Rotary positions turn the pairs (2i, 2i+1) by pos * base^(-2i/n)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def rms(x: Array, gain: Array, eps: float) -> Array:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * gain


def rope(x: Array, angle: Array) -> Array:
    """x [T, H, D], angle [T, D/2]."""
    a, b = x[..., 0::2], x[..., 1::2]
    c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
    out = np.empty_like(x)
    out[..., 0::2], out[..., 1::2] = a * c - b * s, a * s + b * c
    return out


def attention(q: Array, k: Array, v: Array) -> Array:
    """Causal, grouped: q [T, H, D], k and v [T, G, D]."""
    t, heads, d = q.shape
    k, v = (np.repeat(z, heads // z.shape[1], axis=1) for z in (k, v))
    scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(d)
    scores[:, np.triu(np.ones((t, t), bool), 1)] = -np.inf
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return np.einsum("hts,shd->thd", p, v).reshape(t, heads * d)


def forward(
    weights: Mapping[str, Array],
    ids: Array,
    *,
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
    t, d = len(ids), w["blk.0.attn_q.weight"].shape[0] // n_head
    freq = base ** (-np.arange(0, d, 2) / d) * scale / w.get("rope_freqs.weight", 1.0)
    angle = np.arange(t)[:, None] * freq
    layers = []

    def linear(name: str, y: Array) -> Array:
        return y @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    i = 0
    while f"blk.{i}.attn_norm.weight" in w:
        blk = f"blk.{i}"
        h = rms(x, w[f"{blk}.attn_norm.weight"], eps)
        q = linear(f"{blk}.attn_q", h).reshape(t, n_head, d)
        k, v = (linear(f"{blk}.attn_{z}", h).reshape(t, n_kv, d) for z in "kv")
        x = x + linear(f"{blk}.attn_output", attention(rope(q, angle), rope(k, angle), v))
        h = rms(x, w[f"{blk}.ffn_norm.weight"], eps)
        gate, up = linear(f"{blk}.ffn_gate", h), linear(f"{blk}.ffn_up", h)
        x = x + linear(f"{blk}.ffn_down", gate / (1 + np.exp(-gate)) * up)
        layers.append(x)
        i += 1
    head = w.get("output.weight", w["token_embd.weight"])
    return rms(x, w["output_norm.weight"], eps) @ head.T, layers
