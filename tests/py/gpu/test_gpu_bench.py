"""stoker bench round on a GPU: times between events of recorded graphs, each replay counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
from flash_sessions import agreeing
from flash_tools import GEOMETRIES, write_hf
from stoker.bench import COLUMNS, bench_round, row
from test_bench import bench, cases_of
from test_gpu_engine import TYPES

pytestmark = pytest.mark.gpu
CUDA = {"device": "cuda:0", "prefill_chunk": None, "threads": None}


@pytest.fixture(scope="module")
def flash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    g = replace(GEOMETRIES["tiny"], low=32, eos=7)
    return write_hf(tmp_path_factory.mktemp("bench") / "m", g, agreeing(g))


@pytest.mark.parametrize("drafter, forced", [("mtp:4", "profile"), ("ngram:3", "staggered,uniform"),
                                             ("none", "uniform")])  # fmt: skip
def test_cases(flash: Path, drafter: str, forced: str) -> None:
    records = bench(flash, **CUDA, drafter=drafter, forced=forced, slots=(1, 4), context=300, samples=40,
                    steady_s=0.2, prompt_tokens=[50])  # fmt: skip
    assert records[0]["device"]["name"] and records[-1]["complete"]
    assert records[0]["timed"] == "a round between two events around its recorded graph"
    for r in cases_of(records):
        assert "error" not in r, r["error"]
        wall, submit, gpu = (np.array(r["samples"][k]) for k in ("wall_us", "submit_us", "gpu_us"))
        assert len(gpu) >= 40 and (gpu > 0).all() and (wall > gpu).all() and (wall > submit).all()
        assert r["median_us"] == pytest.approx(np.median(gpu), abs=0.01)
        assert r["native_overhead_us"] > 0 and r["executed"] == "cuda graph"
        lengths = records[0]["lengths"]
        rounds = lengths["lead"] + lengths["timed"] + lengths["tail"]
        stretches = -(-40 // lengths["timed"])
        assert r["graph"]["replays"] == stretches * rounds and r["graph"]["graphs"] > 0
        assert all(x["nodes"] > 20 for x in r["rounds"])
        assert r["bound"]["us"] == pytest.approx(r["bound"]["bytes"] / 4.5e6, rel=1e-3)
        assert len(r["clocks"]) == stretches
        cells = dict(zip(COLUMNS, row(r), strict=True))
        assert float(cells["x bound"]) > 0 and float(cells["host us"]) > 0


def test_the_same_rounds_as_on_the_cpu(flash: Path) -> None:
    """With routes out of the table and planted proposals: the same positions, counts and experts."""
    seen = []
    for device in ({}, CUDA):
        records = bench(flash, **device, drafter="mtp:2", forced="uniform", slots=(2,), context=300,
                        prompt_tokens=[40])  # fmt: skip
        (case,) = cases_of(records)
        seen.append([{k: v for k, v in x.items() if k != "nodes"} for x in case["rounds"]])
    assert seen[0] == seen[1]


def test_only_graphs_get_a_time(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf", tiny.Shape(types=TYPES), seed=3)
    for mode in ("eager", "direct"):
        records = list(bench_round(path, device="cuda:0", mode=mode, slots=(1,), context=200, samples=1,
                                   steady_s=0))  # fmt: skip
        text = f"round: expected a recorded graph to time, found cuda {mode}"
        assert cases_of(records)[0]["error"] == {"class": "MismatchError", "text": text}
        assert records[-1]["score_us"] is None


def test_a_dense_model(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf", tiny.Shape(types=TYPES, ctx=2000), seed=3)
    records = bench(path, **CUDA, drafter="ngram:4", forced="cycle", slots=(1, 3), context=1500,
                    prompt_tokens=[470, 1200], seeds=[0, 1], steady_s=0.1)  # fmt: skip
    assert records[-1]["failed"] == 0  # the first length crosses from one tier to the next
