"""Token ids from text and back, from the tokenizer arrays of a GGUF file.

`Tokenizer.from_metadata` reads the `tokenizer.*` keys. Two kinds are built:

* ``gpt2``: byte-level BPE. The merges run in the `tokenizers` library; the expression that cuts
  text into pieces is chosen by `tokenizer.ggml.pre` from `PRE_TOKENIZERS`.
* ``llama``: SentencePiece BPE. Merges follow scores, which the library cannot express when scores
  tie, so they run here (`_SentencePieceCore`).

Control tokens never enter the tables that ordinary text is looked up in, so text cannot become a
control token by merging; the only way to one is the partition in `_Specials`, which takes part
only where the caller trusts the text. `docs/tokenizers.md` says what is refused and why.

`StreamDecoder`, `StopMatcher` and `TextStream`, the incremental side, are part of this interface.
"""

from __future__ import annotations

import hashlib
import heapq
import re
import struct
import warnings
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers

from ._streams import StopMatcher, StreamDecoder, TextChunk, TextStream
from ._vocabulary import (
    BYTE,
    BYTE_CHARS,
    CONTROL,
    EOG_TEXTS,
    EOT_TEXTS,
    ID_KEYS,
    KEY,
    NEVER_IN_UTF8,
    NORMAL,
    PRE_TOKENIZERS,
    SPACE_MARK,
    UNKNOWN,
    USER_DEFINED,
    Fields,
    PreTokenizer,
    Vocabulary,
    contribution,
    merge_parts,
    read_vocabulary,
    shown,
    spells_bytes,
)
from .errors import InvalidArgumentError

__all__ = [
    "PRE_TOKENIZERS",
    "PreTokenizer",
    "StopMatcher",
    "StreamDecoder",
    "TextChunk",
    "TextStream",
    "Tokenizer",
]

# --- encoding ordinary text ------------------------------------------------------------------


class _ByteLevelCore:
    """Byte-level BPE of text without special tokens, run by the `tokenizers` library."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        rules = vocabulary.rules
        assert rules is not None
        table = {
            text: index
            for index, (text, token_type) in enumerate(
                zip(vocabulary.tokens, vocabulary.types, strict=True)
            )
            if spells_bytes(text, token_type)
        }
        merges: dict[tuple[str, str], None] = {}
        for merge in vocabulary.merges:
            left, right = merge_parts(merge)
            if left in table and right in table and left + right in table:
                merges.setdefault((left, right))
        self.dropped_merges = len(vocabulary.merges) - len(merges)
        self.missing_bytes = frozenset(
            byte for byte, char in BYTE_CHARS.items() if char not in table
        )
        self._lost_bytes = self.missing_bytes - NEVER_IN_UTF8
        core = tokenizers.Tokenizer(
            models.BPE(vocab=table, merges=list(merges), ignore_merges=rules.ignore_merges)
        )
        splits = [
            pre_tokenizers.Split(tokenizers.Regex(expression), behavior="isolated")
            for expression in rules.passes
        ]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        core.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
        self._core = core

    def encode(self, text: str) -> list[int]:
        if self._lost_bytes and not self._lost_bytes.isdisjoint(text.encode()):
            lost = ", ".join(f"0x{b:02X}" for b in sorted(self._lost_bytes & set(text.encode())))
            warnings.warn(f"text holds bytes without a token, left out: {lost}", stacklevel=4)
        try:
            return self._core.encode(text, add_special_tokens=False).ids
        except BaseException as error:
            # The library's expression engine gives up by a Rust panic, which derives from
            # BaseException: about ten million characters of white space reach its limit.
            if type(error).__name__ != "PanicException":
                raise
            raise InvalidArgumentError(
                f"text: expected text that the pre-tokenizer can split, found {len(text)} "
                f"characters at which it stopped: {error}"
            ) from None


class _SentencePieceCore:
    """SentencePiece BPE of text without special tokens.

    Symbols start as characters; the adjacent pair whose concatenation is the token of highest
    score is merged, leftmost on ties, until no pair is a token. Only normal and user-defined
    tokens take part.
    """

    dropped_merges = 0
    missing_bytes: frozenset[int] = frozenset()

    _CACHED_LENGTH = 64

    def __init__(self, vocabulary: Vocabulary, unk_id: int | None, prefix: bool) -> None:
        self._unk_id = unk_id
        self._prefix = prefix
        self._table: dict[str, int] = {}
        self._rank: dict[str, float] = {}
        self._byte_ids: dict[int, int] = {}
        raw_bytes: dict[int, int] = {}
        # Characters that some token has directly before a space mark. No merge crosses the mark
        # after any other character, so text may be cut there, which lets pieces be cached.
        self._before_mark: set[str] = set()
        for index, (text, token_type) in enumerate(
            zip(vocabulary.tokens, vocabulary.types, strict=True)
        ):
            if token_type == BYTE:
                self._byte_ids[int(text[3:5], 16)] = index
            elif text and token_type in (NORMAL, USER_DEFINED):
                self._table[text] = index
                self._rank[text] = -vocabulary.scores[index]
                if len(text) == 1 and "\udc80" <= text <= "\udcff":
                    raw_bytes[ord(text) - 0xDC00] = index
                mark = text.find(SPACE_MARK, 1)
                while mark > 0:
                    self._before_mark.add(text[mark - 1])
                    mark = text.find(SPACE_MARK, mark + 1)
        self._byte_ids = raw_bytes | self._byte_ids
        self._cached = lru_cache(maxsize=1 << 15)(self._merge)

    def encode(self, text: str) -> list[int]:
        if self._prefix:
            text = " " + text
        text = text.replace(" ", SPACE_MARK)
        ids: list[int] = []
        start = 0
        mark = text.find(SPACE_MARK, 1)
        while mark > 0:
            if text[mark - 1] not in self._before_mark:
                ids += self._piece(text[start:mark])
                start = mark
            mark = text.find(SPACE_MARK, mark + 1)
        ids += self._piece(text[start:])
        return ids

    def _piece(self, piece: str) -> Sequence[int]:
        return self._cached(piece) if len(piece) <= self._CACHED_LENGTH else self._merge(piece)

    def _merge(self, piece: str) -> Sequence[int]:
        # Symbol i starts at character i; a merge empties the right one. A queue entry is stale
        # when its two symbols no longer cover exactly the characters they covered when queued.
        count = len(piece)
        size = [1] * count
        before = list(range(-1, count - 1))
        queue: list[tuple[float, int, int, int]] = []

        def offer(left: int, right: int) -> None:
            length = size[left] + size[right]
            rank = self._rank.get(piece[left : left + length])
            if rank is not None:
                heapq.heappush(queue, (rank, left, right, length))

        for left in range(count - 1):
            offer(left, left + 1)
        while queue:
            _, left, right, length = heapq.heappop(queue)
            if not size[left] or not size[right] or size[left] + size[right] != length:
                continue
            size[left], size[right] = length, 0
            after = left + length
            if after < count:
                before[after] = left
                offer(left, after)
            if before[left] >= 0:
                offer(before[left], left)
        ids: list[int] = []
        position = 0
        while position < count:
            end = position + size[position]
            ids += self._symbol(piece[position:end])
            position = end
        return tuple(ids)

    def _symbol(self, symbol: str) -> Sequence[int]:
        index = self._table.get(symbol)
        if index is not None:
            return (index,)
        data = symbol.encode()
        if self._byte_ids.keys() >= set(data):
            return [self._byte_ids[byte] for byte in data]
        if self._unk_id is None:
            raise InvalidArgumentError(
                f"text: expected characters that the vocabulary covers, found {shown(symbol)} "
                "and neither byte tokens nor an unknown token"
            )
        return (self._unk_id,)


class _Specials:
    """Finds special tokens in text: from the left, the longest at each place.

    User-defined tokens count everywhere, control and unknown tokens only where the text is
    trusted from the first to the last of their characters.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._found: dict[str, tuple[int, bool]] = {}
        lengths: dict[str, set[int]] = {}
        for index, (text, token_type) in enumerate(
            zip(vocabulary.tokens, vocabulary.types, strict=True)
        ):
            if text and token_type in (UNKNOWN, CONTROL, USER_DEFINED):
                self._found[text] = (index, token_type == USER_DEFINED)
                lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(sizes, reverse=True) for first, sizes in lengths.items()}
        firsts = "".join(map(re.escape, sorted(lengths)))
        self._first = re.compile(f"[{firsts}]") if firsts else None

    def split(self, text: str, trusted: Sequence[tuple[int, int]]) -> Iterator[str | int]:
        """Yield stretches of ordinary text and special ids. `trusted` holds disjoint, sorted
        (start, end) ranges that do not touch."""
        start = position = 0
        starts = [begin for begin, _ in trusted]
        while self._first is not None and (match := self._first.search(text, position)):
            at = match.start()
            position = at + 1
            for length in self._lengths[text[at]]:
                word = text[at : at + length]
                index, everywhere = self._found.get(word, (-1, False))
                if index < 0:
                    continue
                end = at + len(word)
                span = bisect_right(starts, at) - 1
                if everywhere or (span >= 0 and end <= trusted[span][1]):
                    if start < at:
                        yield text[start:at]
                    yield index
                    start = position = end
                    break
        if start < len(text):
            yield text[start:]


# --- the tokenizer ---------------------------------------------------------------------------


class Tokenizer:
    """Token ids from text and back. Immutable; encoding and decoding are safe from any thread.

    Attributes:
        kind: ``"gpt2"`` or ``"llama"``.
        pre: value of `tokenizer.ggml.pre` (``"default"`` when missing; unused by ``llama``).
        vocab_size: number of token ids.
        bos_id, eos_id, eot_id, eom_id, unk_id, sep_id, pad_id, cls_id, mask_id, fim_pre_id,
            fim_suf_id, fim_mid_id, fim_pad_id, fim_rep_id, fim_sep_id: id or None.
        eog_ids: ids after which generation ends.
        special_ids: control and unknown tokens.
        retyped_ids: tokens that the file calls ordinary although their text ends generation;
            they are treated as control tokens.
        add_bos, add_eos: what `encode` adds with `add_special`.
        add_space_prefix: ``llama`` only: a space is put before text at the start and after
            special tokens, and removed again from the start of decoded text.
        suppress_tokens: ids that must never be sampled.
        chat_template, chat_templates: default Jinja source or None; further ones by name.
        dropped_merges: merges of the file that can never apply, or repeat an earlier one.
        missing_bytes: byte-level kind: bytes that no token can express.
    """

    bos_id: int | None
    eos_id: int | None
    eot_id: int | None
    eom_id: int | None
    unk_id: int | None
    sep_id: int | None
    pad_id: int | None
    cls_id: int | None
    mask_id: int | None
    fim_pre_id: int | None
    fim_suf_id: int | None
    fim_mid_id: int | None
    fim_pad_id: int | None
    fim_rep_id: int | None
    fim_sep_id: int | None

    def __init__(self, fields: Fields) -> None:
        vocabulary = self._vocabulary = read_vocabulary(fields)
        self.kind, self.pre = vocabulary.kind, vocabulary.pre
        self.vocab_size = count = len(vocabulary.tokens)
        by_text = {text: index for index, text in enumerate(vocabulary.tokens) if text}

        for name, keys in ID_KEYS.items():
            key = next((k for k in (f"{KEY}{key}_token_id" for key in keys) if fields.has(k)), "")
            setattr(self, f"{name}_id", fields.token_id(key, count) if key else None)
        if self.kind == "llama":
            # SentencePiece reserves ids 0 to 2 in this order; believed only if the types agree.
            for name, index, wanted in (
                ("unk", 0, UNKNOWN), ("bos", 1, CONTROL), ("eos", 2, CONTROL),
            ):  # fmt: skip
                present = index < count and vocabulary.types[index] == wanted
                if getattr(self, f"{name}_id") is None and present:
                    setattr(self, f"{name}_id", index)
        if self.eot_id is None:
            self.eot_id = next((by_text[text] for text in EOT_TEXTS if text in by_text), None)
        self.eog_ids = self._find_eog(by_text)

        # A token that ends generation must not be typed by a user. Some converters leave such
        # tokens "normal" or "user-defined"; merge results are left alone, they are plain words.
        ordinary = {
            text: index
            for text, index in by_text.items()
            if text in EOG_TEXTS and vocabulary.types[index] in (NORMAL, USER_DEFINED)
        }
        if ordinary:
            merged = {"".join(merge_parts(merge)) for merge in vocabulary.merges}
            ordinary = {text: index for text, index in ordinary.items() if text not in merged}
        self.retyped_ids = tuple(ordinary.values())
        for index in self.retyped_ids:
            vocabulary.types[index] = CONTROL
        self.special_ids = frozenset(
            index for index, kind in enumerate(vocabulary.types) if kind in (UNKNOWN, CONTROL)
        )

        rules = vocabulary.rules
        default_bos = rules.add_bos if rules is not None else True
        self.add_bos = fields.boolean(KEY + "add_bos_token", default_bos)
        self.add_eos = fields.boolean(KEY + "add_eos_token", False)
        for name in ("bos", "eos"):
            if getattr(self, f"add_{name}") and getattr(self, f"{name}_id") is None:
                raise fields.error(
                    f"{KEY}{name}_token_id", f"an id, as add_{name}_token is on", "nothing"
                )
        prefix = fields.boolean(KEY + "add_space_prefix", True)
        self.add_space_prefix = prefix and self.kind == "llama"

        suppress: list[int] = []
        if fields.has(KEY + "suppress_tokens"):
            suppress = fields.array(KEY + "suppress_tokens", "integer")
        for position, index in enumerate(suppress):
            if not 0 <= index < count:
                raise fields.error(
                    f"{KEY}suppress_tokens[{position}]", f"an id below {count}", shown(index)
                )
        self.suppress_tokens = tuple(map(int, suppress))

        self.chat_template: str | None = None
        if fields.has("tokenizer.chat_template"):
            self.chat_template = fields.string("tokenizer.chat_template")
        self.chat_templates = fields.strings_below("tokenizer.chat_template.")

        self._bytes = [
            contribution(self.kind, text, token_type)
            for text, token_type in zip(vocabulary.tokens, vocabulary.types, strict=True)
        ]
        self._specials = _Specials(vocabulary)
        self._core: _ByteLevelCore | _SentencePieceCore
        if self.kind == "gpt2":
            self._core = _ByteLevelCore(vocabulary)
        else:
            self._core = _SentencePieceCore(vocabulary, self.unk_id, self.add_space_prefix)
        self.dropped_merges = self._core.dropped_merges
        self.missing_bytes = self._core.missing_bytes

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object], *, source: str = "") -> Tokenizer:
        """Build from GGUF keys. `source` (a file name) starts the text of every error.

        Raises:
            FormatError: a key is missing, or its type, length or content is wrong.
            UnsupportedError: the algorithm or pre-tokenizer is not one that is reproduced here.
        """
        return cls(Fields(metadata, source))

    def _find_eog(self, by_text: Mapping[str, int]) -> frozenset[int]:
        named = (
            self.eos_id, self.eot_id, self.eom_id, self.fim_pad_id, self.fim_rep_id,
            self.fim_sep_id,
        )  # fmt: skip
        ids = {index for index in named if index is not None}
        ids |= {by_text[text] for text in EOG_TEXTS if text in by_text}
        # Two families close every message with a token listed above and the turn with another.
        for pair in ({"<|return|>", "<|call|>"}, {"<|calls|>", "<|flush|>"}):
            if pair <= by_text.keys():
                ids.discard(by_text.get("<|end|>", -1))
        if "<|tool_response>" in by_text:
            ids.discard(by_text.get("</s>", -1))
        return frozenset(ids)

    def __repr__(self) -> str:
        pre = f", pre={self.pre!r}" if self.kind == "gpt2" else ""
        return (
            f"<Tokenizer {self.kind}{pre}, {self.vocab_size} tokens, "
            f"{len(self.special_ids)} special, fingerprint {self.fingerprint[:12]}>"
        )

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over everything that decides ids, bytes and ends of generation."""
        vocabulary = self._vocabulary
        digest = hashlib.sha256(f"{self.kind}\n{vocabulary.rules!r}\n".encode())
        for texts in (vocabulary.tokens, vocabulary.merges):
            parts = [text.encode("utf-8", "surrogatepass") for text in texts]
            digest.update(struct.pack("<Q", len(parts)))
            digest.update(np.array([len(part) for part in parts], "<u8").tobytes())
            digest.update(b"".join(parts))
        digest.update(bytes(vocabulary.types))
        digest.update(np.array(vocabulary.scores, "<f8").tobytes())
        digest.update(repr([getattr(self, f"{name}_id") for name in ID_KEYS]).encode())
        digest.update(repr((self.add_bos, self.add_eos, self.add_space_prefix)).encode())
        digest.update(repr((sorted(self.eog_ids), self.suppress_tokens)).encode())
        return digest.hexdigest()

    @cached_property
    def vocab_fingerprint(self) -> str:
        """SHA-256 (hex) over the bytes of every id, the special and the generation-ending ids.

        Equal for a drafter and a target whose ids mean the same, even if they split text
        differently.
        """
        digest = hashlib.sha256(np.array([len(b) for b in self._bytes], "<u8").tobytes())
        digest.update(b"".join(self._bytes))
        digest.update(array("q", sorted(self.special_ids)).tobytes())
        digest.update(repr(sorted(self.eog_ids)).encode())
        return digest.hexdigest()

    # Text to ids.

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Token ids of `text`.

        `add_special` adds BOS and EOS where the file asks for them; a BOS that the text already
        starts with is not doubled. Without `parse_special`, text that spells a control token
        stays text; user-defined tokens are found either way.

        Raises:
            InvalidArgumentError: not a string, or one with lone surrogates.
        """
        return self.encode_pieces([(text, parse_special)], add_special=add_special)

    def encode_pieces(
        self, pieces: Iterable[tuple[str, bool]], *, add_special: bool = True
    ) -> list[int]:
        """Token ids of the concatenation of (text, trusted) pieces.

        A control token is recognised only where every character of its text is trusted. Piece
        borders are otherwise invisible: ordinary text is split and merged across them, so ids
        equal those of `encode` on the joined text if no untrusted piece spells a control token.
        """
        texts: list[str] = []
        trusted: list[tuple[int, int]] = []
        length = 0
        for text, trust in pieces:
            if not isinstance(text, str):
                raise InvalidArgumentError(f"text: expected a string, found {shown(text)}")
            if trust and text:
                begin = trusted.pop()[0] if trusted and trusted[-1][1] == length else length
                trusted.append((begin, length + len(text)))
            texts.append(text)
            length += len(text)
        text = "".join(texts)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(
                f"text: expected Unicode characters, found the lone surrogate "
                f"U+{ord(text[error.start]):04X} at index {error.start}"
            ) from None
        ids: list[int] = []
        for part in self._specials.split(text, trusted):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._core.encode(part)
        if add_special:
            if self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
                ids.insert(0, self.bos_id)
            if self.add_eos and self.eos_id is not None:
                ids.append(self.eos_id)
        return ids

    def control_texts_in(self, text: str) -> list[str]:
        """The control tokens that `text` would produce if it were trusted."""
        parts = self._specials.split(text, [(0, len(text))])
        return [
            self.token_text(part)
            for part in parts
            if isinstance(part, int) and part in self.special_ids
        ]

    # Ids to text.

    @cached_property
    def _shown_bytes(self) -> list[bytes]:
        """Like `_bytes`, with control and unknown tokens as their literal text."""
        table = list(self._bytes)
        for index in self.special_ids:
            table[index] = self._vocabulary.tokens[index].encode("utf-8", "surrogateescape")
        return table

    def _join(self, ids: Iterable[int], skip_special: bool) -> bytes:
        table = self._bytes if skip_special else self._shown_bytes
        parts = []
        for index in ids:
            self._check_id(index)
            parts.append(table[index])
        return b"".join(parts)

    def _check_id(self, index: int) -> None:
        if not isinstance(index, (int, np.integer)) or not 0 <= index < self.vocab_size:
            raise InvalidArgumentError(
                f"token id: expected an integer from 0 to {self.vocab_size - 1}, "
                f"found {shown(index)}"
            )

    def decode(
        self, ids: Iterable[int], *, skip_special: bool = True, continued: bool = False
    ) -> str:
        """Text of `ids`; bytes that are not UTF-8 become U+FFFD.

        Control and unknown tokens are left out unless `skip_special` is false. `continued` says
        that the ids follow others, so the space that ``llama`` tokenizers put before a text is
        not removed.
        """
        data = self._join(ids, skip_special)
        if self.add_space_prefix and not continued:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def token_bytes(self, index: int) -> bytes:
        """The exact bytes that a token contributes to text: none for control tokens."""
        self._check_id(index)
        return self._bytes[index]

    def token_text(self, index: int) -> str:
        """The text of a token as the file spells it."""
        self._check_id(index)
        return self._vocabulary.tokens[index]
