"""`stoker dequantize`: the written file against the safetensors package and against values decoded
here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import stoker
import tiny
import tiny_hf
from safetensors import safe_open
from stoker.cli import main
from stoker.dequantize import dequantize, to_bf16
from test_hf_scaled import BASE, KINDS, model
from tolerances import DECODED, F32_SAME, from_bf16
from tolerances import to_bf16 as reference_bf16


def read(path: Path) -> dict[str, np.ndarray]:
    """Through the safetensors package; BF16, which NumPy lacks, through its raw bytes."""
    with safe_open(path, "np") as f:
        names = list(f.keys())
    with stoker.open(path, strict=True) as ck:
        assert sorted(ck) == sorted(names)
        return {
            k: from_bf16(t.numpy()) if t.type == "BF16" else t.numpy().copy() for k, t in ck.items()
        }


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_gguf(tmp_path: Path, dtype: str) -> None:
    source = tiny.write(tmp_path / "m.gguf", seed=3)
    out = tmp_path / "out.safetensors"
    assert main(["dequantize", str(source), str(out), "--dtype", dtype]) == 0
    got = read(out)
    with stoker.open(source) as ck:
        assert list(ck) == list(stoker.open(out))
        for name, t in ck.items():
            want = t.dequantize()
            if dtype == "bf16":
                want = from_bf16(reference_bf16(want))
            elif dtype == "f16":
                want = want.astype(np.float16)
            assert got[name].dtype == want.dtype and got[name].tobytes() == want.tobytes()
    assert [p.name for p in tmp_path.glob(".*")] == []


@pytest.mark.parametrize("kind", KINDS)
def test_scaled(tmp_path: Path, kind: str) -> None:
    tensors, values = model(kind)
    folder = tiny_hf.write(tmp_path / "m", tensors, tiny_hf.config(BASE), 2)
    size = dequantize(folder, tmp_path / "o.safetensors")
    got = read(tmp_path / "o.safetensors")
    assert size == (tmp_path / "o.safetensors").stat().st_size
    scales = {k for k in got if k.endswith(("input_scale", "input_global_scale"))}
    assert set(got) - scales == set(values)
    for name, want in values.items():
        assert got[name].shape == want.shape
        np.testing.assert_allclose(got[name], want, rtol=DECODED, atol=0)


def test_bf16_rounding() -> None:
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 32, 100_000, np.uint64).astype(np.uint32)
    x = np.concatenate([bits, [0x7F800000, 0x7F800001, 0xFFFFFFFF, 0x3F808000, 0x3F818000]])
    x = x.astype(np.uint32).view(np.float32)
    nan = np.isnan(x)
    assert np.array_equal(to_bf16(x)[~nan], reference_bf16(x[~nan]))
    assert np.isnan(from_bf16(to_bf16(x)[nan])).all()


def test_refused(tmp_path: Path) -> None:
    from sft_bytes import build

    source = tmp_path / "a.safetensors"
    source.write_bytes(build({"w": ("F32", [1e6]), "n": ("I64", [1, 2])}))
    with pytest.raises(stoker.InvalidArgumentError, match="w: expected values within"):
        dequantize(source, tmp_path / "b.safetensors", dtype="f16")
    with pytest.raises(stoker.InvalidArgumentError, match="f64"):
        dequantize(source, tmp_path / "b.safetensors", dtype="f64")
    with pytest.raises(stoker.InvalidArgumentError, match="ends in .safetensors"):
        dequantize(source, tmp_path / "b.bin")
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]
    dequantize(source, tmp_path / "b.safetensors", dtype="bf16")
    assert read(tmp_path / "b.safetensors")["n"].tolist() == [1, 2]


@pytest.mark.parametrize(
    "quantization, found",
    [
        ({"weight_block_size": [0, 128]}, "an array of 2"),
        ({"weight_block_size": "128"}, "'128'"),
        ({"config_groups": {"group_0": {"weights": {"block_structure": [128]}}}}, "an array of 1"),
    ],
)
def test_block_sizes_that_are_none(tmp_path: Path, quantization: dict, found: str) -> None:
    tensors, _ = model("block")
    settings = tiny_hf.config(BASE, quantization_config=quantization)
    folder = tiny_hf.write(tmp_path / "m", tensors, settings)
    with pytest.raises(stoker.FormatError, match=f"expected two numbers above 0, found {found}"):
        dequantize(folder, tmp_path / "out.safetensors")


@pytest.mark.parametrize("quantization", [None, [1], "fp8", {"config_groups": [3]}])
def test_configurations_that_say_nothing_about_blocks(tmp_path: Path, quantization: object) -> None:
    tensors, _ = model("block")
    settings = tiny_hf.config(BASE, quantization_config=quantization)
    assert dequantize(tiny_hf.write(tmp_path, tensors, settings), tmp_path / "out.safetensors")


def test_the_written_model_runs(tmp_path: Path) -> None:
    from test_hf_folder import logits, relative

    tensors, _ = model("block")
    folder = tiny_hf.write(tmp_path / "m", tensors, tiny_hf.config(BASE))
    plain = tiny_hf.write(tmp_path / "p", {}, tiny_hf.config(BASE))
    dequantize(folder, plain / "model.safetensors")
    assert relative(logits(plain), logits(folder)) < F32_SAME
