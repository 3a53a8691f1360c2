"""Flash-Next models whose draft head is often right, and sessions driven row by row.

Random weights agree with nothing, so here the blocks say little beside the embedding: the token alone
nearly decides what comes next, for the target as for its draft head, and drafts are accepted 0 to all
times in a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import flash_gguf
import numpy as np
import stoker
from flash_next import FlashNext
from flash_tools import GEOMETRIES, Geometry, config, weights, write_hf
from stoker.engine import Engine
from tolerances import from_bf16, to_bf16

NONE = np.empty(0, np.int32)
QUIET = ("o_proj", "out_proj", "down_proj", "value_proj")  # what a block adds to the streams
EVERY_SIZE = ("Q4_K", "Q8_0", "Q6_K", "IQ4_XS", "Q5_1", "BF16")


def agreeing(g: Geometry, loud: float = 0.35, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights, of values that BF16 can hold, of which the draft head often repeats the target."""
    w = dict(weights(g, seed))
    for name in w:
        if any(x in name for x in QUIET):
            w[name] = w[name] * np.float32(loud)
    if g.mtp:
        w["mtp.fc_embedding.weight"] = np.eye(g.dim, dtype=np.float32)
        w["mtp.fc_hidden.weight"] = w["mtp.fc_hidden.weight"] * np.float32(loud / 2)
        w["mtp.pre_fc_norm_embedding.weight"] = np.zeros(g.dim, np.float32)
        for name in [n for n in w if n.startswith("model.hyper_connection_mixer")]:
            w["mtp." + name.removeprefix("model.")] = w[name]
    return {k: from_bf16(to_bf16(x)) if x.dtype == np.float32 else x for k, x in w.items()}


def engine(path: Path, drafter: Any = "none", **options: Any) -> Engine:
    defaults = {"device": "cpu", "context": 128, "prefill_chunk": 16, "threads": 1}
    return Engine(path, drafter, **(defaults | options))


def same(a: stoker.Result, b: stoker.Result) -> None:
    assert a.ids == b.ids
    assert a.logits.tobytes() == b.logits.tobytes()


def relative(found: np.ndarray, want: np.ndarray) -> float:
    """Largest error relative to each row's largest magnitude."""
    return float((np.abs(found - want).max(-1) / np.abs(want).max(-1)).max())


# A session by hand.


def begin(e: Engine, ids: Sequence[int], n: int = 1, slot: int = 0, keep: bool = False) -> None:
    """A request of at most n tokens, its prompt run through."""
    e._session.start(slot, np.array(ids, np.int32), (n, NONE), keep)
    while e._session.prefill(slot, 1):
        pass


def finish(e: Engine, licence: int = -1, slot: int = 0) -> bytes:
    e._session.finish(slot, licence)
    return e._session.save(slot)


def prefilled(e: Engine, ids: Sequence[int], slot: int = 0) -> bytes:
    """The state after a prompt."""
    begin(e, ids, slot=slot)
    return finish(e, slot=slot)


def run(e: Engine, n: int, slot: int = 0) -> tuple[list[int], bytes]:
    """Rounds until n tokens: these and their logits. Other slots wait."""
    s = e._session
    wait = [(-2, False)] * e.options["slots"]
    wait[slot] = (-1, False)
    ids: list[int] = []
    logits = []
    while len(ids) < n:
        _, first, _, tokens, _, _, end = s.round(wait)[slot]
        ids += tokens
        logits.append(s.logits(first, len(tokens)).tobytes())
    assert end
    return ids, b"".join(logits)


def one_by_one(
    e: Engine, prompt: Sequence[int], n: int
) -> tuple[list[int], bytes, dict[int, bytes]]:
    """Every token a request of one token: rounds of one row, none of which has a draft to verify.
    Tokens, logits, and the state at every length."""
    blobs = {len(prompt) - 1: prefilled(e, prompt)}
    ids: list[int] = []
    logits = b""
    for _ in range(n):
        begin(e, [], keep=True)
        token, row = run(e, 1)
        ids += token
        logits += row
        blobs[len(prompt) - 1 + len(ids)] = finish(e)
    return ids, logits, blobs


# Models, and what they say one row at a time.


@dataclass
class Story:
    prompt: list[int]
    ids: list[int] = field(default_factory=list)
    logits: bytes = field(default=b"", repr=False)
    plain: dict[int, bytes] = field(default_factory=dict, repr=False)  # states by length
    mtp: dict[int, bytes] = field(default_factory=dict, repr=False)  # with the draft head's

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.ids


@dataclass
class Case:
    path: Path
    g: Geometry
    numerics: str
    stories: list[Story]
    oracle: FlashNext
    device: str = "cpu"

    def engine(self, drafter: Any = "none", **options: Any) -> Engine:
        defaults = {"numerics": self.numerics, "device": self.device}
        return engine(self.path, drafter, **(defaults | options))


# The end of text, a prompt's seed and a first token: both stories come upon that end themselves.
MODELS = {"tiny": (26, 4, 3), "odd": (111, 0, 8), "long_grams": (167, 14, 4), "wide": (105, 0, 2)}
N_STORY = 40


def write_agreeing(
    folder: Path, name: str, types: flash_gguf.Types = EVERY_SIZE, **other: Any
) -> tuple[Path, Geometry, FlashNext]:
    """`wide` as a file of these types, the others as folders."""
    g = replace(GEOMETRIES[name], **({"eos": MODELS[name][0]} | other))
    w = agreeing(g)
    if name != "wide":
        return write_hf(folder / name, g, w), g, FlashNext(config(g), w)
    path = folder / f"{name}.gguf"
    held = flash_gguf.write_gguf(path, config(g), w, types=types)
    return path, g, FlashNext(config(g), held)


def prompt_of(g: Geometry, seed: int, n: int = 21) -> list[int]:
    ids = np.random.default_rng(seed).integers(0, g.vocab, n)
    ids[[4, 5, 12]] = g.eos
    return ids.tolist()


def make_case(
    folder: Path, name: str, numerics: str, device: str = "cpu",
    prompts: tuple[int, int] | None = None, ends: bool = True, **other: Any,
) -> Case:  # fmt: skip
    """`prompts`: a seed and a first token other than those of MODELS. `ends`: the stories say the end
    of text."""
    path, g, oracle = write_agreeing(folder, name, **other)
    seed, first = prompts or MODELS[name][1:]
    c = Case(path, g, numerics, [Story(prompt_of(g, seed)), Story([first])], oracle, device)
    for story in c.stories:
        with c.engine() as e:
            story.ids, story.logits, story.plain = one_by_one(e, story.prompt, N_STORY)
        with c.engine("mtp:1") as e:
            ids, logits, story.mtp = one_by_one(e, story.prompt, N_STORY)
        assert (ids, logits) == (story.ids, story.logits)
        assert numerics != "bf16" or not ends or g.eos in ids[2:-5]
    return c
