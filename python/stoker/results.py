"""What the engine hands back: rounds, counters, results. Plain data with reprs for people.

Speculation has three numbers that mean nothing apart from each other: the time of a round, the tokens
a round emits, and their quotient. Whatever prints one of them here prints all three."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from statistics import median
from typing import Any

import numpy as np

from .errors import StateError


@dataclass(frozen=True)
class Round:
    """One speculative round of one request.

    number: from 0 within the request. rows: verify rows it had. position: of its anchor.
    drafted, accepted: proposals of the drafter and those the target agreed with. emitted: tokens that
    came out (accepted + 1 unless cut by a stop or limit). wall_s: host time of the whole round, which
    all active requests share.
    """

    number: int
    rows: int
    position: int
    drafted: int
    accepted: int
    emitted: int
    wall_s: float


@dataclass(frozen=True)
class Event:
    """What one round of one request brought: text that is now certain, token ids, the round.

    index: which of the given prompts. finish_reason: None while the request goes on, else "stop" or
    "length".
    """

    index: int
    text: str
    ids: tuple[int, ...]
    round: Round
    finish_reason: str | None = None


@dataclass
class Stats:
    """Counters and times of one request, or of several added up.

    Exact counters: rounds, rounds_without_draft, proposed, verified, accepted, accepted_at[k],
    emitted, emitted_by_prefill, discarded_after_stop, gpu_ns. Times in seconds by the host's clock:
    prefill_s, rounds_s (sum), round_s (each). options: every option of the engine that ran it.
    """

    counters: dict[str, Any]
    prompt_tokens: int = 0
    prefill_s: float = 0.0
    round_s: list[float] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        c = self.counters
        want = c["emitted_by_prefill"] + c["rounds"] + c["accepted"] - c["discarded_after_stop"]
        if c["emitted"] != want:
            raise StateError(
                "counters: emitted == emitted_by_prefill + rounds + accepted - discarded_after_stop: "
                f"expected {want}, found {c['emitted']}"
            )

    def __getattr__(self, name: str) -> Any:
        counters = self.__dict__.get("counters", {})
        if name in counters:
            return counters[name]
        raise AttributeError(name)

    @property
    def rounds_s(self) -> float:
        return sum(self.round_s)

    @property
    def tokens_per_round(self) -> float:
        """Emitted tokens a round, the bonus token included."""
        return self.counters["emitted"] / max(1, self.counters["rounds"])

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over verified proposals; None when nothing was verified."""
        verified = self.counters["verified"]
        return self.counters["accepted"] / verified if verified else None

    @property
    def round_ms(self) -> float:
        """Median host time of a round in milliseconds."""
        return 1e3 * median(self.round_s) if self.round_s else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens over the time of all rounds."""
        return self.counters["emitted"] / self.rounds_s if self.rounds_s else 0.0

    @property
    def prefill_tokens_per_second(self) -> float:
        return (self.prompt_tokens - 1) / self.prefill_s if self.prefill_s else 0.0

    def rows(self) -> list[tuple[str, str]]:
        """(name, value) pairs for a table."""
        c, rate = self.counters, self.acceptance_rate
        at = list(c["accepted_at"])
        while at and at[-1] == 0:
            at.pop()
        out = [
            ("prompt", f"{self.prompt_tokens} tokens, prefill {self.prefill_s:.3f} s"
                       f" ({self.prefill_tokens_per_second:.1f} tokens/s)"),
            ("rounds", f"{c['rounds']}, {c['rounds_without_draft']} without a draft"),
            ("proposals", f"{c['proposed']} proposed, {c['verified']} verified, {c['accepted']} accepted"
                          + (f" ({100 * rate:.1f} %)" if rate is not None else "")),
            ("emitted", f"{c['emitted']} tokens, {c['discarded_after_stop']} discarded after a stop"),
            ("speed", f"{self.round_ms:.2f} ms a round (median), {self.tokens_per_round:.3f} tokens a"
                      f" round (bonus included), {self.tokens_per_second:.2f} tokens/s"),
        ]  # fmt: skip
        if at:
            out.insert(3, ("accepted at", " ".join(f"{k + 1}:{n}" for k, n in enumerate(at))))
        if self.options:
            out.append(("options", " ".join(f"{k}={v}" for k, v in self.options.items())))
        return out

    def __repr__(self) -> str:
        return (
            f"<Stats {self.round_ms:.2f} ms/round x {self.tokens_per_round:.3f} tokens/round = "
            f"{self.tokens_per_second:.2f} tokens/s, {self.counters['accepted']} of "
            f"{self.counters['verified']} drafts accepted>"
        )

    def _repr_html_(self) -> str:
        return html_table(self.rows())


@dataclass
class Result:
    """What one request produced.

    text: decoded without special tokens and cut before a stop string. ids: emitted token ids, the
    prompt excluded, an end-of-generation id included. finish_reason: "stop" or "length".
    logprobs: float64 [n] natural logarithm of each token's probability, if asked for.
    logits: float32 [n, vocab], the rows that chose the tokens, if asked for.
    """

    text: str
    ids: list[int]
    finish_reason: str
    stats: Stats
    prompt_ids: list[int]
    rounds: list[Round] = field(default_factory=list)
    logprobs: np.ndarray[Any, Any] | None = None
    logits: np.ndarray[Any, Any] | None = None

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= 60 else self.text[:57] + "..."
        return f"<Result {len(self.ids)} tokens, {self.finish_reason}: {text!r}>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.text)}</pre>" + html_table(
            [("finish", self.finish_reason), *self.stats.rows()]
        )


@dataclass(frozen=True)
class PlanView:
    """A plan as text, with its SHA-256. `print(engine.plan)` shows every step."""

    name: str
    text: str
    sha256: str
    n_steps: int
    transient_bytes: int

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return (
            f"<Plan {self.name}: {self.n_steps} steps, {self.transient_bytes} transient bytes, "
            f"sha256 {self.sha256[:16]}>"
        )


class Memory(dict[str, int]):
    """Bytes by owner."""

    @property
    def total(self) -> int:
        return sum(self.values())

    def __repr__(self) -> str:
        width = max((len(k) for k in self), default=0)
        lines = [f"{k:{width}}  {v:>14,}" for k, v in {**self, "total": self.total}.items()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_table([(k, f"{v:,}") for k, v in {**self, "total": self.total}.items()])


def html_table(rows: list[tuple[str, str]]) -> str:
    cells = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in rows)
    return f"<table>{cells}</table>"


def log_softmax_at(logits: np.ndarray[Any, Any], ids: list[int]) -> np.ndarray[Any, Any]:
    """Natural log-probabilities float64 [n] of ids under float32 logits [n, vocab]."""
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return x[np.arange(len(ids)), ids] - np.log(np.exp(x).sum(axis=1))
