"""The floor of a CUDA device: what copying, reading, starting and waiting cost when nothing else is
done. docs/measuring.md says how it is measured and what it is for.

A floor that is too slow would flatter whatever is compared with it, so on the GPU that the limits
below were measured on the harness has to reach them, or says that it is no floor."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from . import _native

MIB, GIB = 1 << 20, 1 << 30
REFERENCE = "NVIDIA H200"  # the one GPU that the limits are for
AUTO = -1  # launch shape by size

# device, kind, n, bytes, programmatic, shape, samples -> microseconds [samples], what ran
Measure = Callable[[int, str, int, int, bool, int, int], tuple[NDArray[np.float64], dict[str, int]]]


@dataclass(frozen=True)
class Line:
    """One line of the table. `traffic` bytes make it a rate in TB/s, else it is microseconds for
    each of `parts`."""

    name: str
    kind: str
    n: int = 1
    bytes: int = 0
    programmatic: bool = False
    shape: int = AUTO
    traffic: int = 0
    parts: int = 1
    limit: float | None = None  # at least so many TB/s, at most so many us; on REFERENCE

    @property
    def unit(self) -> str:
        return "TB/s" if self.traffic else "us"

    def values(self, us: Iterable[float]) -> list[float]:
        if self.traffic:
            return [self.traffic / t * 1e-6 for t in us]
        return [t / self.parts for t in us]

    def reached(self, value: float) -> bool:
        if self.limit is None:
            return True
        return value >= self.limit if self.traffic else value <= self.limit

    def expected(self) -> str:
        return f"at {'least' if self.traffic else 'most'} {self.limit:g} {self.unit}"


def _size(n: int) -> str:
    return f"{n // GIB} GiB" if n % GIB == 0 else f"{n // MIB} MiB"


def lines() -> list[Line]:
    """The whole table, in the order in which it is measured."""
    out = [Line("copy, 2 GiB to 2 GiB", "copy", bytes=2 * GIB, traffic=4 * GIB)]
    for size in (8 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB, 4 * GIB):
        out.append(Line(f"read, {_size(size)}", "read", bytes=size, traffic=size,
                        limit=4.3 if size == 4 * GIB else None))  # fmt: skip
    for n in (1, 500, 1000, 4000):
        out.append(Line(f"empty node, of {n}", "empty", n, parts=n))
        if n > 1:
            out.append(Line(f"empty node, of {n}, programmatic", "empty", n, programmatic=True,
                            parts=n))  # fmt: skip
    for n in (1, 1000, 4000):
        out.append(Line(f"launch call, {n} nodes", "submit", n))
    for n in (1, 1000, 4000):
        out.append(Line(f"launch to return, {n} nodes", "return", n))
    out.append(Line("fork, two branches, join", "fork", 100, parts=100))
    for blocks in (1, 2):
        name = f"grid barrier, {blocks} block{'s' * (blocks > 1)} an SM"
        out.append(Line(name, "barrier", 1000, shape=blocks, parts=1000))
    for size, limit in ((2 * MIB, 2.0), (8 * MIB, 4.2), (16 * MIB, 6.3)):
        for edge in (False, True):
            name = f"read node, {_size(size)}, of 300{', programmatic' * edge}"
            # Of the two kinds of edges the faster one is the floor.
            out.append(Line(name, "chain", 300, size, edge, parts=300,
                            limit=limit if edge else None))  # fmt: skip
    return out


def device_index(device: str) -> int:
    """The number in "cuda" or "cuda:N".

    Raises:
        InvalidArgumentError: it is another text.
    """
    kind, _, number = device.partition(":")
    if kind != "cuda" or not (number == "" or (number.isascii() and number.isdigit())):
        from .errors import InvalidArgumentError

        raise InvalidArgumentError(f"device: expected cuda or cuda:N, found {device!r}")
    return int(number or 0)


def clocks(index: int) -> dict[str, Any] | None:
    """Clocks, power and temperature by the driver's management library; None without pynvml."""
    try:
        import pynvml as nvml

        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        index = int(visible.split(",")[index]) if visible else index
        nvml.nvmlInit()
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            return {
                "sm_mhz": nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
                "memory_mhz": nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
                "power_w": nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
                "temperature_c": nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
                "throttle_reasons": nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu),
                "driver": str(nvml.nvmlSystemGetDriverVersion()),
            }
        finally:
            nvml.nvmlShutdown()
    except Exception:  # a diagnosis beside the measurement, which is complete without it
        return None


def revision() -> str | None:
    """The git revision of the sources, "-dirty" with changes; None outside of a work tree."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "-C", str(root), "describe", "--always", "--dirty",
                               "--abbrev=40", "--exclude=*"], capture_output=True, text=True,
                              check=True, timeout=10)  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def provenance(index: int, samples: int) -> dict[str, Any]:
    return {
        "kind": "floor",
        "record": "provenance",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": _native.device_info(index),
        "clocks": clocks(index),
        "stoker": _native.__version__,
        "build": _native.build_info(),
        "revision": revision(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "samples": samples,
    }


def _shapes(line: Line) -> list[int]:
    """Launch shapes to try. Which one is fastest depends on the size and on the GPU."""
    if line.kind == "read" or line.kind == "chain":
        return [AUTO, *range(len(_native.floor_shapes()))]
    return [line.shape]


def _shape_text(line: Line) -> Any:
    if line.kind not in ("read", "chain") or line.shape == AUTO:
        return "auto" if line.kind in ("read", "chain") else None
    return list(_native.floor_shapes()[line.shape])


def measure_line(line: Line, index: int, samples: int, measure: Measure) -> dict[str, Any]:
    """The record of one line: each launch shape is tried, the fastest one measured again."""

    def run(what: Line) -> tuple[list[float], dict[str, int]]:
        us, ran = measure(index, what.kind, what.n, what.bytes, what.programmatic, what.shape,
                          samples)  # fmt: skip
        return [round(float(t), 4) for t in us], ran

    tries = []
    shapes = _shapes(line)
    for shape in shapes if len(shapes) > 1 else ():
        us, _ = run(replace(line, shape=shape))
        tries.append({"shape": _shape_text(replace(line, shape=shape)), "samples_us": us})
    if tries:
        best = min(range(len(tries)), key=lambda i: np.median(tries[i]["samples_us"]))
        line = replace(line, shape=shapes[best])
    us, ran = run(line)
    p10, median, p90 = np.percentile(line.values(us), (10, 50, 90)).tolist()
    return {
        "kind": "floor", "record": "line", "line": line.name, "what": line.kind, "n": line.n,
        "bytes": line.bytes, "programmatic": line.programmatic, "shape": _shape_text(line),
        "unit": line.unit, "median": median, "p10": p10, "p90": p90, "limit": line.limit,
        "reached": line.reached(median), "ran": dict(ran), "clocks": clocks(index),
        "samples_us": us, "tries": tries,
    }  # fmt: skip


def _beyond(record: dict[str, Any], done: Sequence[dict[str, Any]]) -> float | None:
    """What launch to return takes longer than the device needs for the same graph."""
    for r in done:
        if (record.get("what"), r.get("what")) == ("return", "empty") and (
            (r["n"], r["programmatic"]) == (record["n"], record["programmatic"])
        ):
            return float(record["median"] - r["median"] * r["n"])
    return None


def measure_floor(
    index: int = 0,
    samples: int = 20,
    table: Sequence[Line] | None = None,
    measure: Measure | None = None,
    head: dict[str, Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yields the records of a whole measurement: provenance, one a line, and the end with
    `complete`. A line for which the device has not the memory or the edges is a record with
    `error`.

    Raises:
        UnsupportedError, DeviceError: the device cannot be used, or failed.
    """
    from .errors import OutOfMemoryError, UnsupportedError

    if measure is None:
        _native.device_need(index)
        measure = _native.floor_run  # type: ignore[assignment]
    assert measure is not None
    head = provenance(index, samples) if head is None else head
    yield head
    done: list[dict[str, Any]] = []
    for line in lines() if table is None else table:
        try:
            record = measure_line(line, index, samples, measure)
        except (OutOfMemoryError, UnsupportedError) as error:
            record = {"kind": "floor", "record": "line", "line": line.name, "error": str(error),
                      "limit": line.limit, "reached": False, "unit": line.unit}  # fmt: skip
        if (beyond := _beyond(record, done)) is not None:
            record["beyond_device_us"] = beyond
        done.append(record)
        yield record
    reference = head["device"]["name"] == REFERENCE
    missed = [r["line"] for r in done if r["limit"] is not None and not r["reached"]]
    yield {
        "kind": "floor", "record": "end", "clocks": clocks(index), "reference": reference,
        "missed": missed if reference else [], "is_floor": not missed if reference else None,
        "complete": True,
    }  # fmt: skip


def row(record: dict[str, Any]) -> tuple[str, ...]:
    """A line's record as the cells of COLUMNS."""
    if "error" in record:
        return (record["line"], "", record["unit"], "", "", "", record["error"])
    limit = record["limit"]
    bound = "" if limit is None else f"{'>=' if record['unit'] == 'TB/s' else '<='} {limit:g}"
    shape = record["shape"]
    text = " x ".join(map(str, shape)) if isinstance(shape, list) else shape or ""
    if "beyond_device_us" in record:
        text = f"{record['beyond_device_us']:.1f} us beyond the device"
    median, p10, p90 = (f"{record[k]:.3f}" for k in ("median", "p10", "p90"))
    return (record["line"], median, record["unit"], p10, p90, bound, text)


COLUMNS = ("line", "median", "unit", "p10", "p90", "limit", "note")


def verdict(records: Sequence[dict[str, Any]]) -> str:
    """One sentence out of all records: is this a floor?"""
    end = records[-1]
    if not end.get("complete"):
        return "floor: incomplete"
    if not end["reference"]:
        return f"floor: no reference for this GPU ({records[0]['device']['name']})"
    if end["is_floor"]:
        n = sum(r.get("limit") is not None for r in records)
        return f"floor: all {n} limits reached"
    limits = {line.name: line.expected() for line in lines() if line.limit is not None}
    parts = []
    for r in records:
        if r.get("line") in end["missed"]:
            found = r.get("error") or f"{r['median']:.3f} {r['unit']}"
            parts.append(
                f"{r['line']}: expected {limits.get(r['line'], r['limit'])}, found {found}"
            )
    return "NOT A FLOOR: " + "; ".join(parts)


def write(record: dict[str, Any], out: TextIO | None) -> None:
    """Appends one record; flushed, so that a run that dies leaves what it measured."""
    if out is not None:
        out.write(json.dumps(record) + "\n")
        out.flush()


def floor_of_round(
    node_bytes: Sequence[int],
    programmatic: bool = True,
    device: int = 0,
    samples: int = 20,
    chain: Any = None,
) -> NDArray[np.float64]:
    """Microseconds a replay, float64 [samples], of a graph with as many dependent nodes that read as
    many bytes each as a round does, and do nothing else.

    Every launch shape is tried and the fastest one measured again; the reads go round in a bounded
    arena of at least four times the L2.
    """
    chain = _native.floor_chain if chain is None else chain
    sizes = np.asarray(node_bytes, np.uint64)
    medians = {}
    for shape in (AUTO, *range(len(_native.floor_shapes()))):
        us, _ = chain(device, sizes, programmatic, samples, shape)
        medians[shape] = float(np.median(us))
    us, _ = chain(device, sizes, programmatic, samples, min(medians, key=lambda s: medians[s]))
    return us


CONTROL = {"ctl_read", "commit", "draft_none", "draft_ngram", "draft_planted", "round_rows", "accept",
           "publish", "rope_attend"}  # fmt: skip


def nodes_of(engine: Any, full: bool = False, nodes: int | None = None) -> list[int]:
    """Bytes of weights that each node of an engine's round reads, for `floor_of_round`. `nodes`: how
    many the recorded graph has; what has no weights counts as a word."""
    steps = engine._session.step_bytes(full)
    sizes = [size for op, size in steps if op not in CONTROL]
    return sizes + [64] * max(0, (len(steps) if nodes is None else nodes) - len(sizes))
