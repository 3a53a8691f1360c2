"""Tokenizers of Hugging Face folders: `tokenizer.json` through the `tokenizers` library, with the
interface and the guarantees of `stoker.Tokenizer`.

The library splits and merges ordinary text. What it does with special tokens is done here instead:
its own list of added tokens and its post-processor are taken out, so that text becomes a control
token only where the caller trusts it, and BOS is added where `add_special` asks for it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from ._vocabulary import (
    BYTE,
    CONTROL,
    EOT_TEXTS,
    ID_KEYS,
    NORMAL,
    SPACE_MARK,
    UNDEFINED,
    USER_DEFINED,
    Vocabulary,
    contribution,
    shown,
)
from .errors import FormatError, ReadError, UnsupportedError
from .tokenizer import Tokenizer, _Specials

__all__ = ["HfTokenizer"]

_MAX_BYTES = 1 << 28


def read_json(path: Path) -> Any:
    """The value in a JSON file; None when there is no such file.

    Raises:
        FormatError: it is no JSON, or larger than 256 MiB.
        ReadError: it cannot be read.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise FormatError(f"{path}: expected at most {_MAX_BYTES} bytes, found more")
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ReadError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: expected JSON, found {shown(str(error))}") from None


def _types_in(node: Any) -> set[str]:
    """The "type" of a stage of the pipeline and of all stages inside it."""
    found: set[str] = set()
    stack = [node]
    while stack:
        item = stack.pop()
        if isinstance(item, Mapping):
            if isinstance(item.get("type"), str):
                found.add(item["type"])
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    return found


def _stages(node: Any, kind: str) -> list[dict[str, Any]]:
    out, stack = [], [node]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            if item.get("type") == kind:
                out.append(item)
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    return out


class _Core:
    """The library's pipeline without special tokens."""

    dropped_merges = 0
    missing_bytes: frozenset[int] = frozenset()

    def __init__(self, text: str) -> None:
        self._core = tokenizers.Tokenizer.from_str(text)

    def encode(self, text: str) -> list[int]:
        return self._core.encode(text, add_special_tokens=False).ids


class HfTokenizer(Tokenizer):
    """`Tokenizer` over a `tokenizer.json`. Made by `from_file` or `from_folder`.

    `kind` is ``"gpt2"`` for byte-level tokenizers and ``"llama"`` for those that spell spaces as
    U+2581; `pre` is ``"tokenizer.json"``.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        spec = read_json(self._path)
        if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict):
            raise self._error("a tokenizer with a model", shown(spec))
        self._digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
        folder = self._path.parent
        settings = self._mapping(folder / "tokenizer_config.json")
        generation = self._mapping(folder / "generation_config.json")
        config = self._mapping(folder / "config.json")
        self.kind, self.pre = self._find_kind(spec), "tokenizer.json"
        try:
            whole = tokenizers.Tokenizer.from_str(json.dumps(spec))
        except Exception as error:
            raise self._error("a tokenizer that the library builds", str(error)) from None

        tokens, types = self._read_tokens(spec, whole)
        self.vocab_size = len(tokens)
        self._vocabulary = Vocabulary(self.kind, self.pre, None, tokens, types, [], [])
        by_text = {text: index for index, text in enumerate(tokens) if text}
        self._find_ids(by_text, settings, generation, config)
        for index in self.eog_ids:  # what ends generation must not be typed by a user
            if types[index] == USER_DEFINED:
                types[index] = CONTROL
        self.retyped_ids = ()
        self.special_ids = frozenset(i for i, kind in enumerate(types) if kind == CONTROL)
        self._find_additions(whole, settings)
        self._find_prefix(spec)
        self.suppress_tokens = ()
        self._find_templates(folder, settings)

        self._bytes = [
            contribution(self.kind, text, kind) for text, kind in zip(tokens, types, strict=True)
        ]
        self._specials = _Specials(self._vocabulary)
        self._core = _Core(json.dumps(self._without_specials(spec)))  # type: ignore[assignment]
        self.dropped_merges = 0
        self.missing_bytes = frozenset()

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> HfTokenizer:
        """From a `tokenizer.json`, with the settings beside it: `tokenizer_config.json`,
        `generation_config.json`, `config.json`, `chat_template.jinja`, as far as they are there.

        Raises:
            FormatError: a file is not what its name says.
            ReadError: it cannot be read.
            UnsupportedError: neither byte-level nor with spaces as U+2581.
        """
        if not os.path.exists(path):
            raise ReadError(f"{os.fspath(path)}: expected a tokenizer.json, found no such file")
        return cls(path)

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str]) -> HfTokenizer | None:
        """From the `tokenizer.json` of a folder; None when it has none."""
        path = Path(folder) / "tokenizer.json"
        return cls.from_file(path) if path.exists() else None

    # Reading.

    def _error(self, expected: str, found: str) -> FormatError:
        return FormatError(f"{self._path}: expected {expected}, found {found}")

    def _mapping(self, path: Path) -> dict[str, Any]:
        value = read_json(path)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise FormatError(f"{path}: expected an object, found {shown(value)}")
        return value

    def _find_kind(self, spec: dict[str, Any]) -> str:
        stages = _types_in(spec.get("decoder")) | _types_in(spec.get("pre_tokenizer"))
        if "ByteLevel" in stages:
            return "gpt2"
        marked = json.dumps(spec.get("normalizer")) + json.dumps(spec.get("decoder"))
        if "Metaspace" in stages or json.dumps(SPACE_MARK)[1:-1] in marked:
            return "llama"
        raise UnsupportedError(
            f"{self._path}: expected a byte-level tokenizer or one with spaces as U+2581, found "
            f"stages {', '.join(sorted(stages)) or 'none'}"
        )

    def _read_tokens(self, spec: Any, whole: tokenizers.Tokenizer) -> tuple[list[str], list[int]]:
        vocab = whole.get_vocab(with_added_tokens=True)
        count = max(vocab.values(), default=-1) + 1
        if not 0 < count <= 1 << 24:
            raise self._error("ids from 0 to 2^24", f"{count} of them")
        tokens, types = [""] * count, [UNDEFINED] * count
        for text, index in vocab.items():
            tokens[index], types[index] = text, NORMAL
        fallback = spec["model"].get("byte_fallback") is True
        for byte in range(256):
            index = vocab.get(f"<0x{byte:02X}>", -1)
            if fallback and index >= 0:
                types[index] = BYTE
        for added in spec.get("added_tokens") or []:
            index = vocab[added["content"]]
            types[index] = CONTROL if added.get("special") else USER_DEFINED
        return tokens, types

    def _find_ids(
        self,
        by_text: Mapping[str, int],
        settings: Mapping[str, Any],
        generation: Mapping[str, Any],
        config: Mapping[str, Any],
    ) -> None:
        for name in ID_KEYS:
            token = settings.get(f"{name}_token")
            text = token.get("content") if isinstance(token, dict) else token
            index = by_text.get(text) if isinstance(text, str) else None
            setattr(self, f"{name}_id", index)
        ends: list[int] = []
        for source in (generation, config):
            for name in ("bos", "eos", "pad"):
                value = source.get(f"{name}_token_id")
                ids = value if isinstance(value, list) else [] if value is None else [value]
                for index in ids:
                    if type(index) is not int or not 0 <= index < self.vocab_size:
                        raise self._error(
                            f"{name}_token_id below {self.vocab_size} beside it", shown(index)
                        )
                if ids and getattr(self, f"{name}_id") is None:
                    setattr(self, f"{name}_id", ids[0])
                if name == "eos" and not ends:
                    ends = ids
        self.eot_id = next((by_text[text] for text in EOT_TEXTS if text in by_text), None)
        self.eog_ids = self._find_eog(by_text) | frozenset(ends)

    def _find_additions(self, whole: tokenizers.Tokenizer, settings: Mapping[str, Any]) -> None:
        plain = whole.encode("a", add_special_tokens=False).ids
        full = whole.encode("a", add_special_tokens=True).ids
        begins = full[:1] == [self.bos_id] and full[:1] != plain[:1]
        ends = full[-1:] == [self.eos_id] and full[-1:] != plain[-1:]
        for name, found in (("bos", begins), ("eos", ends)):
            said = settings.get(f"add_{name}_token")
            wanted = found or said is True if said is not False else False
            setattr(self, f"add_{name}", wanted and getattr(self, f"{name}_id") is not None)

    def _find_prefix(self, spec: dict[str, Any]) -> None:
        """Whether a space goes before the text, or before every stretch of it."""
        self._prefix_first = False
        self.add_space_prefix = False
        if self.kind != "llama":
            return
        if any(s.get("prepend") == SPACE_MARK for s in _stages(spec.get("normalizer"), "Prepend")):
            self.add_space_prefix = True
        for stage in _stages(spec.get("pre_tokenizer"), "Metaspace"):
            scheme = stage.get("prepend_scheme", "always")
            self.add_space_prefix |= scheme != "never"
            if scheme == "first":  # the library would see every stretch as the first one
                stage["prepend_scheme"] = "never"
                self._prefix_first = True

    def _find_templates(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.chat_template, self.chat_templates = None, {}
        value = settings.get("chat_template")
        if isinstance(value, str):
            self.chat_template = value
        elif isinstance(value, list):
            named = {
                t["name"]: t["template"]
                for t in value
                if isinstance(t, dict)
                and isinstance(t.get("name"), str)
                and isinstance(t.get("template"), str)
            }
            self.chat_template = named.pop("default", None)
            self.chat_templates = named
        path = folder / "chat_template.jinja"
        if path.exists():
            try:
                self.chat_template = path.read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise FormatError(
                    f"{path}: expected UTF-8 text, found {shown(str(error))}"
                ) from None

    def _without_specials(self, spec: dict[str, Any]) -> dict[str, Any]:
        spec = {**spec, "added_tokens": [], "post_processor": None, "truncation": None,
                "padding": None, "model": dict(spec["model"])}  # fmt: skip
        model = spec["model"]
        keep = {model.get("unk_token")}
        control = {self._vocabulary.tokens[i] for i in self.special_ids} - keep
        if isinstance(model.get("vocab"), dict):
            merged = {
                part
                for merge in model.get("merges") or []
                for part in (merge if isinstance(merge, list) else merge.split(" "))
            }
            model["vocab"] = {t: i for t, i in model["vocab"].items() if t not in control - merged}
        return spec

    # What differs.

    def encode_pieces(
        self, pieces: Iterable[tuple[str, bool]], *, add_special: bool = True
    ) -> list[int]:
        pieces = list(pieces)
        first = next((p for p in pieces if p[0]), None)
        if self._prefix_first and first is not None and isinstance(first[0], str):
            text, trusted = first
            part = next(self._specials.split(text, [(0, len(text))] if trusted else []), "")
            if isinstance(part, str) and not part.startswith((" ", SPACE_MARK)):
                pieces.insert(0, (" ", False))
        return super().encode_pieces(pieces, add_special=add_special)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over everything that decides ids, bytes and ends of generation."""
        parts = [self._digest, [getattr(self, f"{name}_id") for name in ID_KEYS], self.add_bos,
                 self.add_eos, self.add_space_prefix, sorted(self.eog_ids)]  # fmt: skip
        return hashlib.sha256(repr(parts).encode()).hexdigest()
