"""What an engine would take, before anything is taken: `stoker.plan`.

Every number comes from the native functions by which an engine lays out its memory, so a plan and an
engine of the same options say the same. No device is asked and no weight is read; what only a device
could tell is an estimate and says so. How to read a plan: docs/memory.md."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from . import _native
from ._options import TABLES, device_named, native_options, one_of, settle, trained_context
from ._spec import checkpoint_of
from .checkpoint import Checkpoint, format_bytes
from .checkpoint import open as open_checkpoint
from .drafter import Drafter
from .errors import InvalidArgumentError
from .results import Memory, html_table

CARD = 141_000_000_000  # bytes of an H200, as it is sold
CONTEXTS = (8192, 32768, 131072, 262144)
LONGEST = 1 << 24  # SK_MAX_CTX

# What a device takes for itself. No engine of ours has measured it yet: a context of the driver with
# the code of all kernels, and a node of a recorded graph.
DRIVER_BYTES = 640 << 20
NODE_BYTES = 8 << 10
ORIGIN = "assumed, not measured: 640 MiB for the driver's context, 8 KiB for a node of a graph"

# Who owns a weight or a state buffer, by its name behind the block's; the first that matches.
_WEIGHTS = (
    (r"ffn_\w+_exps\b", "experts"),
    (r"ffn_gate_inp", "router"),
    (r"ffn_\w+_shexp\b", "shared experts"),
    (r"per_layer_token_embd|ple[_.]", "hashed embedding"),
    (r"output_hc|hc_", "hyper-connections"),
    (r"nextn\.", "joining"),
    (r"indexer\.", "index"),
    (r"ssm_|attn_qkv|attn_gate", "recurrence"),
    (r"attn_(q|k|v|output)(_norm)?\.", "attention"),
    (r"ffn_(gate|up|down)\.", "feed-forward"),
    (r"norm", "norms"),
    (r"token_embd", "embedding"),
    (r"output", "vocabulary projection"),
    (r"key_map|rope_freq", "maps and frequencies"),
)
_STATE = (
    (r"[kv]_cache", "keys and values"),
    (r"(index|block)_keys", "index keys"),
    (r"matrix", "recurrent matrices"),
    (r"conv", "convolution windows"),
    (r"tokens", "token window"),
    (r"hidden", "hidden rows"),
    (r"round\.pending", "accepted tokens"),
    (r"round\.", "slots and counters"),
)
_PLAN = ("name", "rows", "steps", "transients", "work")
_UNITS = {"": 1, "B": 1} | {
    f"{prefix}{i}B": (1024 if i else 1000) ** n
    for n, prefix in enumerate("KMGT", 1)
    for i in ("", "i")
}


@dataclass(frozen=True)
class Buffer:
    """One buffer of an engine. role: weight, state, pending or control. area: the block of memory that
    it lies in, None for a weight that is used in the mapped file. bytes: what it takes there; stored: as
    the checkpoint has it. flag: of a weight, is it computed at load; else, is it part of a request's
    settled state. row_bytes: of a buffer that grows with the context, one row, which stands for
    `positions` of them."""

    name: str
    role: str
    area: str | None
    type: str
    bytes: int
    stored: int
    flag: bool
    row_bytes: int
    positions: int

    @property
    def owner(self) -> str:
        if self.role == "control":
            return "row tables, requests and rings"
        prefix, _, rest = self.name.partition(".")
        names = _WEIGHTS if self.role == "weight" else _STATE
        found = next((o for pattern, o in names if re.search(pattern, rest or prefix)), None)
        found = found or next((o for pattern, o in names if re.search(pattern, self.name)), "other")
        return f"draft head: {found}" if prefix == "drafter" else found


@dataclass(frozen=True)
class At:
    """What a context takes. state: of all slots, pending rows and control with it. scratch:
    transients and work of the kernels. need: with everything else, as `MemoryPlan.need`."""

    context: int
    state: int
    scratch: int
    need: int
    fits: bool | None


@dataclass(frozen=True)
class MemoryPlan:
    """What an engine of these options would take.

    options: as an engine has them. memory: bytes by owner, the same lines as `Engine.memory`. parts:
    of each line that has some, its bytes by owner; they add up to it. plans: of each pass that is
    planned, its rows, steps, transients and work. work: on a device, of each op
    that wants scratch the most that a step of it does; the largest is taken. buffers: each of them.

    weights_stored, weights_packed: bytes of the weights in the checkpoint and on the device. staging:
    bytes of the device while weights are loaded, freed afterwards. device, pinned, host: sums of
    `memory`, by where; on the CPU mapped is the file's share, which the system may drop and read
    again. estimate: what the device takes for itself, with the origin of the number.

    need: bytes of the device (or of the host, on the CPU) at the worst moment, estimates included.
    per_token: bytes that a position takes in each slot, by owner. per_slot: bytes of a slot without
    any position.

    card: the memory asked about, or None. largest_context: the longest context that fits into it,
    None where none does; limited_by: what ends it, "memory" or "model". contexts: at some lengths.
    refused: what this device has no kernels for, by name; an engine raises UnsupportedError.
    """

    model: str
    options: dict[str, Any]
    memory: Memory
    parts: dict[str, dict[str, int]]
    plans: tuple[dict[str, Any], ...]
    work: dict[str, int]
    weights_stored: int
    weights_packed: int
    staging: int
    device: int
    pinned: int
    host: int
    mapped: int
    estimate: dict[str, Any]
    need: int
    per_token: dict[str, float]
    per_slot: int
    card: int | None
    largest_context: int | None
    limited_by: str | None
    contexts: tuple[At, ...]
    refused: tuple[str, ...]
    buffers: tuple[Buffer, ...] = field(repr=False)

    @property
    def fits(self) -> bool | None:
        """Does it fit into `card`? None where that was not asked."""
        return None if self.card is None else self.need <= self.card

    @property
    def bytes_per_token(self) -> float:
        """Bytes that a position takes in each slot."""
        return sum(self.per_token.values())

    def as_dict(self) -> dict[str, Any]:
        """Everything but the single buffers, for JSON."""
        out = asdict(self)
        del out["buffers"]
        return out | {"fits": self.fits, "bytes_per_token": self.bytes_per_token}

    def rows(self) -> list[tuple[str, str]]:
        """(name, value) pairs for a table."""
        out = [(k, f"{v:,}") for k, v in self.memory.items()]
        out.append(("need", f"{self.need:,}"))
        if self.card is not None:
            out.append((f"largest context in {self.card:,}", self.longest()))
        return out

    def longest(self) -> str:
        """The largest context, and what ends it."""
        if self.card is None:
            return "not asked"
        if self.largest_context is None:
            return "none fits"
        return f"{self.largest_context:,} ({self.limited_by})"

    def title(self) -> str:
        o = self.options
        names = ("device", "drafter", "numerics", "slots", "context", "prefill_chunk")
        cut = "" if o["context"] == o["context_asked"] else f" (of {o['context_asked']} asked)"
        said = (f"{name} {o[name]}{cut if name == 'context' else ''}" for name in names)
        return f"{self.model}: " + ", ".join(said)

    def verdict(self) -> str:
        """One line: does it fit?"""
        o = self.options
        what = f"{o['slots']} x {o['context']:,} positions"
        if self.card is None:
            return f"{what}: {self.need:,} bytes"
        fits = "fits" if self.fits else "does not fit"
        return f"{what}: {self.need:,} of {self.card:,} bytes, {fits}; longest {self.longest()}"

    def __repr__(self) -> str:
        width = max(len(k) for k, _ in self.rows())
        return "\n".join(f"{k:{width}}  {v:>24}" for k, v in self.rows())

    def _repr_html_(self) -> str:
        return html_table(self.rows())


def parse_bytes(name: str, value: object) -> int:
    """Bytes from a number, or from text with a unit: kB, MB, GB, TB by 1000, KiB .. TiB by 1024.

    Raises:
        InvalidArgumentError: another form, or not above 0.
    """
    number: int | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str):
        m = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*((?:[kKMGT]i?)?B|)\s*", value)
        unit = m and _UNITS.get(m[2].replace("k", "K"))
        number = int(float(m[1]) * unit) if m and unit and "." in m[1] else None
        number = int(m[1]) * unit if m and unit and number is None else number
    if number is None or number < 1:
        raise InvalidArgumentError(
            f"{name}: expected bytes above 0, as a number or like 141GB or 80GiB, found {value!r}"
        )
    return number


def _parts(buffers: Iterable[Buffer], whole: int | None = None) -> dict[str, int]:
    """Bytes by owner, largest first; what is left of the whole is alignment."""
    out: dict[str, int] = {}
    for b in buffers:
        out[b.owner] = out.get(b.owner, 0) + b.bytes
    out = dict(sorted(out.items(), key=lambda item: (-item[1], item[0])))
    rest = (sum(out.values()) if whole is None else whole) - sum(out.values())
    return out | ({"alignment": rest} if rest else {})


def _breakdown(memory: dict[str, int], buffers: list[Buffer]) -> dict[str, dict[str, int]]:
    """The lines of `memory` whose owners are known by their buffers."""
    lines: dict[str, Callable[[Buffer], bool]] = {
        "weights, packed": lambda b: b.area == "weights",
        "weights mapped from the file": lambda b: b.role == "weight" and not b.flag,
        "state, caches and token windows": lambda b: b.role == "state" and b.flag,
        "state: caches and token windows": lambda b: b.role == "state" and b.flag,
        "pending rows": lambda b: b.role == "pending",
        "row tables and control": lambda b: b.role == "control" and b.area == "state",
        "control and completion rings": lambda b: b.area in ("control", "rings"),
        "hashed embedding": lambda b: b.area == "tables",
    }
    out = {}
    for line, n in memory.items():
        of = lines.get(line.removeprefix("device: ").removeprefix("pinned: "))
        if of is not None:
            out[line] = _parts((b for b in buffers if of(b)), n)
    return out


Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def _number(n: float | None) -> str:
    return "" if n is None else f"{n:,.0f}" if n == int(n) else f"{n:,.2f}"


def _memory_rows(p: MemoryPlan) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for line, n in p.memory.items():
        rows.append((line, _number(n), format_bytes(n)))
        parts = p.parts.get(line, {})
        if line == "device: work of the kernels":
            parts = {f"{op}, at most": bytes for op, bytes in p.work.items()}
        if len(parts) > 1:
            rows += [(f"    {owner}", _number(n), format_bytes(n)) for owner, n in parts.items()]
    own = {
        "while loading: staging of weights": p.staging,
        "estimate: driver": p.estimate.get("driver", 0),
        "estimate: graphs": p.estimate.get("graphs", 0),
    }
    if p.device:
        rows.append(("in all, on the device", _number(p.device), format_bytes(p.device)))
        rows.append(
            ("in all, of the host", _number(p.pinned + p.host), format_bytes(p.pinned + p.host))
        )
    rows += [(name, _number(n), format_bytes(n)) for name, n in own.items() if n]
    return [*rows, ("need, at the worst moment", _number(p.need), format_bytes(p.need))]


def tables(found: list[MemoryPlan]) -> list[Table]:
    """Columns and rows: the first plan in full, and all of them side by side."""
    p = found[0]
    o = p.options
    per = [(owner, _number(n)) for owner, n in p.per_token.items()]
    growth = p.weights_packed - p.weights_stored
    out: list[Table] = [
        (("owner", "bytes", ""), _memory_rows(p)),
        (("of each slot", "bytes"), [
            *((f"a position: {owner}", n) for owner, n in per),
            ("a position", _number(p.bytes_per_token)), ("without any", _number(p.per_slot)),
        ]),
        (("of the weights", "bytes"), [
            ("in the checkpoint, and computed", _number(p.weights_stored)),
            *([("growth by packing", _number(growth))] if o["device"] == "cuda" else []),
        ]),
        (("context", "state", "scratch", "need", "fits"), [
            (_number(a.context), _number(a.state), _number(a.scratch), _number(a.need),
             {True: "yes", False: "no", None: ""}[a.fits]) for a in p.contexts
        ]),
    ]  # fmt: skip
    if len(found) > 1:
        out.append((("slots", "need", "largest context"), [
            (str(x.options["slots"]), _number(x.need), x.longest()) for x in found
        ]))  # fmt: skip
    return out


class _Planner:
    """A checkpoint and everything but slots and context."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        draft: Checkpoint | None,
        drafter: Drafter,
        device: str,
        numerics: str,
        slots: int,
        prefill_chunk: int,
        threads: int,
        embedding_table: str,
        driver: int,
    ) -> None:
        self.checkpoint, self.draft, self.drafter = checkpoint, draft, drafter
        self.device, self.numerics, self.slots = device, numerics, slots
        self.prefill_chunk, self.threads, self.driver = prefill_chunk, threads, driver
        self.embedding_table = embedding_table

    def sizes(self, context: int) -> dict[str, Any]:
        options = native_options(
            self.drafter, self.device, self.slots, context, self.numerics, self.prefill_chunk,
            self.threads, self.embedding_table,
        )  # fmt: skip
        return _native.sizes(
            self.checkpoint._native, options, None, self.draft and self.draft._native
        )

    def graphs(self, found: dict[str, Any]) -> int:
        """Bytes of all graphs that can be recorded, by the assumed size of a node."""
        nodes = sum(steps for _, _, steps, _, _ in found["plans"]) * found["tiers"]
        return nodes * NODE_BYTES

    def need(self, found: dict[str, Any]) -> int:
        sizes = found["sizes"]
        if self.device == "cpu":
            return sum(found["memory"].values())
        blocks = sizes["weights"] + sizes["state"] + sizes["scratch"]
        return blocks + self.driver + max(sizes["staging"], self.graphs(found))

    def at(self, context: int, card: int | None) -> At:
        found = self.sizes(context)
        sizes, need = found["sizes"], self.need(found)
        return At(
            context, sizes["state"] + sizes["control"],
            sizes["scratch"] or sizes["transients"] + sizes["work"], need,
            None if card is None else need <= card,
        )  # fmt: skip

    def largest(self, card: int, most: int) -> int | None:
        """The longest context up to `most` whose need is within the card; the need never falls as the
        context grows, and is planned anew at every step of the search."""
        if self.need(self.sizes(1)) > card:
            return None
        low, high = 1, most + 1  # low fits, high does not or is out of bounds
        while high - low > 1:
            middle = (low + high) // 2
            if self.need(self.sizes(middle)) <= card:
                low = middle
            else:
                high = middle
        return low


def plan(
    model: str | os.PathLike[str] | Checkpoint,
    drafter: str | os.PathLike[str] | Drafter = "none",
    device: str = "cuda",
    slots: int = 1,
    context: int = 4096,
    numerics: str = "bf16",
    *,
    prefill_chunk: int | None = None,
    threads: int | None = None,
    embedding_table: str = "device",
    memory: int | str | None = None,
    contexts: Iterable[int] = CONTEXTS,
    driver: int | str | None = None,
) -> MemoryPlan:
    """What an engine of these options would take, without taking it and without a device.

    Args:
        model: path of a checkpoint, a `Checkpoint`, or "synthetic:flash-next,quant=iq3_s" with the
            arguments of `synthetic` behind the name. Weights are not read.
        drafter, slots, context, numerics, prefill_chunk, threads, embedding_table: as for `Engine`.
        device: "cuda" or "cpu". No size depends on which GPU it is.
        memory: that it has to fit into, in bytes or like "80GiB"; by default an H200's 141 GB, and
            on the CPU nothing is asked.
        contexts: lengths to tabulate; those beyond what the model was made for are left out.
        driver: bytes that the device takes for itself, instead of an assumed number.

    Raises:
        Error: subclasses, as `Engine` would, but for what needs the device.
    """
    d = Drafter.parse(drafter)
    one_of("numerics", numerics, ("bf16", "f32"))
    one_of("embedding_table", embedding_table, TABLES)
    name = device_named(device, "cpu, cuda or cuda:N")
    threads, prefill_chunk = settle(
        name, numerics, threads, prefill_chunk, slots=slots, context=context
    )
    if memory is None and name != "cpu":
        memory = CARD
    card = None if memory is None else parse_bytes("memory", memory)
    own = DRIVER_BYTES if driver is None else parse_bytes("driver", driver)
    opened: list[Checkpoint] = []
    try:
        if isinstance(model, Checkpoint):
            checkpoint = model
        else:
            opened.append(checkpoint_of(model))
            checkpoint = opened[0]
        draft = None if d.model is None else open_checkpoint(d.model)
        if draft is not None:
            opened.append(draft)
        planner = _Planner(
            checkpoint, draft, d, name, numerics, slots, prefill_chunk, threads, embedding_table, own
        )  # fmt: skip
        return _plan(planner, context, card, contexts, driver is None)
    finally:
        for ck in opened:
            ck.close()


def _plan(
    planner: _Planner, asked: int, card: int | None, contexts: Iterable[int], assumed: bool
) -> MemoryPlan:
    trained = trained_context(planner.checkpoint) or LONGEST
    context = min(asked, trained)
    found = planner.sizes(context)
    memory, sizes = Memory(found["memory"]), found["sizes"]
    buffers = [Buffer(*b) for b in found["buffers"]]
    on_cpu = planner.device == "cpu"
    weights = [b for b in buffers if b.role == "weight"]
    per_token: dict[str, float] = {}
    for b in (b for b in buffers if b.positions):
        per_token[b.owner] = per_token.get(b.owner, 0.0) + b.row_bytes / b.positions
    of_slots = [b for b in buffers if b.role in ("state", "pending") and not b.positions]
    largest = None if card is None else planner.largest(card, trained)
    on_device = sizes["weights"] + sizes["state"] + sizes["scratch"]
    pinned = sizes["rings"] + sizes["tables"]
    mapped = memory.get("weights mapped from the file", 0)
    return MemoryPlan(
        model=planner.checkpoint.path,
        options={
            "drafter": str(planner.drafter), "device": planner.device.partition(":")[0],
            "numerics": planner.numerics, "slots": planner.slots, "context": context,
            "context_asked": asked, "prefill_chunk": planner.prefill_chunk,
            "threads": planner.threads, "embedding_table": planner.embedding_table,
        },
        memory=memory,
        parts=_breakdown(memory, buffers),
        plans=tuple(dict(zip(_PLAN, p, strict=True)) for p in found["plans"]),
        work=dict(sorted(found["work"].items(), key=lambda item: (-item[1], item[0]))),
        weights_stored=sum(b.stored for b in weights),
        weights_packed=sum(b.bytes for b in weights),
        staging=sizes["staging"],
        device=0 if on_cpu else on_device,
        pinned=pinned,
        host=memory.total - mapped - pinned - (0 if on_cpu else on_device),
        mapped=mapped,
        estimate={} if on_cpu else {
            "driver": planner.driver, "graphs": planner.graphs(found),
            "origin": ORIGIN if assumed else "the caller's number, and 8 KiB assumed for a node",
        },
        need=planner.need(found),
        per_token=per_token,
        per_slot=sum(b.bytes for b in of_slots) // planner.slots,
        card=card,
        largest_context=largest,
        limited_by=None if card is None else "model" if largest == trained else "memory",
        contexts=tuple(planner.at(c, card) for c in contexts if c <= trained),
        refused=tuple(dict.fromkeys(f"{label}: {text}" for *_, label, text in found["refused"])),
        buffers=tuple(buffers),
    )  # fmt: skip
