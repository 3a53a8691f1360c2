"""Forced workloads on a GPU: the CPU's tests of them, with routes read back from the graph that ran, and
every step of a forced round against the CPU definition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import stoker
import test_forced as forced
from flash_sessions import agreeing, same
from flash_tools import GEOMETRIES, write_hf
from stoker import Forced
from test_forced import Model, prompts_of
from test_gpu_flash import within

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    g = replace(GEOMETRIES["tiny"], low=32, eos=7)  # rows of a multiple of 32
    return Model(write_hf(tmp_path_factory.mktemp("forced") / "m", g, agreeing(g)), g, "cuda:0")


# With the model of this module.
test_rows_went_where_the_table_says = forced.test_rows_went_where_the_table_says
test_rounds_accept_what_the_cycle_says = forced.test_rounds_accept_what_the_cycle_says
test_any_width = forced.test_any_width
test_a_forced_run_is_lossless_too = forced.test_a_forced_run_is_lossless_too
test_a_row_depends_on_its_slot = forced.test_a_row_depends_on_its_slot_and_on_no_neighbour
test_a_stop_ends_a_forced_request = forced.test_a_stop_ends_a_forced_request
test_without_forcing_nothing_can_be_read = forced.test_without_forcing_nothing_can_be_read


def test_every_step_is_within_bounds(model: Model) -> None:
    prompts = prompts_of(model.g)[:2]
    for routing in ("uniform", "profile"):
        records = stoker.diff(model.path, prompts, rounds=6, drafter="mtp:3", context=96, prefill_chunk=32,
                              forced=Forced(routing), check=False)  # fmt: skip
        within(records)
        forced_ids = [r for r in records if r.op == "route_force"]
        assert len(forced_ids) > 40 and all(r.ok and not r.mismatches for r in forced_ids)


def test_modes_edges_and_poison(model: Model) -> None:
    want = None
    for options in ({}, {"mode": "eager"}, {"mode": "direct"}, {"edges": False}, {"poison": True}):
        with model.engine("mtp:3", slots=2, forced=Forced("profile", "staggered"), **options) as e:
            got = e.generate(prompts_of(model.g)[:2], 30, logits=True, ignore_eos=True)
        want = want or got
        for a, b in zip(got, want, strict=True):
            same(a, b)
            assert [x.accepted for x in a.rounds] == [x.accepted for x in b.rounds]


def test_routes_are_those_of_the_cpu(model: Model) -> None:
    """Of the same rows: the table, its copy on the device and the op agree."""
    seen = []
    for device in ("cpu", "cuda:0"):
        with Model(model.path, model.g, device).engine("none:2", forced=Forced("profile")) as e:
            forced.begin(e, prompts_of(model.g)[0], 40)
            rows = []
            for _ in range(4):
                (done,) = e._session.round(None, False)
                rows += [(done[2], [ids[: done[0]].tolist() for _, ids in e._session.routes()])]
            seen.append(rows)
    assert seen[0] == seen[1]


def test_every_replay_is_counted(model: Model) -> None:
    with model.engine("mtp:2", forced=Forced("uniform", "cycle")) as e:
        e.generate(prompts_of(model.g)[0], 3)  # records the graph of its prefill
        before = e._session.config()
        r = e.generate(prompts_of(model.g)[0], 30, ignore_eos=True)
        after = e._session.config()
        assert after["graphs"] == before["graphs"] > 0
        # Once without drafts, of one row a round, and once with them.
        assert after["replays"] - before["replays"] == 30 + len(r.rounds)
        assert after["nodes"] > 20
    with model.engine("mtp:2", mode="eager") as e:
        e.generate(prompts_of(model.g)[0], 5, ignore_eos=True)
        assert (e._session.config()["replays"], e._session.config()["nodes"]) == (0, 0)


def test_times_of_a_round(model: Model) -> None:
    with model.engine("mtp:2", slots=2, forced=Forced("uniform", "cycle")) as e:
        for slot in range(2):
            forced.begin(e, prompts_of(model.g)[slot], 60, slot)
        times = [e._session.timed(False) for _ in range(8)]
    assert all(d is not None for records, *_ in times for d in records)
    us = np.array([t[1:] for t in times])
    assert (us > 0).all() and (us[:, 0] > us[:, 2]).all() and (us[:, 0] > us[:, 1]).all()
