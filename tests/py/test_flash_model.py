"""The recipe flash_next: engines on small checkpoints against stored values of the Hugging Face model
and against the reference (tests/oracle/flash_next.py), in every form that files come in.

The stored values, and the variable STOKER_FIXTURES for further folders of them, are those of
test_flash_oracle.py."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import flash_gguf
import flash_tools
import numpy as np
import pytest
from blocks import WEIGHTS
from flash_gguf import FLAVOURS, Tensor, draft_path
from flash_next import FORMS, FlashNext
from flash_tools import GEOMETRIES, case
from test_flash_oracle import FOLDERS, error, ids_of, same_tokens, sequences
from tolerances import F32_WHOLE, FLASH_BF16, VISIBLE

import stoker
from stoker.engine import Engine

Array = np.ndarray[Any, Any]
TINY = GEOMETRIES["tiny"]
SHORT = 21
# Rows of all matrices, the table too, are whole blocks of 256.
WIDE = replace(GEOMETRIES["wide"], layers="LS", hashed=0, hashed_dim=512, heads_per_order=1,
               n_head=2, n_kv=1, head_dim=128, key_heads=2, value_heads=6, experts=3)  # fmt: skip


def engine(path: Path, drafter: Any = "none", **options: Any) -> Engine:
    options.setdefault("numerics", "f32")
    options.setdefault("context", 192)
    return Engine(path, drafter, device="cpu", threads=2, **options)


def head(form: str = "whole", k: int = 4, model: Path | None = None) -> stoker.Drafter:
    return stoker.Drafter("mtp", k, hidden_norm=form, model=model and str(model))


def names_of(e: Engine) -> list[str]:
    """All that it can be asked for."""
    out = ["logits", *(f"layer{i}" for i in range(e.config["n_layer"]))]
    return out + ["ple_rows"] * (e.config["ple_heads"] > 0) + ["mtp_logits"] * e.config["mtp"]


def same_values(e: Engine, model: FlashNext, ids: Array, bound: float = F32_WHOLE) -> None:
    names = names_of(e)
    got, want = e.evaluate(ids.astype(np.int32), names), model.evaluate(ids, names)
    for name in names:
        if name == "ple_rows":
            assert (got[name] == want[name]).all()
        else:
            assert error(got[name], want[name]) < bound, name


def same_drafts(e: Engine, model: FlashNext, ids: Array, form: str = "whole") -> None:
    """Of the head, behind tokens of which it has the hidden rows of all but the last."""
    steps: list[Array] = []
    wide = model.full(ids[:-1])[1]
    want = model.draft_chain(model.new_draft_state(), wide, ids[1:], 4, form, steps)
    top = np.sort(np.stack(steps), -1)
    gap, scale = top[:, -1] - top[:, -2], np.abs(steps).max()
    same_tokens(e.draft(ids.astype(np.int32), 4), np.array(want), gap, scale)


def agrees(path: Path, model: FlashNext, n: int = 45, draft: Path | None = None) -> None:
    """All values, and unless n is small, drafts."""
    ids = ids_of(model, n)
    drafter = head(model=draft) if model.has_draft else "none"
    with engine(path, drafter) as e:
        assert e.config["mtp"] == model.has_draft
        same_values(e, model, ids)
        if model.has_draft and n > SHORT:
            same_drafts(e, model, ids)


# Stored values


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda p: p.name)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder, the GGUF file made of it, and the values that both must give."""
    folder: Path = request.param
    golden = np.load(folder / "golden.npz")
    path = tmp_path_factory.mktemp("golden") / "model.gguf"
    settings = json.loads((folder / "config.json").read_text())
    flash_gguf.write_gguf(path, settings, flash_tools.whole(folder))
    return {"hf": folder, "gguf": path}, {k: golden[k] for k in golden.files}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("format", ["hf", "gguf"])
def test_stored_values(stored: Any, format: str, form: str) -> None:
    paths, golden = stored
    with engine(paths[format], head(form)) as e:
        for k in sequences(golden):
            ids = golden[k + "tokens"].astype(np.int32)
            got = e.evaluate(ids, names_of(e))
            assert (got["ple_rows"] == golden[k + "ple_rows"]).all()
            assert error(got["logits"], golden[k + "logits"]) < F32_WHOLE
            assert error(got["mtp_logits"], golden[f"{k}mtp_{form}.logits"]) < F32_WHOLE
            for name in golden:
                if name.startswith(k) and name.endswith(".wide"):
                    assert error(got[name.split(".")[1]], golden[name]) < F32_WHOLE
            first, *want = golden[f"{k}mtp_{form}.draft"].tolist()
            assert int(golden[k + "logits"][-1].argmax()) == first
            assert e.draft([*ids.tolist(), first], len(want)) == want


@pytest.mark.parametrize("drafter", ["none", "mtp:4"])
@pytest.mark.parametrize("format", ["hf", "gguf"])
def test_stored_greedy_tokens(stored: Any, format: str, drafter: str) -> None:
    paths, golden = stored
    with engine(paths[format], drafter) as e:
        for k in sequences(golden, "greedy"):
            want = golden[k + "greedy"]
            ids = golden[k + "tokens"].astype(np.int32)
            got = e.generate(ids, len(want), ignore_eos=True).ids
            scale = float(np.abs(golden[k + "logits"]).max())
            same_tokens(got, want, golden[k + "greedy_gap"], scale)


@pytest.mark.parametrize("format", ["hf", "gguf"])
def test_bf16_is_near_stored_values(
    stored: Any, format: str, record_property: pytest.RecordProperty
) -> None:
    """Of the median row: a row whose blocks or experts are chosen otherwise is another row."""
    paths, golden = stored
    rows: dict[str, list[Array]] = {"logits": [], "mtp_logits": []}
    with engine(paths[format], head(), numerics="bf16") as e:
        for k in sequences(golden):
            got = e.evaluate(
                golden[k + "tokens"].astype(np.int32), ("logits", "mtp_logits", "ple_rows")
            )
            assert (got["ple_rows"] == golden[k + "ple_rows"]).all()
            for name, want in (("logits", "logits"), ("mtp_logits", "mtp_whole.logits")):
                x, y = got[name], golden[k + want]
                rows[name].append(np.abs(x - y).max(-1) / np.abs(y).max(-1))
    for name, errors in rows.items():
        each = np.concatenate(errors)
        record_property(name, f"median {np.median(each):.2g}, largest {each.max():.2g}")
        print(format, name, f"median {np.median(each):.2g}, largest {each.max():.2g}")
        assert 1e-4 < np.median(each) < FLASH_BF16


# Every geometry, against the reference


@pytest.mark.parametrize("format", ["hf", "gguf"])
@pytest.mark.parametrize("name", [n for n in GEOMETRIES if n != "long"])
def test_geometries(tmp_path: Path, name: str, format: str) -> None:
    agrees(*case(tmp_path, name, format=format), n=61)


@pytest.mark.parametrize("form", FORMS)
def test_both_norms_of_the_hidden_row(tmp_path: Path, form: str) -> None:
    path, model = case(tmp_path, "odd", oracle={"form": form})
    ids = ids_of(model, 40)
    with engine(path, head(form)) as e:
        same_values(e, model, ids)
        same_drafts(e, model, ids, form)


def test_a_prompt_of_thousands_of_tokens(tmp_path: Path) -> None:
    """Rows behind the released budget, in both formats."""
    for format in ("hf", "gguf"):
        path, model = case(tmp_path, "long", format=format, dtype=np.float32)
        ids = ids_of(model, 2200)
        want = model.full(ids)[0] if format == "hf" else want  # noqa: F821
        with engine(path, context=2304) as e:
            assert error(e.evaluate(ids.astype(np.int32))["logits"], want) < F32_WHOLE


# Folders

SPLIT = dict(fused=False, mtp_fused=False)
FOLDER_FORMS: dict[str, dict[str, Any]] = {
    "fused": {}, "one by one": SPLIT, "one by one, draft head fused": dict(fused=False),
    "fused, draft head one by one": dict(mtp_fused=False),
    "one file": dict(mtp_file=False), "one file, one by one": dict(mtp_file=False, **SPLIT),
    "shards": dict(shards=16), "two shards": dict(shards=2, style="qwen_sparse_attention"),
    "index": dict(files=3), "index, one by one": dict(files=5, shards=16, **SPLIT),
    "index of all": dict(files=2, mtp_file=False, style="qwen_sparse_attention"),
    "part of a larger model": dict(prefix="model.language_model.", composite=True, with_vision=True),
    "part of a larger model, one by one": dict(prefix="model.language_model.", composite=True,
                                               with_vision=True, files=3, shards=16, **SPLIT),
    "text alone, with its tower": dict(with_vision=True),
}  # fmt: skip


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, bytes]]:
    """What the plainest folder of the tiny geometry gives, to the bit."""
    path, model = case(tmp_path_factory.mktemp("plain"), "tiny")
    yield outputs(path, head(), ids_of(model, 41))


def outputs(path: Path, drafter: Any, ids: Array, **options: Any) -> dict[str, bytes]:
    with engine(path, drafter, **options) as e:
        got = e.evaluate(ids.astype(np.int32), names_of(e))
        drafts = e.draft(ids.astype(np.int32), 4) if e.config["mtp"] else []
    return {name: x.tobytes() for name, x in got.items()} | {"drafts": bytes(drafts)}


@pytest.mark.parametrize("name", FOLDER_FORMS)
def test_forms_of_folders(tmp_path: Path, name: str, plain: dict[str, bytes]) -> None:
    """The same bits, whatever lies where."""
    path, model = case(tmp_path, "tiny", **FOLDER_FORMS[name])
    assert outputs(path, head(), ids_of(model, 41)) == plain


def test_a_draft_head_elsewhere(tmp_path: Path, plain: dict[str, bytes]) -> None:
    path, model = case(tmp_path, "tiny")
    ids = ids_of(model, 41)
    draft = tmp_path / "draft"
    draft.mkdir()
    shutil.move(path / "mtp.safetensors", draft / "mtp.safetensors")
    with pytest.raises(stoker.FormatError, match=r"mtp\.pre_fc_norm_embedding\.weight"):
        engine(path, "mtp:4")
    shutil.copy(path / "config.json", draft / "config.json")
    assert outputs(path, head(model=draft / "mtp.safetensors"), ids) == plain
    assert outputs(path, draft / "mtp.safetensors", ids) == plain
    shutil.move(draft / "mtp.safetensors", draft / "model.safetensors")
    assert outputs(path, draft, ids) == plain
    with engine(path) as e:  # without one it runs as ever
        assert e.evaluate(ids.astype(np.int32))["logits"].tobytes() == plain["logits"]
        with pytest.raises(stoker.InvalidArgumentError, match="mtp_logits"):
            e.evaluate(ids.astype(np.int32), ("mtp_logits",))


def test_embeddings_that_are_tied(tmp_path: Path) -> None:
    g, w = TINY, dict(flash_tools.weights(TINY))
    w["lm_head.weight"] = w["model.embed_tokens.weight"]
    model = FlashNext(flash_tools.config(g), w)
    folder = flash_tools.write_hf(
        tmp_path / "hf", g, {k: x for k, x in w.items() if k != "lm_head.weight"}
    )
    change(folder, tie_word_embeddings=True)
    agrees(folder, model)
    path = tmp_path / "m.gguf"
    held = flash_gguf.write_gguf(path, flash_tools.config(g), w, edit=dropping("output.weight"))
    agrees(path, FlashNext(flash_tools.config(g), held))


def change(folder: Path, **members: Any) -> Path:
    """Members of config.json, None: taken out."""
    settings = json.loads((folder / "config.json").read_text()) | members
    settings = {k: v for k, v in settings.items() if v is not None}
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def dropping(*names: str) -> flash_gguf.Edit:
    def edit(keys: flash_gguf.Keys, tensors: list[Tensor]) -> None:
        tensors[:] = [t for t in tensors if t.name not in names]

    return edit


def test_older_places_of_rotary_members(tmp_path: Path, plain: dict[str, bytes]) -> None:
    path, model = case(tmp_path, "tiny")
    change(path, rope_parameters=None, rope_theta=1e7, partial_rotary_factor=TINY.partial)
    assert outputs(path, head(), ids_of(model, 41)) == plain
    change(path, eos_token_id=[TINY.eos, 3])  # the first is what cuts n-grams
    assert outputs(path, head(), ids_of(model, 41)) == plain


# GGUF files

FILE_FORMS: dict[str, dict[str, Any]] = {
    "eh_proj": {}, "eh_proj, rows by stream": dict(head_norm="streams"),
    "fc": dict(flavour="fc"), "fc, rows by stream": dict(flavour="fc", head_norm="streams"),
    "ratio of the draft head": dict(draft_ratio=4), "another ratio there": dict(draft_ratio=3),
    "widths by layer": dict(ffn_array=True), "experts joined": dict(joined=True),
    **{f"{f}, own file": dict(mtp="separate", flavour=f) for f in FLAVOURS},
    **{f"{f}, own file, rows by stream, target's tensors":
       dict(mtp="separate", flavour=f, head_norm="streams", draft_has_target=True, ffn_array=True,
            joined=f == "fc") for f in FLAVOURS},
    "own file, another ratio": dict(mtp="separate", draft_ratio=16),
}  # fmt: skip


@pytest.mark.parametrize("name", FILE_FORMS)
def test_forms_of_files(tmp_path: Path, name: str) -> None:
    how = FILE_FORMS[name]
    path, model = case(tmp_path, "tiny", format="gguf", **how)
    agrees(path, model, draft=draft_path(path) if how.get("mtp") == "separate" else None)


def test_a_draft_head_of_the_other_format(tmp_path: Path) -> None:
    """A folder's with a file's target, and the other way around: all are the same weights."""
    folder, model = case(tmp_path, "tiny")
    path, _ = case(tmp_path, "tiny", format="gguf", mtp="separate", flavour="fc")
    agrees(folder, model, draft=draft_path(path))
    agrees(path, model, draft=folder / "mtp.safetensors")


def test_recurrent_layers_listed(tmp_path: Path) -> None:
    """A flag for each layer says the same as the interval."""

    def listed(keys: flash_gguf.Keys, tensors: list[Tensor]) -> None:
        keys[:] = [k for k in keys if k[0] != "full_attention_interval"]
        keys.append(("attention.recurrent_layers", [1, 1, 1, 0, 0], "INT32"))

    agrees(*case(tmp_path, "tiny", format="gguf", edit=listed))


@pytest.mark.parametrize("kind", [k for k in WEIGHTS if k != "F32"])
def test_every_type_in_every_place(tmp_path: Path, kind: str) -> None:
    """All matrices of one type: embedding, output, table, projections, hyper-connections, experts."""
    path, model = case(tmp_path, WIDE, format="gguf", types=kind, joined=kind == "Q4_K")
    plain = [n for n, t in model.source.__self__.t.items() if t.type != kind]
    assert all(flash_gguf.stays_plain(n, np.empty((1, 1))) or n.endswith(("ssm_a", ".bias"))
               for n in plain), plain  # fmt: skip
    agrees(path, model, SHORT)


@pytest.mark.parametrize("turn", range(3))
def test_types_dealt_in_turn(tmp_path: Path, turn: int) -> None:
    """Neighbours of different types: gate, up and down of the experts, parts of one layer."""
    kinds = [*WEIGHTS[7 * turn :], *WEIGHTS[: 7 * turn]]
    agrees(*case(tmp_path, WIDE, format="gguf", types=kinds, seed=turn), n=SHORT)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "F32"])
def test_small_parts_of_any_type(tmp_path: Path, kind: str) -> None:
    """Norms, router, gates and decays, and convolutions, whose rows of four no block holds."""

    def types(name: str) -> str | None:
        if kind != "Q8_0":
            return kind
        return "F16" if "conv1d" in name else "Q8_0"

    agrees(*case(tmp_path, WIDE, format="gguf", types=types), n=SHORT)


def test_heads_of_values_round_their_keys(tmp_path: Path) -> None:
    """2 heads of keys, 6 of values of 128 elements; the columns of the output stay where the file
    has them, in blocks of 256, and only the reference puts the heads in order."""
    g = WIDE

    def types(name: str) -> str | None:
        return "Q6_K" if name.endswith("ssm_out.weight") else None

    path, model = case(tmp_path, g, format="gguf", types=types)
    held = model.source.__self__
    assert held.t["blk.0.ssm_out.weight"].type == "Q6_K"
    folder = flash_tools.write_hf(tmp_path / "hf", g, flash_tools.weights(g))
    ids = ids_of(model, 33)
    with engine(path, head()) as e:
        same_values(e, model, ids)
        quantised = e.evaluate(ids.astype(np.int32))["logits"]
    # A folder with the same matrices as the file, its heads grouped.
    w = dict(flash_tools.weights(g))
    out = [n for n in w if n.endswith("linear_attn.out_proj.weight")]
    for n in out:
        w[n] = np.asarray(held[n], np.float32)
    path, _ = case(tmp_path, g, format="gguf")
    with engine(folder, head()) as a, engine(path, head()) as b:
        x, y = (e.evaluate(ids.astype(np.int32), names_of(e)) for e in (a, b))
    for n in x:
        assert (x[n] == y[n]).all() if n == "ple_rows" else error(x[n], y[n]) < F32_WHOLE
    assert error(quantised, x["logits"]) > VISIBLE
    want = FlashNext(flash_tools.config(g), w).evaluate(ids, ["logits"])["logits"]
    assert error(quantised, want) < F32_WHOLE


# What may not change a bit


@pytest.mark.parametrize(
    "options",
    [{"kernels": "definition"}, {"prefill_chunk": 7}, {"context": 77}, {"slots": 2},
     {"poison": True}],
    ids=str,
)  # fmt: skip
def test_options_change_no_bit(tmp_path: Path, plain: dict[str, bytes], options: dict) -> None:
    path, model = case(tmp_path, "tiny")
    assert outputs(path, head(), ids_of(model, 41), **options) == plain


@pytest.mark.parametrize("geometry", ["tiny", "odd"])
def test_drafts_change_no_token(tmp_path: Path, geometry: str) -> None:
    """Nor does any number of them, in either mode; some are right."""
    path, model = case(tmp_path, geometry)
    ids = ids_of(model, 30).astype(np.int32)
    for numerics in ("f32", "bf16"):
        with engine(path, numerics=numerics) as e:
            want = e.generate(ids, 60, ignore_eos=True, logits=True)
        for drafter in (head(k=1), head(k=7), head("per_stream"), "ngram:3"):
            with engine(path, drafter, numerics=numerics) as e:
                got = e.generate(ids, 60, ignore_eos=True, logits=True)
            assert got.ids == want.ids and got.logits.tobytes() == want.logits.tobytes()
