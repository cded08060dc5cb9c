"""Token ids to text as they arrive: whole characters only, and never another text than decoding all at once."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Final

from ultrafast.tokens.tokenizer import Tokenizer

_make_decoder: Final = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """The text of one growing answer.

    Invariant: everything ``add`` and ``finish`` returned, joined, equals ``tokenizer.decode`` of all the ids. Bytes
    that may still become a character are held back; those that cannot are U+FFFD at once.
    """

    __slots__ = ("_decode", "_text_bytes")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._text_bytes = tokenizer.text_bytes
        self._decode = _make_decoder("replace").decode

    def add(self, ids: Sequence[int]) -> str:
        """The text that has become certain with ``ids``."""
        return self._decode(self._text_bytes(ids))

    def finish(self) -> str:
        """The rest: U+FFFD where the answer ends inside a character, else nothing."""
        return self._decode(b"", True)
