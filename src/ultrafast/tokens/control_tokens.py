"""Control tokens in text: finding their names, the longest at each place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

_WHITE_SPACE: Final = "[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]*"  # Unicode's, as Rust has it
_SPACE_BEFORE: Final = re.compile(_WHITE_SPACE + r"\Z")
_SPACE_AFTER: Final = re.compile(_WHITE_SPACE)


@dataclass(frozen=True, slots=True)
class ControlToken:
    """One name and what of the white space around it in a text belongs to it."""

    text: str
    index: int
    strips_left: bool = False
    strips_right: bool = False


class ControlTokens:
    """All control tokens of a vocabulary; immutable.

    A vocabulary may have thousands, which a regular expression of their names would try one by one.
    """

    def __init__(self, tokens: Iterable[ControlToken]) -> None:
        self._by_text = {token.text: token for token in tokens}
        lengths: dict[str, set[int]] = {}
        for text in self._by_text:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(of_first, reverse=True) for first, of_first in lengths.items()}
        self._first = re.compile("[" + "".join(map(re.escape, sorted(lengths))) + "]" if lengths else r"(?!)")
        self._prefixes = frozenset(text[:end] for text in self._by_text for end in range(1, len(text)))
        self._longest = max(map(len, self._by_text), default=0)
        self.indices = frozenset(token.index for token in self._by_text.values())

    def find(self, text: str) -> Iterator[tuple[int, int, ControlToken]]:
        """Start, end and token of every name in ``text``, from the left."""
        position = 0
        while candidate := self._first.search(text, position):
            position = candidate.start()
            for length in self._lengths[candidate.group()]:
                token = self._by_text.get(text[position : position + length])
                if token is not None:
                    yield position, position + length, token
                    position += length
                    break
            else:
                position += 1

    def cut(self, text: str) -> Iterator[str | ControlToken]:
        """The tokens in ``text`` and the text between them, without the white space that belongs to a token."""
        position = 0
        for start, end, token in self.find(text):
            between = text[position:start]
            if token.strips_left and (space := _SPACE_BEFORE.search(between)):
                between = between[: space.start()]
            yield between
            yield token
            position = end
            if token.strips_right and (space := _SPACE_AFTER.match(text, end)):
                position = space.end()
        yield text[position:]

    def begun_at_end(self, text: str) -> int:
        """How many letters at the end of ``text`` could begin a name that goes on after it."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if text[-length:] in self._prefixes:
                return length
        return 0
