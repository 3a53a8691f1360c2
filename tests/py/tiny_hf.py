"""The tiny models of tiny.py as Hugging Face folders: the same weights under the other names, with
the rows of q and k in the other order where the architecture has two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tiny
from sft_bytes import build, write_shards

TYPES = {tiny.F32_T: ("F32", "<f4"), tiny.F16_T: ("F16", "<f2"), tiny.BF16_T: ("BF16", "<u2")}
PLAIN = (tiny.F32_T, tiny.BF16_T, tiny.F16_T)

OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
         "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
         "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}  # fmt: skip
GEMMA = LAYER | {"post_attention_norm": "post_attention_layernorm",
                 "ffn_norm": "pre_feedforward_layernorm",
                 "post_ffw_norm": "post_feedforward_layernorm"}  # fmt: skip


def name(gguf: str, layer: dict[str, str] = LAYER) -> str:
    parts = gguf.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{layer[parts[2]]}.{parts[3]}"
    return f"{OUTER[parts[0]]}.{parts[1]}"


def halves(w: np.ndarray, n_head: int) -> np.ndarray:
    """Rows of pairs (2i, 2i+1) put in the order of pairs (i, i + n/2)."""
    return w.reshape(n_head, -1, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def tensors(shape: tiny.Shape, seed: int) -> dict[str, tuple[str, np.ndarray]]:
    out = {}
    for t in tiny.tensors(shape, seed):
        kind, dtype = TYPES[t.type]
        w = np.frombuffer(t.data, dtype).reshape(t.ne[::-1])
        heads = {"attn_q": shape.n_head, "attn_k": shape.n_kv}.get(t.name.split(".")[-2], 0)
        out[name(t.name)] = (kind, halves(w, heads) if heads else w)
    return out


def config(shape: tiny.Shape, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "llama", "num_hidden_layers": shape.n_layer, "hidden_size": shape.dim,
        "max_position_embeddings": shape.ctx, "intermediate_size": shape.ffn,
        "num_attention_heads": shape.n_head, "num_key_value_heads": shape.n_kv,
        "rms_norm_eps": 1e-05, "rope_theta": shape.rope_base, "vocab_size": shape.vocab,
        "tie_word_embeddings": shape.tied, "hidden_act": "silu", "torch_dtype": "bfloat16",
        "rope_scaling": None, "architectures": ["LlamaForCausalLM"], "pad_token_id": None,
    } | more  # fmt: skip


def write(
    folder: Path,
    weights: dict[str, tuple[str, np.ndarray]],
    settings: dict[str, Any],
    files: int = 1,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if files > 1:
        write_shards(folder, weights, files)
    else:
        (folder / "model.safetensors").write_bytes(build(weights))
    (folder / "config.json").write_text(json.dumps(settings, indent=1))
    return folder
