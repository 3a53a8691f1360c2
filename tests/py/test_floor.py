"""The floor harness without a device: its table, records and verdict on made-up times, and the one
error that a machine without a GPU gives."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import _native, floor
from stoker.cli import main
from stoker.errors import DeviceError, InvalidArgumentError, OutOfMemoryError, UnsupportedError

H200 = {"device": {"name": "NVIDIA H200"}, "record": "provenance"}
NO_DEVICE = _native.device_count() == 0


def made_up(scale: float = 1.0, broken: str = ""):
    """A device on which each kind takes a time that reaches the limits at scale 1."""

    def measure(device, kind, n, size, programmatic, shape, samples):
        if kind == broken:
            raise OutOfMemoryError("no room")
        us = {
            "copy": 2 * size / 4.3e6 + 3, "read": size / 4.5e6 + 5, "empty": 4 + 0.6 * n,
            "submit": 2.0 + 0.002 * n, "return": 4 + 0.6 * n + 3.5, "fork": 1.3 * n,
            "barrier": 1.0 * n, "chain": n * (1.4 + size / 4.6e6),
        }[kind] * scale * (1.5 if kind in ("read", "chain") and shape not in (-1, 2) else 1.0)  # fmt: skip
        times = us * (1 + 0.01 * np.arange(samples) / samples)
        return times, {"nodes": n, "edges": n - 1, "programmatic": 0, "arena_bytes": 0}

    return measure


def records(**options: Any) -> list[dict[str, Any]]:
    head = options.pop("head", H200)
    return list(floor.measure_floor(samples=20, measure=made_up(**options), head=head))


def test_table_has_every_line_once():
    names = [line.name for line in floor.lines()]
    assert len(set(names)) == len(names)
    limits = {line.name: line.limit for line in floor.lines() if line.limit}
    assert limits == {
        "read, 4 GiB": 4.3,
        "read node, 2 MiB, of 300, programmatic": 2.0,
        "read node, 8 MiB, of 300, programmatic": 4.2,
        "read node, 16 MiB, of 300, programmatic": 6.3,
    }
    assert {line.kind for line in floor.lines()} == {
        *("copy", "read", "empty", "submit", "return", "fork", "barrier", "chain")
    }


def test_records_have_raw_samples_and_complete_comes_last():
    found = records()
    head, *body, end = json.loads(json.dumps(found))
    assert head["record"] == "provenance"
    assert [r["line"] for r in body] == [line.name for line in floor.lines()]
    for r in body:
        assert r["record"] == "line" and len(r["samples_us"]) == 20
        assert r["p10"] <= r["median"] <= r["p90"] and r["reached"]
        searched = r["what"] in ("read", "chain")
        assert len(r["tries"]) == (len(_native.floor_shapes()) + 1 if searched else 0)
        assert all(len(t["samples_us"]) == 20 for t in r["tries"])
    assert not any("complete" in r for r in body)
    assert list(end)[-1] == "complete" and end["complete"] and end["is_floor"]
    assert floor.verdict(found) == "floor: all 4 limits reached"


def test_values_are_rates_and_shares():
    by_name = {r["line"]: r for r in records() if r["record"] == "line"}
    read = by_name["read, 4 GiB"]
    assert read["unit"] == "TB/s" and 4.4 < read["median"] < 4.5
    assert 0.60 < by_name["empty node, of 4000"]["median"] < 0.61
    assert 1.0 < by_name["grid barrier, 1 block an SM"]["median"] < 1.011
    assert 3.4 < by_name["launch to return, 1 nodes"]["beyond_device_us"] < 3.6


def test_fastest_launch_shape_is_measured_again():
    measure, asked = made_up(), []

    def spy(*args):
        asked.append(args[5])
        us, ran = measure(*args)
        return us * (0.5 if args[5] == 3 else 1.0), ran

    line = next(line for line in floor.lines() if line.kind == "chain")
    record = floor.measure_line(line, 0, 5, spy)
    shapes = _native.floor_shapes()
    assert asked == [-1, *range(len(shapes)), 3] and record["shape"] == list(shapes[3])


def test_verdict_names_the_lines_that_miss():
    slow = records(scale=1.2)
    assert not slow[-1]["is_floor"] and slow[-1]["complete"]
    text = floor.verdict(slow)
    assert text.startswith("NOT A FLOOR: read, 4 GiB: expected at least 4.3 TB/s, found 3.7")
    assert "read node, 2 MiB, of 300, programmatic: expected at most 2 us, found 2.2" in text
    elsewhere = records(scale=9.0, head={**H200, "device": {"name": "Another GPU"}})
    assert floor.verdict(elsewhere) == "floor: no reference for this GPU (Another GPU)"
    assert elsewhere[-1]["is_floor"] is None and elsewhere[-1]["missed"] == []
    assert floor.verdict(slow[:-1]) == "floor: incomplete"


def test_a_line_without_memory_is_kept_as_what_it_is():
    found = records(broken="chain")
    broken = [r for r in found if "error" in r]
    assert len(broken) == 6 and all(r["error"] == "no room" for r in broken)
    assert floor.row(broken[0])[-1] == "no room"
    text = "read node, 2 MiB, of 300, programmatic: expected at most 2 us, found no room"
    assert text in floor.verdict(found)


def test_rows_are_text():
    cells = {r["line"]: floor.row(r) for r in records() if r["record"] == "line"}
    assert all(len(c) == len(floor.COLUMNS) for c in cells.values())
    line, median, unit, _, _, limit, shape = cells["read, 4 GiB"]
    assert unit == "TB/s" and limit == ">= 4.3" and median.startswith("4.4") and shape == "auto"
    assert cells["read node, 8 MiB, of 300, programmatic"][5] == "<= 4.2"
    assert cells["read node, 8 MiB, of 300"][5] == ""  # the faster of the two is the floor
    assert cells["launch to return, 1000 nodes"][6] == "3.5 us beyond the device"


def test_floor_of_a_round_uses_the_fastest_shape():
    asked = []

    def chain(device, sizes, programmatic, samples, shape):
        asked.append((sizes.dtype, sizes.tolist(), programmatic, shape))
        return np.full(samples, 10.0 - shape), {}

    us = floor.floor_of_round([16, 0, 4096], False, samples=3, chain=chain)
    last = len(_native.floor_shapes()) - 1
    assert us.tolist() == [10.0 - last] * 3
    assert asked[-1] == (np.uint64, [16, 0, 4096], False, last) and len(asked) == last + 3


@pytest.mark.parametrize("text", ["cpu", "cuda:", "cuda:x", "cuda:-1", "auto", "0"])
def test_device_names(text):
    if text == "cuda:":
        assert floor.device_index(text) == floor.device_index("cuda") == 0
        return
    with pytest.raises(InvalidArgumentError, match="expected cuda or cuda:N"):
        floor.device_index(text)


def test_native_checks_its_arguments():
    for bad in (
        (0, "ceiling", 1, 16, False, -1, 1),
        (0, "read", 0, 16, False, -1, 1),
        (0, "read", 1, 1 << 60, False, -1, 1),
        (0, "read", 1, 16, True, -1, 1),
        (0, "chain", 1, 16, True, 99, 1),
        (0, "barrier", 1, 16, False, -1, 1),
        (0, "read", 1, 16, False, -1, 0),
    ):
        with pytest.raises(InvalidArgumentError, match="floor: "):
            _native.floor_run(*bad)
    with pytest.raises(InvalidArgumentError, match="n = 0"):
        _native.floor_chain(0, [], True, 1)


@pytest.mark.skipif(not NO_DEVICE, reason="there is a device")
def test_without_a_device_there_is_one_clear_error(tmp_path: Path, capsys):
    with pytest.raises((DeviceError, UnsupportedError)) as why:
        _native.device_need(0)
    for call in (
        lambda: _native.floor_run(0, "read", 1, 16, False, -1, 1),
        lambda: _native.floor_chain(0, [16, 16], True, 1),
        lambda: next(floor.measure_floor()),
        lambda: floor.floor_of_round([16]),
    ):
        with pytest.raises(type(why.value)) as found:
            call()
        assert str(found.value) == str(why.value)
    out = tmp_path / "floor.jsonl"
    assert main(["floor", "--out", str(out)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"stoker: {type(why.value).__name__}: {why.value}\n"
    assert not out.exists()


def test_command_prints_table_and_verdict(tmp_path: Path, capsys, monkeypatch):
    whole = floor.measure_floor
    for scale, status in ((1.0, 0), (1.2, 1)):
        monkeypatch.setattr(_native, "device_need", lambda index: None)
        monkeypatch.setattr(floor, "measure_floor", lambda index, samples, table, s=scale: whole(
            index, samples, [replace(line) for line in table], made_up(s), H200))  # fmt: skip
        out = tmp_path / f"{status}.jsonl"
        assert main(["floor", "--samples", "5", "--out", str(out)]) == status
        text = capsys.readouterr().out
        assert "NVIDIA H200" in text and "read node, 16 MiB, of 300" in text
        assert ("all 4 limits reached" in text) == (status == 0)
        written = [json.loads(line) for line in out.read_text().splitlines()]
        assert len(written) == len(floor.lines()) + 2 and written[-1]["complete"]
