"""Forced workloads, for measuring: random weights accept nothing and route degenerately, so a round
of them takes a time that no model with a meaning takes. A forced engine runs the router and the
drafter in full and then puts other results in their place: routes out of a seeded table, proposals of
which a known number is right. docs/measuring.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidArgumentError

ROUTING = (None, "uniform", "profile")  # by sk_routing
ACCEPT = (None, "cycle", "staggered")


@dataclass(frozen=True)
class Forced:
    """What an engine is forced to do. `Forced()` forces nothing and only lets the routes be read.

    routing: "uniform", every set of experts as likely as any other; "profile", neighbouring rows
        share experts as in a recorded model (five rows go to 36 of 512, four times five to 130);
        None, the router's own. What a row goes to depends on its slot and position alone.
    accept: "cycle", round r of a request accepts r mod W proposals, W the rows of a request;
        "staggered", slot b begins the cycle with b mod W; None, what the target agrees with.
    seed: of the table.
    """

    routing: str | None = None
    accept: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _one_of("routing", self.routing, ROUTING)
        _one_of("accept", self.accept, ACCEPT)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise InvalidArgumentError(f"forced seed: expected an integer, found {self.seed!r}")
        if not -(2**31) <= self.seed < 2**31:
            raise InvalidArgumentError(f"forced seed: expected a 32-bit integer, found {self.seed}")

    def __str__(self) -> str:
        return f"routing {self.routing or 'own'}, accept {self.accept or 'own'}, seed {self.seed}"

    def native(self) -> tuple[bool, int, bool, int]:
        return True, ROUTING.index(self.routing), self.accept is not None, self.seed

    def accepted(self, slot: int, width: int) -> Iterator[int]:
        """How many proposals the rounds of a request accept, one after the other."""
        first = slot if self.accept == "staggered" else 0
        return ((first + r) % width for r in count())

    @classmethod
    def parse(cls, text: str, proposals: int, seed: int = 0) -> Forced:
        """From words with commas: "none", or a routing, an acceptance or both. A routing alone has
        the acceptance "cycle" where there are proposals.

        Raises:
            InvalidArgumentError: another word, or two of one kind.
        """
        words = text.split(",")
        routing = [w for w in words if w in ROUTING]
        accept = [w for w in words if w in ACCEPT]
        if len(routing) > 1 or len(accept) > 1 or (
            len(routing) + len(accept) != len(words) and words != ["none"]
        ):  # fmt: skip
            raise InvalidArgumentError(
                "forced: expected none, or uniform or profile, or cycle or staggered, "
                f"found {text!r}"
            )
        if routing and not accept and proposals:
            accept = ["cycle"]
        return cls(routing[0] if routing else None, accept[0] if accept else None, seed)


def planted(
    start: int, tokens: Sequence[int], width: int, vocab: int, accepted: Iterator[int]
) -> NDArray[np.int32]:
    """The list to plant for a request that says `tokens` after position `start`, by absolute
    position, wrong at one place a round: behind as many proposals as that round is to accept. Where a
    round begins follows from the ones before it."""
    table = np.full(start + 1 + len(tokens), -1, np.int32)
    table[start + 1 :] = tokens
    at = start
    while at + 1 < len(table):
        right = next(accepted)
        wrong = at + 1 + right
        if right < width - 1 and wrong < len(table):
            table[wrong] = (table[wrong] + 1) % vocab
        at = wrong
    return table


def cycle_tokens(width: int, cycles: int) -> int:
    """Tokens that so many turns of a cycle emit."""
    return cycles * width * (width + 1) // 2


def first(accepted: Iterator[int], n: int) -> list[int]:
    return list(islice(accepted, n))


def _one_of(name: str, value: object, allowed: tuple[str | None, ...]) -> None:
    if value is not None and (not isinstance(value, str) or value not in allowed):
        raise InvalidArgumentError(
            f"forced {name}: expected None or {' or '.join(a for a in allowed if a)}, "
            f"found {value!r}"
        )
