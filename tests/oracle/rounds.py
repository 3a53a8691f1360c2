"""The round ops as a naive model: a slot is a list of tokens and a handful of numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

ALL, WAIT = -1, -2
NONE, STOP, LENGTH, HOST = 0, 1, 2, 3
WIDTH_MAX = 16


@dataclass
class Pending:
    tok: list[int]
    drafted: int
    verified: int
    accepted: int
    finish: int


@dataclass
class Slot:
    """`history` is the prompt and what was emitted; its last token is the anchor."""

    history: list[int]
    max_tokens: int
    stops: tuple[int, ...] = ()
    active: bool = True
    finish: int = NONE
    emitted: int = 1  # the prefill emitted the anchor
    pending: Pending | None = None
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    accepted_at: list[int] = field(default_factory=lambda: [0] * WIDTH_MAX)

    def __post_init__(self):
        self.counters["emitted"] = self.counters["emitted_by_prefill"] = 1

    @property
    def n(self):
        return len(self.history) - 1

    def identity(self):
        c = self.counters
        return c["emitted"] == (c["emitted_by_prefill"] + c["rounds"] + c["accepted"]
                                - c["discarded_after_stop"])  # fmt: skip


COUNTERS = ("rounds", "rounds_without_draft", "proposed", "verified", "accepted", "emitted",
            "emitted_by_prefill", "discarded_after_stop")  # fmt: skip


def commit(slot: Slot, licence: int, stop: bool, valid: bool) -> int:
    if not slot.active or not valid or licence < ALL:
        return 0
    p, kept, finish = slot.pending, 0, NONE
    if p:
        kept = len(p.tok) if licence == ALL else min(len(p.tok), licence)
        slot.history += p.tok[:kept]
        slot.emitted += kept
        c = slot.counters
        c["rounds"] += 1
        c["rounds_without_draft"] += not p.verified
        c["proposed"] += p.drafted
        c["verified"] += p.verified
        c["accepted"] += p.accepted
        c["emitted"] += kept
        c["discarded_after_stop"] += p.accepted + 1 - kept
        for k in range(p.accepted):
            slot.accepted_at[k] += 1
        if kept == len(p.tok):
            finish = p.finish
        slot.pending = None
    if not finish and stop:
        finish = HOST
    if finish:
        slot.active, slot.finish = False, finish
    return kept


def rows(slot: Slot, licence: int, valid: bool, drafts: list[int], width: int, ctx: int):
    """[(position, token)] of the slot's rows; empty: it takes no part."""
    if not slot.active or not valid or licence < ALL or slot.pending:
        return []
    v = min(len(drafts), width - 1, slot.max_tokens - slot.emitted - 1, ctx - slot.n - 1)
    if v < 0:
        return []
    tokens = [slot.history[-1], *drafts[:v]]
    return [(slot.n + i, t) for i, t in enumerate(tokens)]


def accept(slot: Slot, drafts: list[int], n_rows: int, chosen: list[int], ctx: int) -> None:
    a = 0
    while a < n_rows - 1 and drafts[a] == chosen[a]:
        a += 1
    tok, finish = [], NONE
    for i, t in enumerate([*drafts[:a], chosen[a]]):
        tok.append(t)
        if t in slot.stops:
            finish = STOP
        elif slot.emitted + i + 1 >= slot.max_tokens or slot.n + i + 1 >= ctx:
            finish = LENGTH
        if finish:
            break
    slot.pending = Pending(tok, len(drafts), n_rows - 1, a, finish)


def ngram(history: list[int], n_max: int, n_min: int, k: int) -> list[int]:
    last = len(history) - 1
    for m in range(n_max, n_min - 1, -1):
        tail = history[len(history) - m :]
        ends = [
            e for e in range(m - 1, last) if len(tail) == m and history[e - m + 1 : e + 1] == tail
        ]
        if ends:
            copy = list(history)
            for i in range(k):
                copy.append(copy[ends[-1] + 1 + i])
            return copy[len(history) :]
    return []
