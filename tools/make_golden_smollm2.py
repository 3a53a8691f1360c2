"""Reference logits of SmolLM2-135M-Instruct by Hugging Face transformers, in float32 on the CPU.

The weights are those of the GGUF file, decoded by the `gguf` package (not by this project) and put
back into the Hugging Face layout: the query and key rows, which GGUF files of this architecture hold
permuted for neighbouring rotary pairs, are unpermuted. Kept, to stay small: the whole last row of
each prompt, and every 97th column of all rows. With `--compare` the engine runs beside it and the
errors over all rows and columns are printed and stored.

    python tools/make_golden_smollm2.py MODEL.gguf tests/data/smollm2_golden.npz [--compare]

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
STRIDE = 97


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


def reference(path: str):  # noqa: ANN201
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    t, k = decoded(path)
    heads, kv = k["llama.attention.head_count"], k["llama.attention.head_count_kv"]
    config = LlamaConfig(
        vocab_size=t["token_embd.weight"].shape[0],
        hidden_size=k["llama.embedding_length"],
        intermediate_size=k["llama.feed_forward_length"],
        num_hidden_layers=k["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=kv,
        max_position_embeddings=k["llama.context_length"],
        rms_norm_eps=k["llama.attention.layer_norm_rms_epsilon"],
        rope_theta=k["llama.rope.freq_base"],
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).to(torch.float32).eval()
    names = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
             "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
             "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
             "ffn_down": "mlp.down_proj"}  # fmt: skip
    state = {"model.embed_tokens.weight": t["token_embd.weight"],
             "lm_head.weight": t["token_embd.weight"],
             "model.norm.weight": t["output_norm.weight"]}  # fmt: skip
    for name, w in t.items():
        if name.startswith("blk."):
            _, layer, part, _ = name.split(".")
            w = unpermute(w, heads) if part == "attn_q" else w
            w = unpermute(w, kv) if part == "attn_k" else w
            state[f"model.layers.{layer}.{names[part]}.weight"] = w
    missing = model.load_state_dict({n: torch.tensor(w) for n, w in state.items()}, strict=False)
    assert not missing.unexpected_keys and not [
        n for n in missing.missing_keys if "rotary" not in n
    ]
    theta = getattr(model.config, "rope_parameters", None) or {}
    assert float(theta.get("rope_theta", model.config.to_dict().get("rope_theta"))) == float(
        k["llama.rope.freq_base"]
    )
    return model


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
        "by": "tools/make_golden_smollm2.py",
        "model_sha256": hashlib.sha256(Path(args.model).read_bytes()).hexdigest(),
        "dtype": "float32", "device": "cpu", "attention": "eager",
        "torch": torch.__version__, "transformers": transformers.__version__,
        "numpy": np.__version__, "python": platform.python_version(), "stride": STRIDE,
        "prompts": PROMPTS,
    }  # fmt: skip
    if args.compare:
        provenance["compared"] = compare(args.model, ids, rows)
        print(json.dumps(provenance["compared"], indent=1))
    arrays: dict[str, np.ndarray] = {"provenance": np.array(json.dumps(provenance))}
    for i, (name, x) in enumerate(rows.items()):
        arrays |= {f"{i}.name": np.array(name), f"{i}.ids": np.array(ids[name], np.int32),
                   f"{i}.last": x[-1], f"{i}.columns": x[:, ::STRIDE],
                   f"{i}.row_max": np.abs(x).max(1), f"{i}.argmax": x.argmax(1).astype(np.int32)}  # fmt: skip
    args.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(args.out, **arrays)
    print(f"{args.out}: {args.out.stat().st_size} bytes")


def own_ids(path: str) -> dict[str, list[int]]:
    from stoker import Engine

    with Engine(path) as engine:
        return {name: engine.encode(text).tolist() for name, text in PROMPTS.items()}


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
