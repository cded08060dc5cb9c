"""Typed access to the fields of a JSON object: each reader names its field in the error and never shows the value.

``null`` means absent, as in OpenAI's API. What was never asked for is unknown, and refused at the end.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import Any

from ultrafast.errors import RequestError

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", re.ASCII)


class Fields:
    """Reads one JSON object; ``path`` is how errors call it (empty for the request itself)."""

    def __init__(self, values: dict[str, Any], path: str = "") -> None:
        self._values = values
        self._prefix = f"{path}." if path else ""
        self._known: set[str] = set()

    def named(self, name: str) -> str:
        """The full name of a field."""
        return self._prefix + name

    def wrong(self, name: str, expectation: str) -> RequestError:
        """The error for a field that breaks ``expectation`` ("must be …")."""
        full = self.named(name)
        return RequestError(f"'{full}' {expectation}", param=full, code="invalid_value")

    def missing(self, name: str) -> RequestError:
        """The error for a field that must be given and is not."""
        full = self.named(name)
        return RequestError(f"'{full}' is required", param=full, code="missing_required_parameter")

    def raw(self, name: str) -> Any:
        """The value as parsed, ``None`` where absent."""
        self._known.add(name)
        return self._values.get(name)

    def boolean(self, name: str, default: bool = False) -> bool:
        """true or false."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "must be true or false")
        return value

    def integer(self, name: str, low: int, high: int) -> int | None:
        """A whole number within the bounds, both included."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.wrong(name, f"must be a whole number from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float, default: float) -> float:
        """A finite number within the bounds, both included."""
        value = self.raw(name)
        if value is None:
            return default
        if not is_number(value, low, high):
            raise self.wrong(name, f"must be a number from {low:g} to {high:g}")
        return float(value)

    def string(self, name: str, longest: int) -> str | None:
        """A string of at most ``longest`` characters."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, str) or len(value) > longest:
            raise self.wrong(name, f"must be a string of at most {longest} characters")
        return value

    def choice(self, name: str, values: Collection[str]) -> str | None:
        """One of ``values``."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, str) or value not in values:
            raise self.wrong(name, f"must be one of: {', '.join(values)}")
        return value

    def object(self, name: str) -> Fields | None:
        """A nested object."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(name, "must be an object")
        return Fields(value, self.named(name))

    def refuse(self, names: Collection[str], reason: str) -> None:
        """Raise for any of ``names`` that is given: known to the API, but not served here."""
        for name in names:
            if self.raw(name) is not None:
                full = self.named(name)
                raise RequestError(f"'{full}' {reason}", param=full, code="unsupported_parameter")

    def end(self) -> None:
        """Raise for the first field nobody asked for."""
        for name in self._values:
            if name not in self._known:
                # Only what looks like a name is repeated: it may be anything else.
                shown = self.named(name) if _PLAIN_NAME.fullmatch(name) else None
                subject = f"'{shown}'" if shown else "a field"
                raise RequestError(f"{subject} is not a parameter of this API", param=shown, code="unknown_parameter")


def is_number(value: Any, low: float, high: float) -> bool:
    """Whether ``value`` is a finite number, no boolean, within the bounds."""
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high and math.isfinite(value)
    )
