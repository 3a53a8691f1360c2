"""Chains of one op without a device, and the benchmark that times them on a made-up one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from op_tools import act, ints, weights
from stoker import _native
from stoker.errors import DeviceError, InvalidArgumentError, UnsupportedError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import linear as bench

NO_DEVICE = _native.device_count() == 0
N, K, P = 64, 64, 3


def fields():
    rng = np.random.default_rng(0)
    x, _ = act(rng.standard_normal((P, K)), "BF16")
    w, _ = weights("Q8_0", N, K, rng)
    return {"x": x, "count": ints(P), "w[0]": w, "y[0]": np.empty((P, N), np.float32)}


@pytest.mark.parametrize(
    ("args", "error", "text"),
    [
        (("lineal", {}, ("w[0]",), 2), ValueError, "name: no op is called 'lineal'"),
        (("linear", fields(), ("w",), 2), ValueError, "chain: linear: no view is called 'w'"),
        (("linear", fields(), (1,), 2), ValueError, "chain: linear: no view is called 1"),
        (("linear", fields(), ("scale_n[0]",), 2), ValueError, "no view is called"),
        (("linear", fields(), ("w[0]",), 0), InvalidArgumentError,
         "chain: copies: expected 1 to 4096, found 0"),
        (("linear", fields(), (), 2), InvalidArgumentError,
         "chain: weights: expected a field, found none"),
        (("linear", fields(), ("w[1]",), 2), InvalidArgumentError,
         r"chain: linear: w\[1\]: expected an input that is given"),
        (("linear", fields(), ("y[0]",), 2), InvalidArgumentError,
         r"chain: linear: y\[0\]: expected an input that is given"),
        (("linear", fields() | {"x": np.zeros((P, 32), np.float32)}, ("w[0]",), 2),
         InvalidArgumentError, "linear: "),
        (("linear", fields() | {"z": ints(1)}, ("w[0]",), 2), TypeError,
         "linear: 1 of the given fields are not fields of this op"),
        (("linear", fields(), ["w[0]"], 2), TypeError, "tuple"),
    ],
)  # fmt: skip
def test_arguments_are_refused_before_a_device_is_opened(args, error, text):
    with pytest.raises(error, match=text):
        _native.OpChain(*args)


def test_no_keywords():
    with pytest.raises(TypeError, match="OpChain takes no keyword arguments"):
        _native.OpChain("linear", fields(), ("w[0]",), 2, device=0)


@pytest.mark.skipif(not NO_DEVICE, reason="there is a CUDA device here")
def test_without_a_device_the_one_reason_is_given():
    with pytest.raises((UnsupportedError, DeviceError)) as found:
        _native.OpChain("linear", fields(), ("w[0]",), 2)
    if not _native.build_info()["cuda"]:
        assert found.value.check == "NO_CUDA_BUILD"


class MadeUp:
    """A device that multiplies like the CPU and takes a microsecond for 4 MB."""

    def __init__(self, op, given, names, copies, device):
        self.op, self.copies, self.names = op, copies, names

    def record(self, given, stacks, nodes, edges, ready, early):
        self.given, self.nodes = given, nodes
        self.bytes = sum(given[name][1].nbytes for name in self.names)
        return self.about(edges)

    def record_stream(self, size, nodes, edges, shape):
        self.bytes, self.nodes = size, nodes
        return self.about(edges)

    def about(self, edges):
        n = self.nodes
        return {"nodes": n, "edges": n - 1, "programmatic": (n - 1) * edges, "bytes": self.bytes}

    def time(self, warm, samples, tail):
        us = self.nodes * self.bytes / 4e6
        return us * (1 + 0.01 * np.arange(samples) / samples), us

    def outputs(self):
        _native.run_op(self.op, self.given, self.table, 1)

    def close(self):
        pass

    table = "definition"


@pytest.fixture
def made_up(monkeypatch):
    info = {"l2_bytes": 1 << 20, "name": "made up"}
    monkeypatch.setattr(bench._native, "device_need", lambda index: None)
    monkeypatch.setattr(bench._native, "device_info", lambda index: info)
    monkeypatch.setattr(bench._native, "OpChain", MadeUp)
    monkeypatch.setattr(bench, "POOL", 1 << 16)
    monkeypatch.setattr(bench, "clocks", lambda index: {"sm_mhz": 1980, "power_w": 699.6,
                                                        "throttle_reasons": 4})  # fmt: skip


def ran(monkeypatch, *args):
    monkeypatch.setattr(sys, "argv", ["linear", *args])
    return bench.main()


def test_records_have_raw_samples_and_complete_comes_last(made_up, monkeypatch, tmp_path, capsys):
    out = tmp_path / "linear.jsonl"
    status = ran(monkeypatch, "--types", "Q6_K,BF16", "--shapes", "256x512,512x256", "--rows", "1,3",
                 "--samples", "12", "--out", str(out))  # fmt: skip
    records = [json.loads(text) for text in out.read_text().splitlines()]
    cells = [r for r in records if r["record"] == "cell"]
    assert status == 0 and len(cells) == 8
    assert records[0]["record"] == "provenance" and records[0]["device"]["name"] == "made up"
    assert [r.get("complete") for r in records] == [None] * 9 + [True]
    for r in cells:
        assert len(r["samples_us"]) == 12 and r["right"] and r["error"] == 0
        assert r["tb_s"] == pytest.approx(4, rel=0.02)
        assert r["stream"]["us"] == pytest.approx(r["us"], rel=0.02)
        assert r["ran"]["nodes"] % r["copies"] == 0
        assert r["copies"] * r["file_bytes"] >= 4 << 20
        assert r["limited_by"] == ["power cap"]
    assert capsys.readouterr().out.count("power cap") == 8


def test_parts_stand_beside_the_whole(made_up, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench, "HEAD", (300, 256))
    monkeypatch.setattr(bench, "PARTS", {512: 2})
    out = tmp_path / "linear.jsonl"
    assert ran(monkeypatch, "--types", "Q6_K", "--shapes", "64x512,64x256,300x256", "--rows", "3",
               "--parts", "auto", "--samples", "5", "--out", str(out)) == 0  # fmt: skip
    cells = [r for r in map(json.loads, out.read_text().splitlines()) if r["record"] == "cell"]
    assert [(r["op"], r["parts"]) for r in cells] == [
        ("linear", 0), ("linear_parts", 2), ("linear", 0), ("linear", 0), ("norm_argmax", 0),
    ]  # fmt: skip
    assert all(r["error"] == 0 and r["right"] for r in cells)
    said = capsys.readouterr().out.splitlines()
    assert [text.split()[3] for text in said if text.startswith("Q6_K")][1::3] == ["2", "argmax"]
    monkeypatch.setattr(bench, "HEAD", (64, 64))
    assert ran(monkeypatch, "--types", "Q8_0", "--shapes", "64x1024", "--rows", "2", "--parts", "4",
               "--samples", "5") == 0  # fmt: skip

    def spoilt(self):  # a good choice for another row
        _native.run_op(self.op, self.given, self.table, 1)
        if "id" in self.given:
            self.given["id"][:] = self.given["id"][::-1].copy()

    monkeypatch.setattr(MadeUp, "outputs", spoilt)
    monkeypatch.setattr(bench, "HEAD", (300, 256))
    assert ran(monkeypatch, "--types", "Q8_0", "--shapes", "300x256", "--rows", "2", "--parts",
               "auto") == 1  # fmt: skip


def test_wrong_outputs_are_said_and_fail(made_up, monkeypatch, capsys):
    def spoilt(self):
        _native.run_op(self.op, self.given, self.table, 1)
        self.given["y[0]"][:, -1] *= 1.01

    monkeypatch.setattr(MadeUp, "outputs", spoilt)
    assert ran(monkeypatch, "--types", "Q8_0", "--shapes", "64x64", "--rows", "2") == 1
    assert "WRONG" in capsys.readouterr().out


def test_what_has_no_kernels_is_recorded_and_passed_over(made_up, monkeypatch, tmp_path, capsys):
    def refuse(*args):
        raise UnsupportedError("linear on CUDA: w[0]: expected a type with kernels, found IQ1_M")

    monkeypatch.setattr(bench._native, "OpChain", refuse)
    out = tmp_path / "linear.jsonl"
    assert ran(monkeypatch, "--types", "IQ1_M", "--shapes", "64x256", "--out", str(out)) == 0
    records = [json.loads(text) for text in out.read_text().splitlines()]
    assert [r["record"] for r in records] == ["provenance", "refused", "end"]
    assert "found IQ1_M" in records[1]["error"]


def test_every_weight_type_has_a_pool_of_a_sane_size():
    rng = np.random.default_rng(0)
    for kind in bench.WEIGHTS:
        pool = bench.Pool(kind, 0.02, rng)
        assert len(pool.raw) <= bench.POOL and len(pool.raw) % pool.row_bytes(256) < 256 * 8
        _, raw, _ = pool.weight((4, 256), np.empty(1 << 14, np.uint8))
        assert len(raw) == 4 * pool.row_bytes(256)
    assert set(bench.TYPES) <= set(bench.WEIGHTS)
    assert set(bench.LAB) == set(bench.SHAPES)
