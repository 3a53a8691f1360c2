"""SmolLM2-135M-Instruct: reference logits, and lossless speculation on real text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import golden
import pytest

import stoker
from stoker import Engine

pytestmark = pytest.mark.model

PROMPTS = json.loads((Path(__file__).parents[1] / "data/prompts.json").read_text())
TOKENS = 24


@pytest.fixture(scope="module")
def plain(smollm2_path: Path) -> Iterator[dict[str, stoker.Result]]:
    with Engine(smollm2_path, device="cpu", context=256) as e:
        yield {k: e.generate(p, TOKENS, logits=True, ignore_eos=True) for k, p in PROMPTS.items()}


def same(a: stoker.Result, b: stoker.Result) -> None:
    assert a.ids == b.ids
    assert a.logits.tobytes() == b.logits.tobytes()


def test_f32_logits_equal_transformers(smollm2_path: Path) -> None:
    """Below 1e-4 of the row maximum, for three prompts; 5e-6 was measured over all columns."""
    golden.check(smollm2_path, "smollm2_golden.npz", 64)


def test_the_reference_used_our_token_ids(smollm2_path: Path) -> None:
    golden.ids_are_ours(smollm2_path, "smollm2_golden.npz")


@pytest.mark.parametrize("k", range(1, 8))
def test_ngram_is_lossless(smollm2_path: Path, plain: dict[str, stoker.Result], k: int) -> None:
    accepted = 0
    with Engine(smollm2_path, f"ngram:{k}", device="cpu", context=256) as e:
        for name, prompt in PROMPTS.items():
            r = e.generate(prompt, TOKENS, logits=True, ignore_eos=True)
            same(r, plain[name])
            accepted += r.stats.accepted
    assert accepted > 20  # the drafts were not all wrong, so something was tested


@pytest.mark.parametrize("width", range(1, 9))
def test_planted_is_lossless(
    smollm2_path: Path, plain: dict[str, stoker.Result], width: int
) -> None:
    """Every accepted count 0 .. W-1, tokens, logits and settled state bit for bit."""
    name = list(PROMPTS)[width]
    want = plain[name]
    with Engine(smollm2_path, device="cpu", context=256) as e:
        e.generate(PROMPTS[name], TOKENS, ignore_eos=True)
        state = e._session.save(0)
    drafter = f"planted:{width - 1}" if width > 1 else "none"
    with Engine(smollm2_path, drafter, device="cpu", context=256) as e:
        for accept in range(width):
            if width > 1:
                e.plant(want.prompt_ids + want.ids, [accept])
            r = e.generate(PROMPTS[name], TOKENS, logits=True, ignore_eos=True)
            same(r, want)
            assert r.rounds[0].accepted == accept
            assert e._session.save(0) == state


@pytest.mark.parametrize("slots", [2, 3, 4])
def test_interleaved_slots_equal_solo_runs(
    smollm2_path: Path, plain: dict[str, stoker.Result], slots: int
) -> None:
    with Engine(smollm2_path, "ngram:3", slots=slots, device="cpu", context=256) as e:
        together = e.generate(list(PROMPTS.values()), TOKENS, logits=True, ignore_eos=True)
    for r, want in zip(together, plain.values(), strict=True):
        same(r, want)


def test_definition_gives_the_bits_of_the_fast_table(
    smollm2_path: Path, plain: dict[str, stoker.Result]
) -> None:
    want = plain["one token"]
    with Engine(smollm2_path, device="cpu", context=32, kernels="definition") as e:
        got = e.evaluate(want.prompt_ids + want.ids[:1])["logits"]
    assert got.tobytes() == want.logits[:2].tobytes()


def test_chat_answers(smollm2_path: Path) -> None:
    with Engine(smollm2_path, "ngram:4", device="cpu", context=256) as e:
        r = e.generate([{"role": "user", "content": "What is the capital of France?"}], 40)
    assert r.text == "The capital of France is Paris." and r.finish_reason == "stop"
    assert r.ids[-1] == e.tokenizer.eos_id
