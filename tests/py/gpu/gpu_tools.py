"""What the tests of the CUDA backend share: its types and pass widths, inputs and comparisons."""

from __future__ import annotations

import os
import subprocess

import numpy as np
from blocks import sizes
from op_tools import BLOCKS, bf16
from tolerances import close_bf16, close_elements, from_bf16, to_bf16

F = np.float32
TYPES = ("F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", *BLOCKS)
NARROW = (1, 5, 8, 9, 17, 20, 25, 40)  # rows of a pass; more than 40 take the wide kernels
WIDE = (41, 64, 100)
THREADS = min(8, len(os.sched_getaffinity(0)))  # of the definition
SPLIT = 128  # of attend, the only one that has kernels


def block(kind: str) -> int:
    """Columns come in multiples of this."""
    return sizes(kind)[0] if kind in BLOCKS else 32


def behind(x: np.ndarray, count: int, capacity: int) -> np.ndarray:
    """The first `count` rows of x, and rows of NaN up to the capacity."""
    out = np.full((capacity, *x.shape[1:]), np.nan, F)
    out[:count] = x[:count]
    return out


def rows_apart(x: np.ndarray, gap: int = 5) -> np.ndarray:
    """The same values, and NaN between what is beside each other along the first dimension."""
    room = np.full((len(x), x[0].size + gap), np.nan, F)
    room[:, : x[0].size] = x.reshape(len(x), -1)
    return room[:, : x[0].size].reshape(x.shape)  # a view


def rounded(x: np.ndarray):
    """Argument of BF16 activations."""
    return bf16(to_bf16(np.ascontiguousarray(x, F)))


def near(kind: str, got: np.ndarray, want: np.ndarray) -> None:
    """Outputs of both tables, as stored in BF16 or F32."""
    if kind == "BF16":
        close_bf16(got, from_bf16(want))
    else:
        close_elements(got, want)


def stored(weight) -> np.ndarray:
    """The array [n, .] in which a weight lies, to change rows in it."""
    return weight if isinstance(weight, np.ndarray) else weight[1]


def device_memory() -> int | None:
    """Bytes in use on device 0, by all processes; None when nobody can tell."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
    except Exception:  # no package, no library, no permission
        pass
    ask = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(ask, capture_output=True, text=True, timeout=30, check=True)
        return int(said.stdout) << 20
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
