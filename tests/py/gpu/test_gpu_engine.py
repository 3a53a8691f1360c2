"""The engine on a GPU, on tiny models of all architectures: what may not change a bit, whole models
against the CPU, and errors that leave nothing behind."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import stoker
import test_engine as cpu_cases
import tiny
from gpu_tools import device_memory
from stoker.engine import Engine
from test_engine import PROMPT, planted, relative, same, states
from tolerances import BF16_DEVICES, NEAR_TIE

pytestmark = pytest.mark.gpu
NONE = np.empty(0, np.int32)
TYPES = (tiny.Q4_1, tiny.Q8_0, tiny.Q6_K, tiny.Q4_K, tiny.F16_T, tiny.Q5_K, tiny.BF16_T, tiny.Q4_0,
         tiny.F32_T)  # fmt: skip
SHAPES = {  # heads of 64, 32, 128 and 64; groups of 2, 8, 2 and 4
    "llama": tiny.Shape(tied=False, types=TYPES, ctx=2100),
    "qwen2": tiny.Shape("qwen2", n_head=8, n_kv=1, tied=False, bias=True, rope_base=1e6, types=TYPES,
                        ctx=2100),
    "qwen3": tiny.Shape("qwen3", n_head=2, n_kv=1, tied=False, rope_base=1e6, types=TYPES, ctx=2100),
    "gemma3": tiny.Shape("gemma3", n_layer=4, n_kv=1, tied=False, rope_base=1e6, rope_scale=0.125,
                         types=TYPES, ctx=2100),
}  # fmt: skip
TOKENS = 70


def engine(path: Path, drafter: str = "none", **options: object) -> Engine:
    return cpu_cases.engine(path, drafter, **{"device": "cuda:0", "context": 256, **options})


@pytest.fixture(scope="module", params=SHAPES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = SHAPES[request.param]
    return tiny.write(tmp_path_factory.mktemp("gpu") / f"{request.param}.gguf", shape, seed=21)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("gpu") / "m.gguf", SHAPES["llama"], seed=22)


@pytest.fixture(scope="module")
def plain(path: Path) -> stoker.Result:
    with engine(path) as e:
        return e.generate(PROMPT, TOKENS, logits=True, ignore_eos=True)


def prefill(e: Engine, ids, n: int, slot: int = 0) -> None:
    e._session.start(slot, np.array(ids, np.int32), (n, NONE), False)
    while e._session.prefill(slot, 1):
        pass


def trace(e: Engine, ids, n: int, *, full: bool = True, ahead: int = 0) -> tuple:
    """Completion records, logits rows and the settled state of a request."""
    s, records, logits = e._session, [], []
    prefill(e, ids, n)
    while not records or not records[-1][6]:
        record = s.round(None, full, ahead)[0]
        if record is None:
            continue
        records.append(record)
        if full:
            logits.append(s.logits(record[1], len(record[3])).tobytes())
    s.finish(0, -1)
    return records, b"".join(logits), s.save(0)


def tokens(records) -> list[int]:
    return [token for record in records for token in record[3]]


# What may not change a bit.


@pytest.mark.parametrize("drafter", ["none", "planted:4", "ngram:3"])
def test_modes_edges_and_poison(path: Path, plain: stoker.Result, drafter: str) -> None:
    """Graph, eager and direct give the same records, logits and states."""
    want = None
    for options in ({"mode": "graph"}, {"mode": "eager"}, {"mode": "direct"}, {"edges": False},
                    {"mode": "eager", "edges": False}, {"poison": True},
                    {"mode": "direct", "poison": True}):  # fmt: skip
        with engine(path, drafter, **options) as e:
            assert e.options["executed"] == f"cuda {options.get('mode', 'graph')}"
            assert (e.config["graphs"] > 0) == (options.get("mode", "graph") == "graph")
            assert not (options.get("edges") is False and e.options["edges"])
            if drafter == "planted:4":
                planted(e, PROMPT + plain.ids, [4, 0, 2, 1, 3])
            found = [trace(e, PROMPT, TOKENS), trace(e, PROMPT[:5], 66)]
        want = want or found
        assert found == want, options
    assert tokens(want[0][0]) == plain.ids and want[0][1] == plain.logits.tobytes()
    assert drafter != "none" or [len(t[0]) for t in want] == [TOKENS, 66]


def test_the_greedy_class_chooses_what_the_full_one_does(path: Path) -> None:
    for drafter in ("none", "ngram:4"):
        with engine(path, drafter) as e:
            records, _, state = trace(e, PROMPT, TOKENS)
            for ahead in range(5):  # rounds submitted before the host has seen this one
                assert trace(e, PROMPT, TOKENS, full=False, ahead=ahead) == (records, b"", state)
            assert e.generate(PROMPT, TOKENS, ignore_eos=True).ids == tokens(records)
            with engine(path, drafter, mode="eager", poison=True) as f:
                assert trace(f, PROMPT, TOKENS, full=False, ahead=3) == (records, b"", state)


@pytest.fixture(scope="module")
def plain_states(path: Path) -> dict[int, bytes]:
    with engine(path) as e:
        return states(e, PROMPT, TOKENS)


@pytest.mark.parametrize("width", range(2, 9))
def test_planted_is_lossless(
    path: Path, plain: stoker.Result, plain_states: dict[int, bytes], width: int
) -> None:
    with engine(path, f"planted:{width - 1}", slots=2) as e:
        for accept in range(width):
            planted(e, PROMPT + plain.ids, [accept])
            got = e.generate(PROMPT, TOKENS, logits=True, ignore_eos=True)
            same(got, plain)
            assert (got.rounds[0].drafted, got.rounds[0].accepted) == (width - 1, accept)
            assert e.generate(PROMPT, TOKENS, ignore_eos=True).ids == plain.ids
            for n, blob in states(e, PROMPT, TOKENS).items():
                assert blob == plain_states[n], (accept, n)


@pytest.mark.parametrize("k", [1, 4, 7, 15])
def test_ngram_is_lossless(path: Path, plain: stoker.Result, plain_states: dict, k: int) -> None:
    loop = [1, 2, 3, 4] * 8
    with engine(path) as e:
        want = e.generate(loop, TOKENS, logits=True, ignore_eos=True)
    with engine(path, f"ngram:{k}") as e:
        same(e.generate(PROMPT, TOKENS, logits=True, ignore_eos=True), plain)
        assert e._session.save(0) == plain_states[len(PROMPT) - 1 + TOKENS]
        got = e.generate(loop, TOKENS, logits=True, ignore_eos=True)
    same(got, want)
    assert got.stats.proposed > 0


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
@pytest.mark.parametrize("drafter", ["none", "ngram:4", "planted:9"])
def test_slots_do_not_see_each_other(path: Path, slots: int, drafter: str) -> None:
    """Requests of different lengths join and leave; each equals its solo run."""
    rng = np.random.default_rng(23)
    prompts = [rng.integers(0, 256, n).tolist() for n in (5, 33, 1, 17, 20, 64)]
    with engine(path, drafter) as e:
        alone = [e.generate(p, 25, logits=True, ignore_eos=True) for p in prompts]
    with engine(path, drafter, slots=slots) as e:
        together = e.generate(prompts, 25, logits=True, ignore_eos=True)
        ahead = e.generate(prompts, 25, ignore_eos=True)  # the greedy class, rounds ahead
    for a, b, c in zip(alone, together, ahead, strict=True):
        same(a, b)
        assert a.ids == c.ids
        assert a.stats.counters == b.stats.counters == c.stats.counters


def test_rows_beside_planted_ones(path: Path) -> None:
    """Widths differ from slot to slot and round to round; nobody's bits move."""
    rng = np.random.default_rng(24)
    prompts = [rng.integers(0, 256, 20).tolist() for _ in range(4)]
    with engine(path) as e:
        alone = [e.generate(p, 30, logits=True, ignore_eos=True) for p in prompts]
    for k in (5, 11):  # passes of 24 rows, narrow, and of 48, wide
        with engine(path, f"planted:{k}", slots=4) as e:
            for slot, (p, r) in enumerate(zip(prompts, alone, strict=True)):
                table = p + r.ids
                table[25 + slot :: 4 + slot] = [-1] * len(table[25 + slot :: 4 + slot])
                planted(e, table, [k, 2, 0, 3, 1, 4], slot)
            together = e.generate(prompts, 30, logits=True, ignore_eos=True)
        for a, b in zip(alone, together, strict=True):
            same(a, b)


@pytest.mark.parametrize("kind", TYPES)
def test_a_table_that_is_the_head_too(tmp_path: Path, kind: int) -> None:
    path = tiny.write(tmp_path / "m.gguf", tiny.Shape(types=(kind,), vocab=333), seed=28)
    with engine(path) as e:
        want = e.generate(PROMPT, 20, logits=True, ignore_eos=True)
        scored = e.evaluate(PROMPT + want.ids[:-1])["logits"]
    assert scored[len(PROMPT) - 1 :].tobytes() == want.logits.tobytes()
    with engine(path, "planted:3", prefill_chunk=64) as e:
        planted(e, PROMPT + want.ids, [3, 1])
        same(e.generate(PROMPT, 20, logits=True, ignore_eos=True), want)
    with engine(path, device="cpu") as e:
        on_cpu = e.evaluate(PROMPT + want.ids[:-1])["logits"]
    assert relative(scored, on_cpu) < BF16_DEVICES


@pytest.mark.parametrize("start, contexts", [(495, (535, 600)), (2030, (2070, 2099))])
def test_tier_borders(path: Path, start: int, contexts: tuple[int, ...]) -> None:
    """Positions below 512, below 2048 and above: rows meet graphs of other tiers, and none of it
    shows. Scoring always takes the largest tier."""
    rng = np.random.default_rng(25)
    prompt, n = rng.integers(0, 256, start).tolist(), 40
    with engine(path, context=2100, prefill_chunk=64) as e:
        want = e.generate(prompt, n, logits=True, ignore_eos=True)
        state = e._session.save(0)
        scored = e.evaluate(prompt + want.ids[:-1])["logits"]
    assert scored[start - 1 :].tobytes() == want.logits.tobytes()
    for context in contexts:
        with engine(path, context=context) as e:
            same(e.generate(prompt, n, logits=True, ignore_eos=True), want)
            assert e._session.save(0) == state
    for width in (2, 4, 8):
        with engine(path, f"planted:{width - 1}", context=2100) as e:
            for accept in ([width - 1], [0, 1, width - 1]):
                planted(e, prompt + want.ids, accept)
                same(e.generate(prompt, n, logits=True, ignore_eos=True), want)
                assert e._session.save(0) == state
            assert e.generate(prompt, n, ignore_eos=True).ids == want.ids


def test_a_neighbour_beyond_the_tier(llama: Path) -> None:
    """One slot far out takes the other to larger tiers and back."""
    rng = np.random.default_rng(26)
    prompts = [rng.integers(0, 256, n).tolist() for n in (30, 505, 40, 1500, 507)]
    with engine(llama, context=2100, prefill_chunk=512) as e:
        alone = [e.generate(p, 20, logits=True, ignore_eos=True) for p in prompts]
    with engine(llama, "ngram:3", context=2100, slots=2, prefill_chunk=512) as e:
        together = e.generate(prompts, 20, logits=True, ignore_eos=True)
        ahead = e.generate(prompts, 20, ignore_eos=True)
    for a, b, c in zip(alone, together, ahead, strict=True):
        same(a, b)
        assert a.ids == c.ids


def test_prefill_is_the_decode_path(path: Path) -> None:
    """A text of the model's own, token by token through rounds, by eights, and as a prompt in
    chunks: one state."""
    n = 600
    with engine(path, context=800) as e:
        records, _, state = trace(e, PROMPT, n, full=False)
    text = PROMPT + tokens(records)
    with engine(path, "planted:7", context=800) as e:
        planted(e, text, [7])
        got = trace(e, PROMPT, n, full=False)
        assert tokens(got[0]) == text[len(PROMPT) :] and got[2] == state
    for chunk in (1, 7, 16, 40, 41, 64, 512):
        with engine(path, context=800, prefill_chunk=chunk, slots=2) as e:
            prefill(e, text, 1, slot=1)
            assert e._session.save(1) == state, chunk
            # In two pieces, the second behind what the slot holds.
            s = e._session
            prefill(e, text[:300], 1)
            s.finish(0, 0)
            s.start(0, np.array(text[300:], np.int32), (1, NONE), True)
            while s.prefill(0, 1):
                pass
            assert s.save(0) == state, chunk


def test_evaluate_gives_the_bits_of_rounds(path: Path, plain: stoker.Result) -> None:
    ids = PROMPT + plain.ids[:-1]
    with engine(path, slots=2) as e:
        for chunk in (None, 1, 5, 16):
            got = e.evaluate(ids, ("logits", "layer0", "layer1"), chunk=chunk)
            assert got["logits"][len(PROMPT) - 1 :].tobytes() == plain.logits.tobytes()
            assert np.isfinite(got["layer1"]).all()
        same(e.generate(PROMPT, TOKENS, logits=True, ignore_eos=True), plain)


def test_save_restore_copy(path: Path, plain: stoker.Result) -> None:
    with engine(path, slots=3) as e, engine(path, context=199, mode="eager") as other:
        e.generate(PROMPT, 20, ignore_eos=True)
        blob = e._session.save(0)
        e._session.copy(0, 2)
        other._session.restore(0, blob)
        for session, slot in ((e._session, 0), (e._session, 2), (other._session, 0)):
            assert session.save(slot) == blob
            session.start(slot, NONE, (20, NONE), True)
            assert session.prefill(slot, 1) == 0
            ids: list[int] = []
            while len(ids) < 20:
                ids += session.round(None)[slot][3]
            session.finish(slot, -1)
            assert ids == plain.ids[20:40]


@pytest.mark.parametrize("keep", range(5))
def test_host_may_cut_any_licence(path: Path, plain: stoker.Result, plain_states, keep) -> None:
    with engine(path, "planted:4") as e:
        planted(e, PROMPT + plain.ids, [4])
        prefill(e, PROMPT, TOKENS)
        assert len(e._session.round(None)[0][3]) == 5
        e._session.finish(0, keep)
        c = e._session.counters(0)
        assert (c["emitted"], c["discarded_after_stop"]) == (keep, 5 - keep)
        assert e._session.save(0) == plain_states[len(PROMPT) - 1 + keep]


def test_stop_ids_and_stop_strings(path: Path, plain: stoker.Result, plain_states: dict) -> None:
    stop = plain.ids[10]
    end = plain.ids.index(stop) + 1
    cut: list[int] = []
    for width in (1, 4, 8):
        with engine(path, f"planted:{width - 1}" if width > 1 else "none") as e:
            if width > 1:
                planted(e, PROMPT + plain.ids, [7])
            r = e.generate(PROMPT, TOKENS, stop_ids=[stop], ignore_eos=True)
            assert r.ids == plain.ids[:end] and r.finish_reason == "stop"
            letter = next(chr(t) for t in plain.ids[3:] if 0x20 < t < 0x7F)
            r = e.generate(PROMPT, TOKENS, stop=letter, ignore_eos=True)
            cut = cut or r.ids
            assert r.ids == cut == plain.ids[: len(cut)] and r.finish_reason == "stop"
            assert e._session.save(0) == plain_states[len(PROMPT) - 1 + len(cut)]


def test_two_engines_in_two_threads(llama: Path) -> None:
    rng = np.random.default_rng(27)
    prompts = [[rng.integers(0, 256, 30).tolist() for _ in range(6)] for _ in range(2)]
    want, got = [], [[], []]
    for each in prompts:
        with engine(llama) as e:
            want.append([e.generate(p, 50, ignore_eos=True).ids for p in each])

    def work(i: int, e: Engine) -> None:
        got[i] += [e.generate(p, 50, ignore_eos=True).ids for p in prompts[i]]

    with engine(llama, "ngram:3") as a, engine(llama, "planted:2", mode="eager") as b:
        threads = [threading.Thread(target=work, args=args) for args in enumerate((a, b))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert got == want


def test_closed_and_opened_again(llama: Path) -> None:
    used, ids = [], []
    for _ in range(5):
        with engine(llama, "ngram:2", slots=2, context=2100) as e:
            ids.append(e.generate(PROMPT, 20, ignore_eos=True).ids)
        with pytest.raises(stoker.StateError, match="expected open, found it closed"):
            e.generate(PROMPT, 1)
        used.append(device_memory())
    assert all(x == ids[0] for x in ids)
    assert used[0] is None or used[-1] <= used[1], used


# Against the CPU.


def test_whole_models_against_the_cpu(path: Path) -> None:
    """Teacher-forced on the CPU's tokens: logits within the bound, and the same choices but where
    the CPU's two best are nearly level."""
    with engine(path, device="cpu") as e:
        want = e.generate(PROMPT, 120, logits=True, ignore_eos=True)
        ids = PROMPT + want.ids[:-1]
        on_cpu = e.evaluate(ids)["logits"]
    with engine(path) as e:
        on_gpu = e.evaluate(ids)["logits"]
        free_running = e.generate(PROMPT, 120, ignore_eos=True).ids
    assert relative(on_gpu, on_cpu) < BF16_DEVICES
    second, first = np.sort(on_cpu, axis=1)[:, -2:].T
    tie = first - second < NEAR_TIE * np.abs(on_cpu).max(axis=1)
    other = np.flatnonzero(on_gpu.argmax(1) != on_cpu.argmax(1))
    clear = [(int(i), on_cpu[i].argmax(), on_gpu[i].argmax()) for i in other if not tie[i]]
    assert not clear, f"(position, CPU, GPU): {clear}; in near ties also {set(other.tolist())}"
    at = next((i for i, (a, b) in enumerate(zip(free_running, want.ids, strict=True)) if a != b), 0)
    assert free_running == want.ids or tie[len(PROMPT) - 1 + at], f"token {at} differs"


# Errors.


def bad(kind: type, message: str):
    return pytest.raises(kind, match=message)


def test_option_errors(llama: Path) -> None:
    with bad(stoker.UnsupportedError, "numerics f32: expected device cpu, found cuda:0"):
        engine(llama, numerics="f32")
    with bad(stoker.InvalidArgumentError, "CUDA device 99: expected 0 to"):
        engine(llama, device="cuda:99")


def test_auto_is_the_gpu(llama: Path) -> None:
    with engine(llama, device="auto") as e:
        assert e.options["device"] == "cuda:0" and e.options["kernels"] == "cuda"


@pytest.mark.parametrize("kind", ["Q5_0", "IQ4_XS", "IQ3_S", "Q2_K", "MXFP4"])
def test_types_of_the_ring(llama: Path, tmp_path: Path, kind: str) -> None:
    """Graph, eager and speculative with weights that only the ring has kernels for."""
    types = (tiny.F16_T, tiny.IDS[kind])
    path = tiny.write(tmp_path / "m.gguf", tiny.Shape(types=types, ctx=256))
    with engine(path) as graph, engine(path, mode="eager") as eager:
        want = graph.generate(PROMPT, 24, ignore_eos=True).ids
        assert eager.generate(PROMPT, 24, ignore_eos=True).ids == want
    with engine(path, "ngram:4") as ahead:
        assert ahead.generate(PROMPT, 24, ignore_eos=True).ids == want


def test_a_context_that_does_not_fit(llama: Path, tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf", tiny.Shape(types=TYPES, ctx=2**22))
    numbers = r"weights \d+, request state \d+, transients and scratch \d+, staging \d+ bytes"
    with engine(llama) as e:
        before = 0
        for attempt in range(4):
            if attempt == 1:  # the first one has the driver take memory of its own
                before = device_memory()
            message = rf"device memory: expected room for {numbers}, found \d+ free of \d+"
            with bad(stoker.OutOfMemoryError, message):
                engine(path, slots=64, context=2**22)
        assert device_memory() == before
        assert len(e.generate(PROMPT, 5, ignore_eos=True).ids) == 5


def test_loading_tells_how_far_it_is(llama: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    with engine(llama, progress=lambda *told: seen.append(told)) as e:
        weights = [(done, total) for stage, done, total in seen if stage == "weights"]
        assert weights[0][0] == 0 and len({total for _, total in weights}) == 1
        assert weights == sorted(weights) and weights[-1][0] < weights[-1][1]
        assert weights[0][1] <= e.memory["device: weights, packed"] * 1.2


def test_loading_can_be_ended(llama: Path) -> None:
    def stop(stage: str, done: int, total: int) -> None:
        if stage == "weights" and done > 0:
            raise KeyboardInterrupt

    before = device_memory()
    with pytest.raises(KeyboardInterrupt):
        engine(llama, progress=stop)
    with engine(llama) as e:
        assert e.generate(PROMPT, 2).ids
    after = device_memory()
    assert before is None or after is None or after <= before + (64 << 20)
