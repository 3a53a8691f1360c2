"""Checkpoints without a file: what is made, that it is always the same, and that an engine runs on
it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from math import prod, sqrt

import numpy as np
import pytest
import stoker
from blocks import WEIGHTS, reference, sizes
from gguf_bytes import BLOCKS
from stoker import _native, _synthetic as synthetic

Spec, NORMAL, UNIFORM = synthetic.Spec, synthetic.NORMAL, synthetic.UNIFORM

KEYS = [("general.architecture", "none", "STRING")]
IDS = [1, 2, 3, 4, 5]


def one(*specs: Spec, seed: int = 1, threads: int = 1) -> stoker.Checkpoint:
    return synthetic.assemble("synthetic:test", KEYS, list(specs), seed, threads)


def made(name: str, *args: object, **how: object) -> np.ndarray:
    return one(Spec(name, *args), **how)[name].numpy()


# The generator


@pytest.mark.parametrize("type", WEIGHTS)
@pytest.mark.parametrize("sigma", [1.0, 0.02])
def test_spread(type: str, sigma: float) -> None:
    ck = one(Spec("w", type, (16, 16384), NORMAL, 0.0, sigma))
    x = ck["w"].dequantize()
    if type not in ("F32", "F16", "BF16"):  # by a decoder that is not ours
        y = reference(type, ck["w"].numpy().reshape(-1, sizes(type)[1]))
        assert np.array_equal(y, x.ravel())
    assert np.isfinite(x).all()
    assert abs(x.std() / sigma - 1) < 0.05
    assert abs(x.mean()) < 0.03 * sigma
    rows = x.reshape(64, -1)  # nothing repeats, and no part is larger than another
    assert len(np.unique(rows[:, :64], axis=0)) == 64
    assert rows.std(1).min() > 0.7 * sigma


def test_plain_values() -> None:
    ck = one(
        Spec("gain", "F32", (4096,), NORMAL, 1.0, 0.2),
        Spec("a", "F32", (4096,), UNIFORM, -8.0, -0.1),
        Spec("zero", "BF16", (33,), NORMAL, 0.0, 0.0),
    )
    gain, a = ck["gain"].dequantize(), ck["a"].dequantize()
    assert abs(gain.mean() - 1) < 0.02 and abs(gain.std() - 0.2) < 0.01
    assert -8 <= a.min() < -7.9 and -0.2 < a.max() <= -0.1
    assert not ck["zero"].numpy().any()


@pytest.mark.parametrize("type", ["F32", "F16", "BF16", "Q8_0", "IQ3_S", "MXFP4"])
def test_determinism(type: str) -> None:
    args = (type, (2048, 4096), NORMAL, 0.0, 0.1)  # large enough for threads
    x = made("w", *args)
    assert np.array_equal(x, made("w", *args, threads=3))
    assert np.array_equal(x[:5], made("w", type, (5, 4096), NORMAL, 0.0, 0.1))
    assert (x != made("w", *args, seed=2)).mean() > 0.4
    assert (x != made("v", *args)).mean() > 0.4


def mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def test_definition() -> None:
    """The words of a tensor, from their description; a device will have to make the same ones."""
    key = mix(mix(1) ^ (0xCBF29CE484222325 ^ ord("w")) * 0x100000001B3 % 2**64)

    def words(first: int, n: int) -> bytes:
        x = [mix((key + (i + 1) * 0x9E3779B97F4A7C15) % 2**64) for i in range(first, first + n)]
        return np.array(x, "<u8").tobytes()

    got = made("w", "Q4_0", (96,), NORMAL, 0.0, 1.0).reshape(3, 18)
    for block, data in enumerate(got):
        assert data[2:].tobytes() == words(64 * block, 3)[2:18]
    x = np.frombuffer(words(0, 4), np.uint8).reshape(8, 4).sum(1) - 510.0
    assert np.allclose(made("w", "F32", (8,), NORMAL, 0.0, 1.0), x / 147.8, atol=1e-6)
    assert got[0].tobytes().hex() == "69b37d27ba9130e3c5341c601e33a463f437"


def test_what_a_device_may_be_asked_for() -> None:
    """Without a device the question is at least understood."""
    ck = stoker.synthetic("llama", quant="q8_0", layers=1)
    whole = ck["blk.0.ffn_up.weight"].nbytes
    for name, at, n in (("none", 0, 34), ("blk.0.ffn_up.weight", 0, 33), ("blk.0.ffn_up.weight", 3, 34),
                        ("blk.0.ffn_up.weight", 0, 0), ("blk.0.ffn_up.weight", 0, -34),
                        ("blk.0.ffn_up.weight", -34, 34), ("blk.0.ffn_up.weight", whole, 34),
                        ("blk.0.ffn_up.weight", whole - 34, 68)):  # fmt: skip
        with pytest.raises(stoker.InvalidArgumentError, match="expected whole blocks of a synth"):
            _native.synth_on_device(ck._native, name, at, n)
    if not stoker.info()["build"]["cuda"]:
        with pytest.raises(stoker.UnsupportedError, match="this build of stoker has none"):
            _native.synth_on_device(ck._native, "blk.0.ffn_up.weight", whole - 34, 34)
    ck.close()
    with pytest.raises(stoker.StateError, match="expected an open checkpoint"):
        _native.synth_on_device(ck._native, "blk.0.ffn_up.weight", 0, 34)


def test_order_and_layers() -> None:
    few = stoker.synthetic("flash-next", quant="iq3_s", layers=2, ple_rows=4096)
    more = stoker.synthetic("flash-next", quant="iq3_s", layers=5, ple_rows=4096)
    names = ["output_hc_down.weight", "blk.0.attn_gate.weight", "blk.1.hc_ffn_up.weight",
             "blk.1.ssm_a", "per_layer_token_embd.weight"]  # fmt: skip
    a = {n: few[n].numpy() for n in names}
    b = {n: more[n].numpy() for n in reversed(names)}
    for n in names:
        assert few[n].type == more[n].type and np.array_equal(a[n], b[n]), n
    seeded = stoker.synthetic("flash-next", quant="iq3_s", layers=2, ple_rows=4096, seed=7)
    assert not np.array_equal(a["blk.1.ssm_a"], seeded["blk.1.ssm_a"].numpy())
    few.close()
    with pytest.raises(stoker.StateError):
        few["blk.1.ssm_a"].numpy()
    assert a["blk.1.ssm_a"].max() < 0  # the array keeps what it shows


# Geometry


def test_flash_next() -> None:
    ck = stoker.synthetic("flash-next", quant="iq3_s")
    assert (ck.format, ck.architecture, ck.path) == ("synthetic", "qwen4exp", "synthetic:flash-next-iq3_s")  # fmt: skip
    assert len(ck) == 1224 + 32  # of the released file, and of a draft head
    m = {k.removeprefix("qwen4exp."): v for k, v in ck.metadata.items()}
    assert m["block_count"] == 49 and m["nextn_predict_layers"] == 1
    assert list(m["attention.compress_ratios"]) == [0, 0, 0, 4] * 12 + [0]
    sizes_, offsets = m["ple.head_vocab_sizes"], m["ple.head_offsets"]
    assert sizes_[0] == 20000003 and sizes_[-1] == 20000171 and sizes_.dtype == np.uint64
    assert offsets[-1] == 300001275 and offsets[-1] + sizes_[-1] <= 320001536
    assert ck["per_layer_token_embd.weight"].shape == (320001536, 160)
    assert ck["blk.3.attn_q.weight"].shape == (12288, 2560)
    assert ck["blk.0.ssm_conv1d.weight"].shape == (10240, 4)
    assert ck["blk.48.nextn.eh_proj.weight"].shape == (2560, 5120)
    assert ck.nbytes == expected_bytes(ck) == 86679107072
    kinds = [ck[f"blk.{i}.ffn_gate_exps.weight"].type for i in range(48)]
    assert {t: kinds.count(t) for t in set(kinds)} == synthetic.GATE_UP
    assert kinds == [ck[f"blk.{i}.ffn_up_exps.weight"].type for i in range(48)]
    kinds = [ck[f"blk.{i}.ffn_down_exps.weight"].type for i in range(48)]
    assert kinds.count("IQ4_NL") == 39 and kinds.count("Q2_0") == 9
    rows = ck.types()
    assert [r["block"] for r in rows] == ["", *map(str, range(49))]
    assert rows[1]["experts"] == "IQ2_S IQ4_NL" and rows[-1]["experts"] == "Q8_0"
    assert rows[1]["attention"] == "Q6_K Q4_K" and rows[4]["attention"] == "IQ4_XS Q6_K"


def expected_bytes(ck: stoker.Checkpoint) -> int:
    """From the shapes alone, by the tests' own table of block sizes."""
    total = 0
    for t in ck.values():
        elems, n_bytes = BLOCKS[_native.types()[t.type][0]]
        assert t.shape[-1] % elems == 0, t.name
        total += prod(t.shape) // elems * n_bytes
    return total


@pytest.mark.parametrize("quant", ["q8_0", "q4_k", "bf16"])
def test_other_types(quant: str) -> None:
    ck = stoker.synthetic("flash-next", quant=quant, layers=4, ple_rows=5000)
    want = {
        "q8_0": {"Q8_0", "F32"}, "q4_k": {"Q4_K", "Q5_0", "F32"}, "bf16": {"BF16", "F32"},
    }[quant]  # fmt: skip
    assert {t.type for t in ck.values()} == want
    fallback = {"q4_k": "Q5_0"}.get(quant, quant.upper())
    assert ck["blk.0.ffn_down_exps.weight"].type == fallback  # rows of 640
    assert ck["per_layer_token_embd.weight"].type == fallback  # rows of 160
    assert ck["blk.0.ffn_gate_inp.weight"].type == "F32"


@pytest.mark.parametrize(
    ("model", "parameters", "tensors"), [("llama", 8030261312, 292), ("gemma3", 3880099328, 444)]
)
def test_dense(model: str, parameters: int, tensors: int) -> None:
    ck = stoker.synthetic(model, quant="q4_k")
    assert (len(ck), ck.parameters) == (tensors, parameters)
    assert {t.type for t in ck.values()} == {"Q4_K", "F32"}
    assert ck.metadata[f"{model}.context_length"] == 131072
    assert ("output.weight" in ck) == (model == "llama")


def test_table_rows() -> None:
    for rows in (848, 5000, 1_000_000):
        got = synthetic.hash_sizes(rows)
        assert len(set(got)) == 16 and sum(got) <= rows and all(map(synthetic.is_prime, got))
    small = [n for n in range(1000) if n > 1 and all(n % d for d in range(2, int(sqrt(n)) + 1))]
    assert [n for n in range(1000) if synthetic.is_prime(n)] == small
    assert not any(map(synthetic.is_prime, (561, 2047, 25326001, 20000003 * 3)))
    assert "ple.layers" not in str(stoker.synthetic("flash-next", layers=1).metadata)


def test_fallbacks() -> None:
    for type, row, want in (("IQ3_S", 640, "IQ4_NL"), ("Q6_K", 640, "Q8_0"), ("Q4_K", 160, "Q5_0"),
                            ("Q5_K", 160, "Q5_1"), ("Q2_0", 160, "Q4_0"), ("Q4_K", 100, "F16"),
                            ("Q6_K", 100, "F16"), ("BF16", 3, "BF16")):  # fmt: skip
        assert synthetic.fitting(type, row) == want


# What is refused


@pytest.mark.parametrize(
    ("args", "how", "text"),
    [
        (("gpt",), {}, "model: expected flash-next or llama or gemma3, found 'gpt'"),
        ((None,), {}, "model: expected"),
        (("llama",), {"quant": "q2"}, "quant: expected"),
        (("llama",), {"quant": "iq3_s"}, "quant iq3_s: expected model flash-next, found llama"),
        (("llama",), {"layers": 33}, "layers: expected a number 1 .. 32, found 33"),
        (("llama",), {"layers": 0}, "layers"),
        (("llama",), {"layers": True}, "layers"),
        (("llama",), {"layers": 2.0}, "layers"),
        (("llama",), {"seed": -1}, "seed: expected a number 0 .."),
        (("llama",), {"seed": 2**64}, "seed"),
        (("llama",), {"ple_rows": 1000}, "ple_rows: expected for flash-next"),
        (("flash-next",), {"ple_rows": 1000, "layers": 1}, "ple_rows: expected for flash-next"),
        (("flash-next",), {"ple_rows": 2**31}, "ple_rows: expected a number"),
        (("flash-next",), {"ple_rows": 847}, "ple_rows: expected room for 16 different primes"),
    ],
)
def test_refused(args: tuple, how: dict, text: str) -> None:
    with pytest.raises(stoker.InvalidArgumentError, match=text):
        stoker.synthetic(*args, **how)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (Spec("w", "I32", (32,), NORMAL, 0.0, 1.0), "a type of weights"),
        (Spec("w", "Q8_K", (256,), NORMAL, 0.0, 1.0), "a type of weights"),
        (Spec("w", "Q8_0", (33,), NORMAL, 0.0, 1.0), "multiples of 32"),
        (Spec("w", "Q8_0", (32, 0), NORMAL, 0.0, 1.0), "dimension"),
        (Spec("w" * 64, "F32", (32,), NORMAL, 0.0, 1.0), "1 to 63 bytes"),
        (Spec("w", "F32", (2**40, 2**40), NORMAL, 0.0, 1.0), "elements"),
        (Spec("w", "Q8_0", (32,), NORMAL, 1.0, 1.0), "mean 0"),
        (Spec("w", "Q8_0", (32,), UNIFORM, 0.0, 1.0), "normal distribution"),
        (Spec("w", "Q8_0", (32,), 2, 0.0, 1.0), "a normal or a uniform"),
        (Spec("w", "Q8_0", (32,), NORMAL, 0.0, float("nan")), "finite"),
        (Spec("w", "Q8_0", (32,), NORMAL, 0.0, 1e9), "scales of the type"),
        (Spec("w", "Q6_K", (256,), NORMAL, 0.0, 0.0), "above 0"),
        (Spec("w", "Q6_K", (256,), NORMAL, 0.0, 1e-9), "scales of the type"),
        (Spec("w", "MXFP4", (32,), NORMAL, 0.0, -1.0), "above 0"),
        (Spec("w", "NVFP4", (64,), NORMAL, 0.0, 1e9), "scales of the type"),
        (Spec("w", "F32", (32,), UNIFORM, 1.0, 0.0), "lower end"),
        (Spec("w", "F32", (32,), NORMAL, 0.0, -1.0), "at least 0"),
        (Spec("w", "F16", (32,), NORMAL, 1e5, 1.0), "can hold"),
    ],
)
def test_hostile_specs(spec: Spec, text: str) -> None:
    # A size that no address space has would be refused before the directory is read.
    head, size = synthetic.directory(KEYS, [spec])
    with pytest.raises(stoker.InvalidArgumentError, match=text):
        _native.synthetic("t", head, min(size, 1 << 30), 0, [(spec.kind, spec.a, spec.b)], 1)


def test_hostile_calls() -> None:
    head, size = synthetic.directory(KEYS, [Spec("w", "F32", (32,), NORMAL, 0.0, 1.0)])
    good = [(NORMAL, 0.0, 1.0)]
    for data, n, recipes, threads in (
        (b"", 0, good, 1), (b"", 4096, good, 1), (head, 10, good, 1), (head, size - 64, good, 1),
        (head[:-30], size, good, 1), (head, size, [], 1), (head, size, good * 2, 1),
        (head, size, good, 0), (b"X" + head[1:], size, good, 1),
    ):  # fmt: skip
        with pytest.raises(stoker.InvalidArgumentError):
            _native.synthetic("t", data, n, 0, recipes, threads)
    for recipes in ([1], [(0, 1.0)], [("a", 0.0, 1.0)]):
        with pytest.raises(TypeError):
            _native.synthetic("t", head, size, 0, recipes, 1)
    with pytest.raises(stoker.OutOfMemoryError, match="addresses for"):
        _native.synthetic("t", head, 2**62, 0, good, 1)
    with pytest.raises(OverflowError):
        _native.synthetic("t", head, size, 2**64, good, 1)


def test_no_room() -> None:
    ck = stoker.synthetic("flash-next", quant="bf16", ple_rows=synthetic.MAX_ROWS)
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    need = ck["per_layer_token_embd.weight"].nbytes
    if there >= need:
        pytest.skip(f"{there} bytes of memory are enough for this model")
    with pytest.raises(stoker.OutOfMemoryError, match=f"room for {need} bytes .* available"):
        ck["per_layer_token_embd.weight"].numpy()
    with pytest.raises(stoker.OutOfMemoryError, match="bytes of weights to be made"):
        stoker.Engine(ck, device="cpu", context=64)
    assert ck["output_hc_norm.weight"].dequantize().std() > 0  # what fits is made


def test_command_line() -> None:
    how = [sys.executable, "-m", "stoker", "synthetic", "flash-next", "--quant", "iq3_s"]
    more = ["--layers", "4", "--ple-rows", "2000"]
    out = subprocess.run([*how, *more], capture_output=True, text=True, check=True).stdout
    assert "synthetic:flash-next-iq3_s-4-layers" in out and "IQ3_XXS IQ4_NL" in out
    out = subprocess.run([*how, *more, "--json"], capture_output=True, text=True, check=True).stdout
    assert len(json.loads(out)["summary"]["blocks"]) == 6
    done = subprocess.run([*how, "--layers", "99"], capture_output=True, text=True)
    assert done.returncode == 1 and "layers: expected" in done.stderr


# Engines


def check_logits(rows: list[np.ndarray]) -> None:
    x = np.stack([np.asarray(r) for r in rows]).reshape(len(rows), -1)
    assert np.isfinite(x).all()
    assert 0.2 < x.std() < 3
    assert len(set(x.argmax(1).tolist())) == len(x)


def test_dense_engine() -> None:
    """One layer of what is small; under the sanitizer too."""
    t = synthetic._Tensors("q8_0")
    small = synthetic.Dense("llama", 256, 2, 4, 2, 64, 512, 512, 1e-5, 1e4)
    small.tensors(t, 2)
    keys = [(f"llama.{k}", v, type) for k, v, type in small.keys(2)]
    keys.append(("general.architecture", "llama", "STRING"))
    ck = synthetic.assemble("synthetic:small", keys, t.specs, 3)
    with stoker.Engine(ck, device="cpu", context=64, threads=1) as engine:
        plain = engine.generate(IDS, 12, logits=True)
    with stoker.Engine(ck, "ngram:2", device="cpu", context=64, threads=1) as engine:
        assert engine.generate(IDS, 12).ids == plain.ids
    assert np.isfinite(np.asarray(plain.logits)).all()
    ck.close()


@pytest.mark.model
def test_flash_next_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the number of experts, so that the draft head's fit too."""
    monkeypatch.setattr(synthetic, "EXPERTS", 24)
    with stoker.synthetic("flash-next", quant="iq3_s", layers=4, ple_rows=20000) as ck:
        with stoker.Engine(ck, device="cpu", context=64) as engine:
            plain = engine.generate(IDS, 6)
            others = [engine.generate([i, 2 * i, 9], 1, logits=True) for i in (7, 100, 3000)]
            check_logits([r.logits for r in others])
        with stoker.Engine(ck, "mtp:2", device="cpu", context=64) as engine:
            assert engine.generate(IDS, 6).ids == plain.ids
            got = engine.evaluate(IDS, ("logits", "mtp_logits", "ple_rows"))
            assert got["logits"][-1].argmax() == plain.ids[0]
            check_logits(list(got["mtp_logits"]))
            rows = got["ple_rows"]
            assert 0 <= rows.min() and rows.max() < 20000 and len(np.unique(rows)) > 60


@pytest.mark.model
def test_flash_next_of_full_width() -> None:
    """3.3 GB of weights: those of the draft head are not made, as nobody binds them."""
    with stoker.synthetic("flash-next", quant="iq3_s", layers=2, ple_rows=20000) as ck:
        with stoker.Engine(ck, "planted:2", device="cpu", context=64) as engine:
            first = engine.generate(IDS, 4).ids
            engine.plant(IDS + first, [1, 0, 2], 0)
            assert engine.generate(IDS, 4).ids == first
