"""The step diff. Without a GPU the other side is the CPU's definition, which has to agree to the byte:
all of the machinery runs here but the transfers. Faults are planted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from gguf_bytes import build

import stoker
from stoker import _native, stepdiff
from stoker.cli import main
from stoker.stepdiff import Difference, worst
from tolerances import BF16_SHARE, BF16_ULPS, ELEMENTWISE, LINEAR_REL_L2, to_bf16

SHAPES = {
    "llama": tiny.Shape(),
    "qwen2": tiny.Shape("qwen2", bias=True, rope_base=1e6),
    "qwen3": tiny.Shape("qwen3", tied=False, rope_base=1e6),
    "gemma3": tiny.Shape("gemma3", n_layer=4, rope_base=1e6, rope_scale=0.125),
}
PROMPT = [7, 8, 9, 7, 8, 9, 7, 8]
NO_DEVICE = _native.device_count() == 0


# Whole passes.


@pytest.mark.parametrize("arch", SHAPES)
def test_fast_is_the_definition(arch: str, tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf", SHAPES[arch], seed=5)
    records = stoker.diff(path, PROMPT, drafter="ngram:4", device="cpu", context=64, threads=2)
    assert {r.plan for r in records} == {"prefill", "round", "round.greedy"}
    assert {r.number for r in records} == set(range(5))
    assert all(r.ok and r.rule == "exact" and not r.mismatches and not r.stray for r in records)
    assert {"commit", "draft_ngram", "round_rows", "accept", "publish"} <= {r.op for r in records}
    assert all(r.elements for r in records)


@pytest.mark.skipif(not NO_DEVICE, reason="there is a CUDA device")
def test_without_a_device(tiny_path: Path) -> None:
    with pytest.raises((stoker.UnsupportedError, stoker.DeviceError)):
        stoker.diff(tiny_path, PROMPT)


def test_several_prompts_and_what_is_left_out(tiny_path: Path) -> None:
    options: dict[str, Any] = {"device": "cpu", "context": 32, "threads": 1}
    records = stoker.diff(tiny_path, ["abab", "xyz"], rounds=1, prefill=False, **options)
    assert {(r.plan, r.capacity) for r in records} == {("round", 2)}
    assert [r.rows for r in records if r.op == "norm_linear"][0] == 2
    assert stoker.diff(tiny_path, [3], rounds=0, **options) == []
    full = stoker.diff(tiny_path, [3] * 32, rounds=9, **options)  # ends when the context is full
    assert max(r.number for r in full) < 9
    with pytest.raises(stoker.InvalidArgumentError, match="rounds: expected at least 0, found -1"):
        stoker.diff(tiny_path, PROMPT, rounds=-1, device="cpu")


# Planted faults, by the rules of a device.


class Beside:
    """Two CPU sessions held to the rules of a device."""

    def __init__(self, path: Path, slots: int = 1, k: int = 2) -> None:
        options = (slots, 64, 16, 1, 0, "fast", 0, -1, 0, 1, 2, k, 4, 2, 0, 0, 0, (0, 0, 0, 0))
        with stoker.open(path) as checkpoint:
            self.session = _native.diff_open(checkpoint._native, options, -1, False)

    def spoil(self, step: int, field: str, at: int, flip: int = 1) -> None:
        _native.diff_spoil(self.session, step, field, at, flip)

    def prefill(self) -> list[Difference]:
        self.session.start(0, PROMPT, (40, []), False)
        assert self.session.prefill(0, 1) == 0
        return self.take()

    def round(self, full: bool = True) -> list[Difference]:
        self.session.round(None, full, 0)
        return self.take()

    def take(self) -> list[Difference]:
        return [Difference._of(x) for x in _native.diff_take(self.session)]


def output(records: list[Difference], op: str, field: str) -> Difference:
    return next(r for r in records if (r.op, r.field) == (op, field))


def test_rules(tiny_path: Path) -> None:
    b = Beside(tiny_path)
    records = b.prefill() + b.round(True) + b.round(False)
    assert all(r.ok for r in records)
    rules = {(r.op, r.field): r.rule for r in records}
    assert rules["norm_linear", "y[0]"] == rules["linear_add", "y"] == "linear"
    assert rules["gather_rows", "out"] == "elements"
    assert rules["rope_attend", "out"] == rules["kv_append", "k_cache"] == "bf16"
    assert rules["norm_glu", "out"] == "bf16"
    assert rules["norm_argmax", "id"] == "choice"
    assert rules["argmax", "id"] == rules["commit", "tokens"] == rules["publish", "ring"] == "exact"


def test_the_smallest_capacity_is_run_as_on_a_device(tiny_path: Path) -> None:
    b = Beside(tiny_path, slots=3, k=1)
    b.prefill()
    assert {r.capacity for r in b.round()} == {2}


def only_bad(records: list[Difference]) -> Difference:
    (bad,) = [r for r in records if not r.ok]
    return bad


def test_a_wrong_step_is_found_and_does_not_travel(tiny_path: Path) -> None:
    b = Beside(tiny_path)
    step = output(b.prefill(), "linear_add", "y").step
    b.session.reset(0)
    row = 3 * 256 * 4
    b.spoil(step, "y", row + 11 * 4 + 3, 0x40)  # an exponent
    bad = only_bad(b.prefill())
    assert (bad.step, bad.op, bad.field, bad.rule) == (step, "linear_add", "y", "linear")
    assert (bad.row, bad.column, bad.mismatches) == (3, 11, 1)
    assert bad.value > bad.bound and str(bad).count("row 3, column 11") == 1


def test_rows_without_meaning_do_not_count(tiny_path: Path) -> None:
    b = Beside(tiny_path)
    step = output(b.prefill(), "linear_add", "y").step
    b.session.reset(0)
    b.spoil(step, "y", len(PROMPT) * 256 * 4 + 3, 0x40)
    assert not any(r.mismatches for r in b.prefill())


def test_a_cache_changes_in_its_rows_alone(tiny_path: Path) -> None:
    b = Beside(tiny_path)
    cache = output(b.prefill(), "rope_attend", "k_cache")
    assert (cache.rows, cache.elements) == (len(PROMPT) - 1, (len(PROMPT) - 1) * 2 * 64)
    for at, ok, stray, off in ((2 * 128 * 2, True, 0, 1), (64 * 128 * 2 - 1, False, 1, 0)):
        b.session.reset(0)
        b.spoil(cache.step, "k_cache", at)
        found = output(b.prefill(), "rope_attend", "k_cache")
        assert (found.ok, found.stray, found.off) == (ok, stray, off)


def spoiled_choice(path: Path, flip: int) -> Difference:
    """The choice of the first greedy round, of which the other side reads another."""
    b = Beside(path)
    b.prefill()
    step = output(b.round(False), "norm_argmax", "id").step
    b = Beside(path)
    b.prefill()
    b.spoil(step, "id", 0, flip)
    return output(b.round(False), "norm_argmax", "id")


def test_a_tie_may_be_decided_either_way(tmp_path: Path) -> None:
    shape = tiny.Shape(types=(tiny.F16_T,), vocab=256)
    path = tiny.write(tmp_path / "m.gguf", shape, tokenizer=False)
    with stoker.Engine(path, device="cpu", context=64) as e:
        token = e.generate(PROMPT, 1).ids[0]
    flip = next(1 << i for i in range(8) if not token >> i & 1)  # the lowest id wins a tie
    apart = spoiled_choice(path, flip)
    assert not apart.ok and apart.value > apart.bound
    assert (apart.expected, apart.found) == (token, token ^ flip)
    tensors = tiny.tensors(shape, 0)
    at = next(i for i, x in enumerate(tensors) if x.name == "token_embd.weight")
    rows = np.frombuffer(tensors[at].data, np.float16).reshape(shape.vocab, -1).copy()
    rows[token ^ flip] = rows[token]
    tensors[at] = replace(tensors[at], data=rows.tobytes())
    path.write_bytes(build(tiny.keys(shape), tensors))
    tie = spoiled_choice(path, flip)
    assert (tie.ok, tie.value, tie.mismatches) == (True, 0, 1)


def test_no_choice_at_all(tiny_path: Path) -> None:
    b = Beside(tiny_path)
    b.prefill()
    step = output(b.round(False), "norm_argmax", "id").step
    b.spoil(step, "id", 3, 0x80)  # negative
    bad = output(b.round(False), "norm_argmax", "id")
    assert not bad.ok and bad.value == np.inf


# The comparison alone.

RNG = np.random.default_rng(9)
GAP = ("rule", "value", "bound", "ok", "elements", "mismatches", "not_finite", "stray", "off", "ulps",
       "rel_l2", "max_rel", "worst")  # fmt: skip


def compare(kind: str, rule: str, got: np.ndarray, want: np.ndarray) -> dict[str, Any]:
    return dict(zip(GAP, _native.diff_compare(kind, rule, got, want), strict=True))


def test_bounds_are_those_of_the_tests() -> None:
    x = np.zeros((1, 1), np.float32)
    want = {"exact": 0, "linear": LINEAR_REL_L2, "elements": ELEMENTWISE, "bf16": BF16_SHARE,
            "choice": ELEMENTWISE}  # fmt: skip
    assert {rule: compare("F32", rule, x, x)["bound"] for rule in want} == want


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_float_rules_at_their_bounds(factor: float) -> None:
    want = RNG.normal(0, 1, (5, 400)).astype(np.float32)
    error = np.zeros((5, 400))
    error[3] = RNG.normal(0, 1, 400)
    error *= factor * LINEAR_REL_L2 * np.linalg.norm(want[3]) / np.linalg.norm(error)
    gap = compare("F32", "linear", (want + error).astype(np.float32), want)
    assert gap["ok"] == (factor < 1) and gap["worst"][0] == 3
    assert gap["value"] == gap["rel_l2"] == pytest.approx(factor * LINEAR_REL_L2, rel=0.02)
    got = want.copy()
    got[2, 7] += factor * ELEMENTWISE * np.abs(want[2]).max()
    gap = compare("F32", "elements", got, want)
    assert gap["ok"] == (factor < 1) and gap["worst"][:2] == (2, 7) and gap["mismatches"] == 1
    assert gap["value"] == pytest.approx(factor * ELEMENTWISE, rel=0.02)


def test_bf16_by_units_and_by_share() -> None:
    want = to_bf16(RNG.uniform(1, 2, (4, 500)).astype(np.float32))

    def gap(n: int, ulps: int) -> dict[str, Any]:
        got = want.copy()
        got.reshape(-1)[:n] += np.uint16(ulps)
        return compare("BF16", "bf16", got, want)

    allowed = int(BF16_SHARE * want.size)
    assert gap(allowed, BF16_ULPS)["ok"] and gap(allowed, 1)["off"] == allowed
    assert not gap(allowed + 1, 1)["ok"]
    assert not gap(1, BF16_ULPS + 1)["ok"] and gap(1, 2)["ulps"] == 2
    small = to_bf16(np.array([[1, 1e-6, -0.0]], np.float32))
    other = to_bf16(np.array([[1, -2e-6, 0.0]], np.float32))
    near = compare("BF16", "bf16", other, small)  # sums that cancel to about zero
    assert near["ok"] and (near["off"], near["mismatches"]) == (0, 2)
    one = compare("BF16", "bf16", small + np.array([[1, 0, 0]], np.uint16), small)
    assert one["ok"] and one["off"] == 1  # a small output may have one


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("rule", ["linear", "elements", "exact"])
def test_what_is_not_finite_is_bad(value: float, rule: str) -> None:
    a, b = np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)
    a[1, 2] = value
    for got, want in ((a, b), (b, a), (a, a)):
        gap = compare("F32", rule, got, want)
        assert not gap["ok"] and gap["not_finite"] == 1 and gap["worst"][:2] == (1, 2)


def test_integers_exactly() -> None:
    for kind, dtype in (("I32", np.int32), ("I64", np.int64), ("U8", np.uint8)):
        want = np.arange(12, dtype=dtype).reshape(3, 4)
        got = want.copy()
        assert compare(kind, "exact", got, want)["ok"]
        got[1, 2] += 1
        gap = compare(kind, "exact", got, want)
        assert not gap["ok"] and gap["mismatches"] == 1 and gap["worst"] == (1, 2, 7, 6)


def test_comparison_refuses_what_it_cannot_read() -> None:
    x = np.ones((2, 3), np.float32)
    for kind, rule, a, b in (("F32", "near", x, x), ("F16", "exact", x, x), ("BF16", "bf16", x, x),
                             ("F32", "exact", x, x[:1]), ("F32", "exact", x.T, x.T)):  # fmt: skip
        with pytest.raises(ValueError, match="rule: no rule|arrays: expected"):
            _native.diff_compare(kind, rule, a, b)


# What people see.


@pytest.fixture
def one_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every run of a plan one byte of step 3 is wrong on the other side."""
    real = _native.diff_open

    def spoiled(*args: Any) -> Any:
        session = real(*args)
        _native.diff_spoil(session, 3, "y", 5, 1)
        return session

    monkeypatch.setattr(stepdiff._native, "diff_open", spoiled)


def test_a_mismatch_is_raised(tiny_path: Path, one_wrong: None) -> None:
    options: dict[str, Any] = {"device": "cpu", "context": 64, "rounds": 1}
    with pytest.raises(stoker.MismatchError) as raised:
        stoker.diff(tiny_path, PROMPT, **options)
    error = raised.value
    assert (error.code, error.step) == ("MISMATCH", 3)
    assert str(error).startswith("prefill of 512 rows, run 0, step 3 (linear_add blk.0.attn): y: ")
    assert str(error).endswith(f"; 1 of {len(error.records)} outputs are out of bounds")
    assert error.records == stoker.diff(tiny_path, PROMPT, check=False, **options)
    assert sum(not r.ok for r in worst(error.records)) == 1


def run(capsys: pytest.CaptureFixture[str], path: Path, *argv: str) -> tuple[int, str, str]:
    status = main(("diff", "-m", str(path), "-p", "ababab", "--device", "cpu", "--context", "64",
                   "--rounds", "2", *argv))  # fmt: skip
    return status, *capsys.readouterr()


def test_command(tiny_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, tiny_path, "--draft", "ngram:3", "--no-prefill")
    assert (status, err) == (0, "") and " 0 out of bounds" in out
    for word in ("draft_ngram", "norm_argmax", "y[2]", "ring", "exact", "bound"):
        assert word in out
    status, text, _ = run(capsys, tiny_path, "--json")
    records = json.loads(text)
    assert status == 0 and all(r["ok"] for r in records) and records[0]["plan"] == "prefill"
    status, out, _ = run(capsys, tiny_path, "--steps", "all")
    assert out.count("\nok ") == len(records) - 1


def test_command_on_a_mismatch(
    tiny_path: Path, one_wrong: None, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(capsys, tiny_path, "--steps", "bad")
    lines = out.splitlines()
    assert status == 1 and lines[0].startswith(
        "BAD prefill of 512 rows, run 0, step 3 (linear_add "
    )
    assert lines[-1].startswith("first: prefill of 512 rows, run 0, step 3 (linear_add ")
    assert lines[-2].endswith(" 1 out of bounds")


def test_a_session_without_a_diff(tiny_path: Path) -> None:
    with stoker.Engine(tiny_path, device="cpu", context=64) as e:
        for call, rest in ((_native.diff_take, ()), (_native.diff_switch, (True,)),
                           (_native.diff_spoil, (0, "y", 0, 1))):  # fmt: skip
            with pytest.raises(stoker.StateError, match="expected one of diff_open"):
                call(e._session, *rest)


@pytest.mark.parametrize("drafter", ["none", "ngram:3", "mtp:2"])
def test_hybrid_models(drafter: str) -> None:
    """Fast kernels against the definition on every step of a model with recurrences, block-sparse
    attention, experts and a draft head; several capacities, as requests end one after the other."""
    prompts = [np.arange(10, 30), np.arange(40, 45), np.arange(3, 60)]
    folder = Path(__file__).parent.parent / "data" / "flash_tiny"
    records = stoker.diff(folder, prompts, drafter=drafter, device="cpu", rounds=12, context=96)
    assert all(r.ok and r.rule == "exact" for r in records)
    ops = {r.op for r in records}
    assert {"gdn_scan", "gdn_step", "gdn_fold", "block_topk", "attend_blocks", "expert_glu"} <= ops
    assert ("mtp_join" in ops) == (drafter == "mtp:2")
