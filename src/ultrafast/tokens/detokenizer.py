"""Token ids to text as they arrive: whole characters only, and never another text than decoding all at once."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence

from ultrafast.tokens.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """The text of one growing answer.

    Invariant: everything ``add`` and ``finish`` returned, joined, equals ``tokenizer.decode`` of all the ids, but that
    the space which encoding puts before a text is kept where the answer goes on from other text. Bytes that may still
    become a character are held back; those that cannot are U+FFFD at once.
    """

    __slots__ = ("_drops_space", "_held", "_text_bytes", "_whole_texts")

    def __init__(self, tokenizer: Tokenizer, *, previous: int | None = None) -> None:
        """``previous``: the token before the answer; without one, or after a control token, it begins a text."""
        self._text_bytes = tokenizer.text_bytes
        self._whole_texts = tokenizer.whole_texts
        self._held = b""  # bytes that may still become a character
        self._drops_space = tokenizer.strips_leading_space and (previous is None or tokenizer.is_special(previous))

    def add(self, ids: Sequence[int]) -> str:
        """The text that has become certain with ``ids``."""
        # Nearly every step: one token of whole characters after whole characters.
        if (
            len(ids) == 1
            and not self._held
            and not self._drops_space
            and (text := self._whole_texts.get(ids[0])) is not None
        ):
            return text
        data = self._text_bytes(ids)
        if self._drops_space and data:
            data = data.removeprefix(b" ")
            self._drops_space = False
        return self._decode(data, final=False)

    def finish(self) -> str:
        """The rest: U+FFFD where the answer ends inside a character, else nothing."""
        return self._decode(b"", final=True)

    def _decode(self, data: bytes, *, final: bool) -> str:
        data = self._held + data
        text, used = utf_8_decode(data, "replace", final)
        self._held = data[used:]
        return text
