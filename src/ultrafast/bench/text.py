"""The texts that benchmarks read, shipped with the package, as tokens of the model under test."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from ultrafast.errors import ConfigurationError
from ultrafast.models.text import open_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = ("english", "chinese")
DEFAULT_TEXT = TEXTS[0]


@dataclass(frozen=True)
class TextTokens:
    """A whole text in tokens of one model, and the token that has to open a sequence, where the model wants one."""

    file_name: str
    tokens: list[int]
    beginning_id: int | None
    sha256: str

    def prompt(self, length: int, index: int) -> list[int]:
        """Prompt number ``index`` of ``length`` tokens: prompts of different numbers begin differently."""
        return self._opened(self.excerpt(length - (self.beginning_id is not None), index))

    def excerpt(self, length: int, index: int) -> list[int]:
        """``length`` tokens from the middle of the text; those of different numbers begin differently."""
        start = index * 997 % max(1, len(self.tokens) - length)
        return self.tokens[start : start + length]

    def sequences(self, length: int) -> list[list[int]]:
        """The text cut into consecutive sequences of exactly ``length`` tokens; a shorter rest is left out."""
        body = length - (self.beginning_id is not None)
        starts = range(0, len(self.tokens) - body + 1, body)
        return [self._opened(self.tokens[start : start + body]) for start in starts]

    def _opened(self, tokens: list[int]) -> list[int]:
        return tokens if self.beginning_id is None else [self.beginning_id, *tokens]


def text_tokens(model_path: Path, text: str = DEFAULT_TEXT) -> TextTokens:
    """Read a shipped text with the tokenizer of this model file.

    Raises ``ConfigurationError`` where no text of this name is shipped, or its tokens are too few to measure with.
    """
    if text not in TEXTS:
        raise ConfigurationError(f"no such text is shipped; there are: {', '.join(TEXTS)}")
    file_name = f"{text}.txt"
    content = (resources.files("ultrafast.bench") / "data" / file_name).read_bytes()
    tokenizer = open_tokenizer(model_path)
    tokens = tokenizer.encode(content.decode("utf-8"), special=False)
    if len(tokens) < 1024:
        raise ConfigurationError("the model's tokenizer makes too few tokens of the text to measure with")
    beginning = tokenizer.beginning_of_sequence_id if tokenizer.adds_beginning_of_sequence else None
    return TextTokens(file_name, tokens, beginning, hashlib.sha256(content).hexdigest())
