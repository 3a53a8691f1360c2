"""Packs a vocabulary-only GGUF file and its published test vectors for the tests.

    python tools/make_vocab_data.py gpt-2.gguf llama-spm.gguf

For each NAME.gguf, NAME.gguf.inp (texts) and NAME.gguf.out (one line of token ids per text) must
lie beside it. Writes tests/data/vocab/NAME.json.xz. Needs the `gguf` package.
"""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path

from gguf import GGUFReader

OUTPUT = Path(__file__).resolve().parent.parent / "tests" / "data" / "vocab"
SEPARATOR = "\n__ggml_vocab_test__\n"


def pack(path: Path) -> Path:
    """Write the packed form of one vocabulary and return where."""
    fields = GGUFReader(path).fields
    metadata = {
        key: field.contents() for key, field in fields.items() if key.startswith("tokenizer.")
    }
    # Bytes, as the texts hold carriage returns that reading as text would change.
    texts = path.with_name(path.name + ".inp").read_bytes().decode().split(SEPARATOR)
    lines = path.with_name(path.name + ".out").read_text().split("\n")
    if texts.pop() or lines.pop() or len(texts) != len(lines):
        raise SystemExit(f"{path}: expected as many lines of ids as texts, both terminated")
    cases = [
        {"text": text, "ids": [int(word) for word in line.split()]}
        for text, line in zip(texts, lines, strict=True)
    ]
    data = json.dumps({"metadata": metadata, "cases": cases}, separators=(",", ":"))
    target = OUTPUT / f"{path.stem}.json.xz"
    target.write_bytes(lzma.compress(data.encode(), preset=9 | lzma.PRESET_EXTREME))
    return target


if __name__ == "__main__":
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:]:
        written = pack(Path(name))
        print(f"{written}: {written.stat().st_size} bytes")
