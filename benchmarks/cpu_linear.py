"""Speed of `linear` on the CPU for each weight type, as one op on random blocks.

    PYTHONPATH=python python benchmarks/cpu_linear.py [--types Q4_0,IQ2_S] [--rows 1,4,32]
        [--tables avx2,fast] [--out benchmarks/results/cpu_linear.jsonl]

Prints the best and the median time of each case, in 10^9 weights a second and GB/s of weight bytes;
the tables take turns, call by call, so that a busy machine is equally unkind to them. With --out,
JSON Lines with the raw samples are appended. A part, measured to explain the whole: neither a round
nor tokens per second. The op makes its scratch and threads anew in each call, so matrices should
take milliseconds."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "py"))

import stoker
from blocks import IDS, PLAIN, random_blocks, sizes
from stoker import _native

TYPES = (*PLAIN, *(name for name in IDS if name != "Q8_K"))
TABLES = ("fast", "definition", "generic", "avx2", "avx512")


def weight(name: str, n: int, k: int, rng: np.random.Generator):
    """The op's argument for a random weight [n, k]."""
    if name in PLAIN:
        w = rng.standard_normal((n, k)).astype(np.float32)
        w = w.astype(np.float16) if name == "F16" else w
        if name == "BF16":
            return "BF16", (w.view(np.uint32) >> 16).astype(np.uint16), (n, k)
        return name, w, (n, k)
    return name, random_blocks(name, n * k // sizes(name)[0], 0.02, rng).ravel(), (n, k)


def seconds(fields: dict, tables: list[str], args: argparse.Namespace) -> dict[str, list[float]]:
    """Times of single calls, after one that is not counted; stops early when calls are slow."""
    out: dict[str, list[float]] = {table: [] for table in tables}
    spent = 0.0
    for _ in range(args.repeat + 1):
        for table in tables:
            began = time.perf_counter()
            _native.run_op("linear", fields, table, args.threads)
            out[table].append(time.perf_counter() - began)
            spent += out[table][-1]
        if spent > args.seconds * len(tables) and len(out[tables[0]]) > 1:
            break
    return {table: times[1:] for table, times in out.items()}


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--rows", default="1,4,32")
    parser.add_argument("--shape", default="2048,4096", help="outputs, inputs")
    parser.add_argument("--tables", default="fast", help=f"several of {', '.join(TABLES)}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1.0, help="limit of one measurement")
    parser.add_argument("--out", type=Path, help="append JSON Lines with raw samples")
    args = parser.parse_args()
    n, k = map(int, args.shape.split(","))
    tables = args.tables.split(",")
    rng = np.random.default_rng(1)
    head = {
        "kind": "cpu_linear", "date": datetime.date.today().isoformat(), "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)), "isa": _native.cpu_isa(),
        "build": stoker.info()["build"], "version": stoker.__version__, "shape": [n, k],
        "threads": args.threads,
    }  # fmt: skip
    lines = []
    for name in args.types.split(","):
        w = weight(name, n, k, rng)
        for rows in map(int, args.rows.split(",")):
            x = (rng.standard_normal((rows, k)).astype(np.float32).view(np.uint32) >> 16).astype(
                np.uint16
            )
            y = np.empty((rows, n), np.float32)
            fields = {"x": ("BF16", x, x.shape), "count": np.array([rows], np.int32), "w[0]": w,
                      "y[0]": y}  # fmt: skip
            load = os.getloadavg()[0]
            for table, times in seconds(fields, tables, args).items():
                best, middle = min(times), statistics.median(times)
                print(f"{name:8} rows {rows:3} {table:10} best {1e3 * best:8.3f} ms  median "
                      f"{1e3 * middle:8.3f} ms  {1e-9 * n * k / best:7.2f} Gweight/s "
                      f"{1e-9 * n * k * rows / best:7.2f} GMAC/s {1e-9 * w[1].nbytes / best:6.2f} "
                      f"GB/s  ({len(times)} runs, load {load:.1f})", flush=True)  # fmt: skip
                lines.append({
                    **head, "type": name, "rows": rows, "table": table, "load": load,
                    "weight_bytes": w[1].nbytes, "best_ms": 1e3 * best, "median_ms": 1e3 * middle,
                    "samples_ms": [round(1e3 * t, 4) for t in times], "complete": True,
                })  # fmt: skip
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        with args.out.open("a") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
