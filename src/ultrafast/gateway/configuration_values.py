"""The single values of a configuration: what their types let pass, how a person is told, how TOML writes them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Final

from msgspec import inspect

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


def fits(value: object, kind: inspect.Type) -> bool:
    """Whether ``value``, as TOML's reader gives it, is a ``kind``."""
    match kind:
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.LiteralType():
            return value in kind.values
        case inspect.StrType():
            most = math.inf if kind.max_length is None else kind.max_length
            return isinstance(value, str) and (kind.min_length or 0) <= len(value) <= most and value.isprintable()
        case inspect.IntType() | inspect.FloatType():
            return _number_fits(value, kind)
        case _:
            raise AssertionError("no such type is in the configuration")


def _number_fits(value: object, kind: inspect.IntType | inspect.FloatType) -> bool:
    whole = isinstance(kind, inspect.IntType)
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not math.isfinite(value):
        return False
    at_least = kind.ge is None or value >= kind.ge
    return at_least and (kind.gt is None or value > kind.gt) and (kind.le is None or value <= kind.le)


def words_of(kind: inspect.Type) -> str:
    """What a value of ``kind`` must be."""
    words = "a table"
    match kind:
        case inspect.Metadata():
            words = words_of(kind.type)
        case inspect.UnionType():
            words = " or ".join(words_of(item) for item in kind.types if not isinstance(item, inspect.NoneType))
        case inspect.BoolType():
            words = "true or false"
        case inspect.LiteralType():
            words = choice_of(kind.values)
        case inspect.StrType():
            words = f"a text of {kind.min_length or 0} to {kind.max_length:,} letters" if kind.max_length else "a text"
        case inspect.IntType() | inspect.FloatType():
            noun = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
            low = f"above {kind.gt:,}" if kind.gt is not None else f"from {kind.ge:,}"
            words = f"{noun} {low} to {kind.le:,}"
        case inspect.VarTupleType():
            words = "a list"
    return words


def choice_of(values: Iterable[object]) -> str:
    """The values that are possible."""
    return " or ".join(f'"{value}"' for value in sorted(map(str, values)))


def dotted(node: tuple[str | int, ...]) -> str:
    """A path as TOML's users write it: ``routes[0].backends``."""
    text = ""
    for part in node:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + key_text(part)
    return text


def key_text(name: str) -> str:
    """A key as TOML writes it."""
    return name if _BARE_KEY.fullmatch(name) else _string(name)


def _string(text: str) -> str:
    # JSON's escapes are TOML's, but for one control character that JSON leaves as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def value_text(value: object) -> str:
    """A value as TOML writes it."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _string(value)
        case list() | tuple():
            return "[" + ", ".join(map(value_text, value)) + "]"
        case _:
            return repr(value)
