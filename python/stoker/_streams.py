"""The incremental side of decoding: text as tokens come, and stop strings in it."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from ._vocabulary import shown
from .errors import InvalidArgumentError

if TYPE_CHECKING:
    from .tokenizer import Tokenizer


class StreamDecoder:
    """Decodes ids as they come: the pushes and the final flush join to `Tokenizer.decode`.

    An incomplete UTF-8 tail of at most 3 bytes is held back until the next push decides it.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special: bool = True, continued: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._strip = tokenizer.add_space_prefix and not continued
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def pending(self) -> bytes:
        """The bytes held back."""
        return self._utf8.getstate()[0]

    def push(self, ids: Iterable[int]) -> str:
        """The text that is certain after these further ids."""
        data = self._tokenizer._join(ids, self._skip_special)
        if self._strip and data:
            data = data.removeprefix(b" ")
            self._strip = False
        return self._utf8.decode(data)

    def flush(self) -> str:
        """The text of the bytes held back, as the stream ends here."""
        return self._utf8.decode(b"", final=True)

    def copy(self) -> StreamDecoder:
        """An independent decoder in the same state."""
        other = StreamDecoder(self._tokenizer, skip_special=self._skip_special)
        other._strip = self._strip
        other._utf8.setstate(self._utf8.getstate())
        return other


class StopMatcher:
    """Searches streamed text for stop strings, holding back what may begin one.

    The match that is complete first wins, and of several that complete at the same character the
    longest: the result does not depend on how the text was cut into pushes.
    """

    def __init__(self, stop_strings: Iterable[str]) -> None:
        strings = (stop_strings,) if isinstance(stop_strings, str) else tuple(stop_strings)
        for text in strings:
            if not isinstance(text, str) or not text:
                raise InvalidArgumentError(
                    f"stop string: expected a non-empty string, found {shown(text)}"
                )
        # Longest first, so that the first to complete at a character is the one to report.
        self._patterns = [(s, _borders(s)) for s in sorted(set(strings), key=len, reverse=True)]
        self._matched = [0] * len(self._patterns)
        self._held = ""
        self.hit: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """(text that is safe to show, stop string that is complete or None).

        On a hit the text ends before the stop string, and later pushes return nothing.
        """
        if self.hit is not None or not self._patterns:
            return ("", self.hit) if self.hit is not None else (text, None)
        for position, char in enumerate(text):
            for number, (pattern, borders) in enumerate(self._patterns):
                matched = self._matched[number]
                while matched and pattern[matched] != char:
                    matched = borders[matched - 1]
                matched += pattern[matched] == char
                self._matched[number] = matched
                if matched == len(pattern):
                    seen = self._held + text[: position + 1]
                    self._held, self.hit = "", pattern
                    return seen[: -len(pattern)], pattern
        seen = self._held + text
        safe = len(seen) - max(self._matched)
        self._held = seen[safe:]
        return seen[:safe], None

    def flush(self) -> str:
        """The text held back, as the stream ends here without a stop string."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._patterns)
        return held

    def copy(self) -> StopMatcher:
        """An independent matcher in the same state."""
        other = StopMatcher(())
        other._patterns = self._patterns
        other._matched = list(self._matched)
        other._held, other.hit = self._held, self.hit
        return other


def _borders(pattern: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = borders[length - 1]
        length += pattern[index] == pattern[length]
        borders[index] = length
    return borders


class TextChunk(NamedTuple):
    """What a push made visible: text, number of ids taken, and the stop string or None."""

    text: str
    taken: int
    stop: str | None


class TextStream:
    """Decoder and stop strings together: what an engine keeps for one request.

    For C freshly proposed tokens the engine asks `count_to_stop` how many of them it may keep,
    then pushes those it committed. Asking changes nothing, so a proposal may be dropped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop_strings: Iterable[str] = (),
        *,
        skip_special: bool = True,
        continued: bool = False,
    ) -> None:
        self._decoder = StreamDecoder(tokenizer, skip_special=skip_special, continued=continued)
        self._matcher = StopMatcher(stop_strings)
        self._size = tokenizer.vocab_size

    @property
    def stop(self) -> str | None:
        """The stop string that ended the stream, or None."""
        return self._matcher.hit

    def push(self, ids: Iterable[int]) -> TextChunk:
        """Take ids up to the one whose text completes a stop string.

        `taken` counts them, that id included: all of them if there is no stop, none if
        the stream had already stopped. The text never holds any part of the stop string. Ids past
        the vocabulary, which a model with padded rows may choose, are taken and have no text.
        """
        parts: list[str] = []
        taken = 0
        for index in ids:
            if self._matcher.hit is not None:
                break
            known = (index,) if index < self._size else ()
            text, _ = self._matcher.push(self._decoder.push(known))
            parts.append(text)
            taken += 1
        return TextChunk("".join(parts), taken, self._matcher.hit)

    def count_to_stop(self, ids: Iterable[int]) -> int | None:
        """How many of `ids` reach a stop string (1 to all of them), or None; changes nothing.

        0 if the stream has stopped already.
        """
        chunk = self.copy().push(ids)
        return chunk.taken if chunk.stop is not None else None

    def flush(self) -> TextChunk:
        """End the stream: the text still held back, unless that completes a stop string."""
        text, _ = self._matcher.push(self._decoder.flush())
        return TextChunk(text + self._matcher.flush(), 0, self._matcher.hit)

    def copy(self) -> TextStream:
        """An independent stream in the same state."""
        other = object.__new__(TextStream)
        other._decoder, other._matcher = self._decoder.copy(), self._matcher.copy()
        other._size = self._size
        return other
