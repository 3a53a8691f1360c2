"""Rounds of Flash-Next on the CPU: speculative runs are plain ones bit for bit, and what a round
settles is what single rows settle, for every accepted count, licence and alignment of the blocks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import flash_sessions
import numpy as np
import pytest
import stoker
from flash_gguf import draft_path, write_gguf
from flash_next import FlashNext
from flash_sessions import (
    MODELS,
    N_STORY,
    Case,
    agreeing,
    begin,
    engine,
    finish,
    make_case,
    one_by_one,
    prefilled,
    prompt_of,
    write_agreeing,
)
from flash_tools import GEOMETRIES, config, write_hf
from stoker import Drafter
from tolerances import F32_WHOLE

GOLDEN = Path(__file__).parent.parent / "data" / "flash_tiny"
CASES = [*((name, "bf16") for name in MODELS), ("odd", "f32")]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(tmp_path_factory.mktemp("flash"), *request.param)


def decoyed(c: Case, tokens: list[int]) -> list[int]:
    """A table to plant that is wrong at every fifth place: it has the end of text there."""
    return [c.g.eos if i % 5 == 4 else t for i, t in enumerate(tokens)]


def told(c: Case, e: stoker.Engine, story: flash_sessions.Story) -> stoker.Result:
    """The story again, in rounds; checked to the bit, with its last state."""
    r = e.generate(story.prompt, N_STORY, logits=True, ignore_eos=True)
    assert (r.ids, r.logits.tobytes()) == (story.ids, story.logits)
    states = story.mtp if e.drafter.kind == "mtp" else story.plain
    assert e._session.save(0) == states[len(story.tokens) - 1]
    s = r.stats
    assert s.emitted == N_STORY == s.rounds + s.accepted - s.discarded_after_stop
    return r


# Speculative is plain.


@pytest.mark.parametrize("k", range(1, 9))
def test_the_draft_head_changes_nothing(case: Case, k: int) -> None:
    with case.engine(f"mtp:{k}") as e:
        results = [told(case, e, story) for story in case.stories]
    for r, story in zip(results, case.stories, strict=True):
        blank = len(story.prompt) == 1  # no hidden row yet, so the first round drafts nothing
        assert r.stats.proposed == k * (r.stats.rounds - blank)
        assert [x.drafted for x in r.rounds] == [0 if blank and i == 0 else k
                                                 for i in range(len(r.rounds))]  # fmt: skip
        assert r.stats.rounds_without_draft == sum(x.rows == 1 for x in r.rounds)
        assert r.stats.accepted_at[:k] == [sum(x.accepted > i for x in r.rounds) for i in range(k)]
    assert sum(r.stats.accepted for r in results) > 0


def test_the_draft_head_is_often_right(case: Case) -> None:
    """Or these tests would see little of it."""
    with case.engine("mtp:3") as e:
        counts = {x.accepted for story in case.stories for x in told(case, e, story).rounds}
    assert counts >= {0, 1, 2}


@pytest.mark.parametrize("k", range(1, 9))
def test_planted_drafts_change_nothing(case: Case, k: int) -> None:
    story = case.stories[0]
    cycles = [[a] for a in range(k + 1)] + [[*range(k + 1)] if 840 % (k + 1) == 0 else [k, 0, 1]]
    with case.engine(f"planted:{k}") as e:
        for accept in cycles if case.numerics == "bf16" else cycles[-1:]:
            e.plant(story.tokens, accept)
            rounds = told(case, e, story).rounds
            assert [x.accepted for x in rounds[:-1]] == [
                accept[i % len(accept)] for i in range(len(rounds) - 1)
            ]
        e.plant(decoyed(case, story.tokens))
        assert len({x.accepted for x in told(case, e, story).rounds}) > 1


@pytest.mark.parametrize(
    "drafter", ["none:3", "ngram:1", "ngram:4", Drafter("ngram", 8, n_min=1)], ids=str
)
def test_other_drafters_change_nothing(case: Case, drafter: object) -> None:
    with case.engine(drafter) as e:
        for story in case.stories:
            told(case, e, story)


@pytest.mark.parametrize("form", ["whole", "per_stream"])
@pytest.mark.parametrize("numerics", ["bf16", "f32"])
def test_stored_model(form: str, numerics: str) -> None:
    ids = np.load(GOLDEN / "golden.npz")["seq6.tokens"].tolist()
    with engine(GOLDEN, numerics=numerics) as e:
        want = e.generate(ids, 30, logits=True, ignore_eos=True)
    for k in (1, 4):
        with engine(GOLDEN, Drafter("mtp", k, hidden_norm=form), numerics=numerics) as e:
            got = e.generate(ids, 30, logits=True, ignore_eos=True)
            flash_sessions.same(got, want)
            assert got.stats.proposed == k * got.stats.rounds


def test_norm_by_stream(case: Case) -> None:
    """The other form drafts other tokens and settles other states, and emits the same."""
    story = case.stories[0]
    n = len(story.prompt) - 1
    with case.engine(Drafter("mtp", 3, hidden_norm="per_stream")) as e:
        ids, logits, blobs = one_by_one(e, story.prompt, N_STORY)
        assert (ids, logits) == (story.ids, story.logits)
        assert all(blob != story.mtp[i] for i, blob in blobs.items())
        r = e.generate(story.prompt, N_STORY, logits=True, ignore_eos=True)
        assert r.logits.tobytes() == story.logits
        assert e._session.save(0) == blobs[n + N_STORY]


@pytest.mark.parametrize("flavour", ["eh_proj", "output_hc", "fc"])
def test_draft_head_in_a_file_of_its_own(tmp_path: Path, flavour: str) -> None:
    g = replace(GEOMETRIES["tiny"], eos=MODELS["tiny"][0])
    path = tmp_path / "m.gguf"
    write_gguf(
        path, config(g), agreeing(g), types=("Q8_0", "Q4_0"), mtp="separate", flavour=flavour
    )
    prompt = prompt_of(g, 4)
    with engine(path) as e:
        want = e.generate(prompt, N_STORY, logits=True, ignore_eos=True)
    with engine(path, Drafter("mtp", 3, model=str(draft_path(path)))) as e:
        got = e.generate(prompt, N_STORY, logits=True, ignore_eos=True)
        blob = e._session.save(0)
        assert prefilled(e, prompt + got.ids) == blob
    flash_sessions.same(got, want)
    assert got.stats.accepted > 0


# Settled states.


def cuts(e: stoker.Engine, states: dict[int, bytes], n: int, width: int) -> int:
    """One round from n positions, kept to every extent there is; returns how many it accepted."""
    s = e._session
    accepted, licence, most = 0, 0, 0
    while licence <= most:
        s.restore(0, states[n])
        begin(e, [], width, keep=True)
        _, _, at, tokens, _, accepted, _ = s.round(None)[0]
        assert at == n
        most = len(tokens)
        assert finish(e, licence) == states[n + licence], (n, accepted, licence)
        c = s.counters(0)
        assert c["emitted"] == licence == 1 + c["accepted"] - c["discarded_after_stop"]
        licence += 1
    return accepted


@pytest.mark.parametrize("k", [1, 4, 7])
def test_every_cut_of_planted_rounds(case: Case, k: int) -> None:
    """All accepted counts and licences at all alignments of the index blocks."""
    story = case.stories[1]
    with case.engine(f"planted:{k}", slots=2, context=90) as e:
        for tokens in (story.tokens, decoyed(case, story.tokens)):
            for a in range(k + 1):
                e.plant(tokens, [a])
                found = [cuts(e, story.plain, n, k + 1) for n in range(3, 3 + case.g.ratio)]
                assert tokens is not story.tokens or found == [a] * case.g.ratio


@pytest.mark.parametrize("k", [1, 3, 8])
def test_every_cut_of_drafted_rounds(case: Case, k: int) -> None:
    with case.engine(f"mtp:{k}", slots=2, context=90) as e:
        found = [
            cuts(e, story.mtp, n, k + 1)
            for story in case.stories
            for n in range(len(story.prompt) - 1, len(story.tokens) - k - 2, 1 + (k == 8))
        ]
    assert {0, 1} <= set(found) <= set(range(k + 1))


@pytest.mark.parametrize("drafter", ["mtp:3", "planted:4"])
def test_licences_from_round_to_round(case: Case, drafter: str) -> None:
    """Each round's control entry cuts what the one before it left; nothing is settled by hand."""
    rng = np.random.default_rng(3)
    story = case.stories[0]
    with case.engine(drafter) as e:
        s = e._session
        if drafter.startswith("planted"):
            e.plant(story.tokens, [4, 2, 0, 1, 3])
        states = story.mtp if drafter.startswith("mtp") else story.plain
        for _ in range(2):
            begin(e, story.prompt, N_STORY)
            licence, n, at = -1, len(story.prompt) - 1, 0
            while n < len(story.tokens) - 10:
                _, _, at, tokens, _, _, _ = s.round([(licence, False)])[0]
                assert at == n and story.tokens[n + 1 : n + 1 + len(tokens)] == list(tokens)
                licence = int(rng.integers(0, len(tokens) + 1))
                n += licence
            assert finish(e, licence) == states[n]
            c = s.counters(0)
            assert c["emitted"] == c["rounds"] + c["accepted"] - c["discarded_after_stop"]
            assert c["discarded_after_stop"] > 0


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("drafter", ["none", "mtp:2"])
def test_prefill_settles_what_rounds_do(case: Case, chunk: int, drafter: str) -> None:
    story = case.stories[1]
    states = story.mtp if drafter == "mtp:2" else story.plain
    r = case.g.ratio
    with case.engine(drafter, prefill_chunk=chunk) as e:
        for n in (0, 1, r - 1, r, r + 1, 3 * r - 1, 3 * r, N_STORY):
            assert prefilled(e, story.tokens[: n + 1]) == states[n], n
        long = case.stories[0]
        states = long.mtp if drafter == "mtp:2" else long.plain
        assert prefilled(e, long.tokens) == states[len(long.tokens) - 1]


# What may not change a bit.


@pytest.mark.parametrize(
    "options",
    [
        {"poison": True},
        {"poison": True, "kernels": "definition"},
        {"kernels": "definition"},
        {"kernels": "generic"},
        {"threads": 2},
        {"threads": 4, "poison": True},
        {"slots": 3, "context": 70},
        {"embedding_table": "ram"},
        {"embedding_table": "ram", "poison": True},
    ],
    ids=str,
)
def test_what_may_not_change_a_bit(case: Case, options: dict) -> None:
    slow = options.get("kernels", "fast") != "fast"
    if slow and case.path.suffix == ".gguf":  # large rows
        story = case.stories[1]
        with case.engine("mtp:3", **options) as e:
            r = e.generate(story.prompt, 9, logits=True, ignore_eos=True)
            assert story.logits.startswith(r.logits.tobytes())
            assert e._session.save(0) == story.mtp[9]
        return
    for drafter in ("mtp:3", "planted:8"):
        with case.engine(drafter, **options) as e:
            for story in case.stories[slow:]:
                if drafter == "planted:8":
                    e.plant(story.tokens, [8, 3, 0, 5])
                told(case, e, story)


def test_a_table_in_host_memory_is_gathered_beside(case: Case) -> None:
    """In every plan, from before the first layer to the one that adds the rows."""
    with case.engine("mtp:3", embedding_table="ram") as e:
        assert e.options["embedding_table"] == "ram"
        beside = e.plans
    with case.engine("mtp:3") as e:
        plans = e.plans
    assert plans.keys() == beside.keys()
    for name, plan in plans.items():
        assert str(beside[name]).count("beside steps") == str(plan).count("beside steps") + 1, name
        assert beside[name].sha256 != plan.sha256


def test_what_runs_beside_the_main_steps(case: Case) -> None:
    """The shared expert of every mixture; and, where a draft head drafts, the commit of all states."""
    for drafter in ("none", "mtp:3"):
        with case.engine(drafter) as e:
            for name, plan in e.plans.items():
                text = str(plan)
                commits = drafter != "none" and name.startswith("round")
                assert text.count("beside steps") == text.count(" route_topk ") + commits, name
                side = [line.split() for line in text.splitlines() if " gdn_fold " in line]
                assert {step[2] for step in side} == (
                    {"1"} if commits else {"0"} if side else set()
                )


@pytest.mark.parametrize("drafter", ["mtp:1", "mtp:8", "planted:8"])
def test_end_of_the_context(case: Case, drafter: str) -> None:
    """Drafts run into it and past it."""
    story = case.stories[0]
    p = len(story.prompt)
    for context in range(p, p + 11):
        with case.engine(drafter, context=context, poison=True) as e:
            if drafter == "planted:8":
                e.plant(story.tokens[: context + 1], [8, 2, 0])
            r = e.generate(story.prompt, N_STORY, logits=True, ignore_eos=True)
            assert r.ids == story.ids[: context - p + 1] and r.finish_reason == "length"
            assert story.logits.startswith(r.logits.tobytes())
            states = story.plain if drafter == "planted:8" else story.mtp
            assert e._session.save(0) == states[context]


def test_stop_ids_in_accepted_drafts(case: Case) -> None:
    story = case.stories[0]
    for at in (3, 6, 7, 20):
        stop = story.ids[at]
        n = story.ids.index(stop) + 1
        for drafter in ("none", "mtp:3", "planted:8"):
            with case.engine(drafter) as e:
                if drafter == "planted:8":
                    e.plant(story.tokens)
                r = e.generate(story.prompt, N_STORY, stop_ids=[stop], ignore_eos=True)
                assert (r.ids, r.finish_reason) == (story.ids[:n], "stop")
                states = story.mtp if drafter == "mtp:3" else story.plain
                assert e._session.save(0) == states[len(story.prompt) - 1 + n]


# Drafts and scoring.


def test_drafts_are_the_reference_s(case: Case) -> None:
    for form in ("whole", "per_stream"):
        with case.engine(Drafter("mtp", 5, hidden_norm=form), numerics="f32") as e:
            for story, lengths in zip(case.stories, ((30,), (2, case.g.ratio + 1)), strict=True):
                for n in lengths:
                    ids = story.tokens[:n]
                    wide = case.oracle.full(ids[:-1])[1]
                    st = case.oracle.new_draft_state()
                    want = case.oracle.draft_chain(st, wide, ids[1:], 5, form)
                    assert e.draft(ids) == want
                    assert [e.draft(ids, k) for k in range(6)] == [want[:k] for k in range(6)]
            assert e.draft([5]) == []


def test_scoring_leaves_no_trace(case: Case) -> None:
    story = case.stories[0]
    ids = story.tokens[:-1]
    with case.engine("mtp:3") as e:
        empty = e._session.save(0)
        whole = e.evaluate(ids, ("logits", "mtp_logits"))
        assert whole["logits"][len(story.prompt) - 1 :].tobytes() == story.logits
        assert e._session.save(0) == empty
        told(case, e, story)
        for chunk in (1, 5, 16):
            parts = e.evaluate(ids, ("logits", "mtp_logits"), chunk=chunk)
            assert all(parts[k].tobytes() == whole[k].tobytes() for k in whole)
            told(case, e, story)
        drafts = e.draft(story.prompt)
        assert drafts[0] == whole["mtp_logits"][len(story.prompt) - 2].argmax()
        told(case, e, story)
        assert e.draft(story.prompt) == drafts


# Beyond the budget.


@pytest.mark.parametrize("name", ["tiny", "odd", "long_grams"])
@pytest.mark.parametrize("numerics", ["bf16", "f32"])
def test_within_the_budget_nothing_is_left_out(tmp_path: Path, name: str, numerics: str) -> None:
    small, g, _ = write_agreeing(tmp_path / "small", name)
    large = write_agreeing(tmp_path / "large", name, budget=4096)[0]
    ids = prompt_of(g, 1, g.budget + 40)
    with engine(small, "mtp:1", numerics=numerics) as a:
        x = a.evaluate(ids, ("logits", "mtp_logits"))
    with engine(large, "mtp:1", numerics=numerics) as b:
        y = b.evaluate(ids, ("logits", "mtp_logits"))
    n = g.budget + g.ratio - 1  # whole blocks, and a tail that is always there
    for key in x:
        assert x[key][:n].tobytes() == y[key][:n].tobytes()
        assert x[key][n:].tobytes() != y[key][n:].tobytes()


LONG = replace(GEOMETRIES["long"], hashed=0)


@pytest.fixture(scope="module")
def long_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf(tmp_path_factory.mktemp("long") / "m", LONG, agreeing(LONG))


def test_released_budget_against_the_reference(long_path: Path) -> None:
    ids = prompt_of(LONG, 2, 2300)
    want = FlashNext(config(LONG), agreeing(LONG)).evaluate(ids, ("logits", "mtp_logits"))
    with engine(long_path, "mtp:1", context=2400, numerics="f32", threads=2) as e:
        got = e.evaluate(ids, ("logits", "mtp_logits"))
    for key in want:
        assert flash_sessions.relative(got[key], want[key]) < F32_WHOLE


@pytest.mark.parametrize("drafter", ["mtp:4", "planted:7"])
def test_released_budget_in_rounds(long_path: Path, drafter: str) -> None:
    """Rounds that cross the budget's end, and rounds behind it."""
    prompt = prompt_of(LONG, 3, 2100)
    with engine(long_path, context=2200, prefill_chunk=64, threads=2) as e:
        for n, count in ((2040, 30), (2100, 40)):
            want = e.generate(prompt[:n], count, logits=True, ignore_eos=True)
            with engine(long_path, drafter, context=2200, prefill_chunk=48, threads=2) as f:
                if drafter == "planted:7":
                    f.plant(prompt[:n] + want.ids, [7, 0, 3, 5, 1])
                got = f.generate(prompt[:n], count, logits=True, ignore_eos=True)
                flash_sessions.same(got, want)
                assert got.stats.accepted > 0
                blob = f._session.save(0)
                assert prefilled(f, prompt[:n] + want.ids) == blob


def long_chunks(folder: Path, device: str) -> Path:
    """A prompt beyond the longest chunk that fits in it, in chunks of 4096 rows and of 512: where
    chunks end is of no influence. The checkpoint."""
    g = replace(GEOMETRIES["tiny"], context=8192)
    path = write_hf(folder / "m", g, agreeing(g))
    prompt = prompt_of(g, 5, 4300)
    made = []
    for chunk in (4096, 512):
        with engine(
            path, "mtp:2", device=device, context=4400, prefill_chunk=chunk, threads=2
        ) as e:
            r = e.generate(prompt, 8, logits=True, ignore_eos=True)
            made.append((r.ids, r.logits.tobytes(), e._session.save(0)))
    assert made[0] == made[1]
    return path


def test_chunks_of_4096_rows(tmp_path: Path) -> None:
    long_chunks(tmp_path, "cpu")
