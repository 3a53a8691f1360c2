"""Forced workloads: the tables of routes, what a forced engine computes (against the FP64 reference
with the same routes), which experts its rounds really went to, and that exactly the wanted number of
proposals is accepted, whatever drafts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import stoker
import tiny
from flash_next import FlashNext, best, sigmoid, softmax, swiglu
from flash_sessions import begin, engine, finish, prompt_of, relative, run, same, write_agreeing
from flash_tools import GEOMETRIES, Geometry, config, weights, write_hf
from stoker import Forced, _native
from stoker.forced import ROUTING, first, planted
from tolerances import F32_WHOLE

ENTRIES, STRIDE = 4096, 1565  # csrc/model/forced.h
DRAFTERS = ("mtp:4", "ngram:4", "planted:4", "none:4")


def table_of(f: Forced, layer: int, experts: int = 512, routes: int = 10) -> np.ndarray:
    return _native.forced_routes(ROUTING.index(f.routing), f.seed, layer, experts, routes)


def routes_at(table: np.ndarray, slot: int, pos: int) -> list[int]:
    return table[(slot * STRIDE + pos) % ENTRIES].tolist()


def distinct(table: np.ndarray, slots: int, rows: int, pos: int) -> int:
    return len({e for b in range(slots) for r in range(rows) for e in routes_at(table, b, pos + r)})


# The tables.


@pytest.mark.parametrize("routing", ["uniform", "profile"])
@pytest.mark.parametrize("experts, routes", [(512, 10), (8, 3), (5, 5), (1, 1), (64, 1)])
def test_a_table_has_different_experts_in_every_row(
    routing: str, experts: int, routes: int
) -> None:
    table = table_of(Forced(routing, seed=3), 7, experts, routes)
    assert table.shape == (ENTRIES, routes) and table.dtype == np.int32
    assert 0 <= table.min() and table.max() < experts
    assert all(len(set(row)) == routes for row in table.tolist())
    share = np.bincount(table.ravel(), minlength=experts) / table.size * experts
    spread = np.sqrt((2 if routing == "profile" else 1) * experts / table.size)  # it repeats itself
    assert abs(share - 1).max() < 5 * spread
    assert table.tobytes() == table_of(Forced(routing, seed=3), 7, experts, routes).tobytes()


def test_tables_differ_by_layer_seed_and_kind() -> None:
    seen = {table_of(Forced(r, seed=s), i).tobytes() for r in ROUTING[1:] for s in (0, 1, -1)
            for i in (0, 1, 48)}  # fmt: skip
    assert len(seen) == 18


def test_distinct_experts_of_a_pass() -> None:
    """One slot of five rows, four of them, and twenty rows of one: what design and recordings say."""
    n = {}
    for routing in ("uniform", "profile"):
        tables = [table_of(Forced(routing), i) for i in range(16)]
        for shape in ((1, 5), (4, 5), (1, 20)):
            n[routing, shape] = np.mean([distinct(t, *shape, pos) for t in tables
                                         for pos in range(0, ENTRIES, 61)])  # fmt: skip
    even = {p: 512 * (1 - (1 - 10 / 512) ** p) for p in (5, 20)}
    assert n["uniform", (1, 5)] == pytest.approx(even[5], abs=0.3)
    assert n["uniform", (4, 5)] == pytest.approx(even[20], abs=1)
    assert n["profile", (1, 5)] == pytest.approx(36.2, abs=0.4)
    assert n["profile", (4, 5)] == pytest.approx(130, abs=1.5)
    assert 112 < n["profile", (1, 20)] < 130


def test_the_profile_repeats_experts_as_recorded() -> None:
    """Of the experts of five rows, so many are hit by 1 .. 5 rows; recorded: 74.5, 16.8, 5.6, 2.3, 0.8
    of a hundred."""
    hits = np.zeros(6)
    for layer in range(16):
        table = table_of(Forced("profile"), layer)
        for pos in range(0, ENTRIES - 5, 61):
            hits += np.bincount(np.unique(table[pos : pos + 5], return_counts=True)[1], minlength=6)
    share = 100 * hits[1:] / hits.sum()
    assert np.abs(share - [74.5, 16.8, 5.6, 2.3, 0.8]).max() < 5


def test_slots_at_one_position_share_no_entries() -> None:
    starts = sorted(b * STRIDE % ENTRIES for b in range(64))
    gaps = np.diff([*starts, starts[0] + ENTRIES])
    assert gaps.min() > 16  # SK_WIDTH_MAX


def test_tables_that_cannot_be() -> None:
    for args in ((3, 0, 0, 8, 2), (-1, 0, 0, 8, 2), (1, 0, 0, 8, 9), (1, 0, 0, 8, 0)):
        with pytest.raises(stoker.InvalidArgumentError, match="forced routes: expected a kind in"):
            _native.forced_routes(*args)


# What a forced model computes.


class ForcedNext(FlashNext):
    """The reference with routes out of tables, in one pass from position 0 in slot 0."""

    tables: dict[int, np.ndarray]

    def ffn(self, x: Any, layer: int) -> Any:
        c, p = self.c, self.layer(layer) + "mlp."
        share = softmax(x @ self.w(p + "gate").T)
        share = np.take_along_axis(share, best(share, c.top), 1)
        if c.normalised:
            share = share / share.sum(1, keepdims=True)
        chosen = self.tables[layer][np.arange(len(x)) % ENTRIES]  # the shares keep their places
        out = np.zeros_like(x)
        for r, row in enumerate(chosen.tolist()):
            for j, e in enumerate(row):
                out[r] += share[r, j] * swiglu(x[r : r + 1], *self.kept_expert(layer, e))[0]
        common = swiglu(x, *(self.w(f"{p}shared_expert.{n}_proj") for n in ("gate", "up", "down")))
        return out + sigmoid(x @ self.w(p + "shared_expert_gate").T) * common


@pytest.mark.parametrize("routing", ["uniform", "profile"])
def test_logits_are_those_of_the_reference_with_these_routes(tmp_path: Path, routing: str) -> None:
    g = GEOMETRIES["tiny"]
    w = weights(g, 5)
    path, f = write_hf(tmp_path / "m", g, w), Forced(routing, seed=11)
    oracle = ForcedNext(config(g), w)
    oracle.tables = {i: table_of(f, i, g.experts, g.top) for i in range(len(g.layers))}
    ids = np.random.default_rng(5).integers(0, g.vocab, 40)
    with engine(path, numerics="f32", forced=f) as e:
        got = e.evaluate(ids)["logits"]
    want = oracle.full(ids)[0]
    assert relative(got, want) < F32_WHOLE
    assert relative(FlashNext(config(g), w).full(ids)[0], want) > 1e-3  # and not those without


# What a forced round does.


class Model(NamedTuple):
    path: Path
    g: Geometry
    device: str = "cpu"

    def engine(self, drafter: str = "none", **options: Any) -> stoker.Engine:
        return engine(self.path, drafter, device=self.device, **options)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path, g, _ = write_agreeing(tmp_path_factory.mktemp("forced"), "tiny")
    return Model(path, g)


def prompts_of(g: Geometry) -> list[list[int]]:
    return [prompt_of(g, 4), prompt_of(g, 9, 13), [7]]


@pytest.mark.parametrize("routing", ["uniform", "profile", None])
@pytest.mark.parametrize("drafter", ["mtp:3", "ngram:3"])
def test_rows_went_where_the_table_says(model: Model, routing: str | None, drafter: str) -> None:
    g = model.g
    f = Forced(routing, seed=2)
    with model.engine(drafter, slots=2, forced=f) as e:
        tables = (
            [table_of(f, i, g.experts, g.top) for i in range(len(g.layers) + 1)] if routing else []
        )
        for slot, prompt in enumerate(prompts_of(g)[:2]):
            begin(e, prompt, 40, slot)
        for _ in range(6):
            before = [e._session.slot(b) for b in range(2)]
            done = e._session.round(None, False)
            rows = [(b, d[2] + i) for b, d in enumerate(done) for i in range(d[0])]
            routes = e._session.routes()
            drafts = 3 if drafter.startswith("mtp") else 0
            assert [name for name, _ in routes] == [
                *(f"mtp.{i}.moe" for i in range(drafts)),
                *(f"blk.{i}.moe" for i in range(len(g.layers))),
            ]
            assert all(ids.shape[1] == g.top for _, ids in routes)
            for layer, (_, ids) in enumerate(routes[drafts:]):
                got = ids[: len(rows)].tolist()
                assert all(len(set(row)) == g.top for row in got)
                if routing:
                    assert got == [routes_at(tables[layer], *row) for row in rows]
            for i, (_, ids) in enumerate(routes[:drafts] if routing else ()):
                at = [(b, d[2] - 1 + i) for b, d in enumerate(done)]
                assert ids[:2].tolist() == [routes_at(tables[-1], *row) for row in at]
            assert all(d[2] >= s["n"] for d, s in zip(done, before, strict=True))


def test_without_forcing_nothing_can_be_read(model: Model) -> None:
    with model.engine() as e:
        begin(e, [1, 2, 3], 4)
        e._session.round(None, False)
        assert e._session.routes() == []
        assert "forced" not in e.options and "MEASURING" not in repr(e)


def wanted(slot: int, width: int, accept: str, n: int) -> list[int]:
    return [(r + slot * (accept == "staggered")) % width for r in range(n)]


@pytest.mark.parametrize("accept", ["cycle", "staggered"])
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("routing", ["uniform", None])
def test_rounds_accept_what_the_cycle_says(
    model: Model, routing: str | None, drafter: str, accept: str
) -> None:
    g = model.g
    with model.engine(drafter, slots=3, forced=Forced(routing, accept, 7)) as e:
        results = e.generate(prompts_of(g), 60, ignore_eos=True)
        steps = e.plan.text.splitlines()
    for slot, r in enumerate(results):
        assert len(r.ids) == 60
        # The last two may be cut by the end of the request.
        got = [x.accepted for x in r.rounds[:-2]]
        assert got == wanted(slot, 5, accept, len(got)) and len(got) > 15
        assert all(x.drafted == 4 and x.rows == 5 for x in r.rounds[:-2])
        assert r.stats.options["forced"] == f"routing {routing or 'own'}, accept {accept}, seed 7"
    # The drafter's own steps ran, then its proposals gave way.
    order = [next(i for i, s in enumerate(steps) if f" {op} " in s)
             for op in (f"draft_{drafter.split(':')[0]}".replace("mtp", "put"), "round_rows")]  # fmt: skip
    plants = [i for i, s in enumerate(steps) if " draft_planted " in s]
    assert len(plants) == 1 and order[0] <= plants[0] < order[1]
    if drafter.startswith("mtp"):
        puts = [i for i, s in enumerate(steps) if " draft_put " in s]
        assert len(puts) == 4 and max(puts) < plants[0]


@pytest.mark.parametrize("k", range(1, 9))
def test_any_width(model: Model, k: int) -> None:
    with model.engine(f"mtp:{k}", forced=Forced("profile", "cycle")) as e:
        r = e.generate(prompts_of(model.g)[0], 70, ignore_eos=True)
    got = [x.accepted for x in r.rounds[:-2]]
    assert got == wanted(0, k + 1, "cycle", len(got)) and k in got


def test_a_forced_run_is_lossless_too(model: Model) -> None:
    """Tokens, logits and state of a forced run are those of its slot without drafts."""
    g = model.g
    for routing in ("uniform", "profile"):
        with model.engine(forced=Forced(routing, seed=5)) as e:
            plain = e.generate(prompts_of(g)[0], 50, logits=True, ignore_eos=True)
            state = e._session.save(0)
        for drafter in ("planted:4", "ngram:4", "none:7"):
            with model.engine(drafter, forced=Forced(routing, "cycle", 5)) as e:
                same(e.generate(prompts_of(g)[0], 50, logits=True, ignore_eos=True), plain)
                assert e._session.save(0) == state
        with model.engine(forced=Forced(routing, seed=6)) as e:
            assert e.generate(prompts_of(g)[0], 50, ignore_eos=True).ids != plain.ids


def test_a_row_depends_on_its_slot_and_on_no_neighbour(model: Model) -> None:
    g = model.g
    prompt = prompts_of(g)[0]
    with model.engine(slots=3, forced=Forced("uniform")) as e:
        alone = []
        for slot in range(3):
            begin(e, prompt, 20, slot)
            alone.append((*run(e, 20, slot), finish(e, slot=slot)))
        for slot in range(3):
            begin(e, prompt, 20, slot)
        together: list[list[int]] = [[], [], []]
        for _ in range(20):
            for slot, d in enumerate(e._session.round(None)):
                together[slot] += d[3]
        states = [finish(e, slot=slot) for slot in range(3)]
    assert together == [a[0] for a in alone] and states == [a[2] for a in alone]
    assert len({a[1] for a in alone}) == 3  # other experts by slot, so other logits


def test_a_stop_ends_a_forced_request(model: Model) -> None:
    g = model.g
    with model.engine("mtp:4", forced=Forced("uniform", "cycle")) as e:
        whole = e.generate(prompts_of(g)[0], 40, ignore_eos=True)
        stop = whole.ids[17]
        cut = whole.ids.index(stop) + 1
        r = e.generate(prompts_of(g)[0], 40, stop_ids=[stop], ignore_eos=True)
    assert (r.ids, r.finish_reason) == (whole.ids[:cut], "stop")


def test_poison_and_definition(model: Model) -> None:
    g = model.g
    want = None
    for options in ({}, {"poison": True}, {"kernels": "definition"}):
        with model.engine("mtp:2", forced=Forced("profile", "cycle"), **options) as e:
            r = e.generate(prompts_of(g)[1], 20, logits=True, ignore_eos=True)
        want = want or r
        same(r, want)


def test_every_step_is_the_definition_s(model: Model) -> None:
    prompts = prompts_of(model.g)[:2]
    forced = Forced("profile", seed=1)
    options: dict[str, Any] = {"device": "cpu", "context": 96, "threads": 1, "prefill_chunk": 16}
    records = stoker.diff(model.path, prompts, rounds=3, drafter="mtp:2", forced=forced, **options)
    steps = {(r.plan, r.label) for r in records if r.op == "route_force"}
    assert {label for plan, label in steps if plan != "prefill"} == {
        *(f"blk.{i}.moe" for i in range(4)), "mtp.0.moe", "mtp.1.moe",
    }  # fmt: skip
    assert len([1 for plan, _ in steps if plan == "prefill"]) in (
        3,
        4,
    )  # the last one may end early
    with pytest.raises(
        stoker.InvalidArgumentError, match="forced: expected no acceptance, found cycle"
    ):
        stoker.diff(model.path, prompts, drafter="mtp:2", forced=Forced(None, "cycle"), **options)


# Planted lists.


def test_a_planted_list_is_wrong_once_a_round() -> None:
    tokens = list(range(100, 130))
    table = planted(10, tokens, 4, 130, iter([0, 3, 1, 2, 0, 3, 1, 2, 0, 3, 1, 2]))
    assert len(table) == 41 and (table[:11] == -1).all()
    wrong = [i for i, t in enumerate(table[11:]) if t != tokens[i]]
    # Rounds begin behind 0, 1, 5, 7, 10, ... tokens; one that accepts three has no error.
    assert wrong == [0, 6, 9, 10, 16, 19, 20, 26, 29]
    assert table[40] == 0  # of a vocabulary of 130
    assert planted(0, [], 4, 9, iter([])).tolist() == [-1]


def test_words() -> None:
    assert Forced.parse("uniform", 4, 3) == Forced("uniform", "cycle", 3)
    assert Forced.parse("uniform", 0) == Forced("uniform", None)
    assert Forced.parse("staggered,profile", 4) == Forced("profile", "staggered")
    assert Forced.parse("cycle", 4) == Forced(None, "cycle")
    assert Forced.parse("none", 4) == Forced()
    for text in ("", "even", "uniform,profile", "cycle,cycle", "none,cycle"):
        expected = (
            f"forced: expected none, or uniform or profile, or cycle or staggered, found {text!r}"
        )
        with pytest.raises(stoker.InvalidArgumentError, match=re.escape(expected)):
            Forced.parse(text, 4)
    assert first(Forced(accept="staggered").accepted(2, 3), 4) == [2, 0, 1, 2]


# What cannot be forced.


def test_what_cannot_be_forced(tiny_path: Path) -> None:
    def bad(kind: type[Exception], text: str, path: Path = tiny_path, **options: Any) -> None:
        with pytest.raises(kind, match=re.escape(text)):
            engine(path, **options)

    bad(stoker.UnsupportedError, "forced routing: expected a mixture of experts, found llama",
        forced=Forced("uniform"))  # fmt: skip
    bad(stoker.InvalidArgumentError,
        "forced acceptance: expected a drafter with at least 1 proposal, found 0",
        forced=Forced(None, "cycle"))  # fmt: skip
    bad(stoker.InvalidArgumentError, "forced: expected a Forced, found 'uniform'", forced="uniform")
    with pytest.raises(stoker.InvalidArgumentError,
                       match="forced routing: expected None or uniform or profile, found 'even'"):  # fmt: skip
        Forced("even")
    with pytest.raises(stoker.InvalidArgumentError,
                       match="forced accept: expected None or cycle or staggered, found 1"):  # fmt: skip
        Forced(accept=1)
    for seed, said in ((2**31, "a 32-bit integer"), ("x", "an integer"), (True, "an integer")):
        with pytest.raises(stoker.InvalidArgumentError, match=f"forced seed: expected {said}"):
            Forced(seed=seed)


def test_a_dense_model_accepts_by_the_cycle(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf", replace(tiny.Shape(), ctx=200))
    with engine(path, "ngram:3", slots=2, forced=Forced(None, "staggered")) as e:
        results = e.generate([[5, 6, 7], [9]], 44, ignore_eos=True)
        assert e.options["forced"] == e.config["forced"] == "routing own, accept staggered, seed 0"
        assert repr(e).endswith(", MEASURING: routing own, accept staggered, seed 0>")
    for slot, r in enumerate(results):
        got = [x.accepted for x in r.rounds[:-2]]
        assert got == wanted(slot, 4, "staggered", len(got)) and len(got) > 10
