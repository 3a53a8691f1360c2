"""Files of draft heads that are wrong in one thing, with a target that is right."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import tiny
from flash_gguf import Edit, Keys, Tensor, draft_path
from flash_tools import GEOMETRIES
from stoker import FormatError, UnsupportedError
from stoker.engine import Engine
from test_flash_hostile import (
    G,
    all_of,
    file,
    left,
    missing,
    refused,
    renamed,
    shape,
    tensor,
    zeros,
)


def drafting(tmp_path: Path, edit: Edit, flavour: str = "eh_proj", **how: Any) -> tuple[Path, Path]:
    """The target as it is, and a file of its draft head that is not."""

    def only_draft(keys: Keys, tensors: list[Tensor]) -> None:
        if any(".nextn." in t.name for t in tensors):
            edit(keys, tensors)

    path = file(tmp_path, only_draft, mtp="separate", flavour=flavour, **how)
    return path, draft_path(path)


def both_mixers(a: str, b: str) -> Edit:
    """The mixer that is named a again as b."""

    def edit(keys: Keys, tensors: list[Tensor]) -> None:
        tensors += [
            dataclasses.replace(t, name=t.name.replace(a, b)) for t in tensors if a in t.name
        ]

    return edit


HALVES = all_of(tensor("blk.4.nextn.fc_embd.weight", zeros(64, 64)),
                tensor("blk.4.nextn.fc_hidden.weight", zeros(64, 64)))  # fmt: skip
WHOLE = tensor("blk.4.nextn.eh_proj.weight", zeros(64, 128))
OWN, HEAD = "blk.4.nextn.hc_", "blk.4.nextn.hc_head_"
MIXED: dict[str, tuple[str, Edit, str]] = {
    "both projections": ("eh_proj", HALVES, "eh_proj and fc_embd or fc_hidden"),
    "both projections, other mixer": ("fc", WHOLE, "eh_proj and fc_embd or fc_hidden"),
    "both mixers": ("eh_proj", both_mixers(HEAD, OWN), "hc_head_down and hc_down"),
    "both mixers of two projections": ("fc", both_mixers(OWN, HEAD), "hc_head_down and hc_down"),
    "the target's mixer, too": ("eh_proj", both_mixers(HEAD, "output_hc_"), "output_hc_down and"),
    "the target's mixer beside its own": ("fc", both_mixers(OWN, "output_hc_"), "output_hc_down and"),
    "one projection, mixer of two": ("eh_proj", renamed((HEAD, OWN)), "eh_proj and hc_down"),
    "two projections, mixer of one": ("fc", renamed((OWN, HEAD)), "fc_embd or fc_hidden and hc_head_down"),
    "two projections, the target's mixer": ("fc", renamed((OWN, "output_hc_")),
                                            "fc_embd or fc_hidden and output_hc_down"),
}  # fmt: skip


@pytest.mark.parametrize("name", MIXED)
def test_mixed_kinds_of_draft_heads(tmp_path: Path, name: str) -> None:
    flavour, edit, text = MIXED[name]
    path, draft = drafting(tmp_path, edit, flavour)
    want = (FormatError, "BAD_DRAFT", f"draft head: expected tensors of one kind, found {text}")
    refused(path, want, draft, subject=draft)


def test_bad_draft_files(tmp_path: Path) -> None:
    for edit, want in (
        (tensor("blk.4.nextn.hnorm.weight", zeros(64)), shape("hnorm.weight: expected [256], found [64]")),
        (tensor("blk.4.attn_sinks.weight", zeros(4)), left("1: blk.4.attn_sinks.weight")),
        (tensor("blk.0.attn_q.weight", zeros(4, 4)), left("1: blk.0.attn_q.weight")),
        (tensor("blk.4.nextn.hc_head_up.weight", None), missing("blk.4.nextn.hc_head_up.weight")),
        (tensor("blk.4.indexer.k_proj.weight", None), missing("blk.4.indexer.k_proj.weight")),
        (renamed((".nextn.", ".next.")),
         (FormatError, "MISSING_TENSOR", "draft head: expected tensors blk.4.nextn.*, found none")),
    ):  # fmt: skip
        path, draft = drafting(tmp_path, edit)
        refused(path, want, draft, subject=draft)


def test_what_draft_files_repeat(tmp_path: Path) -> None:
    """Embedding and output are not read, but are those of the target's vocabulary; the mixer's norm
    is there once, or twice the same."""
    embed = "blk.4.nextn.embed_tokens.weight"
    norm = "blk.4.nextn.shared_head_norm.weight"
    for flavour, edit, want in (
        ("eh_proj", tensor("token_embd.weight", zeros(300, 64)),
         shape("token_embd.weight: expected [256,64], found [300,64]")),
        ("fc", tensor("output.weight", zeros(300, 64)), shape("output.weight: expected [256,64]")),
        ("fc", tensor(embed, zeros(256, 32)), shape(f"{embed}: expected [256,64]")),
        ("output_hc", tensor(norm, zeros(64)), shape(f"{norm}: expected [256], found [64] F32")),
        ("output_hc", tensor(norm, zeros(256)),
         (FormatError, "BAD_DRAFT", f"{norm}: expected a copy of the mixer's norm")),
    ):  # fmt: skip
        path, draft = drafting(tmp_path, edit, flavour)
        refused(path, want, draft, subject=draft)
    path, draft = drafting(tmp_path, tensor(embed, zeros(256, 64)))
    with Engine(path, draft, device="cpu", context=64, threads=1) as e:
        assert e.config["mtp"]


def test_drafts_where_there_is_no_head(tmp_path: Path) -> None:
    none = (FormatError, "MISSING_TENSOR", "draft head: expected tensors blk.4.nextn.*, found none")
    refused(file(tmp_path, mtp=None), none)
    path = tiny.write(tmp_path / "llama.gguf", tiny.Shape(n_layer=1))
    with pytest.raises(UnsupportedError, match="expected a model with a draft head, found llama"):
        Engine(path, "mtp:4", device="cpu")
    target = file(tmp_path, mtp=None)
    with pytest.raises(FormatError, match="draft head: expected tensors"):
        Engine(target, path, device="cpu", context=64)


def test_a_draft_head_of_another_geometry(tmp_path: Path) -> None:
    target = file(tmp_path, mtp=None)
    other = tmp_path / "other"
    other.mkdir()
    for name in ("odd", "wide"):
        draft = draft_path(file(other, g=GEOMETRIES[name], mtp="separate"))
        refused(target, shape(".nextn.enorm.weight: expected [64]"), draft, subject=draft)
    half = dataclasses.replace(G, ffn=16)
    draft = draft_path(file(other, g=half, mtp="separate"))
    refused(target, shape("blk.4.ffn_gate_exps.weight: expected [8,32,64], found [8,16,64]"), draft,
            subject=draft)  # fmt: skip
