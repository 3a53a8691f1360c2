"""Time of one op on a GPU as it stands in a round: a recorded chain of dependent nodes, each with its
own copy of the weights, replayed without a pause.

    PYTHONPATH=python python benchmarks/linear.py [--types Q6_K,BF16] [--shapes 16384x2560]
        [--rows 1,5,20] [--out benchmarks/results/linear.jsonl]
    ... --all-types     every type that has kernels, on one shape
    ... --parts auto    beside each product the one that leaves its sum in parts; beside the head the
                        one that picks the largest output
    ... --experts       the grouped products of a mixture of experts

A cell is type x shape x rows. Beside it stands the same chain with nothing in its nodes but the reading
of as many bytes (the best launch shape of the floor), and the laboratory's figure, which is the best
of many variants and leaves the sum over slices to the consumer. Rates are bytes of the file over
time. Outputs are compared with the op's definition, for some of their columns; exit status 1 when they
are wrong. With --out, JSON Lines with all samples are appended; what says `complete` comes last."""

from __future__ import annotations

import argparse
import datetime
import math
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "py"))

from blocks import PLAIN, WEIGHTS, random_blocks, sizes
from stoker import _native, floor
from tolerances import BF16_SHARE, ELEMENTWISE, LINEAR_REL_L2, from_bf16, to_bf16

PARTS = {2560: 2, 6144: 8}  # of K, with `--parts auto`
CEILING = 4.5  # TB/s, reads of an H200
TYPES = ("Q8_0", "Q6_K", "Q4_K", "IQ4_NL", "IQ4_XS", "F16", "BF16")
HEAD = (248320, 2560)
SHAPES = ((16384, 2560), (13312, 2560), (2560, 6144), HEAD)
POOL = 16 << 20  # bytes of random blocks, repeated to the size of a weight
REPLAY_US = 1500.0  # what a replay should take about: many nodes, many replays
SAMPLES = 40
BF16_ID = 30  # of the type, as a constant of a plan

# The laboratory's best cells, us by rows. The head was measured with argmax in the kernel and no
# logits written.
LAB: dict[tuple[int, int], dict[str, dict[int, float]]] = {
    (16384, 2560): {
        "BF16": {1: 19.3, 5: 19.6, 20: 21.9, 32: 22.7},
        "F16": {1: 20.2, 5: 20.7, 20: 23.1, 32: 23.9},
        "Q8_0": {1: 12.1, 5: 12.3, 20: 15.0, 32: 16.8},
        "Q6_K": {1: 10.8, 5: 10.9, 20: 14.8, 32: 17.9},
        "Q4_K": {1: 9.7, 5: 10.0, 20: 16.7, 32: 19.1},
        "IQ4_NL": {1: 9.7, 5: 10.1, 20: 14.4, 32: 16.2},
        "IQ4_XS": {1: 9.5, 5: 10.1, 20: 15.1, 32: 16.8},
    },
    (13312, 2560): {
        "BF16": {1: 15.9, 5: 16.2, 20: 18.3, 32: 19.2},
        "F16": {1: 17.1, 5: 17.7, 20: 19.8, 32: 21.1},
        "Q8_0": {1: 10.2, 5: 10.9, 20: 13.8, 32: 15.8},
        "Q6_K": {1: 9.5, 5: 10.0, 20: 14.4, 32: 16.5},
        "Q4_K": {1: 8.8, 5: 9.2, 20: 15.7, 32: 18.2},
        "IQ4_NL": {1: 8.4, 5: 8.9, 20: 13.4, 32: 15.0},
        "IQ4_XS": {1: 8.9, 5: 9.2, 20: 14.2, 32: 15.6},
    },
    (2560, 6144): {
        "BF16": {1: 8.8, 5: 9.1, 20: 10.3, 32: 10.7},
        "F16": {1: 10.5, 5: 10.6, 20: 12.2, 32: 13.6},
        "Q8_0": {1: 5.8, 5: 5.8, 20: 9.1, 32: 10.2},
        "Q6_K": {1: 5.7, 5: 6.1, 20: 7.5, 32: 10.1},
        "Q4_K": {1: 5.3, 5: 5.3, 20: 8.9, 32: 11.1},
        "IQ4_NL": {1: 4.8, 5: 4.8, 20: 7.1, 32: 9.4},
        "IQ4_XS": {1: 5.0, 5: 5.0, 20: 7.3, 32: 9.5},
    },
    (248320, 2560): {"Q6_K": {1: 122.4, 5: 122.7, 20: 156.5, 32: 191.0}},
}

# Bits of nvml's throttle reasons.
THROTTLE = {0x4: "power cap", 0x8: "hardware", 0x20: "heat", 0x40: "hardware heat",
            0x80: "power brake"}  # fmt: skip


@dataclass
class Case:
    """One cell: an op with its arguments as `_native.run_op` takes them, and what a node reads."""

    op: str
    fields: dict[str, Any]
    weights: tuple[str, ...]
    name: dict[str, Any]  # type, shape, rows, parts
    file_bytes: int  # that a node has to read
    lab: float | None = None
    stacks: dict[str, np.ndarray] = field(default_factory=dict)
    ready: int = -1  # of the row counts, as in a round
    tolerance: float = LINEAR_REL_L2

    def check(self, nodes: int) -> float:
        """Largest relative error of a row of the outputs in `fields`, as those of the last node."""
        raise NotImplementedError


# ---- weights -----------------------------------------------------------------------------------


class Pool:
    """Random weights of one type, of any size: a few MB of blocks, repeated."""

    def __init__(self, kind: str, std: float, rng: np.random.Generator):
        self.kind = kind
        if kind in PLAIN:
            n = POOL // (4 if kind == "F32" else 2)
            w = rng.standard_normal(n, np.float32) * np.float32(std)
            w = w.astype(np.float16) if kind == "F16" else to_bf16(w) if kind == "BF16" else w
            self.raw = w.view(np.uint8)
        else:
            n = POOL // sizes(kind)[1]
            self.raw = random_blocks(kind, n, std, rng).ravel()

    def row_bytes(self, k: int) -> int:
        if self.kind in PLAIN:
            return k * (4 if self.kind == "F32" else 2)
        elements, size = sizes(self.kind)
        if k % elements:
            raise ValueError(f"{self.kind}: {k} columns are no whole number of blocks")
        return k // elements * size

    def bytes_of(self, dims: tuple[int, ...]) -> int:
        return int(np.prod(dims[:-1])) * self.row_bytes(dims[-1])

    def weight(self, dims: tuple[int, ...], room: np.ndarray, turn: int = 0) -> tuple:
        """The op's argument, in memory that is used again; `turn` rows on for another one."""
        out = room[: self.bytes_of(dims)]
        raw = np.roll(self.raw, turn * self.row_bytes(dims[-1])) if turn else self.raw
        for at in range(0, len(out), len(raw)):
            part = out[at : at + len(raw)]
            part[:] = raw[: len(part)]
        return self.kind, out, dims


def acts(rows: int, k: int, rng: np.random.Generator):
    bits = to_bf16(rng.standard_normal((rows, k)).astype(np.float32))
    return "BF16", bits, bits.shape


def relative(got: np.ndarray, want: np.ndarray) -> float:
    """Largest relative L2 error of a row; NaN counts as infinite."""
    if not np.isfinite(got).all():
        return float("inf")
    norm = np.linalg.norm(want.astype(np.float64), axis=-1)
    return float((np.linalg.norm(got.astype(np.float64) - want, axis=-1) / norm).max())


# ---- linear ------------------------------------------------------------------------------------


def rows_of(weight: tuple, picked: np.ndarray) -> tuple:
    kind, raw, (n, k) = weight
    some = np.ascontiguousarray(raw.reshape(n, -1)[picked])
    return kind, some.ravel(), (len(picked), k)


class Linear(Case):
    """linear, or linear_parts."""

    def check(self, nodes: int) -> float:
        w, y = self.fields["w[0]"], self.fields["y[0]"]
        n = y.shape[-1]
        picked = np.unique(np.r_[np.linspace(0, n - 1, 64).astype(int), n - 16 : n])
        want = np.empty((*y.shape[:-1], len(picked)), np.float32)
        few = self.fields | {"w[0]": rows_of(w, picked), "y[0]": want}
        _native.run_op(self.op, few, "definition", len(os.sched_getaffinity(0)))
        return relative(y[..., picked], want)


class Argmax(Case):
    """norm_argmax: by how much the choice scores less than the definition's, as of larger ones."""

    def check(self, nodes: int) -> float:
        ids = self.fields["id"]
        best = np.empty_like(ids)
        cpus = len(os.sched_getaffinity(0))
        _native.run_op("norm_argmax", self.fields | {"id": best}, "fast", cpus)
        if ids.min() < 0 or ids.max() >= self.fields["w"][2][0]:
            return float("inf")
        score = np.empty((len(ids), 2 * len(ids)), np.float32)
        few = {k: v for k, v in self.fields.items() if k not in ("w", "id")}
        few |= {"w[0]": rows_of(self.fields["w"], np.r_[best, ids]), "y[0]": score}
        _native.run_op("norm_linear", few, "definition", cpus)
        at = np.arange(len(ids))
        most, got = score[at, at], score[at, len(ids) + at]
        return float(((most - got) / np.abs(most)).max())


def linear_cases(pool: Pool, shape: tuple[int, int], rows: list[int], room: np.ndarray,
                 parts: int = 0) -> list[Case]:  # fmt: skip
    """linear, or with `parts` linear_parts, at several numbers of rows."""
    w, out = pool.weight(shape, room), []
    for p in rows:
        n = (parts, p, shape[0]) if parts else (p, shape[0])
        fields = {
            "x": acts(p, shape[1], np.random.default_rng(p)), "count": np.array([p], np.int32),
            "w[0]": w, "y[0]": np.full(n, np.nan, np.float32),
        }  # fmt: skip
        name = {"type": pool.kind, "shape": list(shape), "rows": p, "parts": parts}
        lab = LAB.get(shape, {}).get(pool.kind, {}).get(p)
        op = "linear_parts" if parts else "linear"
        out.append(Linear(op, fields, ("w[0]",), name, w[1].nbytes, lab))
    return out


def argmax_cases(pool: Pool, shape: tuple[int, int], rows: list[int],
                 room: np.ndarray) -> list[Case]:  # fmt: skip
    w, out = pool.weight(shape, room), []
    for p in rows:
        x = np.random.default_rng(p).standard_normal((p, shape[1])).astype(np.float32)
        fields = {
            "x": x, "gain": np.ones(shape[1], np.float32), "count": np.array([p], np.int32),
            "w": w, "id": np.full(p, -1, np.int32), "eps": 1e-6, "act": BF16_ID,
        }  # fmt: skip
        name = {"type": pool.kind, "shape": list(shape), "rows": p, "parts": 0}
        lab = LAB.get(shape, {}).get(pool.kind, {}).get(p)
        out.append(Argmax("norm_argmax", fields, ("w",), name, w[1].nbytes, lab,
                          tolerance=ELEMENTWISE))  # fmt: skip
    return out


# ---- experts -----------------------------------------------------------------------------------

EXPERTS, TOP, HIDDEN, WIDTH = 512, 10, 2560, 640
ENTRY = 32  # bytes of an entry of the work list
GLU_TYPES, DOWN_TYPES = ("IQ3_S", "IQ3_XXS", "IQ2_S", "IQ4_XS"), ("IQ4_NL",)
EXPERT_COPIES = 4
ROUTINGS = 24  # that nodes take in turn
GLU_REL_L2 = BF16_SHARE**0.5 * 2**-7  # so many outputs may round the other way

# The laboratory's best, with weights before the wait and (IQ3_XXS) in the file's bytes.
LAB_EXPERTS: dict[str, dict[int, float]] = {
    "IQ3_S": {5: 25.0, 20: 69.3}, "IQ3_XXS": {5: 26.6, 20: 77.1}, "IQ2_S": {5: 23.8, 20: 69.0},
    "IQ4_XS": {5: 26.4, 20: 84.7}, "IQ4_NL": {5: 14.2, 20: 40.8},
}  # fmt: skip


def routings(rows: int) -> tuple[dict[str, np.ndarray], int]:
    """Work lists of uniform random routings, for as many nodes, and the mean number of experts."""
    rng = np.random.default_rng(rows)
    lists = np.zeros((ROUTINGS, rows * TOP, ENTRY), np.uint8)
    ns, distinct = np.zeros((ROUTINGS, 1), np.int32), 0
    for i in range(ROUTINGS):
        ids = np.array([rng.choice(EXPERTS, TOP, replace=False) for _ in range(rows)], np.int32)
        distinct += len(np.unique(ids))
        fields = {"ids": ids, "count": np.array([rows], np.int32), "list": lists[i], "n": ns[i]}
        _native.run_op("route_list", fields, "definition", 1)
    return {"list": lists, "n": ns}, round(distinct / ROUTINGS)


def expert_dims(down: bool) -> tuple[int, int, int]:
    return (EXPERTS, HIDDEN, WIDTH) if down else (EXPERTS, WIDTH, HIDDEN)


class Experts(Case):
    def check(self, nodes: int) -> float:
        name = "out" if self.op == "expert_glu" else "y"
        given = self.fields[name]
        got = given[1] if isinstance(given, tuple) else given
        want = np.zeros_like(got)
        last = {k: v[(nodes - 1) % len(v)] for k, v in self.stacks.items()}
        again = (given[0], want, given[2]) if isinstance(given, tuple) else want
        fields = self.fields | last | {name: again}
        _native.run_op(self.op, fields, "definition", len(os.sched_getaffinity(0)))
        if got.dtype == np.float32:
            return relative(got, want)
        return relative(from_bf16(got), from_bf16(want))


def expert_cases(pool: Pool, down: bool, rows: list[int], room: np.ndarray) -> list[Case]:
    """expert_glu, or with `down` expert_linear, at several numbers of rows."""
    dims = expert_dims(down)
    size, out = pool.bytes_of(dims), []
    ws = {"w": pool.weight(dims, room)} if down else {
        "w[0]": pool.weight(dims, room), "w[1]": pool.weight(dims, room[size:], turn=1)
    }  # fmt: skip
    for p in rows:
        stacks, distinct = routings(p)
        rng, routes = np.random.default_rng(p), p * TOP
        fields = ws | {k: v[0] for k, v in stacks.items()}
        fields["x"] = acts(routes if down else p, dims[2], rng)
        if down:
            fields["y"] = np.full((routes, dims[1]), np.nan, np.float32)
        else:
            fields["out"] = ("BF16", np.full((routes, WIDTH), 0x7FC0, np.uint16), (routes, WIDTH))
            fields["gelu"] = 0
        n = dims[1] * len(ws)
        name = {"type": pool.kind, "shape": [n, dims[2]], "rows": p, "experts": distinct}
        # The list comes out of the step before gate and up, which is long over when down starts.
        out.append(Experts("expert_linear" if down else "expert_glu", fields, tuple(ws), name,
                           distinct * len(ws) * size // EXPERTS,
                           LAB_EXPERTS.get(pool.kind, {}).get(p), stacks, int(down),
                           LINEAR_REL_L2 if down else GLU_REL_L2))  # fmt: skip
    return out


# ---- measuring ---------------------------------------------------------------------------------


def clocks(index: int) -> dict[str, Any] | None:
    """As floor.clocks; by nvidia-smi where pynvml is missing."""
    found = floor.clocks(index)
    if found is not None:
        return found
    for reasons in ("clocks_event_reasons.active", "clocks_throttle_reasons.active"):
        ask = ["nvidia-smi", f"--id={index}", "--format=csv,noheader,nounits",
               f"--query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu,{reasons},"
               "driver_version"]  # fmt: skip
        try:
            said = subprocess.run(ask, capture_output=True, text=True, timeout=10, check=True)
            sm, memory, power, heat, why, driver = said.stdout.strip().split(", ")
            return {"sm_mhz": int(sm), "memory_mhz": int(memory), "power_w": float(power),
                    "temperature_c": int(heat), "throttle_reasons": int(why, 16),
                    "driver": driver}  # fmt: skip
        except (OSError, ValueError, subprocess.SubprocessError):
            continue
    return None


def tail_s() -> float:
    """Seconds of work left queued while the clocks are read: a process takes longer than a call."""
    try:
        import pynvml

        pynvml.nvmlInit()  # stays, so that later ones are quick
        return 0.05
    except Exception:  # as floor.clocks, which does without then
        return 0.5


def limits_of(found: dict[str, Any] | None) -> list[str]:
    bits = (found or {}).get("throttle_reasons", 0)
    return [name for bit, name in THROTTLE.items() if bits & bit]


def copies_of(case: Case, copy_bytes: int, l2: int) -> int:
    """So many that what a replay reads is at least four times the L2."""
    return EXPERT_COPIES if case.stacks else max(2, -(-4 * l2 // copy_bytes))


def nodes_of(case: Case, copies: int) -> int:
    """Of a replay of about REPLAY_US, every copy as often as the others."""
    nodes = min(96.0, max(16.0, REPLAY_US / max(4.0, case.file_bytes / 4e6)))
    turns = math.lcm(copies, *(len(v) for v in case.stacks.values()))
    return -(-int(nodes) // turns) * turns


def sampled(chain: Any, warm: float, samples: int, nodes: int, tail: float) -> dict[str, Any]:
    us, run = chain.time(warm, samples, tail)
    each = us / nodes
    p10, median, p90 = np.percentile(each, (10, 50, 90)).tolist()
    return {"us": median, "p10": p10, "p90": p90, "run_us": run / nodes,
            "samples_us": [round(float(t), 4) for t in each]}  # fmt: skip


def stream_only(chain: Any, size: int, nodes: int, edges: bool) -> dict[str, Any]:
    """The chain that only reads: every launch shape is tried, the fastest one measured again."""
    tries = {}
    for shape in range(len(_native.floor_shapes())):
        chain.record_stream(size, nodes, edges, shape)
        tries[shape] = float(np.median(chain.time(0.0, 8, 0.0)[0])) / nodes
    best = min(tries, key=lambda s: tries[s])
    ran = chain.record_stream(size, nodes, edges, best)
    return sampled(chain, 0.05, SAMPLES, nodes, 0.0) | {
        "ran": ran, "shape": list(_native.floor_shapes()[best]), "bytes": size, "tries_us": tries,
    }  # fmt: skip


RAW = ("samples_us", "tries_us")  # of a stream


class Bench:
    def __init__(self, args: argparse.Namespace):
        self.args, self.index = args, floor.device_index(args.device)
        _native.device_need(self.index)
        self.info = _native.device_info(self.index)
        self.tail, self.bad, self.room = tail_s(), 0, np.empty(0, np.uint8)
        self.out = args.out.open("a") if args.out else None

    def write(self, record: dict[str, Any]) -> None:
        floor.write({"kind": "linear"} | record, self.out)

    def head(self) -> None:
        args = {k: v.name if isinstance(v, Path) else v for k, v in vars(self.args).items()}
        self.write({
            "record": "provenance", "revision": floor.revision(), "args": args,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "device": self.info, "clocks": clocks(self.index), "build": _native.build_info(),
            "stoker": _native.__version__, "python": platform.python_version(),
            "platform": f"{platform.system()} {platform.machine()}", "ceiling_tb_s": CEILING,
        })  # fmt: skip

    def space(self, size: int) -> np.ndarray:
        if len(self.room) < size:
            self.room = np.empty(size, np.uint8)
        return self.room

    def group(self, cases: list[Case], copy_bytes: int, warm: float) -> None:
        """Cells with the same weights. The first one is preceded by `warm` seconds of load."""
        what = {k: v for k, v in cases[0].name.items() if k != "rows"}
        try:
            copies = copies_of(cases[0], copy_bytes, self.info["l2_bytes"])
            chain = _native.OpChain(cases[0].op, cases[0].fields, cases[0].weights, copies,
                                    self.index)  # fmt: skip
        except (_native.UnsupportedError, _native.OutOfMemoryError) as error:
            print(f"{describe(cases[0].name)}: {error}", flush=True)
            self.write({"record": "refused", **what, "error": str(error)})
            return
        try:
            streams: dict[int, dict[str, Any]] = {}
            for case in cases:
                self.cell(chain, case, copies, warm, streams)
                warm = self.args.seconds / 10
        finally:
            chain.close()

    def cell(self, chain: Any, case: Case, copies: int, warm: float,
             streams: dict[int, dict[str, Any]]) -> None:  # fmt: skip
        nodes, edges = nodes_of(case, copies), not self.args.no_edges
        ready = self.args.ready if self.args.ready >= 0 else case.ready
        ran = chain.record(case.fields, case.stacks, nodes, edges, ready, self.args.early)
        record: dict[str, Any] = {
            "record": "cell", "op": case.op, **case.name, "file_bytes": case.file_bytes,
            "copies": copies, "ran": ran, "warm_s": warm,
        }  # fmt: skip
        record |= sampled(chain, warm, self.args.samples, nodes, self.tail)
        record["clocks"] = clocks(self.index)
        record["limited_by"] = limits_of(record["clocks"])
        record["tb_s"] = case.file_bytes / record["us"] * 1e-6
        if self.args.check:
            chain.outputs()
            record["error"] = case.check(nodes)
            record["right"] = record["error"] <= case.tolerance
            self.bad += not record["right"]
        if case.file_bytes not in streams:
            streams[case.file_bytes] = stream_only(chain, case.file_bytes, nodes, edges)
        stream = record["stream"] = streams[case.file_bytes]
        record["laboratory_us"] = case.lab
        # the group's first cell has the samples of what all of them are beside
        streams[case.file_bytes] = {k: stream[k] for k in stream if k not in RAW}
        print(line(record), flush=True)
        self.write(record)

    def end(self) -> int:
        self.write({"record": "end", "clocks": clocks(self.index), "wrong": self.bad,
                    "complete": True})  # fmt: skip
        if self.out:
            self.out.close()
        if self.bad:
            print(f"{self.bad} cells with wrong outputs")
        return 1 if self.bad else 0


# ---- the table ---------------------------------------------------------------------------------

HEADER = (f"{'type':8} {'shape':>14} {'rows':>4} {'parts':>6} {'us':>8} {'p10..p90':>15} {'TB/s':>6} {'share':>6} "
          f"{'stream':>7} {'ratio':>6} {'lab':>6} {'ratio':>6} {'MHz':>5} {'W':>4}")  # fmt: skip


def describe(name: dict[str, Any]) -> str:
    return f"{name['type']:8} {'x'.join(map(str, name['shape'])):>14}"


def line(r: dict[str, Any]) -> str:
    lab, now = r["laboratory_us"], r["clocks"] or {}
    parts = "argmax" if r["op"] == "norm_argmax" else r.get("parts") or ""
    text = (f"{describe(r)} {r['rows']:4} {parts:>6} {r['us']:8.2f} {r['p10']:7.2f}..{r['p90']:6.2f} "
            f"{r['tb_s']:6.2f} {r['tb_s'] / CEILING:6.1%} {r['stream']['us']:7.2f} "
            f"{r['us'] / r['stream']['us']:6.2f} ")  # fmt: skip
    text += f"{lab:6.1f} {r['us'] / lab:6.2f}" if lab else f"{'':6} {'':6}"
    text += f" {now.get('sm_mhz', ''):>5} {round(now['power_w']) if now else '':>4}"
    text += "".join(f"  {why}" for why in r["limited_by"])
    if "right" in r and not r["right"]:
        text += f"  WRONG: error {r['error']:.1e}"
    return text


def run_linear(bench: Bench, args: argparse.Namespace, rng: np.random.Generator) -> None:
    for kind, shapes, rows in plan(args):
        pool, warm = Pool(kind, 0.02, rng), args.seconds
        for shape in shapes:
            size = pool.bytes_of(shape)
            room = bench.space(size)
            bench.group(linear_cases(pool, shape, rows, room), size, warm)
            warm = args.seconds / 10
            if parts := parts_of(args.parts, shape):
                bench.group(linear_cases(pool, shape, rows, room, parts), size, warm)
            if args.parts and shape == HEAD:
                bench.group(argmax_cases(pool, shape, rows, room), size, warm)


def run_experts(bench: Bench, args: argparse.Namespace, rng: np.random.Generator) -> None:
    rows = [int(p) for p in args.rows.split(",")] if args.rows else [5, 20]
    types = args.types.split(",") if args.types else [*GLU_TYPES, *DOWN_TYPES]
    for kind in types:
        pool, down = Pool(kind, 0.02, rng), kind in DOWN_TYPES
        size = pool.bytes_of(expert_dims(down)) * (1 if down else 2)
        bench.group(expert_cases(pool, down, rows, bench.space(size)), size, args.seconds)


def parts_of(asked: str | None, shape: tuple[int, int]) -> int:
    """0: none. The head is always whole."""
    if not asked or shape == HEAD:
        return 0
    return PARTS.get(shape[1], 0) if asked == "auto" else int(asked)


def shape_from(text: str) -> tuple[int, int]:
    n, k = map(int, text.split("x"))
    return n, k


def plan(args: argparse.Namespace) -> Iterator[tuple[str, list[tuple[int, int]], list[int]]]:
    shapes = [shape_from(s) for s in args.shapes.split(",")] if args.shapes else list(SHAPES)
    rows = [int(p) for p in args.rows.split(",")] if args.rows else [1, 5, 20]
    types = args.types.split(",") if args.types else list(TYPES)
    if args.all_types:
        types = args.types.split(",") if args.types else list(WEIGHTS)
        shapes = shapes if args.shapes else [SHAPES[0]]
        rows = rows if args.rows else [1, 5, 20, 40]
    for kind in types:
        yield kind, shapes, rows


PARTS_HELP = "also products that leave their sum over K in N parts; auto: as suits K"
SECONDS_HELP = "of load before the first cell of a type; a tenth of it before every other one"
READY_HELP = "1: counts and lists may be read before the wait, 0: not, -1: as in a round"
EARLY_HELP = "1: a node lets its successor start before its wait, 0: after, -1: as in a round"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--types", help=f"default: {','.join(TYPES)}")
    parser.add_argument("--shapes", help="outputs x inputs, such as 16384x2560,2560x6144")
    parser.add_argument("--rows", help="default: 1,5,20; with --all-types 1,5,20,40")
    parser.add_argument("--all-types", action="store_true")
    parser.add_argument("--parts", metavar="auto|N", help=PARTS_HELP)
    parser.add_argument("--experts", action="store_true")
    parser.add_argument("--seconds", type=float, default=2.0, help=SECONDS_HELP)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--check", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--no-edges", action="store_true", help="plain edges between the nodes")
    parser.add_argument("--ready", type=int, default=-1, help=READY_HELP)
    parser.add_argument("--early", type=int, default=-1, help=EARLY_HELP)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, metavar="FILE.jsonl")
    args = parser.parse_args()
    bench, rng = Bench(args), np.random.default_rng(1)
    bench.head()
    print(HEADER, flush=True)
    (run_experts if args.experts else run_linear)(bench, args, rng)
    return bench.end()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except _native.Error as error:
        sys.exit(f"linear: {type(error).__name__}: {error}")
