"""A round replayed on a GPU: how long it takes on the device, what the host adds, and the floor of
the same nodes and bytes beside it.

    PYTHONPATH=python python benchmarks/replay.py MODEL [--draft none] [--slots 1] [--prompt 16]
        [--rounds 256] [--context 1024] [--out benchmarks/results/replay.jsonl] [--floor]

Greedy decoding of random prompts (end-of-generation ids do not end them), after two seconds of
rounds. Every record has its raw samples; `complete` is written last."""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

import stoker
from stoker import _native, floor

STEADY_S = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--draft", default="none")
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=256)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--full", action="store_true", help="the class that writes logits")
    parser.add_argument("--no-edges", action="store_true")
    parser.add_argument("--mode", default="graph", choices=("graph", "eager"))
    parser.add_argument("--floor", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with stoker.Engine(
        args.model, args.draft, "cuda:0", slots=args.slots, context=args.context, mode=args.mode,
        edges=not args.no_edges,
    ) as engine:  # fmt: skip
        record = measure(engine, args)
    show(record)
    if args.out:
        with args.out.open("a") as f:
            f.write(json.dumps(record) + "\n")


def start(engine: stoker.Engine, args: argparse.Namespace) -> None:
    """The same requests in every slot as if nothing had run before."""
    session, rng = engine._session, np.random.default_rng(0)
    for slot in range(args.slots):
        ids = rng.integers(0, engine.config["vocab"], args.prompt).astype(np.int32)
        session.reset(slot)
        if engine.drafter.kind == "planted":  # proposals everywhere, hardly any right
            table = rng.integers(0, engine.config["vocab"], args.context).astype(np.int32)
            session.plant(slot, table, np.full(1, 16, np.int32))
        session.start(slot, ids, (1 << 20, np.empty(0, np.int32)), False)
        while session.prefill(slot, 1):
            pass


def tokens_per_round(engine: stoker.Engine, args: argparse.Namespace) -> float:
    c = [engine._session.counters(s) for s in range(args.slots)]
    return sum(x["emitted"] for x in c) / max(1, sum(x["rounds"] for x in c))


def measure(engine: stoker.Engine, args: argparse.Namespace) -> dict[str, Any]:
    session, n = engine._session, args.rounds
    n = min(n, (args.context - args.prompt) // engine.config["width"] - 4)
    begin = time.perf_counter()
    while time.perf_counter() - begin < STEADY_S:  # clocks up, caches as they will be
        start(engine, args)
        session.time(n, args.full, False, 0)
    start(engine, args)
    wall_events, gpu = session.time(n, args.full, True, 0)
    start(engine, args)
    wall, _ = session.time(n, args.full, False, 0)
    start(engine, args)
    ahead, _ = session.time(n, args.full, False, 2)
    per_round = tokens_per_round(engine, args)
    generate = timed_generate(engine, args, n)
    clocks = floor.clocks(0)
    weights = next(v for k, v in engine.memory.items() if "weights" in k)
    record = {
        "kind": "replay", "device": _native.device_info(0), "build": _native.build_info(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "revision": revision(),
        "clocks": clocks, "options": engine.options, "model": Path(args.model).name,
        "plan": engine.plans["round" if args.full else "round.greedy"].sha256,
        "full": args.full, "prompt": args.prompt, "rounds": n, "tokens_per_round": per_round,
        "rows": engine.config["rows"], "weight_bytes": weights,
        "byte_bound_us": weights / 4.5e6,
        "gpu_us": rounded(gpu), "wall_us": rounded(wall), "wall_with_events_us": rounded(wall_events),
        "ahead_us": rounded(ahead), "generate_us_per_round": generate,
    }  # fmt: skip
    if args.floor:
        record["floor_us"], record["floor_nodes"] = floor_of(engine, args)
    record["complete"] = True
    return record


def timed_generate(engine: stoker.Engine, args: argparse.Namespace, n: int) -> list[float]:
    """Wall per round of Engine.generate, prefill left out."""
    rng, out = np.random.default_rng(0), []
    for slot in range(args.slots):
        engine._session.reset(slot)
    for _ in range(5):
        prompts = [rng.integers(0, engine.config["vocab"], args.prompt) for _ in range(args.slots)]
        begin = time.perf_counter()
        results = engine.generate(prompts, max_tokens=n, ignore_eos=True)
        took = time.perf_counter() - begin - sum(r.stats.prefill_s for r in results)
        out.append(took * 1e6 / max(len(r.rounds) for r in results))
    return rounded(np.array(out))


def floor_of(engine: stoker.Engine, args: argparse.Namespace) -> tuple[list[float], list[int]]:
    """A graph of as many nodes that reads as many bytes in each, and nothing else."""
    start(engine, args)
    engine._session.time(4, args.full, False, 0)
    _, nodes = engine._session.time_without(0, args.full, 4)
    sizes = floor.nodes_of(engine, args.full, nodes)
    return rounded(floor.floor_of_round(sizes, not args.no_edges)), sizes


def rounded(us: Any) -> list[float]:
    return [round(float(x), 3) for x in us]


def revision() -> str | None:
    try:
        out = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return out.stdout.strip()


def show(r: dict[str, Any]) -> None:
    def line(name: str, us: list[float]) -> None:
        low, median, high = np.percentile(us, (10, 50, 90))
        print(f"{name:34} {median:9.2f} us   {low:9.2f} .. {high:9.2f}")

    o = r["options"]
    print(f"{r['model']}, {o['drafter']}, {o['slots']} slot(s), {r['rows']} rows, {o['executed']}, "
          f"{r['rounds']} rounds, {r['tokens_per_round']:.3f} tokens a round")  # fmt: skip
    line("GPU time of a round", r["gpu_us"])
    line("wall, one at a time", r["wall_us"])
    over = np.array(r["wall_with_events_us"]) - np.array(r["gpu_us"])
    line("  of it native overhead", list(over))
    line("wall, two rounds ahead", r["ahead_us"])
    line("generate() a round", r["generate_us_per_round"])
    print(f"{'byte bound at 4.5 TB/s':34} {r['byte_bound_us']:9.2f} us")
    if "floor_us" in r:
        line("floor of its nodes and bytes", r["floor_us"])


if __name__ == "__main__":
    main()
