"""Where the time of a recorded round goes, by op: the round is replayed without the steps of one op
and compared with the whole. Differences of medians, so overlap is attributed to whoever shortens the
round by going away; they need not add up. `python benchmarks/round_steps.py MODEL [--draft D]
[--slots N] [--context N] [--prompt N]`."""

from __future__ import annotations

import argparse

import numpy as np

import stoker
from stoker import _native


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--draft", default="none")
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--full", action="store_true", help="the class that writes logits")
    parser.add_argument("--no-edges", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with stoker.Engine(
        args.model, args.draft, "cuda:0", slots=args.slots, context=args.context,
        edges=not args.no_edges,
    ) as engine:  # fmt: skip
        rows = measure(engine, args)
    if args.json:
        import json

        print(json.dumps(rows))
        return
    for name, count, us, nodes in rows:
        each = f"{us / count:7.2f} us each" if count else ""
        print(f"{name:14} {count:4}  {us:8.1f} us  {each}  {nodes} nodes")


def measure(engine: stoker.Engine, args: argparse.Namespace) -> list[tuple[str, int, float, int]]:
    session = engine._session
    rng = np.random.default_rng(0)
    for slot in range(args.slots):
        ids = rng.integers(0, engine.config["vocab"], args.prompt).astype(np.int32)
        session.start(slot, ids, (1 << 20, np.empty(0, np.int32)), False)
        while session.prefill(slot, 1):
            pass
    for _ in range(50):
        session.round(None, args.full, 0)
    steps = engine.plans["round" if args.full else "round.greedy"].text
    bits = {name: i for i, name in enumerate(_native.op_list())}
    counts = {name: steps.count(f" {name} ") for name in bits}

    def median(omit: int) -> tuple[float, int]:
        us, nodes = session.time_without(omit, args.full, args.samples)
        return float(np.median(us[len(us) // 4 :])), nodes

    whole, nodes = median(0)
    rows = [("whole round", sum(counts.values()), whole, nodes)]
    # Nothing is right without the ops that run the round.
    skip = {"accept", "round_rows", "ctl_read", "gather_rows", "publish", "commit"}
    for name, count in counts.items():
        if count and name not in skip and not name.startswith("draft"):
            us, left = median(1 << bits[name])
            rows.append((name, count, whole - us, nodes - left))
    return rows


if __name__ == "__main__":
    main()
