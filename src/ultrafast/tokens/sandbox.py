"""A jinja2 sandbox for templates nobody has read: immutable, and bounded in work and memory.

Invariant: everything a template does is charged to one budget before or as it happens: each pass through a loop or
macro, and the size of every value that it builds, compares, scans or prints. Sizes count letters and elements, with
shared parts counted each time they appear, so a small structure that prints as a huge one is paid for as the huge one.
Operations whose result could be large before it can be measured are measured from their operands, or refused.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_WORK: Final = 32_000_000  # of one rendering, in letters: a few seconds at most, where a template uses it up
ELEMENT_WORK: Final = 16  # what an element of a container, or a pass through a loop or macro, costs
MAX_INTEGER_BITS: Final = 4096
MAX_FORMAT_WIDTH_DIGITS: Final = 3

# What chat templates use. ``map`` and its kin apply their arguments once for each element.
_PER_ELEMENT_FILTERS: Final = ("map", "reject", "rejectattr", "select", "selectattr")
_FILTERS: Final = (
    *("abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "groupby", "int"),
    *("items", "last", "length", "list", "lower", "max", "min", "reverse", "round", "safe", "sort", "title", "trim"),
    *("unique", "upper", *_PER_ELEMENT_FILTERS),
)
_STRING_METHODS: Final = frozenset(
    {
        *("capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal"),
        *("isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "lower", "lstrip", "partition"),
        *("removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split"),
        *("splitlines", "startswith", "strip", "swapcase", "title", "upper"),
    }
)
_SEQUENCES: Final[tuple[type[Collection[Any]], ...]] = (
    list,
    tuple,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
)
_WIDE_FORMAT: Final = re.compile(rf"%[^a-zA-Z%]*(?:\d{{{MAX_FORMAT_WIDTH_DIGITS + 1},}}|\*)")


class WorkLimitError(Exception):
    """The template asked for more than ``MAX_WORK``."""


class RefusedError(Exception):
    """The template itself refused, by ``raise_exception``; the text is the template's."""


class _GenerationBlock(Extension):
    """``{% generation %}`` marks the model's own words in templates made for training; here it is its content."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and runs one template within ``MAX_WORK``; use ``budget()`` around both."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self) -> None:
        # Constant folding would run filters while compiling; it gains nothing here.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=["jinja2.ext.loopcontrols", _GenerationBlock],
            finalize=self.text,
        )
        self._remaining: ContextVar[list[int]] = ContextVar("remaining")
        kept = {name: self._measured(self.filters[name]) for name in _FILTERS}
        self.filters = kept | {
            "tojson": self._to_json,
            "join": self._measured(self._join),
            "replace": self._measured(self._replace),
            "indent": self._measured(self._indent),
            "string": self.text,
        }
        for name in _PER_ELEMENT_FILTERS:
            self.filters[name] = self._per_element(kept[name])
        self.globals = {
            "range": self.globals["range"],
            "dict": dict,
            "namespace": Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    @contextmanager
    def budget(self) -> Iterator[None]:
        """A fresh budget of ``MAX_WORK`` for what runs inside, in this thread or task only."""
        token = self._remaining.set([MAX_WORK])
        try:
            yield
        finally:
            self._remaining.reset(token)

    def compile_bounded(self, source: str) -> jinja2.Template:
        """A template whose loops, literals, comparisons and output report to the budget."""
        tree = _Meter().visit(self.parse(source))
        return self.from_string(tree)

    def charge(self, work: int) -> str:
        remaining = self._remaining.get()
        remaining[0] -= work
        if remaining[0] < 0:
            raise WorkLimitError
        return ""

    def sized(self, value: Any) -> Any:
        """Charge the size of ``value``, and return it."""
        self.charge(self._size(value))
        return value

    def searched(self, value: Any) -> Any:
        """As ``sized``, for the right side of ``in``: looking up a key costs nothing."""
        return value if isinstance(value, Mapping) else self.sized(value)

    def text(self, value: Any) -> str:
        """``str(value)``, measured first."""
        return str(self.sized(value))

    def iterated(self, value: Any) -> Any:
        """Charge the passes of a loop over ``value`` that its condition may skip."""
        if hasattr(value, "__len__"):
            self.charge(ELEMENT_WORK * len(value))
        return value

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        for operand in (left, right):
            if isinstance(operand, int) and operand.bit_length() > MAX_INTEGER_BITS:
                raise WorkLimitError
        left_size, right_size = self._size(left), self._size(right)
        self.charge(left_size + right_size)
        if operator == "*":
            for many, size, count in ((left, left_size, right), (right, right_size, left)):
                if isinstance(many, str | list | tuple) and isinstance(count, int):
                    self.charge(size * max(count, 0))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * max(right, 0) > MAX_INTEGER_BITS:
                raise WorkLimitError
        elif operator == "%" and isinstance(left, str):
            if _WIDE_FORMAT.search(left):
                raise SecurityError("a wide format")
            self.charge(right_size * left.count("%"))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        owner = getattr(__obj, "__self__", None)
        if owner is __self:  # the meter's own calls; the compiler adds keyword arguments for ordinary ones
            return __obj(*args)
        if isinstance(owner, str):
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
            return __self._call_string_method(owner, __obj, args, kwargs)
        __self.sized(args)
        if isinstance(owner, list | tuple):
            __self.sized(owner)
        return __self.sized(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is not None:
            raise SecurityError("str.format")
        return None

    def _call_string_method(self, owner: str, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = method.__name__
        if name not in _STRING_METHODS:
            raise SecurityError("a method of str")
        if name == "replace":
            return self.sized(self._replace(owner, *args, **kwargs))
        if name == "join":
            return self.sized(self._join(args[0], owner))
        self.charge(len(owner))
        return self.sized(method(*args, **kwargs))

    def _size(self, value: Any) -> int:
        """Letters and elements of ``value``, shared parts each time; raises once it exceeds what remains."""
        if isinstance(value, str):
            return len(value)
        limit = self._remaining.get()[0]
        total = 0
        pending = [value]
        while pending:
            item = pending.pop()
            total += ELEMENT_WORK
            if isinstance(item, str):
                total += len(item)
            elif isinstance(item, int):
                total += item.bit_length() >> 3
            elif isinstance(item, _SEQUENCES):
                total += len(item)
                pending.extend(item)
            elif isinstance(item, Namespace):
                total += 4 * ELEMENT_WORK
                pending.append(object.__getattribute__(item, "_Namespace__attrs"))
            elif isinstance(item, Mapping) and not isinstance(item, Context):
                total += len(item)
                pending.extend(item)
                pending.extend(item.values())
            if total > limit:
                raise WorkLimitError
        return total

    def _measured(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)  # keeps jinja2's mark of what the filter wants passed
        def measured(*args: Any, **kwargs: Any) -> Any:
            for argument in args:  # the environment or context among them counts as one
                self.sized(argument)
            return self.sized(function(*args, **kwargs))

        return measured

    def _per_element(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A lazy filter that uses its arguments once for each element."""

        @functools.wraps(function)
        def per_element(context: Context, values: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
            elements = self.sized(list(values or ()))
            self.charge(len(elements) * self._size([args, kwargs]))
            return function(context, elements, *args, **kwargs)

        return per_element

    def _join(self, values: Iterable[Any], separator: str = "", attribute: str | int | None = None) -> str:
        elements = list(values)
        if attribute is not None:
            elements = [self.getitem(element, attribute) for element in elements]
        texts = [self.text(element) for element in elements]
        self.charge(len(texts) * len(separator))
        return separator.join(texts)

    def _replace(self, text: str, old: str, new: str, count: int = -1) -> str:
        text, old, new = self.text(text), self.text(old), self.text(new)
        self.charge(text.count(old) * len(new))
        return text.replace(old, new, -1 if count is None else count)

    def _indent(self, text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        spaces = width if isinstance(width, str) else " " * min(int(width), 1000)
        lines = self.text(text).splitlines() or [""]
        self.charge(len(lines) * len(spaces))
        head, *rest = lines
        rest = [spaces + line if line or blank else line for line in rest]
        return "\n".join([(spaces if first else "") + head, *rest])

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON as chat templates expect it: unescaped, unlike jinja2's own filter for web pages."""
        self.sized(value)
        if indent is not None:
            indent = max(0, min(int(indent), 16))
        text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        return str(self.sized(text))


class _Meter(NodeTransformer):
    """Rewrites a template's tree so that it reports to the environment it runs in."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Concat:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [_reported("text", operand) for operand in node.nodes]
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        self.generic_visit(node)
        node.expr = _reported("sized", node.expr)
        for operand in node.ops:
            operand.expr = _reported("searched" if operand.op in ("in", "notin") else "sized", operand.expr)
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Test:  # noqa: N802
        self.generic_visit(node)
        if node.args:
            node.node = _reported("sized", node.node)
            node.args = [_reported("sized", argument) for argument in node.args]
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _reported("sized", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _reported("sized", node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _reported("sized", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _reported("sized", node) if node.ctx == "load" else node

    def _with_charge(self, node: Any) -> Any:
        self.generic_visit(node)
        if isinstance(node, nodes.For):
            node.iter = _reported("iterated", node.iter)
        literal = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        work = literal + ELEMENT_WORK * (1 if isinstance(node, nodes.For) else 4)  # a macro's call costs more time
        charge = nodes.Call(nodes.EnvironmentAttribute("charge"), [nodes.Const(work)], [], None, None)
        node.body.insert(0, nodes.ExprStmt(charge))
        return node

    visit_For = visit_Macro = visit_CallBlock = _with_charge  # noqa: N815


def _reported(name: str, expression: Any) -> nodes.Expr:
    if isinstance(expression, nodes.Const):
        return expression
    return nodes.Call(nodes.EnvironmentAttribute(name), [expression], [], None, None, lineno=expression.lineno)


def _raise_exception(message: object) -> None:
    raise RefusedError(message if isinstance(message, str) else "")


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern[:100])
