"""Ten thousand replays: nothing on the device or on the host grows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
from gpu_tools import device_memory
from test_gpu_engine import TYPES, engine, prefill

pytestmark = [pytest.mark.gpu, pytest.mark.gpu_long]
REPLAYS = 10_000


def host_memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


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
