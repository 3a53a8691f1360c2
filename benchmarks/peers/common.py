"""What both children share: the workload, timing, and what a process says about itself."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable

PROMPT = 16  # tokens before decoding
DECODE = 64  # tokens decoded in one repetition
PREFILL = 512


def token_ids(n: int, vocab: int) -> list[int]:
    """The same arbitrary but fixed tokens for everybody; ids below 256 are often special."""
    return [256 + (i * 7919 + 12345) % (min(vocab, 30000) - 256) for i in range(n)]


def timed(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def report(**facts: object) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    json.dump({**facts, "peak_bytes": peak}, sys.stdout)
    print()
