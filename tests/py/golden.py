"""Comparison with stored reference logits (tools/make_golden.py made them)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from stoker import Engine

DATA = Path(__file__).parent.parent / "data"
BOUND = 1e-4  # of the row's largest magnitude, in numerics f32


def check(model: Path, name: str, context: int) -> None:
    """Every stored prompt: last row, sampled columns, and the argmax of all rows."""
    golden = np.load(DATA / name)
    last, every = json.loads(str(golden["provenance"]))["strides"]
    prompts = [k for k in golden if k.endswith(".ids")]
    assert len(prompts) >= 3
    with Engine(model, numerics="f32", device="cpu", context=context) as e:
        for i in range(len(prompts)):
            logits = e.evaluate(golden[f"{i}.ids"])["logits"]
            peak, columns = golden[f"{i}.row_max"], golden[f"{i}.columns"]
            n = len(columns)
            assert np.abs(logits[-1, ::last] - golden[f"{i}.last"]).max() / peak[-1] < BOUND
            assert (np.abs(logits[-n:, ::every] - columns).max(1) / peak[-n:]).max() < BOUND
            assert (logits.argmax(1) == golden[f"{i}.argmax"]).all()


def ids_are_ours(model: Path, name: str) -> None:
    """The stored token ids are those of our tokenizer."""
    golden = np.load(DATA / name)
    texts = json.loads(str(golden["provenance"]))["prompts"]
    with Engine(model, device="cpu", context=64) as e:
        for i, (title, text) in enumerate(texts.items()):
            assert str(golden[f"{i}.name"]) == title
            assert e.encode(text).tolist() == golden[f"{i}.ids"].tolist()
