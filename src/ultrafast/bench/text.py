"""The English text that benchmarks read, shipped with the package, as tokens of the model under test."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from ultrafast.errors import ConfigurationError
from ultrafast.models.text import open_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME = "english.txt"


@dataclass(frozen=True)
class EnglishTokens:
    """The whole text in tokens of one model, and the token that has to open a sequence, where the model wants one."""

    tokens: list[int]
    beginning_id: int | None
    sha256: str

    def prompt(self, length: int, index: int) -> list[int]:
        """Prompt number ``index`` of ``length`` tokens: prompts of different numbers begin differently."""
        body = length - (self.beginning_id is not None)
        start = index * 997 % max(1, len(self.tokens) - body)
        return self._opened(self.tokens[start : start + body])

    def sequences(self, length: int) -> list[list[int]]:
        """The text cut into consecutive sequences of exactly ``length`` tokens; a shorter rest is left out."""
        body = length - (self.beginning_id is not None)
        starts = range(0, len(self.tokens) - body + 1, body)
        return [self._opened(self.tokens[start : start + body]) for start in starts]

    def _opened(self, tokens: list[int]) -> list[int]:
        return tokens if self.beginning_id is None else [self.beginning_id, *tokens]


def english_tokens(model_path: Path) -> EnglishTokens:
    """Read the shipped text with the tokenizer of this model file."""
    content = (resources.files("ultrafast.bench") / "data" / FILE_NAME).read_bytes()
    tokenizer = open_tokenizer(model_path)
    tokens = tokenizer.encode(content.decode("utf-8"), special=False)
    if len(tokens) < 1024:
        raise ConfigurationError("the model's tokenizer makes too few tokens of the text to measure with")
    beginning = tokenizer.beginning_of_sequence_id if tokenizer.adds_beginning_of_sequence else None
    return EnglishTokens(tokens, beginning, hashlib.sha256(content).hexdigest())
