"""Text to token ids and back: one class for every kind of vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Self

from ultrafast.errors import RequestError
from ultrafast.tokens import directory_vocabulary, gguf_vocabulary
from ultrafast.tokens.control_tokens import ControlTokens
from ultrafast.tokens.vocabulary import Vocabulary
from ultrafast.weights.gguf import GgufFile


class Tokenizer:
    """Text to token ids and back; immutable, and safe to share between threads.

    ``encode`` lets go of the GIL. Control ("special") tokens are recognised in text only where ``special=True``.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._encoder = vocabulary.encoder
        self._bytes = vocabulary.token_bytes
        self._bound = vocabulary.bound
        self.control_tokens = ControlTokens(vocabulary.control_tokens)
        self._control_ids = self.control_tokens.indices
        self.strips_leading_space = vocabulary.strips_leading_space
        self.beginning_of_sequence_id = vocabulary.beginning_of_sequence_id
        self.adds_beginning_of_sequence = vocabulary.adds_beginning_of_sequence
        self.end_of_sequence_id = vocabulary.end_of_sequence_id
        self.end_ids = vocabulary.end_ids

    @classmethod
    def from_gguf(cls, gguf: GgufFile) -> Self:
        """The tokenizer of an open model file.

        Raises ``UnsupportedModelError`` for another kind of tokenizer or an unknown pre-tokeniser, ``ModelFileError``
        for a vocabulary that contradicts itself.
        """
        return cls(gguf_vocabulary.read_vocabulary(gguf))

    @classmethod
    def from_directory(cls, directory: Path, *, vocabulary_size: int | None = None) -> Self:
        """The tokenizer of a Hugging Face directory: tokenizer.json and the small files beside it.

        ``vocabulary_size``: the model's, where its matrices have more rows than there are tokens; the rest stand for
        nothing. Raises ``ModelFileError`` for absent or damaged files, ``UnsupportedModelError`` for another kind.
        """
        return cls(directory_vocabulary.read_vocabulary(directory, vocabulary_size))

    @property
    def vocabulary_size(self) -> int:
        return len(self._bytes)

    def encode(
        self,
        text: str,
        *,
        special: bool = False,
        restore: Callable[[str], str] | None = None,
        known: Mapping[tuple[str, bool], list[int]] = MappingProxyType({}),
    ) -> list[int]:
        """Token ids of ``text``. With ``special``, control-token texts in it become control tokens; never by default.

        ``restore`` is applied to what lies between control tokens, after they were found; ``known`` has the ids of
        such parts, see ``parts``. Nothing is added before or after. Bytes for which the vocabulary has no token are
        lost, as they were when the model was trained. Raises ``RequestError`` for text that is not valid Unicode.
        """
        if not special:
            return self._encoder.encode(text, continues=False)
        return [index for _, ids in self._pieces(text, restore, known) for index in ids]

    def parts(self, text: str) -> dict[tuple[str, bool], list[int]]:
        """The ids of each part of ``text`` between control tokens, by part and whether anything stands before it."""
        return {key: ids for key, ids in self._pieces(text, None, {}) if key is not None}

    def _pieces(
        self, text: str, restore: Callable[[str], str] | None, known: Mapping[tuple[str, bool], list[int]]
    ) -> Iterator[tuple[tuple[str, bool] | None, list[int]]]:
        """Control tokens and the parts between them in order, with their ids; a control token has no key."""
        continues = False
        for part in self.control_tokens.cut(text):
            if isinstance(part, str):
                key = part, continues
                ids = known.get(key)
                if ids is None:
                    ids = self._encoder.encode(restore(part) if restore else part, continues=continues)
            else:
                key, ids = None, [part.index]
            continues = continues or bool(ids)
            yield key, ids

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a text to be continued as it stands: after a beginning-of-sequence token where the model's
        training put one, and with no control token taken from the text itself.
        """
        ids = self._encoder.encode(text, continues=False)
        if self.adds_beginning_of_sequence and self.beginning_of_sequence_id is not None:
            return [self.beginning_of_sequence_id, *ids]
        return ids

    def minimum_tokens(self, text: str) -> int:
        """A number of tokens that ``encode(text)`` reaches for certain, at a hundredth of its cost."""
        return 0 if self._bound is None else self._bound.minimum_tokens(text)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids``, control tokens left out, each malformed byte sequence as U+FFFD."""
        data = self.text_bytes(ids)
        return (data.removeprefix(b" ") if self.strips_leading_space else data).decode("utf-8", "replace")

    def text_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of the text of ``ids``, control tokens left out, as a continuation of other text."""
        control = self._control_ids
        return b"".join([self.token_bytes(index) for index in ids if index not in control])

    def token_bytes(self, index: int) -> bytes:
        """The bytes one token stands for, which need not be whole characters; a control token's are its name."""
        if not 0 <= index < len(self._bytes):
            raise RequestError("a token id lies outside the vocabulary")
        return self._bytes[index]

    @cached_property
    def whole_texts(self) -> dict[int, str]:
        """The text of every token that consists of whole characters; that of a control token is empty."""
        texts: dict[int, str] = {}
        for index, data in enumerate(self._bytes):
            with suppress(UnicodeDecodeError):
                texts[index] = "" if index in self._control_ids else data.decode()
        return texts

    def is_special(self, index: int) -> bool:
        """Whether a token is a control token: never text, and left out of decoded answers."""
        return index in self._control_ids
