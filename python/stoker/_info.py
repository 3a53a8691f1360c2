"""What this installation is: versions, build, CPU, devices or the one reason why there is none."""

import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from . import _native

# What the kernels and the CPU executor could ever ask for, out of the hundred flags of a CPU.
_CPU_FLAGS = {
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8"),
    *("avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"),
    *("asimd", "asimddp", "asimdhp", "bf16", "i8mm", "sve", "sve2"),
}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cpu() -> dict[str, Any]:
    """The processor: model, machine, threads that this process may use, features."""
    model, flags = platform.processor() or platform.machine(), set()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                model = value.strip()
            elif key.strip() in ("flags", "Features"):
                flags = set(value.split())
                break
    except OSError:
        pass
    return {
        "model": model,
        "machine": platform.machine(),
        "threads": len(os.sched_getaffinity(0)),
        "features": sorted(flags & _CPU_FLAGS),
    }


def _devices() -> dict[str, Any]:
    n = _native.device_count()
    if not n:
        try:
            _native.device_need(0)
        except _native.Error as e:
            return {"devices": [], "no_device": str(e)}
    devices = []
    for i in range(n):
        entry: dict[str, Any] = {**_native.device_info(i)}
        try:
            _native.device_need(i)
            entry["usable"] = True
        except _native.Error as e:
            entry["usable"] = False
            entry["why_not"] = str(e)
        devices.append(entry)
    return {"devices": devices, "no_device": None}


def info() -> dict[str, Any]:
    """Versions, build, CPU features and CUDA devices, as plain data.

    `no_device` is None when there is a CUDA device, otherwise the reason why there is none. This
    starts the CUDA driver, if there is one."""
    return {
        "stoker": _native.__version__,
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "platform": platform.platform(),
        "packages": {p: _version(p) for p in ("numpy", "tokenizers", "jinja2", "rich")},
        "build": _native.build_info(),
        "cpu": cpu(),
        **_devices(),
    }
