"""The single values of a configuration: what their types let pass, and how a person is told."""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec import inspect


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
