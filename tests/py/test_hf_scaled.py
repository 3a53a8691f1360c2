"""Quantised Hugging Face folders against float64 on values decoded here: FP8 by block, row and
tensor, NVFP4 in both spellings, and NVFP4 with a tensor scale in GGUF."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import llama_hf
import numpy as np
import pytest
import stoker
import tiny
import tiny_hf
from gguf_bytes import T, build
from op_tools import FLOAT8
from test_hf_folder import IDS, logits, relative
from tolerances import F32_WHOLE

BASE = replace(tiny.Shape(types=(tiny.F32_T,)), tied=False, n_layer=2)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
FP8 = FLOAT8["F8_E4M3"]


def nearest(w: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Codes of the values of `table` nearest to w; any rounding will do for a test."""
    order = np.argsort(table)
    middle = (table[order][1:] + table[order][:-1]) / 2
    return order[np.searchsorted(middle, w)].astype(np.uint8)


def whole(scale: np.ndarray, shape: tuple[int, int], n: int, k: int) -> np.ndarray:
    return np.repeat(np.repeat(scale, n, 0)[: shape[0]], k, 1)[:, : shape[1]]


FINITE = np.where(np.isnan(FP8), 0, FP8)


def fp8(w: np.ndarray, grid: str) -> tuple[dict[str, tuple[str, np.ndarray]], np.ndarray]:
    """Sidecars by ending, and the values they stand for."""
    n, k = {"block": (128, 128), "row": (1, w.shape[1]), "tensor": w.shape}[grid]
    parts = [[np.abs(w[i : i + n, j : j + k]).max() / 448 for j in range(0, w.shape[1], k)]
             for i in range(0, w.shape[0], n)]  # fmt: skip
    scale = np.array(parts, np.float32)
    every = whole(scale, w.shape, n, k)
    codes = nearest(w / every, np.where(np.isnan(FP8), 1e9, FP8))
    return {"weight": ("F8_E4M3", codes), "scale": ("F32", scale)}, FINITE[codes].astype(
        float
    ) * every


def nvfp4(w: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.float32, np.ndarray]:
    """Codes [O, I/2], scales [O, I/16], the tensor's scale, and values."""
    t = np.float32(np.abs(w).max() / (6 * 448))
    groups = w.reshape(w.shape[0], -1, 16)
    s = nearest(np.abs(groups).max(-1) / 6 / t, np.where(np.arange(256) < 127, FINITE, 1e9))
    each = FINITE[s][..., None] * t
    codes = nearest(groups / np.where(each > 0, each, 1), E2M1)
    values = E2M1[codes].astype(float) * FINITE[s][..., None].astype(float) * float(t)
    flat = codes.reshape(w.shape)
    return flat[:, 0::2] | flat[:, 1::2] << 4, s, t, values.reshape(w.shape)


def is_linear(name: str) -> bool:
    return "_proj." in name


def model(kind: str) -> tuple[dict[str, tuple[str, np.ndarray]], dict[str, np.ndarray]]:
    """Tensors of the folder, and values by plain names."""
    out: dict[str, tuple[str, np.ndarray]] = {}
    values = {}
    for name, (dtype, w) in tiny_hf.tensors(BASE, 7).items():
        base = name.removesuffix(".weight")
        values[name] = w
        if not is_linear(name):
            out[name] = (dtype, w)
        elif kind == "block":
            side, values[name] = fp8(w, "block")
            out |= {name: side["weight"], f"{base}.weight_scale_inv": side["scale"]}
        elif kind in ("row", "tensor", "row-flat", "tensor-scalar"):
            side, values[name] = fp8(w, kind.split("-")[0])
            scale = side["scale"][1]
            shape = {"row-flat": (-1,), "tensor": (1,), "tensor-scalar": ()}.get(kind, scale.shape)
            out |= {name: side["weight"], f"{base}.weight_scale": ("F32", scale.reshape(shape)),
                    f"{base}.input_scale": ("F32", np.float32(1.0))}  # fmt: skip
        else:
            codes, s, t, values[name] = nvfp4(w)
            out[f"{base}.weight_scale"] = ("F8_E4M3", s)
            if kind == "modelopt":
                out |= {name: ("U8", codes), f"{base}.weight_scale_2": ("F32", t),
                        f"{base}.input_scale": ("F32", np.float32(1))}  # fmt: skip
            else:
                g = np.float32(1 / t)
                values[name] = values[name] / float(t) * float(np.float32(1) / g)
                out |= {f"{base}.weight_packed": ("U8", codes),
                        f"{base}.weight_global_scale": ("F32", np.array([g])),
                        f"{base}.input_global_scale": ("F32", np.array([1]))}  # fmt: skip
    return out, values


KINDS = ("block", "row", "row-flat", "tensor", "tensor-scalar", "modelopt", "compressed-tensors")


@pytest.mark.parametrize("kind", KINDS)
def test_against_float64(tmp_path: Path, kind: str) -> None:
    tensors, values = model(kind)
    settings = tiny_hf.config(BASE)
    if kind == "block":
        settings["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    folder = tiny_hf.write(tmp_path, tensors, settings, 2)
    want = llama_hf.forward(values, settings, IDS)
    assert relative(logits(folder), want) < F32_WHOLE
    assert logits(folder).tobytes() == logits(folder, kernels="definition").tobytes()


def repack(codes: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Blocks of GGUF: four scales, then 8 bytes a group with elements r and r + 8."""
    n, k = codes.shape[0], codes.shape[1] * 2
    e = np.stack([codes & 15, codes >> 4], -1).reshape(n, k // 64, 4, 16)
    packed = (e[..., :8] | e[..., 8:] << 4).reshape(n, k // 64, 32)
    return np.concatenate([s.reshape(n, k // 64, 4), packed], -1).astype(np.uint8)


def test_nvfp4_in_gguf_is_the_same(tmp_path: Path) -> None:
    """The repacked blocks are those of a GGUF file made apart; with heads of two elements the
    logits are equal to the bit, so nothing was lost or moved."""
    shape = replace(BASE, dim=64, n_head=32, n_kv=16, ffn=128)
    tensors, listed = {}, []
    for t in tiny.tensors(shape, 7):
        name = tiny_hf.name(t.name)
        w = np.frombuffer(t.data, np.float32).reshape(t.ne[::-1])
        base = name.removesuffix(".weight")
        if not is_linear(name):
            tensors[name] = ("F32", w)
            listed.append(t)
            continue
        codes, s, scale, _ = nvfp4(w)
        tensors |= {name: ("U8", codes), f"{base}.weight_scale": ("F8_E4M3", s),
                    f"{base}.weight_scale_2": ("F32", scale)}  # fmt: skip
        listed.append(T(t.name, t.ne, 40, repack(codes, s).tobytes()))
        listed.append(T(t.name.replace("weight", "scale"), (1,), 0, scale.tobytes()))
    folder = tiny_hf.write(tmp_path / "hf", tensors, tiny_hf.config(shape))
    gguf = tmp_path / "m.gguf"
    gguf.write_bytes(build(tiny.keys(shape), listed))
    for numerics in ("f32", "bf16"):
        assert logits(gguf, numerics).tobytes() == logits(folder, numerics).tobytes()


PART = "model.layers.1.mlp.up_proj"
BROKEN = {
    "no block": ("block", f"{PART}.weight_scale_inv", ("F32", np.ones((3, 2))), "BAD_SHAPE", "4,2"),
    "not finite": ("block", f"{PART}.weight_scale_inv", ("F32", np.full((4, 2), np.inf)), "BAD_DATA",
                   "finite"),
    "scale type": ("block", f"{PART}.weight_scale_inv", ("I32", np.ones((4, 2))), "BAD_TYPE", "I32"),
    "other scale": ("block", f"{PART}.zero_point", ("F32", np.ones(1)), "UNEXPECTED_TENSOR",
                    "zero_point"),
    "scale of a norm": ("block", "model.norm.weight_scale", ("F32", np.ones(1)),
                        "UNEXPECTED_TENSOR", "model.norm.weight_scale"),
    "no tensor scale": ("modelopt", f"{PART}.weight_scale_2", None, "MISSING_TENSOR", "weight_scale_2"),
    "zero reciprocal": ("compressed-tensors", f"{PART}.weight_global_scale", ("F32", np.zeros(1)),
                        "BAD_DATA", "weight_global_scale"),
    "codes": ("modelopt", f"{PART}.weight", ("U8", np.zeros((512, 64))), "BAD_SHAPE", "512,128"),
    "group scales": ("modelopt", f"{PART}.weight_scale", ("F8_E4M3", np.zeros((512, 8))),
                     "BAD_SHAPE", "512,16"),
    "negative scales": ("modelopt", f"{PART}.weight_scale", ("F8_E4M3", np.full((512, 16), 0x81)),
                        "BAD_DATA", "not negative"),
    "nan scales": ("modelopt", f"{PART}.weight_scale", ("F8_E4M3", np.full((512, 16), 0x7F)),
                   "BAD_DATA", "numbers"),
    "no group scales": ("compressed-tensors", f"{PART}.weight_scale", None, "MISSING_TENSOR",
                        "weight_scale"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_refused(tmp_path: Path, case: str) -> None:
    kind, name, tensor, check, names = BROKEN[case]
    tensors, _ = model(kind)
    if tensor is None:
        del tensors[name]
    else:
        tensors[name] = tensor
    folder = tiny_hf.write(tmp_path, tensors, tiny_hf.config(BASE))
    with pytest.raises(stoker.FormatError) as raised:
        stoker.Engine(folder, device="cpu", context=64)
    assert raised.value.check == check, str(raised.value)
    assert re.search(names, str(raised.value)), str(raised.value)
