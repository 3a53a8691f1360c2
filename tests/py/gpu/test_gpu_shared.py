"""A GPU that several processes share by time slices: a kernel may be interrupted anywhere, and a round
still chooses what it would alone. Rounds of the greedy class, submitted ahead, so that a context is
busy when its slice ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from test_gpu_engine import SHAPES, TOKENS, engine, prefill, tokens
from test_engine import PROMPT, planted

pytestmark = pytest.mark.gpu
PROCESSES, SECONDS = 8, 6


def rounds(e, ahead: int) -> list[int]:
    """The tokens of a request by rounds of the greedy class."""
    records: list = []
    prefill(e, PROMPT, TOKENS)
    while not records or not records[-1][6]:
        record = e._session.round(None, False, ahead)[0]
        if record is not None:
            records.append(record)
    e._session.finish(0, -1)
    return tokens(records)


def loop(path: str) -> None:
    """One process: requests until the time is up; says how many, and fails on the first wrong one."""
    import time

    end, n = time.monotonic() + SECONDS, 0
    with engine(Path(path)) as e:
        want = e.generate(PROMPT, TOKENS, ignore_eos=True).ids
    while time.monotonic() < end:
        with engine(Path(path), f"planted:{1 + n % 7}", slots=2) as e:
            planted(e, PROMPT + want, [0])
            for _ in range(3):
                assert rounds(e, 2) == want
                n += 1
    print(n)


def test_processes_that_share_a_gpu(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf", SHAPES["qwen3"], seed=21)
    here = os.pathsep.join(sys.path)
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", f"import test_gpu_shared as t; t.loop({str(path)!r})"],
            env=os.environ | {"PYTHONPATH": here}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(PROCESSES)
    ]  # fmt: skip
    done = [run.communicate(timeout=120) for run in runs]
    for run, (out, err) in zip(runs, done, strict=True):
        assert run.returncode == 0, err[-2000:]
        assert int(out) > 0
