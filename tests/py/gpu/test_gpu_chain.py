"""Chains of one op: times of what was asked for, outputs as defined, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from op_tools import act, ints, run, weights
from stoker import _native
from stoker.errors import InvalidArgumentError, StateError
from tolerances import close_linear

pytestmark = pytest.mark.gpu
N, K = 512, 512
EDGES = _native.device_count() > 0 and _native.device_info(0)["compute_capability"][0] >= 9


def linear(kind: str, rows: int, seed: int = 0):
    """(fields, what y should be)."""
    rng = np.random.default_rng(seed)
    w, _ = weights(kind, N, K, rng)
    x, _ = act(rng.standard_normal((rows, K)), "BF16")
    y, want = np.full((rows, N), np.nan, np.float32), np.empty((rows, N), np.float32)
    fields = {"x": x, "count": ints(rows), "w[0]": w, "y[0]": y}
    run("linear", x=x, count=ints(rows), w0=w, y0=want)
    return fields, want


@pytest.fixture
def chain():
    fields, _ = linear("Q8_0", 5)
    made = _native.OpChain("linear", fields, ("w[0]",), 3)
    yield made
    made.close()


@pytest.mark.parametrize("edges", (False, pytest.param(True, marks=pytest.mark.skipif(
    not EDGES, reason="this GPU has no programmatic edges"))))  # fmt: skip
@pytest.mark.parametrize("rows", (1, 5, 20))
def test_times_are_positive_and_outputs_right(chain, rows, edges):
    fields, want = linear("Q8_0", rows)
    ran = chain.record(fields, {}, 7, edges)
    assert ran["nodes"] % 7 == 0 and ran["edges"] == ran["nodes"] - 1
    assert ran["programmatic"] >= (6 if edges else 0)
    assert ran["bytes"] >= fields["w[0]"][1].nbytes
    us, run_us = chain.time(0.01, 70, 0.001)  # more than two groups
    assert us.shape == (70,) and (us > 0).all() and run_us > 0
    chain.outputs()
    close_linear(fields["y[0]"], want)


def test_recordings_follow_one_another(chain):
    fields, want = linear("Q8_0", 5)
    for shape in (-1, 0, 3):
        ran = chain.record_stream(fields["w[0]"][1].nbytes, 5, False, shape)
        assert (ran["nodes"], ran["edges"], ran["programmatic"]) == (5, 4, 0)
        us, _ = chain.time(0.0, 3, 0.0)
        assert (us > 0).all()
    chain.record(fields, {}, 4, False)
    chain.time(0.0, 1, 0.0)
    chain.outputs()
    close_linear(fields["y[0]"], want)


def test_nodes_take_turns_with_a_stack(chain):
    """Of three inputs the last of eight nodes has the second one."""
    made = [linear("Q8_0", 2, seed) for seed in range(3)]
    fields, _ = linear("Q8_0", 2)
    stack = np.stack([f["x"][1] for f, _ in made])
    want = np.empty_like(fields["y[0]"])
    run("linear", x=made[1][0]["x"], count=ints(2), w0=fields["w[0]"], y0=want)
    chain.record(fields, {"x": stack}, 8, False)
    chain.outputs()
    close_linear(fields["y[0]"], want)


def test_out_of_order_and_out_of_range(chain):
    fields, _ = linear("Q8_0", 5)
    with pytest.raises(StateError, match="chain: expected a recording, found none"):
        chain.time(0.0, 1, 0.0)
    with pytest.raises(InvalidArgumentError, match="chain: nodes: expected 1 to 4096, found 0"):
        chain.record(fields, {}, 0, False)
    with pytest.raises(ValueError, match=r"chain: linear: x: expected a stack of whole fields"):
        chain.record(fields, {"x": np.zeros(7, np.uint16)}, 4, False)
    with pytest.raises(InvalidArgumentError, match=r"w\[0\]: expected an input that is no weight"):
        chain.record(fields, {"w[0]": fields["w[0]"][1]}, 4, False)
    other, _ = linear("Q4_0", 5)
    with pytest.raises(InvalidArgumentError, match="expected the type and shape that the chain"):
        chain.record(other, {}, 4, False)
    with pytest.raises(InvalidArgumentError, match="launch shape 99: there is none"):
        chain.record_stream(4096, 4, False, 99)
    with pytest.raises(InvalidArgumentError, match="chain: bytes: expected 1 to"):
        chain.record_stream(1 << 40, 4, False)
    chain.record_stream(4096, 4, False)
    with pytest.raises(InvalidArgumentError, match="chain: samples: expected 1 to"):
        chain.time(0.0, 0, 0.0)
    with pytest.raises(StateError, match="chain: expected a recording of the op, found none"):
        chain.outputs()
    chain.close()
    with pytest.raises(StateError, match="chain: expected open, found it closed"):
        chain.record_stream(4096, 4, False)
