"""From chat messages to prompt tokens: the tokenizer and the chat template of one model file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ultrafast.tokens.chat_template import ChatTemplate
from ultrafast.tokens.tokenizer import Tokenizer
from ultrafast.weights.gguf import open_gguf


class ChatPrompt:
    """Renders and tokenises conversations. Thread-safe: no state changes after construction."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._template = template

    @classmethod
    def from_file(cls, path: Path) -> ChatPrompt:
        """Read both from a model file. Raises ``ModelFileError`` or ``UnsupportedModelError``."""
        with open_gguf(path) as gguf:
            tokenizer = Tokenizer.from_gguf(gguf)
            return cls(ChatTemplate.from_gguf(gguf, tokenizer), tokenizer)

    def tokens(self, messages: Sequence[Mapping[str, str]], *, context: int | None = None) -> list[int]:
        """The prompt for the next assistant turn after ``messages`` (each with ``role`` and ``content``).

        Raises ``ContextLengthError`` where it leaves no room for an answer in ``context``.
        """
        return self._template.render_tokens(messages, context=context)
