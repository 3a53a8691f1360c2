"""What an engine would take: the same numbers as one that is open, and numbers worked out here."""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import flash_gguf
import numpy as np
import pytest
import tiny
import tiny_hf
from flash_tools import GEOMETRIES, config, weights, write_hf

import stoker
from stoker import _plan
from stoker.cli import main
from stoker.engine import Engine

SHAPES = {
    "llama": tiny.Shape(),  # tied, as SmolLM2
    "untied": tiny.Shape(tied=False, n_layer=3, bias=True),
    "gemma3": tiny.Shape("gemma3", n_layer=4, rope_base=1e6, rope_scale=0.125),
}
CPU = {"device": "cpu", "context": 96, "prefill_chunk": 16, "threads": 2}


def same(path: Path | stoker.Checkpoint, drafter: Any, **options: Any) -> stoker.MemoryPlan:
    """A plan, after an engine of the same options has been held against it."""
    p = stoker.plan(path, drafter, **(CPU | options))
    with Engine(path, drafter, **(CPU | options)) as e:
        assert list(p.memory.items()) == list(e.memory.items())
        for name in ("slots", "context", "numerics", "prefill_chunk", "threads", "drafter"):
            assert p.options[name] == e.options[name], name
    for line, parts in p.parts.items():
        assert sum(parts.values()) == p.memory[line], line
        assert min(parts.values()) > 0 or p.memory[line] == 0
    return p


@pytest.fixture(scope="module")
def flash(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    def path(name: str) -> Path:
        folder = tmp_path_factory.getbasetemp() / f"plan-{name}"
        g = GEOMETRIES[name]
        return folder if folder.exists() else write_hf(folder, g, weights(g, 0))

    return path


# An engine that is open.


@pytest.mark.parametrize("drafter", ["none", "ngram:3", "planted:2"])
@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("name", SHAPES)
def test_a_dense_engine(tmp_path: Path, name: str, slots: int, drafter: str) -> None:
    shape = SHAPES[name]
    p = same(tiny.write(tmp_path / "m.gguf", shape), drafter, slots=slots)
    caches = 2 * shape.n_layer * slots * 96 * shape.n_kv * shape.head_dim * 2
    parts = p.parts["state: caches and token windows"]
    assert parts == {"keys and values": caches, "token window": slots * 97 * 4}
    assert p.bytes_per_token == caches / slots / 96 + 4
    assert (p.device, p.pinned, p.estimate, p.largest_context) == (0, 0, {}, None)


@pytest.mark.parametrize("drafter", ["none", "ngram:3", "mtp:2"])
@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("name", ["tiny", "odd", "long_grams"])
def test_flash_next(flash: Callable[[str], Path], name: str, slots: int, drafter: str) -> None:
    g = GEOMETRIES[name]
    p = same(flash(name), drafter, slots=slots)
    parts = p.parts["state: caches and token windows"]
    sparse, recurrent = g.layers.count("S"), g.layers.count("L")
    cells = slots * 96 * g.n_kv * g.head_dim * 2 * 2
    assert parts["keys and values"] == sparse * cells
    assert parts["recurrent matrices"] == recurrent * slots * g.value_heads * g.linear_dim**2 * 4
    assert ("draft head: keys and values" in parts) == (drafter == "mtp:2")
    if drafter == "mtp:2":
        assert (
            parts["draft head: keys and values"] == slots * (96 + 2) * g.n_kv * g.head_dim * 2 * 2
        )


def test_all_numerics_and_chunks(tiny_path: Path) -> None:
    whole = same(tiny_path, "ngram:2")
    wide = same(tiny_path, "ngram:2", numerics="f32", prefill_chunk=64, threads=1)
    state = "state: caches and token windows"
    assert wide.parts[state]["keys and values"] == 2 * whole.parts[state]["keys and values"]
    assert wide.memory["transients"] > whole.memory["transients"]


def test_weights_that_are_computed(tmp_path: Path) -> None:
    """Of a folder, norms come as BF16 and matrices at odd addresses: both are made anew at load."""
    shape = tiny.Shape(types=(tiny.F32_T,))
    w = {
        k: ("BF16" if v[1].ndim == 1 else v[0], v[1]) for k, v in tiny_hf.tensors(shape, 0).items()
    }
    bf16 = {k: tiny_hf_bf16(x) if kind == "BF16" else (kind, x) for k, (kind, x) in w.items()}
    folder = tiny_hf.write(tmp_path / "hf", bf16, tiny_hf.config(shape))
    p = same(folder, "none")
    norms = (2 * shape.n_layer + 1) * shape.dim * 4
    assert p.memory["weights computed at load"] >= norms


def tiny_hf_bf16(x: np.ndarray) -> tuple[str, np.ndarray]:
    return "BF16", (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def test_a_head_in_a_file_of_its_own(tmp_path: Path) -> None:
    g = GEOMETRIES["wide"]
    path = tmp_path / "m.gguf"
    flash_gguf.write_gguf(path, config(g), weights(g, 0), types="Q8_0", mtp="separate")
    head = stoker.Drafter("mtp", 2, model=str(flash_gguf.draft_path(path)))
    p = same(path, head)
    assert p.parts["weights mapped from the file"]["draft head: experts"] > 0


# A device that is not there.

# Elements of a unit of K; its bytes are 16 rows of the file's but for IQ3_XXS.
UNITS = {"F32": 32, "F16": 64, "BF16": 64, "Q4_0": 64, "Q4_1": 64, "Q5_0": 64, "Q5_1": 64, "Q8_0": 64,
         "IQ4_NL": 64, "Q2_0": 64, "IQ4_XS": 256, "IQ3_S": 256, "IQ2_S": 256, "Q4_K": 256, "Q5_K": 256,
         "Q6_K": 256, "IQ3_XXS": 256}  # fmt: skip


def packed(t: stoker.Tensor) -> int:
    _, elems, n_bytes = stoker._native.types()[t.type]
    *lead, n, k = t.shape if len(t.shape) > 1 else (1, *t.shape)
    unit = UNITS[t.type]
    each = 1632 if t.type == "IQ3_XXS" else 16 * unit // elems * n_bytes
    return int(np.prod(lead, dtype=np.int64)) * ceil(n / 16) * ceil(k / unit) * each


def in_file(ck: stoker.Checkpoint, buffer: _plan.Buffer) -> stoker.Tensor | None:
    return ck.get(buffer.name.partition(".")[2])


# The gate of a shared expert is a matrix of one row; a hashed embedding is looked up in file order.
ROW, PLAIN = "ffn_gate_inp_shexp.weight", "per_layer_token_embd.weight"


def check_weights(ck: stoker.Checkpoint, p: stoker.MemoryPlan) -> None:
    """The bytes of every weight, and of all of them with what aligns them."""
    total = 0
    for b in p.buffers:
        t = in_file(ck, b) if b.role == "weight" else None
        if t is not None and not b.flag:
            matrix = b.name.endswith(ROW) or (len(t.shape) > 1 and not b.name.endswith(PLAIN))
            assert b.bytes == (packed(t) if matrix else t.nbytes), b.name
            assert b.stored == t.nbytes
        total += ceil(b.bytes / 256) * 256 if b.role == "weight" else 0
    assert 0 <= total - p.memory["device: weights, packed"] < 256  # nothing behind the last one


@pytest.mark.parametrize("name", SHAPES)
def test_weights_on_a_device(tmp_path: Path, name: str) -> None:
    path = tiny.write(tmp_path / "m.gguf", SHAPES[name])
    p = stoker.plan(path, context=96, slots=2)
    with stoker.open(path) as ck:
        check_weights(ck, p)
        assert {b.name for b in p.buffers if in_file(ck, b)} == {f"target.{n}" for n in ck}
    assert p.weights_packed >= p.weights_stored and p.refused == ()
    assert p.device == sum(n for line, n in p.memory.items() if line.startswith("device: "))
    assert p.staging == 64 << 20
    assert p.need == p.device + p.estimate["driver"] + max(p.staging, p.estimate["graphs"])


def test_state_and_scratch_on_a_device(tmp_path: Path) -> None:
    shape = tiny.Shape(ctx=65536)
    path = tiny.write(tmp_path / "m.gguf", shape)
    for slots, context in ((1, 4096), (3, 5000), (2, 65536)):
        p = stoker.plan(path, "ngram:4", slots=slots, context=context)
        caches = 2 * shape.n_layer * slots * context * shape.n_kv * shape.head_dim * 2
        state = p.memory["device: state, caches and token windows"]
        assert state == caches + slots * (context + 1) * 4
        # Attention of a prefill: rotated queries, then the splits of as many rows as 64 MiB hold.
        row = shape.n_head * (ceil(context / 512) * 4) * (shape.head_dim + 2) * 4
        turned = 512 * shape.n_head * shape.head_dim * 2
        assert p.work["rope_attend"] == turned + min(512 * row, max(row, 64 << 20))
        assert p.memory["device: work of the kernels"] >= max(p.work.values()) + 4096 * 4


def test_capacities_of_a_device_have_their_plans(tiny_path: Path) -> None:
    """Ten rows and five, each with logits and without; transients are the largest plan's."""
    with stoker.open(tiny_path) as ck:
        options = (
            2,
            96,
            16,
            1,
            False,
            "fast",
            False,
            0,
            0,
            True,
            2,
            4,
            4,
            2,
            False,
            False,
            False,
            (0, 0, 0, 0),
        )
        found = stoker._native.sizes(ck._native, options)
    plans = [(name, rows) for name, rows, *_ in found["plans"]]
    assert plans == [(n, r) for r in (10, 5) for n in ("round", "round.greedy")] + [("prefill", 16)]
    whole = stoker.plan(tiny_path, "ngram:4", slots=2, context=96, prefill_chunk=16, threads=1)
    assert [tuple(p.values()) for p in whole.plans] == found["plans"]
    most = max(transients for *_, transients, _ in found["plans"])
    assert found["sizes"]["transients"] == found["memory"]["device: transients"] == most


@pytest.mark.parametrize("slots", [1, 4])
def test_all_of_flash_next(slots: int) -> None:
    """The released model, without its weights: neither is its memory taken."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    p = stoker.plan("synthetic:flash-next,quant=iq3_s", "mtp:4", context=131072, slots=slots)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # KiB
    ck = stoker.synthetic("flash-next", quant="iq3_s")
    check_weights(ck, p)
    experts = sum(packed(t) for n, t in ck.items() if "_exps" in n and not n.startswith("blk.48"))
    parts = p.parts["device: weights, packed"]
    assert parts["experts"] == experts > 50e9
    assert parts["hashed embedding"] > 320_001_536 * 160 // 32 * 18
    assert sum(parts.values()) == p.memory["device: weights, packed"] and "other" not in parts
    # 12 layers of attention and the draft head's; a key of the index a position and one a block of 4
    cells, keys = 2 * 2 * 256 * 2, 128 * 2
    assert p.per_token == {
        "keys and values": 12 * cells, "index keys": 12 * keys * 5 / 4, "token window": 4,
        "draft head: keys and values": cells, "draft head: index keys": keys * 5 / 4,
    }  # fmt: skip
    state = p.parts["device: state, caches and token windows"]
    assert state["keys and values"] == slots * 131072 * 12 * cells
    assert state["recurrent matrices"] == slots * 36 * 48 * 128 * 128 * 4
    assert p.weights_packed - p.weights_stored < 0.01 * p.weights_stored
    assert p.refused == () and p.fits
    assert [a.context for a in p.contexts] == [8192, 32768, 131072, 262144]
    assert p.contexts[2].need == p.need


def test_a_table_in_host_memory() -> None:
    spec = "synthetic:flash-next,quant=iq3_s"
    near = stoker.plan(spec, "mtp:4", context=8192)
    far = stoker.plan(spec, "mtp:4", context=8192, embedding_table="ram")
    table = far.memory["pinned: hashed embedding"]
    assert table == 320_001_536 * 160 // 32 * 18
    weights = "device: weights, packed"
    assert near.memory[weights] - far.memory[weights] == table  # which is a multiple of 256
    assert sum(far.parts[weights].values()) == far.memory[weights]
    assert near.memory["pinned: hashed embedding"] == 0
    assert far.pinned == table + far.memory["pinned: control and completion rings"]
    assert far.options["embedding_table"] == "ram"


def test_layers_of_a_spec() -> None:
    p = stoker.plan(
        "synthetic:flash-next,quant=iq3_s,layers=8,ple_rows=1000000,seed=3", context=8192
    )
    assert p.model == "synthetic:flash-next-iq3_s-8-layers"
    few = stoker.synthetic("flash-next", quant="iq3_s", layers=8, ple_rows=1000000)
    assert stoker.plan(few, context=8192).memory == p.memory
    assert few["per_layer_token_embd.weight"].shape[0] < 1_000_100


# What grows with the context, and what fits.


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("drafter", ["none", "mtp:3"])
def test_bytes_of_a_position_are_what_one_more_takes(
    flash: Callable[[str], Path], drafter: str, device: str
) -> None:
    def state(context: int) -> int:
        p = stoker.plan(flash("tiny"), drafter, device, 3, context, prefill_chunk=16)
        return sum(sum(v.values()) for k, v in p.parts.items() if "token windows" in k)

    p = stoker.plan(flash("tiny"), drafter, device, 3, 96, prefill_chunk=16)
    ratio = GEOMETRIES["tiny"].ratio
    assert state(96) - state(96 - 8 * ratio) == 3 * 8 * ratio * p.bytes_per_token
    assert state(96) == 3 * (96 * p.bytes_per_token + p.per_slot) - pending(p) + left_over(
        p, drafter
    )


def pending(p: stoker.MemoryPlan) -> int:
    return sum(b.bytes for b in p.buffers if b.role == "pending") + sum(
        b.bytes for b in p.buffers if b.role == "state" and not b.flag
    )


def left_over(p: stoker.MemoryPlan, drafter: str) -> float:
    """Rows beyond the context: the anchor's of the window, drafts' of a head's caches."""
    grows = [b for b in p.buffers if b.positions]
    return sum(b.bytes - 3 * 96 * b.row_bytes / b.positions for b in grows)


@pytest.mark.parametrize("slots", [1, 5])
def test_the_largest_context_is_exact(tmp_path: Path, slots: int) -> None:
    path = tiny.write(tmp_path / "m.gguf", tiny.Shape(ctx=65536))
    least = stoker.plan(path, "ngram:3", slots=slots, context=1).need
    for more in (1 << 10, 12_345_678, 100_000_000):
        card = least + more
        p = stoker.plan(path, "ngram:3", slots=slots, context=512, memory=card)
        n = p.largest_context
        assert n is not None and p.card == card
        at = stoker.plan(path, "ngram:3", slots=slots, context=n, memory=card)
        assert at.fits and at.need <= card and at.largest_context == n
        if p.limited_by == "model":
            assert n == 65536
        else:
            past = stoker.plan(path, "ngram:3", slots=slots, context=n + 1, memory=card)
            assert past.need > card and past.fits is False
    assert stoker.plan(path, "ngram:3", slots=slots, memory=least - 1).largest_context is None


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_need_never_falls(flash: Callable[[str], Path], tmp_path: Path, device: str) -> None:
    dense = tiny.write(tmp_path / "m.gguf", tiny.Shape(n_head=32, n_kv=8, dim=1024, ctx=1 << 20))
    for path, drafter in ((dense, "ngram:4"), (flash("long"), "mtp:4")):
        most = 1 << 20 if path is dense else 8192
        lengths = sorted({1, 2, 511, 512, 513, *np.geomspace(3, most, 60).astype(int).tolist()})
        p = stoker.plan(path, drafter, device, slots=2, contexts=lengths)
        needs = [a.need for a in p.contexts]
        assert len(needs) == len(lengths) and needs == sorted(needs)


def test_a_context_is_cut_to_the_model(tiny_path: Path) -> None:
    p = stoker.plan(tiny_path, context=100_000)
    assert (p.options["context"], p.options["context_asked"]) == (512, 100_000)
    assert p.contexts == () and (p.largest_context, p.limited_by) == (512, "model")
    assert "context 512 (of 100000 asked)" in p.title()


def test_the_card(tiny_path: Path) -> None:
    assert stoker.plan(tiny_path).card == 141_000_000_000
    assert stoker.plan(tiny_path, device="cpu").card is None
    p = stoker.plan(tiny_path, device="cpu", memory="1 GiB")
    assert p.card == 1 << 30 and p.fits and p.need == p.memory.total
    for text, n in (
        ("2", 2),
        ("80GB", 80 * 10**9),
        ("1.5TiB", 3 << 39),
        ("7 kB", 7000),
    ):
        assert _plan.parse_bytes("memory", text) == n
    own = stoker.plan(tiny_path, driver="1GiB")
    assert own.estimate["driver"] == 1 << 30 and "caller" in own.estimate["origin"]
    assert "assumed" in stoker.plan(tiny_path).estimate["origin"]


# Refusals.


def test_what_has_no_kernel_is_named(flash: Callable[[str], Path], tmp_path: Path) -> None:
    p = stoker.plan(flash("odd"), "none", prefill_chunk=16, context=96)
    assert p.refused and len(set(p.refused)) == len(p.refused)
    assert any(re.search(r"on CUDA: w.*: expected a multiple of 32 columns", x) for x in p.refused)
    assert stoker.plan(flash("odd"), "none", "cpu", prefill_chunk=16, context=96).refused == ()
    g = GEOMETRIES["wide"]
    flash_gguf.write_gguf(
        tmp_path / "m.gguf", config(g), weights(g, 0), types=("Q4_K", "Q8_0", "Q6_K")
    )
    mixed = stoker.plan(tmp_path / "m.gguf", "mtp:2", context=96)
    assert any("expert_glu on CUDA: w[1]: expected the type of w[0]" in x for x in mixed.refused)


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"context": 0}, "InvalidArgumentError", "context: expected 1 .. 16777216, found 0"),
        ({"context": "8k"}, "InvalidArgumentError", "context: expected an integer, found '8k'"),
        ({"slots": 65}, "InvalidArgumentError", "slots: expected 1 .. 64, found 65"),
        ({"slots": 0}, "InvalidArgumentError", "slots: expected 1 .. 64, found 0"),
        ({"prefill_chunk": 9000}, "InvalidArgumentError", "prefill_chunk: expected 1 .. 8192, found 9000"),
        ({"memory": "lots"}, "InvalidArgumentError", "memory: expected bytes above 0, as a number or like 141GB or 80GiB, found 'lots'"),
        ({"memory": 0}, "InvalidArgumentError", "memory: expected bytes above 0"),
        ({"memory": "1.5.2GB"}, "InvalidArgumentError", "memory: expected bytes above 0"),
        ({"memory": "3M"}, "InvalidArgumentError", "memory: expected bytes above 0"),
        ({"driver": -1}, "InvalidArgumentError", "driver: expected bytes above 0"),
        ({"device": "gpu"}, "InvalidArgumentError", "device: expected cpu, cuda or cuda:N, found 'gpu'"),
        ({"device": "auto"}, "InvalidArgumentError", "device: expected cpu, cuda or cuda:N, found 'auto'"),
        ({"numerics": "f32"}, "UnsupportedError", "numerics f32: expected device cpu, found cuda:0"),
        ({"embedding_table": "disk"}, "InvalidArgumentError", "embedding_table: expected device or ram, found 'disk'"),
        ({"embedding_table": "ram"}, "InvalidArgumentError", "embedding_table: expected device for a model without"),
        ({"numerics": "fp8"}, "InvalidArgumentError", "numerics: expected bf16 or f32, found 'fp8'"),
        ({"drafter": "magic"}, "InvalidArgumentError", "drafter: expected none, ngram:K"),
        ({"drafter": "mtp:2"}, "UnsupportedError", "draft head"),
    ],
)  # fmt: skip
def test_bad_options(tiny_path: Path, options: dict[str, Any], kind: str, text: str) -> None:
    with pytest.raises(getattr(stoker, kind)) as raised:
        stoker.plan(tiny_path, **options)
    assert text in str(raised.value)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("synthetic:", "model: expected flash-next or llama or gemma3, found ''"),
        ("synthetic:llama,colour=red", "synthetic:llama,colour=red: expected quant=TYPE"),
        ("synthetic:llama,layers", "found 'layers'"),
        ("synthetic:llama,layers=2,layers=3", "found 'layers=3'"),
        ("synthetic:llama,layers=two", "each once, found 'layers=two'"),
        ("synthetic:llama,layers=99", "layers: expected a number 1 .. 32, found 99"),
        ("synthetic:llama,quant=q9", "quant: expected"),
    ],
)
def test_bad_specs(spec: str, text: str) -> None:
    with pytest.raises(stoker.InvalidArgumentError) as raised:
        stoker.plan(spec)
    assert text in str(raised.value)


def test_files_that_are_no_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(stoker.ReadError, match="No such file"):
        stoker.plan(tmp_path / "none.gguf")
    (tmp_path / "text.gguf").write_text("no checkpoint, but long enough to be looked at")
    with pytest.raises(stoker.FormatError) as raised:
        stoker.plan(tmp_path / "text.gguf")
    assert raised.value.check == "BAD_MAGIC"
    ck = stoker.synthetic("llama", layers=1)
    ck.close()
    with pytest.raises(stoker.StateError):
        stoker.plan(ck)


# The command.


def command(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = main(["plan", *argv])
    out, err = capsys.readouterr()
    return status, out, err


def test_plan_prints_owners_and_contexts(capsys: pytest.CaptureFixture[str]) -> None:
    spec = "synthetic:flash-next,quant=iq3_s,layers=8,ple_rows=1000000"
    status, out, err = command(
        capsys, "-m", spec, "--context", "8192", "--draft", "mtp:4", "--slots", "1,4"
    )
    assert (status, err) == (0, "")
    p = stoker.plan(spec, "mtp:4", context=8192)
    for line, n in [*p.memory.items(), *p.parts["device: weights, packed"].items()]:
        assert re.search(rf"^ *{re.escape(line)} +{n:,} ", out, re.MULTILINE), line
    assert re.search(rf"^need, at the worst moment +{p.need:,}", out, re.MULTILINE)
    for a in p.contexts:
        assert re.search(
            rf"^{a.context:,} +{a.state:,} +{a.scratch:,} +{a.need:,} +yes", out, re.MULTILINE
        )
    four = stoker.plan(spec, "mtp:4", context=8192, slots=4)
    assert re.search(rf"^4 +{four.need:,} +{four.longest()[:7]}", out, re.MULTILINE)
    assert "estimates: assumed, not measured" in out
    assert out.rstrip().endswith(p.verdict())


def test_plan_as_json(tiny_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = (
        "-m",
        str(tiny_path),
        "--context",
        "96",
        "--slots",
        "1,2",
        "--memory",
        "80GiB",
        "--json",
    )
    status, out, _ = command(capsys, *argv)
    plans = json.loads(out)["plans"]
    assert status == 0 and [p["options"]["slots"] for p in plans] == [1, 2]
    want = stoker.plan(tiny_path, context=96, memory=80 << 30)
    assert plans[0]["memory"] == want.memory and plans[0]["card"] == 80 << 30
    assert plans[0]["per_token"] == want.per_token and plans[0]["fits"] is True
    assert plans[0]["largest_context"] == 512 and "buffers" not in plans[0]


def test_plan_says_no_by_its_status(
    flash: Callable[[str], Path], tiny_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = command(capsys, "-m", str(tiny_path), "--memory", "1MB")
    assert status == 1 and "1 x 512 positions" in out and "does not fit; longest none fits" in out
    status, out, _ = command(capsys, "-m", str(flash("odd")), "--prefill-chunk", "16")
    assert status == 1 and "\nrefused: " in out
    status, _, err = command(capsys, "-m", str(tiny_path), "--memory", "much")
    assert status == 1 and err.startswith("stoker: InvalidArgumentError: memory: expected bytes")
    status, _, err = command(capsys, "-m", "/nowhere.gguf")
    assert status == 1 and "/nowhere.gguf" in err
    with pytest.raises(SystemExit) as ended:
        main(["plan", "-m", "x", "--slots", "1,x"])
    assert ended.value.code == 2


def test_a_plan_has_a_face(tiny_path: Path) -> None:
    p = stoker.plan(tiny_path)
    assert f"{p.need:,}" in repr(p) and "largest context in 141,000,000,000" in repr(p)
    assert f"<td>{p.need:,}</td>" in p._repr_html_()
    assert replace(p, card=None).fits is None
