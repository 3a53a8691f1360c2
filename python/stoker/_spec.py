"""What commands take for a model: a path, or `synthetic:NAME,key=value,...`."""

from __future__ import annotations

import os

from .checkpoint import Checkpoint
from .checkpoint import open as open_checkpoint
from .errors import InvalidArgumentError

PREFIX = "synthetic:"
NUMBERS = ("layers", "seed", "ple_rows")


def checkpoint_of(spec: str | os.PathLike[str]) -> Checkpoint:
    """The checkpoint that `spec` names: a file or folder, or a model without one, as in
    "synthetic:flash-next,quant=iq3_s,layers=8,ple_rows=1000000", with the options of
    `stoker.synthetic`.

    Raises:
        InvalidArgumentError: an option that there is not, or is given twice or without a value.
        Error: whatever opening it raises.
    """
    text = os.fspath(spec)
    if not isinstance(text, str) or not text.startswith(PREFIX):
        return open_checkpoint(text)
    from ._synthetic import synthetic

    name, *words = text[len(PREFIX) :].split(",")
    options: dict[str, str | int] = {}
    for word in words:
        key, equals, value = word.partition("=")
        known = key == "quant" or key in NUMBERS
        number = value.isascii() and value.isdigit()
        if not known or not equals or key in options or (key in NUMBERS and not number):
            raise InvalidArgumentError(
                f"{text}: expected quant=TYPE, layers=N, seed=N or ple_rows=N, each once, "
                f"found {word!r}"
            )
        options[key] = int(value) if key in NUMBERS else value
    return synthetic(name, **options)  # type: ignore[arg-type]
