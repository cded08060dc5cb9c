"""In which line of a TOML text each key and each array element stands: the standard reader does not say."""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from typing import Final

Path = tuple[str | int, ...]

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_BLANK: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE: Final = re.compile(r"[ \t]*")
_PLAIN_VALUE: Final = re.compile(r"[^\n,\]}#]+")  # numbers, booleans, dates
_STRING: Final = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"{3,5}'
    r"|'''(?:[^']|'(?!''))*'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)

MAXIMUM_KEY_PARTS: Final = 8  # joined by dots; twice as many as the deepest setting has
# Possessive throughout, and what has no end ends with its line or the text: no text is read twice.
_PART: Final = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"?|'[^'\n]*+'?)"""
_DOT: Final = r"[ \t]*+\.[ \t]*+"
_DEEP_KEY: Final = re.compile(
    r'''"""(?:[^"\\]|\\.|"(?!""))*+(?:"{3,5})?'''
    r"""|'''(?:[^']|'(?!''))*+(?:'{3,5})?"""
    rf"|(?P<deep>{_PART}(?:{_DOT}{_PART}){{{MAXIMUM_KEY_PARTS}}})"
    rf"|{_PART}(?:{_DOT}{_PART})*+"
    r"""|#[^\n]*+|[^A-Za-z0-9_"'#-]++""",
    re.DOTALL,
)


def line_of_deep_key(text: str) -> int | None:
    """The line, from 1, of the first key of more than ``MAXIMUM_KEY_PARTS`` parts, in what may be no TOML.

    The standard reader's time grows with the square of their number: 10 s for 40 KB.
    """
    found = next((match for match in _DEEP_KEY.finditer(text) if match["deep"] is not None), None)
    return None if found is None else text.count("\n", 0, found.start()) + 1


def lines_of(text: str) -> dict[Path, int]:
    """The line, from 1, of every key, table and array element of ``text``, which ``tomllib`` has accepted."""
    return _Scanner(text).scan()


class _Scanner:
    """Walks through valid TOML and notes where things are; what they are worth, the standard reader knows."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._lines: dict[Path, int] = {}
        self._elements: dict[Path, int] = {}  # of arrays of tables, so far

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        while self._skip(_BLANK):
            table = self._header() if self._text[self._at] == "[" else self._pair(table)
        return self._lines

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        """Pass what matches; whether there is more."""
        match = pattern.match(self._text, self._at)
        if match is None:
            raise ValueError("the text is no TOML")
        self._at = match.end()
        return self._at < len(self._text)

    def _note(self, path: Path) -> Path:
        self._lines.setdefault(path, bisect_right(self._starts, self._at))
        return path

    def _header(self) -> Path:
        brackets = 2 if self._text.startswith("[[", self._at) else 1
        start = self._at
        self._at += brackets
        keys = self._keys()
        end, self._at = self._at + brackets, start
        path: Path = ()
        for number, key in enumerate(keys, 1):
            path = self._note((*path, key))
            if brackets == 2 and number == len(keys):
                self._elements[path] = self._elements.get(path, 0) + 1
            if path in self._elements:  # a table within an array of tables is one of its last element
                path = self._note((*path, self._elements[path] - 1))
        self._at = end
        return path

    def _pair(self, table: Path) -> Path:
        """Note ``key = value``; the table it is in goes on."""
        start = self._at
        keys = self._keys()
        end, self._at = self._at, start
        path = table
        for key in keys:
            path = self._note((*path, key))
        self._at = end + 1  # the equals sign
        self._value(path)
        return table

    def _keys(self) -> list[str]:
        """A key, or several joined by dots, and the space after them."""
        keys: list[str] = []
        while True:
            self._skip(_SPACE)
            start = self._at
            if self._text[start] in "\"'":
                self._skip(_STRING)
                keys.append(tomllib.loads("key = " + self._text[start : self._at])["key"])
            else:
                self._skip(_BARE_KEY)
                keys.append(self._text[start : self._at])
            self._skip(_SPACE)
            if self._text[self._at] != ".":
                return keys
            self._at += 1

    def _value(self, path: Path) -> None:
        self._skip(_SPACE)
        opening = self._text[self._at]
        if opening in "\"'":
            self._skip(_STRING)
        elif opening not in "[{":
            self._skip(_PLAIN_VALUE)
        else:
            closing = "]" if opening == "[" else "}"
            self._at += 1
            number = 0
            while self._skip(_BLANK) and self._text[self._at] != closing:
                if self._text[self._at] == ",":
                    self._at += 1
                elif opening == "[":
                    self._value(self._note((*path, number)))
                    number += 1
                else:
                    self._pair(path)
            self._at += 1
