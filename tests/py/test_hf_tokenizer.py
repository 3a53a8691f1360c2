"""tokenizer.json against the library itself, and what it must not do: let text become control
tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import stoker
import tiny
import tiny_hf
from stoker._vocabulary import BYTE_CHARS
from stoker.chat import encode_chat
from stoker.hf import HfTokenizer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

TEXTS = [
    "",
    "a",
    " hello  world",
    "grüße 🚀\n\ttab",
    "x<|im_end|>y",
    "<s>",
    "abab ab",
    "  ",
    "▁a b",
]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)


def byte_level(folder: Path, bos: bool = False) -> Tokenizer:
    vocab = {c: i for i, c in enumerate(BYTE_CHARS.values())}
    merges = [("a", "b"), ("Ġ", "a"), ("l", "l"), ("ab", "ab")]
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    vocab["<|im_end|>"] = len(vocab)
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens(["<|im_end|>", "<|im_start|>", "<s>"])
    t.add_tokens(["<think>"])
    if bos:
        t.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", t.token_to_id("<s>"))]
        )
    t.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"bos_token": "<s>", "eos_token": {"content": "<|im_end|>"}, "chat_template": TEMPLATE}
    ))  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 7]}))
    return t


def marked(folder: Path, scheme: str) -> Tokenizer:
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{b:02X}>": b + 3 for b in range(256)}
    merges = [("▁", "a"), ("h", "e"), ("▁", "b")]
    for text in ["▁", *"abhelowrd<>s/x", *map("".join, merges)]:
        vocab.setdefault(text, len(vocab))
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True,
                             byte_fallback=True))  # fmt: skip
    if scheme == "normalizer":
        t.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        t.pre_tokenizer = pre_tokenizers.Metaspace("▁", scheme, split=False)
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                   decoders.Fuse()])  # fmt: skip
    t.add_special_tokens(["<unk>", "<s>", "</s>"])
    t.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    return t


@pytest.mark.parametrize("bos", [False, True])
def test_byte_level(tmp_path: Path, bos: bool) -> None:
    library = byte_level(tmp_path, bos)
    t = HfTokenizer.from_file(tmp_path / "tokenizer.json")
    assert t.kind == "gpt2" and t.add_bos is bos and not t.add_eos and not t.add_space_prefix
    assert t.vocab_size == library.get_vocab_size() and t.token_text(t.eos_id) == "<|im_end|>"
    assert {3, 7, t.eos_id} <= t.eog_ids and t.chat_template == TEMPLATE
    for text in TEXTS:
        want = library.encode(text).ids
        if not (bos and text == "<s>"):  # a BOS that the text has is not doubled
            assert t.encode(text) == want
        assert t.decode(want) == library.decode(want)
        assert b"".join(map(t.token_bytes, t.encode(text, parse_special=False))) == text.encode()


def test_text_does_not_become_control_tokens(tmp_path: Path) -> None:
    byte_level(tmp_path)
    t = HfTokenizer.from_folder(tmp_path)
    for text in ("<|im_end|>", "a<|im_end|>b", "<s>", " <|im_start|>"):
        ids = t.encode(text, parse_special=False)
        assert not t.special_ids & set(ids) and t.decode(ids) == text
    ids = encode_chat(t, [{"role": "user", "content": "<|im_end|>"}])
    assert ids.count(t.eos_id) == 1 and t.decode(ids, skip_special=False).count("<|im_end|>") == 2
    assert t.encode("<think>", parse_special=False) == [t.vocab_size - 1]  # user-defined


@pytest.mark.parametrize("scheme", ["normalizer", "always", "first", "never"])
def test_marked_spaces(tmp_path: Path, scheme: str) -> None:
    library = marked(tmp_path, scheme)
    t = HfTokenizer.from_folder(tmp_path)
    assert t.kind == "llama" and t.add_space_prefix is (scheme != "never")
    for text in ("a", "hello world", "a <s> b", "<s>a b</s> b", "ä x", "a b a", " a"):
        assert t.encode(text, add_special=False) == library.encode(text).ids, text
    assert t.decode(t.encode("hello ä")) == "hello ä"


def test_chat_template_file_wins(tmp_path: Path) -> None:
    byte_level(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("x")
    assert HfTokenizer.from_folder(tmp_path).chat_template == "x"


def test_no_tokenizer(tmp_path: Path) -> None:
    assert HfTokenizer.from_folder(tmp_path) is None
    with pytest.raises(stoker.ReadError, match="tokenizer.json"):
        HfTokenizer.from_file(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"model": {}}', '{"model": {"type": "BPE"}}', "[" * 100_000,
             '{"model": {"type": "X"}, "decoder": {"type": "ByteLevel"}}'],
)  # fmt: skip
def test_broken(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises((stoker.FormatError, stoker.UnsupportedError), match="tokenizer.json"):
        HfTokenizer.from_folder(tmp_path)


def test_id_out_of_range(tmp_path: Path) -> None:
    byte_level(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 99999}')
    with pytest.raises(stoker.FormatError, match="eos_token_id below"):
        HfTokenizer.from_folder(tmp_path)


def test_engine_takes_it(tmp_path: Path) -> None:
    shape = tiny.Shape(types=tiny_hf.PLAIN)
    tiny_hf.write(tmp_path, tiny_hf.tensors(shape, 3), tiny_hf.config(shape))
    byte_level(tmp_path)
    with stoker.Engine(tmp_path, device="cpu", context=64) as e:
        result = e.generate("hello", max_tokens=4, ignore_eos=True)
        assert len(result.ids) == 4 and isinstance(result.text, str)
