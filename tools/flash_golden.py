"""Flash-Next against recorded values: how far a folder of golden data and this package are apart.

    python tools/flash_golden.py FOLDER... [--types Q8_0] [--json FILE]

FOLDER holds config.json, safetensors (mtp.safetensors or the head in the same file) and golden.npz, as
tests/data/flash_tiny does. Each is run as it is and as a GGUF file written from it (F32; with `--types` also
one whose matrices have that type, against the recorded values of the unquantised weights), in numerics f32 and
bf16. Largest errors relative to the row's largest magnitude, over all sequences; for bf16 the median row too,
as a near tie of experts or blocks may go the other way. ids: rows of the n-gram table, drafts, greedy tokens
(as far as the recorded gap exceeds the error). Exit status 1 when f32 misses 2e-4 or an id."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import stoker

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "py"), str(ROOT / "tests" / "oracle")]
FORMS = ("whole", "per_stream")
BOUND = 2e-4


def errors(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Of each row, relative to its largest magnitude."""
    return np.abs(got - want).max(axis=-1) / np.abs(want).max(axis=-1)


def greedy(engine: stoker.Engine, g: Any, k: int, error: float) -> bool:
    """Equal tokens, up to the first whose recorded gap is within the error."""
    want, gap = g[f"seq{k}.greedy"], g[f"seq{k}.greedy_gap"]
    got = engine.generate(g[f"seq{k}.tokens"].astype(np.int32), len(want), ignore_eos=True).ids
    scale = float(np.abs(g[f"seq{k}.logits"]).max())
    close = np.flatnonzero(gap < 2 * error * scale)
    n = int(close[0]) if len(close) else len(want)
    return bool(list(got[:n]) == list(want[:n]))


def measure(path: str, g: Any, numerics: str) -> dict[str, Any]:
    """One checkpoint in one mode, with the draft head in both forms."""
    rows: dict[str, list[Any]] = {"logits": [], "wide": [], "mtp": []}
    ids = {"ple_rows": True, "drafts": True, "greedy": True}
    for form in FORMS:
        drafter = stoker.Drafter("mtp", 4, hidden_norm=form)
        with stoker.Engine(path, drafter, "cpu", context=256, numerics=numerics) as e:
            layers = [f"layer{i}" for i in range(e.config["n_layer"])]
            for k in range(sum(name.endswith(".tokens") for name in g)):
                tokens = g[f"seq{k}.tokens"].astype(np.int32)
                has_ple = e.config["ple_heads"] > 0
                want = ["logits", "mtp_logits", *(["ple_rows"] if has_ple else []), *layers]
                out = e.evaluate(tokens, want)
                rows["logits"].append(errors(out["logits"], g[f"seq{k}.logits"]))
                rows["mtp"].append(errors(out["mtp_logits"], g[f"seq{k}.mtp_{form}.logits"]))
                for name in layers:
                    if f"seq{k}.{name}.wide" in g:
                        rows["wide"].append(errors(out[name], g[f"seq{k}.{name}.wide"]))
                if has_ple:
                    ids["ple_rows"] &= np.array_equal(out["ple_rows"], g[f"seq{k}.ple_rows"])
                first = int(g[f"seq{k}.logits"][-1].argmax())
                drafted = [first, *e.draft([*map(int, tokens), first], 4)]
                ids["drafts"] &= drafted == list(g[f"seq{k}.mtp_{form}.draft"])
                if f"seq{k}.greedy" in g:
                    worst = float(np.max(rows["logits"][-1]))
                    ids["greedy"] &= greedy(e, g, k, max(worst, 1e-6))
    result: dict[str, Any] = {"numerics": numerics, "ids": {k: bool(v) for k, v in ids.items()}}
    for name, found in rows.items():
        every = np.concatenate([np.ravel(x) for x in found])
        result[name] = {"max": float(every.max()), "median": float(np.median(every))}
    return result


def checkpoints(folder: Path, types: str | None, room: Path) -> Iterator[tuple[str, str]]:
    """(format, path) of the folder and of what is written from it."""
    import flash_gguf
    import flash_tools

    yield "safetensors", str(folder)
    config = json.loads((folder / "config.json").read_text())
    for kind in ("F32", *([types] if types else [])):
        path = room / f"{folder.name}-{kind}.gguf"
        flash_gguf.write_gguf(path, config, flash_tools.whole(folder), types=kind, mtp="block")
        yield f"GGUF {kind}", str(path)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--types")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    good, records = True, []
    print(f"{'fixture':12} {'format':12} {'mode':5} {'logits':>18} {'wide rows':>18} {'mtp logits':>18}  "
          "ple drafts greedy")  # fmt: skip
    for folder in args.folders:
        g = np.load(folder / "golden.npz")
        with tempfile.TemporaryDirectory() as room:
            for kind, path in checkpoints(folder, args.types, Path(room)):
                for numerics in ("f32", "bf16"):
                    r = {"fixture": folder.name, "format": kind} | measure(path, g, numerics)
                    records.append(r)
                    cells = [
                        f"{r[x]['max']:8.1e} ({r[x]['median']:.1e})"
                        for x in ("logits", "wide", "mtp")
                    ]
                    ids = " ".join(f"{'=' if v else 'x':>4}" for v in r["ids"].values())
                    print(
                        f"{folder.name:12} {kind:12} {numerics:5} " + " ".join(cells) + f" {ids}",
                        flush=True,
                    )
                    if numerics == "f32" and kind in ("safetensors", "GGUF F32"):
                        worst = max(r[x]["max"] for x in ("logits", "wide", "mtp"))
                        good &= worst <= BOUND and all(r["ids"].values())
    if args.json:
        args.json.write_text("".join(json.dumps(r) + "\n" for r in records))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
