"""Speed of `linear` on the CPU for each weight type, as one op on random blocks.

    PYTHONPATH=python python benchmarks/cpu_linear.py [--types Q4_0,IQ2_S] [--rows 1,4,32]

Prints JSON Lines: the medians (and the best time, for a busy machine), in 10^9 weights a second
and GB/s of weight bytes. A part, measured to explain the whole: neither a round nor tokens per
second. The op makes its scratch and threads anew in each call, so matrices should take
milliseconds."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "py"))

from blocks import IDS, PLAIN, random_blocks, sizes
from stoker import _native

TYPES = (*PLAIN, *(name for name in IDS if name != "Q8_K"))


def weight(name: str, n: int, k: int, rng: np.random.Generator):
    """The op's argument for a random weight [n, k]."""
    if name in PLAIN:
        w = rng.standard_normal((n, k)).astype(np.float32)
        w = w.astype(np.float16) if name == "F16" else w
        if name == "BF16":
            return "BF16", (w.view(np.uint32) >> 16).astype(np.uint16), (n, k)
        return name, w, (n, k)
    return name, random_blocks(name, n * k // sizes(name)[0], 0.02, rng).ravel(), (n, k)


def seconds(fields: dict, args: argparse.Namespace) -> list[float]:
    """Times of single calls, after one that is not counted; stops early when calls are slow."""
    out: list[float] = []
    for _ in range(args.repeat + 1):
        began = time.perf_counter()
        _native.run_op("linear", fields, args.table, args.threads)
        out.append(time.perf_counter() - began)
        if sum(out) > args.seconds and len(out) > 1:
            break
    return out[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--rows", default="1,4,32")
    parser.add_argument("--shape", default="2048,4096", help="outputs, inputs")
    parser.add_argument("--table", default="fast", choices=("fast", "definition"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1.0, help="limit of one measurement")
    args = parser.parse_args()
    n, k = map(int, args.shape.split(","))
    rng = np.random.default_rng(1)
    head = {"machine": platform.processor() or platform.machine(), "isa": _native.cpu_isa(),
            "table": args.table, "threads": args.threads, "shape": [n, k]}  # fmt: skip
    print(json.dumps(head))
    for name in args.types.split(","):
        w = weight(name, n, k, rng)
        for rows in map(int, args.rows.split(",")):
            x = (rng.standard_normal((rows, k)).astype(np.float32).view(np.uint32) >> 16).astype(
                np.uint16
            )
            y = np.empty((rows, n), np.float32)
            fields = {"x": ("BF16", x, x.shape), "count": np.array([rows], np.int32), "w[0]": w,
                      "y[0]": y}  # fmt: skip
            times = seconds(fields, args)
            middle = statistics.median(times)
            print(json.dumps({
                "type": name, "rows": rows, "runs": len(times), "ms": round(1e3 * middle, 3),
                "best_ms": round(1e3 * min(times), 3),
                "spread": round((max(times) - min(times)) / middle, 2),
                "gmac": round(1e-9 * n * k * rows / middle, 3),
                "gweights": round(1e-9 * n * k / middle, 3),
                "gbytes": round(1e-9 * w[1].nbytes / middle, 3),
            }), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
