"""Plain text, without control tokens, to token ids: one encoder per kind of vocabulary."""

from __future__ import annotations

import os
import re
from typing import Final, Protocol

import tokenizers

from ultrafast import _native
from ultrafast.errors import RequestError

# One text at a time gains nothing from the library's threads: handing it over to them takes as long as encoding it.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

SPACE: Final = "\u2581"  # what stands for a space in SentencePiece vocabularies
_SPACE_RUN: Final = re.compile(" {2,}")


class Encoder(Protocol):
    """Thread-safe; lets go of the GIL. Raises ``RequestError`` for text that is not valid Unicode."""

    def encode(self, text: str, *, continues: bool) -> list[int]:
        """Ids of ``text``. ``continues``: a control token stands before it."""


class LibraryEncoder:
    """A tokenizer of the ``tokenizers`` library that takes no control token's name for the token.

    ``later`` encodes text after a control token, where the vocabulary treats it otherwise than the text's beginning.
    """

    def __init__(self, first: tokenizers.Tokenizer, later: tokenizers.Tokenizer | None = None) -> None:
        self._first = first
        self._later = later or first

    def encode(self, text: str, *, continues: bool) -> list[int]:
        if not text:
            return []
        backend = self._later if continues else self._first
        try:
            # The batch call, because it is the one that lets go of the GIL.
            ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except TypeError:  # the library's word for a string that UTF-8 cannot express
            raise _not_unicode() from None
        except BaseException as error:
            if is_panic(error):
                raise RequestError("the model's tokenizer gave up on this text") from None
            raise
        return ids


class SentencePieceEncoder:
    """Scored pieces. ``space_prefix``: text begins with a space of its own.

    That is so after every control token too, except where ``prefixes_first_only``; a space that is there already is
    then not doubled.
    """

    def __init__(
        self,
        pieces: _native.SentencePiece,
        *,
        space_prefix: bool,
        prefixes_first_only: bool,
        removes_extra_spaces: bool,
    ) -> None:
        self._pieces = pieces
        self._space_prefix = space_prefix
        self._prefixes_first_only = prefixes_first_only
        self._removes_extra_spaces = removes_extra_spaces

    def encode(self, text: str, *, continues: bool) -> list[int]:
        if self._removes_extra_spaces:
            text = _SPACE_RUN.sub(" ", text).strip(" ")
        if not text:
            return []
        text = text.replace(" ", SPACE)
        if self._prefixes_first_only:
            prefixed = self._space_prefix and not continues and not text.startswith(SPACE)
        else:
            prefixed = self._space_prefix
        try:
            return self._pieces.encode(SPACE + text if prefixed else text)
        except TypeError:  # the border's word for a string that UTF-8 cannot express
            raise _not_unicode() from None


def is_panic(error: BaseException) -> bool:
    """Whether the library's native code gave up: its exception is none of ``Exception``'s, and cannot be imported."""
    return type(error).__name__ == "PanicException"


def _not_unicode() -> RequestError:
    return RequestError("the text holds a lone surrogate, which is not valid Unicode")
