"""One case of `stoker bench round`: requests whose state is saved behind their prompts, and stretches of
rounds that all begin with it. See bench.py."""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import floor
from ._spec import checkpoint_of
from .checkpoint import Checkpoint
from .drafter import Drafter
from .engine import AHEAD, Engine, own_tokenizer
from .errors import Error, InvalidArgumentError, MismatchError
from .forced import Forced, cycle_tokens, first, planted
from .results import Stats

STRETCH = 20  # timed rounds between two restorations, about
BYTES_PER_US = 4.5e6  # what one H200 reads at best (docs/measuring.md, the floor)
UNLIMITED = 1 << 30
NONE = np.empty(0, np.int32)
POWER_CAP = 0x4  # nvmlClocksEventReasonSwPowerCap
GATHERS = ("gather_rows", "gather_heads", "route_force")  # rows of a table
EXPERTS = ("expert_glu", "expert_linear")

Record = dict[str, Any]
Ids = NDArray[np.int32]


@dataclass(frozen=True)
class Case:
    """One point of the matrix."""

    slots: int
    prompt_tokens: int
    seed: int


@dataclass(frozen=True)
class Lengths:
    """Rounds of a stretch, in whole turns of the cycle of acceptance: first some that are not timed, so
    that every timed one commits what a round before it left; in the end some that run ahead of the
    host, while clocks are read. `tokens`: what a request may emit."""

    lead: int
    timed: int
    tail: int
    tokens: int

    @classmethod
    def of(cls, width: int, forced: Forced) -> Lengths:
        turns, tail = max(1, round(STRETCH / width)), -(-(1 + AHEAD) // width)
        all_turns = 1 + turns + tail
        tokens = cycle_tokens(width, all_turns) if forced.accept else all_turns * width * width
        return cls(width, turns * width, tail * width, tokens)

    @property
    def rounds(self) -> int:
        return self.lead + self.timed + self.tail

    @property
    def room(self) -> int:
        """Positions behind a prompt: the rounds', and the proposals beyond the last one."""
        return self.tokens + 16


@dataclass(frozen=True)
class Source:
    """Tokens of a text, or nothing: then ids are random."""

    tokens: Ids | None
    said: str

    @classmethod
    def of(cls, checkpoint: Checkpoint, text: Any, other: Any) -> Source:
        if text is None:
            if other is not None:
                raise InvalidArgumentError("tokenizer: expected a text to encode, found none")
            return cls(None, "random ids")
        own = own_tokenizer(checkpoint) if other is None else None
        if other is not None:
            with checkpoint_of(other) as ck:
                own = own_tokenizer(ck)
        if own is None:
            where = checkpoint.path if other is None else os.fspath(other)
            raise InvalidArgumentError(f"{where}: expected a tokenizer for the text, found none")
        tokens = np.asarray(own.encode(Path(text).read_text(encoding="utf-8")), np.int32)
        if not len(tokens):
            raise InvalidArgumentError(
                f"{os.fspath(text)}: expected at least one token, found none"
            )
        name = os.path.basename(os.fspath(text))
        whose = "the model's" if other is None else f"{os.path.basename(os.fspath(other))}'s"
        return cls(tokens, f"{name} by {whose} tokenizer, {len(tokens)} tokens, repeated")

    def ids(self, case: Case, slot: int, vocab: int) -> Ids:
        rng = np.random.default_rng((case.seed, slot))
        if self.tokens is None:
            return rng.integers(0, vocab, case.prompt_tokens).astype(np.int32)
        begin = int(rng.integers(0, len(self.tokens)))
        return self.tokens.take(np.arange(begin, begin + case.prompt_tokens), mode="wrap")


@dataclass(frozen=True)
class Run:
    """What all cases have in common."""

    checkpoint: Checkpoint
    drafter: Drafter
    forced: Forced
    context: int
    device: str
    samples: int
    steady_s: float
    source: Source
    lengths: Lengths
    options: dict[str, Any]

    def engine(self, slots: int) -> Engine:
        return Engine(
            self.checkpoint, self.drafter, self.device, slots, self.context, forced=self.forced,
            **self.options,
        )  # fmt: skip


class Rounds:
    """The measurement of one case, in an idle engine of as many slots."""

    def __init__(self, run: Run, engine: Engine, case: Case) -> None:
        self.run, self.engine, self.case = run, engine, case
        self.session = engine._session
        self.width = int(engine.config["width"])
        self.slots = range(case.slots)
        self.cuda = engine.device != "cpu"
        self.rounds = run.lengths.rounds
        self.accepted = [first(run.forced.accepted(b, self.width), self.rounds) for b in self.slots]
        self.states: list[bytes] = []
        self.seen: list[Any] = []  # the records of a stretch

    def measure(self) -> Record:
        if self.cuda and self.engine.options["executed"] != "cuda graph":
            raise MismatchError(
                f"round: expected a recorded graph to time, found {self.engine.options['executed']}"
            )
        try:
            with self.engine._alone():
                return self._measure()
        finally:
            with suppress(Error):  # of a device that failed; what was raised says more
                for slot in self.slots:
                    self.session.reset(slot)

    def _measure(self) -> Record:
        self._prepare()
        self._begin()
        same = [self._saved(slot) for slot in self.slots]
        if same != self.states:
            raise MismatchError("state: expected the bits that were restored, found others")
        looks = self._look()
        end = [self._saved(slot) for slot in self.slots]
        warm = self._warm()
        before = self.session.config()
        stretches = [self._timed() for _ in range(-(-self.run.samples // self.run.lengths.timed))]
        after = self.session.config()
        if [self._saved(slot) for slot in self.slots] != end:
            raise MismatchError(
                "state: expected that of the first stretch at its end, found another"
            )
        graph = self._graph(before, after, len(stretches))
        return self._record(looks, warm, stretches, graph, end)

    # The state that every stretch starts from.

    def _prepare(self) -> None:
        vocab, n = self.engine.config["vocab"], self.case.prompt_tokens
        room = self.engine.options["context"] - self.run.lengths.room
        if n > room:
            raise InvalidArgumentError(
                f"prompt_tokens: expected at most {room}, which leaves room for the rounds, found {n}"
            )
        for slot in self.slots:
            self.session.reset(slot)
            ids = self.run.source.ids(self.case, slot, vocab)
            self.session.start(slot, ids, (UNLIMITED, NONE), False)
            while self.session.prefill(slot, 1):
                pass
            self.session.finish(slot, -1)
            self.states.append(self.session.save(slot))
        if self.run.forced.accept is not None:
            self._plant()

    def _plant(self) -> None:
        """What the requests say, without proposals, is what is planted."""
        said: list[list[int]] = [[] for _ in self.slots]
        for slot in self.slots:
            self.session.plant(slot, NONE, [0])
        self._begin()
        for _ in range(self.run.lengths.tokens + self.width):
            for slot, done in enumerate(self.session.round(None, False, 0)):
                said[slot] += done[3]
        for slot, tokens in enumerate(said):
            self._end(slot)
            table = planted(self.case.prompt_tokens - 1, tokens, self.width, self.engine.config["vocab"],
                            self.run.forced.accepted(slot, self.width))  # fmt: skip
            self.session.plant(slot, table, [self.width])

    def _begin(self) -> None:
        for slot in self.slots:
            self._end(slot)
            self.session.restore(slot, self.states[slot])
            self.session.start(slot, NONE, (UNLIMITED, NONE), True)
            self.session.prefill(slot, 0)

    def _end(self, slot: int) -> None:
        if self.session.slot(slot)["active"]:
            self.session.finish(slot, -1)

    def _saved(self, slot: int) -> bytes:
        return bytes(self.session.save(slot))

    # Stretches.

    def _take(self, at: int, records: Any) -> None:
        """Round `at` of a stretch has to be what it was the first time, and what it is forced to be."""
        if at == len(self.seen):
            self.seen.append(records)
        if records != self.seen[at]:
            raise MismatchError(
                f"round {at}: expected the record of the first stretch, found another"
            )
        if self.run.forced.accept is None:
            return
        for slot, done in enumerate(records):
            want = self.accepted[slot][at]
            if (done[0], done[5]) != (self.width, want):
                raise MismatchError(
                    f"round {at}, slot {slot}: expected {self.width} rows and {want} accepted "
                    f"proposals, found {done[0]} and {done[5]}"
                )

    def _counted(self) -> None:
        """Counters of every request: their identity, and as many rounds as there were."""
        for slot in self.slots:
            self.session.settle(slot, -1)
            rounds = Stats(self.session.counters(slot)).counters["rounds"]
            if rounds != self.rounds:
                raise MismatchError(f"slot {slot}: expected {self.rounds} rounds, found {rounds}")

    def _untimed(self, begin: int, end: int, clocks: bool = False) -> Any:
        """Rounds of a stretch, some of them submitted ahead; `clocks`: read while those run."""
        found = None
        for at in range(begin, end):
            self._take(at, self.session.round(None, False, min(AHEAD, end - 1 - at)))
            if clocks and at == begin and self.cuda:
                found = floor.clocks(int(self.engine.device[5:]))
        return found

    def _look(self) -> list[Record]:
        """The first stretch, a round at a time: of each that will be timed the nodes of its graph and,
        by mixture, the experts that its rows went to between them."""
        lead, timed = self.run.lengths.lead, self.run.lengths.timed
        self._begin()
        self._untimed(0, lead)
        out = []
        for at in range(lead, lead + timed):
            self._untimed(at, at + 1)
            rows = sum(done[0] for done in self.seen[at])
            found = {}
            for name, ids in self.session.routes():
                live = len(self.slots) if name.startswith("mtp.") else rows
                found[name] = int(np.unique(ids[:live]).size)
            out.append({"nodes": self.session.config()["nodes"], "experts": found})
        self._untimed(lead + timed, self.rounds)
        self._counted()
        return out

    def _warm(self) -> Record:
        begin, rounds = time.perf_counter(), 0
        while time.perf_counter() - begin < self.run.steady_s:
            self._begin()
            self._untimed(0, self.rounds)
            rounds += self.rounds
        return {"seconds": round(time.perf_counter() - begin, 3), "rounds": rounds}

    def _timed(self) -> Record:
        lead, timed = self.run.lengths.lead, self.run.lengths.timed
        self._begin()
        self._untimed(0, lead)
        rows = []
        for at in range(lead, lead + timed):
            records, *us = self.session.timed(False)
            self._take(at, records)
            rows.append(us)
        clocks = self._untimed(lead + timed, self.rounds, clocks=True)
        self._counted()
        return {"us": np.array(rows), "clocks": clocks}

    def _graph(self, before: Record, after: Record, stretches: int) -> Record | None:
        """What ran was the recorded graph, once a round, and nothing was recorded meanwhile."""
        if not self.cuda:
            return None
        replays = after["replays"] - before["replays"]
        want = stretches * self.rounds
        if after["graphs"] != before["graphs"] or replays != want:
            raise MismatchError(
                f"round: expected {want} replays of {before['graphs']} recorded graphs, found "
                f"{replays} of {after['graphs']}"
            )
        return {"graphs": after["graphs"], "replays": replays, "nodes": after["nodes"]}

    # The record.

    def _record(
        self, looks: list[Record], warm: Record, stretches: list[Record],
        graph: Record | None, end: list[bytes],
    ) -> Record:  # fmt: skip
        engine, lengths = self.engine, self.run.lengths
        wall, submit, gpu = np.concatenate([s["us"] for s in stretches]).T
        us = gpu if self.cuda else wall
        p10, median, p90 = np.percentile(us, (10, 50, 90)).tolist()
        timed = self.seen[lengths.lead : lengths.lead + lengths.timed]
        tokens = float(np.mean([sum(len(d[3]) for d in r) for r in timed]))
        experts = {
            name: float(np.mean([x["experts"][name] for x in looks]))
            for name in looks[0]["experts"]
        }
        record = {
            "kind": "bench_round", "record": "case", **asdict(self.case),
            "median_us": median, "p10_us": p10, "p90_us": p90,
            "tokens_per_round": tokens, "tokens_per_s": tokens / median * 1e6,
            "rows": sum(d[0] for d in timed[0]), "width": self.width,
            "options": engine.options, "executed": engine.options["executed"],
            "plan": self._plan(), "graph": graph if self.cuda else "not applicable: the CPU runs steps",
            "bound": self._bound(experts), "distinct_experts": experts,
            "state": {
                "each stretch begins with": [hashlib.sha256(s).hexdigest() for s in self.states],
                "and ends with": [hashlib.sha256(s).hexdigest() for s in end],
                "bytes": sum(map(len, self.states)), "rounds_before_samples": lengths.lead,
                "samples_per_stretch": lengths.timed,
            },
            "rounds": [
                {"at": i, "positions": [d[2] for d in r], "accepted": [d[5] for d in r], **look}
                for i, (r, look) in enumerate(zip(timed, looks, strict=True))
            ],
            "warm": warm, "clocks": [s["clocks"] for s in stretches],
            "by_power": self._by_power(stretches),
            "samples": {
                "at": [i for _ in stretches for i in range(lengths.timed)],
                "wall_us": _rounded(wall), "submit_us": _rounded(submit) if self.cuda else None,
                "gpu_us": _rounded(gpu) if self.cuda else None,
            },
        }  # fmt: skip
        if self.cuda:
            record["native_overhead_us"] = float(np.median(wall - gpu))
            record["submit_us"] = float(np.median(submit))
        return record

    def _by_power(self, stretches: list[Record]) -> Record | None:
        """Medians of the stretches that the power limit held down, and of the others; None where nobody
        can tell."""
        if any(s["clocks"] is None for s in stretches):
            return None
        of: dict[bool, list[Any]] = {True: [], False: []}
        for s in stretches:
            of[bool(s["clocks"]["throttle_reasons"] & POWER_CAP)].append(s["us"][:, 2])
        return {
            name: {"stretches": len(us), "median_us": float(np.median(us)) if us else None}
            for name, us in (("capped", of[True]), ("cool", of[False]))
        }

    def _plan(self) -> Record:
        """Of the graph that holds these rows: the smallest capacity with room."""
        rows = self.width * self.case.slots
        plans = self.engine.plans
        of = {
            int(name.rpartition(".")[2]): name for name in plans if name.startswith("round.greedy.")
        }
        of[int(self.engine.config["rows"])] = "round.greedy"
        name = of[min(n for n in of if n >= rows)]
        return {"name": name, "sha256": plans[name].sha256, "steps": plans[name].n_steps}

    def _bound(self, experts: dict[str, float]) -> Record:
        """Bytes that the round has to read: weights once a step, of experts those that rows went to, the
        state of every slot in the middle of a stretch. No rows of tables, no activations."""
        middle = int(np.median([d[2] for r in self.seen for d in r]))
        share = [n / self.engine.config["experts"] for n in experts.values()]
        sizes = {"experts": 0.0, "other weights": 0.0, "state": 0.0}
        mixture = -1
        for (op, weights), (_, state) in zip(
            self.session.step_bytes(False), self.session.state_bytes(False, middle), strict=True
        ):
            mixture += op == "route_topk"
            sizes["state"] += state * len(self.slots)
            if op in EXPERTS:
                sizes["experts"] += weights * share[mixture]
            elif op not in GATHERS:
                sizes["other weights"] += weights
        total = sum(sizes.values())
        bound: Record = {name: round(size) for name, size in sizes.items()}
        bound |= {"bytes": round(total), "positions": middle}
        if self.cuda:
            bound |= {"bytes_per_us": BYTES_PER_US, "us": total / BYTES_PER_US}
        return bound


def _rounded(us: NDArray[np.float64]) -> list[float]:
    return [round(float(x), 3) for x in us]
