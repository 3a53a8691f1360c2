"""The llama architecture in float64 NumPy from a Hugging Face folder's own words: names, config.json,
half-split rotary pairs and the rule "llama3". Written apart from oracle/llama.py and the loader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def inverse_frequencies(config: Mapping[str, Any], d: int) -> Array:
    inv = 1.0 / float(config["rope_theta"]) ** (np.arange(0, d, 2) / d)
    rule = config.get("rope_scaling") or {}
    if rule.get("rope_type") != "llama3":
        return inv
    old = rule["original_max_position_embeddings"]
    low, high = rule["low_freq_factor"], rule["high_freq_factor"]
    wave = 2 * np.pi / inv
    smooth = (old / wave - low) / (high - low)
    mixed = (1 - smooth) * inv / rule["factor"] + smooth * inv
    out = np.where(wave > old / low, inv / rule["factor"], inv)
    return np.where((wave <= old / low) & (wave >= old / high), mixed, out)


def forward(weights: Mapping[str, Array], config: Mapping[str, Any], ids: Array) -> Array:
    """Logits [T, V], float64."""
    w = {k: v.astype(np.float64) for k, v in weights.items()}
    n_head, n_kv = config["num_attention_heads"], config["num_key_value_heads"]
    d, t = config["hidden_size"] // n_head, len(ids)
    angle = np.arange(t)[:, None] * inverse_frequencies(config, d)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]

    def rms(x: Array, name: str) -> Array:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * w[name]

    def linear(name: str, x: Array) -> Array:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    def rotate(x: Array) -> Array:
        a, b = x[..., : d // 2], x[..., d // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    x = w["model.embed_tokens.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        h = rms(x, f"{layer}.input_layernorm.weight")
        q = rotate(linear(f"{layer}.self_attn.q_proj", h).reshape(t, n_head, d))
        k = rotate(linear(f"{layer}.self_attn.k_proj", h).reshape(t, n_kv, d))
        v = linear(f"{layer}.self_attn.v_proj", h).reshape(t, n_kv, d)
        k, v = (np.repeat(z, n_head // n_kv, axis=1) for z in (k, v))
        scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(d)
        scores[:, np.triu(np.ones((t, t), bool), 1)] = -np.inf
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        x = x + linear(f"{layer}.self_attn.o_proj", np.einsum("hts,shd->thd", p, v).reshape(t, -1))
        h = rms(x, f"{layer}.post_attention_layernorm.weight")
        gate, up = linear(f"{layer}.mlp.gate_proj", h), linear(f"{layer}.mlp.up_proj", h)
        x = x + linear(f"{layer}.mlp.down_proj", gate / (1 + np.exp(-gate)) * up)
    head = "model.embed_tokens" if config["tie_word_embeddings"] else "lm_head"
    return rms(x, "model.norm.weight") @ w[f"{head}.weight"].T
