"""A round of Flash-Next on a GPU, of a synthetic checkpoint with some of the released layers: its time,
the bytes of weights that it reads, and where the time goes.

    PYTHONPATH=python python benchmarks/flash_round.py [--layers 8] [--quant iq3_s]
        [--drafters none,planted:4,mtp:4] [--routing uniform] [--no-fused]
        [--out benchmarks/results/flash_round.jsonl]

Routes are forced, so that rows go to the same experts whatever is left out ahead of them. Of evenly
chosen ones P rows of a pass have E (1 - (1 - k/E)^P) of E experts between them; the bound counts so
many, all other matrices once, and no table that rows are gathered from."""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import replay

import stoker
from stoker import _native

GATHERS = {"gather_rows", "gather_heads"}
EXPERTS = {"expert_glu", "expert_linear"}
BYTES_PER_US = 4.5e6
# What others index memory with is never left out.
LEFT_OUT = (
    "linear", "linear_argmax", "expert_glu", "expert_linear", "expert_sum", "hyper_down", "hyper_mix",
    "hyper_inject", "gdn_inputs", "gdn_step", "gdn_fold", "conv", "gated_norm", "attend_blocks",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--quant", default="iq3_s")
    parser.add_argument("--ple-rows", type=int, default=1_000_000)
    parser.add_argument("--drafters", default="none,planted:4,mtp:4")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--samples", type=int, default=30, help="of every op left out; 0: none")
    parser.add_argument("--routing", default="uniform", choices=("uniform", "own"))
    parser.add_argument("--no-fused", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    ck = stoker.synthetic(
        "flash-next", quant=args.quant, layers=args.layers, ple_rows=args.ple_rows
    )
    arch = ck.metadata["general.architecture"]
    experts, top = (ck.metadata[f"{arch}.expert_{key}"] for key in ("count", "used_count"))
    for drafter in args.drafters.split(","):
        begin = time.perf_counter()
        routing = None if args.routing == "own" else args.routing
        with stoker.Engine(
            ck, drafter, "cuda:0", context=args.context, fused=not args.no_fused,
            forced=stoker.Forced(routing),
        ) as e:  # fmt: skip
            record = measure(e, args, top / experts)
        record |= {"layers": args.layers, "quant": args.quant, "ple_rows": args.ple_rows}
        show(record, time.perf_counter() - begin)
        if args.out:
            with args.out.open("a") as f:
                f.write(json.dumps(record) + "\n")


def measure(e: stoker.Engine, args: argparse.Namespace, share: float) -> dict[str, Any]:
    width = e.config["width"]
    sizes: dict[str, float] = defaultdict(float)
    for op, size in e._session.step_bytes(False):
        part = 1 - (1 - share) ** width if op in EXPERTS else 0 if op in GATHERS else 1
        sizes[op] += size * part
    run = SimpleNamespace(model=f"flash-next {args.quant} {args.layers} layers", full=False, slots=1,
                          floor=False, no_edges=False, **vars_of(args))  # fmt: skip
    record = replay.measure(e, run)
    read = sum(sizes.values())
    record |= {
        "kind": "flash_round",
        "read_bytes": round(read),
        "byte_bound_us": read / BYTES_PER_US,
    }
    if args.samples and e.drafter.kind != "mtp":  # whose tokens come out of such steps
        replay.start(e, run)
        for _ in range(20):
            e._session.round(None, False, 0)
        record["by_op"] = by_op(e, args.samples, sizes)
    return record


def vars_of(args: argparse.Namespace) -> dict[str, Any]:
    return {k: getattr(args, k) for k in ("context", "prompt", "rounds")}


def by_op(e: stoker.Engine, samples: int, sizes: dict[str, float]) -> list[dict[str, Any]]:
    """Op, steps, by how much the median round gets shorter without them, their bytes."""
    text = e.plans["round.greedy"].text

    def median(omit: int) -> float:
        us, _ = e._session.time_without(omit, False, samples)
        return float(np.median(us[len(us) // 4 :]))

    whole, out = median(0), []
    for i, op in enumerate(_native.op_list()):
        if op in LEFT_OUT and (steps := text.count(f" {op} ")):
            us = whole - median(1 << i)
            out.append({"op": op, "steps": steps, "us": round(us, 2), "bytes": round(sizes[op])})
    return sorted(out, key=lambda r: -r["us"])


def show(record: dict[str, Any], took: float) -> None:
    replay.show(record)
    for r in record.get("by_op", ())[:14]:
        bound = r["bytes"] / BYTES_PER_US
        print(f"  {r['op']:16} {r['steps']:4} steps {r['us']:9.1f} us   bound {bound:8.1f} us")
    print(f"  ({took:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
