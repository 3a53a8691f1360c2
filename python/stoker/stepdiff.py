"""The step diff: every step of a plan on a device and on the CPU, each time on the CPU's inputs.

What a step writes is compared with a bound of its own, so the first record out of bounds is the step
that computes something else, whatever follows from it. Drift of whole outputs is no business of this
module. The comparison is native (csrc/engine/diff.h); here are its records and what one runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sized
from dataclasses import dataclass
from typing import Any

from . import _native
from ._options import int32
from .checkpoint import Checkpoint
from .drafter import Drafter
from .engine import Engine, is_single, pick_device
from .errors import InvalidArgumentError, MismatchError
from .forced import Forced

CHUNK = 512  # rows of a prefill pass on a GPU


@dataclass(frozen=True)
class Difference:
    """One output of one step on both sides.

    plan, capacity: which plan; number: which run of a plan, from 0; step: in the plan. op, label,
    field: what wrote what, where in the model. type, shape: of the output; rows: of them compared,
    those that mean something. rule: what bounds it ("exact", "linear", "elements", "bf16", "choice");
    value, bound: what the rule measures, and the most it may be; ok: all that the rule asks for.

    Measured whatever the rule: elements, mismatches (elements whose bytes differ), not_finite (NaN or
    infinite on either side), stray (bytes changed where nothing was to be written), rel_l2 (worst row),
    max_rel (worst element, relative to its row's largest magnitude), off (BF16 elements apart by more
    than rounding of a sum near zero), ulps (the largest distance of those). row, column, found,
    expected: the worst element, row -1 when there is none; `expected` is the CPU's.
    """

    plan: str
    capacity: int
    number: int
    step: int
    op: str
    label: str
    field: str
    type: str
    shape: tuple[int, ...]
    rows: int
    rule: str
    value: float
    bound: float
    ok: bool
    elements: int
    mismatches: int
    not_finite: int
    stray: int
    off: int
    ulps: int
    rel_l2: float
    max_rel: float
    row: int
    column: int
    found: float
    expected: float

    @classmethod
    def _of(cls, item: tuple[Any, ...]) -> Difference:
        *head, gap = item
        *measured, worst = gap
        return cls(*head, *measured, *worst)

    def __str__(self) -> str:
        text = (
            f"{self.plan} of {self.capacity} rows, run {self.number}, step {self.step} ({self.op} "
            f"{self.label}): {self.field}: expected {self.rule} at most {self.bound:g}, found {self.value:.3g}"
        )
        more = {"not finite": self.not_finite, "stray bytes": self.stray}
        if self.type == "BF16":
            more["units in the last place"] = self.ulps
        text += "".join(f", {n} {name}" for name, n in more.items() if n)
        if self.row >= 0:
            text += (
                f" (row {self.row}, column {self.column}: {self.found:.9g} for {self.expected:.9g})"
            )
        return text


class _Beside(Engine):
    """An engine on the CPU with another session beside it, which every step is compared with."""

    def __init__(self, model: Any, drafter: Any, device: str, **options: Any) -> None:
        self._other = -1 if device == "cpu" else int(device[5:])
        super().__init__(model, drafter, "cpu", **options)

    def _open_session(self, options: tuple[Any, ...]) -> Any:
        exact = self._other < 0
        return _native.diff_open(self.checkpoint._native, options, self._other, exact)

    def compare(self, prompt: Any, rounds: int, prefill: bool) -> list[Difference]:
        """The records of the prompts' prefill and of `rounds` rounds, of both sampling classes in
        turn. All requests run until the context is full."""
        limits = self._limits(self.options["context"], 0.0, (), True, False, False)
        requests = self._requests(self._prompts(prompt)[0], ())
        _native.diff_switch(self._session, prefill)
        for request in requests:
            request.slot = request.index
            self._start(request, limits)
        _native.diff_switch(self._session, True)
        for i in range(rounds):
            done = self._session.round(None, i % 2 == 0, 0)
            if not any(done):
                break
        return [Difference._of(item) for item in _native.diff_take(self._session)]


def diff(
    model: str | os.PathLike[str] | Checkpoint,
    prompt: Any,
    *,
    rounds: int = 4,
    drafter: str | Drafter = "none",
    device: str = "cuda:0",
    context: int = 512,
    prefill: bool = True,
    prefill_chunk: int = CHUNK,
    threads: int | None = None,
    forced: Forced | None = None,
    check: bool = True,
) -> list[Difference]:
    """Run the steps of prefill and rounds on a device and on the CPU, and compare each.

    Args:
        model: path of a checkpoint, or a `Checkpoint`.
        prompt: as `Engine.generate` takes it; several run side by side, one a slot.
        rounds: at most so many; logits are written in every other one.
        drafter: "none", "ngram:K", ...
        device: "cuda:N", or "cpu": the fast kernels against the definition, which have to agree to
            the byte.
        context: positions of a slot. Caches are copied at every step that uses them.
        prefill: compare the steps of the prefill too.
        prefill_chunk, threads, forced: as `Engine` takes them; routes can be forced, no acceptance.
        check: raise for the first output out of bounds.

    Returns:
        Every output of every step, in order.

    Raises:
        MismatchError: an output is out of bounds; its `step` says where, its `records` are all.
    """
    for name, value in (("rounds", rounds), ("prefill_chunk", prefill_chunk)):
        int32(name, value)
    if rounds < 0:
        raise InvalidArgumentError(f"rounds: expected at least 0, found {rounds}")
    if forced is not None and forced.accept is not None:
        raise InvalidArgumentError(f"forced: expected no acceptance, found {forced.accept}")
    device = pick_device(device, "bf16")
    slots = len(prompt) if isinstance(prompt, Sized) and not is_single(prompt) else 1
    with _Beside(model, drafter, device, slots=slots, context=context,
                 prefill_chunk=prefill_chunk, threads=threads, forced=forced) as engine:  # fmt: skip
        records = engine.compare(prompt, rounds, prefill)
    if check:
        _check(records)
    return records


def _check(records: list[Difference]) -> None:
    bad = [r for r in records if not r.ok]
    if not bad:
        return
    error = MismatchError(f"{bad[0]}; {len(bad)} of {len(records)} outputs are out of bounds")
    error.code, error.step = "MISMATCH", bad[0].step
    error.records = records  # type: ignore[attr-defined]
    raise error


def worst(records: Iterable[Difference]) -> list[Difference]:
    """For each op and field the record that is furthest out, in the order of first appearance."""
    found: dict[tuple[str, str, str], Difference] = {}
    for r in records:
        key = (r.op, r.field, r.rule)
        if key not in found or _badness(r) > _badness(found[key]):
            found[key] = r
    return list(found.values())


def _badness(r: Difference) -> tuple[Any, ...]:
    return not r.ok, r.not_finite, r.stray, r.ulps > 1, r.value, r.mismatches
