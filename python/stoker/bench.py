"""Times of complete rounds: `stoker bench round`.

A case is a number of requests side by side, at one length of context, with ids out of one seed. Its
state after the prefill is saved, and restored before each stretch of timed rounds, outside of every
interval; so the rounds of all stretches are the same rounds, and it is checked that they are. What is
timed, and what is refused: docs/measuring.md."""

from __future__ import annotations

import datetime
import hashlib
import itertools
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from . import _native, floor
from ._info import cpu
from ._rounds import Case, Lengths, Record, Rounds, Run, Source
from ._spec import checkpoint_of
from .checkpoint import Checkpoint
from .drafter import Drafter
from .engine import pick_device
from .errors import Error, InvalidArgumentError
from .forced import Forced


def bench_round(
    model: str | os.PathLike[str] | Checkpoint,
    *,
    drafter: str | os.PathLike[str] | Drafter = "none",
    slots: Sequence[int] = (1, 4),
    context: int = 8192,
    prompt_tokens: Sequence[int] | None = None,
    seeds: Sequence[int] = (0,),
    forced: str | Forced = "none",
    device: str = "auto",
    samples: int = 200,
    steady_s: float = 2.0,
    text: str | os.PathLike[str] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Iterator[Record]:
    """Times rounds of a model and yields the records: the provenance, one for each case, and the end
    with `complete`. A case that fails is a record with `error`, and then there is no score.

    Args:
        model: checkpoint, path, or what `checkpoint_of` takes.
        drafter, device, options: as of `Engine`.
        slots: requests side by side, one engine for each number.
        context: positions that a slot can hold.
        prompt_tokens: lengths of the prompts; by default one, as long as the context allows.
        seeds: of the ids.
        forced: a `Forced`, or words of `Forced.parse`.
        samples: rounds that are timed in each case, at least.
        steady_s: seconds of rounds before the first sample.
        text: a file to take ids from; without one they are random.
        tokenizer: a checkpoint whose tokenizer encodes the text, where the model has none.

    Raises:
        Error: at once, for what no case can be run with.
    """
    parsed = Drafter.parse(drafter)
    how = forced if isinstance(forced, Forced) else Forced.parse(forced, parsed.proposals)
    where = pick_device(device, options.get("numerics", "bf16"))
    lengths = Lengths.of(parsed.proposals + 1, how)
    _check(slots, context, prompt_tokens, seeds, samples, steady_s, lengths)
    checkpoint = model if isinstance(model, Checkpoint) else checkpoint_of(model)
    try:
        source = Source.of(checkpoint, text, tokenizer)
        head = _provenance(checkpoint, source) | _device_of(where)
    except BaseException:
        if checkpoint is not model:
            checkpoint.close()
        raise
    points = itertools.product(slots, prompt_tokens or [context - lengths.room], seeds)
    cases = [Case(*point) for point in points]
    head |= {
        "drafter": str(parsed), "forced": asdict(how), "context": context, "samples": samples,
        "steady_s": steady_s, "lengths": asdict(lengths), "cases": [asdict(c) for c in cases],
    }  # fmt: skip
    run = Run(checkpoint, parsed, how, context, where, samples, steady_s, source, lengths, options)
    return _records(run, head, cases, owns=checkpoint is not model)


def _check(
    slots: Sequence[int], context: int, prompt_tokens: Sequence[int] | None, seeds: Sequence[int],
    samples: int, steady_s: float, lengths: Lengths,
) -> None:  # fmt: skip
    most = context - lengths.room
    if most < 1:
        raise InvalidArgumentError(
            f"context: expected more than {lengths.room} positions, which the rounds take, "
            f"found {context}"
        )
    for name, values, high in (("slots", slots, 64), ("prompt_tokens", prompt_tokens or [1], most),
                               ("seeds", seeds, 2**31 - 1)):  # fmt: skip
        low = 0 if name == "seeds" else 1
        if not values:
            raise InvalidArgumentError(f"{name}: expected at least one, found none")
        for n in values:
            if isinstance(n, bool) or not isinstance(n, int) or not low <= n <= high:
                raise InvalidArgumentError(f"{name}: expected {low} .. {high}, found {n!r}")
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise InvalidArgumentError(f"samples: expected at least 1, found {samples!r}")
    if not 0 <= steady_s <= 3600:
        raise InvalidArgumentError(f"steady_s: expected 0 .. 3600, found {steady_s!r}")


def _records(run: Run, head: Record, cases: list[Case], owns: bool) -> Iterator[Record]:
    try:
        yield head
        medians, n_failed = [], 0
        for case, record in _measured(run, cases):
            if isinstance(record, Error):
                n_failed += 1
                yield _failure(case, record)
            else:
                medians.append(record["median_us"])
                yield record
        yield {
            "kind": "bench_round", "record": "end", "cases": len(cases), "failed": n_failed,
            "score_us": None if n_failed else float(np.mean(medians)),
            "score_is": "unweighted mean over cases of each case's median; lower is better",
            "complete": True,
        }  # fmt: skip
    finally:
        if owns:
            run.checkpoint.close()


def _measured(run: Run, cases: list[Case]) -> Iterator[tuple[Case, Record | Error]]:
    """One engine for each number of slots."""
    for slots, group in itertools.groupby(cases, key=lambda c: c.slots):
        mine = list(group)
        try:
            engine = run.engine(slots)
        except Error as error:
            yield from ((case, error) for case in mine)
            continue
        with engine:
            for case in mine:
                try:
                    record: Record | Error = Rounds(run, engine, case).measure()
                except Error as error:
                    record = error
                yield case, record


def _failure(case: Case, error: Error) -> Record:
    said = {"class": type(error).__name__, "text": str(error)}
    return {"kind": "bench_round", "record": "case", **asdict(case), "error": said}


def _provenance(checkpoint: Checkpoint, source: Source) -> Record:
    directory = hashlib.sha256()
    for tensor in checkpoint:
        t = checkpoint[tensor]
        directory.update(f"{t.name} {t.type} {t.shape}\n".encode())
    return {
        "kind": "bench_round", "record": "provenance",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "stoker": _native.__version__, "build": _native.build_info(), "revision": floor.revision(),
        "python": platform.python_version(), "platform": platform.system(),
        "cpu": cpu(),
        "model": {
            "name": os.path.basename(checkpoint.path), "format": checkpoint.format,
            "architecture": checkpoint.architecture, "bytes": checkpoint.nbytes,
            "directory_sha256": directory.hexdigest(),
        },
        "ids": source.said,
    }  # fmt: skip


def _device_of(device: str) -> Record:
    if device == "cpu":
        timed = "a round by the host's clock, from the call until its record can be read"
        return {"device": {"name": "cpu", "isa": _native.cpu_isa()}, "clocks": None, "timed": timed}
    index = int(device[5:])
    timed = "a round between two events around its recorded graph"
    return {"device": _native.device_info(index), "clocks": floor.clocks(index), "timed": timed}


# For people.


COLUMNS = ("slots", "rows", "prompt", "seed", "us a round", "p10", "p90", "bound", "x bound",
           "tokens a round", "tokens/s", "experts", "host us")  # fmt: skip


def row(record: Record) -> tuple[str, ...]:
    """A case as the cells of COLUMNS."""
    at = [str(record["slots"]), "", str(record["prompt_tokens"]), str(record["seed"])]
    if "error" in record:
        return (*at, "failed", "", "", "", "", "", "", "", "")
    at[1] = str(record["rows"])
    bound = record["bound"].get("us")
    layers = [n for name, n in record["distinct_experts"].items() if not name.startswith("mtp.")]
    host = record.get("native_overhead_us")
    return (
        *at, f"{record['median_us']:.1f}", f"{record['p10_us']:.1f}", f"{record['p90_us']:.1f}",
        "" if bound is None else f"{bound:.1f}",
        "" if bound is None else f"{record['median_us'] / bound:.2f}",
        f"{record['tokens_per_round']:.3f}", f"{record['tokens_per_s']:.1f}",
        f"{np.mean(layers):.1f}" if layers else "", "" if host is None else f"{host:.1f}",
    )  # fmt: skip


def verdict(records: Sequence[Record]) -> str:
    """What the records say in the end, a sentence a line."""
    end = records[-1]
    if not end.get("complete"):
        return "round: incomplete"
    out = [f"slots {r['slots']}, prompt {r['prompt_tokens']}, seed {r['seed']}: "
           f"{r['error']['class']}: {r['error']['text']}" for r in records if "error" in r]  # fmt: skip
    if end["score_us"] is None:
        out.append(f"no score: {end['failed']} of {end['cases']} cases failed")
    else:
        out.append(f"score {end['score_us']:.1f} us, the mean of {end['cases']} medians")
    return "\n".join(out)
