"""Chat templates from untrusted files: a bounded Jinja sandbox that tracks where text came from.

Two guarantees, both needed because a model file brings its own template:

* **Bounds.** Jinja's immutable sandbox keeps a template away from Python; this one also bounds
  what it may spend. Loop rounds, calls and filters count as steps, created text counts as
  characters, both have budgets, and a deadline is looked at on every step. Operations whose
  result can be much larger than their operands are charged before they run, and the few string
  methods and filters that chat templates use are the only ones there.
* **Provenance.** Text of messages is `Text`, which tracks the characters that the template wrote
  (see `_origin`). Operations that cannot keep track give text that is untrusted as a whole.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import CodeType
from typing import Any

import jinja2
import markupsafe
from jinja2 import ext, nodes
from jinja2.defaults import DEFAULT_NAMESPACE
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.filters import FILTERS
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import pass_context
from jinja2.visitor import NodeTransformer

from ._origin import Text, concat, runs, tracked
from .errors import FormatError, InvalidArgumentError

MAX_TEMPLATE = 1 << 20  # characters of source
MAX_OUTPUT = 1 << 24  # characters rendered
MAX_SECONDS = 10.0
MAX_DEPTH = 64  # nesting of lists and mappings
# Budgets: a fixed part, and one for each character of input.
_STEPS, _STEPS_PER_INPUT = 500_000, 16  # loop rounds, calls, filters, operators
_CHARACTERS, _CHARACTERS_PER_INPUT = 1 << 23, 64  # created text
_NODE = 8  # characters that one list item or mapping entry counts as
_PIECE = 64  # characters that one piece of a split text counts as, besides its own
_MAX_BITS = 1024  # of integer products and powers
_MAX_INDENT = 16


def _strings(value: object) -> Iterator[str]:
    """All strings inside a value, keys included."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, (list, tuple)):
            stack.extend(item)


def _untrusted(text: str) -> bool:
    return isinstance(text, Text) and not text.is_trusted()


# --- the sandbox -----------------------------------------------------------------------------


class LimitError(Exception):
    """A template went over one of the bounds."""


class RaisedError(TemplateError):
    """The template called `raise_exception`."""


_STRING_METHODS = frozenset((
    "capitalize", "count", "endswith", "find", "index", "isalnum", "isalpha", "isdigit", "islower",
    "isnumeric", "isspace", "isupper", "join", "lower", "lstrip", "partition", "removeprefix",
    "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split",
    "splitlines", "startswith", "strip", "title", "upper",
))  # fmt: skip
_CONTAINER_METHODS = frozenset(("count", "get", "index", "items", "keys", "values"))
# Built-in filters that hand on what they were given, and those that make new text from it.
_CARRIERS = (
    "abs", "attr", "count", "d", "default", "dictsort", "first", "float", "groupby", "int",
    "items", "last", "length", "map", "max", "min", "reject", "rejectattr", "reverse", "round",
    "select", "selectattr", "sort", "unique", "wordcount",
)  # fmt: skip
_MAKERS = ("capitalize", "lower", "title", "trim", "truncate", "upper", "urlencode")
# A width in a format string makes text of that size out of nothing.
_WIDE_FORMAT = re.compile(r"\d{4,}|\*|\{[^{}]*\{")


class _Generation(ext.Extension):
    """`{% generation %}`: marks what the assistant wrote, for training; transparent here."""

    tags = {"generation"}  # noqa: RUF012 (the name and type are Jinja's)

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Guard(NodeTransformer):
    """Puts the sandbox's checks where Jinja compiles to plain Python."""

    @staticmethod
    def _call(name: str, args: list[nodes.Expr], lineno: int) -> nodes.Call:
        target = nodes.EnvironmentAttribute(name, lineno=lineno)
        return nodes.Call(target, args, [], None, None, lineno=lineno)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        step = self._call("loop_round", [], node.lineno)
        node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._call("join_values", node.nodes, node.lineno)

    def _visit_literal(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        if getattr(node, "ctx", "load") != "load":
            return node
        return self._call("checked", [node], node.lineno)

    visit_List = visit_Tuple = visit_Dict = _visit_literal


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of one rendering, with its budgets."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, input_size: int = 0, now: datetime | None = None) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=self._finalize,
            extensions=[ext.loopcontrols, _Generation],
        )
        self._steps = _STEPS + _STEPS_PER_INPUT * input_size
        self._characters = _CHARACTERS + _CHARACTERS_PER_INPUT * input_size
        self._deadline = time.monotonic() + MAX_SECONDS
        #: The template's own text that went into operations which could not keep track of it.
        self.lost: list[str] = []
        self.globals = {k: v for k, v in DEFAULT_NAMESPACE.items() if k != "lipsum"} | {
            "range": self.globals["range"],
            "raise_exception": self._raise_exception,
            "strftime_now": lambda form: (now or datetime.now()).strftime(form),
        }
        self.filters = {name: self._metered(FILTERS[name], False) for name in _CARRIERS}
        self.filters |= {name: self._metered(FILTERS[name], True) for name in _MAKERS}
        self.filters |= {
            "e": self._metered(self._filter_escape, True),
            "escape": self._metered(self._filter_escape, True),
            "format": self._metered(self._filter_format, True),
            "indent": self._metered(self._filter_indent, True),
            "join": self._metered(self._filter_join, False),
            "list": self._metered(self._filter_list, False),
            "replace": self._metered(self._replace, False),
            "safe": self._metered(self._text, False),
            "string": self._metered(self._text, False),
            "tojson": self._metered(self._filter_tojson, False),
        }

    # Budgets.

    def step(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise LimitError("more loop rounds and calls than its budget")
        if time.monotonic() > self._deadline:
            raise LimitError(f"more than {MAX_SECONDS:g} seconds")

    def spend(self, characters: int) -> None:
        self._characters -= characters
        if self._characters < 0:
            raise LimitError("more text than its budget")

    def _measure(self, value: object) -> tuple[int, int, int]:
        """(characters of text, entries, nesting) of a value, without walking past the budget."""
        characters = entries = deepest = 0
        stack = [(value, 0)]
        while stack:
            item, depth = stack.pop()
            deepest = max(deepest, depth)
            entries += 1
            if isinstance(item, str):
                characters += len(item)
            elif isinstance(item, dict):
                stack.extend((key, depth + 1) for key in item)
                stack.extend((entry, depth + 1) for entry in item.values())
            elif isinstance(item, (list, tuple)):
                stack.extend((entry, depth + 1) for entry in item)
            if deepest > MAX_DEPTH:
                raise LimitError(f"values nested more than {MAX_DEPTH} deep")
            if entries * _NODE + characters > self._characters:
                raise LimitError("more text than its budget")
        return characters, entries, deepest

    def _account(self, result: Any, inputs: Any = ()) -> Any:
        """Charge a result. If it is new text made from `inputs`, it is as trusted as they are."""
        if isinstance(result, str):
            self.spend(len(result))
            if not isinstance(result, Text) and any(map(_untrusted, _strings(inputs))):
                self._lose(inputs)
                return Text(result)
        elif isinstance(result, (list, tuple, dict)):
            self.spend(len(result) * _NODE)
        return result

    def _lose(self, inputs: Any) -> None:
        for whole in _strings(inputs):
            own = [text for text, trusted in runs(tracked(whole)) if trusted]
            self.spend(sum(map(len, own)))
            self.lost += own

    # What compiled templates call.

    def loop_round(self) -> None:
        """A round of a loop; the call itself was the step."""

    def join_values(self, *values: Any) -> Text:
        """The `~` operator."""
        return self.concat([self._text(value) for value in values])

    def checked(self, value: Any) -> Any:
        """A literal list or mapping: nesting shared values must not grow without limit."""
        _, entries, _ = self._measure(value)
        self.spend(entries * _NODE)
        return value

    def concat(self, parts: Iterable[str]) -> Text:  # type: ignore[override]
        """What Jinja joins output with."""
        parts = list(parts)
        self.spend(sum(map(len, parts)))
        return concat(parts)

    @pass_context
    def _finalize(self, context: Context, value: Any) -> str:
        """Every `{{ expression }}`."""
        text = self._text(value)
        self.spend(len(text))
        return text

    def _text(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, (list, tuple, dict)):
            characters, entries, _ = self._measure(value)
            self.spend(characters + entries * _NODE)
            return Text(str(value))
        return str(value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.step()
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            return self.concat((left, right))
        if operator == "%" and isinstance(left, str):
            return self._account(self._percent(left, right), (left, right))
        if operator in ("*", "**"):
            self._check_product(operator, left, right)
        return self._account(super().call_binop(context, operator, left, right), (left, right))

    def _check_product(self, operator: str, left: Any, right: Any) -> None:
        if isinstance(left, int) and isinstance(right, int):
            if operator == "*":
                bits = left.bit_length() + right.bit_length()
            else:
                bits = left.bit_length() * abs(right)
            if bits > _MAX_BITS:
                raise LimitError(f"integers of more than {_MAX_BITS} bits")
        for repeated, times in ((left, right), (right, left)):
            if isinstance(repeated, (str, list, tuple)) and isinstance(times, int):
                self.spend(len(repeated) * max(times, 0) * _NODE)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        self.step()
        owner = getattr(obj, "__self__", None)
        # Jinja adds the variables of loops and blocks for functions that want the context.
        given = {k: v for k, v in kwargs.items() if k not in ("_loop_vars", "_block_vars")}
        if isinstance(owner, str):
            result = self._string_method(tracked(owner), obj.__name__, args, given)
            return self._account(result, (owner, args, given))
        result = super().call(context, obj, *args, **kwargs)
        if isinstance(result, dict):
            return self.checked(result)
        # Containers return what was put in, macros what `concat` tracked.
        moves = isinstance(owner, (dict, list, tuple)) or isinstance(obj, Macro)
        return self._account(result, () if moves else (args, given))

    def _string_method(
        self, text: Text, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if name == "join":
            (parts,) = args
            return self._filter_join(parts, text)
        if name == "replace":
            return self._replace(text, *args, **kwargs)
        if name in ("split", "rsplit", "splitlines"):
            self.spend(_PIECE * len(getattr(str, name)(text, *args, **kwargs)))
        return getattr(text, name)(*args, **kwargs)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in _STRING_METHODS
        if isinstance(obj, (dict, list, tuple)):
            return attr in _CONTAINER_METHODS
        if isinstance(obj, (bytes, int, float, complex)):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        safe_format = super().wrap_str_format(value)
        if safe_format is None:
            return None
        form = value.__self__

        def bounded(*args: Any, **kwargs: Any) -> str:
            self._check_format(form, "{", (args, kwargs))
            return self._account(str.__str__(safe_format(*args, **kwargs)), (form, args, kwargs))

        return bounded

    # Operations that can grow, and filters.

    def _check_format(self, form: str, mark: str, values: Any) -> None:
        if _WIDE_FORMAT.search(form):
            raise SecurityError("wide, nested or variable widths in a format string")
        characters, entries, _ = self._measure(values)
        fields = form.count(mark)
        self.spend(len(form) + fields * (1000 + characters + entries * _NODE))

    def _percent(self, form: str, values: Any) -> str:
        self._check_format(form, "%", values)
        return str.__mod__(form, values)

    def _filter_format(self, form: Any, *args: Any, **kwargs: Any) -> str:
        return self._percent(self._text(form), kwargs or args)

    def _replace(self, text: Any, old: Any, new: Any, count: int | None = None) -> Text:
        text, old, new = tracked(self._text(text)), self._text(old), self._text(new)
        found = str.count(text, old)
        self.spend(len(text) + found * (len(new) + _PIECE))
        return text.replace(old, new, -1 if count is None else count)

    def _filter_join(self, parts: Any, mark: Any = "", attribute: Any = None) -> Text:
        if attribute is not None:
            parts = (self.getitem(part, attribute) for part in parts)
        texts = []
        for part in parts:
            texts.append(self._text(part))
            self.spend(len(texts[-1]) + len(mark) + _NODE)
        return tracked(self._text(mark)).join(texts)

    def _filter_list(self, values: Any) -> list:
        items = []
        for item in values:
            self.spend(_NODE)
            items.append(item)
        return items

    def _filter_indent(
        self, text: Any, width: Any = 4, first: bool = False, blank: bool = False
    ) -> str:
        text = self._text(text)
        size = len(width) if isinstance(width, str) else int(width)
        self.spend((size + 1) * (1 + str.count(text, "\n") + str.count(text, "\r")))
        mark = width if isinstance(width, str) else " " * size
        lines = concat((text, "\n")).splitlines()
        head = [concat((mark, lines[0])) if first else lines[0]]
        tail = [concat((mark, line)) if line or blank else line for line in lines[1:]]
        return tracked("\n").join(head + tail)

    def _filter_escape(self, value: Any) -> str:
        return str.__str__(markupsafe.escape(str.__str__(self._text(value))))

    def _filter_tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> Text:
        """JSON as models were trained on: without Jinja's HTML escapes."""
        characters, entries, depth = self._measure(value)
        spaces = len(indent) if isinstance(indent, str) else indent or 0
        if spaces > _MAX_INDENT:
            raise LimitError(f"an indent of more than {_MAX_INDENT}")
        self.spend(characters + entries * (_NODE + depth * spaces))
        text = json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )
        return Text(text)

    def _metered(self, function: Callable[..., Any], makes_text: bool) -> Callable[..., Any]:
        # `wraps` also copies the mark by which Jinja knows that a filter wants its context.
        @functools.wraps(function)
        def metered(*args: Any, **kwargs: Any) -> Any:
            self.step()
            result = function(*args, **kwargs)
            return self._account(result, (args, kwargs) if makes_text else ())

        return metered

    @staticmethod
    def _raise_exception(message: object = "") -> None:
        raise RaisedError(str(message))


# --- rendering -------------------------------------------------------------------------------


@functools.lru_cache(maxsize=16)
def _compiled(source: str) -> CodeType:
    sandbox = Sandbox()
    tree = _Guard().visit(sandbox.parse(source))
    return sandbox.compile(tree.set_environment(sandbox))


def render(
    source: str, variables: Mapping[str, Any], input_size: int, now: datetime | None
) -> tuple[Text, list[str]]:
    """The rendered text with its origins, and the template's own text that lost its origin.

    Raises:
        FormatError: the template does not compile, fails, or goes over a bound.
        InvalidArgumentError: the template refused its input by `raise_exception`.
    """
    if len(source) > MAX_TEMPLATE:
        raise FormatError(
            f"chat template: expected at most {MAX_TEMPLATE} characters, found {len(source)}"
        )
    template = None
    try:
        code = _compiled(source)
        sandbox = Sandbox(input_size, now)
        template = jinja2.Template.from_code(sandbox, code, sandbox.globals)
        parts: list[str] = []
        length = 0
        for part in template.root_render_func(template.new_context(dict(variables))):
            length += len(part)
            if length > MAX_OUTPUT:
                raise LimitError(f"more than {MAX_OUTPUT} characters of output")
            parts.append(part)
        return concat(parts), sandbox.lost
    except RaisedError as error:
        raise InvalidArgumentError(
            f"chat template{_line(error, template)}: expected messages that it accepts, "
            f"found: {error}"
        ) from None
    except Exception as error:  # noqa: BLE001
        # A template can fail in any way that Python code can: recursion, memory, types.
        found = str(error) if isinstance(error, LimitError) else f"{type(error).__name__}: {error}"
        raise FormatError(
            f"chat template{_line(error, template)}: expected a template that renders, "
            f"found {found}"
        ) from None


def _line(error: Exception, template: jinja2.Template | None) -> str:
    """Where in the template an error arose, as ", line N", or nothing."""
    line = error.lineno if isinstance(error, TemplateSyntaxError) else None
    trace = error.__traceback__
    while trace is not None and template is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = template.get_corresponding_lineno(trace.tb_lineno)
        trace = trace.tb_next
    return f", line {line}" if line is not None else ""
