"""The floor of a CUDA device, and of one round on it: what a graph of the same nodes costs that only
streams the same bytes. Service time minus this is our own overhead.

    PYTHONPATH=python python benchmarks/replay_floor.py [--device cuda:0] [--samples 20]
        [--nodes NODES.json] [--out benchmarks/results/replay_floor.jsonl]

The table is that of `stoker floor`. With --nodes, a JSON list of the bytes that each node of a round
reads, the round's floor is measured after it, with plain and with programmatic edges. With --out,
JSON Lines with raw samples are appended. Exit status 1: the limits of the reference GPU were missed,
so this is no floor."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from stoker import _native, floor


def round_record(node_bytes: list[int], edges: bool, index: int, samples: int) -> dict:
    us = floor.floor_of_round(node_bytes, edges, index, samples)
    p10, median, p90 = np.percentile(us, (10, 50, 90)).tolist()
    print(f"round of {len(node_bytes)} nodes, {sum(node_bytes):,} bytes, "
          f"{'programmatic' if edges else 'plain'}: {median:.1f} us ({p10:.1f} to {p90:.1f})",
          flush=True)  # fmt: skip
    return {
        "kind": "floor", "record": "round", "programmatic": edges, "nodes": len(node_bytes),
        "bytes": sum(node_bytes), "node_bytes": node_bytes, "median": median, "p10": p10,
        "p90": p90, "unit": "us", "samples_us": [round(float(t), 4) for t in us],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--nodes", type=Path, metavar="NODES.json")
    parser.add_argument("--out", type=Path, metavar="FILE.jsonl")
    args = parser.parse_args()
    index = floor.device_index(args.device)
    _native.device_need(index)
    nodes = json.loads(args.nodes.read_text()) if args.nodes else None
    out = args.out.open("a") if args.out else None
    records = []
    for record in floor.measure_floor(index, args.samples):
        if record["record"] == "line":
            print("  ".join(filter(None, floor.row(record))), flush=True)
        records.append(record)
        if record["record"] == "end" and nodes:  # what says `complete` comes last
            for edges in (False, True):
                floor.write(round_record(nodes, edges, index, args.samples), out)
        floor.write(record, out)
    if out:
        out.close()
    print(floor.verdict(records))
    return 1 if records[-1]["is_floor"] is False else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except _native.Error as error:
        sys.exit(f"replay_floor: {type(error).__name__}: {error}")
