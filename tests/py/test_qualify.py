"""Hundreds of rounds at four slots with requests that join and leave: each is as it is alone, counters
are exact, and memory stays as it is. The long form runs on a GPU (gpu/test_gpu_long.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flash_sessions import begin, engine, finish, run, write_agreeing
from flash_tools import Geometry
from qualify import Traffic, alone, counted, drive, host_memory
from stoker import Forced

ROUNDS = 240


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Geometry]:
    path, g, _ = write_agreeing(tmp_path_factory.mktemp("qualify"), "tiny")
    return path, g


@pytest.mark.parametrize("drafter", ["mtp:4", "ngram:3"])
def test_requests_that_join_and_leave(model: tuple[Path, Geometry], drafter: str) -> None:
    path, g = model
    memory: list[Any] = []
    with engine(path, drafter, slots=4) as e:
        requests = drive(
            e, Traffic(g.vocab, 128), ROUNDS, 0, lambda k: memory.append(e.memory.total)
        )
        assert len(requests) > 25
        assert {len(r.ids) == 1 for r in requests} == {len(r.tokens) == r.n for r in requests} == {
            True, False,
        }  # fmt: skip
        assert sum(r.counters["accepted"] for r in requests) > 50
        assert len(set(memory)) == 1
    for r in requests:
        counted(r)
    with engine(path) as plain, engine(path, drafter) as head:
        alone(plain, head, requests)


def test_forced_requests_that_join_and_leave(model: tuple[Path, Geometry]) -> None:
    """What a forced request says depends on its slot and on nobody beside it."""
    path, g = model
    forced = Forced("profile", seed=3)
    with engine(path, "mtp:4", slots=4, forced=forced) as e:
        requests = drive(e, Traffic(g.vocab, 128, 5), 60, 0, lambda k: None)
    assert len(requests) > 8 and {r.slot for r in requests} == {0, 1, 2, 3}
    with engine(path, slots=4, forced=forced) as e:
        for r in requests:
            counted(r)
            begin(e, r.ids, len(r.tokens), r.slot)
            assert run(e, len(r.tokens), r.slot)[0] == r.tokens
            finish(e, slot=r.slot)


def test_memory_of_many_rounds(model: tuple[Path, Geometry]) -> None:
    """Of the process, behind the first hundred of them."""
    path, g = model
    seen: list[int] = []
    with engine(path, "mtp:4", slots=4) as e:
        drive(e, Traffic(g.vocab, 128, 1), ROUNDS, 0, lambda k: seen.append(host_memory()))
    assert seen[-1] - seen[100] < 2 << 20
