"""Tokenizer: published vectors, independent oracles, hostile metadata, streams.

The oracles here share no code with the package: pre-tokenization is written as a procedure
instead of an expression, and BPE by rescanning all pairs instead of a queue.
"""

from __future__ import annotations

import functools
import itertools
import json
import lzma
import random
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers

from stoker.errors import FormatError, InvalidArgumentError, UnsupportedError
from stoker.tokenizer import PRE_TOKENIZERS, StreamDecoder, Tokenizer

DATA = Path(__file__).resolve().parent.parent / "data" / "vocab"
G = "tokenizer.ggml."

# --- inputs ----------------------------------------------------------------------------------


@functools.cache
def packed(name: str) -> dict:
    return json.loads(lzma.decompress((DATA / f"{name}.json.xz").read_bytes()))


@functools.cache
def gpt2(pre: str = "gpt-2") -> Tokenizer:
    return Tokenizer.from_metadata({**packed("gpt-2")["metadata"], G + "pre": pre})


@functools.cache
def spm(prefix: bool = True) -> Tokenizer:
    return Tokenizer.from_metadata(
        {**packed("llama-spm")["metadata"], G + "add_space_prefix": prefix}
    )


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> dict:
    """Tokenizer metadata of a released model, by the independent reader."""
    gguf = pytest.importorskip("gguf")
    fields = gguf.GGUFReader(smollm2_path).fields
    return {key: field.contents() for key, field in fields.items() if key.startswith("tokenizer.")}


def byte_alphabet() -> dict[int, str]:
    """Byte -> character, from the definition: unprintable bytes count up from U+0100."""
    table, following = {}, 0x100
    for byte in range(256):
        if 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or byte >= 0xAE:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(following)
            following += 1
    return table


ALPHABET = byte_alphabet()


def spelled(text: str) -> str:
    return "".join(ALPHABET[byte] for byte in text.encode())


def byte_level(
    pairs: tuple[str, ...] = (), more: dict[str, int] | None = None, **keys: object
) -> dict:
    """Metadata with all byte tokens (id = byte), merge results, then `more` (text: type)."""
    tokens = list(ALPHABET.values()) + [pair.replace(" ", "") for pair in pairs]
    types = [1] * len(tokens)
    for text, token_type in (more or {}).items():
        tokens.append(text)
        types.append(token_type)
    metadata: dict[str, object] = {
        G + "model": "gpt2",
        G + "pre": "gpt-2",
        G + "tokens": tokens,
        G + "token_type": types,
        G + "merges": list(pairs),
    }
    return metadata | {G + key: value for key, value in keys.items()}


def sentence_piece(scored: dict[str, float], more: dict[str, int] | None = None, **keys) -> dict:
    """Metadata with unknown, BOS, EOS, all byte tokens (ids 3 to 258), then the given tokens."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types, scores = [2, 3, 3] + [6] * 256, [0.0] * 259
    for text, score in scored.items():
        tokens.append(text)
        types.append(1)
        scores.append(score)
    for text, token_type in (more or {}).items():
        tokens.append(text)
        types.append(token_type)
        scores.append(0.0)
    metadata: dict[str, object] = {
        G + "model": "llama",
        G + "tokens": tokens,
        G + "token_type": types,
        G + "scores": scores,
    }
    return metadata | {G + key: value for key, value in keys.items()}


# Characters whose category is the same in all Unicode versions of interest.
CHARACTERS = (
    "abcXYZ stvdlrmE 0123456789 '''  \t\n\r.,!?-_/#$+=|`()<>[]{}\"\\"
    "éßÄñ\u0301\u0308\u0303\u0915\u093f\u0e01\u0e34中文日本語한국어アイ\u00a0\u3000\u2003\u0085"
    "٣²½\U0001f600\U0001f468\u200d€«»…—\0\x7f"
)
WORDS = (
    "the", " the", " don't", "I'LL", "'s", "'RE", " 1234", "12", "  ", "   ", "\n\n", "\r\n",
    " \n", "\t", "naïve", " Ünïcödé", "e\u0301", "\u0301", "...", "?!\n", " (", "$x+y=z", "中文", "🙂",
)  # fmt: skip


def random_texts(count: int, seed: int) -> list[str]:
    generator = random.Random(seed)
    texts = []
    for _ in range(count):
        parts = [
            generator.choice(WORDS) if generator.random() < 0.4 else generator.choice(CHARACTERS)
            for _ in range(generator.randrange(1, 25))
        ]
        texts.append("".join(parts))
    return texts


# --- oracles ---------------------------------------------------------------------------------

WHITE_SPACE = {
    *map(chr, range(9, 14)), *map(chr, range(0x2000, 0x200B)),
    *"\x20\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000",
}  # fmt: skip


def is_letter(char: str) -> bool:
    return unicodedata.category(char)[0] == "L"


def is_number(char: str) -> bool:
    return unicodedata.category(char)[0] == "N"


def is_space(char: str) -> bool:
    return char in WHITE_SPACE


def run(text: str, start: int, accept) -> int:
    end = start
    while end < len(text) and accept(text[end]):
        end += 1
    return end


def space_end(text: str, at: int, newlines: bool) -> int:
    """The white-space rules: up to the last newline of the run, or all but the last character."""
    end = run(text, at, is_space)
    if newlines:
        for last in range(end - 1, at - 1, -1):
            if text[last] in "\r\n":
                return last + 1
    if end == len(text) or end - at == 1:
        return end
    return end - 1


def contraction(text: str, at: int, fold: bool) -> int:
    """Length of a contraction at this place, 0 if there is none."""
    if text[at] != "'":
        return 0
    rest = text[at + 1 : at + 3]
    rest = rest.lower() if fold else rest
    if rest[:1] and rest[0] in "stmd":
        return 2
    return 3 if rest in ("re", "ve", "ll") else 0


def split_gpt2(text: str) -> list[str]:
    pieces, at = [], 0
    while at < len(text):
        length = contraction(text, at, fold=False)
        end = at + length
        if not length:
            body = at + 1 if text[at] == " " else at
            end = at
            if body < len(text):
                for accept in (
                    is_letter,
                    is_number,
                    lambda c: not (is_letter(c) or is_number(c) or is_space(c)),
                ):
                    if accept(text[body]):
                        end = run(text, body, accept)
                        break
            if end == at:
                end = space_end(text, at, newlines=False)
        pieces.append(text[at:end])
        at = end
    return pieces


def split_words(text: str, digits: int, marks: bool) -> list[str]:
    """LLAMA3 (3 digits), QWEN2 (1 digit), QWEN35 (1 digit, marks belong to words)."""

    def word(char: str) -> bool:
        return is_letter(char) or (marks and unicodedata.category(char)[0] == "M")

    def symbol(char: str) -> bool:
        return not (word(char) or is_number(char) or is_space(char))

    pieces, at = [], 0
    while at < len(text):
        char, following = text[at], text[at + 1 : at + 2]
        end = at + contraction(text, at, fold=True)
        if end == at:
            body = at + 1 if char == " " else at
            lead = char not in "\r\n" and not is_letter(char) and not is_number(char)
            if word(char):
                end = run(text, at, word)
            elif lead and following and word(following):
                end = run(text, at + 1, word)
            elif is_number(char):
                end = min(run(text, at, is_number), at + digits)
            elif body < len(text) and symbol(text[body]):
                end = run(text, body, symbol)
                end = run(text, end, lambda c: c in "\r\n")
            else:
                end = space_end(text, at, newlines=True)
        pieces.append(text[at:end])
        at = end
    return pieces


def split_smollm(text: str) -> list[str]:
    parts: list[str] = []
    for char in text:
        if is_number(char) or not parts or is_number(parts[-1][0]):
            parts.append(char)
        else:
            parts[-1] += char
    return [piece for part in parts for piece in split_gpt2(part)]


SPLITS = {
    "gpt-2": split_gpt2,
    "smollm": split_smollm,
    "llama3": lambda text: split_words(text, 3, False),
    "qwen2": lambda text: split_words(text, 1, False),
    "qwen35": lambda text: split_words(text, 1, True),
}


def naive_bpe(symbols: list[str], rank) -> list[str]:
    """Merge the pair of lowest rank, leftmost on ties, until none has a rank."""
    while True:
        ranks = [rank(pair) for pair in itertools.pairwise(symbols)]
        ranked = [(found, at) for at, found in enumerate(ranks) if found is not None]
        if not ranked:
            return symbols
        _, at = min(ranked)
        symbols[at : at + 2] = ["".join(symbols[at : at + 2])]


class ByteLevelOracle:
    def __init__(self, metadata: dict, pre: str) -> None:
        self.ids = {text: index for index, text in enumerate(metadata[G + "tokens"])}
        pairs = [tuple(merge.split(" ")) for merge in metadata[G + "merges"]]
        self.ranks = {pair: rank for rank, pair in enumerate(pairs)}
        self.split = SPLITS[pre]
        self.ignore_merges = pre == "llama3"

    def encode(self, text: str) -> list[int]:
        ids = []
        for piece in self.split(text):
            mapped = spelled(piece)
            if self.ignore_merges and mapped in self.ids:
                ids.append(self.ids[mapped])
                continue
            symbols = naive_bpe(list(mapped), self.ranks.get)
            ids += [self.ids[symbol] for symbol in symbols if symbol in self.ids]
        return ids


def sentence_piece_oracle(metadata: dict, text: str, prefix: bool) -> list[int]:
    rows = list(zip(metadata[G + "tokens"], metadata[G + "token_type"], strict=True))
    ids = {token: index for index, (token, kind) in enumerate(rows) if kind in (1, 4)}
    byte_ids = {token: index for index, (token, kind) in enumerate(rows) if kind == 6}
    scores = metadata[G + "scores"]

    def rank(pair):
        index = ids.get("".join(pair))
        return None if index is None else -scores[index]

    symbols = naive_bpe(list((" " * prefix + text).replace(" ", "▁")), rank)
    result = []
    for symbol in symbols:
        if symbol in ids:
            result.append(ids[symbol])
        else:
            result += [byte_ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return result


# --- published vectors and oracles -----------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt-2", "llama-spm"])
def test_published_vectors(name):
    tokenizer = gpt2() if name == "gpt-2" else spm()
    cases = packed(name)["cases"]
    assert len(cases) == 46
    for case in cases:
        ids = tokenizer.encode(case["text"], add_special=False, parse_special=False)
        assert ids == case["ids"], case["text"]
        assert tokenizer.decode(ids) == case["text"]


@pytest.mark.parametrize("pre", SPLITS)
def test_byte_level_equals_the_procedural_oracle(pre):
    tokenizer = gpt2(pre)
    oracle = ByteLevelOracle(packed("gpt-2")["metadata"], pre)
    for text in random_texts(1500, seed=1):
        ids = tokenizer.encode(text, add_special=False)
        assert ids == oracle.encode(text), repr(text)
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_compiles_and_loses_nothing(pre):
    tokenizer = Tokenizer.from_metadata(byte_level(pre=pre, bos_token_id=0))
    for text in random_texts(40, seed=2):
        assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        # What tells the rows apart that have no procedural oracle.
        ("deepseek-v3", "abc1234中文x_y", ["abc", "123", "4", "中文", "x", "_y"]),
        ("deepseek-coder", "a1\n\n b", ["a", "1", "\n", "\n", " b"]),
        ("falcon", "x`12345", ["x", "`", "123", "45"]),
        ("default", "a`b 12345!", ["a", "`", "b", " ", "123", "45", "!"]),
        ("tekken", "HelloWorld 12", ["Hello", "World", " ", "1", "2"]),
        ("gpt-4o", "It's HelloWORLD 1234/\n", ["It's", " Hello", "WORLD", " ", "123", "4", "/\n"]),
        ("minicpm5", "ab 12345", ["ab", " ", "123", "45"]),
        ("laguna", "a!\n\nb", ["a", "!", "\n\n", "b"]),
        ("seed-coder", "a!\nb", ["a", "!", "\n", "b"]),
        ("dbrx", "12345", ["123", "45"]),
    ],
)
def test_pieces_of_other_rows(pre, text, pieces):
    # With every piece and the ways to it as merges, one id per piece comes out.
    merges: list[str] = []
    for piece in pieces:
        mapped = spelled(piece)
        for end in range(1, len(mapped)):
            merge = f"{mapped[:end]} {mapped[end]}"
            if merge not in merges:
                merges.append(merge)
    tokens = {merge.replace(" ", ""): merge for merge in merges}
    metadata = byte_level(tuple(tokens.values()), pre=pre, add_bos_token=False)
    tokenizer = Tokenizer.from_metadata(metadata)
    ids = tokenizer.encode(text, add_special=False)
    assert [tokenizer.decode([index]) for index in ids] == pieces


@pytest.mark.parametrize("prefix", [True, False])
def test_sentence_piece_equals_the_naive_oracle(prefix):
    metadata = packed("llama-spm")["metadata"]
    for text in random_texts(250, seed=3):
        ids = spm(prefix).encode(text, add_special=False)
        assert ids == sentence_piece_oracle(metadata, text, prefix), repr(text)
        assert spm(prefix).decode(ids) == text


@settings(deadline=None, max_examples=300)
@given(
    words=st.lists(st.text("ab▁é", min_size=1, max_size=5), max_size=25, unique=True),
    scores=st.lists(st.sampled_from([-1.0, -2.0, -3.0]), min_size=25, max_size=25),
    text=st.text("ab é", max_size=80),
)
def test_sentence_piece_ties_and_holes(words, scores, text):
    # Tied scores, halves that are no tokens, long pieces, marks inside tokens.
    metadata = sentence_piece({"▁": -9.0, **dict(zip(words, scores, strict=False))})
    tokenizer = Tokenizer.from_metadata(metadata)
    expected = sentence_piece_oracle(metadata, text, True) if text else []
    assert tokenizer.encode(text, add_special=False) == expected
    assert tokenizer.decode(expected) == text


@pytest.mark.parametrize("prefix", [True, False])
def test_sentence_piece_equals_the_library_with_derived_merges(prefix):
    """The `tokenizers` library reproduces a vocabulary that is closed under halving."""
    metadata = packed("llama-spm")["metadata"]
    tokens, scores = metadata[G + "tokens"], metadata[G + "scores"]
    ids = {text: index for index, text in enumerate(tokens)}
    merges = []
    for index, text in enumerate(tokens):
        if metadata[G + "token_type"][index] == 1:
            halves = [(text[:cut], text[cut:]) for cut in range(1, len(text))]
            known = [pair for pair in halves if pair[0] in ids and pair[1] in ids]
            known.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
            merges += [(-scores[index], pair) for pair in known]
    merges.sort(key=lambda item: item[0])
    library = tokenizers.Tokenizer(
        models.BPE(
            ids,
            [pair for _, pair in merges],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    steps = [normalizers.Prepend("▁")] if prefix else []
    library.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    for text in random_texts(1500, seed=4):
        expected = library.encode(text, add_special_tokens=False).ids
        assert spm(prefix).encode(text, add_special=False) == expected, repr(text)
        assert spm(prefix).decode(expected) == library.decode(expected)


def test_smollm2(smollm2):
    tokenizer = Tokenizer.from_metadata(smollm2, source="smollm2")
    assert (tokenizer.kind, tokenizer.pre, tokenizer.vocab_size) == ("gpt2", "smollm", 49152)
    assert (tokenizer.add_bos, tokenizer.bos_id, tokenizer.eos_id) == (False, 1, 2)
    assert tokenizer.eog_ids == {0, 2}
    assert len(tokenizer.special_ids) == 17
    assert tokenizer.dropped_merges == 0
    assert "<|im_start|>" in (tokenizer.chat_template or "")
    # This vocabulary has no token for some control characters and unassigned planes.
    lost = {chr(byte) for byte in tokenizer.missing_bytes if byte < 0x80}
    assert lost == set("\x04\x06\x13\x14\x16\x1d")

    oracle = ByteLevelOracle(smollm2, "smollm")
    for text in random_texts(1500, seed=5):
        ids = tokenizer.encode(text)
        assert ids == oracle.encode(text), repr(text)
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("<|im_start|>user\n")[0] == 1
    assert not tokenizer.special_ids & {
        *tokenizer.encode("<|im_start|>user\n<repo_name>", parse_special=False)
    }


# --- special tokens --------------------------------------------------------------------------


def test_control_text_needs_trust_and_user_defined_text_does_not():
    metadata = byte_level(more={"<|im_end|>": 3, "<think>": 4, "<unk>": 2})
    tokenizer = Tokenizer.from_metadata(metadata)
    text = "a<|im_end|><think><unk>"
    assert tokenizer.encode(text) == [ord("a"), 256, 257, 258]
    ids = tokenizer.encode(text, parse_special=False)
    assert 257 in ids
    assert not {256, 258} & set(ids)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(tokenizer.encode(text)) == "a<think>"
    assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text


@pytest.mark.parametrize("pre", ["gpt-2", "llama3"])
def test_merging_never_makes_a_control_token(pre):
    # "bad" is a control token that merges, or a whole piece, would otherwise produce.
    metadata = byte_level(
        ("b a",), {"bad": 3}, merges=["b a", "ba d"], pre=pre, add_bos_token=False
    )
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.dropped_merges == 1
    assert tokenizer.encode("bad", parse_special=False) == [256, ord("d")]
    assert tokenizer.encode("bad") == [257]

    metadata = sentence_piece({"ba": -1.0}, {"bad": 3, "x": 3}, add_space_prefix=False)
    tokenizer = Tokenizer.from_metadata(metadata)
    ids = tokenizer.encode("badx", parse_special=False, add_special=False)
    assert not tokenizer.special_ids & set(ids)
    assert tokenizer.decode(ids) == "badx"


def test_specials_are_found_from_the_left_longest_first():
    tokenizer = Tokenizer.from_metadata(byte_level(more={"ab": 4, "abc": 3, "bcd": 4, "": 3}))
    ab, abc, bcd = 256, 257, 258
    d, x = ord("d"), ord("x")
    assert tokenizer.encode("abcd") == [abc, d]
    assert tokenizer.encode("abcd", parse_special=False) == [ab, ord("c"), d]
    assert tokenizer.encode("xbcdab") == [x, bcd, ab]
    assert tokenizer.encode("aab")[1:] == [ab]
    assert tokenizer.encode("abcab") == [abc, ab]


def test_pieces_join_before_they_are_split():
    tokenizer = gpt2()
    text = "user\n\nhello there"
    for cut in range(len(text)):
        pieces = [(text[:cut], True), (text[cut:], False)]
        assert tokenizer.encode_pieces(pieces) == tokenizer.encode(text)
    end = tokenizer.eos_id
    spell = "<|endoftext|>"
    assert tokenizer.encode_pieces([(spell[:5], True), (spell[5:], True)]) == [end]
    for cut in range(1, len(spell)):
        for trust in (True, False):
            pieces = [(spell[:cut], trust), (spell[cut:], not trust)]
            assert end not in tokenizer.encode_pieces(pieces)


def test_bos_and_eos():
    base = {"bos_token_id": 256, "eos_token_id": 257, "add_eos_token": True}
    more = {"<s>": 3, "</s>": 3}
    tokenizer = Tokenizer.from_metadata(byte_level(more=more, add_bos_token=True, **base))
    assert tokenizer.encode("") == [256, 257]
    assert tokenizer.encode("A") == [256, ord("A"), 257]
    assert tokenizer.encode("<s>A") == [256, ord("A"), 257]
    assert tokenizer.encode("A", add_special=False) == [ord("A")]
    # Defaults: off, except where the pre-tokenizer says otherwise.
    assert Tokenizer.from_metadata(byte_level(more=more, **base)).add_bos is False
    llama3 = Tokenizer.from_metadata(byte_level(more=more, pre="llama-bpe", **base))
    assert llama3.add_bos is True
    assert Tokenizer.from_metadata(sentence_piece({})).add_bos is True


def test_space_prefix_follows_every_special_token():
    tokenizer = Tokenizer.from_metadata(sentence_piece({"▁": -1.0, "a": -2.0, "▁a": -3.0}))
    a, marked = 260, 261
    assert tokenizer.encode("a</s>a", add_special=False) == [marked, 2, marked]
    assert tokenizer.decode([marked, 2, marked]) == "a a"
    assert tokenizer.decode([1, marked]) == "a"
    assert tokenizer.decode([marked], continued=True) == " a"
    assert tokenizer.encode("", add_special=False) == []
    plain = sentence_piece({"▁": -1.0, "a": -2.0, "▁a": -3.0}, add_space_prefix=False)
    tokenizer = Tokenizer.from_metadata(plain)
    assert tokenizer.encode("a</s>a", add_special=False) == [a, 2, a]
    assert tokenizer.decode([marked]) == " a"


def test_ids_of_end_and_fill():
    more = {"<|endoftext|>": 3, "<|im_end|>": 3, "<|eot_id|>": 3, "<pad>": 3, "</s>": 3}
    tokenizer = Tokenizer.from_metadata(
        byte_level(more=more, fim_pad_token_id=259, seperator_token_id=3, prefix_token_id=5)
    )
    assert tokenizer.eot_id == 258, "the most specific text wins when no key is there"
    assert tokenizer.eog_ids == {256, 257, 258, 259, 260}
    assert (tokenizer.sep_id, tokenizer.fim_pre_id, tokenizer.bos_id) == (3, 5, None)
    tokenizer = Tokenizer.from_metadata(byte_level(more={"<|end|>": 3, "<|return|>": 3}))
    assert tokenizer.eog_ids == {256, 257}
    more = {"<|end|>": 3, "<|return|>": 3, "<|call|>": 3, "</s>": 3, "<|tool_response>": 3}
    tokenizer = Tokenizer.from_metadata(byte_level(more=more))
    assert tokenizer.eog_ids == {257, 258, 260}


def test_mistyped_end_tokens_become_control_tokens():
    tokenizer = Tokenizer.from_metadata(byte_level(more={"<|im_end|>": 4, "<eos>": 1, "<x>": 4}))
    assert tokenizer.retyped_ids == (256, 257)
    assert tokenizer.special_ids == {256, 257}
    assert not {256, 257} & set(tokenizer.encode("<|im_end|><eos>", parse_special=False))
    # A word that merges make is a word.
    merges = ("< /", "</ s", "</s >")
    tokenizer = Tokenizer.from_metadata(byte_level(merges))
    assert tokenizer.retyped_ids == ()
    assert tokenizer.encode("</s>", parse_special=False)[0] == 256


def test_llama_default_ids_need_matching_types():
    tokenizer = Tokenizer.from_metadata(sentence_piece({}))
    assert (tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 1, 2)
    metadata = sentence_piece({}, add_bos_token=False)
    metadata[G + "token_type"][:3] = [1, 1, 1]
    metadata[G + "tokens"][:3] = ["a", "b", "c"]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert (tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id) == (None, None, None)


# --- bytes and text --------------------------------------------------------------------------


def test_token_bytes():
    more = {"<|x|>": 3, "né": 4, "[PAD1]": 5, "<0x0A>": 6, "漢Ġ": 1, "undef": 0}
    tokenizer = Tokenizer.from_metadata(byte_level(("Ġ t",), more | {"<unk>": 2}))
    for index, byte in enumerate(ALPHABET):
        assert tokenizer.token_bytes(index) == bytes([byte])
    wanted = [b" t", b"", "né".encode(), b"", b"\n", "漢Ġ".encode(), b"", b""]
    assert [tokenizer.token_bytes(256 + n) for n in range(len(wanted))] == wanted
    assert tokenizer.token_text(256) == "Ġt"
    tokenizer = Tokenizer.from_metadata(sentence_piece({"▁é": -1.0, "\udcff": -1.0}))
    assert tokenizer.token_bytes(259) == " é".encode()
    assert tokenizer.token_bytes(260) == b"\xff"


def test_invalid_bytes_decode_to_replacement_characters():
    tokenizer = Tokenizer.from_metadata(byte_level())
    ids = {byte: index for index, byte in enumerate(ALPHABET)}
    for data in (b"\xff", b"a\xe4\xb8", b"\xe4\xb8\xad\xf0\x9f", b"\xed\xa0\x80", b"\xc0\x80"):
        assert tokenizer.decode([ids[b] for b in data]) == data.decode("utf-8", "replace")


def test_embedded_nul_is_a_character():
    for tokenizer in (gpt2(), spm()):
        assert tokenizer.decode(tokenizer.encode("a\0b", add_special=False)) == "a\0b"


@given(st.text(max_size=60))
@settings(deadline=None, max_examples=300)
def test_byte_level_round_trip(text):
    for pre in ("gpt-2", "qwen35"):
        assert gpt2(pre).decode(gpt2(pre).encode(text, parse_special=False)) == text


@given(st.text(max_size=60))
@settings(deadline=None, max_examples=300)
def test_sentence_piece_round_trip(text):
    # A space mark in the text cannot be told from a space; nothing else is lost.
    ids = spm().encode(text, parse_special=False)
    assert spm().decode(ids) == text.replace("▁", " ")


def test_bytes_without_tokens_are_dropped_with_a_warning():
    metadata = byte_level()
    del metadata[G + "tokens"][4], metadata[G + "token_type"][4]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.missing_bytes == {4}
    with pytest.warns(UserWarning, match="left out: 0x04"):
        assert tokenizer.decode(tokenizer.encode("a\x04b")) == "ab"


def test_sentence_piece_without_byte_tokens():
    tokens = ["<unk>", "<s>", "</s>", "▁", "a", "\udcc3", "\udca9"]
    metadata = {
        G + "model": "llama",
        G + "tokens": tokens,
        G + "token_type": [2, 3, 3, 1, 1, 1, 1],
        G + "scores": [0.0] * 7,
    }
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("aé中", add_special=False) == [3, 4, 5, 6, 0]
    metadata[G + "token_type"][0] = 1
    tokenizer = Tokenizer.from_metadata(metadata)
    with pytest.raises(InvalidArgumentError, match=r"text: expected characters .* found '\\u4e2d'"):
        tokenizer.encode("中")


def test_long_white_space_is_an_error_not_a_crash():
    # The expression engine of the library gives up here; it must surface as an exception of ours.
    tokenizer = Tokenizer.from_metadata(byte_level(pre="qwen2"))
    try:
        ids = tokenizer.encode(" " * 11_000_000 + "x")
    except InvalidArgumentError as error:
        assert str(error).startswith("text: expected text that the pre-tokenizer can split")
    else:
        assert len(ids) == 11_000_001


def test_fingerprints():
    base = gpt2()
    assert base.fingerprint == Tokenizer.from_metadata(packed("gpt-2")["metadata"]).fingerprint
    assert len(base.fingerprint) == 64
    # The same rules under another name are the same tokenizer.
    assert gpt2("mpt").fingerprint == base.fingerprint
    assert gpt2("qwen2").fingerprint != base.fingerprint
    assert gpt2("qwen2").vocab_fingerprint == base.vocab_fingerprint
    changes = (
        {"bos_token_id": 5}, {"add_bos_token": True, "bos_token_id": 5}, {"suppress_tokens": [7]},
        {"token_type": [4] + [1] * 256}, {"merges": []}, {"eos_token_id": 9},
    )  # fmt: skip
    plain = byte_level(("a b",))
    seen = {Tokenizer.from_metadata(plain).fingerprint}
    for change in changes:
        metadata = plain | {G + key: value for key, value in change.items()}
        seen.add(Tokenizer.from_metadata(metadata).fingerprint)
    assert len(seen) == len(changes) + 1


def test_repr_and_attributes():
    metadata = byte_level(more={"<s>": 3}, suppress_tokens=np.array([1, 2], np.int32))
    metadata |= {"tokenizer.chat_template": "T", "tokenizer.chat_template.tool_use": "U"}
    tokenizer = Tokenizer.from_metadata(metadata)
    assert repr(tokenizer).startswith("<Tokenizer gpt2, pre='gpt-2', 257 tokens, 1 special, ")
    assert tokenizer.suppress_tokens == (1, 2)
    assert (tokenizer.chat_template, tokenizer.chat_templates) == ("T", {"tool_use": "U"})
    assert Tokenizer.from_metadata(byte_level()).chat_template is None


def test_arrays_may_be_numpy():
    metadata = byte_level()
    metadata[G + "tokens"] = np.array(metadata[G + "tokens"], dtype=object)
    metadata[G + "token_type"] = np.array(metadata[G + "token_type"], dtype=np.int32)
    metadata[G + "bos_token_id"] = np.uint32(3)
    assert Tokenizer.from_metadata(metadata).bos_id == 3
    metadata = sentence_piece({"a": -1.0})
    metadata[G + "scores"] = np.array(metadata[G + "scores"], np.float32)
    assert Tokenizer.from_metadata(metadata).vocab_size == 260


def test_unusable_merges_are_dropped_and_counted():
    metadata = byte_level(("a b",), merges=["a b", "nospace", " x", "a zz", "c d", "a b", ""])
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.dropped_merges == 6
    assert tokenizer.encode("abcd") == [256, ord("c"), ord("d")]


# --- errors ----------------------------------------------------------------------------------

BYTE_LEVEL_ERRORS = [
    ({"model": None}, FormatError, "model: expected a string, found nothing"),
    ({"model": 7}, FormatError, "model: expected a string, found 7"),
    ({"model": "gemma4"}, UnsupportedError, "model: expected 'gpt2' or 'llama', found 'gemma4'"),
    ({"model": "bert"}, UnsupportedError, "model: expected 'gpt2' or 'llama', found 'bert'"),
    ({"pre": "kimi-k2"}, UnsupportedError, "found 'kimi-k2'"),
    ({"pre": "no-such\udc80"}, UnsupportedError, r"found 'no-such\udc80'"),
    ({"pre": 3}, FormatError, "pre: expected a string, found 3"),
    ({"tokens": None}, FormatError, "tokens: expected an array of string values, found nothing"),
    ({"tokens": []}, FormatError, "tokens: expected at least one token, found an empty array"),
    ({"tokens": "abc"}, FormatError, "expected an array of string values, found 'abc'"),
    ({"tokens": ["a", 5]}, FormatError, "expected an array of string values, found 5 at index 1"),
    ({"tokens": ["a", "b", "a"]}, FormatError, "distinct texts, found 'a' at 0 and 2"),
    ({"tokens": ["\ud800"]}, FormatError, r"tokens[0]: expected text of bytes, found '\ud800'"),
    (
        {"tokens": np.zeros((2, 2))},
        FormatError,
        "string values, found an array of float64 with shape (2, 2)",
    ),
    ({"tokens": {"a": 1}}, FormatError, "found a dict"),
    ({"token_type": [1]}, FormatError, "expected an array of 256 integer values, found 1"),
    ({"token_type": [1.0] * 256}, FormatError, "integer values, found 1.0 at index 0"),
    ({"token_type": [True] * 256}, FormatError, "integer values, found True at index 0"),
    ({"token_type": np.ones(256)}, FormatError, "integer values, found an array of float64"),
    ({"token_type": [7] * 256}, FormatError, "token_type[0]: expected a type from 0 to 6, found 7"),
    ({"token_type": [-1] * 256}, FormatError, "expected a type from 0 to 6, found -1"),
    (
        {"tokens": ["a"], "token_type": [6]},
        FormatError,
        "expected a byte token '<0xHH>', found 'a'",
    ),
    ({"merges": None}, FormatError, "merges: expected an array of string values, found nothing"),
    ({"merges": [1]}, FormatError, "merges: expected an array of string values, found 1 at"),
    ({"bos_token_id": 256}, FormatError, "bos_token_id: expected a token id below 256, found 256"),
    ({"eos_token_id": -1}, FormatError, "eos_token_id: expected a token id below 256, found -1"),
    ({"eot_token_id": 1.5}, FormatError, "eot_token_id: expected a token id below 256, found 1.5"),
    ({"eom_token_id": True}, FormatError, "expected a token id below 256, found True"),
    ({"unknown_token_id": "0"}, FormatError, "expected a token id below 256, found '0'"),
    ({"seperator_token_id": 2**32 - 1}, FormatError, "below 256, found 4294967295"),
    ({"padding_token_id": 10**60}, FormatError, "found an integer of 200 bits"),
    ({"add_bos_token": 1}, FormatError, "add_bos_token: expected a boolean, found 1"),
    (
        {"add_bos_token": True},
        FormatError,
        "bos_token_id: expected an id, as add_bos_token is on, found nothing",
    ),
    ({"add_eos_token": True}, FormatError, "expected an id, as add_eos_token is on, found nothing"),
    ({"add_space_prefix": "yes"}, FormatError, "expected a boolean, found 'yes'"),
    ({"suppress_tokens": [0, 256]}, FormatError, "suppress_tokens[1]: expected an id below 256"),
    ({"suppress_tokens": 5}, FormatError, "expected an array of integer values, found 5"),
]


@pytest.mark.parametrize(("changes", "kind", "text"), BYTE_LEVEL_ERRORS)
def test_bad_byte_level_metadata(changes, kind, text):
    metadata = byte_level() | {G + key: value for key, value in changes.items()}
    if "tokens" in changes and "token_type" not in changes:
        metadata.pop(G + "token_type")
    with pytest.raises(kind) as caught:
        Tokenizer.from_metadata(metadata, source="m.gguf")
    assert type(caught.value) is kind
    assert text in str(caught.value)
    key = next(iter(changes)).removeprefix("add_").removesuffix("_token")
    assert str(caught.value).startswith("m.gguf: " + G)
    assert key in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"scores": None}, "scores: expected an array of 259 float values, found nothing"),
        ({"scores": [0.0]}, "scores: expected an array of 259 float values, found 1"),
        ({"scores": [0] * 259}, "float values, found 0 at index 0"),
        ({"scores": np.zeros(259, np.int32)}, "float values, found an array of int32"),
        ({"scores": [0.0] * 258 + [float("nan")]}, "scores[258]: expected a number, found nan"),
    ],
)
def test_bad_sentence_piece_metadata(changes, text):
    metadata = sentence_piece({}) | {G + key: value for key, value in changes.items()}
    with pytest.raises(FormatError) as caught:
        Tokenizer.from_metadata(metadata)
    assert text in str(caught.value)


@pytest.mark.parametrize("token", ["<0x0g>", "<0xaf>", "0x41", "<0x041>", ""])
def test_bad_byte_token(token):
    metadata = sentence_piece({})
    metadata[G + "tokens"][3 + 0x41] = token
    with pytest.raises(FormatError, match=r"tokens\[68\]: expected a byte token '<0xHH>', found"):
        Tokenizer.from_metadata(metadata)


def test_bad_chat_template_type():
    with pytest.raises(FormatError, match="tokenizer.chat_template: expected a string, found 3"):
        Tokenizer.from_metadata(byte_level() | {"tokenizer.chat_template": 3})
    with pytest.raises(FormatError, match="tokenizer.chat_template.x: expected a string, found an"):
        Tokenizer.from_metadata(byte_level() | {"tokenizer.chat_template.x": ["a"]})


def test_missing_pre_warns():
    metadata = byte_level()
    del metadata[G + "pre"]
    with pytest.warns(
        UserWarning, match="pre: expected a pre-tokenizer name, found nothing"
    ) as seen:
        tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.pre == "default"
    assert seen[0].filename == __file__


@settings(deadline=None, max_examples=150)
@given(
    key=st.sampled_from(sorted(byte_level(bos_token_id=1, add_bos_token=True))),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=2),
    ),
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_any_value_under_any_key_is_accepted_or_a_clear_error(key, value):
    metadata = byte_level(bos_token_id=1, add_bos_token=True) | {key: value}
    try:
        Tokenizer.from_metadata(metadata)
    except (FormatError, UnsupportedError) as error:
        assert "expected" in str(error)
        assert "tokenizer." in str(error)


@pytest.mark.parametrize("bad", [-1, 256, "1", 1.0, None])
def test_bad_ids(bad):
    tokenizer = Tokenizer.from_metadata(byte_level())
    for call in (
        lambda: tokenizer.decode([0, bad]),
        lambda: tokenizer.token_bytes(bad),
        lambda: tokenizer.token_text(bad),
        lambda: StreamDecoder(tokenizer).push([bad]),
    ):
        with pytest.raises(
            InvalidArgumentError, match="token id: expected an integer from 0 to 255"
        ):
            call()


@pytest.mark.parametrize("tokenizer", [gpt2, spm])
def test_bad_text(tokenizer):
    with pytest.raises(InvalidArgumentError, match=r"lone surrogate U\+D800 at index 2"):
        tokenizer().encode("ab\ud800")
    with pytest.raises(InvalidArgumentError, match="text: expected a string, found 5"):
        tokenizer().encode(5)


def test_decode_accepts_numpy_ids():
    ids = gpt2().encode("hello world")
    assert gpt2().decode(np.array(ids, np.int32)) == "hello world"
