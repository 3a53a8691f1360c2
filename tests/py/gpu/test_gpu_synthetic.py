"""Synthetic weights on a GPU: made there, with the bits that the host makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import stoker
from stoker import _native

pytestmark = pytest.mark.gpu
MOST = 1 << 20


@pytest.mark.parametrize("quant", ["iq3_s", "q4_k", "q8_0", "bf16"])
def test_the_same_bits(quant: str) -> None:
    """Of every tensor the beginning, the end and something between."""
    ck = stoker.synthetic("flash-next", quant=quant, layers=4, ple_rows=4096)
    for name in ck:
        data = ck[name].numpy().reshape(-1).view(np.uint8)
        each = _native.types()[ck[name].type][2]
        n = min(len(data), MOST // each * each)
        for at in {0, (len(data) - n) // 2 // each * each, len(data) - n}:
            got = _native.synth_on_device(ck._native, name, at, n)
            assert got == data[at : at + n].tobytes(), (name, at)


def resident() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


def test_the_host_makes_none_of_them() -> None:
    warm = stoker.synthetic("llama", quant="q8_0", layers=1)
    stoker.Engine(warm, device="cuda:0", context=64).close()  # the driver takes its own
    ck = stoker.synthetic("llama", quant="q8_0", layers=8, seed=3)
    before = resident()
    with stoker.Engine(ck, device="cuda:0", context=64) as engine:
        weights = engine.memory["device: weights, packed"]
        assert resident() - before < weights / 8
        prompt = list(range(20, 40))
        tokens = engine.generate(prompt, max_tokens=8).ids
    ck["output.weight"].numpy()  # what is on the host by now changes nothing
    with stoker.Engine(ck, device="cuda:0", context=64) as engine:
        assert engine.generate(prompt, max_tokens=8).ids == tokens
