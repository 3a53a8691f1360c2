"""Tests that need a CUDA device: without one all of them are skipped, with the reason.

The long ones (marker gpu_long) are left out unless the environment has STOKER_GPU_LONG=1."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent, HERE.parent.parent / "oracle"):  # also without the other conftest
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    from stoker import _native

    here = [item for item in items if HERE in item.path.parents]
    if os.environ.get("STOKER_GPU_LONG") != "1":
        long = [item for item in here if item.get_closest_marker("gpu_long")]
        items[:] = [item for item in items if item not in long]
        if long:
            config.hook.pytest_deselected(items=long)
    if here and _native.device_count() == 0:
        for item in here:
            item.add_marker(pytest.mark.skip(reason="there is no CUDA device here"))
