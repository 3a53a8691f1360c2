"""The engine: a checkpoint bound to a drafter and to memory, and the loop that runs requests.

All arithmetic, drafting, acceptance and stopping by ids or lengths happen natively, a round a call.
What stays here is what needs text: encoding, decoding, stop strings, and which request sits in which
slot."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import _native
from ._options import (
    KERNELS,
    MODES,
    TABLES,
    device_named,
    int32,
    native_options,
    one_of,
    settle,
    trained_context,
)
from .checkpoint import Checkpoint
from .checkpoint import open as open_checkpoint
from .drafter import Drafter
from .errors import Error, InvalidArgumentError, StateError, UnsupportedError
from .forced import Forced, planted
from .results import Event, Memory, PlanView, Result, Round, Stats, log_softmax_at
from .tokenizer import TextStream, Tokenizer

MAX_STOP_IDS = 32  # SK_STOP_MAX
ALL = -1  # SK_LICENCE_ALL
WAIT = -2  # SK_LICENCE_WAIT
AHEAD = 2  # at most SK_AHEAD_MAX
FINISH = {1: "stop", 2: "length", 3: "stop"}

Ids = Sequence[int] | np.ndarray[Any, Any]
Prompt = str | Ids | Sequence[Mapping[str, Any]]
Progress = Callable[[str, int, int], None]


@dataclass
class _Request:
    """One request from start to finish."""

    index: int
    ids: np.ndarray[Any, Any]
    stream: TextStream | None
    slot: int = -1
    prefill_s: float = 0.0
    out: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    logits: list[np.ndarray[Any, Any]] = field(default_factory=list)
    finish_reason: str | None = None
    stats: Stats | None = None


@dataclass(frozen=True)
class _Limits:
    max_tokens: int
    stop_ids: np.ndarray[Any, Any]
    logits: bool
    ahead: int  # rounds that may be submitted before the host has seen this one


class Engine:
    """A model ready to run.

    Args:
        model: path of a checkpoint, or a `Checkpoint`.
        drafter: "none", "ngram:K", "mtp:K" (the model's own draft head), "planted:K", the path of a
            draft head, or a `Drafter`; K proposals a round.
        device: "cpu", "cuda:N", or "auto": cuda:0 where that can be used, else the CPU.
        slots: concurrent requests, 1 .. 64.
        context: positions a slot can hold; at most what the model was made for.
        numerics: "bf16" (matrix inputs and caches rounded to BF16) or "f32" (CPU only, and then
            what "auto" picks).
        mode: how a GPU runs a round. "graph": recorded once, replayed. "eager": launched step by step;
            "direct": a step at a time, waiting and checking after each; both for diagnosis. The CPU
            runs steps. What ran is in every result, as "executed".
        seed: recorded; greedy decoding draws nothing.
        prefill_chunk: rows of a prefill pass; chunk borders are its multiples. 64 on the CPU, 512
            on a GPU.
        threads: CPU threads, by default one for each core this process may use.
        kernels: "fast", the best this processor has; "generic", "avx2" or "avx512", what a lesser
            one would run; "definition", the readable reference. All of them give the same bits.
        tokenizer: instead of the checkpoint's own; a model without one still runs on ids.
        poison: fill scratch and dead transients with NaN (diagnosis).
        edges: programmatic edges between the kernels of a round, where the GPU has them.
        embedding_table: where the table of hashed n-grams is: in the memory of the "device", or in
            pinned host memory, "ram", from where a pass gathers its rows beside the first layers.
            The same bits; of a model with such a table. The CPU has one memory.
        fused: fewer launches on a GPU where there are kernels for that, of hyper-connections; the
            same bits. False is for comparing.
        forced: a measuring mode, see `Forced`. What comes out of a forced engine is not what the model
            says, so it is named in `options`, `config`, the repr and every result.
        progress: called with (stage, done, total) while loading and prefilling.

    Raises:
        Error: subclasses, at once and with the reason; nothing is left behind.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Checkpoint,
        drafter: str | os.PathLike[str] | Drafter = "none",
        device: str = "auto",
        slots: int = 1,
        context: int = 4096,
        numerics: str = "bf16",
        mode: str = "graph",
        seed: int = 0,
        *,
        prefill_chunk: int | None = None,
        threads: int | None = None,
        kernels: str = "fast",
        tokenizer: Tokenizer | None = None,
        poison: bool = False,
        edges: bool = True,
        embedding_table: str = "device",
        fused: bool = True,
        forced: Forced | None = None,
        progress: Progress | None = None,
    ) -> None:
        if progress is not None and not callable(progress):
            raise InvalidArgumentError(f"progress: expected a function, found {progress!r}")
        if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
            raise InvalidArgumentError(f"tokenizer: expected a Tokenizer, found {tokenizer!r}")
        if forced is not None and not isinstance(forced, Forced):
            raise InvalidArgumentError(f"forced: expected a Forced, found {forced!r}")
        self.forced = forced
        self._progress: Progress = progress or (lambda stage, done, total: None)
        self.drafter = Drafter.parse(drafter)
        one_of("numerics", numerics, ("bf16", "f32"))
        self.device = pick_device(device, numerics)
        one_of("mode", mode, MODES)
        one_of("kernels", kernels, KERNELS)
        one_of("embedding_table", embedding_table, TABLES)
        on_cpu = self.device == "cpu"
        threads, prefill_chunk = settle(
            self.device, numerics, threads, prefill_chunk, slots=slots, context=context, seed=seed
        )
        self._progress("open", 0, 1)
        self._owns = not isinstance(model, Checkpoint)
        self._draft: Checkpoint | None = None
        self.checkpoint = open_checkpoint(model) if not isinstance(model, Checkpoint) else model
        try:
            context = min(context, trained_context(self.checkpoint) or context)
            self._progress("tokenizer", 0, 1)
            self.tokenizer = tokenizer or own_tokenizer(self.checkpoint)
            self._progress("plan", 0, 1)
            d = self.drafter
            self._draft = None if d.model is None else open_checkpoint(d.model)
            self._session: Any = self._open_session(
                native_options(d, self.device, slots, context, numerics, prefill_chunk, threads,
                               embedding_table, kernels, bool(poison), mode, bool(edges),
                               bool(fused), None if forced is None else forced.native())
            )  # fmt: skip
        except BaseException:
            self._close_files()
            raise
        self.config: dict[str, Any] = self._session.config()
        self.options: dict[str, Any] = {
            "drafter": str(d), "device": self.device,
            "executed": "cpu steps" if on_cpu else f"cuda {mode}", "mode": mode,
            "numerics": numerics, "slots": slots, "context": context, "seed": seed,
            "prefill_chunk": prefill_chunk, "threads": threads,
            "kernels": self.config["kernels"] if on_cpu else "cuda",
        }  # fmt: skip
        if not on_cpu:
            self.options["edges"] = self.config["edges"]
            self.options["fused"] = bool(fused)
        if poison:
            self.options["poison"] = True
        if embedding_table != "device":
            self.options["embedding_table"] = embedding_table
        if forced is not None:
            self.options["forced"] = self.config["forced"] = str(forced)
        self._totals: dict[str, Any] | None = None
        self._busy = threading.Lock()
        self._progress("plan", 1, 1)

    def _open_session(self, options: tuple[Any, ...]) -> Any:
        return _native.Session(
            self.checkpoint._native, options, lambda done, n: self._progress("weights", done, n),
            self._draft and self._draft._native,
        )  # fmt: skip

    def _close_files(self) -> None:
        if self._owns:
            self.checkpoint.close()
        if self._draft is not None:
            self._draft.close()

    # Requests.

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        max_tokens: int = 64,
        temperature: float = 0.0,
        *,
        stop: str | Iterable[str] = (),
        stop_ids: Ids = (),
        ignore_eos: bool = False,
        logprobs: bool = False,
        logits: bool = False,
    ) -> Any:
        """Continue a prompt (or each of several) and return the finished result(s).

        Args:
            prompt: text, token ids, chat messages ({"role", "content"}), or a list of these.
            max_tokens: at most this many new tokens.
            temperature: 0.0, greedy.
            stop: strings that end a request; the text is cut before them.
            stop_ids: token ids that end a request, beside the tokenizer's end-of-generation ids.
            ignore_eos: the tokenizer's end-of-generation ids do not end a request.
            logprobs, logits: keep the log-probability, or the whole logits row, of each token.

        Returns:
            Result, or a list of them in the order of the prompts.
        """
        prompts, single = self._prompts(prompt)
        stops = _as_stops(stop)
        limits = self._limits(
            max_tokens, temperature, stop_ids, ignore_eos, logits or logprobs, bool(stops)
        )
        requests = self._requests(prompts, stops)
        for _ in self._run(requests, limits):
            pass
        results = [self._result(r, logprobs, logits) for r in requests]
        return results[0] if single else results

    def stream(
        self,
        prompt: Prompt | Sequence[Prompt],
        max_tokens: int = 64,
        temperature: float = 0.0,
        *,
        stop: str | Iterable[str] = (),
        stop_ids: Ids = (),
        ignore_eos: bool = False,
    ) -> Iterator[Event]:
        """As `generate`, one event for each request and round. Closing the iterator cancels what is
        still running; until then, or until its end, the engine serves nobody else (StateError).
        `engine.last` holds the statistics of the request that finished last."""
        prompts, _ = self._prompts(prompt)
        stops = _as_stops(stop)
        limits = self._limits(max_tokens, temperature, stop_ids, ignore_eos, False, bool(stops))
        return self._run(self._requests(prompts, stops), limits)

    last: Stats | None = None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """A round moves every slot, so whoever runs rounds has the whole engine until it is done."""
        if not self._busy.acquire(blocking=False):
            raise StateError(
                "engine: expected it to be idle, found requests running in it; finish or close the "
                "open stream, or wait for the other thread"
            )
        try:
            yield
        finally:
            self._busy.release()

    def _run(self, requests: list[_Request], limits: _Limits) -> Iterator[Event]:
        with self._alone():
            yield from self._rounds(requests, limits)

    def _rounds(self, requests: list[_Request], limits: _Limits) -> Iterator[Event]:
        waiting = deque(requests)
        free = deque(range(self.options["slots"]))
        running: dict[int, _Request] = {}
        try:
            while waiting or running:
                while waiting and free:
                    request = waiting.popleft()
                    request.slot = free.popleft()
                    running[request.slot] = request
                    self._start(request, limits)
                begin = time.perf_counter()
                done = self._session.round(None, limits.logits, limits.ahead)
                wall_s = time.perf_counter() - begin
                for slot, request in list(running.items()):
                    if done[slot] is None:  # submitted before this request began
                        continue
                    event = self._take(request, done[slot], wall_s, limits)
                    if event.finish_reason:
                        del running[slot]
                        free.append(slot)
                    yield event
        finally:
            for slot in running:  # an error, Ctrl-C, or a closed iterator
                if not self.closed:
                    self._session.reset(slot)

    def _start(self, request: _Request, limits: _Limits) -> None:
        if self.forced is not None and self.forced.accept is not None:
            self._plant_own(request, limits)
        self._start_slot(request, limits)

    def _plant_own(self, request: _Request, limits: _Limits) -> None:
        """Plants what the request is going to say, with the errors of the forced acceptance. It says
        so a first time here, without proposals and alone: forced or not, what a slot says does not
        depend on its drafts."""
        assert self.forced is not None
        slot, width, tokens = request.slot, self.config["width"], []
        alone = [(ALL if i == slot else WAIT, False) for i in range(self.options["slots"])]
        self._session.plant(slot, [], [0])
        self._start_slot(request, limits)
        while True:
            _, _, _, more, _, _, finish = self._session.round(alone, False, 0)[slot]
            tokens += more
            if finish:
                break
        self._session.reset(slot)
        table = planted(len(request.ids) - 1, tokens, width, self.config["vocab"],
                        self.forced.accepted(slot, width))  # fmt: skip
        self._session.plant(slot, table, [MAX_STOP_IDS])

    def _start_slot(self, request: _Request, limits: _Limits) -> None:
        begin = time.perf_counter()
        n = len(request.ids)
        self._session.start(request.slot, request.ids, (limits.max_tokens, limits.stop_ids), False)
        left = self._session.prefill(request.slot, 0)
        while left:
            self._progress("prefill", n - 1 - left, n - 1)
            left = self._session.prefill(request.slot, 1)
        if n > 1:
            self._progress("prefill", n - 1, n - 1)
        request.prefill_s = time.perf_counter() - begin

    def _take(self, r: _Request, done: Any, wall_s: float, limits: _Limits) -> Event:
        """What a completion record means for its request; settles the request when it ends."""
        rows, first, position, tokens, drafted, accepted, finish = done
        kept = len(tokens)
        text = ""
        if r.stream is not None:
            # Only the host sees text: it licenses the tokens up to the one that completes a stop.
            chunk = r.stream.push(tokens)
            text = chunk.text
            if chunk.stop is not None:
                kept, finish = chunk.taken, 3
            elif finish:
                tail = r.stream.flush()
                text += tail.text
                finish = 3 if tail.stop is not None else finish
        if limits.logits:
            r.logits.append(self._session.logits(first, kept))
        event_round = Round(len(r.rounds), rows, position, drafted, accepted, kept, wall_s)
        r.rounds.append(event_round)
        r.out += tokens[:kept]
        r.text.append(text)
        if finish:
            self._session.finish(r.slot, kept)
            r.finish_reason = FINISH[finish]
            r.stats = self._stats(r)
        return Event(r.index, text, tokens[:kept], event_round, r.finish_reason)

    def _stats(self, r: _Request) -> Stats:
        counters = self._session.counters(r.slot)
        self._totals = _add(self._totals, counters)
        stats = Stats(counters, len(r.ids), r.prefill_s, [x.wall_s for x in r.rounds], self.options)
        self.last = stats
        return stats

    def _result(self, r: _Request, logprobs: bool, logits: bool) -> Result:
        if r.stats is None or r.finish_reason is None:
            raise StateError(f"request {r.index}: expected it to be finished")
        rows = np.concatenate(r.logits) if r.logits else None
        return Result(
            text="".join(r.text), ids=r.out, finish_reason=r.finish_reason, stats=r.stats,
            prompt_ids=r.ids.tolist(), rounds=r.rounds,
            logprobs=log_softmax_at(rows, r.out) if logprobs and rows is not None else None,
            logits=rows if logits else None,
        )  # fmt: skip

    # What a request is made of.

    def _prompts(self, prompt: Any) -> tuple[list[np.ndarray[Any, Any]], bool]:
        if is_single(prompt):
            return [self.encode(prompt)], True
        if isinstance(prompt, Sequence) and prompt:
            return [self.encode(p) for p in prompt], False
        raise InvalidArgumentError(
            f"prompt: expected text, ids, messages or a list of these, found {type(prompt).__name__}"
        )

    def encode(self, prompt: Any) -> np.ndarray[Any, Any]:
        """Token ids int32 [T] of text, ids or chat messages."""
        if isinstance(prompt, str):
            ids = self._need_tokenizer().encode(prompt)
            if not ids:
                raise InvalidArgumentError("prompt: expected at least one token, found none")
            return np.asarray(ids, np.int32)
        if _is_chat(prompt):
            from .chat import encode_chat

            return np.asarray(encode_chat(self._need_tokenizer(), prompt), np.int32)
        return _as_ids("prompt", prompt)

    def _need_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise StateError(
                f"{self.checkpoint.path}: expected a tokenizer in the file, found none"
            )
        return self.tokenizer

    def _limits(
        self,
        max_tokens: int,
        temperature: float,
        stop_ids: Ids,
        ignore_eos: bool,
        logits: bool,
        text_stops: bool,
    ) -> _Limits:
        if isinstance(temperature, bool) or not isinstance(
            temperature, (int, float, np.integer, np.floating)
        ):
            raise InvalidArgumentError(f"temperature: expected a number, found {temperature!r}")
        if temperature != 0.0:
            raise UnsupportedError(
                f"temperature: expected 0.0 (greedy), found {temperature!r}; sampling is not "
                "implemented"
            )
        int32("max_tokens", max_tokens)
        stops = set(_as_ids("stop_ids", stop_ids, empty=True).tolist())
        if self.tokenizer is not None and not ignore_eos:
            stops |= set(self.tokenizer.eog_ids)
        if len(stops) > MAX_STOP_IDS:
            raise InvalidArgumentError(
                f"stop_ids: expected at most {MAX_STOP_IDS}, end-of-generation ids included, "
                f"found {len(stops)}"
            )
        # Logits are the last round's, and a stop string is the host's to see: neither lets a round
        # begin before the one in front of it has been looked at.
        # Nor does a forced request, which is run alone before it begins.
        forced = self.forced is not None and self.forced.accept is not None
        ahead = 0 if logits or text_stops or forced else AHEAD
        return _Limits(max_tokens, np.asarray(sorted(stops), np.int32), logits, ahead)

    def _requests(self, prompts: list[Any], stops: tuple[str, ...]) -> list[_Request]:
        if stops:
            self._need_tokenizer()
        room = self.options["context"]
        for ids in prompts:
            if len(ids) > room:
                raise InvalidArgumentError(
                    f"prompt: expected at most {room} tokens, the engine's context, found {len(ids)}"
                )
        t = self.tokenizer
        return [
            _Request(i, ids, TextStream(t, stops) if t is not None else None)
            for i, ids in enumerate(prompts)
        ]

    # Scoring and drafting.

    def evaluate(
        self,
        ids: Ids | str,
        outputs: Sequence[str] = ("logits",),
        *,
        chunk: int | None = None,
        path: str = "decode",
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Teacher-forced pass over ids: what the model computes at every position.

        Args:
            ids: token ids [T] or text, T at most the context.
            outputs: names out of
                "logits": float32 [T, vocab];
                "layerN": float32 [T, D], the residual after layer N, from 0, D all its streams;
                "mtp_logits": float32 [T-1, vocab], of the draft head; row j has the hidden row at j
                    and the token at j+1, and predicts the one after that (drafter mtp only);
                "ple_rows": int32 [T, heads], the rows of the n-gram table that a token reads.
            chunk: tokens a native call, at most 16; matters for speed alone.
            path: "decode". ("prefill" would be the GPU's wide products; the CPU has one path.)

        Needs an idle engine.
        """
        tokens = self.encode(ids)
        n = len(tokens)
        one_of("path", path, ("decode",))
        if n > self.options["context"]:
            raise InvalidArgumentError(
                f"ids: expected at most {self.options['context']} tokens, found {n}"
            )
        if isinstance(outputs, str) or not isinstance(outputs, Iterable):
            raise InvalidArgumentError(f"outputs: expected a list of names, found {outputs!r}")
        outputs = tuple(outputs)
        if chunk is not None:
            int32("chunk", chunk)
        known = self._outputs()
        arrays: dict[int, np.ndarray[Any, Any]] = {}
        for name in outputs:
            if not isinstance(name, str) or name not in known:
                raise InvalidArgumentError(
                    f"outputs: expected {self._output_names()}, found {name!r}"
                )
            tap, width = known[name]
            arrays[tap] = np.empty((n, width), np.int32 if name == "ple_rows" else np.float32)
        with self._alone():
            self._score(tokens, chunk, arrays)
        out = {name: arrays[known[name][0]] for name in outputs}
        if "mtp_logits" in out:
            out["mtp_logits"] = out["mtp_logits"][:-1]  # the last row's next token is not known
        return out

    def _outputs(self) -> dict[str, tuple[int, int]]:
        """Name: number in the native interface and elements of a row, of what this model has."""
        c = self.config
        first = (("logits", c["vocab"]), ("mtp_logits", c["vocab"] if c["mtp"] else 0),
                 ("ple_rows", c["ple_heads"]))  # fmt: skip
        taps = {name: (i, width) for i, (name, width) in enumerate(first) if width}
        return taps | {f"layer{i}": (3 + i, c["residual"]) for i in range(c["n_layer"])}

    def _output_names(self) -> str:
        own = [name for name in self._outputs() if not name.startswith("layer")]
        return ", ".join(own) + f" or layer0 .. layer{self.config['n_layer'] - 1}"

    def _score(
        self,
        tokens: np.ndarray[Any, Any],
        chunk: int | None,
        arrays: dict[int, np.ndarray[Any, Any]],
    ) -> None:
        want = bytes(i in arrays for i in range(3 + self.config["n_layer"]))
        most = self._session.score_begin(0, want)
        try:
            step = most if chunk is None else chunk
            if not 1 <= step <= most:
                raise InvalidArgumentError(f"chunk: expected 1 .. {most}, found {chunk}")
            for at in range(0, len(tokens), step):
                piece = slice(at, min(at + step, len(tokens)))
                after = int(tokens[piece.stop]) if piece.stop < len(tokens) else -1
                rows = {i: a[piece] for i, a in arrays.items()}
                self._session.score_step(tokens[piece], after, rows)
        finally:
            self._session.score_end()

    def draft(self, ids: Ids | str, n: int | None = None) -> list[int]:
        """What the drafter proposes after ids, greedily: at most n tokens (default: its K), perhaps
        none. Where acceptance is forced, what is planted instead. Needs an idle engine."""
        most = self.drafter.proposals
        n = most if n is None else n
        if not isinstance(n, int) or not 0 <= n <= most:
            raise InvalidArgumentError(f"n: expected 0 .. {most} for {self.drafter}, found {n!r}")
        tokens = self.encode(ids)
        with self._alone():
            return self._session.draft(0, tokens, n)

    def plant(self, table: Ids, accept: Ids = (MAX_STOP_IDS,), slot: int = 0) -> None:
        """What the planted drafter proposes.

        table: token ids by absolute position from 0, for this slot; a negative entry proposes
            nothing there.
        accept: for all slots, how many of a round's proposals are left right, in turn from round
            to round of a request; its length divides 840.
        """
        int32("slot", slot)
        self._session.plant(
            slot, _as_ids("table", table, empty=True), _as_ids("accept", accept, empty=True)
        )

    # Looking.

    @property
    def plan(self) -> PlanView:
        """The plan of a round."""
        return self.plans["round"]

    @property
    def plans(self) -> dict[str, PlanView]:
        return {name: PlanView(name, *rest) for name, rest in self._session.plans().items()}

    @property
    def memory(self) -> Memory:
        """Bytes by owner. Weights that are used in place in the mapped file are listed apart."""
        return Memory(self._session.memory())

    @property
    def counters(self) -> dict[str, Any]:
        """Counters of all requests that this engine finished, added up."""
        return (
            dict(self._totals) if self._totals else _add(None, self._session.counters(0), zero=True)
        )

    @property
    def closed(self) -> bool:
        return isinstance(self._session, _Closed)

    def close(self) -> None:
        """Free everything. Idempotent; later use raises StateError."""
        if self.closed:
            return
        self._session.close()
        self._session = _Closed()
        self._close_files()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        o, name = self.options, os.path.basename(self.checkpoint.path)
        return (
            f"<Engine {name} ({self.config['architecture']}), drafter {o['drafter']}, {o['device']}, "
            f"{o['numerics']}, {o['slots']} x {o['context']} positions"
            + (f", MEASURING: {self.forced}>" if self.forced else ">")
        )


class _Closed:
    """Stands in for the session of a closed engine."""

    def __getattr__(self, name: str) -> Any:
        raise StateError("engine: expected open, found it closed")


def own_tokenizer(checkpoint: Checkpoint) -> Tokenizer | None:
    """The checkpoint's own; None where it has none."""
    if checkpoint.format == "safetensors":
        from .hf import HfTokenizer

        return HfTokenizer.from_folder(checkpoint.folder)
    metadata = checkpoint.metadata
    if metadata.get("tokenizer.ggml.model") in (None, "none", "no_vocab"):
        return None
    return Tokenizer.from_metadata(metadata, source=checkpoint.path)


def pick_device(device: str, numerics: str) -> str:
    """ "cpu" or "cuda:N". "auto" is cuda:0 where that can be used, else the CPU; f32 is the CPU's."""
    name = device if isinstance(device, str) else ""
    if name == "auto":
        return "cuda:0" if numerics == "bf16" and _usable(0) else "cpu"
    named = device_named(device, "auto, cpu or cuda:N")
    if named != "cpu":
        _native.device_need(int(named[5:]))
    return named


def _usable(index: int) -> bool:
    try:
        _native.device_need(index)
    except Error:
        return False
    return True


def is_single(prompt: object) -> bool:
    """Is it one prompt, and not a list of several?"""
    return isinstance(prompt, (str, np.ndarray)) or _is_ids(prompt) or _is_chat(prompt)


def _is_ids(prompt: object) -> bool:
    return (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, (str, bytes))
        and len(prompt) > 0
        and all(isinstance(x, (int, np.integer)) and not isinstance(x, bool) for x in prompt)
    )


def _is_chat(prompt: object) -> bool:
    return (
        isinstance(prompt, Sequence)
        and len(prompt) > 0
        and all(isinstance(x, Mapping) for x in prompt)
    )


def _as_stops(stop: str | Iterable[str]) -> tuple[str, ...]:
    if not isinstance(stop, Iterable):
        raise InvalidArgumentError(f"stop: expected strings, found {stop!r}")
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _as_ids(name: str, ids: Any, *, empty: bool = False) -> np.ndarray[Any, Any]:
    """int32 [n] from any integers; what does not fit is refused, never wrapped."""
    if isinstance(ids, (bytearray, memoryview)):
        raise InvalidArgumentError(f"{name}: expected token ids, found {type(ids).__name__}")
    try:
        a = np.asarray(ids)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgumentError(f"{name}: expected token ids, found {error}") from None
    if a.size == 0 and empty:
        return np.empty(0, np.int32)
    if a.ndim != 1 or a.size == 0 or a.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"{name}: expected a one-dimensional array of token ids, found shape {a.shape} of {a.dtype}"
        )
    if a.min() < -(2**31) or a.max() >= 2**31:
        raise InvalidArgumentError(f"{name}: expected 32-bit ids, found {a.min()} .. {a.max()}")
    return np.ascontiguousarray(a, np.int32)


def _add(total: dict[str, Any] | None, more: dict[str, Any], zero: bool = False) -> dict[str, Any]:
    out = {}
    for name, value in more.items():
        if isinstance(value, list):
            old = total[name] if total else [0] * len(value)
            out[name] = [a + (0 if zero else b) for a, b in zip(old, value, strict=True)]
        else:
            out[name] = (total[name] if total else 0) + (0 if zero else value)
    return out
