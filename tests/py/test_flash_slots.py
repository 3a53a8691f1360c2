"""Several requests of Flash-Next side by side, and states that are copied, saved and restored: each
request gives the bits of a run of its own."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import flash_gguf
import numpy as np
import pytest
import stoker
from flash_sessions import (
    begin,
    engine,
    finish,
    prefilled,
    prompt_of,
    run,
    same,
    write_agreeing,
)
from flash_tools import GEOMETRIES, Geometry, config, weights, write_hf

MODEL = {"tiny": "bf16", "odd": "f32", "long_grams": "bf16"}
LENGTHS = (5, 33, 1, 18, 21, 64)
Model = tuple[Path, Geometry, str]


@pytest.fixture(scope="module", params=MODEL)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    path, g, _ = write_agreeing(tmp_path_factory.mktemp("flash"), request.param)
    return path, g, MODEL[request.param]


def open_model(m: Model, drafter: str, **options: object) -> stoker.Engine:
    return engine(m[0], drafter, numerics=m[2], **options)


def prompts_of(g: Geometry) -> list[list[int]]:
    """Of different lengths, the end of text at different places."""
    out = []
    for i, n in enumerate(LENGTHS):
        ids = np.random.default_rng(i + 1).integers(0, g.vocab, n)
        ids[i % n :: 7 + i] = g.eos
        out.append(ids.tolist())
    return out


@dataclass
class Part:
    """A request in a slot: when it starts, and the rounds that it sits out."""

    ids: list[int]
    n: int
    start: int = 0
    sits_out: Sequence[int] = ()
    tokens: list[int] = field(default_factory=list)
    logits: bytes = b""
    state: bytes = b""


def together(e: stoker.Engine, parts: list[Part]) -> None:
    s = e._session
    for k in range(200):
        for slot, p in enumerate(parts):
            if p.start == k:
                begin(e, p.ids, p.n, slot)
        if all(p.state for p in parts):
            return
        done = s.round([(-2 if k in p.sits_out else -1, False) for p in parts])
        for slot, (p, record) in enumerate(zip(parts, done, strict=True)):
            if record is None or p.state:
                continue
            assert k >= p.start and k not in p.sits_out
            p.tokens += record[3]
            p.logits += s.logits(record[1], len(record[3])).tobytes()
            if record[6]:
                p.state = finish(e, slot=slot)
    raise AssertionError("a request did not end")


@pytest.mark.parametrize("drafter", ["none", "mtp:3", "ngram:2", "planted:4"])
@pytest.mark.parametrize("slots", [2, 4])
def test_each_request_is_alone(model: Model, drafter: str, slots: int) -> None:
    """They join, leave and wait at different rounds."""
    prompts = prompts_of(model[1])[:slots]
    parts = [Part(ids, 9 + 7 * i, 2 * i, (3 + i, 4 + i, 8)) for i, ids in enumerate(prompts)]
    alone = []
    with open_model(model, "mtp:1" if drafter == "mtp:3" else "none") as e:
        for p in parts:
            begin(e, p.ids, p.n)
            alone.append((*run(e, p.n), finish(e)))
    with open_model(model, drafter, slots=slots, context=110) as e:
        if drafter == "planted:4":
            for slot, (p, want) in enumerate(zip(parts, alone, strict=True)):
                table = np.array(p.ids + want[0])
                table[slot + 6 :: 5] = -1
                e.plant(table, [4, 1, 0, 2, 3], slot)
        together(e, parts)
    assert [(p.tokens, p.logits, p.state) for p in parts] == alone


@pytest.mark.parametrize("drafter", ["mtp:3", "none"])
def test_more_requests_than_slots(model: Model, drafter: str) -> None:
    prompts = prompts_of(model[1])
    with open_model(model, drafter) as e:
        alone = [e.generate(p, 25, logits=True, ignore_eos=True) for p in prompts]
    for slots in (2, 3):
        with open_model(model, drafter, slots=slots, poison=slots == 2) as e:
            both = e.generate(prompts, 25, logits=True, ignore_eos=True)
        for a, b in zip(alone, both, strict=True):
            same(a, b)
            assert a.stats.counters == b.stats.counters


@pytest.mark.parametrize("drafter", ["mtp:3", "none"])
def test_a_copy_goes_its_own_way(model: Model, drafter: str) -> None:
    """Copied amid a request, both slots go on, with different tokens."""
    _, g, _ = model
    ids = prompts_of(g)[3]
    more = [g.eos, *prompts_of(g)[0]]
    with open_model(model, drafter) as e:
        begin(e, ids, 30)
        whole = (*run(e, 30), finish(e))
    with open_model(model, drafter, slots=3) as e:
        s = e._session
        begin(e, prompts_of(g)[1], 60, slot=1)  # a neighbour
        begin(e, ids, 30)
        tokens: list[int] = []
        logits = b""
        for k in range(60):
            if k == 4:
                s.copy(0, 2)
                at = len(tokens)
                assert s.save(2) == s.save(0)
                begin(e, more, 12, slot=2, keep=True)
                other: list[int] = []
            done = s.round(None)
            if done[0] is not None:
                tokens += done[0][3]
                logits += s.logits(done[0][1], len(done[0][3])).tobytes()
            if k >= 4 and done[2] is not None:
                other += done[2][3]
            if len(tokens) == 30 and len(other) == 12:
                break
        assert (tokens, logits, finish(e)) == whole
        forked = finish(e, slot=2)
    with open_model(model, drafter) as e:
        begin(e, ids + tokens[:at] + more, 12)
        assert run(e, 12)[0] == other
        assert finish(e) == forked


@pytest.mark.parametrize("drafter", ["mtp:3", "none"])
def test_a_state_goes_on_elsewhere(model: Model, drafter: str) -> None:
    """In another slot, and in an engine with other slots, context, chunks, threads and width."""
    ids = prompts_of(model[1])[4]
    wider = "mtp:5" if drafter == "mtp:3" else "ngram:4"
    with open_model(model, drafter) as e:
        begin(e, ids, 11)
        first = run(e, 11)[0]
        blob = finish(e)
        begin(e, [], 20, keep=True)
        want = (*run(e, 20), finish(e))
        begin(e, ids, 31)
        assert run(e, 31)[0] == first + want[0]
        assert finish(e) == want[2]
    with open_model(model, drafter, slots=2) as e:
        begin(e, prompts_of(model[1])[1], 5, slot=0)
        prefilled(e, prompts_of(model[1])[5], slot=1)  # what was there before does not matter
        e._session.restore(1, blob)
        assert e._session.save(1) == blob
        begin(e, [], 20, slot=1, keep=True)
        assert (*run(e, 20, slot=1), finish(e, slot=1)) == want
    with open_model(model, wider, slots=4, context=77, prefill_chunk=5, threads=2) as e:
        e._session.restore(3, blob)
        begin(e, [], 20, slot=3, keep=True)
        assert (*run(e, 20, slot=3), finish(e, slot=3)) == want


@pytest.mark.parametrize("drafter", ["mtp:2", "none"])
def test_a_prefix_is_worth_its_prompt(model: Model, drafter: str) -> None:
    """Saved at a border of chunks, restored, and the rest of the prompt run behind it."""
    ids = prompts_of(model[1])[5]
    with open_model(model, drafter, prefill_chunk=8, slots=2) as e:
        begin(e, ids, 15)
        want = (*run(e, 15), finish(e))
        for n in (8, 16, 40, 56):
            blob = prefilled(e, ids[: n + 1], slot=1)
            e._session.reset(1)
            e._session.restore(0, blob)
            begin(e, ids[n + 1 :], 15, keep=True)
            assert (*run(e, 15), finish(e)) == want


@pytest.mark.parametrize("drafter", ["mtp:4", "none"])
def test_a_slot_goes_on_with_more(model: Model, drafter: str) -> None:
    """Turns of a conversation, the last of them empty, are one long prompt."""
    _, g, _ = model
    with open_model(model, drafter, slots=2) as e:
        said: list[int] = []
        for turn in ([3], prompts_of(g)[3], [g.eos], prompts_of(g)[0], []):
            begin(e, turn, 7, keep=True)
            tokens = run(e, 7)
            said += turn
            blob = finish(e)
            begin(e, said, 7, slot=1)
            assert (run(e, 7, slot=1), finish(e, slot=1)) == (tokens, blob)
            said += tokens[0]
            assert prefilled(e, said, slot=1) == blob


# Blobs that are not what they should be.


def test_blobs_of_others_are_refused(tmp_path: Path) -> None:
    """By name, and what is in the slot stays there."""
    path, g, _ = write_agreeing(tmp_path, "tiny")
    other = write_agreeing(tmp_path / "other", "tiny", ratio=2)[0]
    budget = write_agreeing(tmp_path / "budget", "tiny", budget=32)[0]
    ids = [t % 200 for t in prompt_of(g, 1)]
    foreign = {}
    for name, (p, drafter, options) in {
        "ratio": (other, "mtp:2", {}), "budget": (budget, "mtp:2", {}),
        "numerics": (path, "mtp:2", {"numerics": "f32"}), "none": (path, "none", {}),
        "norm": (path, stoker.Drafter("mtp", 2, hidden_norm="per_stream"), {}),
        "odd": (write_agreeing(tmp_path, "odd")[0], "mtp:2", {}),
    }.items():  # fmt: skip
        with engine(p, drafter, **options) as e:
            foreign[name] = prefilled(e, ids)
    with engine(path, "mtp:2") as e:
        blob = prefilled(e, ids)
        for name, bad in foreign.items():
            with pytest.raises(stoker.FormatError, match="one of this model and numerics") as error:
                e._session.restore(0, bad)
            assert error.value.check == "BAD_LAYOUT", name
            assert e._session.save(0) == blob
        with engine(path, "none") as plain:
            with pytest.raises(stoker.FormatError, match="one of this model and numerics"):
                plain._session.restore(0, blob)


def test_broken_blobs_are_refused(tmp_path: Path) -> None:
    path, g, _ = write_agreeing(tmp_path, "tiny")
    ids = prompt_of(g, 2)
    with engine(path, "mtp:2") as e:
        s = e._session
        begin(e, ids, 9)
        run(e, 9)
        blob = finish(e)
        cases = {"TRUNCATED": [blob[:40], blob[:-1], blob + b"x", blob[: len(blob) // 2]]}
        for bit in range(64):  # of the number of bytes
            bad = bytearray(blob)
            bad[8 + bit // 8] ^= 1 << bit % 8
            cases["TRUNCATED"].append(bytes(bad))
        for n in (0, 1, len(ids), 100):  # of the number of positions
            cases["TRUNCATED"].append(blob[:16] + struct.pack("<i", n) + blob[20:])
        for n in (-1, 129, 2**31 - 1, -(2**31)):
            cases.setdefault("BAD_LENGTH", []).append(blob[:16] + struct.pack("<i", n) + blob[20:])
        cases["BAD_MAGIC"] = [b"?" + blob[1:], blob[:4] + b"\2" + blob[5:]]
        cases["BAD_LAYOUT"] = [blob[:i] + bytes([blob[i] ^ 1]) + blob[i + 1 :] for i in (24, 55)]
        for check, bads in cases.items():
            for bad in bads:
                with pytest.raises(stoker.FormatError, match="saved state: expected") as error:
                    s.restore(0, bad)
                assert error.value.check == check
                assert s.save(0) == blob
        for anchor in (-1, g.vocab):
            with pytest.raises(stoker.InvalidArgumentError, match="expected an id in"):
                s.restore(0, blob[:20] + struct.pack("<i", anchor) + blob[24:])
            assert s.save(0) == blob
        begin(e, [], 8, keep=True)
        after = (run(e, 8), finish(e))
        s.restore(0, blob)
        begin(e, [], 8, keep=True)
        assert (run(e, 8), finish(e)) == after


def test_any_bytes_are_an_error_or_a_state(tmp_path: Path) -> None:
    path, g, _ = write_agreeing(tmp_path, "tiny")
    rng = np.random.default_rng(5)
    with engine(path, "mtp:2") as e:
        blob = prefilled(e, prompt_of(g, 2))
        for _ in range(150):
            broken = bytearray(blob)
            for _ in range(int(rng.integers(1, 6))):
                broken[int(rng.integers(56, len(blob)))] = int(rng.integers(0, 256))
            try:
                e._session.restore(0, bytes(broken))
            except stoker.Error:
                continue
            begin(e, [], 3, keep=True)
            e._session.round(None)
            e._session.finish(0, -1)


def test_the_order_of_heads_is_part_of_a_state(tmp_path: Path) -> None:
    """The same weights as a folder and as a file, which has the heads of values in another order: a
    recurrence of one means something else to the other. With a head of values a key they agree."""
    for name, agree in (("tiny", False), ("one", True)):
        g = replace(GEOMETRIES["tiny"], **({"key_heads": 6} if agree else {}))
        folder, file = write_hf(tmp_path / name, g, weights(g)), tmp_path / f"{name}.gguf"
        flash_gguf.write_gguf(file, config(g), weights(g))
        with engine(folder, numerics="f32") as a, engine(file, numerics="f32") as b:
            a.generate(prompt_of(g, 3), 4, ignore_eos=True)
            blob = a._session.save(0)
            if agree:
                b._session.restore(0, blob)
                continue
            with pytest.raises(stoker.FormatError, match="expected one of this model"):
                b._session.restore(0, blob)
