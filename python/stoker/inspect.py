"""What a checkpoint holds, as plain data: the tables behind `stoker inspect`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .checkpoint import printable

if TYPE_CHECKING:
    from .checkpoint import Checkpoint, Tensor

_TEXT_MAX = 72
_ITEMS_MAX = 3


def _part_of_hf(segments: list[str]) -> str:
    if any("norm" in s for s in segments):
        return "norm"
    parts = {
        "embed_tokens": "embedding", "lm_head": "output", "self_attn": "attention",
        "linear_attn": "recurrent", "mtp": "mtp", "experts": "experts", "gate": "router",
        "mlp": "ffn",
    }  # fmt: skip
    for key, part in parts.items():
        if key in segments:
            return part
    return "other"


def part_of(name: str) -> str:
    """The part of a model that a tensor belongs to, by its name: embedding, attention, ..."""
    segments = name.split(".")
    if "layers" in segments or segments[0] in ("model", "lm_head"):
        return _part_of_hf(segments)
    leaf = segments[2] if segments[0] == "blk" and len(segments) > 2 else segments[0]
    if leaf == "nextn":
        return "mtp"
    if "norm" in leaf:
        return "norm"
    if leaf in ("token_embd", "token_types", "position_embd", "per_layer_token_embd"):
        return "embedding"
    if leaf == "output":
        return "output"
    if leaf.startswith("attn"):
        return "attention"
    if leaf.startswith(("ssm", "shortconv")):
        return "recurrent"
    if leaf.startswith("ffn"):
        if "gate_inp" in leaf or leaf.startswith("ffn_exp_probs"):
            return "router"
        return "experts" if leaf.endswith("_exps") else "ffn"
    return "other"


def abbreviate(value: Any) -> str:
    """A metadata value in one printable line; long strings and arrays by their beginning."""
    if isinstance(value, str):
        text = printable(value[: _TEXT_MAX + 1])
        return text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 3] + "..."
    if isinstance(value, (bool, int, float)):
        return str(value)
    kind = "string" if isinstance(value, list) else str(value.dtype)
    shown = [
        abbreviate(item)[:_TEXT_MAX] if isinstance(item, str) else str(item)
        for item in value[:_ITEMS_MAX]
    ]
    dots = ", ..." if len(value) > _ITEMS_MAX else ""
    return f"[{len(value)} x {kind}] {', '.join(shown)}{dots}".rstrip()


def _row(t: Tensor) -> dict[str, Any]:
    return {
        "name": t.name,
        "part": part_of(t.name),
        "type": t.type,
        "shape": list(t.shape),
        "parameters": t.size,
        "bytes": t.nbytes,
        "bits_per_weight": 8 * t.nbytes / t.size if t.size else 0.0,
        "offset": t.offset,
    }


def inspect_rows(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """One dict a tensor, in file order."""
    return [_row(t) for t in checkpoint.values()]


def type_rows(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """One dict a block: "block", and for each part of the model the types of its tensors in it."""
    sizes: dict[str, dict[str, dict[str, int]]] = {}
    for t in checkpoint.values():
        words = t.name.split(".")
        number = next((w for w in words[:-1] if w.isdecimal()), "")
        of_part = sizes.setdefault(number, {}).setdefault(part_of(t.name), {})
        of_part[t.type] = of_part.get(t.type, 0) + t.nbytes
    parts = sorted({part for block in sizes.values() for part in block})
    return [
        {"block": number}
        | {p: " ".join(sorted(b, key=lambda t: -b[t])) for p in parts for b in [block.get(p, {})]}
        for number, block in sorted(sizes.items(), key=lambda item: int(item[0] or -1))
    ]


def _shares(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    groups: dict[str, dict[str, Any]] = {}
    total = sum(row["bytes"] for row in rows)
    for row in rows:
        group = groups.setdefault(
            row[key], {key: row[key], "tensors": 0, "parameters": 0, "bytes": 0}
        )
        group["tensors"] += 1
        group["parameters"] += row["parameters"]
        group["bytes"] += row["bytes"]
    for group in groups.values():
        group["share"] = group["bytes"] / (total or 1)
        group["bits_per_weight"] = 8 * group["bytes"] / (group["parameters"] or 1)
    return sorted(groups.values(), key=lambda group: -group["bytes"])


def inspect_summary(checkpoint: Checkpoint) -> dict[str, Any]:
    """Sizes, the mix of types, bytes by part of the model, and metadata in short; JSON-able.

    `unclaimed_bytes` counts what is neither header, tensor nor the padding that alignment needs:
    gaps and trailing data.
    """
    rows = inspect_rows(checkpoint)
    n = sum(row["parameters"] for row in rows)
    n_bytes = sum(row["bytes"] for row in rows)
    align = checkpoint.alignment
    padded = sum(-(-row["bytes"] // align) * align for row in rows)
    firsts = dict(checkpoint._file_sizes)  # a file without tensors is all directory
    for t in checkpoint.values():
        firsts[t.file] = min(firsts[t.file], t.offset)
    first = sum(firsts.values())
    config = checkpoint.config or {}
    return {
        "path": checkpoint.path,
        "format": checkpoint.format,
        "files": len(checkpoint.files),
        "architecture": printable(checkpoint.architecture or "unknown"),
        "name": abbreviate(str(checkpoint.metadata.get("general.name", ""))),
        "gguf_version": checkpoint.version,
        "alignment": align,
        "file_bytes": checkpoint.file_bytes,
        "directory_bytes": first,
        "unclaimed_bytes": max(0, checkpoint.file_bytes - first - padded),
        "tensors": len(rows),
        "parameters": n,
        "bytes": n_bytes,
        "bits_per_weight": 8 * n_bytes / n if n else None,
        "types": _shares(rows, "type"),
        "parts": _shares(rows, "part"),
        "metadata": [
            {"key": printable(key), "value": abbreviate(value)}
            for key, value in checkpoint.metadata.items()
        ],
        "config": [
            {"key": printable(key), "value": abbreviate(json.dumps(value))}
            for key, value in config.items()
        ],
    }
