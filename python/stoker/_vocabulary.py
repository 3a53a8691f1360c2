"""The tokenizer arrays of a GGUF file, checked, and the table of pre-tokenizers.

Everything here distrusts its input: `Fields` names file, key and value in every error, and
`read_vocabulary` returns tables that the rest of the tokenizer need not check again.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .errors import FormatError, UnsupportedError

# Token types of `tokenizer.ggml.token_type`.
UNDEFINED, NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(7)

# --- pre-tokenizers --------------------------------------------------------------------------


@dataclass(frozen=True)
class PreTokenizer:
    """How one `tokenizer.ggml.pre` value cuts text, and the defaults that go with it.

    `passes` are applied one after the other: each cuts every piece of the pass before into its
    matches and the text between them. `ignore_merges` means that a piece which is a token as a
    whole is taken without merging.
    """

    passes: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _llama3(numbers: str, symbols: str = r" ?[^\s\p{L}\p{N}]+[\r\n]*") -> str:
    return rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{numbers}|{symbols}|{_SPACES}"


def _o200k(numbers: str, contraction: str) -> str:
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (
        f"{lead}{upper}*{lower}+{contraction}|{lead}{upper}+{lower}*{contraction}"
        rf"|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


_LLAMA3 = _llama3(r"\p{N}{1,3}")
_QWEN2 = _llama3(r"\p{N}")
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)

_ROWS: tuple[tuple[str, PreTokenizer], ...] = (
    (
        "gpt-2 phi-2 jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code gigachat mpt "
        + "a.x-4.0 mellum modern-bert exaone4 olmo jais roberta-bpe trillion granite-docling",
        PreTokenizer((_GPT2,)),
    ),
    (
        "smollm command-r starcoder refact codeshell exaone minerva-7b mellum2",
        PreTokenizer((r"\p{N}", _GPT2)),
    ),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
    ),
    ("dbrx smaug-bpe glm4 chatglm-bpe", PreTokenizer((_LLAMA3,))),
    (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 hunyuan solar-open grok-2 megrez stablelm2",
        PreTokenizer((_QWEN2,)),
    ),
    ("qwen35", PreTokenizer((_QWEN35,))),
    (
        "deepseek-v3 hunyuan-dense joyai-llm",
        PreTokenizer(
            (
                r"\p{N}{1,3}",
                r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+",
                _DEEPSEEK3,
            )
        ),
    ),
    (
        "deepseek-coder",
        PreTokenizer(
            (
                r"[\r\n]",
                r"\s?\p{L}+",
                r"\s?\p{P}+",
                r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+",
                r"\p{N}",
            )
        ),
    ),
    ("falcon", PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"))),
    (
        "default",
        PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    ),
    ("tekken", PreTokenizer((_o200k(r"\p{N}", ""),), ignore_merges=True, add_bos=True)),
    (
        "gpt-4o llama4 kanana2 talkie minimax-m2",
        PreTokenizer((_o200k(r"\p{N}{1,3}", _CONTRACTION + "?"),)),
    ),
    ("minicpm5", PreTokenizer((r"\p{N}{1,3}", _llama3(r"\p{N}+")), ignore_merges=True)),
    ("laguna", PreTokenizer((r"[^\n]+|[\n]+", _QWEN2))),
    ("seed-coder", PreTokenizer((_llama3(r"\p{N}", r" ?[^\s\p{L}\p{N}\r\n]+"),))),
)

#: `tokenizer.ggml.pre` value -> pre-tokenizer, for the byte-level kind.
PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    name: pre for names, pre in _ROWS for name in names.split()
}

# --- the byte alphabet -----------------------------------------------------------------------

# Byte-level vocabularies spell every byte as a printable character: bytes that are printable in
# Latin-1 stand for themselves, the other 68 are numbered from U+0100 on.
_PLAIN_BYTES = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHER_BYTES = sorted(set(range(256)) - set(_PLAIN_BYTES))
BYTE_CHARS = {b: chr(b) for b in _PLAIN_BYTES} | {
    b: chr(0x100 + n) for n, b in enumerate(_OTHER_BYTES)
}
_SPELLED_BYTES = re.compile("[" + "".join(map(re.escape, BYTE_CHARS.values())) + "]+")
_SPELLED_AS_IS = re.compile(r"[\x21-\x7E]+")
_CHAR_BYTES = {char: byte for byte, char in BYTE_CHARS.items()}
# Bytes that no UTF-8 text contains: a vocabulary without them loses nothing.
NEVER_IN_UTF8 = frozenset((0xC0, 0xC1, *range(0xF5, 0x100)))

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
SPACE_MARK = "\u2581"

# --- end of generation -----------------------------------------------------------------------

# Texts that end a turn when no key names the id, most specific first.
EOT_TEXTS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
    "<EOT>", "_<EOT>", "<｜end▁of▁sentence｜>", "<end_of_utterance>",
)  # fmt: skip
# Texts that end generation whatever the keys say.
EOG_TEXTS = frozenset(EOT_TEXTS) | {
    "</s>", "<|eom_id|>", "[EOT]", "[EOS]", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>",
    "<eos>", "<turn|>", "<|tool_response>", "[e~[",
}  # fmt: skip

# Attribute name -> metadata keys, first present wins. `seperator` is how the format spells it.
ID_KEYS = {
    "bos": ("bos",), "eos": ("eos",), "eot": ("eot",), "eom": ("eom",), "unk": ("unknown",),
    "sep": ("seperator",), "pad": ("padding",), "cls": ("cls",), "mask": ("mask",),
    "fim_pre": ("fim_pre", "prefix"), "fim_suf": ("fim_suf", "suffix"),
    "fim_mid": ("fim_mid", "middle"), "fim_pad": ("fim_pad",), "fim_rep": ("fim_rep",),
    "fim_sep": ("fim_sep",),
}  # fmt: skip

KEY = "tokenizer.ggml."


# --- reading metadata ------------------------------------------------------------------------


def shown(value: object) -> str:
    """A short ASCII rendering of any value, for error texts about untrusted data."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, (str, bytes, int, float)):
        text = ascii(value if not isinstance(value, (str, bytes)) else value[:80])
        return text if len(text) <= 64 else text[:61] + "..."
    if isinstance(value, (list, tuple)):
        return f"an array of {len(value)}"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} with shape {value.shape}"
    return "nothing" if value is None else f"a {type(value).__name__}"


_SCALARS: dict[str, tuple[tuple[type, ...], str]] = {
    "string": ((str,), "U"),
    "integer": ((int, np.integer), "iu"),
    "float": ((float, np.floating), "f"),
}


class Fields:
    """Typed access to untrusted metadata. Every failure names the file, the key and the value."""

    def __init__(self, metadata: Mapping[str, object], source: str) -> None:
        self._metadata = metadata
        self._prefix = f"{source}: " if source else ""

    def error(self, key: str, expected: str, found: str) -> FormatError:
        return FormatError(f"{self._prefix}{key}: expected {expected}, found {found}")

    def unsupported(self, key: str, expected: str, found: str) -> UnsupportedError:
        return UnsupportedError(f"{self._prefix}{key}: expected {expected}, found {found}")

    def has(self, key: str) -> bool:
        return self._metadata.get(key) is not None

    def string(self, key: str) -> str:
        value = self._metadata.get(key)
        if not isinstance(value, str):
            raise self.error(key, "a string", shown(value))
        return value

    def boolean(self, key: str, default: bool) -> bool:
        if not self.has(key):
            return default
        value = self._metadata[key]
        if not isinstance(value, (bool, np.bool_)):
            raise self.error(key, "a boolean", shown(value))
        return bool(value)

    def token_id(self, key: str, count: int) -> int:
        value = self._metadata.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise self.error(key, f"a token id below {count}", shown(value))
        if not 0 <= value < count:
            raise self.error(key, f"a token id below {count}", shown(int(value)))
        return int(value)

    def array(self, key: str, kind: str, length: int | None = None) -> list:
        """The array as a list of Python values of one scalar kind; `length` is checked if given."""
        value = self._metadata.get(key)
        types, dtype_kinds = _SCALARS[kind]
        wanted = f"an array of {'' if length is None else f'{length} '}{kind} values"
        if isinstance(value, np.ndarray):
            if value.ndim != 1 or value.dtype.kind not in dtype_kinds + "O":
                raise self.error(key, wanted, shown(value))
            value = value.tolist()
        if not isinstance(value, (list, tuple)):
            raise self.error(key, wanted, shown(value))
        if length is not None and len(value) != length:
            raise self.error(key, wanted, str(len(value)))
        for index, item in enumerate(value):
            if not isinstance(item, types) or isinstance(item, bool):
                raise self.error(key, wanted, f"{shown(item)} at index {index}")
        return list(value)

    def strings_below(self, prefix: str) -> dict[str, str]:
        """Keys that start with `prefix`, without it, mapped to their strings."""
        keys = [k for k in self._metadata if isinstance(k, str) and k.startswith(prefix)]
        return {key[len(prefix) :]: self.string(key) for key in keys}


@dataclass(frozen=True)
class Vocabulary:
    """The checked tables: what the encoders and the decoder are built from."""

    kind: str
    pre: str
    rules: PreTokenizer | None
    tokens: list[str]
    types: list[int]
    scores: list[float]
    merges: list[str]


def read_vocabulary(fields: Fields) -> Vocabulary:
    kind = fields.string(KEY + "model")
    if kind not in ("gpt2", "llama"):
        raise fields.unsupported(KEY + "model", "'gpt2' or 'llama'", shown(kind))

    pre = fields.string(KEY + "pre") if fields.has(KEY + "pre") else "default"
    rules = None
    if kind == "gpt2":
        rules = PRE_TOKENIZERS.get(pre)
        if rules is None:
            names = f"one of {len(PRE_TOKENIZERS)} known pre-tokenizers"
            raise fields.unsupported(KEY + "pre", names, shown(pre))
        if not fields.has(KEY + "pre"):
            missing = fields.error(KEY + "pre", "a pre-tokenizer name", "nothing")
            warnings.warn(
                f"{missing}; using 'default', token ids may differ from those of training",
                stacklevel=4,
            )

    tokens = fields.array(KEY + "tokens", "string")
    count = len(tokens)
    if not tokens:
        raise fields.error(KEY + "tokens", "at least one token", "an empty array")
    types = [NORMAL] * count
    if fields.has(KEY + "token_type"):
        types = fields.array(KEY + "token_type", "integer", count)
    scores, merges = [], []
    if kind == "llama":
        scores = fields.array(KEY + "scores", "float", count)
    else:
        merges = fields.array(KEY + "merges", "string")

    first_id: dict[str, int] = {}
    for index, (text, token_type) in enumerate(zip(tokens, types, strict=True)):
        if not UNDEFINED <= token_type <= BYTE:
            raise fields.error(f"{KEY}token_type[{index}]", "a type from 0 to 6", shown(token_type))
        if token_type == BYTE and not _BYTE_TOKEN.fullmatch(text):
            raise fields.error(f"{KEY}tokens[{index}]", "a byte token '<0xHH>'", shown(text))
        if text and first_id.setdefault(text, index) != index:
            where = f"{shown(text)} at {first_id[text]} and {index}"
            raise fields.error(KEY + "tokens", "distinct texts", where)
        if _literal(text) is None:
            raise fields.error(f"{KEY}tokens[{index}]", "text of bytes", shown(text))
    for index, score in enumerate(scores):
        if math.isnan(score):
            raise fields.error(f"{KEY}scores[{index}]", "a number", "nan")
    return Vocabulary(kind, pre, rules, tokens, types, scores, merges)


def _literal(text: str) -> bytes | None:
    """The bytes of a text that was decoded from a file, or None if no bytes decode to it."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return None


def merge_parts(merge: str) -> tuple[str, str]:
    """The two halves of a merge; two empty strings if it has no space to cut at.

    A space that belongs to a half is spelled U+0120, so one at index 0 is no separator.
    """
    cut = merge.find(" ", 1)
    return (merge[:cut], merge[cut + 1 :]) if cut > 0 else ("", "")


def spells_bytes(text: str, token_type: int) -> bool:
    """Whether byte-level text, which is spelled in the byte alphabet, may contain this token.

    A user-defined token is literal text. Where that differs from the byte spelling, a merge that
    produced it would decode to other text than was encoded.
    """
    if token_type == NORMAL:
        return _SPELLED_BYTES.fullmatch(text) is not None
    return token_type == USER_DEFINED and _SPELLED_AS_IS.fullmatch(text) is not None


def contribution(kind: str, text: str, token_type: int) -> bytes:
    """The bytes that a token adds to ordinary output. Control tokens add none."""
    if token_type == BYTE:
        return bytes.fromhex(text[3:5])
    if token_type not in (NORMAL, USER_DEFINED):
        return b""
    if token_type == NORMAL and kind == "gpt2" and spells_bytes(text, token_type):
        return text.encode() if text.isascii() else bytes(map(_CHAR_BYTES.__getitem__, text))
    if token_type == NORMAL and kind == "llama":
        text = text.replace(SPACE_MARK, " ")
    return text.encode("utf-8", "surrogateescape")
