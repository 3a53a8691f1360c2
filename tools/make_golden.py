"""Reference logits of a GGUF model by Hugging Face transformers, in float32 on the CPU.

The weights are those of the GGUF file, decoded by the `gguf` package (not by this project) and put
back into the Hugging Face layout: query and key rows, which files of `llama` hold permuted for
neighbouring rotary pairs, are unpermuted, and 1 is taken off the norms of `gemma3`. Kept, to stay
small: of each prompt's last row at most 49152 evenly spaced columns, of the last 64 rows about 512. With
`--compare` the engine runs beside it and the errors over all rows and columns are printed and stored.

    python tools/make_golden.py MODEL.gguf tests/data/smollm2_golden.npz [--compare]

Needs torch, transformers and gguf, none of which the project needs otherwise."""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
from pathlib import Path

import numpy as np

PROMPTS = {
    "prose": "The old lighthouse keeper climbed the stairs every evening, because",
    "code": "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "other script": "Привет, как дела? 你好，世界。 Olá!",
}
ROWS = 64
LONG = "gemma3"  # has windows, so one prompt is longer than a window


def strides(vocab: int) -> tuple[int, int]:
    """Column strides of the last row and of the last ROWS rows."""
    return max(1, vocab // 49152), max(1, vocab // 506)


def decoded(path: str) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    from gguf import GGUFReader
    from gguf.quants import dequantize

    reader = GGUFReader(path)
    tensors = {}
    for t in reader.tensors:
        shape = tuple(int(n) for n in reversed(t.shape))
        tensors[t.name] = dequantize(t.data, t.tensor_type).reshape(shape).astype(np.float32)
    keys = {name: field.contents() for name, field in reader.fields.items()}
    return tensors, keys


def unpermute(w: np.ndarray, heads: int) -> np.ndarray:
    """GGUF row h*d + 2j + s comes from row h*d + s*d/2 + j."""
    out, n_in = w.shape
    return w.reshape(heads, out // heads // 2, 2, n_in).swapaxes(1, 2).reshape(out, n_in)


PARTS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
         "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj"}  # fmt: skip
GEMMA = {**PARTS, "ffn_norm": "pre_feedforward_layernorm",
         "post_attention_norm": "post_attention_layernorm",
         "post_ffw_norm": "post_feedforward_layernorm", "attn_q_norm": "self_attn.q_norm",
         "attn_k_norm": "self_attn.k_norm"}  # fmt: skip


def reference(path: str):  # noqa: ANN201
    import torch

    t, k = decoded(path)
    arch = k["general.architecture"]
    model = {"llama": llama, "gemma3": gemma3}[arch](t, k).to(torch.float32).eval()
    parts = GEMMA if arch == "gemma3" else PARTS
    state = {"model.embed_tokens.weight": t["token_embd.weight"],
             "lm_head.weight": t["token_embd.weight"],
             "model.norm.weight": t["output_norm.weight"]}  # fmt: skip
    for name, w in t.items():
        if name.startswith("blk."):
            _, layer, part, _ = name.split(".")
            if arch == "llama" and part in ("attn_q", "attn_k"):
                heads = "head_count" if part == "attn_q" else "head_count_kv"
                w = unpermute(w, k[f"llama.attention.{heads}"])
            state[f"model.layers.{layer}.{parts[part]}.weight"] = w
    if arch == "gemma3":
        state = {n: w - 1 if "norm" in n else w for n, w in state.items()}
    missing = model.load_state_dict({n: torch.tensor(w) for n, w in state.items()}, strict=False)
    assert not missing.unexpected_keys, missing
    assert not [n for n in missing.missing_keys if "rotary" not in n], missing
    return model


def common(t: dict[str, np.ndarray], k: dict[str, object]) -> dict[str, object]:
    arch = k["general.architecture"]
    return {
        "vocab_size": t["token_embd.weight"].shape[0],
        "hidden_size": k[f"{arch}.embedding_length"],
        "intermediate_size": k[f"{arch}.feed_forward_length"],
        "num_hidden_layers": k[f"{arch}.block_count"],
        "num_attention_heads": k[f"{arch}.attention.head_count"],
        "num_key_value_heads": k[f"{arch}.attention.head_count_kv"],
        "max_position_embeddings": k[f"{arch}.context_length"],
        "rms_norm_eps": k[f"{arch}.attention.layer_norm_rms_epsilon"],
        "tie_word_embeddings": True,
        "attn_implementation": "eager",
    }


def llama(t: dict[str, np.ndarray], k: dict[str, object]):  # noqa: ANN201
    from transformers import LlamaConfig, LlamaForCausalLM

    base = k["llama.rope.freq_base"]
    model = LlamaForCausalLM(LlamaConfig(**common(t, k), rope_theta=base))
    theta = getattr(model.config, "rope_parameters", None) or model.config.to_dict()
    assert float(theta["rope_theta"]) == float(base)
    return model


def gemma3(t: dict[str, np.ndarray], k: dict[str, object]):  # noqa: ANN201
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    n, head = k["gemma3.block_count"], k["gemma3.attention.key_length"]
    kinds = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(n)]
    base = {"full_attention": k["gemma3.rope.freq_base"], "sliding_attention": 10000.0}
    config = Gemma3TextConfig(
        **common(t, k), head_dim=head, query_pre_attn_scalar=head, layer_types=kinds,
        sliding_window=k["gemma3.attention.sliding_window"],
        rope_parameters={n: {"rope_type": "default", "rope_theta": x} for n, x in base.items()},
    )  # fmt: skip
    assert {n: p["rope_theta"] for n, p in config.rope_parameters.items()} == base
    assert config.layer_types == kinds and config.final_logit_softcapping is None
    return Gemma3ForCausalLM(config)


def main() -> None:
    import torch
    import transformers

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--ids", type=Path, help="JSON of {prompt name: token ids}")
    parser.add_argument("--compare", action="store_true")
    args = parser.parse_args()
    ids = json.loads(args.ids.read_text()) if args.ids else own_ids(args.model)
    model = reference(args.model)
    rows = {}
    with torch.no_grad():
        for name, tokens in ids.items():
            rows[name] = model(torch.tensor([tokens])).logits[0].numpy()
    provenance = {
        "by": "tools/make_golden.py",
        "model_sha256": hashlib.sha256(Path(args.model).read_bytes()).hexdigest(),
        "dtype": "float32", "device": "cpu", "attention": "eager",
        "torch": torch.__version__, "transformers": transformers.__version__,
        "numpy": np.__version__, "python": platform.python_version(),
        "strides": strides(next(iter(rows.values())).shape[1]), "prompts": PROMPTS,
    }  # fmt: skip
    if args.compare:
        provenance["compared"] = compare(args.model, ids, rows)
        print(json.dumps(provenance["compared"], indent=1))
    arrays: dict[str, np.ndarray] = {"provenance": np.array(json.dumps(provenance))}
    for i, (name, x) in enumerate(rows.items()):
        last, every = strides(x.shape[1])
        arrays |= {f"{i}.name": np.array(name), f"{i}.ids": np.array(ids[name], np.int32),
                   f"{i}.last": x[-1, ::last], f"{i}.columns": x[-ROWS:, ::every],
                   f"{i}.row_max": np.abs(x).max(1), f"{i}.argmax": x.argmax(1).astype(np.int32)}  # fmt: skip
    args.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(args.out, **arrays)
    print(f"{args.out}: {args.out.stat().st_size} bytes")


def own_ids(path: str) -> dict[str, list[int]]:
    from stoker import Engine

    with Engine(path) as engine:
        ids = {name: engine.encode(text).tolist() for name, text in PROMPTS.items()}
        if engine.config["architecture"] == LONG:
            text = " ".join(f"Line {i}: {PROMPTS['prose']}" for i in range(40))
            ids["longer than a window"] = engine.encode(text).tolist()[:600]
    return ids


def compare(path: str, ids: dict[str, list[int]], want: dict[str, np.ndarray]) -> dict[str, object]:
    """Errors relative to each row's largest magnitude, over all rows and columns."""
    from stoker import Engine

    out: dict[str, object] = {}
    for numerics in ("f32", "bf16"):
        with Engine(path, numerics=numerics) as engine:
            for name, tokens in ids.items():
                got, ref = engine.evaluate(tokens)["logits"], want[name]
                error = np.abs(got - ref).max(1) / np.abs(ref).max(1)
                out[f"{numerics}, {name}"] = {
                    "rows": len(tokens), "max": float(error.max()), "median": float(np.median(error)),
                    "argmax_equal": int((got.argmax(1) == ref.argmax(1)).sum()),
                }  # fmt: skip
    return out


if __name__ == "__main__":
    main()
