"""What a GPU owes the CPU and itself on one checkpoint: tokens against the CPU's, and bit for bit
graph against eager and direct, speculative against plain, slots together against alone.

    PYTHONPATH=python python benchmarks/gpu_report.py MODEL [--tokens 64] [--rounds 256]
        [--out benchmarks/results/gpu_report.jsonl]

Exit status 1 when something that has to be equal is not. Where the greedy tokens of CPU and GPU part,
the gap between the CPU's two best logits stands beside the largest difference of logits of that row:
the tokens may part only where the gap is within twice that."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import stoker
from stoker import _native

# Those of the lossless tests.
PROMPTS = json.loads((Path(__file__).parents[1] / "tests/data/prompts.json").read_text())


def engine(path: str, drafter: str = "none", **options: Any) -> stoker.Engine:
    return stoker.Engine(path, drafter, **{"device": "cuda:0", "context": 512} | options)


def against_cpu(path: str, n: int) -> list[dict[str, Any]]:
    out = []
    with engine(path, device="cpu") as cpu, engine(path) as gpu:
        for name, prompt in PROMPTS.items():
            a = cpu.generate(prompt, n, logits=True, ignore_eos=True)
            b = gpu.generate(prompt, n, logits=True, ignore_eos=True)
            same = next(
                (i for i, (x, y) in enumerate(zip(a.ids, b.ids, strict=False)) if x != y),
                len(a.ids),
            )
            rows = slice(0, min(same + 1, len(a.ids)))
            error = np.abs(a.logits[rows] - b.logits[rows]).max(axis=1)
            top = np.abs(a.logits[rows]).max(axis=1)
            entry = {"prompt": name, "tokens": len(a.ids), "equal": same,
                     "logit_error": float((error / top).max())}  # fmt: skip
            if same < len(a.ids):
                best = np.sort(a.logits[same])[-2:]
                entry |= {"gap": float(best[1] - best[0]), "error_there": float(error[same]),
                          "ok": bool(best[1] - best[0] <= 2 * error[same])}  # fmt: skip
            out.append(entry)
    return out


def run_rounds(e: stoker.Engine, ids: np.ndarray, n: int) -> tuple[Any, ...]:
    """Completion tuples and logits of n rounds of the full class, and the settled state."""
    s = e._session
    s.reset(0)
    s.start(0, ids, (1 << 20, np.empty(0, np.int32)), False)
    while s.prefill(0, 1):
        pass
    done, logits = [], []
    for _ in range(n):
        d = s.round(None, True, 0)[0]
        done.append(d)
        logits.append(s.logits(d[1], d[0]).tobytes())
    return done, logits, s.save(0)


def modes(path: str, n: int) -> dict[str, Any]:
    ids = np.arange(100, 120, dtype=np.int32)
    runs = {}
    for name, options in {
        "graph": {}, "eager": {"mode": "eager"}, "direct": {"mode": "direct"},
        "no edges": {"edges": False}, "poison": {"poison": True, "mode": "eager"},
    }.items():  # fmt: skip
        with engine(path, "ngram:3", context=2048, **options) as e:
            runs[name] = run_rounds(e, ids, n)
    equal = {name: got == runs["graph"] for name, got in runs.items()}
    return {"rounds": n, "equal": equal}


def speculative(path: str, n: int) -> dict[str, bool]:
    prompt, equal = PROMPTS["repetition"], {}
    with engine(path) as e:
        want = e.generate(prompt, n, logits=True, ignore_eos=True)
        state = e._session.save(0)
        greedy = e.generate(prompt, n, ignore_eos=True)
    equal["greedy class"] = greedy.ids == want.ids
    for k in range(1, 8):
        with engine(path, f"ngram:{k}") as e:
            r = e.generate(prompt, n, logits=True, ignore_eos=True)
            same = r.ids == want.ids and r.logits.tobytes() == want.logits.tobytes()
            equal[f"ngram:{k}"] = same and e._session.save(0) == state
        with engine(path, f"planted:{k}") as e:
            for accept in range(k + 1):
                e.plant(want.prompt_ids + want.ids, [accept])
                r = e.generate(prompt, n, logits=True, ignore_eos=True)
                same = r.ids == want.ids and r.logits.tobytes() == want.logits.tobytes()
                equal[f"planted:{k}, {accept} accepted"] = same and e._session.save(0) == state
    return equal


def together(path: str, n: int) -> dict[str, bool]:
    prompts, equal = list(PROMPTS.values()), {}
    with engine(path) as e:
        alone = [e.generate(p, n, ignore_eos=True).ids for p in prompts]
    for slots in (2, 3, 4):
        with engine(path, "ngram:4", slots=slots) as e:
            got = [r.ids for r in e.generate(prompts, n, ignore_eos=True)]
            equal[f"{slots} slots"] = got == alone
    return equal


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=256)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    record = {
        "kind": "gpu_report", "model": Path(args.model).name, "device": _native.device_info(0),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "build": _native.build_info(),
        "against_cpu": against_cpu(args.model, args.tokens), "modes": modes(args.model, args.rounds),
        "speculative": speculative(args.model, args.tokens), "together": together(args.model, 32),
    }  # fmt: skip
    for r in record["against_cpu"]:
        text = f"gap {r['gap']:.4f}, error there {r['error_there']:.4f}" if "gap" in r else ""
        print(f"{r['prompt']:12} {r['equal']:3} of {r['tokens']} tokens equal, largest logit error "
              f"{r['logit_error']:.2e} of the row's maximum {text}")  # fmt: skip
    flags = {**record["modes"]["equal"], **record["speculative"], **record["together"]}
    bad = [name for name, ok in flags.items() if not ok]
    bad += [r["prompt"] for r in record["against_cpu"] if not r.get("ok", True)]
    print(f"{len(flags)} comparisons bit for bit, {len(bad)} unequal: {', '.join(bad) or 'none'}")
    record["complete"] = True
    if args.out:
        with args.out.open("a") as f:
            f.write(json.dumps(record) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
