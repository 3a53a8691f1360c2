"""Thousands of replays: nothing on the device or on the host grows, and requests that join and leave
are each as they are alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import flash_sessions
import numpy as np
import pytest
import stoker
import tiny
from flash_tools import GEOMETRIES, write_hf
from gpu_tools import device_memory
from qualify import Traffic, alone, counted, drive, host_memory
from test_flash_rounds import GOLDEN
from test_gpu_engine import TYPES, engine, prefill, trace

pytestmark = [pytest.mark.gpu, pytest.mark.gpu_long]
REPLAYS, ROUNDS = 10_000, 2_000


@pytest.mark.parametrize("full, ahead", [(True, 0), (False, 0), (False, 4)])
@pytest.mark.parametrize("each", [200, REPLAYS])
def test_replays_leave_memory_as_it_is(tmp_path: Path, each: int, full: bool, ahead: int) -> None:
    """Short requests one after the other, and one long one through several tiers."""
    path = tiny.write(tmp_path / "m.gguf", tiny.Shape(types=TYPES, ctx=12_000), seed=31)
    prompt = np.random.default_rng(31).integers(0, 256, 37).tolist()
    with engine(path, context=each + 100) as e:
        if device_memory() is None:
            pytest.skip("neither pynvml nor nvidia-smi tells the device's memory")

        def request(n: int) -> None:
            prefill(e, prompt, n)
            left = n
            while left:
                record = e._session.round(None, full, ahead)[0]
                left -= len(record[3]) if record else 0
            e._session.finish(0, -1)

        for _ in range(3):
            request(each if each < REPLAYS else 3_000)
        device, host = device_memory(), host_memory()
        for _ in range(REPLAYS // each):
            request(each)
        assert device_memory() == device
        assert host_memory() - host < 2 << 20
        assert e._session.counters(0)["emitted"] == each


@pytest.mark.parametrize(
    "drafter, ahead", [("mtp:4", 0), ("mtp:4", 2), ("ngram:4", 4), ("none", 1)]
)
def test_two_thousand_rounds_of_four_slots(tmp_path: Path, drafter: str, ahead: int) -> None:
    """Flash-Next: every request against its own run, counters from the records, memory flat and every
    round a replay of a graph that was there when the first of them had been."""
    g = replace(GEOMETRIES["tiny"], low=32, eos=7)  # rows of a multiple of 32
    path = write_hf(tmp_path / "m", g, flash_sessions.agreeing(g))
    options: dict[str, Any] = {"device": "cuda:0", "context": 256}
    if device_memory() is None:
        pytest.skip("neither pynvml nor nvidia-smi tells the device's memory")
    seen: list[Any] = []
    traffic = Traffic(g.vocab, 256)

    def each(k: int) -> None:
        if k in (300, ROUNDS - 1):
            c = e._session.config()
            beyond = c["replays"] - traffic.rounds
            seen.append((device_memory(), e.memory.total, c["graphs"], beyond, host_memory()))

    with flash_sessions.engine(path, drafter, slots=4, **options) as e:
        requests = drive(e, traffic, ROUNDS, ahead, each)
    (device, total, graphs, beyond, host), last = seen
    assert last[:3] == (device, total, graphs)
    assert last[4] - host < 4 << 20  # beside what this test keeps of its requests
    # Rounds that were submitted ahead of requests which then ended are nobody's.
    assert last[3] == beyond == 0 if ahead == 0 else last[3] >= beyond >= 0
    assert len(requests) > 100
    for r in requests:
        counted(r)
    with (
        flash_sessions.engine(path, **options) as plain,
        flash_sessions.engine(path, drafter, **options) as head,
    ):
        alone(plain, head, requests)


@pytest.mark.parametrize("drafter", ["mtp:4", "ngram:3", "planted:8"])
@pytest.mark.parametrize("layers", [0, 4])
def test_256_rounds_of_a_graph_are_those_of_its_steps(layers: int, drafter: str) -> None:
    """Records, logits and the settled state at the end, whatever way the same steps are run: of the
    stored model, and of some layers of the released widths."""
    model: Any = GOLDEN
    if layers:
        model = stoker.synthetic("flash-next", quant="iq3_s", layers=layers, ple_rows=100_000)
    prompt = np.random.default_rng(7).integers(8, 200_000 if layers else 60, 45)
    n = 256 if drafter != "planted:8" else 300 if layers else 1280
    first: Any = None
    for options in ({}, {"mode": "eager"}, {"edges": False}, {"fused": False}, {"slots": 4},
                    {"mode": "eager", "poison": True}):  # fmt: skip
        with stoker.Engine(model, drafter, "cuda:0", **{"context": 2000, **options}) as e:
            if drafter == "planted:8":
                if first is None:
                    with stoker.Engine(model, "none", "cuda:0", context=2000) as plain:
                        ids = plain.generate(prompt, n + 20, ignore_eos=True).ids
                e.plant([*prompt, *ids], [8, 3, 0, 5])
            got = trace(e, prompt, n)
        first = first or got
        assert len(got[0]) >= n / 5 and got == first, options
