"""The Flash-Next reference (tests/oracle/flash_next.py) against stored values and against itself,
and the writers of small checkpoints (flash_tools.py, flash_gguf.py) against the reference.

tests/data/flash_tiny holds config.json, *.safetensors and golden.npz: values of the Hugging Face model
in FP32 on exactly these weights (of its draft head: the decoder layer it is built from plus the
published fusion). STOKER_FIXTURES may name a folder of further such folders; each is run the same
way. In golden.npz, k = 0, 1, ... numbers the sequences:

    seq{k}.tokens, .logits, .ple_rows, .layer{i}.wide (some k: after layer i)
    seq{k}.mtp_{whole,per_stream}.logits   row j: target's wide state at j, token j + 1
    seq{k}.mtp_{whole,per_stream}.draft    the target's choice after the sequence, then drafts
    seq{k}.greedy, .greedy_gap             continuation, and the two best logits' distance"""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from pathlib import Path

import flash_tools
import numpy as np
import pytest
from blocks import WEIGHTS
from flash_gguf import FLAVOURS, draft_path, encoded, fitting, read_gguf, read_tensors
from flash_next import FORMS, Config, FlashNext, hash_constants
from flash_tools import GEOMETRIES, case
from tolerances import F32_WHOLE, FLASH_CHUNKS, FLASH_GGUF, FLASH_GOLDEN, VISIBLE

from stoker import Checkpoint

DATA = Path(__file__).parent.parent / "data"
FOLDERS = [DATA / "flash_tiny"]
if "STOKER_FIXTURES" in os.environ:
    FOLDERS += sorted(p.parent for p in Path(os.environ["STOKER_FIXTURES"]).glob("*/golden.npz"))


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda p: p.name)
def fixture(request: pytest.FixtureRequest) -> tuple[FlashNext, dict[str, np.ndarray]]:
    golden = np.load(request.param / "golden.npz")
    return flash_tools.oracle_of(request.param), {k: golden[k] for k in golden.files}


@pytest.fixture(scope="module")
def tiny() -> FlashNext:
    return flash_tools.oracle_of(FOLDERS[0])


def sequences(golden: dict[str, np.ndarray], part: str = "tokens") -> list[str]:
    return [k.removesuffix(part) for k in golden if k.endswith("." + part)]


def error(got: np.ndarray, want: np.ndarray) -> float:
    """Largest error of a row relative to its largest magnitude."""
    assert got.shape == want.shape and np.isfinite(got).all()
    return float((np.abs(got - want).max(-1) / np.abs(want).max(-1)).max())


def gaps(logits: np.ndarray) -> np.ndarray:
    top = np.sort(logits, -1)
    return top[..., -1] - top[..., -2]


def same_tokens(got: list[int], want: np.ndarray, gap: np.ndarray, scale: float) -> None:
    """Equal up to the first near tie, after which the sequences are different ones."""
    for a, b, d in zip(got, want, gap, strict=True):
        if a != b:
            assert d <= 2 * FLASH_GOLDEN * scale, (got, want.tolist())
            return


def test_constants_of_the_hash(fixture: tuple[FlashNext, dict]) -> None:
    model, _ = fixture
    for stored, made in zip(model.constants(), hash_constants(model.c), strict=True):
        assert (stored == made).all()


def test_trunk_equals_stored_values(fixture: tuple[FlashNext, dict]) -> None:
    model, golden = fixture
    assert len(sequences(golden)) >= 5
    for k in sequences(golden):
        trace: dict[str, np.ndarray] = {}
        logits, _ = model.full(golden[k + "tokens"], trace)
        assert (trace["ple_rows"] == golden[k + "ple_rows"]).all()
        assert error(logits, golden[k + "logits"]) < FLASH_GOLDEN
        for name in golden:
            if name.startswith(k) and name.endswith(".wide"):
                assert error(trace[name.split(".")[1]], golden[name]) < FLASH_GOLDEN
    assert any(name.endswith(".wide") for name in golden)


@pytest.mark.parametrize("form", FORMS)
def test_draft_head_equals_stored_values(fixture: tuple[FlashNext, dict], form: str) -> None:
    model, golden = fixture
    for k in sequences(golden):
        tokens = golden[k + "tokens"]
        logits, wide = model.full(tokens)
        got, _ = model.draft_extend(model.new_draft_state(), wide[:-1], tokens[1:], form)
        assert error(got, golden[f"{k}mtp_{form}.logits"]) < FLASH_GOLDEN
        want, steps = golden[f"{k}mtp_{form}.draft"], [logits[-1]]
        first = int(logits[-1].argmax())
        following = [*tokens[1:], first]
        drafts = model.draft_chain(
            model.new_draft_state(), wide, following, len(want) - 1, form, steps
        )
        same_tokens([first, *drafts], want, gaps(np.stack(steps)), np.abs(steps).max())


def test_greedy_tokens_equal_stored_ones(fixture: tuple[FlashNext, dict]) -> None:
    model, golden = fixture
    for k in sequences(golden, "greedy"):
        steps: list[np.ndarray] = []
        want = golden[k + "greedy"]
        got = model.generate(golden[k + "tokens"], len(want), steps)
        same_tokens(got, want, golden[k + "greedy_gap"], np.abs(steps).max())


def ids_of(model: FlashNext, n: int, seed: int = 1) -> np.ndarray:
    """Random tokens with an end of text in the middle and one at the end of the first third."""
    ids = np.random.default_rng(seed).integers(0, model.c.vocab, n)
    ids[[n // 3, n // 2]] = model.c.eos
    return ids


def close_states(a: list[np.ndarray], b: list[np.ndarray]) -> None:
    for x, y in zip(a, b, strict=True):
        assert x.shape == y.shape
        assert np.abs(x - y).max(initial=0) <= FLASH_CHUNKS * max(1, np.abs(y).max(initial=0))


@pytest.mark.parametrize("name", [n for n in GEOMETRIES if n not in ("wide", "long")])
def test_chunks_and_rollback(tmp_path: Path, name: str) -> None:
    """Any cut of a sequence gives the same rows, and no row that was taken back leaves a trace."""
    _, model = case(tmp_path, name)
    ids = ids_of(model, 45)
    want, wide = model.full(ids)
    drafted = None
    if model.has_draft:
        drafted = model.draft_extend(model.new_draft_state(), wide[:-1], ids[1:])[0]
    for sizes in ([1] * 45, [5] * 13, [30, *[1] * 15], list(range(1, 12))):
        st, draft_st, at = model.new_state(), model.new_draft_state(), 0
        rows, draft_rows = [], []
        for n in sizes:
            part = ids[at : at + n]
            if not len(part):
                break
            logits, s = model.extend(st, part)
            rows.append(logits)
            following = ids[at + 1 : at + n + 1]
            if drafted is not None and len(following):
                draft_rows.append(model.draft_extend(draft_st, s[: len(following)], following)[0])
            at += n
        assert error(np.concatenate(rows), want) < FLASH_CHUNKS
        if drafted is not None:
            assert error(np.concatenate(draft_rows), drafted) < FLASH_CHUNKS
    states = [model.new_state()]
    for t in ids:
        states.append(copy.deepcopy(states[-1]))
        model.extend(states[-1], [t])
    for size, start in ((1, 20), (4, 17), (9, 26)):
        for keep in range(size + 1):
            st = copy.deepcopy(states[start])
            window = ids[start : start + size].copy()
            window[keep:] = (window[keep:] + 1) % model.c.vocab
            model.extend(st, window)
            st.commit(keep)
            assert st.n == start + keep
            close_states(st.settled(), states[start + keep].settled())
            got = model.extend(st, ids[start + keep : start + keep + 6])[0]
            assert error(got, want[start + keep : start + keep + 6]) < FLASH_CHUNKS


@pytest.mark.parametrize("form", FORMS)
def test_speculation_equals_greedy(tiny: FlashNext, form: str) -> None:
    """With its own drafts, and with drafts that make every count of accepted ones occur."""
    prompt = ids_of(tiny, 19)
    steps: list[np.ndarray] = []
    plain = tiny.generate(prompt, 40, steps)
    assert gaps(np.stack(steps)).min() > 1e-6, "choose another prompt: this one has a tie"
    for k in (1, 4):
        assert tiny.speculate(prompt, 24, k, form)[0] == plain[:24]
        rounds = iter(range(1000))

        def edit(n: int, drafts: list[int], k: int = k, rounds=rounds) -> list[int]:  # noqa: ANN001
            m, right = next(rounds) % (k + 1), (plain[n:] + drafts)[:k]
            return right[:m] + [(t + 1) % tiny.c.vocab for t in right[m:]]

        got, accepted = tiny.speculate(prompt, 36, k, form, edit)
        assert got == plain[:36]
        assert set(accepted) == set(range(k + 1))


FOLDER_FORMS = [
    dict(), dict(fused=False, mtp_fused=False, mtp_file=False), dict(prefix="model.language_model.", shards=16, composite=True, with_vision=True, files=3),
    dict(fused=False, style="qwen_sparse_attention", files=2, mtp_file=False, shards=2),
]  # fmt: skip


@pytest.mark.parametrize("how", range(len(FOLDER_FORMS)))
def test_folders_hold_the_same_model(tmp_path: Path, how: int) -> None:
    """Every form of a folder, read back without the code that wrote it."""
    path, model = case(tmp_path, "tiny", **FOLDER_FORMS[how])
    ids = ids_of(model, 23)
    outputs = ("logits", "layer1", "layer3", "ple_rows", "mtp_logits")
    read = flash_tools.oracle_of(path)
    by_function = FlashNext(read.c, lambda name: read.source(name))
    got, want = by_function.evaluate(ids, outputs), model.evaluate(ids, outputs)
    for name in outputs:
        assert (got[name] == want[name]).all()


def test_prefill_of_thousands_of_tokens(tmp_path: Path) -> None:
    """Above the budget some rows no longer see everything; below it they do."""
    _, model = case(tmp_path, "long", dtype=np.float32)
    _, dense = case(tmp_path, "long", dtype=np.float32)
    dense.c = replace(dense.c, ratio=0)
    ids = ids_of(model, 2600)
    got, want = model.full(ids)[0], dense.full(ids)[0]
    assert error(got[:2051], want[:2051]) < F32_WHOLE
    assert error(got[2051:], want[2051:]) > VISIBLE


# GGUF files


@pytest.mark.parametrize("name", [n for n in GEOMETRIES if n != "long"])
def test_gguf_of_f32_holds_the_same_model(tmp_path: Path, name: str) -> None:
    """All conversions there and back; the gains were rounded once, and the decays."""
    g = GEOMETRIES[name]
    w = flash_tools.weights(g)
    path, model = case(tmp_path, name, format="gguf")
    held = read_gguf(model.c, path)
    assert set(held) == set(w)
    for key, x in w.items():
        got = np.asarray(held[key])
        assert got.shape == x.shape
        assert np.abs(got - x).max() < 2e-7, key
    ids = ids_of(model, 28)
    outputs = ["logits", *(f"layer{i}" for i in range(len(g.layers)))]
    outputs += ["ple_rows"] * (g.hashed is not None) + ["mtp_logits"] * g.mtp
    want = FlashNext(flash_tools.config(g), w).evaluate(ids, outputs)
    for part, x in model.evaluate(ids, outputs).items():
        assert (x == want[part]).all() if part == "ple_rows" else error(x, want[part]) < FLASH_GGUF


def test_gguf_holds_what_released_files_hold(tmp_path: Path) -> None:
    """Names, shapes and values, each spelled out here once more."""
    g = GEOMETRIES["tiny"]
    w = flash_tools.weights(g)
    path, _ = case(tmp_path, "tiny", format="gguf", mtp="separate")
    tensors, keys = read_tensors(path)
    t = {x.name: np.asarray(x) for x in tensors}
    common = {
        f"hc_{a}_{b}.weight" for a in ("attn", "ffn") for b in ("norm", "down", "up", "inject")
    }
    common |= {"ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight"}
    common |= {f"ffn_{a}_{b}.weight" for a in ("gate", "up", "down") for b in ("exps", "shexp")}
    delta = {"attn_qkv.weight", "attn_gate.weight", "ssm_beta.weight", "ssm_alpha.weight", "ssm_a",
             "ssm_conv1d.weight", "ssm_dt.bias", "ssm_norm.weight", "ssm_out.weight"}  # fmt: skip
    sparse = {f"attn_{x}.weight" for x in ("q", "k", "v", "output", "q_norm", "k_norm")}
    sparse |= {f"indexer.{x}.weight" for x in ("q_proj", "k_proj", "q_norm", "k_norm")}
    hashed = {f"ple_{x}.weight" for x in ("key", "value", "norm_key", "norm_query", "norm_conv",
                                          "conv1d")}  # fmt: skip
    names = {"token_embd.weight", "output.weight", "per_layer_token_embd.weight"}
    names |= {f"output_hc_{x}.weight" for x in ("norm", "down", "up")}
    for i, kind in enumerate(g.layers):
        own = common | (sparse if kind == "S" else delta) | (hashed if i == g.hashed else set())
        names |= {f"blk.{i}.{x}" for x in own}
    assert set(t) == names

    p = "model.layers.0.linear_attn."
    per, dim, key_rows = g.value_heads // g.key_heads, g.linear_dim, 2 * g.key_heads * g.linear_dim
    for h in range(g.value_heads):
        key_head, round_ = h % g.key_heads, h // g.key_heads
        hf = key_head * per + round_
        here, there = (slice(x * dim, x * dim + dim) for x in (h, hf))
        assert (t["blk.0.attn_gate.weight"][here] == w[p + "in_proj_z.weight"][there]).all()
        assert (t["blk.0.ssm_out.weight"][:, here] == w[p + "out_proj.weight"][:, there]).all()
        for a, b in (("attn_qkv", "in_proj_qkv"), ("ssm_conv1d", "conv1d")):
            got, want = t[f"blk.0.{a}.weight"], w[f"{p}{b}.weight"].squeeze()
            assert (got[:key_rows] == want[:key_rows]).all()
            assert (got[key_rows:][here] == want[key_rows:][there]).all()
        assert (t["blk.0.ssm_beta.weight"][h] == w[p + "in_proj_b.weight"][hf]).all()
        assert (t["blk.0.ssm_alpha.weight"][h] == w[p + "in_proj_a.weight"][hf]).all()
        assert t["blk.0.ssm_a"][h] == -np.exp(w[p + "A_log"][hf])
        assert t["blk.0.ssm_dt.bias"][h] == w[p + "dt_bias"][hf]
    assert (t["blk.0.ssm_norm.weight"] == w[p + "norm.weight"]).all()
    gain = w["model.layers.3.self_attn.indexer.k_layernorm.weight"]
    assert (t["blk.3.indexer.k_norm.weight"] == 1 + gain).all()
    both = w["model.layers.2.mlp.experts.gate_up_proj"]
    assert (t["blk.2.ffn_up_exps.weight"] == both[:, g.ffn :]).all()
    assert t["blk.2.ffn_gate_inp_shexp.weight"].shape == (g.dim,)
    assert (
        keys["qwen4exp.ple.layer_multipliers"]
        == hash_constants(Config.read(flash_tools.config(g)))[0].tolist()
    )
    assert max(keys["qwen4exp.ple.layer_multipliers"]) > 2**45
    assert keys["qwen4exp.attention.compress_ratios"] == [0, 0, 0, 4]
    assert keys["qwen4exp.full_attention_interval"] == 4
    assert keys["qwen4exp.block_count"] == 4 and "qwen4exp.nextn_predict_layers" not in keys


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_draft_heads_of_all_flavours(tmp_path: Path, flavour: str) -> None:
    g, ids = GEOMETRIES["tiny"], np.arange(40) * 7 % 256
    want = FlashNext(flash_tools.config(g), flash_tools.weights(g)).evaluate(ids, ["mtp_logits"])
    forms = [dict(), dict(draft_has_target=True, head_norm="streams")]
    for form in forms:
        path, _ = case(tmp_path, "tiny", format="gguf", mtp="separate", flavour=flavour, **form)
        held = read_gguf(Config.read(flash_tools.config(g)), path, draft_path(path))
        got = FlashNext(flash_tools.config(g), held).evaluate(ids, ["mtp_logits"])
        assert error(got["mtp_logits"], want["mtp_logits"]) < FLASH_GGUF
        tensors, keys = read_tensors(draft_path(path))
        shapes = {t.name: t.shape for t in tensors}
        assert ("token_embd.weight" in shapes) == bool(form)
        assert ("qwen4exp.nextn_shared_target_tensors" in keys) == (not form)
        norm = {"eh_proj": "blk.4.nextn.hc_head_norm", "fc": "blk.4.nextn.hc_norm",
                "output_hc": "output_hc_norm"}[flavour]  # fmt: skip
        assert shapes[norm + ".weight"] == ((4, 64) if form else (256,))
        assert ("blk.4.nextn.eh_proj.weight" in shapes) == (flavour != "fc")
        assert ("blk.4.nextn.shared_head_norm.weight" in shapes) == (flavour == "output_hc")
    if flavour != "output_hc":
        path, _ = case(tmp_path, "tiny", format="gguf", mtp="block", flavour=flavour)
        got = FlashNext(flash_tools.config(g), read_gguf(Config.read(flash_tools.config(g)), path))
        assert (
            error(got.evaluate(ids, ["mtp_logits"])["mtp_logits"], want["mtp_logits"]) < FLASH_GGUF
        )


def test_gguf_of_every_type(tmp_path: Path) -> None:
    """Types dealt in turn: what is read back, each in its order, is what the writer says it wrote."""
    kinds = [k for k in WEIGHTS if k != "Q2_0"]  # which the gguf package cannot read
    path, model = case(tmp_path, "wide", format="gguf", types=kinds)
    said = model.source.__self__
    held = read_gguf(model.c, path)
    assert set(held) == set(said)
    for name in held:
        x = np.asarray(held[name])
        assert np.isfinite(x).all() and (x == np.asarray(said[name])).all()
    assert {t.type for t in read_tensors(path)[0]} == set(kinds)
    assert np.isfinite(model.full(ids_of(model, 24))[0]).all()
    path, model = case(tmp_path, "wide", format="gguf", types="Q6_K")
    types = {t.name: (t.type, t.shape) for t in read_tensors(path)[0]}
    assert types["blk.0.ssm_out.weight"] == ("Q6_K", (256, 768))
    assert types["per_layer_token_embd.weight"][0] == "Q8_0"  # rows of 64
    assert types["blk.0.ffn_down_exps.weight"] == ("Q6_K", (4, 256, 256))
    assert types["blk.0.hc_attn_inject.weight"][0] == types["blk.0.ssm_alpha.weight"][0] == "F32"


def test_the_loader_reads_every_type(tmp_path: Path) -> None:
    """Files of all types, Q2_0 among them, and a folder in many pieces pass the loader's checks; the
    values are those of the reference."""
    path, model = case(tmp_path, "wide", format="gguf", types=[*WEIGHTS[::-1], "Q2_0"])
    with Checkpoint(path) as file:
        assert file.architecture == "qwen4exp"
        for name, t in model.source.__self__.t.items():
            assert file[name].type == t.type
            assert (file[name].dequantize() == np.asarray(t)).all()
    path, model = case(tmp_path, "tiny", shards=16, files=3, with_vision=True)
    with Checkpoint(path) as folder:
        for i in (0, 2, 10, 15):
            p = f"model.layers.1.ple.ple_embedding.ngram_embedding.shard_{i}.weight"
            want = model.source(p.replace(f"shard_{i}", "shard_0"))
            n = len(want) // 16
            assert (folder[p].dequantize() == want[i * n : i * n + n]).all()


def test_rows_that_do_not_fit_fall_back() -> None:
    for kind, n, want in (
        ("IQ3_XXS", 640, "IQ4_NL"), ("IQ4_XS", 96, "IQ4_NL"), ("Q2_0", 640, "Q2_0"),
        ("Q2_0", 160, "Q4_0"), ("Q3_K", 640, "Q4_0"), ("TQ1_0", 32, "Q4_0"), ("Q4_K", 640, "Q5_0"),
        ("Q5_K", 160, "Q5_1"), ("Q6_K", 768, "Q6_K"), ("Q6_K", 640, "Q8_0"), ("Q6_K", 48, "F16"),
        ("IQ4_NL", 16, "F16"), ("Q8_0", 48, "F16"), ("BF16", 3, "BF16"), ("MXFP4", 48, "F16"),
    ):  # fmt: skip
        assert fitting(kind, n) == want


def test_q2_0_is_near_what_it_was_made_of(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(0, 1, (4, 128)).astype(np.float32)
    got = np.asarray(encoded("t", x, "Q2_0", 0))
    assert got.shape == x.shape and 0.5 < (got * x).mean() < 1.5
