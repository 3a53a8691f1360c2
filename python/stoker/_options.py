"""Options of an engine: their domains, their defaults, and how the native half takes them. Whoever
only plans has them from here too, so that both mean the same."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from .checkpoint import Checkpoint
from .drafter import KINDS, Drafter
from .errors import InvalidArgumentError, UnsupportedError

MODES = ("graph", "eager", "direct")  # by sk_mode
KERNELS = ("fast", "definition", "generic", "avx2", "avx512")
TABLES = ("device", "ram")  # where a table of hashed n-grams is


def settle(
    device: str, numerics: str, threads: int | None, prefill_chunk: int | None, **numbers: object
) -> tuple[int, int]:
    """Threads and rows of a prefill pass with their defaults. Refuses numbers that are none, and
    numerics that the device does not have."""
    threads = len(os.sched_getaffinity(0)) if threads is None else threads
    if prefill_chunk is None:
        prefill_chunk = 64 if device == "cpu" else 512
    if numerics == "f32" and device != "cpu":
        raise UnsupportedError(f"numerics f32: expected device cpu, found {device}")
    for name, value in (*numbers.items(), ("threads", threads), ("prefill_chunk", prefill_chunk)):
        int32(name, value)
    return threads, prefill_chunk


def native_options(
    d: Drafter,
    device: str,
    slots: int,
    context: int,
    numerics: str,
    prefill_chunk: int,
    threads: int,
    embedding_table: str = "device",
    kernels: str = "fast",
    poison: bool = False,
    mode: str = "graph",
    edges: bool = True,
    fused: bool = True,
    forced: tuple[bool, int, bool, int] | None = None,
) -> tuple[Any, ...]:
    """Options of `_native.Session` and `_native.sizes`; device "cpu" or "cuda:N"."""
    return (
        slots, context, prefill_chunk, threads, numerics == "f32", kernels, poison,
        -1 if device == "cpu" else int(device[5:]), MODES.index(mode), edges, KINDS[d.kind],
        d.proposals, d.n_max, d.n_min, d.hidden_norm == "per_stream", embedding_table == "ram",
        fused,
        forced or (False, 0, False, 0),
    )  # fmt: skip


def device_named(device: object, expected: str) -> str:
    """ "cpu" or "cuda:N"; whether there is such a device is not asked."""
    name = device if isinstance(device, str) else ""
    if name == "cpu":
        return "cpu"
    kind, _, number = name.partition(":")
    if kind != "cuda" or not (number == "" or (number.isascii() and number.isdigit())):
        raise InvalidArgumentError(f"device: expected {expected}, found {device!r}")
    index = int(number or 0)
    int32("device", index)
    return f"cuda:{index}"


def trained_context(checkpoint: Checkpoint) -> int:
    """Positions that the model was made for; 0 where nothing says."""
    if checkpoint.format == "safetensors":
        config = checkpoint.config or {}
        value = config.get("text_config", config).get("max_position_embeddings")
    else:
        value = checkpoint.metadata.get(f"{checkpoint.architecture}.context_length")
    return value if isinstance(value, int) and value > 0 else 0


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise InvalidArgumentError(f"{name}: expected {' or '.join(allowed)}, found {value!r}")


def int32(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise InvalidArgumentError(f"{name}: expected an integer, found {value!r}")
    if not -(2**31) <= value < 2**31:
        raise InvalidArgumentError(f"{name}: expected a 32-bit integer, found {value}")
