"""Plans on a GPU: an engine takes what was planned, and the device no more than was assumed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stoker
import tiny
from flash_sessions import write_agreeing
from gpu_tools import device_memory
from test_gpu_engine import SHAPES, TYPES, engine, prefill

pytestmark = pytest.mark.gpu
GRAIN = 2 << 20  # in which the driver hands out memory
SYNTHETIC = "synthetic:flash-next,quant=iq3_s,layers=4,ple_rows=200000"


def same(model: Any, drafter: str, **options: Any) -> stoker.MemoryPlan:
    p = stoker.plan(model, drafter, "cuda:0", **options)
    with stoker.Engine(model, drafter, "cuda:0", **options) as e:
        assert list(p.memory.items()) == list(e.memory.items())
    return p


@pytest.mark.parametrize("drafter", ["none", "ngram:3"])
@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("name", SHAPES)
def test_dense_engines(tmp_path: Path, name: str, slots: int, drafter: str) -> None:
    path = tiny.write(tmp_path / "m.gguf", SHAPES[name], seed=21)
    assert same(path, drafter, slots=slots, context=2100).refused == ()


@pytest.mark.parametrize("drafter", ["none", "ngram:3", "mtp:4"])
@pytest.mark.parametrize("slots", [1, 4])
def test_flash_next(tmp_path: Path, slots: int, drafter: str) -> None:
    path, _, _ = write_agreeing(tmp_path, "wide", types="Q8_0")
    same(path, drafter, slots=slots, context=600, prefill_chunk=64)


@pytest.mark.parametrize("table", ["device", "ram"])
def test_synthetic_flash_next(table: str) -> None:
    ck = stoker.synthetic("flash-next", quant="iq3_s", layers=4, ple_rows=200_000)
    p = same(ck, "mtp:4", slots=2, context=9000, embedding_table=table)
    assert (
        p.memory
        == stoker.plan(SYNTHETIC, "mtp:4", slots=2, context=9000, embedding_table=table).memory
    )


def test_what_is_refused_is_what_was_planned(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf", tiny.Shape(dim=80, n_head=5, n_kv=5, ffn=160))
    p = stoker.plan(path)
    assert p.refused
    with pytest.raises(stoker.UnsupportedError) as raised:
        stoker.Engine(path, device="cuda:0")
    assert any(str(raised.value) in text for text in p.refused)


# In a process of its own, in which the driver starts anew.
MEASURE = """
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
import stoker
from gpu_tools import device_memory
before = device_memory()
with stoker.Engine(stoker.synthetic("flash-next", quant="iq3_s", layers=4, ple_rows=200_000), "mtp:4",
                   "cuda:0", slots=2, context=9000) as e:
    e.generate([list(range(9, 4000)), [5, 6, 7]], max_tokens=30)
    print(json.dumps([before, device_memory(), e.config["graphs"]]))
"""


def test_the_driver_takes_no_more_than_is_assumed() -> None:
    if device_memory() is None:
        pytest.skip("neither pynvml nor nvidia-smi tells the device's memory")
    p = stoker.plan(SYNTHETIC, "mtp:4", slots=2, context=9000)
    run = subprocess.run([sys.executable, "-c", MEASURE, json.dumps(sys.path)], capture_output=True,
                         text=True, check=True)  # fmt: skip
    before, after, graphs = json.loads(run.stdout.splitlines()[-1])
    print(f"taken {after - before:,}, planned {p.device:,} and {p.estimate}; {graphs} graphs")
    assert p.device <= after - before <= p.need + 8 * GRAIN


def test_a_lower_tier_does_not_leave_the_scratch(tmp_path: Path) -> None:
    """Attention of 32 heads takes more rows at once below position 32,768 than at 131,072, and wanted
    more scratch there than a context of 131,072 had. State after a prefill through that tier, bit
    for bit that of an engine whose last tier it is."""
    shape = tiny.Shape(dim=4096, n_layer=1, n_head=32, n_kv=8, ffn=512, ctx=131072, types=TYPES)
    path = tiny.write(tmp_path / "m.gguf", shape, seed=5)
    ids = np.random.default_rng(5).integers(0, 256, 9_500).tolist()
    states = []
    for context in (32768, 131072):
        with engine(path, context=context, prefill_chunk=512) as e:
            prefill(e, ids, 1)
            e._session.finish(0, -1)
            states.append(e._session.save(0))
            assert len(e.generate(ids[:50], 5, ignore_eos=True).ids) == 5
    assert states[0] == states[1]
