"""Many rounds of requests that join and leave, for test_qualify.py and its like on a GPU: what every
request emitted, counted and left behind is held against a run of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import stoker
from stoker.results import Stats

NONE = np.empty(0, np.int32)


@dataclass
class Request:
    """Leaves after n tokens, or earlier: when the host has seen `cut` of its records."""

    ids: list[int]
    n: int
    cut: int | None
    slot: int = -1
    tokens: list[int] = field(default_factory=list)
    records: list[tuple[int, int, int, int]] = field(
        default_factory=list
    )  # rows, drafted, accepted, n
    counters: dict[str, Any] = field(default_factory=dict)
    state: str = ""

    def take(self, done: Any) -> None:
        rows, _, position, tokens, drafted, accepted, _ = done
        assert position == len(self.ids) - 1 + len(self.tokens)
        self.tokens += tokens
        self.records.append((rows, drafted, accepted, len(tokens)))


@dataclass
class Traffic:
    """Requests out of a seed; `room`: positions of a slot."""

    vocab: int
    room: int
    seed: int = 0

    def __post_init__(self) -> None:
        self.rounds = 0  # that somebody had a part in
        self.rng = np.random.default_rng(self.seed)

    def next(self) -> Request:
        """Prompts of one token and of many, answers of one and of many, some cut short."""
        n = int(self.rng.integers(1, self.room // 3 + 1))
        length = 1 if self.rng.random() < 0.1 else int(self.rng.integers(2, self.room - n - 20))
        cut = int(self.rng.integers(1, 9)) if self.rng.random() < 0.15 else None
        return Request(self.rng.integers(0, self.vocab, length).tolist(), n, cut)

    def waits(self) -> int:
        """Rounds for which a slot stays empty."""
        return int(self.rng.integers(0, 4))


def host_memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def digest(state: bytes) -> str:
    return hashlib.sha256(state).hexdigest()


def leave(e: stoker.Engine, slot: int, r: Request) -> None:
    e._session.finish(slot, -1)
    r.counters = e._session.counters(slot)
    r.state = digest(e._session.save(slot))


def drive(
    e: stoker.Engine, traffic: Traffic, rounds: int, ahead: int, each: Callable[[int], None]
) -> list[Request]:
    """So many rounds, all slots in use again and again; `each` is told the number of every round."""
    slots = e.options["slots"]
    running: dict[int, Request] = {}
    empty = dict.fromkeys(range(slots), 0)
    finished = []
    for k in range(rounds):
        for slot in [s for s, wait in empty.items() if wait <= 0]:
            del empty[slot]
            running[slot] = r = traffic.next()
            r.slot = slot
            e._session.start(slot, np.array(r.ids, np.int32), (r.n, NONE), False)
            while e._session.prefill(slot, 1):
                pass
        traffic.rounds += bool(running)
        done = (
            e._session.round(None, k % 2 == 1 and not ahead, ahead) if running else [None] * slots
        )
        for slot, r in list(running.items()):
            if done[slot] is None:  # submitted before it began
                continue
            r.take(done[slot])
            cut = r.cut is not None and len(r.records) == r.cut
            if done[slot][6] or (cut and not ahead):  # with rounds ahead the device may be further
                leave(e, slot, r)
                finished.append(r)
                del running[slot]
                empty[slot] = traffic.waits()
        empty = {slot: wait - 1 for slot, wait in empty.items()}
        each(k)
    for slot in running:
        e._session.reset(slot)
    return finished


def counted(r: Request) -> None:
    """Every counter of a request from its records alone, and their identity."""
    c, at = r.counters, [0] * 16
    for _, _, accepted, _ in r.records:
        for i in range(accepted):
            at[i] += 1
    assert c["rounds"] == len(r.records)
    assert c["rounds_without_draft"] == sum(rows == 1 for rows, *_ in r.records)
    assert c["proposed"] == sum(drafted for _, drafted, _, _ in r.records)
    assert c["verified"] == sum(rows - 1 for rows, *_ in r.records)
    assert c["accepted"] == sum(accepted for _, _, accepted, _ in r.records)
    assert c["emitted"] == len(r.tokens) == sum(n for *_, n in r.records)
    assert c["discarded_after_stop"] == sum(accepted + 1 - n for _, _, accepted, n in r.records)
    assert c["accepted_at"] == at and c["emitted_by_prefill"] == 0
    assert Stats(c).counters is c  # raises when the identity does not hold


def alone(plain: stoker.Engine, head: stoker.Engine, requests: list[Request]) -> None:
    """Each request in an engine of one slot: `plain`, that drafts nothing, says the same tokens; and
    `head`, which has the same drafter, settles the same state."""
    for r in requests:
        n = len(r.tokens)
        assert plain.generate(r.ids, n, ignore_eos=True).ids == r.tokens
        assert head.generate(r.ids, n, ignore_eos=True).ids == r.tokens
        assert digest(head._session.save(0)) == r.state
