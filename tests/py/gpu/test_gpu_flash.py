"""Flash-Next on a GPU: every step against the CPU definition, whole models against the reference, and
the CPU's tests of rounds, which compare bits with a run of single rows on the same device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stoker
import test_flash_rounds as rounds
from flash_sessions import Case, agreeing, engine, make_case, prompt_of
from flash_tools import GEOMETRIES, write_hf
from test_flash_oracle import error, sequences
from test_flash_rounds import GOLDEN, told
from test_gpu_engine import trace
from tolerances import FLASH_BF16, FLIPPED

pytestmark = pytest.mark.gpu
# Experts have rows of a multiple of 32 here, so `odd` is left out, and gate and up of a type; `tiny` is
# wider than its stored values, which have tests of their own.
MODELS: dict[str, dict[str, Any]] = {
    "tiny": {"low": 32, "eos": 7, "prompts": (0, 9)},
    "long_grams": {},
    "wide": {"types": "Q8_0", "ends": False},
}


@pytest.fixture(scope="module", params=MODELS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    name = request.param
    return make_case(tmp_path_factory.mktemp("flash"), name, "bf16", "cuda:0", **MODELS[name])


def within(records: list[stoker.Difference]) -> None:
    """All within bounds but for one in a thousand outputs of attention, or rows of it in long chunks,
    where one q or p that rounds to the other neighbour moves a whole head."""
    bad = [r for r in records if not r.ok]
    assert all(r.op == "attend_blocks" and r.max_rel < FLIPPED for r in bad), bad
    assert all(r.value <= r.bound for r in bad), bad  # few elements, some of them too far
    assert len([r for r in bad if r.rows < 1000]) <= len(records) / 1000, bad


# With the case of this module: tokens, logits and states equal those of single rows bit for bit.
test_the_draft_head_changes_nothing = rounds.test_the_draft_head_changes_nothing
test_planted_drafts_change_nothing = rounds.test_planted_drafts_change_nothing
test_other_drafters_change_nothing = rounds.test_other_drafters_change_nothing
test_norm_by_stream = rounds.test_norm_by_stream
test_every_cut_of_planted_rounds = rounds.test_every_cut_of_planted_rounds
test_every_cut_of_drafted_rounds = rounds.test_every_cut_of_drafted_rounds
test_licences_from_round_to_round = rounds.test_licences_from_round_to_round
test_prefill_settles_what_rounds_do = rounds.test_prefill_settles_what_rounds_do
test_end_of_the_context = rounds.test_end_of_the_context
test_stop_ids_in_accepted_drafts = rounds.test_stop_ids_in_accepted_drafts


@pytest.mark.parametrize("drafter", ["none", "ngram:3", "mtp:1", "mtp:4"])
def test_every_step_is_within_bounds(case: Case, drafter: str) -> None:
    prompts = [np.arange(10, 30), np.arange(40, 45), np.arange(3, 60)]
    records = stoker.diff(
        case.path, prompts, rounds=6, drafter=drafter, context=96, prefill_chunk=32, check=False
    )
    assert len(records) > 300
    within(records)
    ops = {r.op for r in records}
    assert {"gdn_scan", "gdn_step", "gdn_fold", "block_topk", "attend_blocks", "expert_glu"} <= ops


def test_near_the_reference(case: Case) -> None:
    """Of the median row: a row whose blocks or experts are chosen otherwise is another row."""
    ids = np.array(case.stories[0].tokens, np.int32)
    names = ("logits", "mtp_logits", "ple_rows")
    want = case.oracle.evaluate(ids, names)
    with case.engine("mtp:4") as e:
        got = e.evaluate(ids, names)
    assert (got["ple_rows"] == want["ple_rows"]).all()
    for name in names[:2]:
        rows = [error(a, b) for a, b in zip(got[name], want[name], strict=True)]
        assert 1e-4 < np.median(rows) < FLASH_BF16


def test_what_is_refused(tmp_path: Path) -> None:
    g = GEOMETRIES["odd"]
    path = write_hf(tmp_path / "m", g, agreeing(g))
    with pytest.raises(
        stoker.UnsupportedError, match="expert_linear on CUDA: w: expected a multiple of 32 columns, "
                                       "found 48"):  # fmt: skip
        engine(path, device="cuda:0")


# The stored values of the Hugging Face model, whose hyper-connections have rows of 16.


def stored() -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """All of them, and the sequences."""
    golden = dict(np.load(GOLDEN / "golden.npz"))
    return golden, [golden[k + "tokens"].astype(np.int32) for k in sequences(golden)]


def test_near_stored_values(device: str = "cuda:0") -> None:
    """Of the median row, as on the CPU."""
    golden, tokens = stored()
    names = {"logits": "logits", "mtp_logits": "mtp_whole.logits"}
    rows: dict[str, list[float]] = {name: [] for name in names}
    with engine(GOLDEN, "mtp:4", device=device, context=192) as e:
        for k, ids in zip(sequences(golden), tokens, strict=True):
            got = e.evaluate(ids, (*names, "ple_rows"))
            assert (got["ple_rows"] == golden[k + "ple_rows"]).all()
            for name, want in names.items():
                rows[name] += map(error, got[name], golden[k + want])
    for errors in rows.values():
        assert len(errors) > 20 and 1e-4 < np.median(errors) < FLASH_BF16


def test_steps_of_the_stored_model(device: str = "cuda:0") -> None:
    records = stoker.diff(GOLDEN, stored()[1][:2], rounds=6, drafter="mtp:2", context=192,
                          prefill_chunk=32, device=device, check=False)  # fmt: skip
    assert len(records) > 200
    within(records)


@pytest.mark.parametrize("drafter", ["mtp:4", "ngram:3"])
def test_rounds_of_the_stored_model(drafter: str, device: str = "cuda:0") -> None:
    """Those of single rows, bit for bit, in chunks of any size and beside other slots."""
    prompt = stored()[1][0].tolist()
    with engine(GOLDEN, device=device, context=192) as e:
        want = e.generate(prompt, 40, logits=True, ignore_eos=True)
    for options in ({}, {"prefill_chunk": 7}, {"slots": 3}, {"prefill_chunk": 100}):
        with engine(GOLDEN, drafter, device=device, context=192, **options) as e:
            got = e.generate(prompt, 40, logits=True, ignore_eos=True)
        assert got.ids == want.ids and got.logits.tobytes() == want.logits.tobytes()


@pytest.mark.parametrize("drafter", ["none", "mtp:3", "planted:8"])
def test_modes_edges_and_poison(case: Case, drafter: str) -> None:
    for options in ({"mode": "eager"}, {"mode": "direct"}, {"edges": False}, {"poison": True},
                    {"mode": "eager", "edges": False}, {"mode": "direct", "poison": True},
                    {"slots": 3, "context": 70}, {"embedding_table": "ram"},
                    {"fused": False}, {"fused": False, "edges": False},
                    {"fused": False, "slots": 3, "poison": True},
                    {"embedding_table": "ram", "mode": "eager", "poison": True}):  # fmt: skip
        with case.engine(drafter, **options) as e:
            for story in case.stories:
                if drafter == "planted:8":
                    e.plant(story.tokens, [8, 3, 0, 5])
                told(case, e, story)


def test_rounds_ahead_of_the_host(case: Case) -> None:
    """The greedy class, with up to four rounds submitted before the host has seen one."""
    for drafter in ("none", "mtp:3"):
        with case.engine(drafter) as e:
            for story in case.stories:
                records, _, state = trace(e, story.prompt, len(story.ids))
                for ahead in range(5):
                    got = trace(e, story.prompt, len(story.ids), full=False, ahead=ahead)
                    assert got == (records, b"", state)


@pytest.mark.parametrize("slots", [2, 4])
@pytest.mark.parametrize("drafter", ["none", "mtp:3"])
def test_neighbours_change_nothing(case: Case, slots: int, drafter: str) -> None:
    prompts = [prompt_of(case.g, seed, n) for seed, n in ((1, 30), (2, 13), (3, 17), (4, 25))]
    prompts[1] = prompts[1][:1]
    with case.engine(drafter) as e:
        want = [e.generate(p, 24, logits=True, ignore_eos=True) for p in prompts]
    with case.engine(drafter, slots=slots) as e:
        got = e.generate(prompts, 24, logits=True, ignore_eos=True)
    for a, b in zip(got, want, strict=True):
        assert a.ids == b.ids and a.logits.tobytes() == b.logits.tobytes()


def test_beyond_the_budget(tmp_path: Path) -> None:
    """More blocks than the budget: what the kernels choose, step by step and against single rows."""
    g = replace(GEOMETRIES["tiny"], low=32)
    path = write_hf(tmp_path / "m", g, agreeing(g))
    prompt = prompt_of(g, 5, 300)
    with engine(path, device="cuda:0", context=400) as e:
        want = e.generate(prompt, 40, logits=True, ignore_eos=True)
    for drafter in ("mtp:4", "ngram:7"):
        with engine(path, drafter, device="cuda:0", context=400, prefill_chunk=37) as e:
            got = e.generate(prompt, 40, logits=True, ignore_eos=True)
            assert got.ids == want.ids and got.logits.tobytes() == want.logits.tobytes()
    within(stoker.diff(path, [prompt], rounds=4, drafter="mtp:4", context=400, check=False))


def test_chunks_of_4096_rows(tmp_path: Path) -> None:
    """Three routes a row are more than one CTA sorts."""
    path = rounds.long_chunks(tmp_path, "cuda:0")
    prompt = prompt_of(GEOMETRIES["tiny"], 6, 4200)
    within(stoker.diff(path, [prompt], rounds=1, drafter="mtp:1", context=4400, prefill_chunk=4096,
                       check=False))  # fmt: skip
