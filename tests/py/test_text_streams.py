"""Incremental decoding and stop strings: equal to the whole-text answer for every split."""

from __future__ import annotations

import functools
import itertools
import json
import lzma
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import InvalidArgumentError
from stoker.tokenizer import StopMatcher, StreamDecoder, TextStream, Tokenizer

DATA = Path(__file__).resolve().parent.parent / "data" / "vocab"

# Starts, middles and ends of characters, and bytes that no UTF-8 text has.
AWKWARD_BYTES = (
    0x20, 0x41, 0x80, 0x82, 0x90, 0x9F, 0xA0, 0xA9, 0xAC, 0xBF, 0xC3, 0xE2, 0xED, 0xF0, 0xF4, 0xFF,
)  # fmt: skip


@functools.cache
def packed(name: str) -> Tokenizer:
    data = json.loads(lzma.decompress((DATA / f"{name}.json.xz").read_bytes()))
    return Tokenizer.from_metadata(data["metadata"])


@functools.cache
def byte_ids(tokenizer: Tokenizer) -> dict[int, int]:
    """Byte -> id of a token of that one byte."""
    contents = [tokenizer.token_bytes(index) for index in range(1000)]
    return {data[0]: index for index, data in enumerate(contents) if len(data) == 1}


def parts_of(draw, items: list) -> list[list]:
    cuts = draw(st.lists(st.integers(0, len(items)), max_size=6))
    borders = [0, *sorted(cuts), len(items)]
    return [items[a:b] for a, b in itertools.pairwise(borders)]


@settings(deadline=None, max_examples=400)
@given(st.data())
def test_stream_equals_decode_for_every_split(data):
    tokenizer = data.draw(st.sampled_from([packed("gpt-2"), packed("llama-spm")]))
    of_bytes = st.sampled_from(AWKWARD_BYTES).map(byte_ids(tokenizer).__getitem__)
    of_ids = st.integers(0, tokenizer.vocab_size - 1)
    specials = st.sampled_from(sorted(tokenizer.special_ids))
    ids = data.draw(st.lists(of_bytes | of_ids | specials, max_size=30))
    skip, continued = data.draw(st.booleans()), data.draw(st.booleans())
    decoder = StreamDecoder(tokenizer, skip_special=skip, continued=continued)
    text = ""
    for part in parts_of(data.draw, ids):
        decoder = decoder.copy()
        text += decoder.push(part)
        assert len(decoder.pending) <= 3
    text += decoder.flush()
    assert text == tokenizer.decode(ids, skip_special=skip, continued=continued)
    # Bytes are what it all rests on.
    raw = b"".join(map(tokenizer.token_bytes, ids))
    if skip and (continued or tokenizer.kind == "gpt2"):
        assert text == raw.decode("utf-8", "replace")


def first_stop_oracle(text: str, stops: list[str]) -> tuple[int, str] | None:
    """(start, stop): of all occurrences the one that ends first, then the longest."""
    found = [
        (at + len(stop), -len(stop), at, stop)
        for stop in stops
        for at in range(len(text))
        if text.startswith(stop, at)
    ]
    return min(found)[2:] if found else None


@settings(deadline=None, max_examples=500)
@given(
    data=st.data(),
    text=st.text("ab", max_size=40),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), max_size=4),
)
def test_stop_matcher_equals_search_for_every_split(data, text, stops):
    matcher = StopMatcher(stops)
    shown, hit = "", None
    for part in parts_of(data.draw, list(text)):
        matcher = matcher.copy()
        emitted, hit = matcher.push("".join(part))
        shown += emitted
        # Nothing is shown that may still become part of a stop string.
        if hit is None:
            longest = max(map(len, stops), default=1)
            assert len(matcher.copy().flush()) < longest
    expected = first_stop_oracle(text, stops)
    if expected is None:
        assert hit is None
        assert shown + matcher.flush() == text
    else:
        assert (len(shown), hit) == expected
        assert shown == text[: expected[0]]
        assert matcher.push("more") == ("", hit)
        assert matcher.flush() == ""


def test_stop_matcher_holds_back_and_releases():
    matcher = StopMatcher(["</tool>", "STOP"])
    assert matcher.push("abc</to") == ("abc", None)
    assert matcher.push("ol ") == ("</tool ", None)
    assert matcher.push("S") == ("", None)
    assert matcher.push("TOP!") == ("", "STOP")
    assert StopMatcher("single").push("a single") == ("a ", "single")
    assert StopMatcher([]).push("text") == ("text", None)
    assert StopMatcher(["aab"]).push("aaab") == ("a", "aab")


@pytest.mark.parametrize("bad", [[""], [5], [None], ["a", b"b"]])
def test_bad_stop_strings(bad):
    with pytest.raises(InvalidArgumentError, match="stop string: expected a non-empty string"):
        StopMatcher(bad)


@settings(deadline=None, max_examples=300)
@given(data=st.data(), stops=st.lists(st.text("aé ", min_size=1, max_size=3), max_size=3))
def test_text_stream_names_the_token_that_completes_a_stop(data, stops):
    tokenizer = data.draw(st.sampled_from([packed("gpt-2"), packed("llama-spm")]))
    choices = [byte_ids(tokenizer)[byte] for byte in "aé ".encode()]
    choices += [*tokenizer.special_ids, *tokenizer.encode("a é a", add_special=False)]
    ids = data.draw(st.lists(st.sampled_from(choices), max_size=25))

    expected = None
    for count in range(1, len(ids) + 1):
        decoder = StreamDecoder(tokenizer)
        found = first_stop_oracle(decoder.push(ids[:count]), stops)
        if found is not None:
            expected = (count, decoder.push([]) + tokenizer.decode(ids[:count])[: found[0]])
            break

    stream, taken, shown = TextStream(tokenizer, stops), 0, ""
    for part in parts_of(data.draw, ids):
        before = stream.stop
        count = stream.count_to_stop(part)
        assert stream.stop == before, "asking changes nothing"
        chunk = stream.push(part)
        shown += chunk.text
        taken += chunk.taken
        assert count == (chunk.taken if chunk.stop is not None else None)
        assert chunk.taken == len(part) or chunk.stop is not None
    if expected is None:
        assert taken == len(ids)
        end = stream.flush()
        if end.stop is None:
            assert shown + end.text == tokenizer.decode(ids)
    else:
        assert (taken, shown) == expected


def test_text_stream_by_hand():
    tokenizer = packed("gpt-2")
    ids = tokenizer.encode("Hello world. And more")
    stream = TextStream(tokenizer, ["world", " more"])
    assert stream.count_to_stop(ids) == 2
    assert stream.push(ids[:1]) == ("Hello", 1, None)
    assert stream.count_to_stop(ids[1:]) == 1
    assert stream.push(ids[1:]) == (" ", 1, "world")
    assert stream.push(ids) == ("", 0, "world")
    assert stream.flush() == ("", 0, "world")


def test_text_stream_stop_completed_by_the_end():
    # The tail becomes U+FFFD only when the stream ends, and that is the stop string.
    tokenizer = packed("gpt-2")
    stream = TextStream(tokenizer, ["\ufffd"])
    assert stream.push([byte_ids(tokenizer)[0xE2]]) == ("", 1, None)
    assert stream.flush() == ("", 0, "\ufffd")
