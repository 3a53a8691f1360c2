"""stoker bench round, on the CPU and tiny models: what its records hold, that the rounds it times are
the forced ones from restored states, and what it refuses to give a time for."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stoker
import tiny
from flash_sessions import engine, prefilled, write_agreeing
from flash_tools import Geometry
from stoker import Forced, _native
from stoker._rounds import Case, Lengths, Rounds, Run, Source
from stoker._spec import checkpoint_of
from stoker.bench import COLUMNS, bench_round, row, verdict
from stoker.cli import main
from stoker.drafter import Drafter
from test_forced import routes_at, table_of

Record = dict[str, Any]
FAST = {"device": "cpu", "steady_s": 0.0, "prefill_chunk": 16, "threads": 1}


@pytest.fixture(scope="module")
def flash(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Geometry]:
    path, g, _ = write_agreeing(tmp_path_factory.mktemp("bench"), "tiny")
    return path, g


def bench(path: Path, **options: Any) -> list[Record]:
    defaults = {"slots": (1,), "context": 160, "samples": 1}
    return list(bench_round(path, **(FAST | defaults | options)))


def cases_of(records: list[Record]) -> list[Record]:
    return [r for r in records if r["record"] == "case"]


# The records.


@pytest.fixture(scope="module")
def records(flash: tuple[Path, Geometry]) -> list[Record]:
    return bench(flash[0], drafter="mtp:4", slots=(1, 3), prompt_tokens=[20, 9], seeds=[0, 7],
                 forced="uniform", samples=30)  # fmt: skip


def test_all_cases_are_there(records: list[Record]) -> None:
    assert [r["record"] for r in records] == ["provenance", *["case"] * 8, "end"]
    assert json.loads(json.dumps(records))[1:] == records[1:]
    assert all(r["kind"] == "bench_round" for r in records)
    points = [(r["slots"], r["prompt_tokens"], r["seed"]) for r in cases_of(records)]
    assert points == [(b, n, s) for b in (1, 3) for n in (20, 9) for s in (0, 7)]
    assert [{k: r[k] for k in ("slots", "prompt_tokens", "seed")} for r in cases_of(records)] == (
        records[0]["cases"]
    )
    assert [i for i, r in enumerate(records) if "complete" in r] == [9] and records[9]["complete"]


def test_the_provenance(records: list[Record], flash: tuple[Path, Geometry]) -> None:
    head = records[0]
    assert head["device"] == {"name": "cpu", "isa": _native.cpu_isa()} and head["clocks"] is None
    assert head["drafter"] == "mtp:4" and head["ids"] == "random ids"
    assert head["forced"] == {"routing": "uniform", "accept": "cycle", "seed": 0}
    assert head["lengths"] == {"lead": 5, "timed": 20, "tail": 5, "tokens": 90}
    assert head["timed"].startswith("a round by the host's clock")
    for key in ("date", "stoker", "build", "revision", "python", "platform", "samples", "steady_s"):
        assert key in head
    assert head["cpu"] == stoker.info()["cpu"] and head["cpu"]["threads"] >= 1
    model = head["model"]
    assert (model["name"], model["format"]) == ("tiny", "safetensors")
    assert len(model["directory_sha256"]) == 64
    with stoker.open(flash[0]) as ck:
        assert model["bytes"] == ck.nbytes


def test_medians_are_those_of_the_samples(records: list[Record]) -> None:
    medians = []
    for r in cases_of(records):
        us = r["samples"]["wall_us"]
        assert len(us) == len(r["samples"]["at"]) == 40  # whole stretches of 20
        assert r["samples"]["at"] == [*range(20)] * 2
        assert r["median_us"] == pytest.approx(np.median(us), abs=0.01)
        assert r["p10_us"] <= r["median_us"] <= r["p90_us"] and min(us) > 0
        assert r["samples"]["gpu_us"] is r["samples"]["submit_us"] is None
        assert r["graph"] == "not applicable: the CPU runs steps" and r["executed"] == "cpu steps"
        assert "native_overhead_us" not in r and "us" not in r["bound"]
        assert r["tokens_per_round"] == pytest.approx(3 * r["slots"])
        assert r["tokens_per_s"] == pytest.approx(r["tokens_per_round"] / r["median_us"] * 1e6)
        medians.append(r["median_us"])
    end = records[-1]
    assert end["score_us"] == pytest.approx(np.mean(medians))
    assert (end["cases"], end["failed"]) == (8, 0)


def test_timed_rounds_are_the_forced_ones(
    records: list[Record], flash: tuple[Path, Geometry]
) -> None:
    """Accepted counts, positions that follow from them, and the experts of these rows."""
    g = flash[1]
    tables = [table_of(Forced("uniform"), i, g.experts, g.top) for i in range(len(g.layers) + 1)]
    for r in cases_of(records):
        at = r["prompt_tokens"] - 1 + sum(range(1, 6))  # behind the first turn of the cycle
        assert [x["at"] for x in r["rounds"]] == [*range(20)]
        for i, x in enumerate(r["rounds"]):
            assert x["accepted"] == [i % 5] * r["slots"]
            assert x["positions"] == [at] * r["slots"]
            for layer in range(len(g.layers)):
                rows = [(b, at + j) for b in range(r["slots"]) for j in range(5)]
                want = {e for row in rows for e in routes_at(tables[layer], *row)}
                assert x["experts"][f"blk.{layer}.moe"] == len(want)
            for j in range(4):
                rows = [(b, at - 1 + j) for b in range(r["slots"])]
                want = {e for row in rows for e in routes_at(tables[-1], *row)}
                assert x["experts"][f"mtp.{j}.moe"] == len(want)
            at += i % 5 + 1
        for name, mean in r["distinct_experts"].items():
            assert mean == pytest.approx(np.mean([x["experts"][name] for x in r["rounds"]]))
        assert r["rows"] == 5 * r["slots"] and r["width"] == 5
        assert r["options"]["forced"] == "routing uniform, accept cycle, seed 0"


def test_every_stretch_begins_with_the_state_behind_the_prompt(
    records: list[Record], flash: tuple[Path, Geometry]
) -> None:
    path, g = flash
    for r in cases_of(records):
        case = Case(r["slots"], r["prompt_tokens"], r["seed"])
        with engine(path, "mtp:4", slots=case.slots, forced=Forced("uniform")) as e:
            for slot in range(case.slots):
                ids = Source(None, "").ids(case, slot, g.vocab)
                blob = prefilled(e, ids.tolist(), slot)
                digest = hashlib.sha256(blob).hexdigest()
                assert digest == r["state"]["each stretch begins with"][slot]
        assert r["state"]["bytes"] == case.slots * len(blob)
        assert len(set(r["state"]["and ends with"])) == case.slots


def test_the_end_is_that_of_the_same_rounds(
    records: list[Record], flash: tuple[Path, Geometry]
) -> None:
    """A stretch emits 90 tokens: the state is that of one request of so many, in one go."""
    path, g = flash
    r = next(
        r for r in cases_of(records) if (r["slots"], r["prompt_tokens"], r["seed"]) == (1, 9, 7)
    )
    ids = Source(None, "").ids(Case(1, 9, 7), 0, g.vocab)
    with engine(path, "mtp:4", context=160, forced=Forced("uniform")) as e:
        e.generate(ids, 90, ignore_eos=True)
        assert hashlib.sha256(e._session.save(0)).hexdigest() == r["state"]["and ends with"][0]


def test_rows_of_the_table(records: list[Record]) -> None:
    for r in cases_of(records):
        cells = dict(zip(COLUMNS, row(r), strict=True))
        assert cells["rows"] == str(r["rows"]) and cells["bound"] == cells["host us"] == ""
        assert float(cells["us a round"]) == pytest.approx(r["median_us"], abs=0.06)
        assert 3 <= float(cells["experts"]) <= 8
    end = records[-1]
    assert verdict(records) == f"score {end['score_us']:.1f} us, the mean of 8 medians"
    assert verdict(records[:-1]) == "round: incomplete"


# Widths, drafters, words.


@pytest.mark.parametrize("drafter, forced", [("none", "profile"), ("ngram:2", "profile,staggered"),
                                             ("planted:7", "cycle"), ("mtp:15", "uniform")])  # fmt: skip
def test_any_drafter(flash: tuple[Path, Geometry], drafter: str, forced: str) -> None:
    w = Drafter.parse(drafter).proposals + 1
    _, case, _ = bench(
        flash[0], drafter=drafter, forced=forced, slots=(2,), context=700, prompt_tokens=[5]
    )
    assert "error" not in case
    stagger = forced.endswith("staggered")
    assert [x["accepted"] for x in case["rounds"]] == [
        [(i + b * stagger) % w for b in range(2)] for i in range(len(case["rounds"]))
    ]
    assert len(case["rounds"]) % w == 0
    assert case["tokens_per_round"] == pytest.approx(w + 1)


def test_unforced_rounds_are_the_same_every_time(flash: tuple[Path, Geometry]) -> None:
    """Whatever they accept; and the routes are the router's."""
    a, b = (cases_of(bench(flash[0], drafter="mtp:3", context=300, prompt_tokens=[30], samples=50))[0]
            for _ in range(2))  # fmt: skip
    assert a["rounds"] == b["rounds"] and a["state"] == b["state"]
    assert {x for r in a["rounds"] for x in r["accepted"]} - {0}
    with engine(flash[0], "mtp:3") as e:
        assert a["plan"]["steps"] == e.plans["round.greedy"].n_steps


def test_lengths() -> None:
    forced, free = Forced(None, "cycle"), Forced()
    for width, lead, timed, tail in ((1, 1, 20, 3), (2, 2, 20, 4), (3, 3, 21, 3), (5, 5, 20, 5),
                                     (16, 16, 16, 16)):  # fmt: skip
        turns = (lead + timed + tail) // width
        cycles = Lengths(lead, timed, tail, turns * width * (width + 1) // 2)
        assert Lengths.of(width, forced) == cycles and cycles.rounds == turns * width
        assert Lengths.of(width, free) == Lengths(lead, timed, tail, turns * width * width)


# What has to be read.


@pytest.mark.parametrize("tied", [True, False])
def test_bytes_of_a_dense_model(tmp_path: Path, tied: bool) -> None:
    shape = tiny.Shape(tied=tied)
    path = tiny.write(tmp_path / "m.gguf", shape)
    _, case, _ = bench(
        path, slots=(2,), drafter="ngram:4", forced="cycle", context=300, prompt_tokens=[40]
    )
    with stoker.open(path) as ck:
        sizes = {name: ck[name].nbytes for name in ck}
    # The embedding is a table of rows, unless it is the output too; the frequencies are ours.
    looked_up = 0 if tied else sizes["token_embd.weight"]
    frequencies = shape.n_layer * (shape.head_dim // 2) * 4
    bound = case["bound"]
    assert bound["other weights"] == sum(sizes.values()) - looked_up + frequencies
    row_bytes = 2 * shape.n_kv * shape.head_dim * 2  # K and V in BF16
    assert bound["state"] == 2 * shape.n_layer * row_bytes * bound["positions"]
    assert bound["experts"] == 0 and case["distinct_experts"] == {}
    assert bound["bytes"] == bound["other weights"] + bound["state"]
    assert min(x["positions"][0] for x in case["rounds"]) < bound["positions"] < 40 + 90


def test_bytes_of_a_mixture(flash: tuple[Path, Geometry]) -> None:
    path, g = flash
    _, case, _ = bench(path, forced="uniform", prompt_tokens=[70])
    with stoker.open(path) as ck:
        stacks = {
            name: ck[name].nbytes for name in ck if ".mlp.experts." in name and "mtp." not in name
        }
    by_layer = [sum(n for name, n in stacks.items() if f"layers.{i}." in name) for i in range(4)]
    assert len(set(by_layer)) == 1 and by_layer[0] > 0
    mean = [case["distinct_experts"][f"blk.{i}.moe"] / g.experts for i in range(4)]
    offsets = 3 * 8 * g.experts  # of a folder's experts, which lie apart; an address each
    want = by_layer[0] * sum(mean)
    assert want <= case["bound"]["experts"] <= want + 4 * offsets
    # Matrices of the recurrences once in a fold and once in a step, their windows in a convolution;
    # attention sees all blocks' keys, and 16 of the blocks.
    assert mean == [g.top / g.experts] * 4  # a single row goes to so many
    assert case["bound"]["state"] > 2 * 3 * g.value_heads * g.linear_dim**2 * 4


# Contexts out of a text.


def test_ids_out_of_a_text(tmp_path: Path, tiny_path: Path, flash: tuple[Path, Geometry]) -> None:
    text = tmp_path / "words.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 3)
    with stoker.open(tiny_path) as own, stoker.open(flash[0]) as none:
        source = Source.of(own, text, None)
        n = len(source.tokens)
        assert source.said == f"words.txt by the model's tokenizer, {n} tokens, repeated"
        case = Case(2, n + 9, 3)
        for slot in range(2):
            ids = source.ids(case, slot, 320).tolist()
            assert len(ids) == n + 9 and ids[:9] == ids[n:]
            at = [i for i in range(n) if (source.tokens.tolist() * 3)[i : i + n + 9] == ids]
            assert at
        assert source.ids(case, 0, 320).tolist() != source.ids(case, 1, 320).tolist()
        other = Source.of(none, text, tiny_path)
        assert other.said == f"words.txt by {tiny_path.name}'s tokenizer, {n} tokens, repeated"
        with pytest.raises(stoker.InvalidArgumentError, match="expected a tokenizer for the text"):
            Source.of(none, text, None)
        with pytest.raises(stoker.InvalidArgumentError, match="expected a text to encode"):
            Source.of(own, None, tiny_path)
        text.write_text("")
        with pytest.raises(stoker.InvalidArgumentError, match="at least one token, found none"):
            Source.of(own, text, None)
    text.write_text("some words")
    head = bench(tiny_path, text=text, prompt_tokens=[30])[0]
    assert head["ids"].startswith("words.txt by the model's tokenizer")


# What is no time.


def rounds_of(e: stoker.Engine, case: Case, forced: Forced, samples: int = 1) -> Rounds:
    lengths = Lengths.of(e.config["width"], forced)
    run = Run(
        e.checkpoint, e.drafter, forced, 200, "cpu", samples, 0.0, Source(None, ""), lengths, {}
    )
    return Rounds(run, e, case)


class Lying:
    """A session of which some verbs do something else."""

    def __init__(self, session: Any, **verbs: Any) -> None:
        self._session, self._verbs = session, verbs

    def __getattr__(self, name: str) -> Any:
        return self._verbs.get(name, getattr(self._session, name))


@pytest.fixture
def engines(flash: tuple[Path, Geometry]) -> Iterator[Any]:
    opened = []

    def opens(forced: Forced, slots: int = 1) -> stoker.Engine:
        opened.append(engine(flash[0], "mtp:4", slots=slots, context=200, forced=forced))
        return opened[-1]

    yield opens
    for e in opened:
        e.close()


def refused(r: Rounds, text: str) -> None:
    with pytest.raises(stoker.MismatchError, match=re.escape(text)):
        r.measure()
    # Nothing is left behind: the engine serves requests, and other cases.
    r.engine.generate([1, 2, 3], 4)
    rounds_of(r.engine, Case(r.case.slots, 5, 1), r.run.forced).measure()


CYCLE = Forced("uniform", "cycle")


def test_a_state_that_was_not_restored(engines: Any) -> None:
    r = rounds_of(engines(CYCLE, 2), Case(2, 20, 0), CYCLE)
    other = prefilled(r.engine, [5, 6, 7])
    restore = r.session.restore
    r.session = Lying(
        r.session, restore=lambda slot, blob: restore(slot, other if slot == 1 else blob)
    )
    refused(r, "state: expected the bits that were restored, found others")


def test_rounds_that_accept_something_else(engines: Any) -> None:
    r = rounds_of(engines(CYCLE, 2), Case(2, 20, 0), CYCLE)
    plant = r.session.plant
    r.session = Lying(r.session, plant=lambda slot, table, accept: plant(slot, table, [2]))
    refused(r, "round 3, slot 0: expected 5 rows and 3 accepted proposals, found 5 and 2")
    r = rounds_of(r.engine, Case(2, 20, 0), CYCLE)
    r.session = Lying(r.session, plant=lambda slot, table, accept: plant(slot, table[:30], accept))
    refused(r, "expected 5 rows and")


def test_rounds_that_are_others(engines: Any) -> None:
    r = rounds_of(engines(Forced(), 2), Case(2, 20, 0), Forced())
    timed = r.session.timed
    calls: list[int] = []

    def lies(full: bool) -> Any:
        records, *us = timed(full)
        calls.append(len(calls))
        first = records[0][:3] + ((0, *records[0][3][1:]),) + records[0][4:]
        return ((first, *records[1:]) if len(calls) == 7 else records, *us)

    r.session = Lying(r.session, timed=lies)
    refused(r, "round 11: expected the record of the first stretch, found another")


def test_another_state_in_the_end(engines: Any) -> None:
    r = rounds_of(engines(CYCLE), Case(1, 20, 0), CYCLE, samples=40)
    save = r.session.save
    calls: list[int] = []

    def lies(slot: int) -> bytes:
        calls.append(slot)
        return save(slot)[::-1] if len(calls) == 4 else save(slot)

    # Behind the prompt, as restored, at the end of the first stretch, at the end of the last one.
    r.session = Lying(r.session, save=lies)
    refused(r, "state: expected that of the first stretch at its end, found another")
    assert len(calls) == 4


def test_counters_that_do_not_add_up(engines: Any) -> None:
    r = rounds_of(engines(CYCLE), Case(1, 20, 0), CYCLE)
    counters = r.session.counters
    r.session = Lying(r.session, counters=lambda slot: counters(slot) | {"emitted": 3})
    with pytest.raises(stoker.StateError, match="emitted == emitted_by_prefill"):
        r.measure()
    r = rounds_of(r.engine, Case(1, 20, 0), CYCLE)
    one_more = {"rounds": 31, "emitted": 91}
    r.session = Lying(r.session, counters=lambda slot: counters(slot) | one_more)
    refused(r, "slot 0: expected 30 rounds, found 31")


def test_a_graph_that_was_not_what_ran(engines: Any) -> None:
    r = rounds_of(engines(CYCLE), Case(1, 20, 0), CYCLE)
    assert r._graph({}, {}, 1) is None  # the CPU has none
    r.cuda = True
    before = {"graphs": 6, "replays": 100, "nodes": 300}
    good = before | {"replays": 190}
    assert r._graph(before, good, 3) == {"graphs": 6, "replays": 90, "nodes": 300}
    for after, said in ((good | {"graphs": 7}, "90 of 7"), (good | {"replays": 189}, "89 of 6")):
        text = f"round: expected 90 replays of 6 recorded graphs, found {said}"
        with pytest.raises(stoker.MismatchError, match=text):
            r._graph(before, after, 3)
    r.engine.options["executed"] = "cuda eager"
    with pytest.raises(stoker.MismatchError,
                       match="round: expected a recorded graph to time, found cuda eager"):  # fmt: skip
        r.measure()


def test_medians_by_power(engines: Any) -> None:
    r = rounds_of(engines(CYCLE), Case(1, 20, 0), CYCLE)

    def stretch(us: float, reasons: int | None) -> Record:
        clocks = None if reasons is None else {"throttle_reasons": reasons}
        return {"us": np.full((4, 3), us), "clocks": clocks}

    capped = [stretch(5, 4), stretch(7, 5), stretch(3, 0)]
    assert r._by_power(capped) == {"capped": {"stretches": 2, "median_us": 6.0},
                                   "cool": {"stretches": 1, "median_us": 3.0}}  # fmt: skip
    assert r._by_power(capped[2:])["capped"] == {"stretches": 0, "median_us": None}
    assert r._by_power([*capped, stretch(1, None)]) is None


# What fails.


def test_failures_are_kept(tmp_path: Path) -> None:
    """A model made for 120 positions: the longer prompts of two do not fit."""
    path = tiny.write(tmp_path / "m.gguf", tiny.Shape(ctx=120))
    got = bench(path, context=500, prompt_tokens=[300, 20], seeds=[1, 2], slots=(1, 2))
    room = 120 - Lengths.of(1, Forced()).room
    text = f"prompt_tokens: expected at most {room}, which leaves room for the rounds, found 300"
    for r in cases_of(got):
        bad = r["prompt_tokens"] == 300
        assert ("error" in r) == bad and ("median_us" in r) != bad
        if bad:
            assert r["error"] == {"class": "InvalidArgumentError", "text": text}
            assert row(r)[4] == "failed" and len(row(r)) == len(COLUMNS)
    assert got[-1]["complete"] and (got[-1]["failed"], got[-1]["score_us"]) == (4, None)
    said = verdict(got).splitlines()
    assert said[0] == f"slots 1, prompt 300, seed 1: InvalidArgumentError: {text}"
    assert said[-1] == "no score: 4 of 8 cases failed"


def test_an_engine_that_cannot_be_opened(tiny_path: Path) -> None:
    got = bench(tiny_path, forced="uniform", slots=(1, 2))
    text = "forced routing: expected a mixture of experts, found llama"
    assert [r["error"] for r in cases_of(got)] == [{"class": "UnsupportedError", "text": text}] * 2
    assert (got[-1]["failed"], got[-1]["score_us"]) == (2, None)


def test_what_no_case_can_be_run_with(tiny_path: Path, tmp_path: Path) -> None:
    room = Lengths.of(1, Forced()).room
    bad: dict[str, Record] = {
        f"context: expected more than {room} positions, which the rounds take, found {room}": {
            "context": room
        },
        "slots: expected at least one, found none": {"slots": ()},
        "slots: expected 1 .. 64, found 65": {"slots": (1, 65)},
        "slots: expected 1 .. 64, found True": {"slots": (True,)},
        f"prompt_tokens: expected 1 .. {160 - room}, found 0": {"prompt_tokens": [0]},
        f"prompt_tokens: expected 1 .. {160 - room}, found {161 - room}": {
            "prompt_tokens": [161 - room]
        },
        "seeds: expected 0 .. 2147483647, found -1": {"seeds": [-1]},
        "samples: expected at least 1, found 0": {"samples": 0},
        "steady_s: expected 0 .. 3600, found -1": {"steady_s": -1},
        "forced: expected none, or uniform": {"forced": "evenly"},
        "drafter: expected none": {"drafter": "guess:4"},
        "device: expected auto, cpu or cuda:N, found 'gpu'": {"device": "gpu"},
    }
    for text, options in bad.items():
        with pytest.raises(stoker.InvalidArgumentError, match=re.escape(text)):
            bench_round(tiny_path, **(FAST | {"slots": (1,), "context": 160} | options))
    with pytest.raises(stoker.ReadError):
        bench_round(tmp_path / "none.gguf", **FAST)


def test_a_run_that_is_ended_has_no_end(tiny_path: Path) -> None:
    run = bench_round(tiny_path, **FAST, slots=(1, 2), context=160, samples=1)
    got = [next(run), next(run)]
    run.close()
    assert [r["record"] for r in got] == ["provenance", "case"] and "complete" not in got[1]


def test_an_open_checkpoint_stays_open(tiny_path: Path) -> None:
    with stoker.open(tiny_path) as ck:
        assert list(bench_round(ck, **FAST, slots=(1,), context=160, samples=1))[-1]["complete"]
        assert not ck.closed


# The command line.


def test_command_line(tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.jsonl"
    args = ["bench", "round", "-m", str(tiny_path), "--draft", "ngram:4", "--slots", "1,2", "--context", "300",
            "--prompt-tokens", "10,30", "--seeds", "3", "--forced", "staggered", "--device", "cpu",
            "--samples", "5", "--steady", "0.05", "--threads", "1", "--out", str(out)]  # fmt: skip
    assert main(args) == 0
    said = capsys.readouterr().out
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert [r["record"] for r in written] == ["provenance", *["case"] * 4, "end"]
    assert all(
        r["warm"]["seconds"] >= 0.05 and r["warm"]["rounds"] >= 30 for r in cases_of(written)
    )
    assert f"score {written[-1]['score_us']:.1f} us, the mean of 4 medians" in said
    assert "tiny.gguf, cpu, forced: staggered" in said and "us a round" in said
    assert (
        main(
            [*args[:6], "--slots", "1", "--context", "900", "--prompt-tokens", "540,5", *args[14:]]
        )
        == 1
    )
    assert (
        "no score: 1 of 2 cases failed" in capsys.readouterr().out
    )  # it was made for 512 positions
    assert len(out.read_text().splitlines()) == 6 + 4
    assert main([*args, "--context", "9"]) == 1
    assert "InvalidArgumentError: context: expected more than" in capsys.readouterr().err


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, text in ((["bench"], "WHAT"), (["bench", "round"], "-m/--model"),
                       (["bench", "round", "-m", "x", "--slots", "1;4"],
                        "expected whole numbers with commas, found '1;4'")):  # fmt: skip
        with pytest.raises(SystemExit) as ended:
            main(argv)
        assert ended.value.code == 2 and text in capsys.readouterr().err


# What names a model.


def test_names_of_models(tiny_path: Path) -> None:
    with checkpoint_of(tiny_path) as ck:
        assert ck.format == "gguf"
    with checkpoint_of("synthetic:llama,layers=1,quant=q4_k,seed=3") as ck:
        assert ck.path == "synthetic:llama-q4_k-1-layers"
    with checkpoint_of("synthetic:flash-next,quant=iq3_s,layers=2,ple_rows=1000000") as ck:
        assert ck.metadata["qwen4exp.block_count"] >= 2
    for word in ("layers", "layers=x", "layers=-1", "depth=3", "quant", "layers=1=", "", "=3"):
        with pytest.raises(
            stoker.InvalidArgumentError, match="expected quant=TYPE, layers=N, seed=N"
        ):
            checkpoint_of(f"synthetic:llama,{word}")
    with pytest.raises(stoker.InvalidArgumentError, match="each once, found 'layers=2'"):
        checkpoint_of("synthetic:llama,layers=1,layers=2")
    with pytest.raises(stoker.InvalidArgumentError, match="model: expected"):
        checkpoint_of("synthetic:gpt")
    with pytest.raises(stoker.InvalidArgumentError, match="quant: expected"):
        checkpoint_of("synthetic:llama,quant=q1")
