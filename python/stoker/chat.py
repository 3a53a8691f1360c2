"""Chat messages to text and to token ids, through a model's own Jinja template.

`render_chat` gives the text. `encode_chat` gives token ids in which only the template can have
written control tokens: a message that spells ``<|im_end|>`` is encoded as those ten characters.
Messages, tools and variables are JSON-like values; roles are names. Both functions treat the
template as untrusted (see `_template`).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ._origin import Text, runs
from ._template import MAX_DEPTH, render
from ._vocabulary import shown
from .errors import InvalidArgumentError
from .tokenizer import Tokenizer

__all__ = ["encode_chat", "render_chat"]

# Roles are part of the markup of some templates (`<|user|>`), so they must not bring their own.
_ROLE = re.compile(r"[A-Za-z0-9_.-]+( [A-Za-z0-9_.-]+)*")


class _Input:
    """Copies caller data to plain containers of untrusted text, and adds up its size."""

    def __init__(self) -> None:
        self.size = 0

    def value(self, value: object, where: str, depth: int = 0) -> Any:
        self.size += 8
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, str):
            self.size += len(value)
            return Text(value)
        if depth >= MAX_DEPTH // 2:
            raise InvalidArgumentError(
                f"{where}: expected at most {MAX_DEPTH // 2} levels, found more"
            )
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str):
                    raise InvalidArgumentError(f"{where}: expected string keys, found {shown(key)}")
            return {
                self.value(key, where): self.value(item, f"{where}[{shown(key)}]", depth + 1)
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [
                self.value(item, f"{where}[{number}]", depth + 1)
                for number, item in enumerate(value)
            ]
        raise InvalidArgumentError(f"{where}: expected a JSON-like value, found {shown(value)}")

    def messages(self, messages: object) -> list[dict[str, Any]]:
        if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence):
            raise InvalidArgumentError(
                f"messages: expected a list of mappings, found {shown(messages)}"
            )
        copies = []
        for number, message in enumerate(messages):
            where = f"messages[{number}]"
            if not isinstance(message, Mapping):
                raise InvalidArgumentError(f"{where}: expected a mapping, found {shown(message)}")
            role = message.get("role")
            if not isinstance(role, str) or not _ROLE.fullmatch(role):
                raise InvalidArgumentError(
                    f"{where}['role']: expected a name of letters, digits and _.-, "
                    f"found {shown(role)}"
                )
            copy = self.value(message, where)
            copy["role"] = str.__str__(role)
            copies.append(copy)
        return copies


def _render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool,
    tools: Sequence[Any] | None,
    bos_token: str,
    eos_token: str,
    now: datetime | None,
    variables: Mapping[str, Any],
) -> tuple[Text, list[str]]:
    if not isinstance(template, str):
        raise InvalidArgumentError(f"template: expected a string, found {shown(template)}")
    data = _Input()
    context: dict[str, Any] = {
        name: data.value(value, f"variable {name}") for name, value in variables.items()
    }
    context |= {
        "messages": data.messages(messages),
        "tools": data.value(tools, "tools"),
        "add_generation_prompt": bool(add_generation_prompt),
        # The only values that may bring control tokens: they are the tokenizer's.
        "bos_token": bos_token,
        "eos_token": eos_token,
    }
    return render(template, context, data.size, now)


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Any] | None = None,
    bos_token: str = "",
    eos_token: str = "",
    now: datetime | None = None,
    **variables: Any,
) -> str:
    """The text that a Jinja chat template makes of messages.

    Args:
        template: Jinja source, at most 1 MiB.
        messages: mappings with a ``"role"`` and what the template reads, JSON-like.
        add_generation_prompt: whether to open the assistant's turn.
        tools: JSON-like tool descriptions, or None.
        now: what `strftime_now` tells; the local time if None.
        variables: further values the template reads, such as ``enable_thinking``.

    Raises:
        InvalidArgumentError: messages or variables of the wrong shape, or the template refused
            them through `raise_exception`.
        FormatError: the template does not compile, fails, or is out of bounds; with its line.
    """
    text, _ = _render(
        template, messages, add_generation_prompt, tools, bos_token, eos_token, now, variables
    )
    return str.__str__(text)


def encode_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    template: str | None = None,
    add_generation_prompt: bool = True,
    tools: Sequence[Any] | None = None,
    now: datetime | None = None,
    **variables: Any,
) -> list[int]:
    """Token ids of a conversation; only the template's own text yields control tokens.

    For messages without control token texts the ids equal those of the rendered text as a whole.
    BOS is added if the tokenizer wants it and the template did not write it. The template is
    `template`, else the tokenizer's ``tool_use`` template if there are tools and it has one,
    else its default.

    If a template sends its own control tokens through an operation that loses track of origins
    (a `%` format with message text, for example), they are encoded as plain text, and a warning
    names them.

    Raises:
        InvalidArgumentError, FormatError: as `render_chat`; also if there is no template.
    """
    if template is None:
        template = tokenizer.chat_template
        if tools:
            template = tokenizer.chat_templates.get("tool_use", template)
    if template is None:
        raise InvalidArgumentError(
            "tokenizer.chat_template: expected a template in the file or as argument, found neither"
        )
    bos, eos = tokenizer.bos_id, tokenizer.eos_id
    text, lost = _render(
        template,
        messages,
        add_generation_prompt,
        tools,
        tokenizer.token_text(bos) if bos is not None else "",
        tokenizer.token_text(eos) if eos is not None else "",
        now,
        variables,
    )
    names = sorted({name for own in lost for name in tokenizer.control_texts_in(own)})
    if names:
        warnings.warn(
            f"the chat template formats control tokens together with message text, they are "
            f"encoded as plain text: {', '.join(map(shown, names))}",
            stacklevel=2,
        )
    ids = tokenizer.encode_pieces(runs(text), add_special=False)
    if tokenizer.add_bos and bos is not None and ids[:1] != [bos]:
        ids.insert(0, bos)
    return ids
