"""Which drafter proposes tokens, and how many: the part after the colon is the number of proposals a
round, so `ngram:4` verifies five rows for a request."""

from __future__ import annotations

import os
from dataclasses import dataclass

from .errors import InvalidArgumentError, UnsupportedError

KINDS = {"none": 0, "planted": 1, "ngram": 2, "mtp": 3}  # numbers of sk_drafter_kind
LATER = ("dflash", "dspark", "eagle3")
MAX_PROPOSALS = 15
HIDDEN_NORMS = ("whole", "per_stream")
FILES = (".gguf", ".safetensors", ".json")


@dataclass(frozen=True)
class Drafter:
    """A drafter and its settings.

    kind: "none" (verifies nothing), "ngram" (prompt lookup on the token window), "mtp" (the model's
        own draft head) or "planted" (a given list of drafts, for tests and forced workloads).
    proposals: K, proposals a round; the verify pass has up to K + 1 rows for a request.
    n_max, n_min: ngram only, longest and shortest suffix that is looked up.
    model: mtp only, the file or folder that has the head; by default the target's own.
    hidden_norm: mtp only, how the hidden row is normed: "whole", one RMS over all streams (as the
        model's own implementations do), or "per_stream", one for each.
    """

    kind: str = "none"
    proposals: int = 0
    n_max: int = 4
    n_min: int = 2
    model: str | None = None
    hidden_norm: str = "whole"

    def __post_init__(self) -> None:
        if self.kind in LATER:
            raise UnsupportedError(f"drafter: {self.kind} is not implemented; have {known()}")
        if self.kind not in KINDS:
            raise InvalidArgumentError(f"drafter: expected {known()}, found {self.kind!r}")
        least = 0 if self.kind == "none" else 1
        if not least <= self.proposals <= MAX_PROPOSALS:
            raise InvalidArgumentError(
                f"drafter {self.kind}: expected {least} .. {MAX_PROPOSALS} proposals, "
                f"found {self.proposals}"
            )
        if self.hidden_norm not in HIDDEN_NORMS:
            raise InvalidArgumentError(
                f"drafter {self.kind}: expected a hidden_norm of whole or per_stream, "
                f"found {self.hidden_norm!r}"
            )
        if self.kind != "mtp" and (self.model is not None or self.hidden_norm != "whole"):
            raise InvalidArgumentError(
                f"drafter {self.kind}: expected no model and no hidden_norm, as those are mtp's"
            )
        if not 1 <= self.n_min <= self.n_max <= 64:
            raise InvalidArgumentError(
                f"drafter {self.kind}: expected 1 <= n_min <= n_max <= 64, "
                f"found {self.n_min} .. {self.n_max}"
            )

    def __str__(self) -> str:
        text = f"{self.kind}:{self.proposals}" if self.proposals else self.kind
        if self.hidden_norm != "whole":
            text += f", {self.hidden_norm}"
        return text if self.model is None else f"{text} ({os.path.basename(self.model)})"

    @classmethod
    def parse(cls, text: str | os.PathLike[str] | Drafter) -> Drafter:
        """From "none", "none:4", "ngram:4", "mtp:4", "planted:4", the path of a draft head, which
        then proposes four tokens, or a Drafter as it is.

        Raises:
            InvalidArgumentError: another form. UnsupportedError: a drafter that is not implemented.
        """
        if isinstance(text, Drafter):
            return text
        if isinstance(text, os.PathLike):
            return cls("mtp", 4, model=os.fspath(text))
        if not isinstance(text, str):
            raise InvalidArgumentError(f"drafter: expected a string or Drafter, found {text!r}")
        if text.endswith(FILES) or os.sep in text:
            return cls("mtp", 4, model=text)
        kind, colon, number = text.partition(":")
        if kind not in KINDS and kind not in LATER:
            raise InvalidArgumentError(f"drafter: expected {known()}, found {text!r}")
        if colon and not (number.isascii() and number.isdigit() and len(number) < 4):
            raise InvalidArgumentError(
                f"drafter: expected a number of proposals after the colon, found {text!r}"
            )
        return cls(kind, int(number) if colon else (0 if kind == "none" else 4))


def known() -> str:
    return "none, ngram:K, mtp:K, planted:K or the path of a draft head"
