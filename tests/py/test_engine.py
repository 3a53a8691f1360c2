"""The engine on tiny models: arithmetic against a float64 oracle, and what may not change a bit."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import decoder as oracle
import numpy as np
import pytest
import tiny
from blocks import IDS, WEIGHTS
from gguf_bytes import build
from op_tools import TABLES

import stoker
from stoker.engine import Engine
from tolerances import BF16_VISIBLE, BF16_WHOLE, F32_WHOLE, LOGPROB


RNG = np.random.default_rng(20)
PROMPT = RNG.integers(0, 256, 37).tolist()


def engine(path: Path, drafter: str = "none", **options: object) -> Engine:
    options.setdefault("device", "cpu")
    options.setdefault("context", 160)
    options.setdefault("prefill_chunk", 16)
    options.setdefault("threads", 2)
    return Engine(path, drafter, **options)  # type: ignore[arg-type]


def relative(found: np.ndarray, want: np.ndarray) -> float:
    """Largest error relative to each row's largest magnitude."""
    return float((np.abs(found - want).max(-1) / np.abs(want).max(-1)).max())


# Six layers have matrices for all types, the rows are long enough for all blocks.
EVERY_TYPE = tiny.Shape(n_layer=6, tied=False, types=tiny.ALL_TYPES)
SHAPES = {
    "common formats, tied": tiny.Shape(),
    "every format": EVERY_TYPE,
    "untied": tiny.Shape(tied=False, n_layer=3),
    "one kv head": tiny.Shape(n_head=8, n_kv=1),
    "as many kv heads": tiny.Shape(n_kv=4),
    "biases": tiny.Shape(bias=True),
    "linear rope scaling": tiny.Shape(rope_scale=0.25, rope_base=1e5),
    "rope factors": tiny.Shape(rope_factors=True),
    "qwen2": tiny.Shape("qwen2", bias=True, rope_base=1e6),
    "qwen3": tiny.Shape("qwen3", tied=False, rope_base=1e6),
    "gemma3": tiny.Shape("gemma3", n_layer=4, rope_base=1e6, rope_scale=0.125),
    "small blocks only": tiny.Shape(dim=96, n_head=3, n_kv=3, ffn=160, vocab=259),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("kernels", ["fast", "definition"])
def test_f32_against_float64(name: str, kernels: str, tmp_path: Path) -> None:
    shape = SHAPES[name]
    path = tiny.write(tmp_path / "m.gguf", shape, seed=3)
    ids = np.array(PROMPT[:24]) % shape.vocab
    taps = tuple(f"layer{i}" for i in range(shape.n_layer))
    with engine(path, numerics="f32", kernels=kernels) as e:
        got = e.evaluate(ids, ("logits", *taps))
        weights = {n: t.dequantize() for n, t in e.checkpoint.items()}
    logits, layers = oracle.forward(
        weights, ids, family=oracle.FAMILIES[shape.arch], n_head=shape.n_head, n_kv=shape.n_kv,
        eps=np.float32(1e-5), base=shape.rope_base, scale=shape.rope_scale,
    )  # fmt: skip
    for i, want in enumerate(layers):
        assert relative(got[f"layer{i}"], want) < F32_WHOLE
    assert relative(got["logits"], logits) < F32_WHOLE


def test_every_type_of_weight(tmp_path: Path) -> None:
    """All types are there, the fast table and speculation change no bit, and rounding is small."""
    path = tiny.write(tmp_path / "m.gguf", EVERY_TYPE, seed=4)
    with engine(path) as e:
        want = e.generate(PROMPT, 24, logits=True, ignore_eos=True)
        found = {t.type for t in e.checkpoint.values()}
    assert found == set(WEIGHTS)
    for options in ({"kernels": "definition"}, {"threads": 3, "prefill_chunk": 7}):
        with engine(path, **options) as e:
            same(e.generate(PROMPT, 24, logits=True, ignore_eos=True), want)
    for k in (1, 4, 7):
        with engine(path, f"ngram:{k}") as e:
            same(e.generate(PROMPT, 24, logits=True, ignore_eos=True), want)
        with engine(path, f"planted:{k}") as e:
            planted(e, PROMPT + want.ids, [k, 0, k // 2])
            same(e.generate(PROMPT, 24, logits=True, ignore_eos=True), want)
    with engine(path) as a, engine(path, numerics="f32") as b:
        x, y = a.evaluate(PROMPT)["logits"], b.evaluate(PROMPT)["logits"]
    assert BF16_VISIBLE < relative(x, y) < 2 * BF16_WHOLE  # six layers


def test_a_weight_of_q8_k_is_refused(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf", tiny.Shape(types=(tiny.F32_T, IDS["Q8_K"])))
    with bad("attn_q.weight: expected a type of weights, found Q8_K", stoker.UnsupportedError):
        engine(path)


def test_bf16_is_close_to_f32(tiny_path: Path) -> None:
    with engine(tiny_path) as a, engine(tiny_path, numerics="f32") as b:
        x, y = a.evaluate(PROMPT)["logits"], b.evaluate(PROMPT)["logits"]
    assert BF16_VISIBLE < relative(x, y) < BF16_WHOLE


@pytest.fixture(scope="module")
def plain(tiny_path: Path) -> stoker.Result:
    with engine(tiny_path) as e:
        return e.generate(PROMPT, 40, logits=True, ignore_eos=True)


def same(a: stoker.Result, b: stoker.Result) -> None:
    assert a.ids == b.ids
    assert a.logits.tobytes() == b.logits.tobytes()


@pytest.mark.parametrize(
    "options",
    [
        *({"kernels": table} for table in TABLES),
        {"threads": 1},
        {"threads": 3},
        {"prefill_chunk": 1},
        {"prefill_chunk": 7},
        {"prefill_chunk": 64},
        {"context": 77},
        {"slots": 4},
        {"poison": True},
        {"poison": True, "kernels": "definition"},
    ],
    ids=str,
)
def test_what_may_not_change_a_bit(tiny_path: Path, plain: stoker.Result, options: dict) -> None:
    with engine(tiny_path, **options) as e:
        same(e.generate(PROMPT, 40, logits=True, ignore_eos=True), plain)


def test_evaluate_gives_the_bits_of_rounds(tiny_path: Path, plain: stoker.Result) -> None:
    ids = PROMPT + plain.ids[:-1]
    with engine(tiny_path, slots=2) as e:
        for chunk in (None, 1, 5, 16):
            got = e.evaluate(ids, chunk=chunk)["logits"]
            assert got[len(PROMPT) - 1 :].tobytes() == plain.logits.tobytes()


@pytest.mark.parametrize("arch", ["qwen2", "qwen3", "gemma3"])
def test_every_recipe_is_lossless(arch: str, tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf", tiny.Shape(arch, n_layer=4), seed=5)
    with engine(path) as e:
        want = e.generate(PROMPT, 40, logits=True, ignore_eos=True)
        state = e._session.save(0)
    with engine(path, prefill_chunk=7, kernels="definition", poison=True) as e:
        same(e.generate(PROMPT, 40, logits=True, ignore_eos=True), want)
    for k, accept in ((1, 1), (4, 2), (7, 7)):
        with engine(path, f"planted:{k}", slots=2) as e:
            planted(e, PROMPT + want.ids, [accept, 0])
            same(e.generate(PROMPT, 40, logits=True, ignore_eos=True), want)
            assert e._session.save(0) == state
        with engine(path, f"ngram:{k}") as e:
            same(e.generate(PROMPT, 40, logits=True, ignore_eos=True), want)


@pytest.mark.parametrize("k", range(1, 8))
def test_ngram_is_lossless(tiny_path: Path, plain: stoker.Result, k: int) -> None:
    with engine(tiny_path, f"ngram:{k}") as e:
        same(e.generate(PROMPT, 40, logits=True, ignore_eos=True), plain)


def planted(e: Engine, ids: list[int], accept: list[int], slot: int = 0) -> None:
    e.plant(ids, accept, slot)


CASES = [(w, a) for w in range(2, 9) for a in range(w)]


@pytest.mark.parametrize(("width", "accept"), CASES)
def test_planted_is_lossless(
    tiny_path: Path, plain: stoker.Result, width: int, accept: int
) -> None:
    with engine(tiny_path, f"planted:{width - 1}") as e:
        planted(e, PROMPT + plain.ids, [accept])
        got = e.generate(PROMPT, 40, logits=True, ignore_eos=True)
    same(got, plain)
    first = got.rounds[0]
    assert (first.drafted, first.accepted, first.emitted) == (width - 1, accept, accept + 1)
    assert got.stats.accepted_at[:8] == [sum(r.accepted > k for r in got.rounds) for k in range(8)]


def states(e: Engine, ids: list[int], n: int) -> dict[int, bytes]:
    """Saved state by committed positions, taken after every round of one request."""
    s = e._session
    s.start(0, np.array(ids, np.int32), (n, np.empty(0, np.int32)), False)
    while s.prefill(0, 1):
        pass
    out = {len(ids) - 1: s.save(0)}
    finish = 0
    while not finish:
        finish = s.round(None)[0][6]
        blob = s.save(0)
        assert s.save(0) == blob  # settling twice is settling once
        out[s.slot(0)["n"]] = blob
    s.finish(0, -1)
    return out


@pytest.fixture(scope="module")
def plain_states(tiny_path: Path, plain: stoker.Result) -> dict[int, bytes]:
    with engine(tiny_path) as e:
        return states(e, PROMPT, 40)


@pytest.mark.parametrize(("width", "accept"), CASES)
def test_settled_states_after_every_round(
    tiny_path: Path, plain: stoker.Result, plain_states: dict[int, bytes], width: int, accept: int
) -> None:
    with engine(tiny_path, f"planted:{width - 1}", slots=2, context=200) as e:
        planted(e, PROMPT + plain.ids, [accept])
        for n, blob in states(e, PROMPT, 40).items():
            assert blob == plain_states[n], n


def test_every_acceptance_in_turn(tiny_path: Path, plain: stoker.Result) -> None:
    with engine(tiny_path, "planted:4") as e:
        planted(e, PROMPT + plain.ids, [0, 1, 2, 3, 4])
        got = e.generate(PROMPT, 40, logits=True, ignore_eos=True)
    same(got, plain)
    assert [r.accepted for r in got.rounds[:5]] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("slots", [2, 3, 4])
@pytest.mark.parametrize("drafter", ["none", "ngram:4"])
def test_slots_do_not_see_each_other(tiny_path: Path, slots: int, drafter: str) -> None:
    """Requests of different lengths join and leave; each equals its solo run."""
    prompts = [RNG.integers(0, 256, n).tolist() for n in (5, 33, 1, 17, 20, 64)]
    with engine(tiny_path, drafter) as e:
        alone = [e.generate(p, 25, logits=True) for p in prompts]
    with engine(tiny_path, drafter, slots=slots) as e:
        together = e.generate(prompts, 25, logits=True)
    for a, b in zip(alone, together, strict=True):
        same(a, b)
        assert a.stats.counters == b.stats.counters


def test_rows_beside_planted_ones(tiny_path: Path) -> None:
    """Widths differ from slot to slot and round to round; nobody's bits move."""
    prompts = [RNG.integers(0, 256, 20).tolist() for _ in range(3)]
    with engine(tiny_path) as e:
        alone = [e.generate(p, 30, logits=True, ignore_eos=True) for p in prompts]
    with engine(tiny_path, "planted:5", slots=3) as e:
        for slot, (p, r) in enumerate(zip(prompts, alone, strict=True)):
            table = p + r.ids
            table[25 + slot :: 4 + slot] = [-1] * len(table[25 + slot :: 4 + slot])
            planted(e, table, [5, 2, 0, 3, 1, 4], slot)
        together = e.generate(prompts, 30, logits=True, ignore_eos=True)
    assert len({tuple(x.rows for x in r.rounds) for r in together}) == 3
    for a, b in zip(alone, together, strict=True):
        same(a, b)


# Ending a request.


def test_stop_id_discards_what_follows(tiny_path: Path, plain: stoker.Result) -> None:
    stop = plain.ids[10]
    end = plain.ids.index(stop) + 1
    for width in (1, 2, 4, 8):
        with engine(tiny_path, f"planted:{width - 1}" if width > 1 else "none") as e:
            if width > 1:
                planted(e, PROMPT + plain.ids, [7])
            r = e.generate(PROMPT, 40, stop_ids=[stop], ignore_eos=True)
            assert r.ids == plain.ids[:end] and r.finish_reason == "stop"
            assert r.stats.discarded_after_stop == r.stats.rounds + r.stats.accepted - end
            assert e._session.slot(0)["n"] == len(PROMPT) - 1 + end


def test_length_never_overshoots(tiny_path: Path, plain: stoker.Result) -> None:
    with engine(tiny_path, "planted:7") as e:
        for n in range(1, 12):
            planted(e, PROMPT + plain.ids, [7])
            r = e.generate(PROMPT, n, ignore_eos=True)
            assert r.ids == plain.ids[:n] and r.finish_reason == "length"


def test_context_limit(tiny_path: Path, plain: stoker.Result) -> None:
    for context in range(len(PROMPT), len(PROMPT) + 6):
        with engine(tiny_path, "planted:4", context=context) as e:
            planted(e, (PROMPT + plain.ids)[: context + 1], [4])
            r = e.generate(PROMPT, 40, ignore_eos=True)
            assert r.ids == plain.ids[: context - len(PROMPT) + 1]
            assert r.finish_reason == "length"


def test_stop_id_wins_over_length(tiny_path: Path, plain: stoker.Result) -> None:
    with engine(tiny_path) as e:
        n = plain.ids.index(plain.ids[5]) + 1
        r = e.generate(PROMPT, n, stop_ids=[plain.ids[5]], ignore_eos=True)
    assert (len(r.ids), r.finish_reason) == (n, "stop")


def test_a_padded_row_has_no_text(tmp_path: Path) -> None:
    """The embedding may have more rows than the vocabulary has tokens, and a model may choose one."""
    shape = tiny.Shape(dim=64, n_head=2, n_kv=2, ffn=64, vocab=320, types=(tiny.F32_T,))
    weights = tiny.tensors(shape, 3)
    rows = np.zeros((320, 64), np.float32)
    rows[:, 0], rows[300, 0] = 1, 50  # the next token is always 300
    for i, t in enumerate(weights):
        if t.name == "token_embd.weight":
            weights[i] = replace(t, data=rows.tobytes())
        elif t.name.endswith(("attn_output.weight", "ffn_down.weight")):
            weights[i] = replace(t, data=bytes(len(t.data)))
    path = tmp_path / "m.gguf"
    path.write_bytes(build(tiny.keys(shape) + tiny.byte_tokenizer(259), weights))
    with engine(path) as e:
        result = e.generate("a", 3)
        assert (result.ids, result.text) == ([300] * 3, "")


def test_stop_string_is_licensed_by_the_host(tiny_path: Path, plain_states: dict) -> None:
    with engine(tiny_path) as e:
        whole = e.generate(PROMPT, 40, ignore_eos=True)
        text = e.tokenizer.decode(whole.ids[:12])
        stop = text[-2:]
        end = next(n for n in range(1, 41) if stop in e.tokenizer.decode(whole.ids[:n]))
    for accept in (0, 3, 7):
        with engine(tiny_path, "planted:7") as e:
            planted(e, PROMPT + whole.ids, [accept])
            r = e.generate(PROMPT, 40, stop=stop, ignore_eos=True)
            assert r.ids == whole.ids[:end] and r.finish_reason == "stop"
            assert stop not in r.text and r.text + stop == e.tokenizer.decode(r.ids)
            # The state is what a run of exactly that many tokens leaves.
            assert e._session.save(0) == plain_states[len(PROMPT) - 1 + end]


def test_counters_add_up(tiny_path: Path) -> None:
    with engine(tiny_path, "ngram:3", slots=2) as e:
        results = e.generate([PROMPT, PROMPT[:9], PROMPT[:20]], 20)
        total = e.counters
    for name in ("rounds", "emitted", "accepted", "proposed", "verified"):
        assert total[name] == sum(getattr(r.stats, name) for r in results)
    assert total["emitted"] == sum(len(r.ids) for r in results)


# State.


def test_save_restore_copy(tiny_path: Path, plain: stoker.Result) -> None:
    limits = (20, np.empty(0, np.int32))
    with engine(tiny_path, slots=3) as e, engine(tiny_path, context=99) as other:
        e.generate(PROMPT, 20, ignore_eos=True)
        blob = e._session.save(0)
        e._session.copy(0, 2)
        other._session.restore(0, blob)
        for session, slot in ((e._session, 0), (e._session, 2), (other._session, 0)):
            assert session.save(slot) == blob
            session.start(slot, np.empty(0, np.int32), limits, True)
            assert session.prefill(slot, 1) == 0
            ids = []
            while len(ids) < 20:
                ids += session.round(None)[slot][3]
            session.finish(slot, -1)
            assert ids == plain.ids[20:]


def test_a_reset_slot_holds_nothing(tiny_path: Path) -> None:
    """The saved state of an empty slot is that of a fresh one, whatever was in it."""
    with engine(tiny_path) as e:
        fresh = e._session.save(0)
        e.generate(PROMPT, 3)
        e._session.reset(0)
        assert e._session.save(0) == fresh


def test_token_zero_is_a_state_to_continue_from(tiny_path: Path) -> None:
    """A prompt of the single token 0 looks like an empty slot in every number but this one."""
    none, more = np.empty(0, np.int32), np.array(PROMPT[:6], np.int32)
    with engine(tiny_path, slots=2) as e:
        want = e.generate([0, *PROMPT[:6]], 5, ignore_eos=True).ids
        s = e._session
        s.start(1, np.zeros(1, np.int32), (1, none), False)
        assert s.prefill(1, 1) == 0
        blob = s.save(1)
        s.reset(1)
        assert s.save(1) != blob
        s.restore(1, blob)
        s.copy(1, 0)
        for slot in (0, 1):
            s.start(slot, more, (5, none), True)
            assert s.prefill(slot, 1) == 0
            ids: list[int] = []
            while len(ids) < 5:
                ids += s.round([None, None])[slot][3]
            s.finish(slot, -1)
            assert ids == want
        s.restore(0, blob)  # a used slot takes a state as an empty one does
        with bad("prompt: expected 1 .. 160 tokens"):
            s.reset(0)
            s.start(0, none, (1, none), True)


def test_continuing_with_more_prompt(tiny_path: Path) -> None:
    more = RNG.integers(0, 256, 30).tolist()
    with engine(tiny_path, slots=2) as e:
        first = e.generate(PROMPT, 7, ignore_eos=True)
        want = e.generate(PROMPT + first.ids + more, 9, logits=True, ignore_eos=True)
        e.generate(PROMPT, 7, ignore_eos=True)
        s = e._session
        s.start(0, np.array(more, np.int32), (9, np.empty(0, np.int32)), True)
        while s.prefill(0, 1):
            pass
        ids, rows = [], []
        while len(ids) < 9:
            done = s.round(None)[0]
            ids += done[3]
            rows.append(s.logits(done[1], 1))
    assert ids == want.ids and np.concatenate(rows).tobytes() == want.logits.tobytes()


def test_waiting_slot_changes_nothing(tiny_path: Path, plain: stoker.Result) -> None:
    """A slot without a licence sits rounds out and then goes on as if nothing had been."""
    with engine(tiny_path, "planted:3", slots=2) as e:
        s = e._session
        planted(e, PROMPT + plain.ids, [3])
        s.start(0, np.array(PROMPT, np.int32), (40, np.empty(0, np.int32)), False)
        while s.prefill(0, 1):
            pass
        ids = list(s.round(None)[0][3])
        before = s.slot(0)
        for _ in range(3):
            assert s.round([(-2, False), None]) == (None, None)
            assert s.slot(0) == before
        while len(ids) < 40:
            ids += s.round(None)[0][3]
        s.finish(0, -1)
        assert ids == plain.ids and s.counters(0)["emitted"] == 40


@pytest.mark.parametrize("keep", range(0, 5))
def test_host_may_cut_any_licence(
    tiny_path: Path, plain: stoker.Result, plain_states: dict, keep: int
) -> None:
    with engine(tiny_path, "planted:4") as e:
        s = e._session
        planted(e, PROMPT + plain.ids, [4])
        s.start(0, np.array(PROMPT, np.int32), (40, np.empty(0, np.int32)), False)
        while s.prefill(0, 1):
            pass
        assert len(s.round(None)[0][3]) == 5
        s.finish(0, keep)
        c = s.counters(0)
        assert (c["emitted"], c["discarded_after_stop"]) == (keep, 5 - keep)
        assert c["emitted"] == c["rounds"] + c["accepted"] - c["discarded_after_stop"]
        assert s.save(0) == plain_states[len(PROMPT) - 1 + keep]


# Errors.


def bad(message: str, kind: type = stoker.InvalidArgumentError):  # noqa: ANN201
    return pytest.raises(kind, match=message)


def test_option_errors(tiny_path: Path) -> None:
    cases = {
        "slots: expected 1 .. 64, found 0": {"slots": 0},
        "slots: expected 1 .. 64, found 65": {"slots": 65},
        "context: expected 1 .. 16777216, found 0": {"context": 0},
        "threads: expected 1 .. 1024, found 0": {"threads": 0},
        "prefill_chunk: expected 1 .. 8192, found 0": {"prefill_chunk": 0},
        "numerics: expected bf16 or f32, found 'f16'": {"numerics": "f16"},
        "mode: expected graph or eager or direct, found 'fast'": {"mode": "fast"},
        "kernels: expected fast or definition or generic or avx2 or avx512, found 'x'": {
            "kernels": "x"
        },
        "embedding_table: expected device or ram, found 'disk'": {"embedding_table": "disk"},
        "embedding_table: expected device for a model without a hashed embedding, found ram": {
            "embedding_table": "ram"
        },
        "seed: expected an integer, found 'a'": {"seed": "a"},
        "slots: expected a 32-bit integer": {"slots": 2**40},
        "drafter: expected none, ngram:K, mtp:K, planted:K or the path of a draft head, found "
        "'tree:4'": {"drafter": "tree:4"},
        "drafter: expected a number of proposals": {"drafter": "ngram:x"},
        "drafter ngram: expected 1 .. 15 proposals, found 16": {"drafter": "ngram:16"},
        "drafter ngram: expected 1 .. 15 proposals, found 0": {"drafter": "ngram:0"},
        "device: expected auto, cpu or cuda:N, found 'tpu'": {"device": "tpu"},
    }
    for message, options in cases.items():
        with bad(message):
            Engine(tiny_path, **options)
    with bad("drafter: eagle3 is not implemented", stoker.UnsupportedError):
        Engine(tiny_path, "eagle3:4")
    text = "drafter mtp: expected a model with a draft head, found llama"
    with bad(text, stoker.UnsupportedError):
        Engine(tiny_path, "mtp:4", device="cpu")


def test_cuda_without_a_gpu(tiny_path: Path) -> None:
    from stoker import _native

    if _native.device_count():
        pytest.skip("there is a CUDA device here")
    with pytest.raises((stoker.DeviceError, stoker.UnsupportedError)) as error:
        Engine(tiny_path, device="cuda:0")
    assert "CUDA" in str(error.value) and "\n" not in str(error.value)


def test_request_errors(tiny_path: Path) -> None:
    with engine(tiny_path, context=40) as e:
        with bad("max_tokens: expected at least 1, found 0"):
            e.generate(PROMPT, 0)
        with bad("temperature: expected 0.0", stoker.UnsupportedError):
            e.generate(PROMPT, 4, temperature=0.7)
        with bad("prompt: expected at most 40 tokens, the engine's context, found 41"):
            e.generate([1] * 41, 4)
        with bad("token 1: expected an id in 0 .. 319, found 320"):
            e.generate([1, 320], 4)
        with bad("token 0: expected an id in 0 .. 319, found -1"):
            e.generate([-1, 3], 4)
        with bad("prompt: expected 32-bit ids"):
            e.generate(np.array([2**40]), 4)
        with bad("prompt: expected a one-dimensional array of token ids"):
            e.generate(np.array([[1, 2]]), 4)
        with bad("prompt: expected a one-dimensional array of token ids"):
            e.generate(np.array([0.5]), 4)
        with bad("prompt: expected at least one token"):
            e.generate("", 4)
        with bad("prompt: expected text, ids, messages or a list"):
            e.generate(3.5, 4)
        with bad("stop_ids: expected at most 32"):
            e.generate(PROMPT, 4, stop_ids=range(100, 140))
        with bad("outputs: expected logits or layer0 .. layer1, found 'layer2'"):
            e.evaluate(PROMPT, ("layer2",))
        with bad("path: expected decode, found 'prefill'"):
            e.evaluate(PROMPT, path="prefill")
        with bad("chunk: expected 1 .. 16, found 17"):
            e.evaluate(PROMPT, chunk=17)
        with bad("ids: expected at most 40 tokens, found 41"):
            e.evaluate([1] * 41)
        with bad("drafter: expected planted, found another", stoker.StateError):
            e.plant([1])
        with bad("n: expected 0 .. 0 for none, found 1"):
            e.draft(PROMPT, 1)
        # Nothing above left anything behind.
        assert len(e.generate(PROMPT, 3, ignore_eos=True).ids) == 3


NO = [None, True, -1, 2**70, 1.5, "x", b"x", bytearray(b"x"), [], {}, object(), np.float32(2),
      np.array([1, 2]), [[1], [2]], "layer00", [None], float("nan")]  # fmt: skip


@pytest.mark.parametrize("value", NO, ids=lambda v: f"{v!r:.20}")
def test_any_argument_of_any_type(tiny_path: Path, value: object) -> None:
    """Whatever is passed for whatever is taken, or refused by the classes that say so."""
    given = {name: {name: value} for name in (
        *("drafter", "device", "slots", "context", "numerics", "mode", "seed", "prefill_chunk"),
        *("threads", "kernels", "tokenizer", "progress"),
    )}  # fmt: skip
    for options in given.values():
        try:
            engine(tiny_path, **{"threads": 1, **options}).close()
        except (stoker.Error, TypeError):
            continue
    with engine(tiny_path, "planted:2", context=40, threads=1) as e:
        for call in (
            lambda: e.generate(value, 1),
            lambda: e.generate([value, "a"], 1),
            lambda: e.generate("a", value),
            lambda: e.generate("a", 1, value),
            lambda: e.generate("a", 1, stop=value),
            lambda: e.generate("a", 1, stop=[value]),
            lambda: e.generate("a", 1, stop_ids=value),
            lambda: list(e.stream(value, 1)),
            lambda: e.evaluate(value),
            lambda: e.evaluate("a", value),
            lambda: e.evaluate("a", [value]),
            lambda: e.evaluate("a", chunk=value),
            lambda: e.evaluate("a", path=value),
            lambda: e.draft(value),
            lambda: e.draft("a", value),
            lambda: e.plant(value),
            lambda: e.plant([1], value),
            lambda: e.plant([1], slot=value),
        ):
            try:
                call()
            except (stoker.Error, TypeError):
                continue
        assert len(e.generate("a", 2, ignore_eos=True).ids) == 2


def wanted(e: stoker.Engine, *outputs: int) -> bytes:
    """Flags of scoring: logits, mtp_logits, ple_rows, then the layers."""
    return bytes(i in outputs for i in range(3 + e.config["n_layer"]))


def test_session_errors(tiny_path: Path) -> None:
    none = np.empty(0, np.int32)
    with engine(tiny_path, slots=2) as e:
        s, logits = e._session, wanted(e, 0)
        one = np.array([5], np.int32)
        with bad("slot: expected 0 .. 1, found 2"):
            s.start(2, one, (1, none), False)
        with bad("slot 0: expected a request in prefill, found none", stoker.StateError):
            s.prefill(0, 1)
        s.start(0, one, (1, none), False)
        with bad("slot 0: expected idle, found a request in it", stoker.StateError):
            s.start(0, one, (1, none), False)
        with bad("slot 0: expected idle", stoker.StateError):
            s.score_begin(0, logits)
        s.reset(0)
        with bad("licence of slot 0: expected -2 .. 16, found 17"):
            s.round([(17, False), None])
        with bad("logits: expected rows within 0 .. 2, found 2 from 1"):
            s.logits(1, 2)
        with bad("logits: expected rows within 0 .. 2, found 2147483647 from 2147483647"):
            s.logits(2**31 - 1, 2**31 - 1)
        with bad("licence: expected -1 .. 16, found -2"):
            s.settle(0, -2)
        with bad("stop ids: expected at most 32, found 33"):
            s.start(0, one, (1, np.zeros(33, np.int32)), False)
        s.start(0, np.array([5, 6], np.int32), (1, none), False)
        with bad("slot 0: expected complete prefill, found some left", stoker.StateError):
            s.save(0)
        with bad("slot 0: expected complete prefill, found some left", stoker.StateError):
            s.copy(0, 1)
        s.reset(0)
        with bad("slots: expected two different ones, found 1"):
            s.copy(1, 1)
        with bad("saved state: expected at least 56 bytes, found 3", stoker.FormatError):
            s.restore(0, b"abc")
        blob = bytearray(s.save(0))
        with bad("saved state: expected 60 bytes, found 64", stoker.FormatError):
            s.restore(0, bytes(blob) + b"1234")
        blob[0] ^= 1
        with bad("saved state: expected magic", stoker.FormatError):
            s.restore(0, bytes(blob))
        with engine(tiny_path, numerics="f32") as other:
            with bad("saved state: expected one of this model and numerics", stoker.FormatError):
                other._session.restore(0, s.save(0))
        s.score_begin(0, logits)
        with bad("round: expected no open scoring, found one", stoker.StateError):
            s.round(None)
        s.score_end()
        with bad("score: expected an open scoring pass, found none", stoker.StateError):
            s.score_step(one, -1, {})
        with pytest.raises(ValueError, match="outputs: expected a flag for each there is"):
            s.score_begin(0, logits + b"\0")
        with bad("score: expected what this model has, found output 2"):
            s.score_begin(0, wanted(e, 2))
        s.score_begin(0, wanted(e, 3))
        with bad("score: expected room for output 3, found none"):
            s.score_step(one, -1, {})
        with pytest.raises(TypeError, match="outputs: expected {output: writable array"):
            s.score_step(one, -1, {3: np.zeros((1, 256), np.int32)})
        with bad("score: expected 1 .. 16 tokens in a context of 160, found 17 at 0"):
            s.score_step(np.zeros(17, np.int32), -1, {3: np.zeros((17, 256), np.float32)})
        s.score_end()
    with bad("session: expected open, found it closed", stoker.StateError):
        s.round(None)
    with bad("engine: expected open, found it closed", stoker.StateError):
        e.generate(PROMPT)
    e.close()


def test_restore_survives_any_bytes(tiny_path: Path) -> None:
    """Flipped bytes in a saved state: an error or a state, never a crash or an out-of-range id."""
    rng = np.random.default_rng(5)
    with engine(tiny_path, "ngram:4") as e:
        e.generate(PROMPT, 5)
        blob = e._session.save(0)
        for _ in range(300):
            broken = bytearray(blob)
            for _ in range(int(rng.integers(1, 4))):
                broken[int(rng.integers(0, min(len(blob), 400)))] = int(rng.integers(0, 256))
            try:
                e._session.restore(0, bytes(broken))
            except stoker.Error:
                continue
            e._session.start(0, np.empty(0, np.int32), (3, np.empty(0, np.int32)), True)
            e._session.prefill(0, 1)
            e._session.round(None)
            e._session.finish(0, -1)


def test_a_session_has_one_caller(tiny_path: Path) -> None:
    """Many threads at once: each call either works or says that the session is busy."""
    with engine(tiny_path) as e:
        want = e.generate(PROMPT, 5, ignore_eos=True).ids
        outcomes: list[object] = []
        logits = wanted(e, 0)

        def work() -> None:
            for _ in range(20):
                try:
                    e._session.score_begin(0, logits)
                    e._session.score_end()
                    outcomes.append("ran")
                except stoker.StateError as error:
                    outcomes.append(str(error))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(outcomes) == 80 and "ran" in outcomes
        allowed = (
            "ran",
            "session: expected idle, found it running in another thread",
            "slot 0: expected no open scoring, found one",
        )
        assert set(outcomes) <= set(allowed)
        e._session.score_end()
        assert e.generate(PROMPT, 5, ignore_eos=True).ids == want


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_has_no_engine(tiny_path: Path, plain: stoker.Result) -> None:
    """A forked child is told so, and can close what it inherited; the parent goes on."""
    with engine(tiny_path) as e:
        child = os.fork()
        if not child:
            signal.alarm(20)  # ends a child that hangs
            try:
                e.generate(PROMPT, 3)
            except stoker.StateError:
                e.close()
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert e.generate(PROMPT, 5, ignore_eos=True).ids == plain.ids[:5]


def test_interrupt_leaves_a_usable_engine(tiny_path: Path, plain: stoker.Result) -> None:
    class Stop(Exception):
        pass

    def progress(stage: str, done: int, total: int) -> None:
        if stage == "prefill" and armed and done > 0:
            raise Stop

    armed = False
    with engine(tiny_path, progress=progress) as e:
        armed = True
        with pytest.raises(Stop):
            e.generate(PROMPT, 4)
        armed = False
        stream = e.stream(PROMPT, 40, ignore_eos=True)
        next(stream)
        stream.close()
        same(e.generate(PROMPT, 40, logits=True, ignore_eos=True), plain)


# What people see.


@pytest.mark.parametrize("slots", [1, 2])
def test_an_open_stream_has_the_engine(tiny_path: Path, plain: stoker.Result, slots: int) -> None:
    """Whoever comes second is refused, and does the first no harm."""
    with engine(tiny_path, slots=slots) as e:
        stream = e.stream(PROMPT, len(plain.ids), ignore_eos=True)
        ids = [*next(stream).ids]
        for second in (
            lambda: e.generate(PROMPT, 3),
            lambda: next(e.stream(PROMPT, 3)),
            lambda: e.evaluate(PROMPT),
            lambda: e.draft(PROMPT),
        ):
            with bad("engine: expected it to be idle, found requests running", stoker.StateError):
                second()
        for event in stream:
            ids += event.ids
        assert ids == plain.ids
        abandoned = e.stream(PROMPT, 9)
        next(abandoned)
        abandoned.close()
        assert e.generate(PROMPT, 9, ignore_eos=True).ids == plain.ids[:9]


def test_stream_is_generate_in_pieces(tiny_path: Path) -> None:
    prompts = [PROMPT, PROMPT[:5]]
    with engine(tiny_path, "ngram:3", slots=2) as e:
        whole = e.generate(prompts, 20)
        events = list(e.stream(prompts, 20))
        assert e.last is not None
    for i, r in enumerate(whole):
        mine = [x for x in events if x.index == i]
        assert "".join(x.text for x in mine) == r.text == e.tokenizer.decode(r.ids)
        assert [t for x in mine for t in x.ids] == r.ids
        assert [x.finish_reason for x in mine][-1] == r.finish_reason
        assert [x.round.number for x in mine] == list(range(len(mine)))


def test_logprobs(tiny_path: Path) -> None:
    with engine(tiny_path) as e:
        r = e.generate(PROMPT, 6, logprobs=True, logits=True, ignore_eos=True)
    x = r.logits.astype(np.float64)
    want = x[np.arange(6), r.ids] - np.log(np.exp(x - x.max()).sum(1)) - x.max()
    np.testing.assert_allclose(r.logprobs, want, atol=LOGPROB)
    assert (x.argmax(1) == r.ids).all()


def test_draft(tiny_path: Path) -> None:
    with engine(tiny_path, "ngram:5") as e:
        loop = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
        assert e.draft(loop) == [3, 4, 1, 2, 3]
        assert e.draft(loop, 2) == [3, 4]
        assert e.draft([9, 9, 9, 9]) == [9] * 5
        assert e.draft([1, 2, 3]) == []
        assert e.draft([1, 2, 7, 8, 1, 2, 5, 6, 1, 2]) == [5, 6, 1, 2, 5]  # the latest wins
        assert e.draft([7, 1, 2, 8, 0, 1, 2, 5, 7, 1, 2]) == [8, 0, 1, 2, 5]  # the longest wins


def test_plan_and_memory(tiny_path: Path) -> None:
    with engine(tiny_path, "ngram:4") as e, engine(tiny_path, "ngram:4") as f:
        assert e.plan.sha256 == f.plan.sha256
        steps = [line for line in str(e.plan).splitlines() if line[:4].strip().isdecimal()]
        assert e.plan.n_steps == len(steps) and any(" rope_attend " in line for line in steps)
        assert set(e.plans) == {"round", "round.greedy", "prefill"}
        assert e.memory.total == sum(e.memory.values()) > 0
        for thing in (e, e.plan, e.memory, e.generate(PROMPT, 2)):
            assert repr(thing)
        with engine(tiny_path, "ngram:5") as g:
            assert g.plan.sha256 != f.plan.sha256


def test_results_carry_every_option(tiny_path: Path) -> None:
    with engine(tiny_path, "ngram:2", seed=9) as e:
        options = e.generate(PROMPT, 2).stats.options
    assert options["drafter"] == "ngram:2" and options["seed"] == 9
    assert options["device"] == "cpu" and options["executed"] == "cpu steps"


def test_memory_stays_flat(tiny_path: Path) -> None:
    def rss() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    with engine(tiny_path, "ngram:4", slots=2) as e:
        e.generate([PROMPT] * 4, 50, ignore_eos=True)
        before = rss()
        for _ in range(20):
            e.generate([PROMPT] * 4, 50, ignore_eos=True)
        assert rss() - before < 2 << 20
