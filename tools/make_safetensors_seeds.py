"""Writes small valid safetensors and JSON files, seeds of two fuzz targets:
`make_safetensors_seeds.py FOLDER` makes FOLDER/safetensors and FOLDER/json.

The files are made with the help of the tests; nothing has to be installed.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "py"))

from sft_bytes import NUMPY, entry, raw

CONFIG = {
    "model_type": "llama", "num_hidden_layers": 2, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
    "tie_word_embeddings": False, "pad_token_id": None, "eos_token_id": [1, 2], "x": [0.5, 1, -3],
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "flags": [True, False]},
    "layer_types": ["full", "sliding"], "deep": {"a": {"b": {"c": [{"d": 1}]}}},
}  # fmt: skip
INDEX = {
    "metadata": {"total_size": 10},
    "weight_map": {"a.weight": "model-00001-of-00002.safetensors",
                   "b.weight": "model-00002-of-00002.safetensors"},
}  # fmt: skip


def file(
    tensors: dict[str, tuple[str, list[int], int]], notes: dict[str, str] | None = None
) -> bytes:
    """A file of tensors (dtype, shape, bytes) full of counted bytes."""
    header: dict = {} if notes is None else {"__metadata__": notes}
    at = 0
    for name, (dtype, shape, n) in tensors.items():
        header[name] = entry(dtype, shape, [at, at + n])
        at += n
    return raw(json.dumps(header), bytes(i % 251 for i in range(at)))


def safetensors_seeds() -> dict[str, bytes]:
    out = {
        "empty": raw("{}"),
        "one": file({"a": ("F32", [4], 16)}),
        "two": file({"a.weight": ("BF16", [2, 3], 12), "b": ("U8", [5], 5)}, {}),
        "notes": file({"a": ("U8", [1], 1)}, {"format": "pt", "ä": "\n"}),
        "scalar": file({"a": ("F32", [], 4), "z": ("F32", [0, 3], 0)}),
        "packed": file({"a": ("F4", [4], 2), "b": ("F6_E2M3", [4], 3)}),
        "escapes": raw(
            r'{"\u00e4\ud83d\ude80": {"dtype":"U8","shape":[],"data_offsets":[0,1]}}', b"x"
        ),
        "member": raw('{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":[{}]}}', b"x"),
    }
    size = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2,
            "I16": 2, "U16": 2}  # fmt: skip
    return out | {f"type-{k}": file({"t": (k, [2, 2], 4 * size.get(k, 1))}) for k in NUMPY}


def json_seeds() -> dict[str, bytes]:
    texts = {"config": CONFIG, "index": INDEX, "empty": {}, "list": [1, [], [True, None]]}
    out = {k: json.dumps(v, indent=1).encode() for k, v in texts.items()}
    out["numbers"] = b"[0,-0,1e5,1.5E-3,18446744073709551615,123456789012345678901234567890]"
    out["strings"] = rb'["\"\\\/\b\f\n\r\t\u00e4\ud83d\ude80", "\u0000", ""]'
    out["spaces"] = b' \t\r\n{ "a" : [ 1 , 2 ] } \n'
    return out


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: make_safetensors_seeds.py FOLDER")
    for kind, files in (("safetensors", safetensors_seeds()), ("json", json_seeds())):
        folder = Path(sys.argv[1]) / kind
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (folder / name).write_bytes(data)
        print(f"{kind}: {len(files)} seeds, {sum(map(len, files.values()))} bytes")


if __name__ == "__main__":
    main()
