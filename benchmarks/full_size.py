"""Flash-Next at full size on one device, beside what the plan says: time to open it, memory taken, the
longest context; and the step diff of eight full-width layers.
`python benchmarks/full_size.py opening|largest|diff`; needs nvidia-smi."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np

import stoker
from stoker import _native

MODEL = "flash-next"


def used_mib() -> int:
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()[0])


def opening() -> None:
    ck = stoker.synthetic(MODEL, quant="iq3_s")
    p = stoker.plan(ck, "mtp:4", "cuda:0", slots=1, context=8192)
    before, began = used_mib(), time.perf_counter()
    with stoker.Engine(ck, "mtp:4", "cuda:0", slots=1, context=8192) as e:
        seconds = time.perf_counter() - began
        e.generate(list(range(100, 3000)), max_tokens=40, ignore_eos=True)
        taken = used_mib() - before
    print(f"opened in {seconds:.1f} s; taken {taken} MiB, planned {p.need / 2**20:.0f}")


def largest() -> None:
    ck = stoker.synthetic(MODEL, quant="iq3_s", ple_rows=1_000_000)
    card = _native.device_info(0)["memory_bytes"] - (used_mib() << 20)
    longest = stoker.plan(ck, "none", "cuda:0", slots=16, memory=card).largest_context
    assert longest is not None
    print(f"planned: {longest} positions of 16 slots")
    for factor in (1, 1.005, 1.01, 1.02):
        context = int(longest * factor)
        try:
            stoker.Engine(ck, "none", "cuda:0", slots=16, context=context).close()
            print(f"{context}: opened")
        except stoker.Error as error:
            print(f"{context}: {type(error).__name__}: {error}")


def diff() -> None:
    ck = stoker.synthetic(MODEL, quant="iq3_s", layers=8, ple_rows=200_000)
    records = stoker.diff(ck, [np.arange(100, 133)], rounds=2, drafter="mtp:2", context=256,
                          prefill_chunk=64, check=False)  # fmt: skip
    bad = [r for r in records if not r.ok]
    print(f"{len(records)} outputs, {len(bad)} beyond their bounds")
    for r in bad:
        print(r)


if __name__ == "__main__":
    {"opening": opening, "largest": largest, "diff": diff}[sys.argv[1]]()
