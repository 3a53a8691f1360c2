"""The step diff on a GPU: every step of prefill and rounds within the bounds, on the CPU's inputs."""

from __future__ import annotations

from pathlib import Path

import pytest
import stoker
import tiny
from test_engine import PROMPT
from test_gpu_engine import SHAPES

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("drafter", ["none", "ngram:4"])
@pytest.mark.parametrize("arch", SHAPES)
def test_every_step_is_within_bounds(arch: str, drafter: str, tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf", SHAPES[arch], seed=5)
    prompts = [PROMPT[:8], PROMPT[:40], PROMPT[:1]]
    records = stoker.diff(path, prompts, rounds=6, drafter=drafter, context=160, prefill_chunk=32)
    assert len(records) > 100 and all(r.ok for r in records)
