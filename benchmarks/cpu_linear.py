"""Speed of `linear` on the CPU: weight types x rows, one JSON object a line.

    python benchmarks/cpu_linear.py [--threads 2] [--rows 1,4,64] [--types Q4_1,Q8_0] [--k 2048] [--n 16384]

GB/s counts the bytes of the weights once; GFLOP/s counts two per weight and row. Each number is the
median of `--repeats` calls, with the fastest and slowest; a call includes starting its threads.
`read_gbs` is what summing as many bytes with NumPy reaches on the same threads, as a yardstick.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from stoker import _native

BLOCKS = {"F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q4_0": (32, 18), "Q4_1": (32, 20),
          "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34), "Q4_K": (256, 144),
          "Q5_K": (256, 176), "Q6_K": (256, 210)}  # fmt: skip


def timed(call, repeats: int) -> list[float]:
    call()
    out = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        out.append(time.perf_counter() - began)
    return out


def read_gbs(threads: int) -> float:
    parts = np.ones((threads, 1 << 25), np.int64)
    with ThreadPoolExecutor(threads) as pool:
        seconds = timed(lambda: list(pool.map(np.add.reduce, parts)), 5)
    return parts.nbytes / min(seconds) / 1e9


def measure(kind: str, p: int, k: int, n: int, threads: int, table: str, repeats: int) -> dict:
    elems, n_bytes = BLOCKS[kind]
    raw = np.full((n, k // elems * n_bytes), 0x2C, np.uint8)  # every F16 scale is about 0.07
    x = np.full((p, k), 0x3F80, np.uint16)
    y = np.empty((p, n), np.float32)
    fields = {"x": ("BF16", x, x.shape), "count": np.array([p], np.int32),
              "w[0]": (kind, raw, (n, k)), "y[0]": y}  # fmt: skip
    seconds = timed(lambda: _native.run_op("linear", fields, table, threads), repeats)

    def rate(amount):
        return {"median": round(amount / statistics.median(seconds), 2),
                "min": round(amount / max(seconds), 2), "max": round(amount / min(seconds), 2)}  # fmt: skip

    return {"op": "linear", "type": kind, "rows": p, "k": k, "n": n, "threads": threads,
            "table": table, "gbs": rate(raw.nbytes / 1e9), "gflops": rate(2e-9 * p * k * n),
            "repeats": repeats}  # fmt: skip


def main() -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--rows", default="1,4,64")
    ap.add_argument("--types", default=",".join(BLOCKS))
    ap.add_argument("--k", type=int, default=2048)
    ap.add_argument("--n", type=int, default=16384)
    ap.add_argument("--table", default="fast", choices=("fast", "definition"))
    ap.add_argument("--repeats", type=int, default=9)
    a = ap.parse_args()
    about = {"machine": platform.machine(), "isa": _native.cpu_isa(),
             "compiler": _native.build_info()["compiler"],
             "read_gbs": round(read_gbs(a.threads), 2)}  # fmt: skip
    print(json.dumps(about), flush=True)
    for kind in a.types.split(","):
        for p in map(int, a.rows.split(",")):
            n = a.n if p < 16 else max(64, a.n // 8)
            print(json.dumps(measure(kind, p, a.k, n, a.threads, a.table, a.repeats)), flush=True)


if __name__ == "__main__":
    main()
