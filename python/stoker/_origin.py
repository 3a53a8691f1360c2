"""Text that remembers which of its characters a chat template wrote itself.

`Text` behaves as the plain string in every test that a template makes, so rendering is unchanged.
Cutting, splitting, stripping, replacing and joining keep track to the character. Other methods of
`str` return plain strings; the sandbox in `_template` makes those untrusted as a whole. A plain
`str` counts as the template's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


class Text(str):
    """A string with the ranges of characters that the template wrote; by default none."""

    trusted: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> Text:
        return self

    def __getitem__(self, key: Any) -> Text:
        if not isinstance(key, slice):
            at = range(len(self))[key]
            return self._cut(at, at + 1)
        start, stop, step = key.indices(len(self))
        if step == 1:
            return self._cut(start, max(start, stop))
        picked = Text(str.__getitem__(self, key))
        if self.is_trusted():
            picked.trusted = ((0, len(picked)),)
        return picked

    def __iter__(self) -> Iterator[str]:
        # The same object for every untrusted "e": lists of characters stay small.
        seen: dict[str, Text] = {}
        for text, trusted in runs(self):
            for char in text:
                if trusted:
                    yield char
                else:
                    if char not in seen:
                        seen[char] = Text(char)
                    yield seen[char]

    def is_trusted(self) -> bool:
        """Whether the template wrote every character."""
        return not self or self.trusted == ((0, len(self)),)

    def _cut(self, start: int, stop: int) -> Text:
        part = Text(str.__getitem__(self, slice(start, stop)))
        part.trusted = tuple(
            (max(begin, start) - start, min(end, stop) - start)
            for begin, end in self.trusted
            if max(begin, start) < min(end, stop)
        )
        return part

    def _consecutive(self, parts: Iterable[str], gap: int = 0) -> list[Text]:
        """The parts as cuts of this text, which holds them one after the other."""
        cuts = []
        at = 0
        for part in parts:
            cuts.append(self._cut(at, at + len(part)))
            at += len(part) + gap
        return cuts

    def lstrip(self, chars: str | None = None) -> Text:
        return self._cut(len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars: str | None = None) -> Text:
        return self._cut(0, len(str.rstrip(self, chars)))

    def strip(self, chars: str | None = None) -> Text:
        return self.rstrip(chars).lstrip(chars)

    def removeprefix(self, prefix: str) -> Text:
        return self._cut(len(self) - len(str.removeprefix(self, prefix)), len(self))

    def removesuffix(self, suffix: str) -> Text:
        return self._cut(0, len(str.removesuffix(self, suffix)))

    def split(self, sep: str | None = None, maxsplit: int = -1) -> list[Text]:  # type: ignore[override]
        return self._pieces(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: int = -1) -> list[Text]:  # type: ignore[override]
        return self._pieces(str.rsplit(self, sep, maxsplit), sep)

    def _pieces(self, parts: list[str], sep: str | None) -> list[Text]:
        if sep is not None:
            return self._consecutive(parts, len(sep))
        # Between the parts lies white space only, and no part has any at a cut border.
        cuts = []
        at = 0
        for part in parts:
            at = str.find(self, part, at)
            cuts.append(self._cut(at, at + len(part)))
            at += len(part)
        return cuts

    def splitlines(self, keepends: bool = False) -> list[Text]:  # type: ignore[override]
        lines = self._consecutive(str.splitlines(self, True))
        if keepends:
            return lines
        bare = str.splitlines(self)
        return [line._cut(0, len(text)) for line, text in zip(lines, bare, strict=True)]

    def partition(self, sep: str) -> tuple[Text, Text, Text]:  # type: ignore[override]
        head, mark, tail = self._consecutive(str.partition(self, sep))
        return head, mark, tail

    def rpartition(self, sep: str) -> tuple[Text, Text, Text]:  # type: ignore[override]
        head, mark, tail = self._consecutive(str.rpartition(self, sep))
        return head, mark, tail

    def join(self, parts: Iterable[str]) -> Text:
        joined: list[str] = []
        for part in parts:
            joined += (self, part) if joined else (part,)
        return concat(joined)

    def replace(self, old: str, new: str, count: int = -1) -> Text:  # type: ignore[override]
        if not old:
            cuts = [concat(()), *self, concat(())]
            if 0 <= count < len(cuts):
                cuts[count:] = [self._cut(max(count - 1, 0), len(self))]
            return tracked(new).join(cuts)
        return tracked(new).join(self.split(old, count))


def concat(parts: Iterable[str]) -> Text:
    """The parts joined, each with its origin."""
    parts = list(parts)
    ranges: list[tuple[int, int]] = []
    length = 0
    for part in parts:
        for begin, end in part.trusted if isinstance(part, Text) else ((0, len(part)),):
            if ranges and ranges[-1][1] == length + begin:
                ranges[-1] = (ranges[-1][0], length + end)
            elif begin < end:
                ranges.append((length + begin, length + end))
        length += len(part)
    text = Text("".join(parts))
    text.trusted = tuple(ranges)
    return text


def tracked(text: str) -> Text:
    """The text as `Text`: unchanged if it is, all trusted if it is the template's own."""
    return text if isinstance(text, Text) else concat((text,))


def runs(text: Text) -> Iterator[tuple[str, bool]]:
    """The text as plain (text, trusted) pieces."""
    at = 0
    for begin, end in text.trusted:
        if at < begin:
            yield str.__getitem__(text, slice(at, begin)), False
        yield str.__getitem__(text, slice(begin, end)), True
        at = end
    if at < len(text):
        yield str.__getitem__(text, slice(at, None)), False
